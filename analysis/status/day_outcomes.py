"""Outcomes of a day, graded by their shares; the watch's shipped daily rule has the same limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from treehammer.analysis.status.site_uses import SiteState
from treehammer.collectors.record.outcome import Outcome, describe_outcomes, sum_outcomes
from treehammer.text_formatting import format_share

#: Failed and implausible measurements per good one, above which a day is partly bad. Study S1 (XRootD
#: scale tests for CMS, 2014) calls failures above it a problem.
MAX_FAILED_PER_SUCCESS = 0.06
#: Shares of bad measurements from which a partly bad day is darker.
SEVERITY_STEPS = (0.25, 0.5)


def classify_share(
    good: int, bad: int, max_failed_per_success: float = MAX_FAILED_PER_SUCCESS
) -> SiteState:
    """Return the state by the share of bad measurements, without a minimum of their number."""
    if not good + bad:
        return SiteState.UNKNOWN
    if not good:
        return SiteState.CRITICAL
    return SiteState.WARNING if bad > max_failed_per_success * good else SiteState.OK


def describe_daily_rule() -> str:
    """Describe the judgment of single days in words; it needs no minimum of measurements."""
    first, second = SEVERITY_STEPS
    return (
        "Days are graded by their own measurements. None good: no measurement of that day is good. "
        "Partly bad: failed and implausible ones are more than "
        f"{format_share(MAX_FAILED_PER_SUCCESS)} of the good ones, darker from "
        f"{format_share(first)} and from {format_share(second)} bad. Fine: fewer. "
        "Features that a release does not support are not counted."
    )


#: Word for a day by the daily rule. States have other words, as they depend on more than a day.
DAY_GRADES = {
    SiteState.CRITICAL: "none good",
    SiteState.WARNING: "partly bad",
    SiteState.OK: "fine",
    SiteState.UNKNOWN: "not measured",
}


@dataclass(frozen=True)
class DayOutcomes:
    """Numbers of measurements by outcome, and the resulting state."""

    good: int
    failed: int
    implausible: int
    unsupported: int = 0

    @classmethod
    def from_outcomes(cls, outcomes: Mapping[str, int]) -> DayOutcomes:
        """Sum up outcomes of roll-ups."""
        sums = sum_outcomes(outcomes)
        fields = (Outcome.GOOD, Outcome.FAILED, Outcome.IMPLAUSIBLE, Outcome.NOT_SUPPORTED)
        return cls(*(sums[outcome] for outcome in fields))

    @cached_property
    def total(self) -> int:
        """Number of all measurements."""
        return self.assessed + self.unsupported

    @property
    def assessed(self) -> int:
        """Number of those that say something about the site."""
        return self.good + self.failed + self.implausible

    @cached_property
    def status(self) -> SiteState:
        """Severity by the daily rule, however few there are; see :attr:`grade` for the word."""
        return classify_share(self.good, self.failed + self.implausible)

    @property
    def grade(self) -> str:
        """Word for the day, one of :data:`DAY_GRADES`."""
        return DAY_GRADES[self.status]

    @property
    def letter(self) -> str:
        """Letter of a bad day; others are blank, so that these stand out."""
        return {SiteState.OK: "·", SiteState.UNKNOWN: "–"}.get(self.status, self.grade[0].upper())

    @property
    def severity(self) -> int:
        """Severity of a warning, from 1 to 3 by the share that is not good; 0 without a warning."""
        if self.status is not SiteState.WARNING:
            return 0
        share = (self.failed + self.implausible) / self.assessed
        return 1 + sum(share >= step for step in SEVERITY_STEPS)

    def __str__(self) -> str:
        parts = [f"{self.good:,} of {self.assessed:,} good"] if self.assessed else []
        counts = (self.failed, self.implausible, self.unsupported)
        bad = (Outcome.FAILED, Outcome.IMPLAUSIBLE, Outcome.NOT_SUPPORTED)
        parts += describe_outcomes(dict(zip(bad, counts, strict=True)))
        return ", ".join(parts) if self.total else "nothing was measured"
