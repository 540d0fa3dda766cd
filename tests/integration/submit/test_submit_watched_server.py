"""A server watched beside its clients: an XRootD server's log and machine in the same campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli_verbs import find_command
from click.testing import CliRunner
from local_user import LocalUser
from spool_harness import SpoolHarness
from storage_alone import TracedStorage, run_storage

from treehammer import config
from treehammer.collectors.record.operation_steps import LatencyHistogram
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs.dataset_specs import RawSpec
from treehammer.sql.core.measurement_columns import decode_latency
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.sites.site_model import Site
from treehammer.submit.sites.sites_file import write_sites_file
from treehammer.testbed import network
from treehammer.testbed.components import site_list


def sum_operations(store: Store) -> dict[tuple[str, str], tuple[int, int, LatencyHistogram]]:
    """Return done, failed and latencies by side and operation, also of steps that are left out."""
    sums: dict[tuple[str, str], tuple[int, int, LatencyHistogram]] = {}
    with store.snapshot() as snapshot:
        for found in snapshot.operations(Selection(), ("site",)):
            row: dict[str, Any] = dict(found)
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
        catalogue.make_raw(RawSpec("streams", "two files", 3, 2, 2_500_000, "", ""))
        site_list.place_dataset("streams", catalogue, storage.box)
        doors = tuple(one for one in storage.doors("SITE_A") if one.name == "root")
        write_sites_file(
            [Site("NEAR", "local", doors), Site("DISK1", "local", doors)], [], settings.sites_file
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
            done = CliRunner().invoke(
                find_command("submit"),
                [
                    *("open-rate", "--sites", "NEAR", "--watch-at", "DISK1", "--wait"),
                    *("--watch", "log-parse", "--watch", "server-watch"),
                    *("-P", "clients=5", "-P", "rate_hz=10"),
                    *(word for key, value in options.items() for word in ("-S", f"{key}={value}")),
                ],
                obj=settings,
                standalone_mode=False,
            )
        finally:
            bench = SpoolHarness(tmp_path / "bench", spool=settings.spool_dir)
            bench.kill_runner()
            bench.end_processes()
    assert done.exception is None, done.output
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
