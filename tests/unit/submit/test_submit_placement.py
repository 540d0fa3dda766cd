"""Location of replicas through Rucio, and reasons why a door lacks one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plan_factory import make_manifest, make_pinned_test, make_software_requests

from treehammer.collectors.job_spec import InputFile
from treehammer.datasets.manifest import Manifest, Replica
from treehammer.errors import DatasetError, NothingToDoError
from treehammer.submit.planning.plan import make_plan
from treehammer.submit.planning.site_selection import SiteSelection
from treehammer.submit.sites import replicas as rucio_placement
from treehammer.submit.sites.replicas import (
    NO_RUCIO_PLACEMENT,
    PlacementFinder,
    ReplicaCheck,
    RucioPlacement,
    find_placement,
)
from treehammer.submit.sites.site_model import Door, DoorAccess, Site

#: RSE -> URLs, the best first.
Urls = Mapping[str, Sequence[str]]

SITE_OF = {"A_DISK": "A", "B_DISK": "B"}


class Catalogue:
    """Stand-in for Rucio: RSE -> URLs for local and for remote access."""

    rucio = SimpleNamespace(scope="hctest")

    def __init__(
        self, placed_manifest: Manifest, lan: Urls, wan: Urls, other: Manifest | None
    ) -> None:
        self._manifest, self._other = placed_manifest, other
        self._urls = {"lan": lan, "wan": wan}

    def manifest(self, name: str) -> Manifest:
        return self._other or self._manifest

    def replicas(
        self, name: str, protocol: str, sites: Sequence[str] = (), *, domain: str
    ) -> list[Replica]:
        (file,) = self._manifest.files
        return [
            Replica(SITE_OF[rse], rse, file.name, url, file.size, file.adler32, path="u/f")
            for rse, urls in self._urls[domain].items()
            for url in urls
        ]


@pytest.fixture
def placed_manifest() -> Manifest:
    return make_manifest()


def find_files(
    placed_manifest: Manifest,
    wan: Urls,
    states: Mapping[str, tuple[str, str]],
    *doors: tuple[str, Door],
    lan: Urls | None = None,
    other: Manifest | None = None,
) -> RucioPlacement:
    """Find the files at doors; ``states`` maps URLs of bad replicas to state and message."""
    catalogue: Any = Catalogue(placed_manifest, lan or {}, wan, other)
    finder = PlacementFinder(
        placed_manifest, catalogue, lambda p: ReplicaCheck(p, *states.get(p.url, ("good", "")))
    )
    sites = [(Site(name, "htcondor@p", (door,)), door) for name, door in doors]
    return finder.find_files([DoorAccess(site, site, door) for site, door in sites])


ROOT = Door("root", "root", rse="A_DISK")
A = "root://a//rucio/u/f"


def test_best_confirmed_replica_is_used(placed_manifest: Manifest) -> None:
    placement = find_files(
        placed_manifest, {"A_DISK": [A, "root://a2//rucio/u/f"]}, {}, ("A", ROOT)
    )
    assert [file.url for file in placement.files["A", "root", "tiny"]] == [A]
    assert not placement.lacking


def test_jobs_near_storage_use_internal_url(placed_manifest: Manifest) -> None:
    inside = {"A_DISK": ["root://inside//rucio/u/f"]}
    states = {"root://inside//rucio/u/f": ("no answer", "from here")}
    placement = find_files(
        placed_manifest, {"A_DISK": [A]}, states, ("A", ROOT), ("B", ROOT), lan=inside
    )
    assert placement.files["A", "root", "tiny"][0].url == "root://inside//rucio/u/f"
    assert placement.files["B", "root", "tiny"][0].url == A


def test_second_replica_replaces_unavailable_one(placed_manifest: Manifest) -> None:
    second = "root://a2//rucio/u/f"
    placement = find_files(
        placed_manifest, {"A_DISK": [A, second]}, {A: ("no answer", "time-out")}, ("A", ROOT)
    )
    assert [file.url for file in placement.files["A", "root", "tiny"]] == [second]


@pytest.mark.parametrize("state", ["missing", "no answer", "corrupt", "error", "refused"])
def test_unconfirmed_replica_is_refused(placed_manifest: Manifest, state: str) -> None:
    placement = find_files(placed_manifest, {"A_DISK": [A]}, {A: (state, "why")}, ("A", ROOT))
    assert placement.lacking["A", "root", "tiny"] == f"tiny.root: {A}: {state}, why"


@pytest.mark.parametrize("state", ["size only", "not tried"])
def test_uncheckable_replica_is_accepted(placed_manifest: Manifest, state: str) -> None:
    assert not find_files(
        placed_manifest, {"A_DISK": [A]}, {A: (state, "why")}, ("A", ROOT)
    ).lacking


def test_different_dataset_of_same_name_is_refused(placed_manifest: Manifest) -> None:
    (file,) = placed_manifest.files
    other = replace(placed_manifest, files=(replace(file, sha256="1" * 64),))
    with pytest.raises(DatasetError, match="differs between Rucio"):
        find_files(placed_manifest, {"A_DISK": [A]}, {}, ("A", ROOT), other=other)


def test_site_without_replica_is_lacking(placed_manifest: Manifest) -> None:
    other = Door("root", "root", rse="B_DISK")
    placement = find_files(placed_manifest, {"A_DISK": [A]}, {}, ("A", ROOT), ("B", other))
    assert [*placement.files] == [("A", "root", "tiny")]
    (file,) = placed_manifest.files
    assert (
        placement.lacking["B", "root", "tiny"]
        == f"{file.name}: Rucio has no replica at B_DISK for root"
    )


def test_prefix_replaces_prefix_of_rse(placed_manifest: Manifest) -> None:
    pinned = Door("pinned", "root", "root://r//store/test/xrootd/A", rse="A_DISK")
    placement = find_files(placed_manifest, {"A_DISK": [A]}, {}, ("A", pinned))
    assert placement.files["A", "pinned", "tiny"][0].url == "root://r//store/test/xrootd/A/u/f"


@pytest.mark.parametrize(
    ("timeout_s", "max_checks", "lacking"), [(0.0, 1, 1), (60.0, 3, 0), (0.05, 6, 1)]
)
def test_missing_replicas_are_awaited_until_timeout(
    placed_manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    timeout_s: float,
    max_checks: int,
    lacking: int,
) -> None:
    """With the long timeout, the third check succeeds."""
    checks: list[RucioPlacement] = []

    def check_once(*_: object) -> RucioPlacement:
        is_found = len(checks) == 2 and not lacking
        checks.append(RucioPlacement({}, {} if is_found else {("A", "root", "tiny"): "not yet"}))
        return checks[-1]

    monkeypatch.setattr(rucio_placement, "_find_once", check_once)
    monkeypatch.setattr(rucio_placement, "REPLICA_POLL_S", 0.01)
    site = Site("A", "htcondor@p", (ROOT,))
    settings: Any = None
    placement = find_placement(
        [placed_manifest], [DoorAccess(site, site, ROOT)], settings, timeout_s=timeout_s
    )
    assert len(placement.lacking) == lacking
    assert len(checks) <= max_checks
    assert len(checks) == max_checks or timeout_s == 0.05


def test_doors_without_rse_need_no_placement(placed_manifest: Manifest) -> None:
    site = Site("A", "htcondor@p", (Door("root", "root", "root://a//d"),))
    settings: Any = None
    assert (
        find_placement([placed_manifest], [DoorAccess(site, site, site.doors[0])], settings)
        is NO_RUCIO_PLACEMENT
    )


def test_plan_uses_placement_and_notes_skipped_doors(
    tmp_path: Path, placed_manifest: Manifest
) -> None:
    (file,) = placed_manifest.files
    sites = [Site(name, "htcondor@p", (Door("root", "root", rse=f"{name}_DISK"),)) for name in "AB"]
    input_file = InputFile(file.name, A, file.size, file.adler32)
    placement = RucioPlacement(
        {("A", "root", "tiny"): (input_file,)}, {("B", "root", "tiny"): "f: gone"}
    )
    pinned = make_pinned_test(tmp_path)
    software = make_software_requests(pinned)
    plan = make_plan(
        pinned,
        SiteSelection(tuple(sites)),
        placed_manifest,
        software,
        created_us=1,
        placement=placement,
    )
    assert {job.site.name for job in plan.jobs} == {"A"}
    assert {one.files for job in plan.jobs for one in job.spec.executions} == {(input_file,)}
    assert plan.notes == ("Door root of site B is skipped, no good replica: f: gone.",)
    nowhere = RucioPlacement({}, {("A", "root", "tiny"): "a", ("B", "root", "tiny"): "b"})
    with pytest.raises(NothingToDoError, match="no variant") as caught:
        make_plan(
            pinned,
            SiteSelection(tuple(sites)),
            placed_manifest,
            software,
            created_us=1,
            placement=nowhere,
        )
    assert "site A is skipped" in caught.value.hint
