"""Profiles of a testbed's sites."""

from __future__ import annotations

import pytest

from treehammer.testbed.network import (
    LONG_DISTANCE,
    MEDIUM_DISTANCE,
    NetworkDistance,
    build_profiles,
)


@pytest.mark.parametrize(
    "count, labels",
    [
        (1, ["near http two-doors"]),
        (2, ["near http two-doors", "distant"]),
        (3, ["near two-doors", "near http", "distant http"]),
        (4, ["near two-doors", "near http", "medium", "distant http"]),
        (6, ["near two-doors", "near http", "near", "near", "medium", "distant http"]),
    ],
)
def test_profiles_by_number_of_sites(count: int, labels: list[str]) -> None:
    profiles = build_profiles([f"SITE_{number}" for number in range(count)])
    assert [" ".join(profile.labels) for profile in profiles] == labels


def test_labels_match_distance() -> None:
    profiles = build_profiles(["A", "B", "C", "D", "E"])
    assert [profile.distance for profile in profiles] == [
        None,
        None,
        None,
        MEDIUM_DISTANCE,
        LONG_DISTANCE,
    ]


def test_link_queue_holds_three_round_trips() -> None:
    assert NetworkDistance(20, 1000).queue_kb * 1024 >= 20e-3 * 1000e6 / 8
    assert NetworkDistance(1, 10).queue_kb == 2048
