"""Pinned tests, manifests and plans to try things with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treehammer import config
from treehammer.collectors import software
from treehammer.config import Settings
from treehammer.datasets.manifest import Distribution, Manifest, ManifestFile, TreeLayout
from treehammer.hctests.definition import PinnedTest
from treehammer.hctests.options import load_pinned
from treehammer.submit.plan import Plan, make_plan
from treehammer.submit.releases import at_sites
from treehammer.submit.site import Door, Site
from treehammer.submit.terms import USUAL, Terms

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
mode = ["a", "b"]
"""


def settings_for(folder: Path) -> Settings:
    flags = {"cache_dir": folder / "cache", "data_dir": folder / "data"}
    return config.load(flags, environ={}, folder=folder)


def pinned_test(folder: Path, text: str = READING_TEST) -> PinnedTest:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test.toml").write_text(text)
    (folder / "read.py").write_text("print('read')\n")
    (folder / "run.sh").write_text("#!/bin/sh\nexit 0\n")
    (folder / "run.sh").chmod(0o755)
    return load_pinned(str(folder), {}, {}, settings_for(folder))


def manifest(entries: int = 1000, clusters: int = 10) -> Manifest:
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


def site(*doors: str, name: str = "local") -> Site:
    made = tuple(Door(door, "file", f"/{door}/data") for door in doors or ("file",))
    return Site(name, "local", made)


def plan(
    folder: Path, text: str = READING_TEST, *sites: Site, created_us: int = CREATED_US
) -> Plan:
    pinned = pinned_test(folder, text)
    releases = {str(v): software.parse(str(v)) for v in pinned.definition.axes["root"]}
    data = manifest() if pinned.definition.dataset else None
    return make_plan(pinned, sites or (site(),), data, releases, created_us=created_us)


def grid_site(*doors: str, name: str = "SITE_A", **more: Any) -> Site:
    """A site with an HTCondor pool that has every release of ROOT on CVMFS."""
    made = tuple(
        Door(door, "root", f"root://{name.lower()}.example:1094//{door}")
        for door in doors or ("root",)
    )
    known: dict[str, Any] = {
        "requirements": f'TARGET.GLIDEIN_Site == "{name}"',
        "software": {"*": "cvmfs:ROOT/{version}/x86_64-debian12-gcc12-opt"},
    }
    return Site(name, "htcondor@pool", made, **(known | more))


def grid_plan(folder: Path, text: str, *sites: Site, terms: Terms = USUAL) -> Plan:
    """A plan for sites with HTCondor."""
    pinned = pinned_test(folder, text)
    releases = {str(v): software.parse(str(v)) for v in pinned.definition.axes["root"]}
    return make_plan(
        pinned,
        sites or (grid_site(),),
        manifest() if pinned.definition.dataset else None,
        releases,
        created_us=CREATED_US,
        elsewhere=at_sites(sites or (grid_site(),), releases),
        terms=terms,
    )
