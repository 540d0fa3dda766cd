"""Replicas: verification at folders and a web server, and location through Rucio."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner, Result
from local_servers import serve_http
from plan_factory import make_manifest, make_pinned_test, make_software_requests, plan_inputs
from tiny_dataset import write_dataset

from treehammer import config
from treehammer.cli import cli
from treehammer.collectors.job_spec import InputFile
from treehammer.datasets import doors
from treehammer.datasets.doors.observations import MISSING, NO_RESPONSE, NOT_TRIED, FileObservation
from treehammer.datasets.manifest import Manifest, Replica
from treehammer.datasets.rucio.rucio_conversions import AccountQuota, Rse
from treehammer.errors import CatalogueError, ConfigError, DatasetError, NothingToDoError
from treehammer.submit.planning.job_planner import JobInputs
from treehammer.submit.sites import replicas as rucio_placement
from treehammer.submit.sites.replica_selection import list_expected_replicas, select_storage
from treehammer.submit.sites.replicas import (
    CORRUPT_STATE,
    GOOD_STATE,
    NO_RUCIO_PLACEMENT,
    SIZE_ONLY_STATE,
    ExpectedReplica,
    ReplicaCheck,
    RucioPlacement,
    check_replicas,
    declare_bad_replicas,
    find_placement,
    record_findings,
)
from treehammer.submit.sites.site_model import Door, DoorAccess, Site
from treehammer.text_formatting import no_progress

CONTENT = {"one.root": os.urandom(100_000), "two.root": b"two"}
SITES = """
[sites.NEAR]
[[sites.NEAR.doors]]
name = "file"
protocol = "file"
prefix = "{folder}"
[[sites.NEAR.doors]]
name = "http"
protocol = "http"
prefix = "http://127.0.0.1:{port}"
[pools.far]
[sites.FAR]
pool = "far"
[[sites.FAR.doors]]
name = "file"
protocol = "file"
prefix = "/nowhere/at/all"
"""


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Storage of a site with a replica of the dataset ``made``."""
    write_dataset(tmp_path / "storage", "made", CONTENT)
    return tmp_path / "storage"


@pytest.fixture
def manifest(tmp_path: Path, storage: Path) -> Manifest:
    return Manifest.read(storage / "made")


@pytest.fixture
def settings(tmp_path: Path, storage: Path, manifest: Manifest) -> Iterator[config.Settings]:
    folder = tmp_path / "cache" / "datasets" / "made"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(manifest.to_json())
    with serve_http(folder=storage) as port:
        (tmp_path / "sites.toml").write_text(SITES.format(folder=storage, port=port))
        flags = {name: tmp_path / name[:-4] for name in ("cache_dir", "data_dir")}
        yield config.load_settings({**flags, "sites_file": tmp_path / "sites.toml"}, environ={})


def at(
    settings: config.Settings, manifest: Manifest, site: str, *names: str
) -> list[ExpectedReplica]:
    return list_expected_replicas(manifest, select_storage(site, settings, None), names, None)


def states(checks: list[ReplicaCheck]) -> list[str]:
    return [check.state for check in checks]


@pytest.mark.parametrize("door", ["file", "http"])
def test_full_reads_prove_good_and_corrupt_replicas(
    settings: config.Settings, manifest: Manifest, storage: Path, door: str
) -> None:
    expected = at(settings, manifest, "NEAR", door)
    checks = check_replicas(manifest, expected, full=True)
    assert states(checks) == [GOOD_STATE, GOOD_STATE]
    assert all(check.is_proof for check in checks)
    path = storage / "made" / "one.root"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert states(check_replicas(manifest, expected)) == [SIZE_ONLY_STATE, SIZE_ONLY_STATE]
    bad, good = check_replicas(manifest, expected, full=True)
    assert states([bad, good]) == [CORRUPT_STATE, GOOD_STATE]
    assert (bad.wrong_reads, bad.is_proof) == (2, True)
    assert "instead of" in bad.message


def test_wrong_sizes_and_remote_folders_are_not_read(
    settings: config.Settings, manifest: Manifest, storage: Path
) -> None:
    (storage / "made" / "one.root").write_bytes(b"short")
    (storage / "made" / "two.root").unlink()
    for door in ("file", "http"):
        checks = check_replicas(manifest, at(settings, manifest, "NEAR", door))
        assert states(checks) == [CORRUPT_STATE, MISSING]
        assert checks[0].message == "5 bytes instead of 100000"
    assert states(check_replicas(manifest, at(settings, manifest, "FAR"))) == [NOT_TRIED, NOT_TRIED]


def test_single_wrong_read_is_not_proof(
    settings: config.Settings, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = manifest.files[0]
    other = FileObservation(file.size, "00000001", "0" * 64)
    right = FileObservation(file.size, file.adler32, file.sha256)
    silent = FileObservation(failure=NO_RESPONSE, message="no answer")
    place = ExpectedReplica("NEAR", "file", file, "/x")
    for reads, proof in (([other, other], True), ([other, right], False), ([other, silent], False)):
        remaining = iter(reads)
        monkeypatch.setattr(doors, "read_file", lambda *_, reads=remaining, **__: next(reads))
        (checks,) = check_replicas(manifest, [place], full=True)
        assert (checks.state, checks.is_proof) == (CORRUPT_STATE, proof)
    monkeypatch.setattr(doors, "read_file", lambda *_, **__: silent)
    (checks,) = check_replicas(manifest, [place], full=True)
    assert (checks.state, checks.is_proof) == (NO_RESPONSE, False)


def test_unknown_storage_is_refused(settings: config.Settings, manifest: Manifest) -> None:
    with pytest.raises(ConfigError, match="no site has a door https"):
        at(settings, manifest, "all", "https")
    with pytest.raises(ConfigError, match="Rucio is not configured"):
        select_storage("tier=2", settings, None)


def test_only_proofs_are_recorded(settings: config.Settings, manifest: Manifest) -> None:
    expected = at(settings, manifest, "NEAR", "file")
    assert record_findings(manifest, check_replicas(manifest, expected), settings) == 0
    assert not (settings.data_dir / "results.db").exists()
    checks = check_replicas(manifest, expected, full=True)
    bad = replace(checks[0], state=CORRUPT_STATE, wrong_reads=2, message="other")
    assert record_findings(manifest, [bad, checks[1]], settings) == 0, "no measurement is marked"


def run(settings: config.Settings, *words: str, alone: bool = False) -> Result:
    names = ("cache_dir", "data_dir", "sites_file")
    flags = [f"--{name.replace('_', '-')}={getattr(settings, name)}" for name in names]
    runner = CliRunner(env=dict.fromkeys(("RUCIO_CONFIG", "TREEHAMMER_RUCIO_CONFIG")))
    return runner.invoke(cli, [*flags, "datasets", *words], standalone_mode=alone)


def test_verify_exits_with_1_for_missing_file(settings: config.Settings, storage: Path) -> None:
    done = run(settings, "verify", "made", "--sites", "NEAR", "--full")
    assert "made     NEAR  file  good   2 of 2" in done.output
    (storage / "made" / "two.root").unlink()
    done = run(settings, "verify", "made", "--sites", "NEAR", "--full", "--door", "file")
    assert "missing  1 of 2  two.root: No such file" in done.output
    assert done.return_value == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("made", "--sites", "NEAR", "--declare"), "--declare needs --full"),
        (("made", "--full"), "need --sites"),
        (("--sites", "NEAR"), "needs the NAME"),
    ],
)
def test_invalid_verify_options_are_refused(
    settings: config.Settings, words: tuple[str, ...], problem: str
) -> None:
    done = run(settings, "verify", *words, alone=True)
    assert done.exit_code == 2
    assert problem in done.output


def test_interrupt_stops_reading(
    settings: config.Settings, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "read_file", MagicMock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        check_replicas(manifest, at(settings, manifest, "NEAR", "file"), full=True)


#: RSE -> URLs, the best first.
Urls = Mapping[str, Sequence[str]]

SITE_OF = {"A_DISK": "A", "B_DISK": "B"}


@pytest.fixture
def placed_manifest() -> Manifest:
    return make_manifest()


def make_catalogue(
    placed_manifest: Manifest, lan: Urls, wan: Urls, other: Manifest | None = None
) -> Any:
    """Make a stand-in for Rucio's catalogue."""
    (file,) = placed_manifest.files

    def list_replicas(name: str, protocol: str, *, domain: str = "wan") -> list[Replica]:
        return [
            Replica(SITE_OF[rse], rse, file.name, url, path="u/f")
            for rse, urls in (lan if domain == "lan" else wan).items()
            for url in urls
        ]

    return SimpleNamespace(
        rucio=SimpleNamespace(scope="hctest"),
        manifest=lambda _: other or placed_manifest,
        replicas=list_replicas,
    )


def find_files(
    placed_manifest: Manifest,
    wan: Urls,
    states: Mapping[str, tuple[str, str]],
    *doors: tuple[str, Door],
    lan: Urls | None = None,
    other: Manifest | None = None,
    bars: Any = no_progress,
) -> RucioPlacement:
    """Find the files at doors; ``states`` maps URLs of bad replicas to state and message."""
    sites = [(Site(name=name, batch="htcondor@p", doors=(door,)), door) for name, door in doors]
    return rucio_placement.find_files(
        placed_manifest,
        make_catalogue(placed_manifest, lan or {}, wan, other),
        [DoorAccess(site, site, door) for site, door in sites],
        lambda p: ReplicaCheck(p, *states.get(p.url, ("good", ""))),
        bars,
    )


ROOT = Door(name="root", protocol="root", rse="A_DISK")
A = "root://a//rucio/u/f"
SITE_A = Site(name="A", batch="htcondor@p", doors=(ROOT,))


def test_storage_for_its_own_nodes_has_replicas(placed_manifest: Manifest) -> None:
    catalogue = make_catalogue(placed_manifest, {"A_DISK": [A]}, {"B_DISK": ["root://b//f"]})
    (expected,) = list_expected_replicas(placed_manifest, [SITE_A], ["root"], catalogue)
    assert expected.url == A, "no other URL leads there"
    replica = Replica("B", "B_DISK", expected.file.name, "https://b//f")
    urls = {("root", "lan"): [replace(replica, url=A)], ("https", "wan"): [replica]}
    catalogue.replicas = MagicMock(side_effect=lambda _, *key, domain: urls.get((*key, domain), ()))
    rse = Rse("B_DISK", "B", "DISK", writable=True, staging=False)
    (at_rse,) = list_expected_replicas(placed_manifest, [rse], [], catalogue)
    assert at_rse.url == "https://b//f", "root leads there on its own nodes only"
    assert [call.args[1] for call in catalogue.replicas.call_args_list] == ["root", "https"]
    far, near = (SimpleNamespace(rse=rse) for rse in ("B_DISK", "A_DISK"))
    rucio = MagicMock(list_locations=lambda _, domain="": [far, near] if domain else [far])
    bad = ReplicaCheck(replace(expected, rse="B_DISK"), CORRUPT_STATE, "", 2, 2)
    declared = declare_bad_replicas(placed_manifest, [bad], MagicMock(rucio=rucio))
    assert declared == {bad: "declared bad: Rucio replaces it"}, "it is not the only replica"


def test_site_stands_for_its_largest_writable_quota(settings: config.Settings) -> None:
    quotas = {"SHUT": AccountQuota(9, 0), "USED": AccountQuota(8, 7), "SMALL": AccountQuota(7, 0)}
    rses = [Rse(name, "S", "DISK", name != "SHUT", staging=False) for name in quotas]
    rucio = MagicMock(find_rses=lambda _: rses, list_quotas=lambda: quotas)
    assert select_storage("S", settings, rucio) == (rses[1],)


def test_first_confirmed_replica_is_used(placed_manifest: Manifest) -> None:
    second = "root://a2//rucio/u/f"
    for states, url in (({}, A), ({A: ("no answer", "time-out")}, second)):
        placement = find_files(placed_manifest, {"A_DISK": [A, second]}, states, ("A", ROOT))
        assert [file.url for file in placement.files["A", "root", "tiny"]] == [url]
        assert not placement.lacking


def test_jobs_near_storage_use_internal_url(placed_manifest: Manifest) -> None:
    bars = MagicMock()
    inside = {"A_DISK": ["root://inside//rucio/u/f"]}
    states = {"root://inside//rucio/u/f": ("no answer", "from here")}
    placement = find_files(
        placed_manifest, {"A_DISK": [A]}, states, ("A", ROOT), ("B", ROOT), lan=inside, bars=bars
    )
    bars.assert_called_once_with("Checking tiny at doors (files)", 2)
    assert bars.return_value.__enter__.return_value.call_count == 2
    assert placement.files["A", "root", "tiny"][0].url == "root://inside//rucio/u/f"
    assert placement.files["B", "root", "tiny"][0].url == A


@pytest.mark.parametrize(
    "state", ["missing", "no answer", "corrupt", "error", "refused", "size only", "not tried"]
)
def test_unconfirmed_replica_is_refused_unless_it_cannot_be_checked(
    placed_manifest: Manifest, state: str
) -> None:
    placement = find_files(placed_manifest, {"A_DISK": [A]}, {A: (state, "why")}, ("A", ROOT))
    expected = {("A", "root", "tiny"): f"tiny.root: {A}: {state}, why"}
    assert placement.lacking == ({} if state in ("size only", "not tried") else expected)


def test_different_dataset_of_same_name_is_refused(placed_manifest: Manifest) -> None:
    (file,) = placed_manifest.files
    other = replace(placed_manifest, files=(replace(file, sha256="1" * 64),))
    with pytest.raises(DatasetError, match="differs between Rucio"):
        find_files(placed_manifest, {"A_DISK": [A]}, {}, ("A", ROOT), other=other)


def test_site_without_replica_is_lacking(placed_manifest: Manifest) -> None:
    other = Door(name="root", protocol="root", rse="B_DISK")
    placement = find_files(placed_manifest, {"A_DISK": [A]}, {}, ("A", ROOT), ("B", other))
    assert [*placement.files] == [("A", "root", "tiny")]
    reason = "tiny.root: Rucio has no replica at B_DISK for root"
    assert placement.lacking == {("B", "root", "tiny"): reason}


def test_prefix_replaces_prefix_of_rse(placed_manifest: Manifest) -> None:
    prefix = "root://r//store/test/xrootd/A/"
    pinned = Door(name="pinned", protocol="root", prefix=prefix, rse="A_DISK")
    placement = find_files(placed_manifest, {"A_DISK": [A]}, {}, ("A", pinned))
    assert placement.files["A", "pinned", "tiny"][0].url == "root://r//store/test/xrootd/A/u/f"
    assert Replica("A", "A_DISK", "f", A).url_at_prefix(prefix) == "", "its path is unknown"


LACKING = RucioPlacement({}, {("A", "root", "tiny"): "not yet"})


@pytest.mark.parametrize(
    ("timeout_s", "answers"),
    [
        (0.0, [LACKING]),
        (60.0, [LACKING, CatalogueError("does not answer"), NO_RUCIO_PLACEMENT]),
        (0.05, [LACKING] * 6),
    ],
)
def test_missing_replicas_are_awaited_until_timeout(
    placed_manifest: Manifest, monkeypatch: pytest.MonkeyPatch, timeout_s: float, answers: list[Any]
) -> None:
    monkeypatch.setattr(rucio_placement, "_find_once", MagicMock(side_effect=answers))
    monkeypatch.setattr(rucio_placement, "REPLICA_POLL_S", 0.01)
    access = DoorAccess(SITE_A, SITE_A, ROOT)
    placement = find_placement([placed_manifest], [access], MagicMock(), timeout_s=timeout_s)
    assert placement == answers[-1]


def test_plan_uses_placement_and_notes_skipped_doors(
    tmp_path: Path, placed_manifest: Manifest
) -> None:
    (file,) = placed_manifest.files
    doors = {name: Door(name="root", protocol="root", rse=f"{name}_DISK") for name in "AB"}
    sites = [Site(name=name, batch="htcondor@p", doors=(door,)) for name, door in doors.items()]
    input_file = InputFile(file.name, A, file.size, file.adler32)
    placement = RucioPlacement(
        {("A", "root", "tiny"): (input_file,)}, {("B", "root", "tiny"): "f: gone"}
    )
    pinned = make_pinned_test(tmp_path)
    software = make_software_requests(pinned)
    plan = plan_inputs(pinned, JobInputs(software, {}, [placed_manifest], placement), *sites)
    assert {job.site.name for job in plan.jobs} == {"A"}
    assert {execution.files for job in plan.jobs for execution in job.spec.executions} == {
        (input_file,)
    }
    assert plan.notes == ("Door root of site B is skipped, no good replica: f: gone.",)
    nowhere = RucioPlacement({}, {("A", "root", "tiny"): "a", ("B", "root", "tiny"): "b"})
    with pytest.raises(NothingToDoError, match="no variant") as caught:
        plan_inputs(pinned, JobInputs(software, {}, [placed_manifest], nowhere), *sites)
    assert "site A is skipped" in caught.value.hint
