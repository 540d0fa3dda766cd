"""Load tests: jobs that start together, and a watched server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from grid_campaigns import GridUser
from grid_fixtures import Grid, run_testbed
from local_servers import send_answer, serve_http
from local_user import LocalUser
from polling import wait_until
from repository_code import call_command
from service_process import ServiceProcess
from spool_harness import SpoolHarness
from storage_alone import run_storage
from tiny_dataset import raw_spec

from treehammer import config
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.sql.core.measurement_columns import decode_latency
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.batch.local_batch import stage_job
from treehammer.submit.campaigns import campaign_polling
from treehammer.submit.campaigns.campaign_outcome import describe_running_loads
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.campaigns.job_reporting import reporting_for_submission
from treehammer.submit.planning.submission_options import CampaignRequest
from treehammer.submit.sites.site_model import LoadPermission, Site
from treehammer.submit.sites.sites_file import write_sites_file
from treehammer.testbed import network
from treehammer.testbed.component import DaemonSpec
from treehammer.testbed.components import dataset_placement, site_list
from treehammer.testbed.components.xrootd_storage import XrootdStorage
from treehammer.testbed.network import NetworkLocation

LOAD_TOML = """
[test]
name = "begin"
payload = "begin"
repeats = 4
rounds = 1
wall_limit_s = 120
memory_limit_mb = 100
[load]
together = true
wait_s = 300
lead_s = 1
step_s = 1
duration_s = 60
ceiling = {clients = 8}
[settings]
seen_port = 0
"""

STARTING_PAYLOAD = """#!/usr/bin/env python3
import json, os, socket, time

with open(os.environ["TREEHAMMER_JOB"], encoding="utf-8") as stream:
    job = json.load(stream)
load, settings = job["load"], job["settings"]
if load["start_us"] is not None:
    time.sleep(max(0, load["start_us"] / 1e6 + load["first_step"] * load["step_s"] - time.time()))
values = {"load_started_us": time.time_ns() // 1000}
if settings["seen_port"]:  # progress as of the load generator, until that of all jobs was seen
    done = 10 * (load["index"] + 1)
    progress = {"step": 0, "step_s": 1.0, "done": done, "failed": 1, "bytes": 1000}
    with open("load-progress.json", "w", encoding="utf-8") as stream:
        json.dump(progress, stream)
    while socket.socket().connect_ex(("127.0.0.1", settings["seen_port"])):
        time.sleep(0.1)
with open(os.environ["TREEHAMMER_RESULT"], "w", encoding="utf-8") as stream:
    json.dump({"format": 1, "values": values}, stream)
"""


def write_load_test(folder: Path, **changes: str) -> Path:
    """Write the test; ``changes`` replace lines of test.toml by their keys."""
    folder.mkdir()
    lines = LOAD_TOML.splitlines()
    for key, value in changes.items():
        lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in lines]
    (folder / "test.toml").write_text("\n".join(lines) + "\n")
    (folder / "begin").write_text(STARTING_PAYLOAD)
    (folder / "begin").chmod(0o755)
    return folder


class WorkerProcesses:
    """Workers of a load test that meet at a service, each started when the test says so."""

    def __init__(self, test: Path, settings: Settings, folder: Path) -> None:
        plan = plan_request(CampaignRequest(str(test)), settings, bars=None)
        rendered = folder / "rendered"
        rendered.mkdir(parents=True)
        jobs = [
            replace(job, spec=replace(job.spec, load=replace(job.spec.load, folder="")))
            for job in plan.jobs
            if job.spec.load
        ]
        reporting = reporting_for_submission(settings, plan.options)
        self._folders: list[Path] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number, job in enumerate(render_jobs(plan, rendered, jobs, service=reporting)):
            self._folders.append(folder / str(number) / "inputs")
            stage_job(job, folder / str(number))

    def start(self, *numbers: int) -> None:
        """Start the workers of these jobs."""
        for number in numbers:
            with (self._folders[number] / "worker.log").open("wb") as log:
                self._processes[number] = subprocess.Popen(
                    [sys.executable, "worker.pyz", "run", "job.json"],
                    cwd=self._folders[number],
                    env={"PATH": os.environ["PATH"]},
                    stdout=log,
                    stderr=log,
                )

    def break_software(self, number: int) -> None:
        """Let a job request software that does not exist."""
        path = self._folders[number] / "job.json"
        job = json.loads(path.read_text())
        software = {"request": "path:/none", "provider": "path", "version": "", "location": "/none"}
        for execution in job["executions"]:
            execution["software"] = software
        path.write_text(json.dumps(job))

    def wait(self) -> None:
        """Wait for the end of all started workers."""
        for process in self._processes.values():
            process.wait(timeout=300)

    def read_values(self, number: int) -> Mapping[str, object]:
        """Return the values of a job's only measurement."""
        (path,) = (self._folders[number] / "records").glob("*.json")
        return Measurement.from_json(path.read_text()).values

    def read_log(self, number: int) -> str:
        """Return the output of a job's worker."""
        return (self._folders[number] / "worker.log").read_text()

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
            process.wait()


class TracedStorage(XrootdStorage):
    """Storages that log each request, with microseconds."""

    def configure(self) -> None:
        super().configure()
        for path in self.folder.glob("*/xrootd.cfg"):
            path.write_text(f"{path.read_text()}xrootd.trace emsg login request response\n")

    def _daemon_spec(self, program: str, name: str, location: NetworkLocation) -> DaemonSpec:
        spec = super()._daemon_spec(program, name, location)
        log = self.folder / name / f"{program}.log"
        # Only a log file has times with microseconds.
        return replace(spec, command=[*spec.command, "-l", str(log), "-z"])


def read_rows(user: LocalUser) -> list[dict[str, Any]]:
    with Store.open(user.settings.database) as store:
        rows = [dict(row) for row in store.measurements(Selection())]
    return sorted(rows, key=lambda row: row["load_index"])


def test_local_jobs_start_together_and_in_levels(local_user: LocalUser) -> None:
    test = write_load_test(local_user.folder / "load")
    done = local_user.invoke_command("submit", str(test), "--wait", "-S", "load.ramp=2/3s")
    assert done.exception is None, done.output
    assert "jobs start together, after 300 s at most; ramp 2/3s" in done.output
    rows = read_rows(local_user)
    assert [row["failure_class"] for row in rows] == [None] * 4
    assert [(row["load_index"], row["load_jobs"]) for row in rows] == [(n, 4) for n in range(4)]
    assert [row["start_present_jobs"] for row in rows] == [4] * 4
    (start_us,) = {row["start_planned_us"] for row in rows}
    (meeting,) = local_user.settings.spool_dir.glob("jobs/*/starts/*")
    arrivals = [(meeting / str(number)).stat().st_mtime for number in range(4)]
    assert max(arrivals) * 1e6 < start_us, "nobody starts before all are there"
    for row, level_s in zip(rows, (0, 0, 3, 3), strict=True):
        own_us = start_us + level_s * 1_000_000
        assert row["load_started_us"] >= own_us
        assert row["start_offset_s"] == pytest.approx((row["load_started_us"] - own_us) / 1e6)
        assert row["start_state"] == ("late" if row["start_offset_s"] > 0.25 else "together")
        assert row["start_wait_s"] < 300
    output = local_user.invoke_command("status", "last").output
    assert "4 of 4 jobs started together, spread" in output


def test_service_that_restarts_while_jobs_wait_loses_no_job(
    local_user: LocalUser, service_process: ServiceProcess, tmp_path: Path
) -> None:
    settings = service_process.settings_for_user(local_user.settings)
    test = write_load_test(tmp_path / "load")
    with WorkerProcesses(test, settings, tmp_path / "jobs") as workers:
        workers.start(0, 1, 2)
        wait_until(lambda: "3 of 4 jobs" in service_process.log.read_text(), "three jobs are there")
        service_process.end_process()
        service_process.start()
        began_us = time.time() * 1e6
        workers.start(3)
        workers.wait()
        rows = [workers.read_values(number) for number in range(4)]
    for number, row in enumerate(rows):
        assert "start_planned_us" in row, workers.read_log(number)
    assert len({row["start_planned_us"] for row in rows}) == 1
    for number, row in enumerate(rows):
        assert row["start_present_jobs"] == 4, workers.read_log(number)
        assert row["load_started_us"] > began_us  # type: ignore[operator]
        # The service runs on this machine: its clock is ours.
        offset_s, error_s = float(str(row["clock_offset_s"])), float(str(row["clock_error_s"]))
        assert abs(offset_s) <= error_s + 0.001
        assert "it cannot be reached" not in workers.read_log(number)
    assert len(service_process.read_measurements()) == 4


def test_job_that_fails_before_its_start_delays_nobody(
    local_user: LocalUser, service_process: ServiceProcess, tmp_path: Path
) -> None:
    settings = service_process.settings_for_user(local_user.settings)
    test = write_load_test(tmp_path / "load", wait_s="86400")
    with WorkerProcesses(test, settings, tmp_path / "jobs") as workers:
        workers.break_software(2)
        workers.start(0, 1, 2, 3)
        workers.wait()
        assert workers.read_values(2)["failure_class"] == "software-setup"
        for number in (0, 1, 3):
            values = workers.read_values(number)
            assert "failure_class" not in values, workers.read_log(number)
            assert values["start_present_jobs"] == 3


@pytest.fixture(scope="module")
def wide_pool() -> Iterator[Grid]:
    """HTCondor only: two sites with four slots each."""
    with run_testbed("wide", site_list.build_pools, 2, slots=4) as grid:
        yield grid


def test_jobs_of_a_pool_start_together(
    wide_pool: Grid,
    service_process: ServiceProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Meanwhile the sum of their rates is shown, which HTCondor knows as attributes of the jobs."""
    monkeypatch.setattr(campaign_polling, "GRID_POLL_S", 0.5)
    user = GridUser(tmp_path, wide_pool)
    for name in wide_pool.box.sites:
        (door,) = user.sites[name].doors
        user.write_sites_file(**{name: {"doors": (door.replace(load=LoadPermission(clients=8)),)}})
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))

    def describe_loads(steps: Any) -> str:
        text = describe_running_loads(steps)
        if "8 jobs" in text:
            listener.listen()
        return text

    monkeypatch.setattr(campaign_polling, "describe_running_loads", describe_loads)
    test = write_load_test(tmp_path / "load", seen_port=str(listener.getsockname()[1]))
    sites = ",".join(wide_pool.box.sites)
    refused = user.invoke_command("submit", str(test), "--sites", sites)
    assert "agree on a common start at the results service" in str(refused.exception)
    user.settings = service_process.settings_for_user(user.settings)
    done = user.invoke_command("submit", str(test), "--sites", sites, "--wait")
    listener.close()
    assert done.exception is None, (done.output, done.exception)
    assert "load: step 0, 8 jobs: 360 operations/s, 8 failed/s, 0.008 MB/s" in done.output
    ended = user.grid.run_condor_command(
        *("condor_history", "-name", user.grid.pool.schedd_name, "-af", "TreehammerLoad")
    )
    assert ended.split() == ["undefined"] * 8, "withdrawn at the end of the load"
    rows = read_rows(user)
    assert [row["failure_class"] for row in rows] == [None] * 8
    assert [row["load_index"] for row in rows] == list(range(8))
    assert len({(row["site"], row["slot"]) for row in rows}) == 8, "four slots of each site"
    (start_us,) = {row["start_planned_us"] for row in rows}
    for row in rows:
        assert row["start_present_jobs"] == 8
        assert row["load_started_us"] >= start_us - 1e6 * row["clock_error_s"]
    (status,) = [
        line
        for line in user.invoke_command("status", "last").output.splitlines()
        if line.startswith("start ")
    ]
    assert "8 of 8 jobs started together" in status


def test_servers_are_watched_from_slots_of_a_pool(
    wide_pool: Grid, service_process: ServiceProcess, tmp_path: Path
) -> None:
    user = GridUser(tmp_path, wide_pool)
    loaded, watching = wide_pool.box.sites
    (door,) = user.sites[loaded].doors
    user.write_sites_file(**{loaded: {"doors": (door.replace(load=LoadPermission(clients=8)),)}})
    test = write_load_test(tmp_path / "load", repeats="2", duration_s="60")
    user.settings = service_process.settings_for_user(user.settings)
    done = user.invoke_command(
        *("submit", str(test), "--sites", loaded, "--wait"),
        *("--watch", "server-watch", "--watch-at", watching, "-S", "watch.server=disk1"),
    )
    assert done.exception is None, (done.output, done.exception)
    with Store.open(user.settings.database) as store:
        rows = [dict(row) for row in store.measurements(Selection())]
        with store.snapshot() as snapshot:
            operations = list(snapshot.operations(Selection(), ("site",)))
    assert [row["failure_class"] for row in rows] == [None] * 3
    assert sorted(str(row["site"]) for row in rows) == [loaded, loaded, watching]
    assert len({row["start_planned_us"] for row in rows}) == 1
    assert {row["start_present_jobs"] for row in rows} == {3}
    assert {(row["site"], row["side"], row["server"]) for row in operations} == {
        (watching, "server", "disk1")
    }
    # The watch ends soon after the load, by way of the service.
    steps = {int(str(row["step"])) for row in operations}
    assert steps == {*range(len(steps))}
    assert len(steps) < 30


class _Setting(BaseHTTPRequestHandler):
    """Server whose setting a request changes and another one reads."""

    values: list[str]

    def do_GET(self) -> None:
        _, _, value = self.path.partition("=")
        if value:
            self.values.append(value)
        send_answer(self, 200, self.values[-1].encode())


def test_jobs_of_a_pool_change_settings_of_a_server(wide_pool: Grid, tmp_path: Path) -> None:
    user = GridUser(tmp_path, wide_pool)
    (site, *_) = wide_pool.box.sites
    (door,) = user.sites[site].doors
    changed = door.replace(settings=("server_threads",))
    user.write_sites_file(**{site: {"doors": (changed,)}})
    definition = user.test / "test.toml"
    axes = definition.read_text().replace('style = ["one", "two"]', "server_threads = [20, 70]")
    before = '[before]\ncommand = "apply.sh"\nsettings = ["server_threads"]\n'
    definition.write_text(axes.replace('["style"]', '["server_threads"]') + before)
    values = ["0"]
    with serve_http(type("Setting", (_Setting,), {"values": values})) as port:
        ask = f"""import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:{port}/threads$1").read().decode())"""
        (user.test / "apply.sh").write_text(
            f"#!/bin/sh\nset -eu\nset -- =$TREEHAMMER_AXIS_SERVER_THREADS\npython3 - <<E\n{ask}\nE\n"
        )
        (user.test / "apply.sh").chmod(0o755)
        user.set_payload(
            f'set -- ""; test "$(python3 - <<E\n{ask}\nE\n)" = "$TREEHAMMER_AXIS_SERVER_THREADS"'
        )
        user.submit_campaign("--sites", site, "-S", "repeats=1", "-P", "door=root", "--wait")
    assert [row["failure_class"] for row in user.read_measurements()] == [None, None]
    assert values == ["0", "20", "70", "20"]


def sum_operations(store: Store) -> dict[tuple[str, str], tuple[int, int, LatencyHistogram]]:
    """Return done, failed and latencies by side and operation, also of steps that are left out."""
    sums: dict[tuple[str, str], tuple[int, int, LatencyHistogram]] = {}
    with store.snapshot() as snapshot:
        for operation in snapshot.operations(Selection(), ("site",)):
            row: dict[str, Any] = dict(operation)
            assert row["site"] == {"client": "NEAR", "server": "DISK1"}[str(row["side"])]
            key = (str(row["side"]), str(row["operation"]))
            done, failed, latency = sums.get(key, (0, 0, LatencyHistogram()))
            latency.add(decode_latency(str(row["latency"] or "")))
            sums[key] = done + row["done"], failed + row["failed"], latency
    return sums


SHORT_LOAD = """
[test]
name = "short-load"
payload = "load.sh"
rounds = 1
repeats = 2
wall_limit_s = 120
[matrix]
root = ["none"]
clients = [1, 2]
bundle = ["clients"]
[load]
together = true
duration_s = 60.0
step_s = 10.0
lead_s = 1.0
"""
ENDED_AT_ONCE = """#!/bin/sh
sleep 1
echo '{"format": 1, "values": {}, "extras": {}, "failure": null}' > "$TREEHAMMER_RESULT"
"""


def test_watch_ends_with_the_load(local_user: LocalUser) -> None:
    """Each execution of the load ends after a second, long before its limit."""
    (local_user.test / "test.toml").write_text(SHORT_LOAD)
    (local_user.test / "load.sh").write_text(ENDED_AT_ONCE)
    (local_user.test / "load.sh").chmod(0o755)
    watch = ("--watch", "server-watch", "--watch-at", "local")
    done = local_user.invoke_command("submit", str(local_user.test), *watch, "--wait")
    assert done.exception is None, done.output
    with Store.open(local_user.settings.database) as store:
        columns = ("test_name", "payload_wall_s", "failure_class", "failure_message")
        rows = list(store.measurements(Selection(), columns))
        with store.snapshot() as snapshot:
            steps: list[dict[str, Any]] = [
                dict(row) for row in snapshot.operations(Selection(), ("test_name",))
            ]
    watched = [row for row in rows if row["test_name"] == "server-watch"]
    assert len(watched) == 2
    assert not any(row["failure_class"] for row in rows), rows
    assert max(float(str(row["payload_wall_s"])) for row in watched) < 30
    assert {row["step"] for row in steps} == {0}
    assert max(row["step_s"] for row in steps) < 10


def test_log_and_clients_count_the_same_calls(tmp_path: Path) -> None:
    """Each open of the clients is one in the server's log, and takes no longer there."""
    real = config.load_settings()
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "software").symlink_to(real.software_dir)
    flags = {"cache_dir": cache, "data_dir": tmp_path / "data", "sites_file": tmp_path / "sites"}
    settings = config.load_settings(flags, environ={}, folder=tmp_path)
    assert settings.sites_file
    with run_storage(network.PROXY, TracedStorage) as storage:
        catalogue = FolderCatalogue(settings.datasets_dir)
        catalogue.make_raw(raw_spec("streams", 2))
        dataset_placement.place_dataset("streams", catalogue, storage.box)
        doors = tuple(door for door in storage.doors("SITE_A") if door.name == "root")
        write_sites_file(
            [
                Site(name="NEAR", batch="local", doors=doors),
                Site(name="DISK1", batch="local", doors=doors),
            ],
            [],
            settings.sites_file,
        )
        options: dict[str, Any] = {
            "load.together": "true",
            "load.duration_s": 3,
            "load.step_s": 1,
            "load.lead_s": 3,
            "watch.settle_s": 4,
            "repeats": 2,
            "dataset": "streams",
            "watch.log": storage.folder / "SITE_A" / "xrootd.log",
            "watch.server": "disk1",
        }
        try:
            done = call_command(
                *("submit", settings, "open-rate", "--sites", "NEAR", "--watch-at", "DISK1"),
                *("--wait", "--watch", "log-parse", "--watch", "server-watch"),
                *("-P", "clients=5", "-P", "rate_hz=10"),
                *(word for key, value in options.items() for word in ("-S", f"{key}={value}")),
            )
        finally:
            bench = SpoolHarness(tmp_path / "bench", spool=settings.spool_dir)
            bench.kill_runner()
            bench.end_processes()
    assert "2 of 2 jobs started together" in done.output
    with Store.open(settings.database) as store:
        operations = sum_operations(store)
        rows = [dict(row) for row in store.measurements(Selection())]
    assert [row["failure_class"] for row in rows] == [None] * 4
    assert all(row["plausible"] for row in rows)
    opened, failed, seen = operations["client", "open"]
    assert (opened, failed) == (2 * 5 * 10 * 3, 0)
    logged, _, inside = operations["server", "open"]
    assert logged == operations["server", "close"][0] == opened
    assert inside.maximum <= seen.maximum * 1.01
    assert operations["server", "connect"][0] > 0
    assert operations["server", "disk_read"][2].count == 0
