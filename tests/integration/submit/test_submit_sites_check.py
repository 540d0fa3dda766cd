"""Command ``sites check`` on a real grid."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from grid_fixtures import Grid
from plan_factory import make_settings
from polling import wait_until

from treehammer.datasets import doors
from treehammer.datasets.doors import ProbeTarget
from treehammer.errors import ExitCode
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.cli.sites_commands import sites as verbs
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Site
from treehammer.submit.sites.site_probes import (
    PROBE_FAILED,
    PROBE_OK,
    PROBE_SKIPPED,
    SiteProbeResult,
    probe_sites,
)
from treehammer.testbed.components.xrootd_storage import DATASET_FOLDER, storage_folder


@pytest.fixture
def known(grid: Grid) -> sites_file.SitesFileContent:
    return sites_file.read_sites_file(grid.sites_file)


def probe(folder: Path, site: Site, pool: HTCondorPool) -> Mapping[str, SiteProbeResult]:
    """Probe a site and return the results by check."""
    path = folder / "sites.toml"
    sites_file.write_sites_file([site], [pool], path)
    settings = dataclasses.replace(make_settings(folder), sites_file=path)
    return {trial.check: trial for trial in probe_sites([site], ProbeTarget(), settings)}


def run(grid: Grid, folder: Path, *arguments: str) -> Result:
    settings = dataclasses.replace(make_settings(folder), sites_file=grid.sites_file)
    return CliRunner().invoke(
        verbs, ["check", *arguments], obj=settings, standalone_mode=False, catch_exceptions=False
    )


def test_testbed_passes_all_checks(grid: Grid, tmp_path: Path) -> None:
    done = run(grid, tmp_path, "--json")
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
    assert far["rtt_s"] > 0.005


def test_cache_with_files_passes(
    known: sites_file.SitesFileContent, grid: Grid, tmp_path: Path
) -> None:
    """With cached files, the cache server cannot list its own folders."""
    site = next(s for s in known.sites.values() if s.find_door("cache") and not s.grid_resource)
    cache = site.find_door("cache")
    assert cache is not None
    folder = storage_folder(grid.box, site.name) / DATASET_FOLDER.lstrip("/") / "cached"
    grid.box.make_folder(folder)
    grid.box.write_file(folder / "one.bin", "x" * 2000)
    assert doors.read_file(cache.file_url("cached", "one.bin"), 2000).size == 2000
    rows = json.loads(run(grid, tmp_path, site.name, "--json").stdout)
    (row,) = [row for row in rows if row["check"] == "door cache"]
    assert row["result"] == PROBE_OK, row


def test_sites_are_selected_by_label(grid: Grid, tmp_path: Path) -> None:
    rows = json.loads(run(grid, tmp_path, "label:distant", "--json").stdout)
    assert {row["site"] for row in rows if row["check"] == "machines"} == {grid.box.sites[-1]}


def test_missing_dataset_is_reported(
    known: sites_file.SitesFileContent, grid: Grid, tmp_path: Path
) -> None:
    path = ProbeTarget("no-such-set/f.root", 3)
    settings = dataclasses.replace(make_settings(tmp_path), sites_file=grid.sites_file)

    def doors_report_it() -> bool:
        found = probe_sites(list(known.sites.values()), path, settings)
        doors = [trial for trial in found if trial.check.startswith("door")]
        assert doors
        assert {trial.result for trial in doors} == {PROBE_FAILED}
        return all("Place the dataset there" in trial.remedy for trial in doors)

    # A redirector on a busy machine may not answer in time.
    wait_until(doors_report_it, "all doors report the missing dataset")


def test_requirements_without_matching_slot_fail(
    known: sites_file.SitesFileContent, tmp_path: Path
) -> None:
    site, pool = _first(known)
    wrong = dataclasses.replace(site, requirements='TARGET.GLIDEIN_Site == "NOWHERE"')
    found = probe(tmp_path, wrong, pool)["machines"]
    assert found.result == PROBE_FAILED
    assert "0 of " in found.finding
    assert "stay idle" in found.remedy


def test_invalid_requirements_fail(known: sites_file.SitesFileContent, tmp_path: Path) -> None:
    site, pool = _first(known)
    wrong = dataclasses.replace(site, requirements="TARGET.GLIDEIN_Site == (")
    found = probe(tmp_path, wrong, pool)["machines"]
    assert found.result == PROBE_FAILED
    assert "not a ClassAd expression" in found.finding


def test_unknown_schedd_fails(known: sites_file.SitesFileContent, tmp_path: Path) -> None:
    site, pool = _first(known)
    found = probe(tmp_path, site, dataclasses.replace(pool, schedd="other@nowhere"))
    assert found["collector"].result == PROBE_OK
    assert found["schedd"].result == PROBE_FAILED
    assert "no schedd other@nowhere" in found["schedd"].finding


def test_unreachable_collector_fails(known: sites_file.SitesFileContent, tmp_path: Path) -> None:
    site, pool = _first(known)
    found = probe(tmp_path, site, dataclasses.replace(pool, collector="127.0.0.1:9"))
    assert found["collector"].result == PROBE_FAILED
    assert "does not answer" in found["collector"].finding
    assert found["schedd"].result == found["machines"].result == PROBE_SKIPPED


def test_unusable_tokens_are_reported(known: sites_file.SitesFileContent, tmp_path: Path) -> None:
    site, pool = _first(known)
    now = int(time.time())
    cases: dict[str, dict[str, int] | None] = {
        "no token in": None,
        "does not expire": {},
        "expired at": {"exp": now - 100},
        "valid until": {"exp": now + 3600},
    }
    checking = {}
    for number, (words, claims) in enumerate(cases.items()):
        tokens = tmp_path / str(number)
        tokens.mkdir()
        if claims is not None:
            (tokens / "mine").write_text(_token(claims))
            (tokens / "mine").chmod(0o600)
        path = tmp_path / f"sites{number}.toml"
        sites_file.write_sites_file([site], [dataclasses.replace(pool, token_dir=tokens)], path)
        # In new processes, as HTCondor keeps the sessions of valid tokens.
        command = [sys.executable, "-m", "treehammer", "--sites-file", str(path)]
        checking[words] = subprocess.Popen(
            [*command, "sites", "check", "--json"], stdout=subprocess.PIPE
        )
    printed = {words: process.communicate()[0] for words, process in checking.items()}
    for words, output in printed.items():
        assert checking[words].returncode == ExitCode.REGRESSION
        found = {row["check"]: row for row in json.loads(output)}
        tokens_row = next(row for check, row in found.items() if check.startswith("token"))
        assert words in tokens_row["finding"]
        assert found["collector"]["result"] == PROBE_FAILED
        assert "denies access" in found["collector"]["finding"]
        assert "token_dir" in found["collector"]["remedy"]


def test_grid_resource_is_reached(
    grid: Grid, known: sites_file.SitesFileContent, tmp_path: Path
) -> None:
    site, pool = _first(known)
    there = dataclasses.replace(site, requirements="", grid_resource=grid.grid_resource)
    assert probe(tmp_path, there, pool)["grid_resource"].result == PROBE_OK
    gone = dataclasses.replace(there, grid_resource="condor other@nowhere 127.0.0.1:9")
    assert "does not answer" in probe(tmp_path, gone, pool)["grid_resource"].finding


def _first(known: sites_file.SitesFileContent) -> tuple[Site, HTCondorPool]:
    """Return a site without reachable doors, and its pool."""
    site = next(iter(known.sites.values()))
    door = dataclasses.replace(site.doors[0], protocol="file", prefix="/nowhere")
    pool = known.pools[site.pool]
    return dataclasses.replace(site, doors=(door,)), pool


def _token(claims: Mapping[str, Any]) -> str:
    """Sign an IDTOKEN with a key that no pool has."""
    header = {"alg": "HS256", "kid": "POOL"}
    body = {"iss": "condor.testbed", "sub": "treehammer@condor.testbed", "iat": 1, **claims}
    signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, body))
    return f"{signed}.{_encoded(hmac.new(b'k' * 48, signed.encode(), hashlib.sha256).digest())}\n"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
