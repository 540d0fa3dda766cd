"""Comparison of sites with their peers, and of doors by the same work at the same sites."""

from __future__ import annotations

import math
from random import Random

import pytest

from treehammer.analysis.descriptive.door_comparison import DoorComparison, DoorMean, compare_doors
from treehammer.analysis.descriptive.peer_comparison import PeerComparison, compare_over_time
from treehammer.sql.read.peer_sums import WorkKey, WorkSums

Row = tuple[int, str, WorkKey, float, float, float]


def group(site: str, day: int, work: str, *values: float) -> Row:
    squares = sum(value * value for value in values)
    return day, site, (work,), len(values), sum(values), squares


def series(*dailies: Row) -> list[PeerComparison]:
    return compare_over_time(WorkSums.collect(dailies), "HERE", lambda day: day)


def test_peer_median_is_weighted_by_own_work() -> None:
    (point,) = series(
        group("HERE", 1, "a", 0.5, 0.7),
        group("HERE", 1, "b", 0.2),
        group("X", 1, "a", 0.8, 0.8, 0.8),
        group("Y", 1, "a", 0.9),
        group("Z", 1, "a", 0.1),
        group("X", 1, "b", 0.4),
    )
    assert point.peer_median == pytest.approx((2 * 0.8 + 1 * 0.4) / 3)
    assert point.own_mean == pytest.approx(1.4 / 3)
    assert point.difference == pytest.approx(1.4 / 2.0 - 1)
    assert (point.count, point.compared_count, point.peer_count) == (3, 3, 3)


def test_work_without_peers_is_excluded() -> None:
    (point,) = series(
        group("HERE", 1, "a", 0.5), group("HERE", 1, "mine", 0.1), group("X", 1, "a", 0.6)
    )
    assert (point.count, point.compared_count) == (2, 1)
    assert point.mean == pytest.approx(0.3)
    assert point.own_mean == pytest.approx(0.5)


def test_other_days_are_not_compared() -> None:
    first, second = series(
        group("HERE", 2, "a", 0.5), group("HERE", 1, "a", 0.4), group("X", 2, "a", 0.6)
    )
    assert (first.time, first.peer_median, first.difference, first.mean) == (1, None, None, 0.4)
    assert second.peer_median == pytest.approx(0.6)


def test_error_comes_from_scatter_within_work() -> None:
    (point,) = series(group("HERE", 1, "a", 0.4, 0.6), group("HERE", 1, "b", 10.0, 10.2))
    variance = (2 * 0.1**2 + 2 * 0.1**2) / 2
    assert point.standard_error == pytest.approx((variance / 4) ** 0.5)
    assert series(group("HERE", 1, "a", 0.4))[0].standard_error is None


def test_missing_values_are_excluded() -> None:
    assert series(group("HERE", 1, "a"), group("X", 1, "a", 0.3)) == []


def test_days_of_a_week_are_one_point() -> None:
    dailies = [group("HERE", 1, "a", 0.4), group("HERE", 2, "a", 0.6)]
    dailies += [group("X", 1, "a", 0.2), group("X", 2, "a", 0.4, 0.6), group("X", 9, "a", 9.0)]
    (point,) = compare_over_time(
        WorkSums.collect(dailies), "HERE", lambda day: 1 if day < 7 else None
    )
    assert point.count == 2
    assert point.own_mean == pytest.approx(0.5)
    assert point.peer_median == pytest.approx(1.2 / 3)


WORK = ("ttree-read", '{"branches":0.02}', "data", "6.40.00")


def make_means(doors: dict[str, float], sites: int = 4, days: int = 5) -> list[DoorMean]:
    """Means whose doors differ by factors; sites and days differ more than doors."""
    noise = Random(3)
    return [
        DoorMean(
            door, f"S{site}", day, WORK, (1 + site) * (1 + day) * factor * noise.gauss(1, 0.01)
        )
        for site in range(sites)
        for day in range(days)
        for door, factor in doors.items()
    ]


def test_best_door_is_found_with_ratio_and_interval() -> None:
    comparison = compare_doors(make_means({"a": 1.2, "b": 1.0, "c": 1.1}))
    assert comparison.best == "b"
    assert [contrast.door for contrast in comparison.contrasts] == ["c", "a"]
    for contrast, expected in zip(comparison.contrasts, (1.1, 1.2), strict=True):
        assert contrast.estimate
        low, high = contrast.estimate.interval(comparison.level)
        assert low < math.log(expected) < high
        assert high - low < 0.06
        assert (contrast.days, len(contrast.by_site)) == (20, 4)
    assert comparison.level == 0.05 / 3, "any pair might have been compared"


def test_neighboring_days_that_agree_widen_the_interval_of_the_only_site() -> None:
    means = [
        mean._replace(mean=mean.mean * 1.1 ** (mean.day % 2 if mean.door == "b" else 0))
        for mean in make_means({"a": 1.0, "b": 1.3}, sites=1, days=12)
    ]
    slow_days_last = [mean._replace(day=mean.day // 2 + 6 * (mean.day % 2)) for mean in means]
    (independent,), (correlated,) = (compare_doors(m).contrasts for m in (means, slow_days_last))
    assert independent.estimate
    assert correlated.estimate
    assert correlated.estimate.mean == pytest.approx(math.log(1.3 * 1.1**0.5), abs=0.02)
    assert correlated.estimate.se > 2 * independent.estimate.se


def test_works_of_a_single_day_give_no_interval() -> None:
    means = make_means({"a": 1.0, "b": 1.3}, sites=1, days=1)
    other_works = [mean._replace(work=(*WORK[:3], "6.38.00")) for mean in means]
    (contrast,) = compare_doors([*means, *other_works]).contrasts
    assert (contrast.days, contrast.estimate) == (1, None)


def test_doors_tied_to_variants_are_not_compared() -> None:
    means = [
        mean._replace(work=(WORK[0], mean.door, *WORK[2:])) for mean in make_means({"a": 1, "b": 2})
    ]
    comparison = compare_doors(means)
    assert comparison == DoorComparison(means)
    assert comparison.list_ties() == ["variant"]
