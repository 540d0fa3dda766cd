"""Comparisons of bad data: each kind has a defined verdict, reason and remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_campaign import THREE, A, B, SimulatedCampaign, ask, evidence, is_b

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.comparison import Comparison
from treehammer.analysis.statistics.sample import HEADLINE_METRICS, Sample
from treehammer.analysis.statistics.verdict import (
    MIN_HOSTS,
    MIN_JOBS,
    SERIES_SCOPES,
    SITE_SCOPE,
    Verdict,
)
from treehammer.collectors.job_spec import MIN_CPU_S
from treehammer.errors import NothingToDoError

Edit = Callable[[list[Sample]], list[Sample]]


def edited(which: Callable[[Sample], bool], **changes: Any) -> Edit:
    return lambda samples: [replace(s, **changes) if which(s) else s for s in samples]


def kept(which: Callable[[Sample], bool]) -> Edit:
    return lambda samples: [s for s in samples if which(s)]


def build(which: Callable[[Sample], bool], **facts: str) -> Edit:
    return lambda samples: [
        replace(s, build={**s.build, **facts}) if which(s) else s for s in samples
    ]


def spreadless(samples: list[Sample]) -> list[Sample]:
    return [
        replace(s, metrics=dict.fromkeys(HEADLINE_METRICS, 1.1e-3 if is_b(s) else 1e-3))
        for s in samples
    ]


def even(sample: Sample) -> bool:
    return sample.job_id.endswith(("0", "2", "4", "6", "8"))


SLOWED = SimulatedCampaign(effect=0.2)


@dataclass(frozen=True)
class Case:
    """One kind of bad data with the expected verdict, reason and remedy."""

    edit: Edit
    verdict: Verdict
    why: str
    remedy: str
    campaign: SimulatedCampaign = SLOWED


CASES = {
    "no job holds both sides": Case(
        kept(lambda s: is_b(s) != even(s)), Verdict.NOT_ENOUGH, "no host ran both sides", "bundle",
        replace(SLOWED, effect=0.0),
    ),
    "no host is known": Case(
        edited(lambda _: True, host=""), Verdict.NOT_ENOUGH, "8 jobs on no known host", "more repeats"
    ),
    "two jobs on one host": Case(
        lambda s: s,
        Verdict.NOT_ENOUGH,
        "2 jobs on one host; needed are 3",
        "-S repeats=6",
        SimulatedCampaign(jobs=2, hosts=1),
    ),
    "one job": Case(
        lambda s: s, Verdict.NOT_ENOUGH, "1 job on one host", "-S repeats=6", SimulatedCampaign(jobs=1)
    ),
    "zero variance": Case(spreadless, Verdict.NOT_ENOUGH, "zero variance", "copied measurements"),
    "all failed": Case(
        edited(lambda _: True, failure_class="open", metrics={}),
        Verdict.FAILED,
        "both sides (failed: open 32)",
        "treehammer status",
    ),
    "one side failed": Case(
        edited(is_b, failure_class="payload", metrics={}),
        Verdict.FAILED,
        "side B (failed: payload 16)",
        "treehammer status",
    ),
    "all implausible": Case(
        edited(lambda _: True, plausible=False), Verdict.FAILED, "implausible 32", "run the test"
    ),
    "another compiler": Case(
        build(is_b, root_compiler="clang18"), Verdict.BUILD_DIFFERS, "other compiler", "made alike"
    ),
    "two builds on one side": Case(
        build(lambda s: is_b(s) and even(s), root_commit="another"),
        Verdict.BUILD_DIFFERS,
        "other commit within side B",
        "--where",
    ),
    "other values": Case(
        lambda s: s,
        Verdict.VALUES_DIFFER,
        "value checksums of both sides differ",
        "value_checksum",
        SimulatedCampaign(checksum={A: "1" * 64, B: "2" * 64}),
    ),
    "other events": Case(
        lambda s: [replace(x, events_read=5 + is_b(x)) for x in s], Verdict.VALUES_DIFFER, "events", "events_read"
    ),
    "side B never ran": Case(
        lambda s: [x for x in s if not is_b(x)], Verdict.ONLY_IN_A, "nothing was run", "run the test for B"
    ),
    "side A never ran": Case(kept(is_b), Verdict.ONLY_IN_B, "nothing was run", "run the test for A"),
    "only first passes": Case(
        edited(lambda _: True, metrics={"cpu_per_event_s": math.nan, "wall_per_event_s": math.nan}),
        Verdict.NOT_ENOUGH,
        "no cpu_per_event_s 32",
        "at least 2 passes",
    ),
    **{
        f"times of {value} s": Case(
            edited(is_b, metrics=dict.fromkeys(HEADLINE_METRICS, value)),
            Verdict.NOT_ENOUGH,
            "side B (impossible cpu_per_event_s 16)",
            "have the payload report",
        )
        for value in (math.inf, 0.0, -1e-3, 1e300, 5e-324)
    },
    "a short loop": Case(
        edited(is_b, loop_cpu_s=0.5), Verdict.TOO_LITTLE, "1 s of CPU per side", "more passes",
        SimulatedCampaign(bundled=False),
    ),
    **{
        f"a loop of {seconds} s": Case(
            edited(lambda _: True, loop_cpu_s=seconds),
            Verdict.TOO_LITTLE,
            "was not measured",
            "loop_cpu_s",
        )
        for seconds in (math.nan, math.inf, -3.0)
    },
    "noise": Case(
        lambda s: s,
        Verdict.UNDECIDED,
        "",
        "new campaign",
        SimulatedCampaign(execution_noise=0.3, seed=4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_bad_data_have_defined_verdict(case: Case) -> None:
    comparison = ask(case.edit(case.campaign.samples()))
    for row in comparison.of_series:
        assert row.verdict == case.verdict
        row_evidence = evidence(row)
        assert case.why.replace("cpu_per_event_s", row.metric) in row_evidence.why
        assert case.remedy in row_evidence.remedy
    assert not comparison.regressed
    # Notes are printed below the table for every verdict.
    assert any(case.verdict.lower() in note.lower() for note in comparison.notes)


def test_absent_side_at_one_site_keeps_other_verdicts() -> None:
    samples = SimulatedCampaign(sites=THREE, effect=0.06).samples()
    comparison = ask([s for s in samples if not (s.site == "T2_B" and is_b(s))])
    verdicts = {row.site: row.verdict for row in comparison.of_series}
    assert verdicts == {"T2_A": "slower", "T2_B": "only in A", "T2_C": "slower"}
    for row in comparison.over_sites:
        assert evidence(row).sites == ("T2_A", "T2_C")
        assert evidence(row).why == "outside: 1 × only in A"


def test_sites_with_one_job_each_give_no_release_verdict() -> None:
    comparison = ask(SimulatedCampaign(sites=THREE, jobs=1, effect=0.5).samples())
    assert {row.verdict for row in comparison.verdicts} == {Verdict.NOT_ENOUGH}


def test_series_without_values_is_listed() -> None:
    samples = SimulatedCampaign(branches=(1.0, 0.5)).samples()
    silent = [replace(s, metrics={}) if s.axis_value("branches") == 0.5 else s for s in samples]
    verdicts = {(row.label, row.verdict) for row in ask(silent).of_series}
    assert verdicts == {("branches=50%", "not enough data"), ("branches=100%", "same")}


def test_failed_execution_does_not_define_build() -> None:
    samples = SimulatedCampaign(effect=0.06).samples()
    other = build(lambda s: s.job_id.endswith("-1"), root_compiler="clang18")(samples)
    failed = edited(lambda s: s.job_id.endswith("-1"), failure_class="data-check")(other)
    assert {row.verdict for row in ask(failed).of_series} == {"slower"}


def test_extreme_effects_are_formatted() -> None:
    row = ask(SimulatedCampaign(effect=5.0, jobs=2, execution_noise=1.0).samples()).verdicts[0]
    interval = verdict_text.format_interval(replace(row, low=-2000.0, high=2000.0))
    assert interval == "<−99.99 … >+999,900 %"
    changes = {0.03: "+3.0 %", -7.0: "−99.9 %", -8.0: "−99.97 %"}
    assert {effect: verdict_text.format_effect(effect) for effect in changes} == changes
    assert verdict_text.describe_change(-20.0) == ">99.99 % faster"


VALUES = st.one_of(
    st.floats(1e-4, 1e-2),
    st.floats(),
    st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 1e308, 1e-3]),
)
SPOILAGES: dict[str, st.SearchStrategy[Any]] = {
    "kind": st.just("checksum"),
    "job_id": st.sampled_from(["simulated-s0-1.0-30.0-None-1", "another"]),
    "attempt": st.integers(1, 3),
    "round": st.integers(1, 3),
    "host": st.sampled_from(["", "h1", "h2", "h3"]),
    "failure_class": st.sampled_from(["open", "lost"]),
    "plausible": st.just(False),
    "dirty": st.just(True),
    "loop_cpu_s": st.sampled_from([None, math.nan, math.inf, -1.0, 0.0, 1e308]),
    "value_checksum": st.sampled_from(["1" * 64, "2" * 64]),
    "metrics": st.dictionaries(st.sampled_from(HEADLINE_METRICS), VALUES),
    "build": st.sampled_from([{}, {"root_compiler": "gcc13"}, {"root_commit": "x"}]),
}


@st.composite
def spoilt(draw: st.DrawFn) -> list[Sample]:
    """Draw a campaign in which every n-th execution is lost, duplicated or changed."""
    samples = SimulatedCampaign(
        sites=[f"s{number}" for number in range(draw(st.integers(1, 3)))],
        jobs=draw(st.integers(1, 9)),
        hosts=draw(st.integers(1, 4)),
        rounds=draw(st.integers(1, 2)),
        effect=draw(st.floats(-0.3, 0.3)),
        execution_noise=draw(st.floats(0, 0.5)),
        loop_s=draw(st.sampled_from([0.5, 10.0, 10.0])),
        bundled=draw(st.booleans()),
    ).samples()
    for name in draw(st.lists(st.sampled_from(["lost", "doubled", *SPOILAGES]), max_size=5)):
        step = draw(st.integers(1, 5))
        first = draw(st.integers(0, step))
        if name == "lost":
            del samples[first::step]
        elif name == "doubled":
            samples += samples[first::step]
        else:
            value = draw(SPOILAGES[name])
            for place in range(first, len(samples), step):
                sample = samples[place]
                changed: Any = {**sample.build, **value} if name == "build" else value
                changes: dict[str, Any] = {name: changed}
                samples[place] = replace(sample, **changes)
    return samples


def well_formed(comparison: Comparison) -> None:
    for row in comparison.verdicts:
        row_evidence = evidence(row)
        json.loads(row.evidence.to_json(), parse_constant=pytest.fail)
        numbers = (row.effect, row.low, row.high)
        assert all(number is None or math.isfinite(number) for number in numbers)
        if row.low is not None and row.high is not None and row.effect is not None:
            assert row.low <= row.effect <= row.high
        json.dumps(verdict_text.flatten_verdict(row), allow_nan=False)
        for show in (verdict_text.format_verdict, verdict_text.format_interval):
            assert "nan" not in show(row)
        if row.verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME):
            assert row.jobs >= MIN_JOBS
            assert row.hosts >= (MIN_HOSTS if row.scope == SITE_SCOPE else 1)
            assert row_evidence.build == ()
            if row.scope in SERIES_SCOPES:
                assert (row_evidence.cpu_s or 0) >= MIN_CPU_S
                assert row_evidence.same_data != "values differ"
            else:
                assert len(row_evidence.sites) > 1
        elif row.scope in SERIES_SCOPES:
            assert row_evidence.remedy
    for pair in comparison.pairs:
        assert all(math.isfinite(number) for number in (pair.log_ratio, pair.a_value, pair.b_value))


@given(spoilt(), st.randoms(use_true_random=False))
def test_comparison_accepts_arbitrary_samples(samples: list[Sample], order: Any) -> None:
    try:
        comparison = ask(samples)
    except NothingToDoError:
        return
    well_formed(comparison)
    order.shuffle(samples)
    assert ask(samples) == comparison
