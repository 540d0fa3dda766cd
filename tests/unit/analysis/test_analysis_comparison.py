"""Comparisons of samples, and limits that a test states."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pytest
from limited_campaign import fill_with_limits, make_limited_plan
from measurement_factory import build_verdict, make_campaign_row, make_job_row, make_measurement
from service_thread import run_service
from simulated_campaign import THREE, A, B, SimulatedCampaign, ask, changed, evidence, is_b, rows

from treehammer.analysis.comparison import limit_text, series_effects, verdict_text
from treehammer.analysis.comparison.comparison import (
    Comparison,
    ComparisonQuery,
    compare_together,
    compare_with_first,
)
from treehammer.analysis.comparison.comparison_notes import (
    MAX_NAMED,
    attribute_rows,
    summarize_attribution,
)
from treehammer.analysis.comparison.conclusion import select_headline
from treehammer.analysis.comparison.limit_outcomes import (
    LimitOutcome,
    LimitReport,
    LimitState,
    judge_limits,
)
from treehammer.analysis.comparison.series_effects import estimate_effect, measure_effect
from treehammer.analysis.comparison.series_sides import split_sides
from treehammer.analysis.statistics.estimates import SHARED_SCATTER
from treehammer.analysis.statistics.sample import Sample
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    HOST_SCOPE,
    SITE_SCOPE,
    SITES_SCOPE,
    Verdict,
)
from treehammer.hctests.definition.judged_metrics import DEFAULT_HEADLINE, HeadlineMetric
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.web.campaign_report import write_report


@pytest.mark.parametrize(
    "effect, verdict", [(0.06, Verdict.SLOWER), (-0.06, Verdict.FASTER), (0.0, Verdict.SAME)]
)
def test_true_effect_is_estimated(effect: float, verdict: Verdict) -> None:
    comparison = ask(SimulatedCampaign(effect=effect).samples())
    for row in comparison.of_series:
        assert row.verdict == verdict
        assert row.effect == pytest.approx(effect, abs=0.01)
        assert (row.low or 0) < (row.effect or 0) < (row.high or 0)
        assert (row.jobs, row.hosts) == (8, 4)
    assert comparison.regressed == (verdict is Verdict.SLOWER)


def test_pairs_are_formed_within_jobs() -> None:
    comparison = ask(SimulatedCampaign(effect=0.06).samples())
    assert len(comparison.pairs) == 2 * 8
    for pair in comparison.pairs:
        assert pair.log_ratio == pytest.approx(math.log(pair.b_value / pair.a_value), abs=0.02)
        assert (pair.rounds, pair.a, pair.b) == (2, A, B)
    cpu = [p.log_ratio for p in comparison.pairs if p.metric == "cpu_per_event_s"]
    assert rows(comparison)[0].effect == pytest.approx(sum(cpu) / len(cpu))


def test_release_is_pooled_over_sites() -> None:
    (row,) = rows(ask(SimulatedCampaign(sites=THREE, jobs=12, effect=0.06).samples()), SITES_SCOPE)
    assert row.verdict == Verdict.SLOWER
    assert (row.jobs, row.hosts, row.site) == (36, 12, "")
    assert (evidence(row).sites, evidence(row).shared_hosts) == (THREE, {})


def test_disagreeing_sites_leave_release_undecided() -> None:
    effects = {"T2_A": 0.1, "T2_B": -0.1, "T2_C": 0.0}
    (row,) = rows(ask(SimulatedCampaign(sites=THREE, effect_at=effects).samples()), SITES_SCOPE)
    assert verdict_text.describe_scope(row) == "on average at these 3 sites (24 jobs)"

    comparison = ask(SimulatedCampaign(sites=(*THREE, "T2_D"), effect_at=effects).samples())
    (row,) = rows(comparison, SITES_SCOPE)
    assert row.verdict == Verdict.UNDECIDED
    assert evidence(row).tau == pytest.approx(0.08, abs=0.03)
    low, high = evidence(row).prediction
    assert low < (row.low or 0) < (row.high or 0) < high
    assert "one more site" in verdict_text.describe_verdict(row)
    assert {r.site: r.verdict for r in rows(comparison)} == {
        "T2_D": Verdict.SAME,
        "T2_A": Verdict.SLOWER,
        "T2_B": Verdict.FASTER,
        "T2_C": Verdict.SAME,
    }


FIVE = (*THREE, "T2_D", "T2_E")


def _measure_on_shared_host(sharing: Sequence[str]) -> Comparison:
    samples = SimulatedCampaign(sites=FIVE, hosts=1, effect=0.06).samples()
    return ask([replace(s, host="vm") if s.site in sharing else s for s in samples])


def test_sites_that_share_their_host_speak_of_themselves() -> None:
    comparison = _measure_on_shared_host(FIVE)
    (row,) = rows(comparison, SITES_SCOPE)
    assert (row.verdict, row.hosts) == (Verdict.SLOWER, 1)
    assert verdict_text.describe_scope(row) == "on average at these 5 sites on one host (40 jobs)"
    assert (evidence(row).tau, evidence(row).prediction) == (None, ())
    assert evidence(row).shared_hosts == {"vm": FIVE}
    assert evidence(row).test == "mean of these sites"
    (note,) = [note for note in comparison.notes if note.startswith("One host, vm,")]
    assert "T2_A, T2_B, T2_C, T2_D and T2_E: they are not independent" in note


def test_sites_that_share_a_host_count_as_one_among_others() -> None:
    import scipy

    (row,) = rows(_measure_on_shared_host(FIVE[:2]), SITES_SCOPE)
    assert verdict_text.describe_scope(row) == "over 5 sites (40 jobs)"
    assert evidence(row).shared_hosts == {"vm": ("T2_A", "T2_B")}
    # Four groups leave three degrees of freedom.
    means = {row.site: row.effect or 0.0 for row in rows(_measure_on_shared_host(FIVE[:2]))}
    groups = [(means["T2_A"] + means["T2_B"]) / 2, *(means[site] for site in FIVE[2:])]
    assert row.effect == pytest.approx(sum(groups) / 4)
    assert evidence(row).p == pytest.approx(float(scipy.stats.ttest_1samp(groups, 0.0).pvalue))


def test_doors_of_one_site_share_hosts_and_jobs() -> None:
    effects = {"T2_A": 0.05, "T2_B": -0.05}

    def at(site: str, door: str, jobs: int) -> list[Sample]:
        run = SimulatedCampaign(name=f"{site} {door}", sites=(site,), jobs=jobs, effect_at=effects)
        return [replace(sample, door=door) for sample in run.samples()]

    samples = [*at("T2_A", "near", 6), *at("T2_A", "far", 14), *at("T2_B", "near", 10)]
    comparison = ask([*samples, *at("T2_C", "near", 8), *at("T2_D", "near", 8)])
    (row,) = rows(comparison, SITES_SCOPE)
    assert row.verdict == Verdict.UNDECIDED
    labels = {row.label for row in comparison.of_series if row.site == "T2_A"}
    assert labels == {"ttree-read door=far", "ttree-read door=near"}
    assert {row.label for row in select_headline(comparison.verdicts)} == {"ttree-read"}
    assert (row.jobs, row.hosts) == (46, 16)
    # The sites have 20, 10, 8 and 8 jobs, so another site is expected to have about 9.
    assert row.jobs_needed == 9 * (evidence(row).sites_needed or 0) > 0


def test_single_site_gives_no_release_verdict() -> None:
    (row,) = rows(ask(SimulatedCampaign(effect=0.06).samples()), SITES_SCOPE)
    assert row.verdict == Verdict.NOT_ENOUGH
    assert "one site (T2_A)" in evidence(row).why
    assert row.effect is None


@pytest.mark.parametrize(
    "hosts, scope, said",
    [
        (1, HOST_SCOPE, "on this host (10 jobs)"),
        (2, HOST_SCOPE, "on these 2 hosts (10 jobs)"),
        (3, SITE_SCOPE, "at T2_A (10 jobs on 3 hosts)"),
    ],
)
def test_scope_follows_number_of_hosts(hosts: int, scope: str, said: str) -> None:
    comparison = ask(SimulatedCampaign(hosts=hosts, jobs=10, effect=0.2).samples())
    (row,) = rows(comparison)
    assert (row.verdict, row.scope) == (Verdict.SLOWER, scope)
    sentence = verdict_text.describe_verdict(row)
    assert sentence.startswith(f"{B} is 22.")
    assert sentence.endswith(said)
    assert comparison.regressed
    assert any("just these hosts" in note for note in comparison.notes) == (hosts < 3)


def test_launches_are_the_units_of_a_host() -> None:
    (series,) = split_sides(SimulatedCampaign(jobs=1, effect=0.05).samples(), "root", A, B)
    bare = measure_effect(series, DEFAULT_HEADLINE[0], "root", {})
    (pair,) = bare.pairs
    launched = replace(bare, pairs=(replace(pair, launches=(0.04, 0.05, 0.06)),))
    few = replace(bare, pairs=(replace(pair, launches=(0.04, 0.05)),))
    assert "2 launches on one host" in str([*series_effects.find_refusal_reasons(few)])
    assert (bare.missing_jobs, launched.missing_jobs, launched.launches) == (2, 0, 3)
    estimate = estimate_effect([launched])
    assert estimate is not None
    assert estimate.mean == pytest.approx(0.05)
    assert estimate.se**2 == pytest.approx(0.01**2 / 3 + SHARED_SCATTER**2)
    assert estimate.df == pytest.approx(2 * (3 * estimate.se**2 / 0.01**2) ** 0.5)
    counted = estimate_effect([replace(launched, headline=HeadlineMetric("read_calls", unit="1"))])
    assert counted is not None
    assert counted.se == pytest.approx(0.01 / math.sqrt(3)), "no clock"


def test_launches_of_an_hour_share_a_part_that_further_ones_leave() -> None:
    def error(*hours: int) -> float:
        pairs = tuple(replace(pair, launches=(0.04, 0.05, 0.06), hour=hour) for hour in hours)
        estimate = estimate_effect([replace(bare, pairs=pairs)])
        assert estimate is not None
        return estimate.shared

    (series,) = split_sides(SimulatedCampaign(jobs=1, effect=0.05).samples(), "root", A, B)
    bare = measure_effect(series, DEFAULT_HEADLINE[0], "root", {})
    (pair,) = bare.pairs
    assert error(7, 7) == SHARED_SCATTER**2
    assert error(7, 8) == SHARED_SCATTER**2 / 2


def test_unknown_and_single_hosts_are_left_out() -> None:
    samples = SimulatedCampaign(hosts=4, effect=0.2, jobs=8).samples()
    hosts = {"t2_a-00": "one", "t2_a-01": "one", "t2_a-02": "", "t2_a-03": "one"}
    (row,) = rows(ask([replace(s, host=hosts[s.host]) for s in samples]))
    assert (row.verdict, row.jobs, row.hosts) == (Verdict.SLOWER, 6, 1)
    assert evidence(row).left_out["host unknown"] == 2
    alone = [replace(s, host="two" if s.job_id.endswith("-1") else "one") for s in samples]
    (row,) = rows(ask(alone))
    assert (row.jobs, row.hosts, evidence(row).left_out["only job of its host"]) == (7, 1, 1)
    assert rows(ask(changed(alone, is_b, metrics={})))[0].verdict == Verdict.NOT_ENOUGH


@pytest.mark.parametrize("bundled", [True, False])
def test_single_job_has_no_interval(bundled: bool) -> None:
    campaign = SimulatedCampaign(jobs=1, effect=0.2, job_noise=0.01, bundled=bundled)
    (row,) = rows(ask(campaign.samples()))
    assert row.effect == pytest.approx(0.2, abs=0.05)
    assert (row.low, row.high, row.jobs_needed) == (None, None, 3)


def test_small_effects_are_not_relevant() -> None:
    """Call an effect of 1 % with little noise the same within 2 %, and one of 3 % different."""
    (row,) = rows(ask(SimulatedCampaign(effect=0.01, execution_noise=0.002).samples()))
    assert row.verdict == Verdict.SAME
    noisy = SimulatedCampaign(effect=0.03, execution_noise=0.015, hosts=8)
    (row,) = rows(ask(noisy.samples()))
    assert row.verdict == Verdict.DIFFERENT
    assert "perhaps by less than ±2 %" in verdict_text.describe_verdict(row)


def test_releases_asked_together_share_one_correction() -> None:
    releases = tuple(f"6.{number}" for number in range(13))
    campaign = SimulatedCampaign(roots=releases, jobs=6, execution_noise=0.05)
    questions = compare_with_first("root", releases, delta=DEFAULT_DELTA, selection=Selection())
    together = compare_together(campaign.samples(), questions, now_us=1)
    assert len(together) == 12
    alone = ask(campaign.samples(), ComparisonQuery("root", releases[0], releases[1]))
    corrected, single = rows(together[0])[0], rows(alone)[0]
    assert corrected.effect == pytest.approx(single.effect)
    assert (evidence(corrected).p_adjusted or 0) >= (evidence(single).p_adjusted or 0)
    assert corrected.comparison_id != single.comparison_id
    assert "among 12 asked together" in verdict_text.comparison_title(corrected)


def test_noisy_effect_is_undecided_with_jobs_needed() -> None:
    (row,) = rows(ask(SimulatedCampaign(execution_noise=0.2, seed=4).samples()))
    assert row.verdict == Verdict.UNDECIDED
    assert (row.jobs_needed or 0) > 8
    assert (evidence(row).hosts_needed or 0) > 4


def test_unpaired_jobs_are_compared_with_note() -> None:
    campaign = SimulatedCampaign(bundled=False, jobs=20, job_noise=0.02, effect=0.1)
    comparison = ask(campaign.samples())
    (row,) = rows(comparison)
    assert row.verdict == Verdict.SLOWER
    assert evidence(row).unpaired
    assert "weaker" in evidence(row).test
    assert comparison.pairs == ()
    assert any(note.startswith("Unpaired") for note in comparison.notes)


def test_false_verdicts_are_rare() -> None:
    wrong: Counter[str] = Counter()
    families: Counter[str] = Counter()
    for seed in range(12):
        campaign = SimulatedCampaign(
            seed=seed, sites=THREE, jobs=6, branches=(1.0, 0.5), execution_noise=0.05,
            site_spread=0.0,
        )  # fmt: skip
        comparison = ask(campaign.samples())
        for scope, of_scope in (("series", comparison.of_series), ("sites", comparison.over_sites)):
            verdicts = {row.verdict for row in of_scope}
            families[scope] += 1
            wrong[scope] += bool(verdicts & {Verdict.FASTER, Verdict.SLOWER})
    # A family of rows has a false verdict with 5 % probability; 46 % without adjustment.
    assert families["series"] == 12
    assert wrong["series"] <= 2
    assert wrong["sites"] <= 2


SITES = ("A", "B", "C", "D", "E")
BOTH = SimulatedCampaign(sites=SITES, branches=(1.0, 0.5), hosts=3, jobs=6)


def attribute(campaign: SimulatedCampaign) -> tuple[str, ...]:
    return attribute_rows(ask(campaign.samples()).verdicts)


def slow_down(samples: list[Sample], **where: object) -> list[Sample]:
    """Make side B 10 % slower where fields or axes have these values."""

    def matches(sample: Sample) -> bool:
        values = {**vars(sample), **dict(sample.variant.values)}
        return all(values[name] == value for name, value in where.items())

    return [
        replace(s, metrics={name: 1.1 * value for name, value in s.metrics.items()})
        if s.axis_value("root") == "6.40.00" and matches(s)
        else s
        for s in samples
    ]


def test_attribution_without_slowdown_is_empty() -> None:
    assert attribute(BOTH) == ()
    rates = (HeadlineMetric("wall_per_event_s", better="higher"),)
    for effect, headline in ((-0.1, DEFAULT_HEADLINE), (0.1, rates)):
        samples = replace(BOTH, effect=effect).samples()
        assert attribute_rows(ask([replace(s, headline=headline) for s in samples]).verdicts) == ()


def test_slowdown_at_all_sites_is_attributed_to_release() -> None:
    (sentence,) = attribute(replace(BOTH, effect=0.06, execution_noise=0.03))
    place = "slower over the sites, which points at the release"
    assert sentence == f"CPU and wall: {place}: 50 % of the branches, all branches"


def test_slow_site_is_set_apart_from_the_median_of_the_others() -> None:
    from scipy import stats

    campaign = SimulatedCampaign(sites=SITES[:3], hosts=6, jobs=6, effect_at={"B": 0.1})
    comparison = ask(campaign.samples())
    row = next(row for row in rows(comparison) if row.site == "B")
    effects = {
        site: [x.log_ratio for x in comparison.pairs if (x.metric, x.site) == (row.metric, site)]
        for site in campaign.sites
    }
    variances = {site: variance(effects[site]) for site in effects}
    shift = fmean(effects["B"]) - fmean(map(fmean, (effects["A"], effects["C"])))
    error = max(variances["B"], fmean(variances.values())) / 6 * (1 + math.pi / 2 / 2)
    half = stats.t.isf(0.05 / 3 / 2, 15) * math.sqrt(error)
    assert evidence(row).site_shift == pytest.approx((shift, shift - half, shift + half))


def test_release_and_site_are_separated() -> None:
    samples = slow_down(BOTH.samples(), branches=0.5)
    first, second = attribute_rows(ask(slow_down(samples, site="C")).verdicts)
    assert first.endswith("other sites, which points at the release: 50 % of the branches")
    assert second.endswith("than the other sites, which points at that site")
    assert "C is 9.8 % slower" in second


def test_one_slow_host_or_series_is_no_slow_site() -> None:
    for where in ({"host": "b-01"}, {"site": "B", "branches": 0.5}):
        comparison = ask(slow_down(BOTH.samples(), **where))
        assert not any("points at" in sentence for sentence in attribute_rows(comparison.verdicts))


def test_undecided_site_contradicts_nothing() -> None:
    noisy = replace(BOTH, sites=("Z",), effect=0.06, execution_noise=0.2, jobs=3, name="noisy")
    comparison = ask([*replace(BOTH, effect=0.06).samples(), *noisy.samples()])
    assert any(
        "points at the release" in sentence for sentence in attribute_rows(comparison.verdicts)
    )


def test_single_site_leaves_release_or_site() -> None:
    (sentence,) = attribute(replace(BOTH, sites=("A",), effect=0.1))
    assert sentence.endswith("points at the release or at that site")


def test_attribution_limits_listed_variants() -> None:
    branches = tuple(0.1 * number for number in range(1, MAX_NAMED + 2))
    campaign = replace(BOTH, branches=branches, effect=0.1, loop_s=30)
    (sentence,) = attribute(campaign)
    assert sentence.endswith(" and 1 more")


@pytest.mark.parametrize(
    "loop_s, sentence",
    [
        (10.0, "Nothing slower was found that points at a site or at the release."),
        (0.5, "No verdict could be given, so nothing is attributed to a site or a cause."),
    ],
)
def test_attribution_without_verdicts_is_inconclusive(loop_s: float, sentence: str) -> None:
    samples = SimulatedCampaign(sites=("A", "B"), loop_s=loop_s).samples()
    assert summarize_attribution(ask(samples).verdicts) == (sentence,)


@pytest.mark.parametrize(
    ("metric", "value", "unit", "text"),
    [
        ("cpu_per_event_s", 0.0123, "s", "12.3"),
        ("open_p99_s", 0.0123, "s", "12.3 ms"),
        ("open_p99_s", 5000.0, "s", "5,000,000 ms"),
        ("rate_hz", 199.6, "Hz", "200/s"),
        ("read_bytes_per_s", 3.21e8, "B/s", "321 MB/s"),
        ("eff_job", 0.5, "1", "0.5"),
        ("achieved_mb_per_s", 12.0, "MB/s", "12.0 MB/s"),
    ],
)
def test_values_have_their_unit(metric: str, value: float, unit: str, text: str) -> None:
    assert verdict_text.format_metric_value(metric, value, unit) == text
    judged = [build_verdict("c", metric=name) for name in ("cpu_per_event_s", metric)]
    assert ("ms/event" in verdict_text.title_metrics(judged)) == (judged[0] != judged[1])


def judge(store: Store) -> LimitReport:
    return judge_limits(store, store.campaign("campaign"), 2)


def judge_only(store: Store) -> LimitOutcome:
    (outcome,) = judge(store).outcomes
    return outcome


@pytest.mark.parametrize(
    ("bound", "ratio", "noise", "state", "code", "mark"),
    [
        ("at_most", 1.0, 0.001, LimitState.KEPT, 0, "✅"),
        ("at_most", 1.1, 0.001, LimitState.MISSED, 1, "❌"),
        ("at_most", 1.03, 0.05, LimitState.UNDECIDED, 0, "❔"),
        ("at_least", 1.1, 0.001, LimitState.KEPT, 0, "✅"),
        ("at_least", 1.0, 0.001, LimitState.MISSED, 1, "❌"),
    ],
)
def test_ratio_to_a_base_decides_if_its_interval_excludes_the_limit(
    store: Store, bound: str, ratio: float, noise: float, state: LimitState, code: int, mark: str
) -> None:
    limit = {"metric": "cpu_per_event_s", bound: 1.02, "base": "first"}
    fill_with_limits(store, limit, ratio=ratio, noise=noise)
    outcome = judge_only(store)
    assert (outcome.state, judge(store).exit_code) == (state, code)
    assert limit_text.format_markdown(judge(store)).startswith(f"### {mark} Limits of x: 1 {state}")
    assert (outcome.base, outcome.label) == ("root=6.38.00", "root=6.40.00")
    assert outcome.low is not None
    assert outcome.high is not None
    assert (outcome.low < 1.02 < outcome.high) == (state is LimitState.UNDECIDED)
    assert outcome.level == pytest.approx(0.05)


def test_absolute_limit_is_judged_on_the_mean_of_jobs(store: Store) -> None:
    from scipy import stats

    fill_with_limits(
        store, {"metric": "cpu_per_event_s", "at_most": 3e-6, "where": {"root": "6.38.00"}}
    )
    outcome = judge_only(store)
    values = [
        float(str(row["cpu_per_event_s"]))
        for row in store.measurements(Selection(), ("variant", "cpu_per_event_s"))
        if json.loads(str(row["variant"]))["root"] == "6.38.00"
    ]
    half = stats.t.ppf(0.975, 3) * stats.sem(values)
    assert outcome.state is LimitState.KEPT
    assert outcome.value == pytest.approx(sum(values) / 4)
    assert outcome.low == pytest.approx(sum(values) / 4 - half)
    assert outcome.high == pytest.approx(sum(values) / 4 + half)
    assert (outcome.units, outcome.unit, outcome.label) == (4, "s", "root=6.38.00")


def test_several_limits_share_the_correction_of_comparisons(store: Store) -> None:
    limits = [{"metric": "cpu_per_event_s", "at_most": bound} for bound in (1.9e-6, 2e-6, 3e-6)]
    fill_with_limits(store, *limits, noise=0.02)
    outcomes = judge(store).outcomes
    decided = [outcome for outcome in outcomes if outcome.state is not LimitState.UNDECIDED]
    assert 0 < len(decided) < len(outcomes) == 6
    expected = 0.05 * len(decided) / len(outcomes)
    assert [outcome.level for outcome in outcomes] == pytest.approx([expected] * len(outcomes))


def test_looks_of_a_sequential_plan_share_the_error_rate(store: Store) -> None:
    plan = json.loads(make_limited_plan([{"metric": "cpu_per_event_s", "at_most": 3e-6}]))
    fill_with_limits(store)
    row = replace(store.campaign("campaign"), id="looked", name="looked")
    plan["until_decided"] = {"looks": [5, 10, 20, 40], "delta": 0.02}
    store.add_campaign(replace(row, plan=CampaignPlan.model_validate(plan)), [])
    for number in range(4):
        seconds = 2e-6 + number * 1e-9
        measurement = make_measurement(
            f"looked{number}", campaign_id="looked", host="n1", cpu_per_event_s=seconds
        )
        store.add([measurement])
    (outcome,) = judge_limits(store, store.campaign("looked"), 2).outcomes
    assert outcome.level == pytest.approx(0.05 * 0.6)


def test_own_metrics_zeros_and_values_without_spread_are_judged(store: Store) -> None:
    fill_with_limits(
        store,
        {"metric": "depth", "at_most": 0, "where": {"root": "6.40.00"}},
        {"metric": "rows", "at_least": 5, "where": {"root": "6.40.00"}},
        extras={"depth": 0.0, "rows": 4.0},
    )
    depth, rows = judge(store).outcomes
    assert (depth.state, depth.low, depth.high) == (LimitState.KEPT, 0, 0)
    assert (rows.state, rows.value) == (LimitState.MISSED, 4)


def test_limit_without_an_interval_says_why(store: Store) -> None:
    plan = make_limited_plan([{"metric": "max_rss_bytes", "at_most": 3}])
    store.add_campaign(make_campaign_row(plan=plan, test_name="x"), [])
    store.add(
        make_measurement(f"{n}", turn, host="n1" * (n // 2), max_rss_bytes=n // 3, round=turn)
        for n in range(4)
        for turn in (1, 2)
    )
    others: Sequence[dict[str, Any]] = ({"plausible": False}, {"test_name": "server-watch"})
    store.add(make_measurement(str(other), max_rss_bytes=9, **other) for other in others)
    outcome = judge_only(store)
    assert (outcome.state, outcome.value) == (LimitState.NOT_JUDGED, 0.25)
    assert (outcome.units, outcome.hosts) == (4, 1)
    assert outcome.why == "no interval: all values of a host, or means of hosts, are equal"


def test_exact_counter_is_decided_by_one_job(store: Store) -> None:
    fill_with_limits(store, {"metric": "bytes_read", "at_most": 1.5, "base": "6.38.00"}, jobs=1)
    outcome = judge_only(store)
    assert (outcome.state, outcome.value) == (LimitState.MISSED, 2.0)


def test_too_few_jobs_are_not_judged(store: Store) -> None:
    relative = {"metric": "cpu_per_event_s", "at_most": 2, "base": "first"}
    fill_with_limits(store, {"metric": "max_rss_bytes", "at_most": 9e9}, relative, jobs=2)
    report = judge(store)
    assert {outcome.state for outcome in report.outcomes} == {LimitState.NOT_JUDGED}
    assert report.outcomes[0].why.endswith("or 3 hosts; submit more repeats (-S repeats=6)")
    assert "2 jobs on one host; needed are 3" in report.outcomes[-1].why
    assert report.exit_code == 3


def test_absent_base_site_or_measurement_is_not_judged(store: Store) -> None:
    absolute = {"metric": "max_rss_bytes", "at_most": 9e9, "where": {"root": "6.40.00"}}
    relative = {"metric": "cpu_per_event_s", "at_most": 1.02, "base": "6.36.00"}
    elsewhere = {"metric": "wall_per_event_s", "at_most": 1.02, "where": {"cache_mb": 0}}
    beside = {**elsewhere, "metric": "bytes_read", "base": "first"}
    unreported = {"metric": "depth", "at_most": 1, "where": {"root": "6.40.00"}}
    newer = {"metric": "eff_loop", "at_most": 1, "where": {"root": "6.42.00"}, "base": "first"}
    fill_with_limits(store, absolute, relative, elsewhere, beside, unreported, newer, site="SITE_A")
    report = judge(store)
    reasons = {(outcome.metric, outcome.site): outcome.why for outcome in report.outcomes}
    assert {why for (_, site), why in reasons.items() if site == "local"} == {"no measurement"}
    assert {metric: why for (metric, site), why in reasons.items() if site == "SITE_A"} == {
        "max_rss_bytes": "",
        "cpu_per_event_s": "nothing was measured with root=6.36.00",
        "wall_per_event_s": "nothing was measured with cache_mb=0",
        "bytes_read": "nothing was measured with cache_mb=0 beside root=6.38.00",
        "depth": "no usable execution (no depth 4)",
        "eff_loop": "nothing was measured with root=6.42.00 beside root=6.38.00",
    }
    assert report.exit_code == 3


def test_lost_measurements_keep_a_campaign_from_success(store: Store) -> None:
    fill_with_limits(store, {"metric": "max_rss_bytes", "at_most": 9e9}, lost=1)
    report = judge(store)
    assert {outcome.state for outcome in report.outcomes} == {LimitState.KEPT}
    assert (report.unmeasured, report.exit_code) == (2, 3)
    assert "2 of 10 measurements are not there" in limit_text.describe_limits(report)


def test_sites_have_bounds_of_their_own(store: Store) -> None:
    limit = {
        "metric": "cpu_per_event_s",
        "at_most": 1e-6,
        "where": {"root": "6.40.00"},
        "sites": {"local": {"at_most": 3e-6}},
    }
    fill_with_limits(store, limit)
    outcome = judge_only(store)
    assert (outcome.state, outcome.bound) == (LimitState.KEPT, 3e-6)


def test_first_of_compared_commits_is_the_base_and_has_no_absolute_limit(store: Store) -> None:
    commits = ["a" * 40, "b" * 40]
    axes = {"axes": {"root": ["none"], "commit": commits}, "bundle": ["commit"]}
    limits = [
        {"metric": "depth", "at_most": 15},
        {"metric": "depth", "at_most": 1.5, "base": "first"},
    ]
    metrics = {"depth": {"unit": "1", "exact": True}}
    plan = {"definition": {**axes, "metrics": metrics, "expect": limits}, "sites": ["local"]}
    row = make_campaign_row(plan=json.dumps(plan), test_name="x")
    store.add_campaign(row, [make_job_row("job", planned_measurements=2)])
    for position, (commit, depth) in enumerate(zip(commits, (20, 10), strict=True), 1):
        values: dict[str, Any] = {"commit_id": commit, "test_hash": commit, "test_path": "x"}
        extras = {"depth": depth}
        store.add([make_measurement("job", 1, position, host="n1", extras=extras, **values)])
    absolute, relative = judge(store).outcomes
    assert (absolute.label, absolute.value) == ("commit=bbbbbbbbbb", 10)
    assert (relative.label, relative.base) == ("commit=bbbbbbbbbb", "commit=aaaaaaaaaa")
    assert (relative.value, relative.state) == (0.5, LimitState.KEPT)


def test_report_and_campaign_page_show_the_outcomes(store: Store, tmp_path: Path) -> None:
    fill_with_limits(
        store, {"metric": "cpu_per_event_s", "at_most": 1.02, "base": "first"}, ratio=1.1
    )
    write_report(f"sqlite:///{tmp_path}/results.db", ["last"], tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    with run_service(tmp_path, reading_open=True) as service:
        page = service.load_page("/campaigns/campaign")
        document = service.client.get("/campaigns/campaign?format=json&table=limits").json()
    for text in (report, page):
        assert "Limits: 1 missed" in text
        assert "≤ 1.02 × 6.38.00" in text
        assert "Intervals of 95 % confidence" in text
    (row,) = document["tables"]["limits"]
    assert (row["state"], row["metric"]) == ("missed", "cpu_per_event_s")


def test_page_of_a_large_campaign_names_the_command(store: Store, tmp_path: Path) -> None:
    plan = make_limited_plan([{"metric": "depth", "at_most": 1}])
    store.add_campaign(make_campaign_row(plan=plan, planned_measurements=2001), [])
    with run_service(tmp_path, reading_open=True) as service:
        page = service.load_page("/campaigns/campaign")
    assert "treehammer check --campaign campaign" in page
