"""Outcomes of a site's measurements on one day, and its state by the daily rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from treehammer.analysis.status.rule_judgements import classify_share
from treehammer.analysis.status.site_state import SiteState
from treehammer.analysis.status.status_rules import ShareRule, load_shipped_rules
from treehammer.collectors.record.outcome import Outcome, sum_outcomes
from treehammer.text_formatting import format_share


def daily_rule() -> ShareRule:
    """Return the shipped daily rule."""
    return load_shipped_rules().share_rule


def describe_daily_rule() -> str:
    """Describe the judgment of single days in words; it needs no minimum of measurements."""
    rule = daily_rule()
    first, second = rule.severity_steps
    return (
        "Critical: no measurement of that day is good. "
        f"Warning: failed and implausible ones are more than {format_share(rule.max_failed_per_success)} of "
        "the good ones. "
        f"OK: fewer. Darker warnings: from {format_share(first)} and from {format_share(second)} not good. "
        "Unknown: nothing was measured. "
        "Features that a release does not support are not counted."
    )


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
        return cls(
            sums[Outcome.GOOD],
            sums[Outcome.FAILED],
            sums[Outcome.IMPLAUSIBLE],
            sums[Outcome.NOT_SUPPORTED],
        )

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
        """State by the daily rule, however few there are."""
        return classify_share(daily_rule(), self.good, self.failed + self.implausible)

    @property
    def letter(self) -> str:
        """Letter of the state."""
        return self.status.letter

    @property
    def severity(self) -> int:
        """Severity of a warning, from 1 to 3 by the share that is not good; 0 without a warning."""
        if self.status is not SiteState.WARNING:
            return 0
        share = (self.failed + self.implausible) / self.assessed
        return 1 + sum(share >= step for step in daily_rule().severity_steps)

    def __str__(self) -> str:
        parts = [f"{self.good} of {self.assessed} good"] if self.assessed else []
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.implausible} implausible"] if self.implausible else []
        parts += [f"{self.unsupported} not supported"] if self.unsupported else []
        return ", ".join(parts) if self.total else "nothing was measured"
