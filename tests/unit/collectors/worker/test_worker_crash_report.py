"""Causes of crashes, found in the output of payloads."""

from __future__ import annotations

import pytest

from treehammer.collectors.record.outcome import Failure
from treehammer.collectors.worker.run.payload_failures import (
    demangle_name,
    describe_crash,
    excerpt_compiler_error,
    name_cause,
)

NO_DICTIONARY = "Warning in <TClass::Init>: no dictionary for class {} is available\n"
FATAL = "Fatal in <TBranchElement::ReadLeaves>: METAssoc_AnalysisMET: no dictionary\n"
FRAMES = """C++ frames:
[0x7ffa18276241]
/lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7ffa2105a050]
/ROOT/lib/libRIO.so(_ZN9TBufferIO9MapObjectEPK7TObjectj+0xb0)[0x7f2fafb31840]
/ROOT/lib/libRIO.so(_ZN9TBufferIO9MapObjectEPK7TObjectj+0x20)[0x7f2fafb31840]
/ROOT/lib/libTree.so(_ZN14TBranchElement16ReadLeavesMemberER7TBuffer+0x129)[0x7f2f97d790b9]
/usr/lib/libpython3.11.so.1.0(_ZN2Py4EvalEv+0x1)[0x1]
/ROOT/lib/libTree.so(_ZN7TBranch8GetEntryExi+0x1)[0x1]
/ROOT/lib/libTree.so(_ZN5TTree8GetEntryExi+0x1)[0x1]
Fatal Python error: Segmentation fault
"""
ROOT_ERROR = 'Error in <TStreamerInfo::BuildOld>: no dictionary for the collection "set<short>"\n'


def test_fatal_line_of_root_is_decisive() -> None:
    text = describe_crash(ROOT_ERROR + FATAL + "aborting\n#0  0x00007fe7acaf1bd3 in __GI___wait4\n")
    assert text == FATAL.strip() + "."


def test_functions_of_a_segmentation_fault_are_named() -> None:
    assert describe_crash(FRAMES) == (
        "It crashed in TBufferIO::MapObject, called by TBranchElement::ReadLeavesMember, called by "
        "TBranch::GetEntry."
    )
    assert describe_crash(ROOT_ERROR + FRAMES).endswith(f"ROOT's last error: {ROOT_ERROR.strip()}.")


def test_missing_dictionaries_come_with_the_remedy() -> None:
    classes = ["Evt", "Hit", "Trk", "Vec"]
    text = describe_crash("".join(map(NO_DICTIONARY.format, classes)) + FATAL)
    assert 'No dictionary for Evt, Hit, Trk, …: read branches = "readable"' in text


@pytest.mark.parametrize("log", ["", "pass 1/3: 50 events in 0.1 s\n", NO_DICTIONARY.format("A")])
def test_output_without_a_cause_gives_none(log: str) -> None:
    assert describe_crash(log) == ""


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZNK5TTree8GetEntryExi", "TTree::GetEntry"),
        ("_Z4readRN10treehammer4PassE", "read"),
        ("_ZTV7TObject", None),
        ("_ZN", None),
    ],
)
def test_qualified_names_are_demangled(symbol: str, name: str | None) -> None:
    assert demangle_name(symbol) == name


def test_only_crashes_and_compile_errors_get_a_cause() -> None:
    crash = Failure("payload", "signal", "payload", "The payload was ended by SIGABRT.")
    assert name_cause(crash, FATAL).message == f"{crash.message} {FATAL.strip()}."
    timeout = Failure("payload", "timeout", "payload", "Too long.")
    assert name_cause(timeout, FATAL) is timeout


@pytest.mark.parametrize(
    ("kind", "log", "error"),
    [
        (
            "compile",
            "read.py:7:5: error: use of undeclared identifier 'Loop'\n    Loop();\n    ^\n"
            "read.py:9:1: error: expected '}'\n2 errors generated.\n",
            "read.py:7:5: error: use of undeclared identifier 'Loop'",
        ),
        (
            "compile",
            "In file included from input_line_9:1:\n/x/loop.C:2:10: fatal error: 'no.hpp' file not found\n",
            "/x/loop.C:2:10: fatal error: 'no.hpp' file not found",
        ),
        (
            "exit",
            "g++ -c a.cpp\na.cpp:3: error: 'Foo' was not declared\na.cpp:9:2: error: later\n"
            "make: *** [Makefile:2: a.o] Error 1\n",
            "a.cpp:3: error: 'Foo' was not declared",
        ),
    ],
)
def test_first_error_of_a_compiler_is_the_cause(kind: str, log: str, error: str) -> None:
    failure = name_cause(Failure("payload", kind, "compile", "It failed"), log)
    assert error in failure.message
    assert "later" not in failure.message
    assert excerpt_compiler_error(f"warning\n{log}", 4000).startswith(error)


def test_damaged_heap_is_named_without_functions() -> None:
    assert describe_crash("free(): invalid pointer\n") == (
        "Reading damaged the memory: free(): invalid pointer."
    )
