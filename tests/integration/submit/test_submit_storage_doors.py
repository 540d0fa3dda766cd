"""Storage doors of a real grid: remote reading, ``sites check``, and access modes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import replica_files
from click.testing import Result
from grid_campaigns import GridUser
from grid_fixtures import Grid
from plan_factory import make_settings
from repository_code import REPOSITORY, call_command
from tiny_dataset import raw_spec

from treehammer import config
from treehammer.collectors.job_spec import SHARED_LOOPS_VARIABLE
from treehammer.config import Settings
from treehammer.datasets import doors
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.doors import ProbeTarget
from treehammer.errors import ExitCode
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.batch.interface import PROBE_FAILED, PROBE_OK, PROBE_SKIPPED, ProbeResult
from treehammer.submit.campaigns.job_rendering import JOB_ENVIRONMENT
from treehammer.submit.sites import site_probes, sites_file
from treehammer.submit.sites.site_model import Site, SitesDocument
from treehammer.submit.sites.site_probes import probe_sites
from treehammer.testbed import network
from treehammer.testbed.components import dataset_placement
from treehammer.testbed.components.xrootd_storage import DATASET_FOLDER, storage_folder


def place_raw_files(user: GridUser, size: int) -> list[str]:
    """Place two raw files as dataset ``streams`` at all sites; return their checksums."""
    catalogue = FolderCatalogue(user.settings.datasets_dir)
    manifest = catalogue.make_raw(raw_spec("streams", 2, size))
    dataset_placement.place_dataset("streams", catalogue, user.grid.box)
    return [file.sha256 for file in manifest.files]


def least_trip_s(grid: Grid) -> float:
    """A delaying proxy, the distant site's link without tunnels, accepts connections at once."""
    (door, *_) = sites_file.read_sites_file(grid.sites_file).sites[grid.box.sites[-1]].doors
    return 0.0 if network.LOOPBACK in door.prefix else 0.005


def test_jobs_of_one_site_read_the_storage_of_others(grid: Grid, tmp_path: Path) -> None:
    """The bytes that arrive are those of the generator; measurements have the facts of the door."""
    sites = sites_file.read_sites_file(grid.sites_file).sites
    reader, *storages = grid.box.sites
    user = GridUser(tmp_path, grid)
    user.write_sites_file(**{name: {"doors": sites[name].doors} for name in grid.box.sites})
    script = (
        "import hashlib, os, urllib.request as web; "
        'urls = os.environ["TREEHAMMER_URLS"].split(); '
        "sums = [hashlib.sha256(web.urlopen(url).read()).hexdigest() for url in urls]; "
        f"assert sums == {json.dumps(place_raw_files(user, 2_500_000))}"
    )
    user.set_payload(
        f"case $TREEHAMMER_URLS in http*) /usr/bin/python3 -c '{script}' || exit 9 ;; esac"
    )
    user.submit_campaign(
        *("--sites", ",".join(storages), "--from", reader, "--wait", "-P", "door=root,http"),
        *("-S", "dataset=streams", "-S", "repeats=1"),
    )
    facts = ("data_server", "server_version", "door_rtt_s")
    rows = user.read_measurements("site", "storage_site", "door", "file_size_bytes", *facts)
    assert not [row for row in rows if row["failure_class"]]
    assert {(row["site"], row["file_size_bytes"]) for row in rows} == {(reader, 5_000_000)}
    assert {row["door"] for row in rows} == {"root", "http"}
    by_root = [row for row in rows if row["door"] == "root"]
    addresses = {name: urlsplit(sites[name].doors[0].prefix).netloc for name in storages}
    assert {str(row["storage_site"]): row["data_server"] for row in by_root} == addresses
    assert {str(row["server_version"])[:7] for row in by_root} == {"XRootD "}
    distant = [float(str(row["door_rtt_s"])) for row in rows if row["storage_site"] == storages[-1]]
    assert all(rtt_s > least_trip_s(grid) for rtt_s in distant), distant


def test_shipped_load_test_runs_at_a_site_of_the_testbed(grid: Grid, tmp_path: Path) -> None:
    """The client of load tests and its copy program are on the testbed's CVMFS mount."""
    sites = sites_file.read_sites_file(grid.sites_file).sites
    reader, storage = grid.box.sites[:2]
    user = GridUser(tmp_path, grid)
    user.write_sites_file(
        **{
            name: {"doors": sites[name].doors, "software": sites[name].software}
            for name in (reader, storage)
        }
    )
    place_raw_files(user, 1_000_000)
    done = user.invoke_command(
        *("submit", "copy", "--sites", storage, "--from", reader, "--wait"),
        *("-S", "dataset=streams", "-P", "door=root", "-P", "clients=2", "-P", "direction=read"),
        *("-S", "load.writes=false", "-S", "settings.files=5", "-S", "load.step_s=1"),
    )
    assert done.exception is None, (done.output, done.exception)
    (row,) = json.loads(user.invoke_command("summary", "--json").stdout)
    assert (row["operation"], row["failures"]) == ("copy", {})


@pytest.fixture
def content(grid: Grid) -> SitesDocument:
    return sites_file.read_sites_file(grid.sites_file)


def probe(folder: Path, site: Site, pool: HTCondorPool) -> Mapping[str, ProbeResult]:
    """Probe a site and return the results by check."""
    path = folder / "sites.toml"
    sites_file.write_sites_file([site], [pool], path)
    settings = dataclasses.replace(make_settings(folder), sites_file=path)
    return {trial.check: trial for trial in probe_sites([site], ProbeTarget(), settings)}


def check_sites(grid: Grid, folder: Path, *arguments: str) -> Result:
    settings = dataclasses.replace(make_settings(folder), sites_file=grid.sites_file)
    return call_command("sites", settings, "check", *arguments, "--json")


def test_testbed_passes_all_checks(grid: Grid, tmp_path: Path) -> None:
    done = check_sites(grid, tmp_path)
    rows = json.loads(done.stdout)
    assert [row for row in rows if row["result"] != PROBE_OK] == []
    assert done.return_value == ExitCode.DONE
    checks = {(row["site"], row["check"]) for row in rows}
    for site in grid.box.sites:
        assert {(site, "door root"), (site, "machines")} <= checks
        assert (site, "writing root") in checks
    assert [row for row in rows if row["check"] == "writing http"]
    doors = [row for row in rows if row["check"].startswith("door")]
    assert all("XRootD v" in row["server"] or "XrootD v" in row["server"] for row in doors)
    assert all(row["rtt_s"] > 0 for row in doors)
    assert all(row["finding"].startswith("read ") for row in doors)
    far = next(row for row in doors if row["site"] == grid.box.sites[-1])
    assert far["rtt_s"] > least_trip_s(grid)


def test_cache_with_files_passes(content: SitesDocument, grid: Grid, tmp_path: Path) -> None:
    """With cached files, the cache server cannot list its own folders."""
    site = next(s for s in content.sites.values() if s.find_door("cache") and not s.grid_resource)
    cache = site.find_door("cache")
    assert cache is not None
    folder = storage_folder(grid.box, site.name) / DATASET_FOLDER.lstrip("/") / "cached"
    grid.box.make_folder(folder)
    grid.box.write_file(folder / "one.bin", "x" * 2000)
    assert doors.read_file(cache.file_url("cached", "one.bin"), 2000).size == 2000
    rows = json.loads(check_sites(grid, tmp_path, site.name).stdout)
    (row,) = [row for row in rows if row["check"] == "door cache"]
    assert row["result"] == PROBE_OK, row


@pytest.mark.parametrize(
    ("site_changes", "pool_changes", "check", "message"),
    [
        ({"requirements": 'TARGET.GLIDEIN_Site == "NOWHERE"'}, {}, "machines", "0 of .* stay idle"),
        ({"requirements": "TARGET.GLIDEIN_Site == ("}, {}, "machines", "not a ClassAd expression"),
        ({}, {"schedd": "other@nowhere"}, "schedd", "no schedd other@nowhere"),
        ({}, {"collector": "127.0.0.1:9"}, "collector", "does not answer"),
        (
            {"requirements": "", "grid_resource": "condor other@nowhere 127.0.0.1:9"},
            {},
            "grid_resource",
            "does not answer",
        ),
    ],
)
def test_fault_of_a_pool_is_found(
    site_changes: dict[str, str],
    pool_changes: dict[str, Any],
    check: str,
    message: str,
    content: SitesDocument,
    tmp_path: Path,
) -> None:
    """A wrong value of the site or of its pool."""
    site, pool = _first(content)
    results = probe(tmp_path, site.replace(**site_changes), pool.replace(**pool_changes))
    assert results[check].result == PROBE_FAILED
    assert re.search(message, f"{results[check].finding} {results[check].remedy}")
    if check == "collector":
        assert results["schedd"].result == results["machines"].result == PROBE_SKIPPED
    else:
        assert results["collector"].result == PROBE_OK


def test_failures_to_write_have_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    area: Any = SimpleNamespace(name="A", writable_url="https://se.example/scratch")
    for text, hint in {"507 x": "room", "[3021]": "room", "500 x": "log", "409 x": "load."}.items():
        failed = doors.FileObservation(failure="error", message=text)
        monkeypatch.setattr(doors, "probe_writing", lambda _url, failed=failed: failed)
        assert hint in site_probes._probe_writable_area(area, area, "").remedy


def _first(content: SitesDocument) -> tuple[Site, HTCondorPool]:
    """Return a site without reachable doors, and its pool."""
    site = next(iter(content.sites.values()))
    door = site.doors[0].replace(protocol="file", prefix="/nowhere")
    pool = content.pools[site.pool]
    return site.replace(doors=(door,)), pool


#: Site with doors of both protocols.
DISTANT = "SITE_C"


@pytest.fixture(scope="module")
def settings(
    grid: Grid, tiny_catalogue: FolderCatalogue, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """Settings of a user with ``tiny`` in the folder catalogue and at every site."""
    folder = tmp_path_factory.mktemp("access")
    defaults = config.load_settings(
        {"cache_dir": folder / "cache", "data_dir": folder / "data"}, environ={}, folder=folder
    )
    defaults.datasets_dir.parent.mkdir()
    defaults.datasets_dir.symlink_to(tiny_catalogue.root)
    dataset_placement.place_dataset("tiny", tiny_catalogue, grid.box)
    return replace(defaults, sites_file=grid.sites_file)


def test_all_access_modes_are_measured(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first of six jobs compiles the loop, in the folder that jobs of a site share.
    monkeypatch.setitem(JOB_ENVIRONMENT, SHARED_LOOPS_VARIABLE, "/tmp/loops")
    options = ("--sites", DISTANT, "-S", "dataset=tiny", "-S", "repeats=1", "--in-flight", "2")
    axes = ("root=6.40.00", "door=root,http", "branches=1.0", "cache_mb=30")
    smaller = [word for axis in axes for word in ("-P", axis)]
    test = str(REPOSITORY / "hctests/access-modes")
    call_command("submit", settings, test, *options, *smaller, "--wait")
    with Store.open(settings.database) as store:
        rows = store.measurements(Selection((store.campaign("last").id,)))
        measured_rows: dict[tuple[str, str], Mapping[str, Any]] = {
            (str(row["door"]), str(row["axis_access" if row["kind"] == "timed" else "kind"])): row
            for row in rows
        }
    unsupported = {
        place for place, row in measured_rows.items() if row["failure_kind"] == "not-supported"
    }
    # The wheel of ROOT 6.40 does not support http, but reads staged copies.
    assert unsupported == {("http", "direct"), ("http", "checksum")}
    supported = {place: row for place, row in measured_rows.items() if place not in unsupported}
    assert len(supported) == 4
    assert {row["failure_message"] or row["implausible_reasons"] for row in supported.values()} == {
        None
    }
    sums = {row["value_checksum"] for (_, way), row in supported.items() if way == "checksum"}
    assert len(sums) == 1
    events = {row["events_read"] for (_, way), row in supported.items() if way != "checksum"}
    assert len(events) == 1
    for door in ("root", "http"):
        staged = measured_rows[door, "staged"]
        assert staged["stagein_bytes"] == staged["file_size_bytes"]
        assert staged["stagein_wall_s"] > 0.02, "the site is distant"
        assert staged["access_rate_hz"] < staged["event_rate_hz"]
        assert staged["access_rate_hz"] < staged["events_read"] / staged["stagein_wall_s"]
        assert staged["file_class"] == "TFile"
    direct = measured_rows["root", "direct"]
    assert direct["stagein_wall_s"] is None
    assert direct["file_class"] == "TNetXNGFile"
    assert direct["loop_compiler"].endswith(" -O2"), "the view of the site has its headers"
    assert "2 not supported" in call_command("status", settings, "last").output
    printed = call_command(
        "summary", settings, "--by", "door,access", "--baseline", "access=direct", "--json"
    ).output
    summary = {
        (row["door"], row["access"]): row for row in json.loads(printed.partition("\n]")[0] + "]")
    }
    assert summary["http", "direct"]["not_supported"] == 1
    assert summary["root", "staged"]["access_rate_hz_ratio"] > 0


def test_bad_replica_is_never_staged(grid: Grid, tmp_path: Path) -> None:
    """The payload, which would succeed, does not start."""
    user = GridUser(tmp_path, grid)
    doors = sites_file.read_sites_file(grid.sites_file).sites[DISTANT].doors
    user.write_sites_file(**{DISTANT: {"doors": doors}})
    place_raw_files(user, 100_000)
    user.set_payload(":")
    replica = next(
        dataset_placement.replica_path(grid.box, DISTANT, "streams", "x").parent.glob("*.bin")
    )
    replica_files.corrupt_file(replica)
    user.submit_campaign(
        *("--sites", DISTANT, "--wait", "-P", "door=http", "-P", "access=staged"),
        *("-S", "dataset=streams", "-S", "repeats=1"),
    )
    rows = user.read_measurements("failure_kind", "payload_wall_s")
    failures = [(row["failure_class"], row["failure_kind"]) for row in rows]
    assert failures == [("stage-in", "checksum")] * 2
    assert {row["payload_wall_s"] for row in rows} == {None}
