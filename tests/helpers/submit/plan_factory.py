"""Pinned tests, manifests, sites and plans for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treehammer import config
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software import providers
from treehammer.config import Settings
from treehammer.datasets.manifest import Distribution, Manifest, ManifestFile, TreeLayout
from treehammer.hctests.definition.model import PinnedTest
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.submit.campaigns.campaign_request import resolve_site_software
from treehammer.submit.planning.plan import Plan, make_plan
from treehammer.submit.planning.site_selection import SiteSelection
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS, SubmissionOptions
from treehammer.submit.sites.site_model import Door, Site

CREATED_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z

READING_TEST = """
[test]
name = "reads"
payload = "read.py"
dataset = "tiny"
repeats = 2
rounds = 2
passes = 3
[matrix]
root = ["6.38.00", "6.40.00"]
cache_mb = [0, 30]
bundle = ["root"]
"""

SHELL_TEST = """
[test]
name = "shell"
payload = "run.sh"
[matrix]
style = ["a", "b"]
"""


def make_settings(folder: Path) -> Settings:
    flags = {"cache_dir": folder / "cache", "data_dir": folder / "data"}
    return config.load_settings(flags, environ={}, folder=folder)


def make_pinned_test(folder: Path, text: str = READING_TEST) -> PinnedTest:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test.toml").write_text(text)
    (folder / "read.py").write_text("print('read')\n")
    (folder / "run.sh").write_text("#!/bin/sh\nexit 0\n")
    (folder / "run.sh").chmod(0o755)
    return load_pinned_test(str(folder), {}, {}, make_settings(folder))


def make_manifest(entries: int = 1000, clusters: int = 10) -> Manifest:
    some = Distribution(1, 1.0, 1.0, 1.0, 1.0, 1.0)
    layout: dict[str, Any] = {
        "tree": "events",
        "format": "TTree",
        "entries": entries,
        "branches": 100,
        "unzipped_bytes": 400_000_000,
        "zipped_bytes": 100_000_000,
        "top2_share": 0.4,
        "clusters": clusters,
        "cluster_zipped_bytes": some,
        "basket_zipped_bytes": some,
        "branch_ratio": some,
    }
    known = dict(layout.items())
    for name in TreeLayout.__dataclass_fields__:
        known.setdefault(name, 0)
    file = ManifestFile("tiny.root", 100_000_000, "0" * 8, "0" * 64, TreeLayout(**known))
    return Manifest("tiny", (file,), {})


def make_site(*doors: str, name: str = "local") -> Site:
    paths = tuple(Door(door, "file", f"/{door}/data") for door in doors or ("file",))
    return Site(name, "local", paths)


def make_grid_site(*doors: str, name: str = "SITE_A", **changes: Any) -> Site:
    """Make a site with an HTCondor pool that has every release of ROOT on CVMFS."""
    urls = tuple(
        Door(door, "root", f"root://{name.lower()}.example:1094//{door}")
        for door in doors or ("root",)
    )
    defaults: dict[str, Any] = {
        "requirements": f'TARGET.GLIDEIN_Site == "{name}"',
        "software": {"*": "cvmfs:ROOT/{version}/x86_64-debian12-gcc12-opt"},
    }
    return Site(name, "htcondor@pool", urls, **(defaults | changes))


def make_local_plan(
    folder: Path, text: str = READING_TEST, *sites: Site, created_us: int = CREATED_US
) -> Plan:
    return _make_plan(folder, text, sites or (make_site(),), created_us=created_us)


def make_grid_plan(
    folder: Path,
    text: str,
    *sites: Site,
    options: SubmissionOptions = DEFAULT_OPTIONS,
    from_sites: tuple[Site, ...] = (),
) -> Plan:
    return _make_plan(
        folder, text, sites or (make_grid_site(),), options=options, from_sites=from_sites
    )


def make_software_requests(pinned: PinnedTest) -> dict[str, SoftwareRequest]:
    """Parse the values of a test's root axis."""
    values = map(str, pinned.definition.axes["root"])
    return {value: providers.parse_software_request(value) for value in values}


def _make_plan(
    folder: Path,
    text: str,
    sites: tuple[Site, ...],
    *,
    created_us: int = CREATED_US,
    options: SubmissionOptions = DEFAULT_OPTIONS,
    from_sites: tuple[Site, ...] = (),
) -> Plan:
    pinned = make_pinned_test(folder, text)
    releases = make_software_requests(pinned)
    return make_plan(
        pinned,
        SiteSelection(sites, from_sites),
        make_manifest() if pinned.definition.dataset else None,
        releases,
        created_us=created_us,
        site_software=resolve_site_software(sites, releases),
        options=options,
    )
