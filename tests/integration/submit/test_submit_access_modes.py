"""The shipped test of access modes at real doors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_verbs import find_command
from click.testing import CliRunner
from grid_fixtures import Grid

from treehammer import config
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.testbed.components import site_list

ROOT = Path(__file__).parents[3]
#: Site with doors of both protocols.
DISTANT = "SITE_C"


@pytest.fixture(scope="module")
def settings(
    grid: Grid, tiny_catalogue: FolderCatalogue, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """Settings of a user with ``tiny`` in the folder catalogue and at every site."""
    folder = tmp_path_factory.mktemp("access")
    found = config.load_settings(
        {"cache_dir": folder / "cache", "data_dir": folder / "data"}, environ={}, folder=folder
    )
    found.datasets_dir.parent.mkdir()
    found.datasets_dir.symlink_to(tiny_catalogue.root)
    site_list.place_dataset("tiny", tiny_catalogue, grid.box)
    return replace(found, sites_file=grid.sites_file)


def types(settings: Settings, verb: str, *arguments: str) -> str:
    result = CliRunner().invoke(
        find_command(verb), arguments, obj=settings, standalone_mode=False, catch_exceptions=False
    )
    return result.output


def measured(settings: Settings, *changes: str) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Run the test at the distant site; return (door, access mode or 'checksum') -> row."""
    options = ("--sites", DISTANT, "-S", "dataset=tiny", "-S", "repeats=1", "--in-flight", "2")
    smaller = ("-P", "branches=1.0", "-P", "cache_mb=30", *changes)
    types(settings, "submit", str(ROOT / "hctests/access-modes"), *options, *smaller, "--wait")
    with Store.open(settings.database) as store:
        rows = store.measurements(Selection((store.campaign("last").id,)))
        return {
            (str(row["door"]), str(row["axis_access" if row["kind"] == "timed" else "kind"])): row
            for row in rows
        }


def test_all_access_modes_are_measured(settings: Settings) -> None:
    doors = ("-P", "door=root,http,pinned")
    found = measured(settings, "-P", "root=6.40.00", *doors)
    lacking = {place for place, row in found.items() if row["failure_kind"] == "not-supported"}
    # The wheel of ROOT 6.40 does not support http, but reads staged copies.
    assert lacking == {("http", "direct"), ("http", "checksum")}
    good = {place: row for place, row in found.items() if place not in lacking}
    assert len(good) == 7
    assert {row["failure_message"] or row["implausible_reasons"] for row in good.values()} == {None}
    sums = {row["value_checksum"] for (_, way), row in good.items() if way == "checksum"}
    assert len(sums) == 1
    events = {row["events_read"] for (_, way), row in good.items() if way != "checksum"}
    assert len(events) == 1
    for door in ("root", "http", "pinned"):
        staged = found[door, "staged"]
        assert staged["stagein_bytes"] == staged["file_size_bytes"]
        assert staged["stagein_wall_s"] > 0.02, "the site is distant"
        assert staged["access_rate_hz"] < staged["event_rate_hz"]
        assert staged["access_rate_hz"] < staged["events_read"] / staged["stagein_wall_s"]
        assert staged["file_class"] == "TFile"
    direct = found["root", "direct"]
    assert direct["stagein_wall_s"] is None
    assert direct["file_class"] == "TNetXNGFile"
    assert found["pinned", "direct"]["file_class"] == "TNetXNGFile"
    assert "(2 of them not supported)" in types(settings, "status", "last")
    shown = types(
        settings, "summary", "--by", "door,access", "--baseline", "access=direct", "--json"
    )
    rows = {
        (row["door"], row["access"]): row for row in json.loads(shown.partition("\n]")[0] + "]")
    }
    assert rows["http", "direct"]["not_supported"] == 1
    assert rows["root", "staged"]["access_rate_hz_ratio"] > 0


def test_bad_replica_is_never_staged(settings: Settings, grid: Grid) -> None:
    replica = site_list.replica_path(grid.box, DISTANT, "tiny", "tiny.root")
    before = replica.read_bytes()
    site_list.corrupt_file(replica)
    try:
        found = measured(
            settings, "-P", "root=6.40.00", "-P", "access=staged", "-P", "door=root,http"
        )
    finally:
        replica.write_bytes(before)
    for door in ("root", "http"):
        staged = found[door, "staged"]
        assert (staged["failure_class"], staged["failure_kind"]) == ("stage-in", "checksum")
        assert staged["access_rate_hz"] is None
