"""Questions of comparisons: axes, identity, evidence and both sides."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from statistics import fmean

import pytest
from comparison_questions import AT_T2_A, THREE, A, B, ask, changed, evidence, is_b, rows
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.comparison import (
    ComparisonQuery,
)
from treehammer.analysis.statistics.sample import HEADLINE_METRICS, Sample
from treehammer.analysis.statistics.verdict import (
    SERIES_SCOPES,
    Verdict,
)
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.read.query_model import Selection


def test_layouts_with_equal_value_checksums_are_compared() -> None:
    def read(dataset: str, effect: float, content: str) -> list[Sample]:
        made = SimulatedCampaign(
            name=dataset, roots=(A,), jobs=20, job_noise=0.02, effect=effect, checksum={A: content}
        )
        return changed(
            made.samples(), lambda _: True, dataset=dataset, dataset_hash=f"hash of {dataset}"
        )

    question = ComparisonQuery("dataset", "set", "set-by-entry")
    slower = read("set", 0.0, "1" * 64), read("set-by-entry", 0.1, "1" * 64)
    (row,) = rows(ask([*slower[0], *slower[1]], question))
    assert (row.a, row.b) == ("set", "set-by-entry")
    assert evidence(row).same_data == "same data proven"
    assert evidence(row).unpaired
    other = read("set-by-entry", 0.1, "2" * 64)
    found = ask([*slower[0], *other], question)
    (row,) = rows(found)
    assert row.verdict == Verdict.OTHER_CONTENT
    assert row.effect is not None
    assert not found.regressed
    assert any(note.startswith("Other content") for note in found.notes)


def test_datasets_of_one_campaign_have_labels_of_their_own() -> None:
    made = [
        changed(
            SimulatedCampaign(jobs=10).samples(), lambda _: True, dataset=name, dataset_hash=name
        )
        for name in ("a", "b")
    ]
    labels = {row.label for row in rows(ask([*made[0], *made[1]]))}
    assert {label.rsplit(" ", 1)[-1] for label in labels} == {"dataset=a", "dataset=b"}


def test_unpaired_jobs_are_less_certain_than_pairs() -> None:
    def width(bundled: bool) -> float:
        (row,) = rows(ask(SimulatedCampaign(bundled=bundled, jobs=10, effect=0.1).samples()))
        assert row.low is not None
        assert row.high is not None
        return row.high - row.low

    assert width(False) > 3 * width(True)


def test_sites_and_campaigns_are_comparable() -> None:
    samples = SimulatedCampaign(sites=("T2_A", "T2_B"), roots=(A,), jobs=10).samples()
    found = ask(samples, ComparisonQuery("site", "T2_A", "T2_B"))
    assert {row.site for row in found.verdicts} == {"T2_A → T2_B"}
    assert found.over_sites == []

    before = SimulatedCampaign(
        name="before", roots=(A,), jobs=10, job_noise=0.02, loop_s=10
    ).samples()
    after = SimulatedCampaign(
        name="after", roots=(A,), jobs=10, job_noise=0.02, loop_s=12, seed=2
    ).samples()
    question = ComparisonQuery("campaign", before[0].campaign_id, after[0].campaign_id)
    (row,) = rows(ask(before + after, question))
    assert row.verdict == Verdict.SLOWER
    assert row.effect == pytest.approx(math.log(1.2), abs=0.05)


def test_incompatible_samples_are_not_mixed() -> None:
    samples = SimulatedCampaign(effect=0.06).samples()
    other = [
        replace(
            s, test_hash="other", job_id=f"{s.job_id}-other", metrics=dict.fromkeys(s.metrics, 9.0)
        )
        for s in samples
    ]
    found = rows(ask(samples + other))
    assert len(found) == 2
    assert len({row.label for row in found}) == 2
    assert sorted(row.jobs for row in found) == [8, 8]


def test_different_instruments_form_separate_series() -> None:
    samples = SimulatedCampaign().samples()
    newer = [replace(s, instrument_version=2, job_id=f"{s.job_id}-2") for s in samples]
    assert len(rows(ask(samples + newer))) == 2


def test_equal_queries_have_equal_identity() -> None:
    assert ComparisonQuery("root", A, B).id == ComparisonQuery("root", A, B).id
    others = [
        ComparisonQuery("root", B, A),
        ComparisonQuery("root", A, B, delta=0.05),
        ComparisonQuery("root", A, B, selection=AT_T2_A),
        ComparisonQuery("root", A, B, where_a=AT_T2_A.conditions),
        ComparisonQuery("root", A, B, where_b=AT_T2_A.conditions),
    ]
    assert len({q.id for q in (ComparisonQuery("root", A, B), *others)}) == 6


def test_verdicts_record_the_query() -> None:
    question = ComparisonQuery(
        "root", A, B, 0.05, AT_T2_A, where_b=Selection.parse((), ["dirty=no"]).conditions
    )
    found = ask(SimulatedCampaign(sites=THREE).samples(), question)
    for row in found.verdicts:
        kept = evidence(row)
        assert (kept.campaigns, kept.where, kept.delta) == (("c1",), ("site=T2_A",), 0.05)
        assert (kept.where_a, kept.where_b) == ((), ("dirty=False",))
        title = verdict_text.comparison_title(row, {"c1": "nightly"})
        assert title == (
            f"ROOT {B} against {A}, campaign nightly and site=T2_A and B: dirty=False, ±5 %"
        )


def test_older_verdicts_have_no_recorded_query() -> None:
    (row, *_) = ask(SimulatedCampaign().samples()).verdicts
    assert verdict_text.comparison_title(row) == f"ROOT {B} against {A}, all measurements"
    told = json.loads(row.evidence)
    for name in ("campaigns", "where", "where_a", "where_b", "of_a", "of_b"):
        del told[name]
    older = replace(row, evidence=json.dumps(told))
    assert verdict_text.comparison_title(older) == f"ROOT {B} against {A}, selection not recorded"


@pytest.mark.parametrize("bundled", [True, False])
@pytest.mark.parametrize("with_launches", [True, False])
def test_sides_are_means_over_jobs_as_measured(bundled: bool, with_launches: bool) -> None:
    """Calculate both sides from the rows alone: the mean over jobs of each job's mean."""
    plan = SimulatedCampaign(bundled=bundled, rounds=3, jobs=7, hosts=3, execution_noise=0.3)
    measured = [row for row in plan.rows() if row["kind"] == "timed"]
    samples = [Sample.from_row(row) for row in measured]
    if with_launches:
        samples = [
            replace(
                sample, launch_ratios=dict.fromkeys(HEADLINE_METRICS, 0.5 + 0.01 * sample.round)
            )
            if sample.axis_value("root") == B
            else sample
            for sample in samples
        ]
    found = ask(samples)
    for row in found.of_series:
        kept = evidence(row)
        assert kept.unpaired != bundled
        for release, value in ((A, kept.a_value), (B, kept.b_value)):
            jobs: dict[str, list[float]] = {}
            for one in measured:
                if one["axis_root"] == release:
                    jobs.setdefault(one["job_id"], []).append(one[row.metric])
            assert value == pytest.approx(fmean(map(fmean, jobs.values())))
    cpu, wall = map(evidence, found.of_series)
    for name in ("a_value", "b_value"):
        assert getattr(cpu, name) <= getattr(wall, name)  # for one thread
    (note,) = [note for note in found.notes if note.startswith("Times of either side")]
    assert "mean over jobs of each job's mean" in note
    assert "need not equal the ratio" in note


def test_side_is_described_by_common_axes() -> None:
    samples = SimulatedCampaign(sites=THREE, branches=(1.0, 0.5)).samples()
    for row in ask(samples).verdicts:
        for side, of in ((A, evidence(row).of_a), (B, evidence(row).of_b)):
            mine = [s for s in samples if s.kind == "timed" and s.axis_value("root") == side]
            chosen = [
                s
                for s in mine
                if s.variant.canonical_json == of["variant"] and s.site == of.get("site", s.site)
            ]
            assert len(chosen) == 8 * 2 * (1 if row.scope in SERIES_SCOPES else 3)


def test_missing_side_is_not_an_unknown_build() -> None:
    samples = [
        s for s in SimulatedCampaign(sites=THREE).samples() if not (s.site == "T2_A" and is_b(s))
    ]
    found = ask(samples)
    assert {row.verdict for row in rows(found) if row.site == "T2_A"} == {Verdict.ONLY_IN_A}
    assert not any("Recorded for one build only" in note for note in found.notes)


def test_invalid_queries_are_refused() -> None:
    with pytest.raises(ConfigError, match="both sides"):
        ComparisonQuery("root", A, A)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        ComparisonQuery("root", A, B, delta=0.0)
    with pytest.raises(NothingToDoError):
        ask(SimulatedCampaign().samples(), ComparisonQuery("root", "5.34", "6.00"))
