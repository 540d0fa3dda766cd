"""Location of replicas through Rucio, and reasons why a door lacks one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plan_factory import make_manifest, make_pinned_test

from treehammer.collectors.job_spec import InputFile, SoftwareRequest
from treehammer.datasets.model.manifest import Manifest
from treehammer.datasets.model.replica import Replica
from treehammer.errors import DatasetError, NothingToDoError
from treehammer.submit.planning.plan import make_plan
from treehammer.submit.replicas import rucio_placement
from treehammer.submit.replicas.replica_verification import ReplicaCheck
from treehammer.submit.replicas.rucio_placement import (
    NO_RUCIO_PLACEMENT,
    PlacementFinder,
    RucioPlacement,
    find_placement,
)
from treehammer.submit.sites.site_model import Door, Site

#: RSE -> URLs, the best first.
Urls = Mapping[str, Sequence[str]]

SITE_OF = {"A_DISK": "A", "B_DISK": "B"}


class Catalogue:
    """What Rucio would say: RSE -> URLs for those near it and for others."""

    rucio = SimpleNamespace(scope="hctest")

    def __init__(self, manifest: Manifest, lan: Urls, wan: Urls, other: Manifest | None) -> None:
        self._manifest, self._other = manifest, other
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
def manifest() -> Manifest:
    return make_manifest()


def look(
    manifest: Manifest,
    wan: Urls,
    told: Mapping[str, tuple[str, str]],
    *doors: tuple[str, Door],
    lan: Urls | None = None,
    other: Manifest | None = None,
) -> RucioPlacement:
    """``told``: URL -> state and message; where nothing is told, all is well."""
    catalogue: Any = Catalogue(manifest, lan or {}, wan, other)
    placing = PlacementFinder(
        manifest, catalogue, lambda p: ReplicaCheck(p, *told.get(p.url, ("good", "")))
    )
    return placing.find_files([(Site(site, "htcondor@p", (door,)), door) for site, door in doors])


ROOT = Door("root", "root", rse="A_DISK")
A = "root://a//rucio/u/f"


def test_best_confirmed_replica_is_used(manifest: Manifest) -> None:
    found = look(manifest, {"A_DISK": [A, "root://a2//rucio/u/f"]}, {}, ("A", ROOT))
    assert [file.url for file in found.files["A", "root", "tiny"]] == [A]
    assert not found.lacking


def test_jobs_near_storage_use_internal_url(manifest: Manifest) -> None:
    inside = {"A_DISK": ["root://inside//rucio/u/f"]}
    told = {"root://inside//rucio/u/f": ("no answer", "from here")}
    found = look(manifest, {"A_DISK": [A]}, told, ("A", ROOT), ("B", ROOT), lan=inside)
    assert found.files["A", "root", "tiny"][0].url == "root://inside//rucio/u/f"
    assert found.files["B", "root", "tiny"][0].url == A


def test_second_replica_replaces_unavailable_one(manifest: Manifest) -> None:
    second = "root://a2//rucio/u/f"
    found = look(manifest, {"A_DISK": [A, second]}, {A: ("no answer", "time-out")}, ("A", ROOT))
    assert [file.url for file in found.files["A", "root", "tiny"]] == [second]


@pytest.mark.parametrize("state", ["missing", "no answer", "corrupt", "error", "refused"])
def test_unconfirmed_replica_is_refused(manifest: Manifest, state: str) -> None:
    found = look(manifest, {"A_DISK": [A]}, {A: (state, "why")}, ("A", ROOT))
    assert found.lacking["A", "root"] == f"tiny.root: {A}: {state}, why"


@pytest.mark.parametrize("state", ["size only", "not tried"])
def test_uncheckable_replica_is_accepted(manifest: Manifest, state: str) -> None:
    assert not look(manifest, {"A_DISK": [A]}, {A: (state, "why")}, ("A", ROOT)).lacking


def test_different_dataset_of_same_name_is_refused(manifest: Manifest) -> None:
    (file,) = manifest.files
    other = replace(manifest, files=(replace(file, sha256="1" * 64),))
    with pytest.raises(DatasetError, match="differs between Rucio"):
        look(manifest, {"A_DISK": [A]}, {}, ("A", ROOT), other=other)


def test_site_without_replica_is_lacking(manifest: Manifest) -> None:
    other = Door("root", "root", rse="B_DISK")
    found = look(manifest, {"A_DISK": [A]}, {}, ("A", ROOT), ("B", other))
    assert [*found.files] == [("A", "root", "tiny")]
    (file,) = manifest.files
    assert found.lacking["B", "root"] == f"{file.name}: Rucio has no replica at B_DISK for root"


def test_prefix_replaces_prefix_of_rse(manifest: Manifest) -> None:
    pinned = Door("pinned", "root", "root://r//store/test/xrootd/A", rse="A_DISK")
    found = look(manifest, {"A_DISK": [A]}, {}, ("A", pinned))
    assert found.files["A", "pinned", "tiny"][0].url == "root://r//store/test/xrootd/A/u/f"


@pytest.mark.parametrize(("wait_s", "looks", "lacking"), [(0.0, 1, 1), (60.0, 3, 0), (0.05, 6, 1)])
def test_missing_replicas_are_awaited_until_timeout(
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    wait_s: float,
    looks: int,
    lacking: int,
) -> None:
    """The third look finds it, where there is time for one."""
    asked: list[RucioPlacement] = []
    never = wait_s < 1

    def looked(*_: object) -> RucioPlacement:
        there = len(asked) == 2 and not never
        asked.append(RucioPlacement({}, {} if there else {("A", "root"): "not yet"}))
        return asked[-1]

    monkeypatch.setattr(rucio_placement, "_find_once", looked)
    monkeypatch.setattr(rucio_placement, "REPLICA_POLL_S", 0.01)
    site = Site("A", "htcondor@p", (ROOT,))
    settings: Any = None
    found = find_placement([manifest], [(site, ROOT)], settings, timeout_s=wait_s)
    assert len(found.lacking) == lacking
    assert len(asked) <= looks
    assert len(asked) == looks or never


def test_doors_without_rse_need_no_placement(manifest: Manifest) -> None:
    site = Site("A", "htcondor@p", (Door("root", "root", "root://a//d"),))
    settings: Any = None
    assert find_placement([manifest], [(site, site.doors[0])], settings) is NO_RUCIO_PLACEMENT


def test_plan_uses_placement_and_notes_skipped_doors(tmp_path: Path, manifest: Manifest) -> None:
    (file,) = manifest.files
    sites = [Site(name, "htcondor@p", (Door("root", "root", rse=f"{name}_DISK"),)) for name in "AB"]
    there = InputFile(file.name, A, file.size, file.adler32)
    known = RucioPlacement({("A", "root", "tiny"): (there,)}, {("B", "root"): "f: gone"})
    pinned = make_pinned_test(tmp_path)
    software = {
        str(value): SoftwareRequest(str(value), "wheel", str(value), "")
        for value in pinned.definition.axes["root"]
    }
    made = make_plan(pinned, sites, manifest, software, created_us=1, placement=known)
    assert {job.site.name for job in made.jobs} == {"A"}
    assert {one.files for job in made.jobs for one in job.spec.executions} == {(there,)}
    assert made.notes == ("Door root of site B is skipped, no good replica: f: gone.",)
    nowhere = RucioPlacement({}, {("A", "root"): "a", ("B", "root"): "b"})
    with pytest.raises(NothingToDoError, match="no variant") as caught:
        make_plan(pinned, sites, manifest, software, created_us=1, placement=nowhere)
    assert "site A is skipped" in caught.value.hint
