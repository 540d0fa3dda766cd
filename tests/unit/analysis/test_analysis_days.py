"""What a day at a site was."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from treehammer.analysis.days import Judged, Status

LACKS = "software setup: not supported"


@pytest.mark.parametrize(
    "outcomes, status, said",
    [
        ({}, Status.NO_DATA, "nothing was measured"),
        ({"good": 100, "open": 6}, Status.GOOD, "100 of 106 good, 6 failed"),
        (
            {"good": 100, "open": 6, "implausible": 1},
            Status.WARNING,
            "100 of 107 good, 6 failed, 1 implausible",
        ),
        ({"open": 1}, Status.FAILING, "0 of 1 good, 1 failed"),
        ({"good": 2, LACKS: 2}, Status.GOOD, "2 of 2 good, 2 not supported"),
        ({"open": 1, LACKS: 2}, Status.FAILING, "0 of 1 good, 1 failed, 2 not supported"),
        ({LACKS: 2}, Status.NO_DATA, "2 not supported"),
    ],
)
def test_a_day(outcomes: Mapping[str, int], status: Status, said: str) -> None:
    judged = Judged.of(outcomes)
    assert (judged.status, str(judged)) == (status, said)
    assert judged.all == sum(outcomes.values())
