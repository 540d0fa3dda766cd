"""Status of a site's day (good, warning or failing) by the outcomes of its measurements.

The rule is that of the daily storage monitoring of CMS (study S1): failing when nothing worked,
a warning when failures are more than 6 % of what worked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from treehammer.collectors.record.outcome import Outcome, sum_outcomes

#: More failures than this for each good measurement are a warning.
TOLERATED_FAILURE_RATIO = 0.06
#: Shares of measurements that are not good from which a warning is more severe.
SEVERITY_STEPS = (0.25, 0.5)
#: The rule in words.
STATUS_RULE_TEXT = (
    "Failing: no measurement of that day is good. "
    f"Warning: failed and implausible ones are more than {TOLERATED_FAILURE_RATIO:.0%} of the good ones. "
    f"Good: fewer. Darker warnings: from {SEVERITY_STEPS[0]:.0%} and from {SEVERITY_STEPS[1]:.0%} not good. "
    "No data: nothing was measured. "
    "What a release does not support at all counts for neither side."
)


class DayStatus(StrEnum):
    """Status of a day."""

    GOOD = "good"
    WARNING = "warning"
    FAILING = "failing"
    NO_DATA = "no data"

    @property
    def letter(self) -> str:
        """Short text for a small cell."""
        return "–" if self is DayStatus.NO_DATA else self.value[0].upper()


@dataclass(frozen=True)
class DayOutcomes:
    """Numbers of measurements by outcome, and the resulting status."""

    good: int
    failed: int
    implausible: int
    unsupported: int = 0

    @classmethod
    def from_outcomes(cls, outcomes: Mapping[str, int]) -> DayOutcomes:
        """Sum up outcomes of roll-ups."""
        sums = sum_outcomes(outcomes)
        return cls(
            sums[Outcome.GOOD],
            sums[Outcome.FAILED],
            sums[Outcome.IMPLAUSIBLE],
            sums[Outcome.NOT_SUPPORTED],
        )

    @cached_property
    def total(self) -> int:
        """How many there are."""
        return self.assessed + self.unsupported

    @property
    def assessed(self) -> int:
        """How many say something of the site."""
        return self.good + self.failed + self.implausible

    @cached_property
    def status(self) -> DayStatus:
        """By the rule."""
        if not self.assessed:
            return DayStatus.NO_DATA
        if not self.good:
            return DayStatus.FAILING
        bad = self.failed + self.implausible
        return DayStatus.WARNING if bad > TOLERATED_FAILURE_RATIO * self.good else DayStatus.GOOD

    @property
    def letter(self) -> str:
        """Letter of the status."""
        return self.status.letter

    @property
    def severity(self) -> int:
        """Severity of a warning, from 1 to 3 by the share that is not good; 0 without a warning."""
        if self.status is not DayStatus.WARNING:
            return 0
        share = (self.failed + self.implausible) / self.assessed
        return 1 + sum(share >= step for step in SEVERITY_STEPS)

    def __str__(self) -> str:
        parts = [f"{self.good} of {self.assessed} good"] if self.assessed else []
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.implausible} implausible"] if self.implausible else []
        parts += [f"{self.unsupported} not supported"] if self.unsupported else []
        return ", ".join(parts) if self.total else "nothing was measured"
