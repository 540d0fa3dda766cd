"""Comparison of sites with their peers."""

from __future__ import annotations

import pytest

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
