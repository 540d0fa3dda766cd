"""``treehammer read`` and ``treehammer count``: requests, sessions and counts."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_servers import LyingDoor, serve_http
from local_user import LocalUser
from plan_factory import make_local_plan, make_manifest, make_settings

from treehammer.collectors.job_spec import (
    PAIRED,
    SOLO,
    BuildCommand,
    ExecutionSpec,
    JobSpec,
    SoftwareRequest,
)
from treehammer.collectors.shared_files import hold_lock
from treehammer.collectors.software import providers
from treehammer.collectors.software.setup_commands import raise_setup_error
from treehammer.collectors.worker.child_processes import run_forked
from treehammer.datasets import DEFAULT_ROOT, root_process, tree_measurement
from treehammer.datasets.manifest import UNREADABLE_BRANCHES, Manifest
from treehammer.errors import ConfigError, DatasetError, ExitCode
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_request
from treehammer.submit.campaigns.job_rendering import copy_payload
from treehammer.submit.planning.job_planner import PAYLOAD_FOLDER
from treehammer.submit.planning.plan import Plan
from treehammer.submit.tools import file_read, instruction_counts, read_session
from treehammer.submit.tools.file_read import (
    MeasuredFiles,
    OpenedFiles,
    ReadRequest,
    choose_releases,
    describe_fetches,
    open_files,
    plan_read,
)
from treehammer.submit.tools.instruction_counts import (
    COMPILED_AT_RUN_TIME,
    UNNAMED,
    CountedRead,
    CountingError,
    RepeatedCount,
    Valgrind,
    build_rows,
    count_plan,
    count_read,
    parse_callgrind,
    shorten_library,
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
        (["ftp://u:pw@host/x"], ConfigError, r"^ftp://\*\*\*@host/x: contains a password"),
        (["/no/such/x.root"], DatasetError, "No such file"),
        (["http://127.0.0.1:1/x.root"], DatasetError, "refused"),
        (["http://127.0.0.1:{port}/total/f"], DatasetError, "Content-Range .* contradicts itself"),
    ],
)
def test_unusable_addresses_are_refused(
    addresses: Sequence[str], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with serve_http(LyingDoor) as port, pytest.raises(error, match=message):
        open_files([address.format(port=port) for address in addresses], tmp_path, no_progress)


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


#: A name is defined at its first use, also as the target of a call; lines are relative to the last.
OUTPUT = """\
# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 1
cmd:  python read.py
part: 1

desc: I1 cache:
desc: Trigger: Program termination

positions: line
events: Ir
summary: 1156

ob=(1) /env/lib/libRIO.so.6.40.00
fl=(1) ???
fn=(1) TBufferFile::ReadFastArray(float*, int)
0 100
+3 20
cob=(2) /usr/lib/x86_64-linux-gnu/libz.so.1.2.13
cfi=(2) inflate.c
cfn=(2) inflate
calls=7 0
* 900
-2 5

ob=(2)
fl=(2)
fn=(2)
16 1000
fi=(3) inffast.c
+4 30

ob=(3) ???
fn=(3) 0x0000000004a2b0c0
0 1

totals: 1156
"""


def test_self_costs_are_summed_by_library_and_function() -> None:
    instructions = parse_callgrind(OUTPUT.splitlines(keepends=True), "test")
    assert instructions == {
        ("libRIO.so", "TBufferFile::ReadFastArray(float*, int)"): 125,
        ("libz.so", "inflate"): 1030,
        (COMPILED_AT_RUN_TIME, UNNAMED): 1,
    }
    assert sum(instructions.values()) == 1156


@pytest.mark.parametrize(
    "damaged", [OUTPUT.replace("totals: 1156\n", ""), OUTPUT.replace("16 1000", "16 999"), ""]
)
def test_incomplete_output_is_refused(damaged: str) -> None:
    with pytest.raises(CountingError, match="sum to") as caught:
        parse_callgrind(damaged.splitlines(), "cache_mb=30")
    assert caught.value.where == "cache_mb=30"


@pytest.mark.parametrize(
    "path, name",
    [
        ("/env/ROOT/lib/libTree.so.6.40.00", "libTree.so"),
        ("/env/root.libs/libxxhash-8d3f21ac.so.0.8.1", "libxxhash.so"),
        ("/usr/bin/python3.11", "python3.11"),
        ("???", COMPILED_AT_RUN_TIME),
        ("", COMPILED_AT_RUN_TIME),
        ("/loops/5e1f/loop-0123456789abcdef0123.so", COMPILED_AT_RUN_TIME),
        ("/loops/5e1f/kit-ntuple-count-0123456789abcdef0123.so", COMPILED_AT_RUN_TIME),
    ],
)
def test_libraries_have_the_same_name_in_all_releases(path: str, name: str) -> None:
    assert shorten_library(path) == name


def test_missing_valgrind_is_an_infrastructure_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(CountingError, match="apt install valgrind") as caught:
        instruction_counts.find_valgrind()
    assert caught.value.exit_code == 4


A, B = "6.38.00", "6.40.00"
VALGRIND = Valgrind("valgrind", "", "3.19.0")
INSTRUCTIONS = {A: 1000, B: 1100}


def count_events(
    _valgrind: Valgrind, _job: JobSpec, spec: ExecutionSpec, output: Path, events: int
) -> CountedRead:
    """Count INSTRUCTIONS per event; fail without a cache."""
    assert (output.parent / PAYLOAD_FOLDER / "read.py").is_file()
    if spec.variant["cache_mb"] == 0:
        raise CountingError("no cache", where="cache_mb=0")
    root = str(spec.variant["root"])
    return make_read(spec, {("libTree.so", "Fill()"): events * INSTRUCTIONS[root]}, events)


def make_read(
    spec: ExecutionSpec, instructions: dict[tuple[str, str], int], events: int
) -> CountedRead:
    values = {"events_read": events, "root_version": spec.variant["root"]}
    return CountedRead(spec, values, instructions)


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalUser:
    """A user whose reads are counted by :func:`count_events`."""
    plan = make_local_plan(tmp_path / "reads")
    monkeypatch.setattr(instruction_counts, "count_read", count_events)
    monkeypatch.setattr(instruction_counts, "find_valgrind", lambda: VALGRIND)
    monkeypatch.setattr(campaign_request, "plan_request", lambda *_, **__: plan)
    return LocalUser(tmp_path)


def test_counts_are_printed_and_stored_beside_problems(user: LocalUser) -> None:
    result = user.invoke_command("count", A, B, "reads", "--events", "50", "--json")
    assert result.return_value == ExitCode.INFRASTRUCTURE
    assert "cache_mb=0: no cache" in result.stderr
    total = json.loads(result.stdout)[0]
    assert (total["a_per_event"], total["b_per_event"]) == (1000, 1100)
    assert total["relative"] == pytest.approx(0.1)
    with Store.open(user.settings.database, create=False) as store:
        rows = store.instruction_counts()
    assert {(row.root_version, row.events) for row in rows} == {(A, 50), (B, 50)}


@pytest.mark.parametrize(
    "arguments, problem",
    [((A, A, "reads"), "both sides"), ((A, B, "reads", "-P", "root=x"), "given as A and B")],
)
def test_releases_are_given_once(user: LocalUser, arguments: tuple[str, ...], problem: str) -> None:
    result = user.invoke_command("count", *arguments)
    assert isinstance(result.exception, ConfigError)
    assert problem in str(result.exception)


def test_each_variant_is_counted_repeatedly(user: LocalUser, tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path / "again")
    counted = count_plan(plan, VALGRIND, user.settings, no_progress, events=50, repeats=3)
    assert [len(count.reads) for count in counted.counts] == [3, 3]
    assert [count.spread for count in counted.counts] == [0, 0]
    assert len(counted.problems) == 2


def test_spread_is_relative_to_smallest_count(tmp_path: Path) -> None:
    spec = next(iter(make_local_plan(tmp_path).jobs)).spec.executions[0]
    reads = tuple(make_read(spec, {("lib", "f"): count}, 1) for count in (100, 101))
    assert RepeatedCount(reads).spread == pytest.approx(0.01)
    assert RepeatedCount(reads[:1]).spread is None


def test_rows_list_libraries_then_functions_that_matter(tmp_path: Path) -> None:
    spec = next(iter(make_local_plan(tmp_path).jobs)).spec.executions[0]
    parts = {("a", "rare"): 1, ("a", "often"): 300_000, ("b", "most"): 700_000}
    rows = build_rows(make_read(spec, parts, 10), VALGRIND)
    assert [(row.library, row.function, row.instructions) for row in rows] == [
        ("b", "", 700_000),
        ("a", "", 300_001),
        ("b", "most", 700_000),
        ("a", "often", 300_000),
    ]


@pytest.mark.parametrize(
    "provider, payload, limit",
    [
        ("wrap", {}, "a ROOT behind 'wrap:'"),
        ("wheel", {"kind": "executable"}, "an executable"),
        (
            "wheel",
            {"build": BuildCommand("make.sh", ("a.so",), (), 60)},
            "builds its own libraries",
        ),
    ],
)
def test_uncountable_tests_are_refused_with_another_way(
    tmp_path: Path, provider: str, payload: dict[str, Any], limit: str
) -> None:
    job = next(iter(make_local_plan(tmp_path).jobs)).spec
    spec = job.executions[0]
    spec = replace(spec, software=replace(spec.software, provider=provider))
    job = replace(job, payload=replace(job.payload, **payload))
    with pytest.raises(CountingError, match=limit) as caught:
        count_read(VALGRIND, job, spec, tmp_path, 50)
    assert "treehammer compare" in (caught.value.hint or "")


def test_the_first_error_of_the_compiler_is_named(tmp_path: Path) -> None:
    valgrind = tmp_path / "valgrind"
    valgrind.write_text(
        "#!/bin/sh\n"
        'printf "read.py:9:31: error: no member\\n%09999d\\nread.py:10:8: error: later\\n" 0 >&2\n'
        'echo \'{"format": 1, "failure": {"failure_class": "payload", "kind": "compile",'
        ' "phase": "compile", "message": "the loop does not compile", "transient": false}}\''
        " > $TREEHAMMER_RESULT\n"
    )
    valgrind.chmod(0o755)
    plan = make_local_plan(tmp_path / "reads")
    job = next(iter(plan.jobs)).spec
    spec = job.executions[0]
    spec = replace(spec, files=(), software=replace(spec.software, provider="none"))

    def count() -> str:
        with pytest.raises(CountingError) as caught:
            count_read(Valgrind(str(valgrind), "", "3.19.0"), job, spec, tmp_path / "output", 50)
        return str(caught.value)

    copy_payload(plan.pinned_test, tmp_path / PAYLOAD_FOLDER)
    ((_, problem),) = run_forked([count])
    assert problem.endswith("not compile: read.py:9:31: error: no member")
