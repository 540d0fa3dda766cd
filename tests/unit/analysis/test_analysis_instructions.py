"""Changes of instruction counts between two releases."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.comparison import count_changes
from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.comparison.count_changes import (
    format_change,
    format_count,
    load_counted_work,
    pair_counts,
)
from treehammer.sql.core.rows import InstructionRow
from treehammer.sql.write.store import Store

A, B = "6.38.00", "6.40.00"
FAST = "TBufferFile::ReadFastArray(float*, int)"


def build_count(
    root: str, parts: dict[tuple[str, str], int], **changes: Any
) -> list[InstructionRow]:
    variant = {"root": root, "branches": 1.0, **changes.pop("axes", {})}
    values: dict[str, Any] = {
        "count_id": f"{root}{json.dumps(variant)}{changes}",
        "created_us": 1,
        "test_name": "ttree-read",
        "test_hash": "t",
        "variant": json.dumps(variant),
        "label": f"branches=100% root={root}",
        "root_version": root,
        "dataset": "reference-small",
        "dataset_hash": "d",
        "events": 100,
        "host": "node",
        "valgrind": "3.19.0",
        **changes,
    }
    return [
        InstructionRow(line=line, library=library, function=function, instructions=n, **values)
        for line, ((library, function), n) in enumerate(parts.items())
    ]


OLD = {("libz.so", ""): 300_000, ("libRIO.so", ""): 100_000, ("libRIO.so", FAST): 10_000}
NEW = {("libz.so", ""): 300_000, ("libRIO.so", ""): 110_000, ("libRIO.so", FAST): 20_000}


def test_changes_are_per_event_and_relative_to_all_instructions() -> None:
    (pair,) = pair_counts(build_count(A, OLD) + build_count(B, NEW), "root", A, B)
    assert pair.label == "branches=100%"
    assert (pair.total.a_per_event, pair.total.b_per_event) == (4000, 4100)
    assert pair.total.relative == pytest.approx(0.025)
    assert [one.library for one in pair.libraries()] == ["libz.so", "libRIO.so"]
    assert [one.difference for one in pair.libraries()] == [0, 100]
    (function,) = pair.functions()
    assert (function.function, function.difference) == (FAST, 100)
    assert function.relative == pytest.approx(0.025)


def test_a_function_of_one_release_alone_counts_as_none_in_the_other() -> None:
    added = {**OLD, ("libCore.so", ""): 500, ("libCore.so", "TString::New()"): 500}
    (pair,) = pair_counts(build_count(A, OLD) + build_count(B, added), "root", A, B)
    assert [one.difference for one in pair.functions()] == [5]


@pytest.mark.parametrize(
    "changes",
    [{"events": 200}, {"dataset_hash": "e"}, {"test_hash": "u"}, {"axes": {"branches": 0.02}}],
)
def test_counts_of_other_work_are_not_paired(changes: dict[str, Any]) -> None:
    assert not pair_counts(build_count(A, OLD) + build_count(B, NEW, **changes), "root", A, B)


@pytest.mark.parametrize(
    "changes", [{"variant": "no JSON"}, {"variant": "[1]"}, {"events": 0}, {"instructions": 0}]
)
def test_counts_that_make_no_sense_are_ignored(changes: dict[str, Any]) -> None:
    odd = [replace(row, count_id="odd", **changes) for row in build_count(B, NEW)]
    assert not pair_counts([*build_count(A, OLD), *odd], "root", A, B)
    assert len(pair_counts([*build_count(A, OLD), *odd, *build_count(B, NEW)], "root", A, B)) == 1


def test_comparison_finds_the_counts_of_its_work(tmp_path: Path) -> None:
    samples = SimulatedCampaign().samples()
    found = compare_samples(samples, ComparisonQuery("root", A, B), now_us=1)
    facts: dict[str, Any] = {
        "test_hash": samples[0].test_hash,
        "dataset_hash": samples[0].dataset_hash,
        "axes": {n: v for n, v in samples[0].variant.values if n != "root"},
    }
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        assert load_counted_work(store, found.verdicts) == []
        for root, parts in ((A, OLD), (B, NEW)):
            store.replace_instruction_count(build_count(root, parts, **facts))
            store.replace_instruction_count(build_count(root, parts, **{**facts, "events": 7}))
            store.replace_instruction_count(build_count(root, parts, test_hash="another"))
        counted = load_counted_work(store, found.verdicts)
    assert [pair.a.facts.events for pair in counted] == [7, 100]
    assert {pair.a.facts.test_hash for pair in counted} == {samples[0].test_hash}


def test_numbers_are_written_with_their_sign() -> None:
    assert format_change(0.0019) == "+0.19 %"
    assert format_change(-0.0019) == "−0.19 %"
    assert format_count(400_873.4) == "400,873"
    assert format_count(-798.2, signed=True) == "−798"
    assert "not time" in count_changes.NOT_TIME


def test_commits_are_paired_by_the_hashes_of_their_tests() -> None:
    rows = build_count(B, OLD, test_hash="a") + build_count(B, NEW, test_hash="b", events=50)
    (pair,) = pair_counts(rows, "commit", "a", "b")
    assert (pair.total.a_per_event, pair.total.b_per_event) == (4000, 8200)
    assert not pair_counts(rows, "commit", "a", "c")
