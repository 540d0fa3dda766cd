"""Payload kit without ROOT: branches, extensions, libraries of loops, summaries of passes, columns."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_factory import write_payload_job

from treehammer.collectors.job_spec import ExecutionSpec, PayloadSpec, SoftwareRequest
from treehammer.collectors.kit.treehammer_kit import (
    loop_libraries,
    pass_summary,
    pyroot,
    turn_server,
)
from treehammer.collectors.kit.treehammer_kit.columns import column_analysis
from treehammer.collectors.kit.treehammer_kit.columns.column_analysis import (
    ColumnAnalysis,
    HistogramSums,
    summarize_idle_time,
    summarize_threads,
)
from treehammer.collectors.kit.treehammer_kit.columns.uproot_files import open_uproot_file
from treehammer.collectors.kit.treehammer_kit.loop_hash import hash_loop
from treehammer.collectors.kit.treehammer_kit.loop_libraries import LoopSource, find_libraries
from treehammer.collectors.kit.treehammer_kit.pass_summary import (
    LATENCY_PARTS,
    LOOP_COUNTERS,
    PASS_PHASES,
    FileRead,
    PassRead,
    latency_percentile,
    summarize_tree_passes,
)
from treehammer.collectors.kit.treehammer_kit.payload_task import (
    PRIME,
    PayloadError,
    PayloadTask,
    make_plain_url,
    select_branches,
    select_fraction,
)
from treehammer.collectors.kit.treehammer_kit.read_passes import FileSurvey
from treehammer.collectors.kit.treehammer_kit.root_engine import load_extensions
from treehammer.collectors.record import metric_catalogue
from treehammer.collectors.record.measurement_record import describe_value_error
from treehammer.collectors.record.metric_catalogue import LATENCY_BINS
from treehammer.collectors.worker.run import library_builds

NAMES = ["nMuon", "Muon_pt", "Muon_eta", "Jet_pt", "odd[name]", "run"]
COUNTERS = {"Muon_pt": ["nMuon"], "Muon_eta": ["nMuon"]}


def chosen(request: str, folder: Path | str = "", seed: int = 1) -> list[str]:
    positions = select_branches(NAMES, COUNTERS, request, seed=seed, folder=str(folder))
    return [NAMES[position] for position in positions]


@pytest.mark.parametrize(
    "request_, expected",
    [
        ("Muon_*", ["nMuon", "Muon_pt", "Muon_eta"]),
        ("Jet_pt, run", ["Jet_pt", "run"]),
        ("run,Jet_pt,run", ["Jet_pt", "run"]),
        ("odd[name]", ["odd[name]"]),
        ("!Muon_*,!odd[name]", ["nMuon", "Jet_pt", "run"]),
        ("*,!Jet_pt", ["nMuon", "Muon_pt", "Muon_eta", "odd[name]", "run"]),
        ("Muon_*,!Muon_eta", ["nMuon", "Muon_pt"]),
    ],
)
def test_patterns_select_in_tree_order_with_counters(request_: str, expected: list[str]) -> None:
    assert chosen(request_) == expected


def test_readable_leaves_out_unreadable_branches() -> None:
    left_out = ["run", "Jet_pt"]
    positions = select_branches(NAMES, {}, "readable", seed=1, folder="", unreadable=left_out)
    assert [NAMES[position] for position in positions] == [*NAMES[:3], "odd[name]"]
    with pytest.raises(PayloadError, match="leaves none to read"):
        select_branches(NAMES, {}, "readable", seed=1, folder="", unreadable=NAMES)


def test_list_file_contains_one_pattern_per_line(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("\ufeff# muons\nMuon_eta\n\nrun  # the run\n")
    assert chosen("@mine.txt", tmp_path) == ["nMuon", "Muon_eta", "run"]


@pytest.mark.parametrize(
    "request_, expected",
    [
        ("Muon_pT", "Muon_pt"),
        ("run,!run", "leaves none"),
        ("!Tau_*", "'Tau_*'"),
        ("Tau_*", "'Tau_*'"),
        (" , ", "empty"),
        ("@none.txt", "none.txt"),
    ],
)
def test_unmatched_pattern_fails(request_: str, expected: str) -> None:
    with pytest.raises(PayloadError) as error:
        chosen(request_)
    assert error.value.document["failure_class"] == "open"
    assert expected in error.value.document["message"]


@given(st.integers(1, 400), st.floats(1e-4, 1.0), st.floats(1e-4, 1.0), st.integers(0, 2**32))
def test_fraction_is_exact_and_nested(count: int, one: float, two: float, seed: int) -> None:
    names = [f"b{number}" for number in range(count)]
    small, large = (set(select_fraction(names, share, seed)) for share in sorted((one, two)))
    assert small <= large
    share = min(one, two)
    assert abs(len(small) - max(1, share * count)) <= 0.5 or len(small) == 1
    assert set(select_fraction(names[::-1], share, seed)) == small


def test_seed_changes_the_selection() -> None:
    names = [f"b{number}" for number in range(100)]
    assert select_fraction(names, 0.1, 1) != select_fraction(names, 0.1, 2)


def test_paths_with_patterns_are_opened_as_they_are(tmp_path: Path) -> None:
    for name in ("a[1]*.root", "x#y?.root", "p|q:r.root", "$HOME ~.root", "ü{1}.root"):
        path = tmp_path / name
        path.write_text(name)
        url = make_plain_url(str(path))
        assert url.startswith("/proc/self/fd/")
        assert Path(url).read_text() == name
    (tmp_path / "b[2]").mkdir()
    (tmp_path / "b[2]" / "plain.root").write_text("here")
    plain = make_plain_url(f"{tmp_path}/b[2]/plain.root")
    assert plain.endswith("/plain.root")
    assert Path(plain).read_text() == "here"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("half", "open_turns 0, run_turn 0 4, discard_turns, open_turns 1, discard_turns"),
        ("warm", "run_pass"),
    ],
)
def test_half_of_each_file_or_all_is_read_before(tmp_path: Path, state: str, expected: str) -> None:
    variant = {"server_cache": state, "cache_mb": 30, "threads": 4}
    write_payload_job(tmp_path, "a", "b", kind=PRIME, variant=variant, passes=3)
    task = PayloadTask.read(str(tmp_path / "job.json"), "")
    # A TTreeCache would read ahead, and several threads would read any half.
    assert (task.cache_bytes, task.threads) == ((0, 1) if state == "half" else (30_000_000, 4))
    assert task.passes == 1
    reader = MagicMock()
    reader.open_turns.side_effect = [7, 0]
    share = turn_server.prime_cache(reader, task)
    calls = [" ".join(map(str, (call[0], *call.args))) for call in reader.method_calls]
    assert ", ".join(calls) == expected
    assert share == {"primed_share": 0.5 if state == "half" else 1}


@pytest.mark.parametrize(
    "url",
    ["/data/a.root", "root://host//a[1].root?b=1", "https://host/a%5B.root", "/none/a[1].root"],
)
def test_plain_remote_and_missing_addresses_stay(url: str) -> None:
    assert make_plain_url(url) == url


@pytest.mark.parametrize(
    ("libraries", "imports", "expected"),
    [
        (["/nowhere/libX.so"], [], r"load = \['/nowhere/libX.so'\] of test.toml: there is no file"),
        (["libText.so"], [], r"too short.*Build the library with ROOT 6.40.00"),
        ([], ["no_such_module_here"], r"imports = .* No module named 'no_such_module_here'\. Name"),
    ],
)
def test_missing_extension_is_named_with_key_and_remedy(
    tmp_path: Path, libraries: list[str], imports: list[str], expected: str
) -> None:
    (tmp_path / "libText.so").write_text("text")
    root = MagicMock()
    root.gSystem.Load.return_value = -1
    root.gROOT.GetVersion.return_value = "6.40.00"
    with pytest.raises(PayloadError, match=expected) as caught:
        load_extensions(root, libraries, imports, str(tmp_path))
    assert caught.value.document["failure_class"] == "software-setup"


class CppError(Exception):
    """A C++ exception whose class PyROOT keeps."""

    def what(self) -> str:
        return "no basket\nin TBranch"


@pytest.mark.parametrize(
    "error, message",
    [
        (CppError("void read() => no basket"), "no basket\nin TBranch"),
        (Exception("no basket (C++ exception)"), "no basket (C++ exception)"),
        (RuntimeError("no basket"), "no basket"),
        (TypeError("a mistake in Python"), ""),
    ],
)
def test_cpp_exceptions_are_recognized_under_any_engine(error: Exception, message: str) -> None:
    assert pyroot.is_cpp_exception(error) is bool(message)
    if message:
        assert pyroot.read_cpp_message(error) == message


@pytest.mark.parametrize(
    "behavior, compiles",
    [
        ({"return_value": True}, True),
        ({"return_value": None}, True),
        ({"return_value": False}, False),
        ({"side_effect": SyntaxError}, False),
    ],
)
def test_compilation_succeeds_or_fails_under_any_engine(
    behavior: dict[str, Any], compiles: bool
) -> None:
    root = MagicMock()
    root.gInterpreter.Declare = MagicMock(**behavior)
    assert pyroot.declare(root, "int n;") is compiles


TASK = PayloadTask("timed", "events", [], [], 1, 1, 1.0, 0, 1.0, {}, ".")


def test_errors_of_uproot_are_classed() -> None:
    for error, expected in {
        FileNotFoundError: ("open", "missing"),
        ImportError: ("software-setup", "missing"),
        ValueError: ("open", "file"),
        ValueError("cannot produce Awkward Arrays for x"): ("payload", "branches"),
    }.items():
        with pytest.raises(PayloadError, match="http://h/a: ") as raised:
            open_uproot_file(MagicMock(**{"open.side_effect": error}), TASK, None, "http://h/a")
        assert (raised.value.document["failure_class"], raised.value.document["kind"]) == expected
    with pytest.raises(PayloadError, match="has no tree 'events'") as raised:
        open_uproot_file(MagicMock(), TASK, None, "http://h/a")
    assert raised.value.document["kind"] == "tree"


@pytest.fixture
def loop(tmp_path: Path) -> LoopSource:
    """A loop that includes a header of its test."""
    folder = tmp_path / "payload"
    folder.mkdir()
    (folder / "analysis.h").write_text("int cut = 1;")
    (folder / "read.py").write_text("print()\n")
    return LoopSource('#include "analysis.h"\nvoid read();', "read", "Pass", False, str(folder))


@pytest.fixture
def built(tmp_path: Path, loop: LoopSource, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with the loop's libraries, known to this process."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    for path in loop_libraries.library_paths(str(folder), loop):
        Path(path).touch()
    (folder / loop_libraries.COMPILER_FILE).write_text("g++ 12.2.0 -O2")
    monkeypatch.setenv(loop_libraries.LIBRARIES_VARIABLE, str(folder))
    return folder


def test_key_depends_on_all_that_the_compiler_reads(loop: LoopSource) -> None:
    keys = {loop.key, replace(loop, code=loop.code + " ").key, replace(loop, function="run").key}
    assert len(keys) == 3
    (Path(loop.folder) / "read.py").write_text("print(1)\n")  # no source of the loop
    assert loop.key in keys
    (Path(loop.folder) / "analysis.h").write_text("int cut = 2;")
    assert loop.key not in keys


def test_libraries_are_found_with_their_compiler(built: Path, loop: LoopSource) -> None:
    libraries = find_libraries(TASK, loop)
    assert libraries is not None
    assert libraries.compiler == "g++ 12.2.0 -O2"
    assert Path(libraries.loop).parent == built


def test_second_copy_of_libraries_is_loaded(
    built: Path, loop: LoopSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = built.parent / "copies"
    monkeypatch.setenv(loop_libraries.COPY_VARIABLE, str(copies))
    libraries = find_libraries(TASK, loop)
    assert libraries is not None
    assert {Path(libraries.kit).parent, Path(libraries.loop).parent} == {copies}
    assert len(list(copies.iterdir())) == 2


@pytest.mark.parametrize("lacking", ["kit", "loop", "compiler", "variable", "code", "imports"])
def test_incomplete_libraries_are_not_used(
    built: Path, loop: LoopSource, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    task = TASK
    if lacking == "variable":
        monkeypatch.delenv(loop_libraries.LIBRARIES_VARIABLE)
    elif lacking == "code":
        loop = replace(loop, code="")
    elif lacking == "imports":
        task = replace(TASK, imports=["uproot"])
    else:
        next(built.glob(f"{lacking}*")).unlink()
    assert find_libraries(task, loop) is None


def test_message_of_a_compiler_names_the_line_of_the_script(
    loop: LoopSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(loop.folder) / "read.py"
    script.write_text(f"import treehammer_kit\n\ntreehammer_kit.run('''{loop.code}''')\n")
    monkeypatch.setattr("sys.argv", [str(script)])
    assert f'#line 3 "read.py"\n{loop.code}\n' in loop.write_source()


@pytest.mark.parametrize(
    ("programs", "reason"),
    [((), r"there is no compiler \(g\+\+, c\+\+, clang\+\+\)"), (("c++",), "no root-config")],
)
def test_machine_without_compiler_leaves_the_loop_to_cling(
    tmp_path: Path,
    loop: LoopSource,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    programs: tuple[str, ...],
    reason: str,
) -> None:
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    built = loop_libraries.build_libraries(str(tmp_path), TASK, loop)
    assert (built["folder"], bool(re.search(reason, built["reason"]))) == ("", True)
    message = capsys.readouterr().err
    assert message.startswith("treehammer_kit: the loop is compiled by cling: ")
    assert re.search(reason, message)


def test_only_libraries_that_no_job_used_for_long_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "release"
    folder.mkdir()
    for name, days in (("loop-old.so", 61), ("kit.so.1.tmp", 61), ("loop-used.so", 59)):
        (folder / name).touch()
        then = time.time() - days * 86400
        os.utime(folder / name, (then, then))
    loop_libraries._remove_old(str(tmp_path))
    assert [path.name for path in folder.iterdir()] == ["loop-used.so"]


SCRIPT = "import treehammer_kit\n# {comment}\ntreehammer_kit.run({code!r}, turns={turns})\n"
CODE = 'extern "C" int count(int n) {{ /* {comment} */\n return {number} * n; }}\n'


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ here")
def test_loops_differ_by_what_they_do(tmp_path: Path) -> None:
    def compute_hash(comment: str = "one", number: int = 2, *, turns: bool = True) -> str:
        code = CODE.format(comment=comment, number=number)
        source, library = tmp_path / f"{comment}.cpp", tmp_path / f"{comment}.so"
        source.write_text(code)
        command = ["g++", "-O2", "-fPIC", "-shared", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        script = tmp_path / "read.py"
        script.write_text(SCRIPT.format(comment=comment, code=code, turns=turns))
        return hash_loop(str(library), str(script), code)

    first = compute_hash()
    assert len(first) == 64
    assert compute_hash("another comment") == first
    assert compute_hash(number=3) != first
    assert compute_hash(turns=False) != first, "the script is part of the work, but for its loop"
    (tmp_path / "none.so").write_text("not a library")
    assert hash_loop(str(tmp_path / "none.so"), "read.C", "") == ""


KIT_LOOP = "import treehammer_kit\ntreehammer_kit.run('')\n"


@pytest.fixture
def spec(tmp_path: Path) -> ExecutionSpec:
    """A timed execution of a release in the cache of software."""
    location = tmp_path / "software" / "root-6.40.00"
    location.mkdir(parents=True)
    software = SoftwareRequest("6.40.00", "wheel", "6.40.00", str(location))
    return ExecutionSpec(1, 1, "timed", {}, software, (), "events", 1, 7, {})


def make_context(folder: Path, kind: str = "python", text: str = KIT_LOOP, **job: Any) -> Any:
    entry = "read.C" if kind == "macro" else "read.py"
    (folder / entry).write_text(text)
    payload = PayloadSpec(folder=".", entry=entry, kind=kind, settings={}, metrics={})
    return SimpleNamespace(
        job=SimpleNamespace(load=None, payload_of=lambda _spec: payload, **job),
        locate_payload=lambda _spec: str(folder),
        output=str(folder / "output"),
        work=str(folder / "output" / "work"),
        loops={},
    )


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("python", KIT_LOOP, True),
        ("python", "import uproot\n", False),
        ("macro", "void read() {}", True),
        ("executable", KIT_LOOP, False),
    ],
)
def test_only_payloads_of_the_kit_are_compiled(
    tmp_path: Path, spec: ExecutionSpec, kind: str, text: str, expected: bool
) -> None:
    context = make_context(tmp_path, kind, text)
    assert library_builds.has_loop(context, spec) is expected
    assert not library_builds.has_loop(context, replace(spec, kind="checksum"))
    without = replace(spec, software=replace(spec.software, provider="none"))
    assert not library_builds.has_loop(context, without)


def test_jobs_share_libraries_where_they_find_a_folder_for_them(
    tmp_path: Path, spec: ExecutionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context(tmp_path)
    assert library_builds.locate_base(context, spec) == str(tmp_path / "software" / "loops")
    job_folder = str(tmp_path / "output" / "work" / "loops")
    build = replace(spec, software=replace(spec.software, provider="path"))
    assert library_builds.locate_base(context, build) == job_folder
    (tmp_path / "software" / "loops").rmdir()
    (tmp_path / "software" / "loops").touch()  # no folder can be made
    assert library_builds.locate_base(context, spec) == job_folder
    # On the machine of the submission, builds have one as well; a later change of one has another key.
    monkeypatch.setenv("TREEHAMMER_SHARED_LOOPS", str(tmp_path / "cache"))
    assert library_builds.locate_base(context, build) == str(tmp_path / "cache")
    built = make_context(tmp_path)
    built.job = SimpleNamespace(
        load=None, payload_of=lambda _spec: SimpleNamespace(build=("make",))
    )
    assert library_builds.locate_base(built, build) == job_folder


@pytest.mark.parametrize(
    ("script", "expected", "reason"),
    [
        ("""echo '{"values": {"folder": "/there"}}' >$TREEHAMMER_RESULT""", "/there", ""),
        ("""echo '{"values": {"folder": "", "reason": "no"}}' >$TREEHAMMER_RESULT""", "", "no"),
        ("exit 1", "", "its build ended with 1"),
        ("echo '[]' >$TREEHAMMER_RESULT", "", "its build ended with 0"),
    ],
)
def test_libraries_are_built_once_for_each_job(
    tmp_path: Path, spec: ExecutionSpec, script: str, expected: str, reason: str
) -> None:
    context = make_context(tmp_path)
    context.signals = SimpleNamespace(raise_if_stopped=lambda _phase: None)
    (tmp_path / "output" / "logs").mkdir(parents=True)
    setup: Any = SimpleNamespace(
        build_command=lambda _kind, _entry, _variables: ["sh", "-c", script],
        env={"PATH": "/usr/bin:/bin"},
    )
    assert not library_builds.find_loop(context, spec)
    loop = library_builds.build_loop(context, spec, setup, str(tmp_path), {})
    assert library_builds.find_loop(context, spec) == loop
    assert (loop.folder, loop.fallback) == (expected, reason)
    assert not library_builds.find_loop(context, replace(spec, variant={"format": "rntuple"}))


def one_file(
    loop: tuple[float, float, float] = (2.0, 1.0, 0.5),
    *,
    queue: float = 0.25,
    events: int = 100,
    **changes: Any,
) -> FileRead:
    figures: dict[str, Any] = {
        "phases": {**dict.fromkeys(PASS_PHASES, (0.1, 0.05, 0.01)), "loop": loop},
        "events": events,
        "unzipped_bytes": 8000,
        "file_size": 10_000,
        "file_class": "TFile",
        "cached": True,
        "prefetching": False,
        "cache_size": 3_000_000,
        "cache_efficiency": 0.9,
        "cache_efficiency_rel": 0.8,
        "first_byte_s": 0.02,
        "longest_read_s": 7e-6,
        "run_queue_s": queue,
        "latencies": [0] * (2 * LATENCY_PARTS)
        + [4]
        + [0] * (30 * LATENCY_PARTS - 1),  # all in [4, 4.25) us
        "counters": dict.fromkeys(LOOP_COUNTERS, 5),
    }
    return FileRead(**{**figures, **changes})


def one_pass(*args: Any, **kwargs: Any) -> PassRead:
    return PassRead([one_file(*args, **kwargs)])


def summarize_one(**changes: Any) -> dict[str, Any]:
    return summarize_tree_passes([one_pass(**changes)])


def test_phases_and_bins_match_the_catalogue() -> None:
    assert pass_summary.PASS_PHASES == metric_catalogue.PASS_PHASES
    assert len(summarize_one()["read_latency_hist"]) == LATENCY_BINS


def test_prefetched_reads_are_those_without_read_events() -> None:
    def count(reads: int, events: int, **changes: Any) -> dict[str, Any]:
        counters = {"read_calls": reads, "perfstats_read_calls": events}
        counters = {**dict.fromkeys(LOOP_COUNTERS, 5), **counters}
        read = one_pass(counters=counters, file_class="TNetXNGFile", **changes)
        return summarize_tree_passes([read, read])

    assert count(20, 20)["read_calls_prefetch"] == 0
    assert "read_calls_single" in count(20, 20)
    ahead = count(20, 3, prefetching=True)
    assert ahead["read_calls_prefetch"] == 17
    assert not {"read_calls_single", "read_calls_vector"} & set(ahead)


def test_values_belong_to_the_payload_and_have_their_type() -> None:
    for name, value in summarize_tree_passes([one_pass(), one_pass()]).items():
        metric = metric_catalogue.METRICS_BY_NAME[name]
        assert metric.owner == "payload"
        assert not describe_value_error(metric, value), name


def test_first_pass_is_recorded_but_not_counted() -> None:
    passes = [one_pass((50.0, 9.0, 9.0)), one_pass(), one_pass((4.0, 1.0, 1.0))]
    values = summarize_tree_passes(passes)
    assert values["pass_loop_wall_s"] == [50.0, 2.0, 4.0]
    assert values["loop_wall_s"] == 3.0
    assert values["loop_cpu_s"] == 1.75
    assert (values["passes_done"], values["passes_counted"]) == (3, 2)


def test_a_single_pass_counts() -> None:
    values = summarize_one()
    assert values["passes_counted"] == 1
    assert values["cpu_per_event_s"] == pytest.approx(0.015)
    assert values["event_rate_hz"] == pytest.approx(50)
    assert values["eff_loop"] == 0.75
    assert values["eff_loop_corrected"] == pytest.approx(1.5 / 1.75)
    assert values["read_fraction"] == pytest.approx((5 + 5) / 10_000)  # gaps are fetched too


def test_unknown_kernel_counters_are_omitted() -> None:
    counters = {**dict.fromkeys(LOOP_COUNTERS, 5), "kernel_read_chars": -1}
    values = summarize_one(queue=-1.0, counters=counters)
    for name in ("kernel_read_chars", "loop_run_queue_s", "pass_loop_run_queue_s"):
        assert name not in values
    assert "eff_loop_corrected" not in values
    assert values["kernel_read_calls"] == 5
    assert "eff_loop_corrected" not in summarize_one(queue=3.0), "longer than the loop"


@pytest.mark.parametrize("reader", ["TDavixFile", "TCurlFile", "TWebFile"])
def test_kernel_counters_are_unknown_over_http(reader: str) -> None:
    counters = {**dict.fromkeys(LOOP_COUNTERS, 5), "kernel_read_chars": 0, "kernel_read_calls": 0}
    values = summarize_one(counters=counters, file_class=reader)
    assert not {"kernel_read_chars", "kernel_read_calls"} & set(values)
    assert values["kernel_read_bytes"] == 5  # nothing comes from a device, which is no mistake


def test_files_of_a_pass_are_summed() -> None:
    values = summarize_tree_passes([PassRead([one_file(), one_file((1.0, 1.0, 0.0))])])
    assert values["loop_wall_s"] == 3.0
    assert values["events_read"] == 200
    assert values["bytes_read"] == 10
    assert values["read_latency_hist"][2] == 8
    assert "cache_efficiency" not in values  # two ratios cannot be combined without their terms


def test_uncached_reads_are_single_without_cache_counters() -> None:
    values = summarize_one(cached=False, file_class="TNetXNGFile")
    assert not [name for name in values if name.startswith(("cache_missed", "cache_eff"))]
    assert (values["read_calls_single"], values["read_calls_vector"]) == (5, 0)


def test_blocks_of_vector_reads_are_counted_for_a_remote_cache() -> None:
    counters = {**one_file().counters, "read_calls": 5, "vector_calls": 4, "vector_blocks": 18}
    values = summarize_one(file_class="TNetXNGFile", counters=counters)
    assert (values["read_calls_single"], values["read_calls_vector"]) == (1, 4)
    assert values["vector_chunks"] == 4.5
    assert not {"vector_calls", "vector_blocks"} & set(values)


def test_read_kinds_are_unknown_for_other_classes_with_a_cache() -> None:
    values = summarize_one(file_class="TDavixFile")
    assert not {"read_calls_single", "read_calls_vector", "vector_chunks"} & set(values)


def test_payload_counters_are_medians_over_counted_passes() -> None:
    passes = [one_pass(reported_values={"seen": value}) for value in (100.0, 4.0, 6.0)]
    assert pass_summary.summarize_extras(passes) == {"seen": 5.0}


def counted(latencies_us: np.ndarray) -> list[int]:
    """Count reads by latency as accounts.hpp does."""
    edges = [2.0 * part / LATENCY_PARTS for part in range(LATENCY_PARTS)]
    for number in range(1, LATENCY_BINS):
        edges += [2.0**number * (1 + part / LATENCY_PARTS) for part in range(LATENCY_PARTS)]
    return [int(count) for count in np.histogram(latencies_us, [*edges, math.inf])[0]]


@pytest.mark.parametrize("reads", [1, 4, 20, 10_000])
@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
@pytest.mark.parametrize(
    "distribution", ["page cache", "disk", "two populations", "all in the upper half of a bin"]
)
def test_percentiles_match_the_exact_ones(reads: int, share: float, distribution: str) -> None:
    random = np.random.default_rng(reads)
    latencies = {
        "page cache": random.lognormal(math.log(3), 0.5, reads) + 2,
        "disk": random.lognormal(math.log(150), 1, reads) + 2,
        "two populations": np.where(random.random(reads) < 0.8, 3.3, 20_000.0),
        "all in the upper half of a bin": random.uniform(14, 15.9, reads),
    }[distribution]
    true = float(np.quantile(latencies, share, method="inverted_cdf"))
    estimate = latency_percentile(counted(latencies), share, 1e-6 * float(latencies.max()))
    assert 1e6 * estimate == pytest.approx(true, rel=1 / LATENCY_PARTS)


SETTINGS: dict[str, Any] = {"filter": "n", "minimum": 2, "bins": 4, "low": 0.0, "high": 8.0}
FILES = st.lists(st.lists(st.integers(1, 50), max_size=5), max_size=6)


def test_percentile_below_a_microsecond_and_of_the_longest_read() -> None:
    estimate = latency_percentile(counted(np.full(100, 0.7)), 0.5, 0.8e-6)
    assert 1e6 * estimate == pytest.approx(0.7, abs=2 / LATENCY_PARTS)
    assert latency_percentile(counted(np.array([5.0, 900.0])), 1.0, 900e-6) == 900e-6


def make_pass(wall_s: float, cpu_s: float, waited_s: float) -> PassRead:
    phases = {**dict.fromkeys(PASS_PHASES, (0.0, 0.0, 0.0)), "loop": (wall_s, cpu_s, 0.0)}
    return PassRead([FileRead(phases, 100, 0, 0, "TFile", True, -1.0, waited_s, {})])


def test_bound_is_the_largest_cluster_or_an_even_share() -> None:
    assert column_analysis.bound_efficiency([[1] * 8, [1], [1], [1], [1], [1]], 2) == 1
    assert column_analysis.bound_efficiency([[3]], 2) == 0.5
    assert column_analysis.bound_efficiency([], 2) == 0


@given(FILES, st.integers(1, 9))
def test_no_schedule_beats_the_bound(files: list[list[int]], threads: int) -> None:
    ends = [0] * threads
    for cluster in itertools.chain(*files):  # each thread takes the next cluster when it is free
        heapq.heappush(ends, heapq.heappop(ends) + cluster)
    # Graham: any list schedule is within a factor of 2 of the best.
    bounded = threads * max(ends) * column_analysis.bound_efficiency(files, threads)
    assert sum(ends) <= bounded * (1 + 1e-12) <= 2 * sum(ends) * (1 + 2e-12)


@pytest.mark.parametrize("change", [{"bins": 0}, {"low": 8}, {"filter": None, "minimum": "x"}])
def test_wrong_settings_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(PayloadError, match="filter, minimum, bins, low, high"):
        ColumnAnalysis.read({**SETTINGS, **change})


def test_code_names_types_and_limits() -> None:
    types = {"n": "Int_t", "pt": "RVec<float>", 'é"\\': "Int_t"}
    code = ColumnAnalysis.read(SETTINGS).write_code(types, [*types][1:])
    assert '[](const Int_t &value) { return value >= 2.0; }, {"n"}' in code
    assert 'kept.Histo1D<RVec<float>>({"pt", "", 4, 0.0, 8.0}, "pt")' in code
    assert r'8.0}, "é\"\\")' in code


def test_checksum_depends_on_bins_and_not_on_files_or_order() -> None:
    together, in_turn, other = (HistogramSums(3, 2) for _ in range(3))
    together.add("a", [0.0, 3.0, 1.0])
    together.add("b", [1.0, 0.0, 0.0])
    in_turn.add("b", [1.0, 0.0, 0.0])
    in_turn.add("a", [0.0, 1.0, 1.0])
    in_turn.add("a", [0.0, 2.0, 0.0])
    other.add("a", [0.0, 2.0, 2.0])
    other.add("b", [1.0, 0.0, 0.0])
    summary = together.summarize()
    assert summary == in_turn.summarize()
    assert summary["histogram_entries"] == other.summarize()["histogram_entries"] == 5
    assert summary["histogram_checksum"] != other.summarize()["histogram_checksum"]


def test_idle_time_leaves_out_waits_for_a_cpu() -> None:
    passes = [make_pass(9.0, 9.0, 0.0), make_pass(2.0, 2.5, 0.5), make_pass(2.0, 2.5, 0.5)]
    files = [FileSurvey(10, "TFile", 5, [100, 300])]
    assert summarize_idle_time(passes, files, 2) == {
        "eff_bound": pytest.approx(400 / 600),
        "bound_wall_s": pytest.approx(2.5 / (2 * 400 / 600)),
        "idle_thread_s": pytest.approx(1.0),
    }
    values = summarize_threads(passes, 2)
    assert values["eff_loop"] == pytest.approx(2.5 / 4)
    assert values["eff_loop_corrected"] == pytest.approx(2.5 / 3.5)
    # More CPU than the threads had: others worked, too.
    assert "eff_loop_corrected" not in summarize_threads([make_pass(2.0, 3.0, 1.5)], 2)
    assert "idle_thread_s" not in summarize_idle_time([make_pass(2.0, 3.0, -1.0)], files, 2)
