"""Outcomes of a day, graded by their shares; the watch's daily rule and that for load tests share the limit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from treehammer.analysis.status.site_uses import SiteState
from treehammer.collectors.record.outcome import Outcome, describe_outcomes, sum_outcomes
from treehammer.hctests.definition.document_problems import StrictModel
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


Share = Annotated[float, Field(ge=0, le=1)]


class VersionedRule(StrictModel):
    """A rule whose version follows from its values."""

    @cached_property
    def version(self) -> str:
        """Hash of the rule's values."""
        text = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class OperationsRule(VersionedRule):
    """State of a storage by the operations of load tests on a day; by default the shipped rule."""

    kind: Literal["operations"] = "operations"
    opens: list[str] = Field(["open"], min_length=1, description="Operations that count as opens.")
    blocks: list[str] = Field(
        ["read", "vector_read"], min_length=1, description="Operations that read a block."
    )
    max_failed_per_success: Share = Field(
        MAX_FAILED_PER_SUCCESS, description="A warning above this ratio."
    )
    max_block_s: float = Field(
        3.0,
        gt=0,
        description="A warning above this mean time of a block, without the round trip.",
    )
    min_opens: int = Field(20, ge=1, description="Fewer opens are not judged.")
    min_blocks: int = Field(20, ge=1, description="Fewer reads are not judged.")
    target_tests: list[str] = Field(
        ["open-rate", "read-rate"], description="Tests that the expected rates are about."
    )
    target_open_hz: float = Field(
        100.0, gt=0, description="Expected rate of opens; shown in figures of target_tests."
    )
    target_read_bytes_per_s: float = Field(
        150e6, gt=0, description="Expected rate of reading; shown in figures of target_tests."
    )

    def describe(self) -> str:
        """Describe the rule in words."""
        return (
            "Critical: no open, or no read, succeeded. Warning: failures are more than "
            f"{format_share(self.max_failed_per_success)} of the successes, or a block takes more than "
            f"{self.max_block_s:g} s on average, without the round trip to the door. "
            f"N: fewer than {self.min_opens} opens and {self.min_blocks} reads ended. "
            "Steps in which the load generator was the limit are left out. "
            f"Rule {self.version}, after study S1."
        )
