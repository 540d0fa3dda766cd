"""Summaries of executions: groups, their statistics, and counts of unusable measurements."""

from __future__ import annotations

import math
from typing import Any

import pytest
import scipy
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.statistics.job_pairs import (
    MeanWithInterval,
    find_distinguishing_names,
    group_executions,
    lookup_value,
)
from treehammer.collectors.record.outcome import Outcome

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
    rows = [row("a", 10.0), row("a", 12.0), row("a", 50.0), row("b", 14.0), row("c", 16.0)]
    (group,) = group_executions(rows, lambda _: ())
    assert group.job_values("rate") == [12.0, 14.0, 16.0]
    figure = group.mean_over_jobs("rate")
    assert figure is not None
    low, high = scipy.stats.t.interval(0.95, 2, loc=14, scale=2 / math.sqrt(3))
    assert figure.jobs == 3
    assert figure.mean == pytest.approx(14)
    assert figure.low == pytest.approx(low)
    assert figure.high == pytest.approx(high)
    spread = group.mean_and_rms("rate")
    assert spread is not None
    assert spread.n == 5


def test_unknown_hosts_are_not_counted() -> None:
    rows = [row("a", 1.0), row("b", 1.0, host=None), row("c", 1.0, host=None)]
    (group,) = group_executions(rows, lambda _: ())
    assert (group.jobs, group.hosts) == (3, 1)


def test_last_attempt_of_a_job_counts() -> None:
    rows = [row("a", 1.0), row("a", 3.0, attempt=2), row("a", None, attempt=3)]
    (group,) = group_executions(rows, lambda _: ())
    assert group.job_values("rate") == [3.0]


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0]])
def test_values_without_spread_have_no_interval(values: list[float]) -> None:
    (group,) = group_executions([row(str(n), v) for n, v in enumerate(values)], lambda _: ())
    assert group.mean_over_jobs("rate") == MeanWithInterval(len(values), 5.0)
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
    assert group.job_values("rate") == [1.0]
    assert dict(group.outcomes) == dict.fromkeys(Outcome, 1)


def test_ratio_is_unpaired_ratio_of_geometric_means() -> None:
    rows = [row(f"{side}{n}", base * f, site=side) for side, base in (("A", 8.0), ("B", 4.0))
            for n, f in enumerate((0.9, 1.0, 1.1))]  # fmt: skip
    b, a = group_executions(rows, lambda one: (one["site"] == "A",))
    ratio = a.ratio_over_jobs(b, "rate")
    assert ratio is not None
    assert ratio.mean == pytest.approx(2)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low * ratio.high == pytest.approx(4)
    alone = group_executions([row("x", 2.0)], lambda _: ())[0]
    ratio = a.ratio_over_jobs(alone, "rate")
    assert ratio is not None
    assert ratio == MeanWithInterval(3, ratio.mean)
    assert ratio.mean == pytest.approx((8 * 0.99 ** (1 / 3)) / 2)
    assert a.ratio_over_jobs(group_executions([row("x", 0.0)], lambda _: ())[0], "rate") is None


def test_summary_interval_has_nominal_coverage() -> None:
    missed = 0
    for seed in range(200):
        rows = list(SimulatedCampaign(seed=seed, jobs=6, job_noise=0.1, roots=("6.40.00",)).rows())
        for one in rows:
            one |= {"failure_class": None, "failure_kind": None, "plausible": True}
        (group,) = group_executions(rows, lambda _: ())
        figure = group.mean_over_jobs("loop_wall_s")
        assert figure is not None
        assert figure.low is not None
        assert figure.high is not None
        truth = 10.0 * math.exp(0.1**2 / 2)
        missed += not figure.low <= truth <= figure.high
    assert 2 <= missed <= 22  # 5 % of 200, within three standard deviations


def test_groups_are_sorted_and_mixtures_detected() -> None:
    variants = ['{"access":"direct","cache_mb":30}', '{"access":"direct","cache_mb":4}']
    rows = [row(str(n), 1.0, variant=text) for n, text in enumerate(variants)]
    keys = [
        group.key for group in group_executions(rows, lambda one: (lookup_value(one, "cache_mb"),))
    ]
    assert keys == [(4,), (30,)]
    assert find_distinguishing_names(rows) == ("cache_mb",)
    assert find_distinguishing_names([*rows, row("x", 1.0, site="B")]) == ("site", "cache_mb")


@pytest.mark.parametrize(
    "figure, shown",
    [
        ((24.2468, 22.91, 25.58), "24.2 ± 1.3"),
        ((17627.4, 16000.0, 19200.0), "17627 ± 1600"),
        ((17627.4, None, None), "17627"),
        ((0.98765, None, None), "0.9877"),
        ((-1.0, -2.5, 0.5), "-1.0 ± 1.5"),
        ((2.0, 1.9999, 2.0001), "2 ± 0.0001"),
    ],
)
def test_figures_are_rounded_to_significant_digits(
    figure: tuple[float, float | None, float | None], shown: str
) -> None:
    assert verdict_text.format_mean(*figure) == shown


def test_ratios_are_shown_with_interval() -> None:
    assert verdict_text.format_ratio(0.58123, 0.4312, 0.7711) == "0.58 (0.43 … 0.77)"
    assert verdict_text.format_ratio(0.58123, None, None) == "0.581"


def test_storage_site_separates_groups_only_where_it_differs() -> None:
    beside = ("site", "storage_site")
    own = [row("a", 1.0, storage_site="A"), row("b", 1.0, site="B", storage_site="B")]
    assert find_distinguishing_names(own, beside) == ("site",)
    remote = row("c", 1.0, storage_site="B")
    assert find_distinguishing_names([*own, remote], beside) == beside


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
