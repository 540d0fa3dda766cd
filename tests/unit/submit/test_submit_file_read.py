"""Reads of single files with a stand-in for ROOT."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_user import LocalUser
from plan_factory import make_manifest, make_settings

from treehammer.collectors.job_spec import PAIRED, SOLO, SoftwareRequest
from treehammer.collectors.shared_files import hold_lock
from treehammer.collectors.software import providers
from treehammer.collectors.software.setup_commands import raise_setup_error
from treehammer.datasets import DEFAULT_ROOT, root_process, tree_measurement
from treehammer.datasets.manifest import UNREADABLE_BRANCHES, Manifest
from treehammer.errors import ConfigError, DatasetError
from treehammer.submit.planning.plan import Plan
from treehammer.submit.tools import file_read, read_session
from treehammer.submit.tools.file_read import (
    MeasuredFiles,
    OpenedFiles,
    ReadRequest,
    choose_releases,
    describe_fetches,
    open_files,
    plan_read,
)
from treehammer.text_formatting import no_progress

RELEASES = ("6.38.00", "6.40.00")
TYPES = {"a": "Int_t", "b": "Float_t[a]"}
SOFTWARE = {root: SoftwareRequest(root, "wheel", root, "/nowhere") for root in RELEASES}


@pytest.fixture
def files(tmp_path: Path) -> OpenedFiles:
    path = tmp_path / "my file[1].root"
    path.write_bytes(b"root content")
    return open_files([str(path)], tmp_path, no_progress)


def make_named_manifest(files: OpenedFiles, **origin: Any) -> Manifest:
    manifest = make_manifest()
    layout = replace(manifest.files[0].layout, format="ttree")
    file = replace(manifest.files[0], name=files.names[0], layout=layout)
    return Manifest("tiny", (file,), {"branches": ["a", "b"], **origin})


def plan(files: OpenedFiles, folder: Path, *, mode: str = SOLO, **changes: Any) -> Plan:
    measured = MeasuredFiles(changes.pop("manifest", make_named_manifest(files)), TYPES)
    request = ReadRequest(RELEASES, **changes)
    return plan_read(request, files, measured, SOFTWARE, make_settings(folder), mode=mode)


def test_local_files_are_read_where_they_are(files: OpenedFiles, tmp_path: Path) -> None:
    path = tmp_path / "my file[1].root"
    assert (files.names, files.urls, files.paths) == (("my_file_1_.root",), (str(path),), (path,))
    assert files.digests[0].adler32 == f"{zlib.adler32(b'root content'):08x}"
    (job,) = plan(files, tmp_path).jobs
    assert [e.files[0].url for e in job.spec.executions] == [str(path)] * 2
    assert job.spec.door_url == str(tmp_path)
    paths = [str(tmp_path / folder / "x.root") for folder in ("a", "b")]
    for name in paths:
        Path(name).parent.mkdir()
        Path(name).write_bytes(b"root")
    assert open_files(paths, tmp_path, no_progress).names == ("1-x.root", "2-x.root")


@pytest.mark.parametrize(
    "addresses, error, message",
    [
        (["ftp://host/x.root"], ConfigError, "neither a path nor a URL"),
        (["x.root", "http://host/x.root"], ConfigError, "cannot be read together"),
        (["/no/such/x.root"], DatasetError, "No such file"),
        (["http://127.0.0.1:1/x.root"], DatasetError, "refused"),
    ],
)
def test_unusable_addresses_are_refused(
    addresses: Sequence[str], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        open_files(addresses, tmp_path, no_progress)


def test_newest_cached_release_that_can_read_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = dict.fromkeys(RELEASES, "folder")
    monkeypatch.setattr(providers, "list_prepared_releases", lambda _: cached)
    assert choose_releases((), ["x.root"], tmp_path) == ("6.40.00",)
    # The wheels of 6.40 have no class that reads HTTP.
    assert choose_releases((), ["http://host/x.root"], tmp_path) == ("6.38.00",)
    cached.clear()
    monkeypatch.setattr(providers, "setup_software", lambda *_: None)
    assert choose_releases((), ["x.root"], tmp_path) == ("current",)
    monkeypatch.setattr(
        providers, "setup_software", lambda *_: raise_setup_error("missing", "no ROOT")
    )
    assert choose_releases((), ["x.root"], tmp_path) == (DEFAULT_ROOT,)
    (fetched,) = describe_fetches([providers.parse_software_request(DEFAULT_ROOT)], tmp_path)
    assert fetched.startswith("ROOT 6.40.00 is fetched once (240 MB to fetch")
    assert choose_releases(("6.38.00", "6.38.00"), ["x"], tmp_path) == ("6.38.00",)


@pytest.mark.parametrize(
    "release, message",
    [
        ("6.38.07", "did you mean '6.38.00'"),
        ("none", "'none' is no ROOT"),
        ("6.40.00", r"no class that reads HTTP\n  Releases that can: .*6\.38\.00"),
    ],
)
def test_releases_that_cannot_read_are_refused(release: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_releases((release,), ["http://host/x.root"], tmp_path)


def test_solo_read_has_one_job_and_a_comparison_pairs(files: OpenedFiles, tmp_path: Path) -> None:
    jobs = list(plan(files, tmp_path, mode=PAIRED).jobs)
    assert [job.kind for job in jobs] == ["timed", "timed", "checksum"]
    assert {execution.mode for job in jobs[:2] for execution in job.spec.executions} == {PAIRED}
    (job,) = plan(files, tmp_path, is_cold=True, cache_mb=0.0).jobs
    variants = [execution.variant for execution in job.spec.executions]
    assert sorted(str(variant["root"]) for variant in variants) == [*RELEASES]
    expected = {"branches": 1.0, "cache_mb": 0, "cache": "cold"}
    assert all({key: variant[key] for key in expected} == expected for variant in variants)


def test_unreadable_branches_are_left_out(files: OpenedFiles, tmp_path: Path) -> None:
    manifest = make_named_manifest(files, **{UNREADABLE_BRANCHES: {"b": "no dictionary"}})
    (job,) = plan(files, tmp_path, manifest=manifest).jobs
    execution = job.spec.executions[0]
    assert execution.variant["branches"] == "readable"
    assert execution.unreadable_branches == ("b",)


def test_campaigns_of_one_read_have_different_names(files: OpenedFiles, tmp_path: Path) -> None:
    odd = make_named_manifest(files, **{UNREADABLE_BRANCHES: {"b": "no dictionary"}})
    names = [
        plan(files, tmp_path, name="mine", mode=mode, **changes).campaign_name
        for changes in ({}, {"manifest": odd})
        for mode in (SOLO, PAIRED)
    ]
    assert names == ["mine-alone", "mine", "mine-readable-alone", "mine-readable"]


def test_pattern_that_matches_nothing_is_refused(files: OpenedFiles, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--branches c\*: .*no branch matches 'c\*'"):
        plan(files, tmp_path, branches="c*")


def test_rntuple_is_read_by_its_own_test(files: OpenedFiles, tmp_path: Path) -> None:
    manifest = make_named_manifest(files)
    layout = replace(manifest.files[0].layout, format="rntuple")
    manifest = replace(manifest, files=(replace(manifest.files[0], layout=layout),))
    planned = plan(files, tmp_path, manifest=manifest)
    assert planned.pinned_test.definition.test.name == "rntuple-read"
    assert next(iter(planned.jobs)).spec.executions[0].variant["format"] == "rntuple"


def test_small_files_are_read_more_often(files: OpenedFiles, tmp_path: Path) -> None:
    def count_passes(unzipped_bytes: int) -> int:
        manifest = make_named_manifest(files)
        layout = replace(manifest.files[0].layout, unzipped_bytes=unzipped_bytes)
        manifest = replace(manifest, files=(replace(manifest.files[0], layout=layout),))
        return next(iter(plan(files, tmp_path, manifest=manifest).jobs)).spec.executions[0].passes

    assert [count_passes(size) for size in (0, 20_000_000, 10**12)] == [
        file_read.MAX_PASSES,
        11,
        file_read.MIN_PASSES,
    ]


def test_threads_read_columns_of_numbers(files: OpenedFiles, tmp_path: Path) -> None:
    planned = plan(files, tmp_path, threads=2)
    assert planned.pinned_test.definition.test.name == "rdf-read"
    assert planned.pinned_test.definition.settings["filter"] == "a"
    variant = next(iter(planned.jobs)).spec.executions[0].variant
    expected = {"branches": "a,b", "threads": 2, "format": "ttree"}
    assert {key: variant[key] for key in expected} == expected


@pytest.mark.parametrize(
    "types, patterns, message",
    [
        ({"a": "Int_t", "b": "TLorentzVector"}, "*", r"must hold numbers: not b\n"),
        ({"a": "Int_t", "b": "string"}, "c", "no branch matches 'c'"),
        ({"a": "vector<float>", "b": "text"}, "", "no column has one number for each event"),
    ],
)
def test_columns_that_threads_cannot_read_are_refused(
    types: dict[str, str], patterns: str, message: str, files: OpenedFiles
) -> None:
    measured = MeasuredFiles(make_named_manifest(files), types)
    with pytest.raises(ConfigError, match=message):
        measured.choose_columns(patterns)


def test_columns_of_all_kinds_of_numbers_are_chosen(files: OpenedFiles) -> None:
    types = {
        **dict.fromkeys(("ULong64_t", "std::int32_t", "Double_t[10]", "vector<float>"), ""),
        **dict.fromkeys(("text", "Bool_t", "vector<vector<float> >", "std::string", "BASE"), ""),
    }
    manifest = make_named_manifest(files, branches=[*types])
    measured = MeasuredFiles(manifest, {name: name for name in types})
    assert measured.choose_columns("") == (
        "ULong64_t",
        ["ULong64_t", "std::int32_t", "Double_t[10]", "vector<float>"],
    )


def test_file_of_which_nothing_can_be_read_is_refused(
    files: OpenedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = {"a": "Odd: no dictionary", "b": "Odd: no dictionary"}
    monkeypatch.setattr(tree_measurement, "probe_file", lambda *_, **__: reasons)
    manifest = make_named_manifest(files)
    filled = replace(manifest.files[0], layout=replace(manifest.files[0].layout, entries=1))
    with pytest.raises(DatasetError, match=r"no branch of 'events'\n  Branch a: Odd: no dict"):
        file_read.leave_out_unreadable(
            MeasuredFiles(replace(manifest, files=(filled,)), TYPES),
            files,
            SOFTWARE["6.40.00"],
            no_progress,
        )


def test_error_names_the_address_of_a_copied_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "x.root"
    opened = OpenedFiles(("x.root",), ("http://host/x.root",), (copy,), ())

    def fail(*_: object, **__: object) -> None:
        raise DatasetError("cannot be opened as a ROOT file", where=str(copy))

    monkeypatch.setattr(root_process, "run_action", fail)
    with pytest.raises(DatasetError, match=r"^http://host/x\.root: cannot be opened"):
        file_read.describe_files(opened, SOFTWARE["6.40.00"], no_progress)


def test_folders_of_killed_reads_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("killed", "reading", "new"):
        lock = tmp_path / f"treehammer-read-{name}" / "lock"
        lock.parent.mkdir()
        lock.touch()
        os.utime(lock, None if name == "new" else (0, 0))
    with (
        hold_lock(tmp_path / "treehammer-read-reading" / "lock"),
        read_session.open_folder() as own,
    ):
        names = {path.name for path in tmp_path.iterdir()}
    assert names == {"treehammer-read-reading", "treehammer-read-new", own.name}
    assert not own.exists()


def test_implausible_read_names_its_reasons() -> None:
    row = dict.fromkeys(("failure_class", "failure_kind", "failure_message", "axis_root"))
    row |= {"plausible": False, "implausible_reasons": "zero: bytes_read"}
    assert "is implausible: zero: bytes_read" in str(read_session._find_failure([row]))


def test_failed_read_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ROOT of this user is an empty folder, so that the only job fails."""
    path = tmp_path / "x.root"
    path.write_bytes(b"root content")
    request = SoftwareRequest("6.40.00", "wheel", "6.40.00", str(tmp_path))
    (tmp_path / "user").mkdir()
    user = LocalUser(tmp_path / "user")
    monkeypatch.setattr(read_session, "prepare_root", lambda *_, **__: request)
    monkeypatch.setattr(
        read_session,
        "describe_files",
        lambda files, *_, **__: MeasuredFiles(make_named_manifest(files), TYPES),
    )
    monkeypatch.setattr(read_session, "leave_out_unreadable", lambda measured, *_: measured)
    result = user.invoke_command("read", str(path), "--root", "6.40.00", "--json")
    assert "ROOT 6.40.00 is not installed" in str(result.exception)
    assert not user.settings.data_dir.exists()
