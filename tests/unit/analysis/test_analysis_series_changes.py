"""Changes of exact counters, instruction counts and phases between two sides."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.cli.comparison_output import describe_comparisons
from treehammer.analysis.comparison.comparison import (
    ComparisonQuery,
    compare_samples,
    compare_together,
    compare_with_first,
)
from treehammer.analysis.comparison.comparison_result import ComparisonResult, add_changes
from treehammer.analysis.comparison.instruction_changes import (
    format_change,
    format_count,
    load_counted_work,
    pair_counts,
)
from treehammer.analysis.comparison.series_changes import (
    FEWER,
    MORE,
    PHASES,
    SAME,
    VARIES,
    CounterChange,
    DetailedSample,
    PhaseChange,
    attach_counters,
    attach_phases,
    compare_counters,
    compare_phases,
    describe_changed_results,
    describe_phases,
    format_counter_verdict,
    stored_counters,
    stored_phases,
    summarize_counters,
)
from treehammer.analysis.statistics.sample import Sample
from treehammer.collectors.record.metric_catalogue import find_access_mode
from treehammer.sql.core.rows import InstructionRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.terminal import CommandOutput, print_output

A, B = "6.38.00", "6.40.00"
QUERY = ComparisonQuery("root", A, B)
COUNTERS = {"read_calls": 1000, "bytes_read": 5_000_000, "kernel_read_calls": 1000}


def build_rows(jobs: int = 1, **changes: Any) -> Iterator[dict[str, Any]]:
    """Both releases with the same counters, changed on side B."""
    for row in SimulatedCampaign(jobs=jobs).rows():
        on_b = row.get("axis_root") == B or f'"root":"{B}"' in row["variant"].replace(" ", "")
        yield {**row, **COUNTERS, "door_protocol": "file", **(changes if on_b else {})}


def compare(rows: Iterator[dict[str, Any]]) -> dict[str, CounterChange]:
    counted = [DetailedSample.from_row(row) for row in rows]
    return {change.metric: change for change in compare_counters(counted, "root", A, B)}


def test_one_job_with_equal_counters_is_the_same() -> None:
    comparison = compare(build_rows())
    assert set(comparison) == set(COUNTERS)
    assert {value.verdict for value in comparison.values()} == {SAME}
    assert {value.jobs for value in comparison.values()} == {1}
    assert not any(value.is_regression(0.02) for value in comparison.values())
    assert summarize_counters([*comparison.values()]) == "Exact counters of 1 variant: 3 same."


@pytest.mark.parametrize(
    "calls, verdict, text, regressed",
    [
        (1010, MORE, "+1.0 % read calls", False),
        (372_000, MORE, "372.0 × the read calls", True),
        (990, FEWER, "−1.0 % read calls", False),
        (1001, MORE, "+0.1 % read calls", False),
        (4, FEWER, "1/250.0 of the read calls", False),
        (0, FEWER, "fewer read calls", False),
    ],
)
def test_one_job_decides_a_change(calls: int, verdict: str, text: str, regressed: bool) -> None:
    change = compare(build_rows(read_calls=calls))["read_calls"]
    assert change.verdict == verdict
    assert format_counter_verdict(change) == text
    assert change.is_regression(0.02) == regressed


def test_counters_that_vary_on_one_side_decide_nothing() -> None:
    rows = [*build_rows(jobs=2)]
    rows[-1]["read_calls"] = 1001
    changes = compare(iter(rows))
    change = changes["read_calls"]
    assert change.verdict == VARIES
    assert not change.is_regression(0.02)
    assert not change.has_changed
    summary = "Exact counters of 1 variant: 2 same, 1 that vary between executions."
    assert summarize_counters([*changes.values()]) == summary


def test_counters_are_named_as_the_verdicts_of_their_series() -> None:
    rows = [dict(row, dataset_hash=data, job_id=data) for data in "de" for row in build_rows()]
    details = [*map(DetailedSample.from_row, rows)]
    comparison = compare_samples([item.sample for item in details], QUERY, now_us=1)
    labels = {change.label for change in add_changes(comparison, details).counters}
    assert labels == {row.label for row in comparison.of_series}


def test_changed_results_have_all_digits() -> None:
    comparison = compare_samples(SimulatedCampaign().samples(), QUERY, now_us=1)
    first, *_ = comparison.of_series
    counters = {"pairs": (FEWER, 1234567.0, 0.0, 1, "lower")}
    row = replace(first, evidence=replace(first.evidence, counters=counters))
    assert describe_changed_results([row]) == "pairs 1,234,567 → 0: the results differ."


def test_counters_are_kept_with_the_first_verdict_of_a_series() -> None:
    changes = [*compare(build_rows(read_calls=1010)).values()]
    comparison = compare_samples(SimulatedCampaign().samples(), QUERY, now_us=1)
    rows = attach_counters(comparison.verdicts, changes)
    assert [row.metric for row in rows if stored_counters([row])] == ["cpu_per_event_s"]
    stored = {row.metric: row for row in stored_counters(rows)}
    assert {
        name: (row.verdict, row.a_value, row.b_value, row.effect) for name, row in stored.items()
    } == {row.metric: (row.verdict, row.a_value, row.b_value, row.effect) for row in changes}
    assert summarize_counters([*stored.values()]) == summarize_counters(changes)
    assert attach_counters(comparison.verdicts, []) == comparison.verdicts


@pytest.mark.parametrize("changes", [{"failure_class": "read"}, {"plausible": False}])
def test_unusable_executions_do_not_count(changes: dict[str, Any]) -> None:
    assert not compare(build_rows(**changes))


def test_noisy_counters_are_not_compared() -> None:
    rows = ({**row, "door_protocol": "root"} for row in build_rows())
    assert set(compare(rows)) == {"read_calls", "bytes_read"}
    rows = ({**row, "door_protocol": "https"} for row in build_rows())
    assert not compare(rows)


@pytest.mark.parametrize(
    "variant, protocol, mode",
    [
        ({"cache_mb": 30}, "file", "file, cached"),
        ({"cache_mb": 0}, "root", "root"),
        ({"cache_mb": 0, "access": "staged"}, "root", "file"),
        ({"cache_mb": 30}, "https", None),
        ({"cache_mb": 30, "format": "rntuple"}, "file", None),
        ({"cache_mb": 30, "threads": 1, "prefetch": 0}, "root", "root, cached"),
        ({"cache_mb": 30, "threads": 2}, "file", None),
        ({"cache_mb": 30, "prefetch": 1}, "root", None),
        ({}, "", None),
    ],
)
def test_access_modes(variant: dict[str, Any], protocol: str, mode: str | None) -> None:
    assert find_access_mode(variant, protocol) == mode


def test_own_exact_metrics_are_compared_by_their_direction() -> None:
    directions = {"copies": "lower", "hits": "higher", "seeds": ""}
    values = {"copies": 100, "hits": 50, "seeds": 7}

    def compare_own(**changes: int) -> dict[str, CounterChange]:
        rows = ({**values, **row, "exact_metrics": directions} for row in build_rows(**changes))
        return compare(rows)

    same = compare_own()
    assert {name: same[name].verdict for name in directions} == dict.fromkeys(directions, SAME)
    changed = compare_own(copies=103, hits=48, seeds=8)
    assert {name: (changed[name].verdict, changed[name].better) for name in directions} == {
        "copies": (MORE, "lower"),
        "hits": (FEWER, "higher"),
        "seeds": (MORE, ""),
    }
    assert [name for name in directions if changed[name].is_regression(0.02)] == ["copies", "hits"]
    assert not changed["copies"].is_regression(0.05)
    assert not compare_own(hits=60)["hits"].is_regression(0.02)
    # Stored with the verdicts, with their direction.
    samples = [DetailedSample.from_row(row).sample for row in build_rows()]
    comparison = compare_samples(samples, QUERY, now_us=0)
    rows = attach_counters(comparison.verdicts, changed.values())
    stored = {change.metric: change for change in stored_counters(rows)}
    assert {name: stored[name] for name in directions} == {
        name: changed[name] for name in directions
    }


def test_hash_is_equal_or_other_but_no_amount() -> None:
    def compare_hash(value: int) -> CounterChange:
        declared = {"exact_metrics": {"result_hash": "higher"}}
        rows = ({"result_hash": 1000, **row, **declared} for row in build_rows(result_hash=value))
        return compare(rows)["result_hash"]

    assert compare_hash(1000).verdict == SAME
    changed = compare_hash(1638)
    assert format_counter_verdict(changed) == "other result hash"
    assert summarize_counters([changed]).endswith("1 other (other result hash).")
    assert not changed.is_regression(0.02)
    samples = [DetailedSample.from_row(row).sample for row in build_rows()]
    comparison = compare_samples(samples, QUERY, now_us=0)
    earlier = attach_counters(comparison.verdicts, [replace(changed, verdict=MORE)])
    assert stored_counters(earlier) == [
        replace(changed, comparison_key=stored_counters(earlier)[0].comparison_key)
    ]


def test_notes_that_comparisons_share_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    samples = SimulatedCampaign(roots=("6.36.00", "6.38.00", "6.40.00"), effect=0.2).samples()
    questions = compare_with_first(
        "root", ["6.36.00", "6.38.00", "6.40.00"], delta=0.02, selection=Selection()
    )
    results = [
        ComparisonResult(sample) for sample in compare_together(samples, questions, now_us=0)
    ]
    print_output(CommandOutput(columns=(), above=describe_comparisons(results[:1], verbose=True)))
    alone = capsys.readouterr().out
    print_output(CommandOutput(columns=(), above=describe_comparisons(results, verbose=True)))
    together = capsys.readouterr().out
    assert "All comparisons:" not in alone
    tables, _, common = together.partition("\nAll comparisons:\n")
    for sentence in ("Effects are means of ln(B/A)", "Times of either side"):
        assert alone.count(sentence) == common.count(sentence) == 1
        assert sentence not in tables
    assert tables.count("6.38.00 is ") == 2  # its sentences on CPU and wall time


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
    assert [library.library for library in pair.libraries()] == ["libz.so", "libRIO.so"]
    assert [library.difference for library in pair.libraries()] == [0, 100]
    (function,) = pair.functions()
    assert (function.function, function.difference) == (FAST, 100)
    assert function.relative == pytest.approx(0.025)


def test_a_function_of_one_release_alone_counts_as_none_in_the_other() -> None:
    added = {**OLD, ("libCore.so", ""): 500, ("libCore.so", "TString::New()"): 500}
    (pair,) = pair_counts(build_count(A, OLD) + build_count(B, added), "root", A, B)
    assert [function.difference for function in pair.functions()] == [5]


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


def test_comparison_finds_the_counts_of_its_work(store: Store) -> None:
    samples = SimulatedCampaign().samples()
    comparison = compare_samples(samples, QUERY, now_us=1)
    facts: dict[str, Any] = {
        "test_hash": samples[0].test_hash,
        "dataset_hash": samples[0].dataset_hash,
        "axes": {n: v for n, v in samples[0].variant.values if n != "root"},
    }
    assert load_counted_work(store, comparison.verdicts) == []
    for root, parts in ((A, OLD), (B, NEW)):
        store.replace_instruction_count(build_count(root, parts, **facts))
        store.replace_instruction_count(build_count(root, parts, **{**facts, "events": 7}))
        store.replace_instruction_count(build_count(root, parts, test_hash="another"))
    counted = load_counted_work(store, comparison.verdicts)
    assert [pair.a.facts.events for pair in counted] == [7, 100]
    assert {pair.a.facts.test_hash for pair in counted} == {samples[0].test_hash}


def test_numbers_are_written_with_their_sign() -> None:
    assert format_change(0.0019) == "+0.19 %"
    assert format_change(-0.0019) == "−0.19 %"
    assert format_count(400_873.4) == "400,873"
    assert format_count(-798.2, signed=True) == "−798"


def test_commits_are_paired_by_the_hashes_of_their_tests() -> None:
    rows = build_count(B, OLD, test_hash="a") + build_count(B, NEW, test_hash="b", events=50)
    (pair,) = pair_counts(rows, "commit", "a", "b")
    assert (pair.total.a_per_event, pair.total.b_per_event) == (4000, 8200)
    assert not pair_counts(rows, "commit", "a", "c")


def measure_rows(
    shifts: Mapping[str, float], door_protocol: str = "file", **columns: Any
) -> list[DetailedSample]:
    """Measurements of a campaign: shifts of side B in seconds for 1 s of the loop, and some noise."""
    measured = []
    for number, row in enumerate(SimulatedCampaign(jobs=6).rows()):
        row["door_protocol"] = door_protocol
        sample = Sample.from_row(row)
        is_b = sample.axis_value("root") == B
        noise = 0.001 * (number % 5 - 2)
        shift = {name: value if is_b else 0.0 for name, value in shifts.items()}
        values = {
            "open_user_s": 0.01,
            "get_tree_user_s": 0.02 + shift.get("open", 0.0) + noise,
            "perfstats_read_s": 0.1 + shift.get("read", 0.0) + noise,
            "perfstats_unzip_s": 0.5 + shift.get("decompress", 0.0) + noise,
            "loop_cpu_s": 1.0 + sum(shift.get(name, 0.0) for name in PHASES[1:]) + 3 * noise,
            **columns,
        }
        measured.append(DetailedSample.from_row({**row, **values}))
    return measured


def edit_sample(item: DetailedSample, **values: Any) -> DetailedSample:
    return replace(item, sample=replace(item.sample, **values))


@pytest.mark.parametrize("phase", PHASES)
def test_changed_phase_is_named(phase: str) -> None:
    changes = compare_phases(measure_rows({phase: 0.05}), "root", A, B)
    assert [change.phase for change in changes] == list(PHASES)
    certain = {item.phase: round(item.change, 2) for item in changes if item.is_certain}
    assert certain == {phase: 0.05}
    every = compare_phases(measure_rows(dict.fromkeys(PHASES, 0.05)), "root", A, B)
    assert changes[0].high - changes[0].low > every[0].high - every[0].low, "one of four is certain"
    (sentence,) = describe_phases(changes)
    assert f"% of the loop's CPU: {phase} +5." in sentence or f"{phase} +4.9" in sentence
    assert "no certain change of" in sentence


def test_loop_phases_of_each_side_add_up_to_the_loop() -> None:
    changes = compare_phases(measure_rows({"decompress": 0.05}), "root", A, B)
    assert sum(change.a_s for change in changes[1:]) == pytest.approx(1.0, abs=0.01)
    assert sum(change.b_s for change in changes[1:]) == pytest.approx(1.05, abs=0.01)


def test_equal_sides_and_two_of_four_hosts_have_no_certain_change() -> None:
    equal, slower = measure_rows({}), measure_rows({"decompress": 0.05})
    mixed = [b if b.sample.host[-1] in "12" else a for a, b in zip(equal, slower, strict=True)]
    changes = [compare_phases(measured, "root", A, B) for measured in (equal, mixed)]
    assert [*map(describe_phases, changes)] == [[], []]
    assert compare_phases(equal[:8], "root", A, B) == [], "two jobs have no interval"
    for side in (A, B):  # each launch counts, on whichever side it recorded its ratio
        ratios: dict[Any, Mapping[str, float]] = {side: {"cpu": 0.1}}
        launches = [
            edit_sample(item, launch_ratios=ratios.get(item.sample.axis_value("root"), {}))
            for item in equal[:8]
        ]
        assert len(compare_phases(launches, "root", A, B)) == len(PHASES)
    pods = [edit_sample(item, machine=item.sample.host, host=item.sample.job_id) for item in equal]
    assert compare_phases(pods, "root", A, B) == compare_phases(equal, "root", A, B)


def test_unknown_phases_are_left_out() -> None:
    assert compare_phases(measure_rows({}, perfstats_unzip_s=None), "root", A, B) == []
    # The wall time of remote reads is no CPU time.
    changes = compare_phases(measure_rows({}, door_protocol="root"), "root", A, B)
    assert [change.phase for change in changes] == ["open", "decompress", "deserialize"]


def test_wall_times_do_not_count_waits_for_a_cpu() -> None:
    samples = measure_rows({"deserialize": 0.05}, loop_run_queue_s=1.0)
    phases = samples[0].phases
    assert phases["decompress"] == pytest.approx(0.25, abs=0.01)
    assert sum(phases[name] for name in PHASES[1:]) == pytest.approx(samples[0].loop_s)


def test_stored_phases_equal_compared_ones() -> None:
    measured = measure_rows({"read": 0.05})
    samples = [phased.sample for phased in measured]
    comparison = compare_samples(samples, QUERY, now_us=1)
    changes = compare_phases(measured, "root", A, B)
    rows = attach_phases(comparison.verdicts, changes)
    stored = [replace(change, label=changes[0].label) for change in stored_phases(rows)]
    assert sorted(stored, key=str) == sorted(changes, key=str)
    refused = [replace(row, effect=None) for row in comparison.verdicts]
    assert stored_phases(attach_phases(refused, changes)) == [], "the sides read different values"


def test_compared_sites_are_named_by_label_alone() -> None:
    change = PhaseChange("", "half", "read", 1.0, 1.1, 0.1, 0.05, 0.15, 3)
    (sentence,) = describe_phases([change])
    assert sentence.startswith("half, by phase, in % of the loop's CPU: read +10.00 [")
