"""Callgrind's output, parsed to instructions by library and function."""

from __future__ import annotations

import pytest

from treehammer.errors import CountingError
from treehammer.submit.tools import instruction_counts
from treehammer.submit.tools.instruction_counts import (
    COMPILED_AT_RUN_TIME,
    UNNAMED,
    parse_callgrind,
    shorten_library,
)

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
    profile = parse_callgrind(OUTPUT.splitlines(keepends=True), "test")
    assert profile.instructions == {
        ("libRIO.so", "TBufferFile::ReadFastArray(float*, int)"): 125,
        ("libz.so", "inflate"): 1030,
        (COMPILED_AT_RUN_TIME, UNNAMED): 1,
    }
    assert profile.total == 1156


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
    ],
)
def test_libraries_have_the_same_name_in_all_releases(path: str, name: str) -> None:
    assert shorten_library(path) == name


def test_missing_valgrind_is_an_infrastructure_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(CountingError, match="apt install valgrind") as caught:
        instruction_counts.find_valgrind()
    assert caught.value.exit_code == 4
