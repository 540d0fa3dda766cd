"""Status of a site's day."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from treehammer.analysis.status.day_states import DayOutcomes
from treehammer.analysis.status.status_rules import SiteState

LACKS = "software-setup: not supported"


@pytest.mark.parametrize(
    "outcomes, status, said",
    [
        ({}, SiteState.UNKNOWN, "nothing was measured"),
        ({"good": 100, "open": 6}, SiteState.OK, "100 of 106 good, 6 failed"),
        (
            {"good": 100, "open": 6, "implausible": 1},
            SiteState.WARNING,
            "100 of 107 good, 6 failed, 1 implausible",
        ),
        ({"open": 1}, SiteState.CRITICAL, "0 of 1 good, 1 failed"),
        ({"good": 2, LACKS: 2}, SiteState.OK, "2 of 2 good, 2 not supported"),
        ({"open": 1, LACKS: 2}, SiteState.CRITICAL, "0 of 1 good, 1 failed, 2 not supported"),
        ({LACKS: 2}, SiteState.UNKNOWN, "2 not supported"),
    ],
)
def test_day_status_follows_outcomes(
    outcomes: Mapping[str, int], status: SiteState, said: str
) -> None:
    judged = DayOutcomes.from_outcomes(outcomes)
    assert (judged.status, str(judged)) == (status, said)
    assert judged.total == sum(outcomes.values())


@pytest.mark.parametrize(
    "good, failed, severity",
    [(100, 6, 0), (93, 7, 1), (75, 25, 2), (51, 49, 2), (50, 50, 3), (1, 99, 3), (0, 9, 0)],
)
def test_warnings_are_graded_by_share(good: int, failed: int, severity: int) -> None:
    assert DayOutcomes(good, failed, 0).severity == severity
