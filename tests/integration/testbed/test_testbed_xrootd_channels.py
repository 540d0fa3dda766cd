"""XRootD servers of two suites of Debian side by side, and an upgrade while a job reads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cli_verbs import find_command
from click.testing import CliRunner
from polling import wait_until
from spool_harness import SpoolHarness
from storage_alone import run_storage

from treehammer import config
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs.raw_spec import RawSpec
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.read import site_history
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Site
from treehammer.testbed.components import replica_files
from treehammer.testbed.components.server_upgrade import upgrade_server
from treehammer.testbed.components.sites_file_writer import sites_file_path
from treehammer.testbed.components.xrootd_storage import SUITE, XrootdStorage
from treehammer.testbed.network import distance_links

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


@pytest.fixture(scope="module")
def storage() -> Iterator[XrootdStorage]:
    """One site with a door of this suite and one of an older suite."""
    channels = (("stable", SUITE), ("testing", OLD_SUITE))
    with run_storage(distance_links.PROXY, channels=channels, sites=1) as found:
        path = sites_file_path(found.box)
        sites_file.write_sites_file([Site("SITE_A", "local", found.doors("SITE_A"))], [], path)
        yield found


def submit_copies(settings: Settings, test: Path) -> None:
    """Submit the test and wait for its end."""
    try:
        done = CliRunner().invoke(
            find_command("submit"),
            [str(test), "--sites", "SITE_A", "--wait"],
            obj=settings,
            standalone_mode=False,
        )
    finally:
        bench = SpoolHarness(settings.data_dir / "bench", spool=settings.spool_dir)
        bench.kill_runner()
        bench.end_processes()
    assert done.exception is None, (done.output, done.exception)


def test_upgrade_is_recorded_while_a_job_reads(storage: XrootdStorage, tmp_path: Path) -> None:
    flags = {
        "cache_dir": tmp_path / "cache",
        "data_dir": tmp_path / "data",
        "sites_file": sites_file_path(storage.box),
    }
    settings = config.load_settings(flags, environ={}, folder=tmp_path)
    catalogue = FolderCatalogue(settings.datasets_dir)
    catalogue.make_raw(RawSpec(DATASET, "one file", 3, 1, 2_500_000, "", ""))
    replica_files.place_dataset(DATASET, catalogue, storage.box)
    doors = {door.name: door for door in storage.doors("SITE_A")}
    test = tmp_path / "test"
    test.mkdir()
    (test / "test.toml").write_text(DEFINITION)
    values = {"xrdcp": storage.program_path("xrdcp"), "prefix": doors["testing"].prefix}
    (test / "copy.sh").write_text(COPY.format(**values, folder=tmp_path))
    (test / "copy.sh").chmod(0o755)

    with ThreadPoolExecutor(1) as pool:
        campaign = pool.submit(submit_copies, settings, test)
        try:
            wait_until(lambda: (tmp_path / "waiting").exists() or campaign.done(), "the job reads")
            found = upgrade_server(storage.box, "SITE_A", "testing", SUITE, print)
        finally:
            (tmp_path / "upgraded").touch()
        campaign.result()

    assert (found.before, found.after) == (OLD, NEW)
    with Store.open(f"sqlite:///{settings.data_dir / 'results.db'}") as store:
        rows: list[dict[str, Any]] = [*store.measurements(Selection.parse())]
        days = {row["day"] for row in rows}
        history = site_history.fetch_history(store, "SITE_A", min(days), max(days))
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
    } == {
        "stable": "5.8.1",
        "testing": "5.8.1",
    }


def test_impossible_upgrades_are_refused(storage: XrootdStorage) -> None:
    with pytest.raises(NothingToDoError, match="stable uses trixie already"):
        upgrade_server(storage.box, "SITE_A", "stable", SUITE, print)
    with pytest.raises(ConfigError, match=r"(?s)'testin'.*Did you mean 'testing'"):
        upgrade_server(storage.box, "SITE_A", "testin", SUITE, print)
    with pytest.raises(ConfigError, match=r"(?s)'SITE_B'.*Known: SITE_A"):
        upgrade_server(storage.box, "SITE_B", "stable", SUITE, print)
