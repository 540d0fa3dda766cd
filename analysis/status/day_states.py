"""States of single days: of a site by its measurements, and of a storage by its load tests.

The rule for load tests is that of study S1. Thresholds are in ``status_rules.toml``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from treehammer.analysis.status.rule_judgements import classify_share
from treehammer.analysis.status.status_rules import OperationsRule, ShareRule, load_shipped_rules
from treehammer.analysis.status.subject_state import SiteState
from treehammer.collectors.record.outcome import Outcome, sum_outcomes
from treehammer.sql.read.operation_figures import OperationDay
from treehammer.text_formatting import format_share


def daily_rule() -> ShareRule:
    """Return the shipped daily rule."""
    return load_shipped_rules().list_rules(ShareRule)[0]


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


def load_rule() -> OperationsRule:
    """Load the shipped rule for load tests."""
    return load_shipped_rules().list_rules(OperationsRule)[0]


#: Letters of the study S1: good, warning, failed.
_STUDY_LETTERS = {SiteState.OK: "G", SiteState.WARNING: "W", SiteState.CRITICAL: "F"}


@dataclass(frozen=True)
class StorageDay:
    """Operations of load tests on a storage on one day, and the status by a rule.

    Attributes:
        opened: successful opens.
        open_failed: failed opens.
        blocks: successful reads.
        block_failed: failed reads.
        block_s: mean time of a block without the round trip; None without any.
        limited_steps: time steps left out because the load generator was the limit.
        rule: the rule.
    """

    opened: int
    open_failed: int
    blocks: int
    block_failed: int
    block_s: float | None
    limited_steps: int
    rule: OperationsRule

    @classmethod
    def from_operations(cls, rows: Iterable[OperationDay], rule: OperationsRule) -> StorageDay:
        """Sum up the operations of one storage and day."""
        counts = dict.fromkeys(("opened", "open_failed", "blocks", "block_failed"), 0)
        limited, seconds = 0, 0.0
        for row in rows:
            limited += row.limited_steps
            if row.operation in rule.opens:
                counts["opened"] += row.done
                counts["open_failed"] += row.failed
            elif row.operation in rule.blocks:
                counts["blocks"] += row.done
                counts["block_failed"] += row.failed
                if row.latency.count:
                    trip_s = row.round_trip_s or 0.0
                    seconds += row.done * max(0.0, row.latency.mean - trip_s)
        block_s = seconds / counts["blocks"] if counts["blocks"] else None
        return cls(**counts, block_s=block_s, limited_steps=limited, rule=rule)

    @property
    def total(self) -> int:
        """Number of ended operations that the rule knows, and of steps left out."""
        return self.opened + self.open_failed + self.blocks + self.block_failed + self.limited_steps

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of operations, for evidence."""
        names = ("opened", "open_failed", "blocks", "block_failed", "limited_steps")
        return {name: getattr(self, name) for name in names}

    @cached_property
    def problems(self) -> tuple[tuple[SiteState, str], ...]:
        """Exceeded thresholds."""
        rule = self.rule
        exceeded = []
        for name, done, failed, minimum in (
            ("opens", self.opened, self.open_failed, rule.min_opens),
            ("reads", self.blocks, self.block_failed, rule.min_blocks),
        ):
            if not failed or done + failed < minimum:
                continue
            if not done:
                exceeded.append((SiteState.CRITICAL, f"none of {failed} {name} succeeded"))
            elif failed > rule.max_failed_per_success * done:
                exceeded.append((SiteState.WARNING, f"{failed} of {done + failed} {name} failed"))
        if self.block_s is not None and self._judges_blocks and self.block_s > rule.max_block_s:
            exceeded.append((SiteState.WARNING, f"{self.block_s:.3g} s per block"))
        return tuple(exceeded)

    @property
    def _judges_blocks(self) -> bool:
        return self.blocks + self.block_failed >= self.rule.min_blocks

    @cached_property
    def status(self) -> SiteState:
        """Status by the rule."""
        kinds: Collection[SiteState] = {status for status, _ in self.problems}
        if SiteState.CRITICAL in kinds:
            return SiteState.CRITICAL
        if kinds:
            return SiteState.WARNING
        judged = self._judges_blocks or self.opened + self.open_failed >= self.rule.min_opens
        return SiteState.OK if judged else SiteState.UNKNOWN

    @property
    def letter(self) -> str:
        """Letter of study S1: G, W or F; N for too few operations, a dash for none."""
        if self.total and self.status is SiteState.UNKNOWN:
            return "N"
        return _STUDY_LETTERS.get(self.status, self.status.letter)

    def as_dict(self) -> dict[str, Any]:
        """Return status, reason and figures for tables and programs."""
        return {
            "letter": self.letter,
            "status": self.status.value,
            "opened": self.opened,
            "open_failed": self.open_failed,
            "blocks": self.blocks,
            "block_failed": self.block_failed,
            "block_s": self.block_s,
            "limited_steps": self.limited_steps,
            "reason": str(self),
            "rule_version": self.rule.version,
        }

    def __str__(self) -> str:
        parts = [text for _, text in self.problems]
        if self.status is SiteState.OK:
            opens, reads = self.opened + self.open_failed, self.blocks + self.block_failed
            parts += [f"{self.opened} of {opens} opens succeeded"] * bool(opens)
            parts += [f"{self.blocks} of {reads} reads succeeded"] * bool(reads)
            parts += [f"{self.block_s:.3g} s per block"] if self.block_s is not None else []
        elif self.letter == "N":
            parts = ["too few operations"]
        parts += [f"{self.limited_steps} steps left out"] * bool(self.limited_steps)
        return ", ".join(parts) or "no load test"


def judge_storage_days(
    rows: Iterable[OperationDay], rule: OperationsRule
) -> dict[tuple[str, int], StorageDay]:
    """Judge each storage site and day (YYYYMMDD), in order."""
    groups: defaultdict[tuple[str, int], list[OperationDay]] = defaultdict(list)
    for row in rows:
        groups[row.site, row.day].append(row)
    return {key: StorageDay.from_operations(groups[key], rule) for key in sorted(groups)}
