"""Samples, their reduction to one value per job or launch, and summaries of groups."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from simulated_campaign import SimulatedCampaign, ask, evidence, rows

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.comparison import ComparisonQuery
from treehammer.analysis.comparison.comparison_notes import control_notes
from treehammer.analysis.comparison.series_sides import label_series, split_sides
from treehammer.analysis.comparison.verdict_text import format_verdict
from treehammer.analysis.statistics.job_pairs import (
    DIRTY_TREE,
    EARLIER_ATTEMPT,
    UNPAIRED_EXECUTION,
    MeanWithInterval,
    check_controls,
    collect_job_values,
    drop_dirty,
    find_distinguishing_names,
    group_executions,
    lookup_value,
    pair_jobs,
)
from treehammer.analysis.statistics.sample import (
    Sample,
    comparison_key,
    count_hosts,
    find_axis_value,
    find_varying_axes,
    matches_value,
    natural_sort_key,
    possible_values,
    release_key,
)
from treehammer.analysis.statistics.verdict import THROUGH_BASE
from treehammer.collectors.job_spec import CONTROL
from treehammer.collectors.record.outcome import Outcome
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.model import Scalar, Variant
from treehammer.sql.core.evidence import ControlCheck


@pytest.mark.parametrize(
    "change",
    [
        {"test_hash": "other"},
        {"dataset_hash": "other"},
        {"site": "other"},
        {"door": "other"},
        {"instrument_version": 2},
        {"variant": Variant((("root", "6.38.00"), ("cache_mb", 3.0)))},
    ],
)
def test_comparison_key_contains_other_axes(change: dict[str, object]) -> None:
    sample = SimulatedCampaign().samples()[0]
    assert comparison_key(sample, "root") != comparison_key(replace(sample, **change), "root")  # type: ignore[arg-type]


def test_comparison_key_omits_the_compared_axis_names_and_hosts() -> None:
    sample, other_release, *_ = SimulatedCampaign().samples()
    assert comparison_key(sample, "root") == comparison_key(other_release, "root")
    assert comparison_key(sample, "cache_mb") != comparison_key(other_release, "cache_mb")
    for name in ("host", "test_name", "job_id", "campaign_id", "dirty"):
        other = replace(sample, **{name: "other"})  # type: ignore[arg-type]
        assert comparison_key(sample, "root") == comparison_key(other, "root")


def test_sites_and_doors_are_pooled_protocols_are_not() -> None:
    sample = SimulatedCampaign().samples()[0]
    other = replace(sample, site="x", storage_site="x", door="y")
    assert release_key(sample, "root") == release_key(other, "root")
    secure = replace(sample, door_protocol="https")
    assert release_key(sample, "root") != release_key(secure, "root")


def test_varying_axes_have_their_values() -> None:
    samples = SimulatedCampaign(branches=(1.0, 0.02), cache_mb=(0.0, 30.0)).samples()
    varying = find_varying_axes(sample.variant for sample in samples)
    assert set(varying) == {"root", "branches", "cache_mb"}
    assert varying["branches"] == [0.02, 1.0]
    near = samples[0].variant
    distant = replace(near, values=(*near.values, ("latency_ms", 20)))
    assert find_varying_axes([near, distant]) == {"latency_ms": [20]}


@pytest.mark.parametrize(
    "ordered",
    [
        ["0.04", "0.2", "0.4", "1"],
        ["fraction=0.04", "fraction=0.2", "fraction=0.4", "fraction=1", "fraction=10"],
        ["x=-1.5", "x=-0.5", "x=1e-05", "x=0.5", "x=1.25", "x=1.5", "x=10.5"],
        ["x=1.25 root=6.9", "x=1.25 root=6.10", "x=1.5 root=6.9"],
        ["branches=0.5% x=1", "branches=2% x=1", "branches=2% x=1.25", "branches=100% x=0"],
        ["0.04 · 30", "0.2 · 4", "0.2 · 30"],
        ["9.25 %", "9.5 %", "10.0 %"],
        ["6.9", "6.10", "6.38.00", "6.40.00", "v5.6.9", "v5.6.10"],
        ["server_version=5.9", "server_version=5.10"],
        ["0.9.1", "0.10.1", "1.0"],
        ["node-2.example", "node-10.example"],
        ["9" * 300, "text " + "9" * 5000],
    ],
)
def test_decimals_sort_as_numbers_and_versions_by_parts(ordered: list[str]) -> None:
    shuffled = random.Random(1).sample(ordered, len(ordered))
    assert sorted(shuffled, key=natural_sort_key) == ordered


def test_axis_values_parse_numbers_versions_and_booleans() -> None:
    samples = SimulatedCampaign(roots=("6.4", "6.40"), cache_mb=(0.0, 30.0)).samples()
    assert find_axis_value(samples, "cache_mb", "30") == 30.0
    assert find_axis_value(samples, "root", "6.40") == "6.40"
    with pytest.raises(NothingToDoError, match=r"6\.4, 6\.40"):
        find_axis_value(samples, "root", "6.400")
    samples.append(replace(samples[0], variant=Variant((("prefetch", True),))))
    assert find_axis_value(samples, "prefetch", "true") is True


def test_unknown_axis_lists_known_axes() -> None:
    with pytest.raises(ConfigError, match="cache_mb") as caught:
        find_axis_value(SimulatedCampaign().samples(), "cach_mb", "0")
    assert caught.value.where == "--axis"


@pytest.mark.parametrize("text", ["1", "0.5", "1e3", "-2.0", "True", "6.40", "6.40.00", "Muon_*"])
def test_axis_value_candidates_of_text(text: str) -> None:
    values: list[Scalar] = [True, False, 1, 0.5, 1000, -2, 6.4, text, "other", 7]
    candidates = [*possible_values(text)]
    assert candidates[0] == text
    assert all(matches_value(text, value) for value in candidates)
    assert {repr(v) for v in values if matches_value(text, v)} <= {repr(v) for v in candidates}


def test_storage_sites_are_series_of_their_own_and_an_axis() -> None:
    near = SimulatedCampaign().samples()[0]
    near = replace(near, storage_site=near.site)
    far, farther = (
        replace(near, storage_site=name, door=f"{name}-door") for name in ("FAR", "FARTHER")
    )
    assert len({release_key(sample, "root") for sample in (near, far, farther)}) == 3
    # Local and remote reading are compared through doors of one protocol.
    assert len({comparison_key(sample, "storage_site") for sample in (near, far, farther)}) == 1
    assert far.axis_value("storage_site") == "FAR"
    labels = {*label_series([near, far], "root").values()}
    assert labels == {"ttree-read", "ttree-read storage=FAR"}


def test_pods_of_one_machine_count_as_one_host() -> None:
    rows = [{"host": f"pod-{number}", "machine": f"wn{number % 2}"} for number in range(6)]
    assert count_hosts([*rows, {"host": "wn7"}, {"host": None, "machine": None}]) == 3


CPU = "cpu_per_event_s"


def sides(
    *values: tuple[float | None, float | None], attempt: int = 1
) -> tuple[list[Sample], list[Sample]]:
    """Build a job whose rounds have these values on sides A and B; None omits an execution."""
    template = SimulatedCampaign(jobs=1).samples()[0]
    job_sides: tuple[list[Sample], list[Sample]] = ([], [])
    for round_, pair in enumerate(values, 1):
        for side, value in zip(job_sides, pair, strict=True):
            if value is not None:
                side.append(replace(template, round=round_, attempt=attempt, metrics={CPU: value}))
    return job_sides


def test_effect_is_median_log_ratio_over_rounds() -> None:
    (pair,), left_out = pair_jobs(*sides((1.0, 1.1), (2.0, 2.0), (1.0, 9.0)), CPU)
    assert pair.d == pytest.approx(math.log(1.1))
    assert pair.rounds == 3
    assert (pair.a, pair.b) == pytest.approx((4 / 3, 12.1 / 3))
    assert not left_out


def test_incomplete_rounds_are_excluded_and_counted() -> None:
    (pair,), left_out = pair_jobs(*sides((1.0, 1.5), (1.0, None), (None, 3.0)), CPU)
    assert pair.rounds == 1
    assert left_out == {UNPAIRED_EXECUTION: 2}


def test_last_complete_attempt_counts() -> None:
    first, second = sides((1.0, 5.0), attempt=1), sides((1.0, 2.0), attempt=2)
    (pair,), left_out = pair_jobs(first[0] + second[0], first[1] + second[1], CPU)
    assert pair.d == pytest.approx(math.log(2))
    assert left_out == {EARLIER_ATTEMPT: 2}


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"failure_class": "open"}, "failed: open"),
        ({"plausible": False}, "implausible"),
        ({"metrics": {}}, f"no {CPU}"),
        ({"metrics": {CPU: 0.0}}, f"impossible {CPU}"),
    ],
)
def test_unusable_halves_are_counted_by_reason(change: dict[str, object], reason: str) -> None:
    a, b = sides((1.0, 1.0), (1.0, 2.0))
    b[0] = replace(b[0], **change)  # type: ignore[arg-type]
    (pair,), left_out = pair_jobs(a, b, CPU)
    assert pair.rounds == 1
    assert left_out == {reason: 1, UNPAIRED_EXECUTION: 1}


def test_clean_executions_replace_dirty_ones() -> None:
    a, b = sides((1.0, 1.0), (1.0, 2.0))
    dirty = replace(a[0], dirty=True)
    kept_a, kept_b, left_out = drop_dirty([dirty, a[1]], b)
    assert (kept_a, kept_b, left_out) == ([a[1]], b, {DIRTY_TREE: 1})
    assert drop_dirty([dirty], [dirty]) == ([dirty], [dirty], {}), "there are no clean ones"


def test_unpaired_value_is_from_last_attempt() -> None:
    early, _ = sides((9.0, None), attempt=1)
    late, _ = sides((1.0, None), (3.0, None), (8.0, None), attempt=2)
    (value,), left_out = collect_job_values(early + late, CPU)
    assert (value.value, value.mean) == (3.0, 4.0)
    assert left_out == {EARLIER_ATTEMPT: 1}


@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3)), min_size=1, max_size=5))
def test_swapping_sides_changes_only_the_sign(values: list[tuple[float, float]]) -> None:
    a, b = sides(*values)
    (forward,), _ = pair_jobs(a, b, CPU)
    (backward,), _ = pair_jobs(b, a, CPU)
    assert backward.d == pytest.approx(-forward.d)
    assert (backward.a, backward.b) == (forward.b, forward.a)


CPU_METRIC, WALL = "cpu_per_event_s", "wall_per_event_s"


def make_sample(round_: int, value: float, ratio: float | None, kind: str = "timed") -> Sample:
    template = SimulatedCampaign(jobs=1).samples()[0]
    ratios = {} if ratio is None else {CPU_METRIC: ratio}
    return replace(
        template, kind=kind, round=round_, metrics={CPU_METRIC: value}, launch_ratios=ratios
    )


def test_effect_is_mean_of_recorded_ratios() -> None:
    a = [replace(make_sample(round_, 1.0, None), loop_cpu_s=0.5) for round_ in (1, 2, 3)]
    b = [make_sample(round_, 1.5, ratio) for round_, ratio in ((1, 0.01), (2, 0.04), (3, None))]
    (pair,), left_out = pair_jobs(a, b, CPU_METRIC)
    assert pair.d == pytest.approx(0.025)
    assert pair.rounds == 2
    assert (pair.a, pair.b, pair.cpu_s) == (1.0, 1.5, 1.0)  # as measured, whatever the effect
    assert pair_jobs(b, a, CPU_METRIC)[0][0].d == pytest.approx(-0.025)
    assert not left_out


def test_short_launches_are_given_a_remedy_that_works_for_them() -> None:
    """Passes and events change nothing in paired mode, whose launches read on by themselves."""
    samples = [
        replace(sample, loop_cpu_s=0.746, launch_ratios={CPU_METRIC: 0.3, WALL: 0.3})
        for sample in SimulatedCampaign(rounds=1).samples()
        if sample.kind == "timed"
    ]
    comparison = ask(samples)
    (row,) = rows(comparison)
    row_evidence = evidence(row)
    assert row_evidence.why.startswith("0.74 s of CPU per side in a launch, at least 0.75 s needed")
    assert row_evidence.remedy == "raise wall_limit_s, which ended the launches early"
    (note,) = [note for note in comparison.notes if note.startswith("Too little read")]
    assert note.endswith(f"enters no verdict; {row_evidence.remedy}.")


def make_three_values() -> list[Sample]:
    """Executions of a job that launches B and C, each in three rounds, with the base A."""
    launches = [("B", 0.05), ("C", 0.02), ("C", 0.03), ("B", 0.06), ("B", 0.04), ("C", 0.016)]
    samples = []
    for round_, (value, ratio) in enumerate(launches, 1):
        halves = (make_sample(round_, 1.0, None), make_sample(round_, math.exp(ratio), ratio))
        for name, half in zip(("A", value), halves, strict=True):
            samples.append(replace(half, variant=Variant((("root", name),))))
    return samples


def test_launches_of_another_value_are_complete() -> None:
    (series,) = split_sides(make_three_values(), "root", "A", "C")
    (pair,), left_out = pair_jobs(series.a, series.b, CPU_METRIC, series.elsewhere)
    assert not left_out
    assert pair.launches == pytest.approx((0.02, 0.03, 0.016))
    assert not pair.through_base


def test_values_without_a_common_launch_are_compared_through_their_base() -> None:
    samples = make_three_values()
    (series,) = split_sides(samples, "root", "B", "C")
    (pair,), left_out = pair_jobs(series.a, series.b, CPU_METRIC, series.elsewhere)
    assert not left_out
    assert pair.through_base
    assert pair.launches == pytest.approx((0.02 - 0.05, 0.03 - 0.06, 0.016 - 0.04))
    assert pair.d == pytest.approx(-0.028)
    comparison = ask(samples, ComparisonQuery("root", "B", "C"))
    (row,) = rows(comparison)
    assert evidence(row).test == f"t over launches, {THROUGH_BASE}"
    assert THROUGH_BASE in format_verdict(row)
    assert any("Through the base" in note for note in comparison.notes)
    assert not any("Left out" in note or "Unpaired" in note for note in comparison.notes)


def test_controls_of_compared_jobs_are_summarized() -> None:
    controls = [make_sample(1, 1.0, ratio, CONTROL) for ratio in (-0.01, 0.0, 0.02, 0.01)]
    unrelated = [
        make_sample(2, 1.0, 0.5),
        make_sample(3, 1.0, None, CONTROL),
        replace(make_sample(4, 1.0, 0.9, CONTROL), job_id="another"),
        replace(make_sample(5, 1.0, 0.9, CONTROL), plausible=False),
    ]
    (check,) = check_controls([*controls, *unrelated], {controls[0].job_id}, "root")
    base = controls[0].variant["root"]
    assert (check.metric, check.base, check.launches) == (CPU_METRIC, base, 4)
    assert check.mean == pytest.approx(0.005)
    assert check.sd == pytest.approx(0.01291, rel=1e-3)
    assert (check.low or 0) < 0 < check.mean
    assert not check.is_off


@pytest.mark.parametrize(
    "ratios, off",
    [
        ([0.03, 0.031, 0.029], True),
        ([-0.03, -0.031, -0.029], True),
        ([0.005, 0.0051, 0.0049], False),  # below the bound
        ([0.2, -0.1, 0.01], False),  # compatible with 0
        ([0.3], False),
    ],
)
def test_controls_are_off_beyond_interval_and_bound(ratios: list[float], off: bool) -> None:
    samples = [make_sample(1, 1.0, ratio, CONTROL) for ratio in ratios]
    (check,) = check_controls(samples, {samples[0].job_id}, "root")
    assert check.is_off is off
    (note,) = control_notes([check])
    assert ("Controls are off" in note) is off


def test_note_on_controls_names_launches_and_spread() -> None:
    check = ControlCheck(WALL, "6.38.00", 6, -0.004, 0.0123, -0.02, 0.01)
    assert [*control_notes([check])] == [
        "Controls are in order: wall −0.4 % in 6 A/A launches (standard deviation 1.2 %)."
    ]


@pytest.mark.parametrize(("shift", "verdict"), [(0.05, "control is off"), (0.0, "slower")])
def test_nothing_is_claimed_while_equal_launches_differ(shift: float, verdict: str) -> None:
    ratios = {"timed": 0.1, CONTROL: shift}
    simulated = SimulatedCampaign(rounds=1).samples()
    jobs = sorted({sample.job_id for sample in simulated})
    other = simulated[-1].variant.values
    samples = [
        replace(
            sample,
            kind=kind,
            round=10 * sample.round + number,
            launch_ratios={CPU_METRIC: ratio + 0.001 * jobs.index(sample.job_id)}
            if kind == CONTROL or sample.variant.values == other
            else {},
        )
        for sample in simulated
        if sample.kind == "timed"
        for number, (kind, ratio) in enumerate(ratios.items())
        if kind == "timed" or dict(sample.variant.values)["root"] == "6.38.00"
    ]
    (row,) = rows(ask(samples))
    assert row.verdict == verdict
    assert (row.jobs_needed, row.effect is None) == (None, False)


def test_launches_without_pages_of_their_own_are_named() -> None:
    samples = [make_sample(1, 1.0, ratio, CONTROL) for ratio in (0.001, 0.002, -0.001)]
    samples[1] = replace(samples[1], shares_text=True)
    (check,) = check_controls(samples, {samples[0].job_id}, "root")
    assert check.sharing == 1
    _, note = control_notes([check])
    assert note.startswith("In 1 of 3 A/A launches programs ran from physical pages that all")


def test_cpu_is_summed_over_all_passes() -> None:
    row = {
        "variant": "{}",
        "attempt": 1,
        "round": 1,
        "instrument_version": 1,
        "dirty": False,
        "plausible": True,
        "loop_cpu_s": 0.5,
        "passes_counted": 4,
        "segment_cpu_log_ratio": 0.01,
        "own_text_bytes": 0,
    }
    assert Sample.from_row(row).loop_cpu_s == 2.0
    assert Sample.from_row(row).launch_ratios == {CPU_METRIC: 0.01}
    assert Sample.from_row(row).shares_text
    assert not Sample.from_row({**row, "own_text_bytes": None}).shares_text


GOOD = {
    "kind": "timed",
    "failure_class": None,
    "failure_kind": None,
    "plausible": True,
    "host": "one",
    "attempt": 1,
    "site": "A",
    "door": "root",
    "variant": "{}",
}


def row(job: str, rate: float | None, **more: Any) -> dict[str, Any]:
    return {**GOOD, "job_id": job, "rate": rate, **more}


def test_summary_counts_jobs_as_units() -> None:
    rows = [row("a", 10.0), row("a", 12.0), row("a", 14.0), row("c", 16.0)]
    rows.append(row("b", 14.0, host="pod", machine="one"))
    (group,) = group_executions(rows, lambda _: ())
    assert group.job_values("rate") == {"one": [12.0, 14.0, 16.0]}
    ends = scipy.stats.t.interval(0.95, 2, loc=14, scale=2 / math.sqrt(3))
    assert [*vars(group.mean_over_jobs("rate")).values()] == pytest.approx([14, *ends])
    assert vars(group.mean_and_rms("rate"))["n"] == 5


def test_jobs_of_one_host_or_start_are_no_independent_jobs_of_a_mean() -> None:
    rates = {"a": 4e-14, "b": 5e-14, "c": 6e-14}
    hosts = [row(host, rate, host=host) for host, rate in rates.items()]
    rows = [{**of_host, "job_id": f"{of_host['host']}{n}"} for of_host in hosts for n in range(4)]
    of_jobs, of_hosts = (group_executions(group, lambda _: ())[0] for group in (rows, hosts))
    mean, ratio = of_jobs.mean_over_jobs("rate"), of_jobs.ratio_over_jobs(of_jobs, "rate")
    assert mean == of_hosts.mean_over_jobs("rate")
    assert ratio == of_hosts.ratio_over_jobs(of_hosts, "rate")
    starts = [{**job, "host": job["job_id"], "start_planned_us": job["rate"]} for job in rows]
    (of_starts,) = group_executions(starts, lambda _: ())
    assert of_starts.mean_over_jobs("rate") == mean
    # Four jobs of a and one of b and c each; without a host, the mean is 5.5, 4.4 or 4.2.
    (uneven,) = group_executions([*rows[:5], rows[8]], lambda _: ())
    low = vars(uneven.mean_over_jobs("rate"))["low"] * 1e14
    assert low == pytest.approx(4.5 - 4.302653 * math.sqrt(2 / 3 * (0.8**2 + 0.3**2 + 0.5**2)))


def test_unknown_hosts_are_not_counted() -> None:
    rows = [row("a", 1.0), row("b", 1.0, host=None), row("c", 1.0, host=None)]
    (group,) = group_executions(rows, lambda _: ())
    assert (group.jobs, group.hosts) == (3, 1)
    assert group.job_values("rate") == {"one": [1.0], "b": [1.0], "c": [1.0]}


def test_last_attempt_of_a_job_counts() -> None:
    rows = [row("a", 1.0), row("a", 3.0, attempt=2), row("a", None, attempt=3)]
    (group,) = group_executions(rows, lambda _: ())
    assert group.job_values("rate") == {"one": [3.0]}


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0]])
def test_values_without_spread_have_no_interval(values: list[float]) -> None:
    (group,) = group_executions([row(str(n), v) for n, v in enumerate(values)], lambda _: ())
    assert group.mean_over_jobs("rate") == MeanWithInterval(5.0)
    assert group_executions([row("a", None)], lambda _: ())[0].mean_over_jobs("rate") is None


def test_unusable_measurements_are_counted_separately() -> None:
    rows = [
        row("a", 1.0),
        row("b", 99.0, failure_class="read", failure_kind="entry"),
        row("c", 99.0, plausible=False),
        row("d", None, failure_class="software-setup", failure_kind="not-supported"),
        row("e", None, kind="checksum"),
    ]
    (group,) = group_executions(rows, lambda _: ())
    assert group.job_values("rate") == {"one": [1.0]}
    assert dict(group.outcomes) == dict.fromkeys(Outcome, 1)


def test_ratio_is_unpaired_ratio_of_geometric_means() -> None:
    rates = {"A": (7.2, 8.0, 8.8), "B": (3.6, 4.0, 4.4, 4.5)}
    rows = [row(f"{side}{n}", rate, site=side) for side in rates
            for n, rate in enumerate(rates[side])]  # fmt: skip
    b, a = group_executions(rows, lambda execution: (execution["site"] == "A",))
    ratio = a.ratio_over_jobs(b, "rate")
    assert ratio is not None
    logs = [[*map(math.log, of_side)] for of_side in rates.values()]
    welch = scipy.stats.ttest_ind(*logs, equal_var=False).confidence_interval()
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(welch.low), math.exp(welch.high)))
    alone = group_executions([row("x", 2.0)], lambda _: ())[0]
    ratio = a.ratio_over_jobs(alone, "rate")
    assert ratio is not None
    assert ratio == MeanWithInterval(ratio.mean)
    assert ratio.mean == pytest.approx((8 * 0.99 ** (1 / 3)) / 2)
    assert a.ratio_over_jobs(group_executions([row("x", 0.0)], lambda _: ())[0], "rate") is None


def test_groups_are_sorted_and_mixtures_detected() -> None:
    variants = ['{"access":"direct","cache_mb":30}', '{"access":"direct","cache_mb":4}']
    rows = [row(str(n), 1.0, variant=text) for n, text in enumerate(variants)]
    keys = [
        group.key
        for group in group_executions(
            rows, lambda execution: (lookup_value(execution, "cache_mb"),)
        )
    ]
    assert keys == [(4,), (30,)]
    assert find_distinguishing_names(rows) == ("cache_mb",)
    elsewhere = row("x", 1.0, site="B", variant=variants[0])
    assert find_distinguishing_names([*rows, elsewhere]) == ("site", "cache_mb")


@pytest.mark.parametrize(
    "figure, shown",
    [
        ((24.2468, 22.91, 25.58), "24.2 ± 1.3"),
        ((17627.4, 16000.0, 19200.0), "17,627 ± 1,600"),
        ((17627.4, None, None), "17,627"),
        ((0.98765, None, None), "0.9877"),
        ((-1.0, -2.5, 0.5), "−1.0 ± 1.5"),
        ((2.0, 1.9999, 2.0001), "2 ± 0.0001"),
    ],
)
def test_figures_are_rounded_to_significant_digits(
    figure: tuple[float, float | None, float | None], shown: str
) -> None:
    assert verdict_text.format_mean(*figure) == shown


def test_ratios_are_shown_with_interval() -> None:
    assert verdict_text.format_ratio(1.00312, 1.0021, 1.0041) == "1.0031 (1.0021 … 1.0041)"
    assert verdict_text.format_ratio(0.58123, None, None) == "0.581"
    assert verdict_text.format_ratio(0.00212, 0.00198, 0.00234) == "0.00212 (0.00198 … 0.00234)"


def test_storage_site_separates_groups_only_where_it_differs() -> None:
    names = ("site", "storage_site")
    local = [row("a", 1.0, storage_site="A"), row("b", 1.0, site="B", storage_site="B")]
    assert find_distinguishing_names(local, names) == ("site",)
    remote = row("c", 1.0, storage_site="B")
    assert find_distinguishing_names([*local, remote], names) == names
    tests = [{**local[0], "test_name": name, "test_hash": name} for name in "ab"]
    assert find_distinguishing_names(tests, ("test_name", "test_hash")) == ("test_name",)


def test_failure_that_a_later_attempt_made_up_for_is_not_counted() -> None:
    bad = {"failure_class": "read", "round": 1, "position": 1}
    rows = [
        row("a", None, **bad),
        row("a", 2.0, attempt=2, round=1, position=1),
        row("b", None, attempt=2, **bad),
        row("c", None, **{**bad, "failure_class": "evicted"}),
    ]
    (group,) = group_executions(rows, lambda _: ())
    assert dict(group.outcomes) == {Outcome.GOOD: 1, Outcome.FAILED: 1}
