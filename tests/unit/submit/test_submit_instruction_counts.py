"""Instruction counts with stand-ins for valgrind and its reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_user import LocalUser
from plan_factory import make_local_plan

from treehammer.collectors.job_spec import BuildCommand, ExecutionSpec, JobSpec
from treehammer.collectors.worker.child_processes import run_forked
from treehammer.errors import ConfigError, ExitCode
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_request
from treehammer.submit.campaigns.job_rendering import copy_payload
from treehammer.submit.planning.job_planner import PAYLOAD_FOLDER
from treehammer.submit.tools import instruction_counts
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


def test_counts_stay_out_of_the_database_on_request(user: LocalUser) -> None:
    user.invoke_command("count", A, B, "reads", "--no-store")
    assert not (user.settings.data_dir / "results.db").exists()


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
