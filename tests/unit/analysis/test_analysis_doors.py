"""Comparison of doors by the same work at the same sites."""

from __future__ import annotations

import math
from random import Random

import pytest

from treehammer.analysis.descriptive.door_comparison import DoorComparison, DoorMean, compare_doors

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
        assert high - low < 0.05
        assert (contrast.days, len(contrast.by_site)) == (20, 4)
    assert comparison.level == 0.025, "both intervals hold together"


def test_days_of_the_only_site_give_an_interval() -> None:
    comparison = compare_doors(make_means({"a": 1.0, "b": 1.3}, sites=1))
    (contrast,) = comparison.contrasts
    assert contrast.estimate
    assert contrast.estimate.mean == pytest.approx(math.log(1.3), abs=0.02)


def test_single_day_gives_no_interval() -> None:
    means = make_means({"a": 1.0, "b": 1.3}, sites=1, days=1)
    (contrast,) = compare_doors(means).contrasts
    assert contrast.estimate is None


def test_works_of_a_day_are_no_independent_days() -> None:
    means = make_means({"a": 1.0, "b": 1.3}, sites=1)
    other_works = [mean._replace(work=(*WORK[:3], "6.38.00")) for mean in means]
    (contrast,) = compare_doors([*means, *other_works]).contrasts
    assert contrast.days == 5


def test_doors_tied_to_variants_are_not_compared() -> None:
    means = [
        mean._replace(work=(WORK[0], mean.door, *WORK[2:])) for mean in make_means({"a": 1, "b": 2})
    ]
    comparison = compare_doors(means)
    assert comparison == DoorComparison(means)
    assert comparison.list_ties() == ["variant"]
