"""XRootD servers of two suites of Debian side by side, upgraded while a job reads, and under patrol."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from polling import wait_until
from repository_code import find_command
from spool_harness import SpoolHarness
from storage_alone import run_storage
from tiny_dataset import raw_spec

from treehammer import config
from treehammer.collectors.cache_counts import parse_cache_info
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.worker.probes.storage_door import identify_server
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.errors import ConfigError, NothingToDoError, TestbedError
from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.sql.read import site_history
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Site
from treehammer.testbed import faults, network
from treehammer.testbed.components import dataset_placement, xrootd_storage
from treehammer.testbed.components.site_list import sites_file_path
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)
from treehammer.testbed.debian_packages import SUITE
from treehammer.testbed.faults import configure_server, restart_server, set_distance, upgrade_server
from treehammer.testbed.lifecycle import RunningDaemon, read_state
from treehammer.watch.alarms.alarm_watch import REGRESSION
from treehammer.watch.patrol import patrol_service
from treehammer.watch.patrol.patrol_file import parse_patrol_file
from treehammer.watch.patrol.patrol_service import open_patrol
from treehammer.watch.store.alarms import EventTable
from treehammer.watch.store.patrol_report import load_report
from treehammer.watch.store.patrol_starts import FINISHED

OLD_SUITE, OLD, NEW = "bookworm", "XRootD v5.5.3", "XRootD v5.8.1"
DATASET = "streams"
DEFINITION = f"""
[test]
name = "copies"
payload = "copy.sh"
dataset = "{DATASET}"
rounds = 2
[matrix]
root = ["none"]
door = ["stable", "testing"]
bundle = ["door"]
"""
#: Copies the file; the first execution at the door to be upgraded waits for the upgrade.
COPY = """#!/bin/sh
set -e
'{xrdcp}' --silent --force "$TREEHAMMER_URL" copied
test "$(wc -c < copied)" = 2500000
case "$TREEHAMMER_URL" in
  '{prefix}'*) touch '{folder}/waiting'; until test -e '{folder}/upgraded'; do sleep 0.1; done;;
esac
echo '{{"format": 1, "values": {{}}, "extras": {{}}, "failure": null}}' > "$TREEHAMMER_RESULT"
"""

#: Jobs on this machine read the storage of the site.
PATROL_TOML = """
[servers]
look_every = "1s"
[entries.copies]
test = "./test"
sites = ["SITE_A"]
from = ["local"]
every = "1d"
servers = true
"""


@pytest.fixture(scope="module")
def storage() -> Iterator[XrootdStorage]:
    """One site with a door of this suite and one of an older suite."""
    channels = (("stable", SUITE), ("testing", OLD_SUITE), ("patrolled", OLD_SUITE))
    with run_storage(network.PROXY, channels=channels, sites=1) as opened:
        path = sites_file_path(opened.box)
        sites_file.write_sites_file(
            [Site(name="SITE_A", batch="local", doors=opened.doors("SITE_A"))], [], path
        )
        yield opened


@pytest.fixture
def settings(storage: XrootdStorage, tmp_path: Path) -> Iterator[Settings]:
    """Settings with the dataset at the site, and a local queue that ends with the test."""
    flags = {
        "cache_dir": tmp_path / "cache",
        "data_dir": tmp_path / "data",
        "sites_file": sites_file_path(storage.box),
    }
    settings = config.load_settings(flags, environ={}, folder=tmp_path)
    catalogue = FolderCatalogue(settings.datasets_dir)
    catalogue.make_raw(raw_spec(DATASET, 1))
    dataset_placement.place_dataset(DATASET, catalogue, storage.box)
    yield settings
    bench = SpoolHarness(settings.data_dir / "bench", spool=settings.spool_dir)
    bench.kill_runner()
    bench.end_processes()


def submit_copies(settings: Settings, test: Path) -> None:
    """Submit the test and wait for its end."""
    done = CliRunner().invoke(
        find_command("submit"),
        [str(test), "--sites", "SITE_A", "--wait"],
        obj=settings,
        standalone_mode=False,
    )
    assert done.exception is None, (done.output, done.exception)


def write_test(folder: Path, definition: str, script: str) -> Path:
    """Write a test whose payload is a script."""
    test = folder / "test"
    test.mkdir()
    (test / "test.toml").write_text(definition)
    (test / "copy.sh").write_text(script)
    (test / "copy.sh").chmod(0o755)
    return test


def test_restarted_server_reads_its_configuration_again(storage: XrootdStorage) -> None:
    """The other servers of the site continue."""
    folder = storage.box.folder / "xrootd" / "SITE_A"
    log = storage.box.folder / "logs/xrootd-SITE_A.log"
    before = {daemon.spec.name: daemon.pid for daemon in read_daemons(storage)}
    configuration = folder / "xrootd.cfg"
    configuration.write_text(
        f"{configuration.read_text()}xrootd.trace emsg login request response\n"
    )
    restart_server(storage.box, "SITE_A", "root", print)
    after = {daemon.spec.name: daemon.pid for daemon in read_daemons(storage)}
    changed = {name for name, pid in after.items() if before[name] != pid}
    assert changed == {"xrootd-SITE_A", "cmsd-SITE_A"}
    door = next(door for door in storage.doors("SITE_A") if door.name == "root")
    address, _, _ = door.prefix.removeprefix("root://").partition("/")
    xrdfs = str(storage.programs / "xrdfs")
    subprocess.run([xrdfs, address, "stat", "/store/treehammer"], check=True, timeout=30)
    wait_until(lambda: "req=stat" in log.read_text(errors="replace"), "it is traced")
    with pytest.raises(ConfigError, match="has no 'https'"):
        restart_server(storage.box, "SITE_A", "https", print)


def test_server_is_configured_and_reset(
    storage: XrootdStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Files that a cache stores anew have the size of block that was set."""
    with suppress(NothingToDoError):  # left by an interrupted run of this test
        configure_server(storage.box, "SITE_A", "cache", {}, print)
    configuration = storage.box.folder / "xrootd" / "SITE_A-cache" / "xrootd.cfg"
    original = configuration.read_text()
    (door,) = [door for door in storage.doors("SITE_A") if door.name == "cache"]
    assert door.cache is not None

    changed = configure_server(
        storage.box, "SITE_A", "cache", {"pfc.blocksize": "1m", "pfc.ram": "2g"}, print
    )

    assert changed == {"pfc.blocksize": ("128k", "1m"), "pfc.ram": ("1g", "2g")}
    assert "pfc.blocksize 128k" not in configuration.read_text()
    path = storage_folder(storage.box, "SITE_A") / DATASET_FOLDER.lstrip("/") / "block"
    path.write_bytes(b"x")
    path.chmod(0o644)
    copy = [str(storage.programs / "xrdcp"), "-s", f"{door.prefix}/block", str(tmp_path / "copy")]
    subprocess.run(copy, check=True, timeout=150)  # a client that was refused waits 120 s
    info = Path(f"{door.cache.files}{DATASET_FOLDER}/block.cinfo")
    wait_until(info.exists, "the cache describes the file")
    assert parse_cache_info(info.read_bytes()).block == 1 << 20
    with pytest.raises(NothingToDoError, match="has these settings already"):
        configure_server(storage.box, "SITE_A", "cache", {"pfc.blocksize": "1m"}, print)

    monkeypatch.setattr(faults, "TIMEOUT_S", 2.0)
    with pytest.raises(TestbedError, match=r"does not start with pfc.blocksize=1x; the settings"):
        configure_server(storage.box, "SITE_A", "cache", {"pfc.blocksize": "1x"}, print)
    assert "pfc.blocksize 1m" in configuration.read_text()
    assert identify_server(door.prefix).version

    assert set(configure_server(storage.box, "SITE_A", "cache", {}, print)) == set(changed)
    assert configuration.read_text() == original
    with pytest.raises(NothingToDoError, match="has these settings already"):
        configure_server(storage.box, "SITE_A", "cache", {}, print)


def read_daemons(storage: XrootdStorage) -> Sequence[RunningDaemon]:
    state = read_state(storage.box.folder)
    assert state is not None
    return state.daemons


def test_upgrade_is_recorded_while_a_job_reads(
    storage: XrootdStorage, settings: Settings, tmp_path: Path
) -> None:
    doors = {door.name: door for door in storage.doors("SITE_A")}
    values = {"xrdcp": storage.programs / "xrdcp", "prefix": doors["testing"].prefix}
    test = write_test(tmp_path, DEFINITION, COPY.format(**values, folder=tmp_path))

    with ThreadPoolExecutor(1) as pool:
        campaign = pool.submit(submit_copies, settings, test)
        try:
            wait_until(lambda: (tmp_path / "waiting").exists() or campaign.done(), "the job reads")
            versions_reported = upgrade_server(storage.box, "SITE_A", "testing", SUITE, print)
        finally:
            (tmp_path / "upgraded").touch()
        campaign.result()

    assert versions_reported == (OLD, NEW)
    with Store.open(f"sqlite:///{settings.data_dir / 'results.db'}") as store:
        rows: list[dict[str, Any]] = [*store.measurements(Selection.parse())]
        days = {row["day"] for row in rows}
        history = site_history.load_history(store, "SITE_A", min(days), max(days))
    assert not [row["failure_message"] for row in rows if row["failure_class"]]
    versions = [
        (row["door"], row["round"], row["server_version"])
        for row in sorted(rows, key=lambda row: (row["door"], row["round"]))
    ]
    assert versions == [
        ("stable", 1, NEW),
        ("stable", 2, NEW),
        ("testing", 1, OLD),
        ("testing", 2, NEW),
    ]
    assert len({row["job_id"] for row in rows}) == 1
    # The upgrade is a step within the door's series.
    assert len({row["series"] for row in rows if row["door"] == "testing"}) == 1
    assert any(aspect.component == "door testing (root)" for aspect in history)
    site = sites_file.read_sites_file(sites_file_path(storage.box)).sites["SITE_A"]
    assert {
        door.name: door.version for door in site.doors if door.name in ("stable", "testing")
    } == {"stable": "5.8.1", "testing": "5.8.1"}


def test_cache_and_origin_are_upgraded_apart_and_at_a_distance(
    storage: XrootdStorage, settings: Settings, tmp_path: Path
) -> None:
    """The record of a job names the versions of both, and the distance as set and as measured.

    Each release of the cache is emptied in its own way.
    """
    latency_s = 0.06
    versions_reported = upgrade_server(storage.box, "SITE_A", "cache", OLD_SUITE, print)
    assert versions_reported == (NEW, OLD)
    definition = DEFINITION.partition("rounds")[0] + (
        '[matrix]\nroot = ["none"]\nlatency_ms = [0, 60]\nserver_cache = ["cold"]\n'
        'door = ["origin", "cache", "root"]\nbundle = ["door", "latency_ms"]\n'
    )
    script = COPY.partition("case")[0] + COPY.partition("esac")[2]
    test = write_test(tmp_path, definition, script.format(xrdcp=storage.programs / "xrdcp"))

    submit_copies(settings, test)

    with Store.open(settings.database) as store:
        rows: list[dict[str, Any]] = [*store.measurements(Selection.parse())]
    assert not [row["failure_message"] for row in rows if row["failure_class"]]
    methods = {
        (row["door"], json.loads(row["variant"])["latency_ms"]): row["distance_method"]
        for row in rows
    }
    assert methods == {
        **dict.fromkeys(product(("origin", "cache"), (0, 60)), "link"),
        ("root", 0): None,
        ("root", 60): "proxy",
    }
    for row in rows:
        expected_s = json.loads(row["variant"])["latency_ms"] / 1e3
        assert expected_s <= row["origin_rtt_s"] < expected_s + latency_s / 2
        if row["door"] != "cache" and expected_s:
            assert row["payload_wall_s"] > 2 * latency_s
        assert (row["server_version"], row["origin_version"]) == (
            (OLD, NEW) if row["door"] == "cache" else (NEW, None)
        )
        assert row["server_cache_method"] == (
            "evicted with sh"
            if row["door"] == "cache"
            else "the sites file declares no cache at this door"
        )
    doors = {door.name: door for door in storage.doors("SITE_A")}
    before, after, measured_ms = set_distance(storage.box, "SITE_A", "cache", None, None)
    assert before == after == network.NO_DISTANCE  # set back at the end of the job
    assert measured_ms is not None
    assert upgrade_server(storage.box, "SITE_A", "origin", OLD_SUITE, print) == (NEW, OLD)
    assert identify_server(doors["root"].prefix).version == NEW
    with pytest.raises(ConfigError, match=r"(?s)no link leads.*cache, origin"):
        set_distance(storage.box, "SITE_A", "root", 20, None)


TIMED_DEFINITION = f"""
[test]
name = "copies"
payload = "copy.sh"
dataset = "{DATASET}"
rounds = 1
repeats = 3
headline = ["total_s"]
[matrix]
root = ["none"]
door = ["patrolled"]
[metrics.total_s]
unit = "s"
better = "lower"
description = "Time of the copy, and 0.3 s"
"""
#: The constant time keeps the spread of short copies small.
TIMED_COPY = """#!/bin/sh
set -e
begin=$(date +%s.%N)
sleep 0.3
'{xrdcp}' --silent --force "$TREEHAMMER_URL" copied
total_s=$(awk "BEGIN {{print $(date +%s.%N) - $begin}}")
echo '{{"format": 1, "extras": {{"total_s": '$total_s'}}, "failure": null}}' > "$TREEHAMMER_RESULT"
"""
#: Delays each read of a file, which XRootD does by sendfile or pread.
SLOW_READS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size)
{
   usleep(500000);
   return ((ssize_t (*)(int, int, off64_t *, size_t))dlsym(RTLD_NEXT, "sendfile64"))(out, in, offset, size);
}
ssize_t pread64(int fd, void *buffer, size_t size, off64_t offset)
{
   usleep(500000);
   return ((ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64"))(fd, buffer, size, offset);
}
"""


def install_slow_release(storage: XrootdStorage, folder: Path) -> str:
    """Make an installation of the newer release whose server reads slowly; return its name."""
    programs = xrootd_storage.install_servers(SUITE, storage.box.cache, print)
    (folder / "bin").mkdir(parents=True)
    for program in programs.iterdir():
        (folder / "bin" / program.name).symlink_to(program)
    (folder / "slow.c").write_text(SLOW_READS)
    command = ["cc", "-shared", "-fPIC", "-o", f"{folder}/slow.so", f"{folder}/slow.c", "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    server = folder / "bin/xrootd"
    server.unlink()
    server.write_text(
        f'#!/bin/sh\nLD_PRELOAD="$LD_PRELOAD {folder}/slow.so" exec {programs}/xrootd "$@"\n'
    )
    server.chmod(0o755)
    return f"path:{folder}"


def list_regressions(store: Store) -> list[AlarmMessage]:
    events = EventTable(store).list_events(100)
    return [event for event in events if event.kind == REGRESSION]


def test_patrol_finds_a_slow_release_of_a_server(
    storage: XrootdStorage, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new version starts a campaign once, another one confirms it, and an event names it."""
    monkeypatch.setattr(patrol_service, "WATCH_S", 1)
    settings = replace(settings, local_slots=3)
    script = TIMED_COPY.format(xrdcp=storage.programs / "xrdcp")
    write_test(tmp_path, TIMED_DEFINITION, script)
    slow_release = install_slow_release(storage, storage.box.folder / "slow")
    file = parse_patrol_file(PATROL_TOML, tmp_path / "patrol.toml")
    with Store.open(settings.database) as store, open_patrol(settings, file) as patrol:

        def has(condition: Callable[[], object]) -> bool:
            patrol.run_round()
            return bool(condition())

        def count_finished() -> int:
            return sum(start.state == FINISHED for start in load_report(store).starts)

        wait_until(lambda: has(count_finished), f"a campaign with {OLD}")
        versions = upgrade_server(storage.box, "SITE_A", "patrolled", slow_release, print)
        assert versions == (OLD, NEW)
        upgraded_us = current_us()
        wait_until(lambda: has(lambda: list_regressions(store)), "an event")
        (event,) = list_regressions(store)
        occasions = [start.occasion for start in reversed(load_report(store).starts)]
        rows: list[dict[str, Any]] = [*store.measurements(Selection.parse())]
        sites = {budget.site.site: budget for budget in load_report(store).sites}
    assert not [row["failure_message"] for row in rows if row["failure_class"]]
    assert event.title.startswith(
        f"Regression: copies is slower with {NEW} at SITE_A:patrolled than with {OLD} by up to +"
    )
    assert (event.subject_kind, event.subject, event.severity) == ("site", "SITE_A", "critical")
    # The next start by time is a day away.
    started, rerun = [name for name in occasions if not name.startswith(("time:", "server:begin"))]
    assert started == f"server:SITE_A:patrolled {NEW}"
    assert rerun.startswith("rerun:")
    assert {row["server_version"] for row in rows} == {OLD, NEW}
    assert all(row["server_version"] == NEW for row in rows if row["started_us"] > upgraded_us)
    assert len({row["series"] for row in rows}) == 1
    # Jobs ran on this machine and read the storage of the site.
    assert {(row["site"], row["storage_site"]) for row in rows} == {("local", "SITE_A")}
    assert sites["local"].use.cpu_s > 0
    assert sites["local"].use.bytes == 0
    assert sites["SITE_A"].use.cpu_s == 0
    assert sites["SITE_A"].use.bytes > 0


def test_impossible_upgrades_are_refused(storage: XrootdStorage) -> None:
    with pytest.raises(NothingToDoError, match="stable uses trixie already"):
        upgrade_server(storage.box, "SITE_A", "stable", SUITE, print)
    with pytest.raises(ConfigError, match=r"(?s)'testin'.*Did you mean 'testing'"):
        upgrade_server(storage.box, "SITE_A", "testin", SUITE, print)
    with pytest.raises(ConfigError, match=r"(?s)'SITE_B'.*Known: SITE_A"):
        upgrade_server(storage.box, "SITE_B", "stable", SUITE, print)
