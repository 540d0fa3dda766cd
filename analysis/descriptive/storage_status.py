"""Status of a storage's day by its load tests, after study S1.

Thresholds are in ``storage_rule.toml``.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from treehammer.analysis.descriptive.day_status import DayStatus
from treehammer.sql.read.load_days import OperationDay

RULE_FILE = Path(__file__).with_name("storage_rule.toml")


@dataclass(frozen=True)
class StorageRule:
    """Thresholds of the status, and target rates, as in ``storage_rule.toml``."""

    version: int
    opens: tuple[str, ...]
    blocks: tuple[str, ...]
    max_failed_per_success: float
    max_block_s: float
    min_opens: int
    min_blocks: int
    target_open_hz: float
    target_read_bytes_per_s: float

    def describe(self) -> str:
        """Describe the rule in words."""
        return (
            "Failing: no open, or no read, succeeded. Warning: failures are more than "
            f"{self.max_failed_per_success:.0%} of the successes, or a block takes more than "
            f"{self.max_block_s:g} s on average, without the round trip to the door. "
            f"N: fewer than {self.min_opens} opens and {self.min_blocks} reads ended. "
            "Steps in which the load generator was the limit are left out. "
            f"Rule {self.version}, after study S1."
        )


@cache
def load_rule() -> StorageRule:
    """Load the shipped rule."""
    values: dict[str, Any] = tomllib.loads(RULE_FILE.read_text(encoding="utf-8"))
    targets = values.pop("targets")
    values.update({name: tuple(values[name]) for name in ("opens", "blocks")})
    values.update({f"target_{name}": value for name, value in targets.items()})
    return StorageRule(**values)


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
    rule: StorageRule

    @classmethod
    def from_operations(cls, rows: Iterable[OperationDay], rule: StorageRule) -> StorageDay:
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

    @cached_property
    def problems(self) -> tuple[tuple[DayStatus, str], ...]:
        """Exceeded thresholds."""
        rule = self.rule
        found = []
        for name, done, failed, least in (
            ("opens", self.opened, self.open_failed, rule.min_opens),
            ("reads", self.blocks, self.block_failed, rule.min_blocks),
        ):
            if not failed or done + failed < least:
                continue
            if not done:
                found.append((DayStatus.FAILING, f"none of {failed} {name} succeeded"))
            elif failed > rule.max_failed_per_success * done:
                found.append((DayStatus.WARNING, f"{failed} of {done + failed} {name} failed"))
        if self.block_s is not None and self._judges_blocks and self.block_s > rule.max_block_s:
            found.append((DayStatus.WARNING, f"{self.block_s:.3g} s per block"))
        return tuple(found)

    @property
    def _judges_blocks(self) -> bool:
        return self.blocks + self.block_failed >= self.rule.min_blocks

    @cached_property
    def status(self) -> DayStatus:
        """Status by the rule."""
        kinds: Collection[DayStatus] = {status for status, _ in self.problems}
        if DayStatus.FAILING in kinds:
            return DayStatus.FAILING
        if kinds:
            return DayStatus.WARNING
        judged = self._judges_blocks or self.opened + self.open_failed >= self.rule.min_opens
        return DayStatus.GOOD if judged else DayStatus.NO_DATA

    @property
    def letter(self) -> str:
        """Letter of the status; N for too few operations, a dash for none."""
        return "N" if self.total and self.status is DayStatus.NO_DATA else self.status.letter

    def as_dict(self) -> dict[str, Any]:
        """Status, reason and figures, for tables and programs."""
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
        if self.status is DayStatus.GOOD:
            opens, reads = self.opened + self.open_failed, self.blocks + self.block_failed
            parts += [f"{self.opened} of {opens} opens succeeded"] * bool(opens)
            parts += [f"{self.blocks} of {reads} reads succeeded"] * bool(reads)
            parts += [f"{self.block_s:.3g} s per block"] if self.block_s is not None else []
        elif self.letter == "N":
            parts = ["too few operations"]
        parts += [f"{self.limited_steps} steps left out"] * bool(self.limited_steps)
        return ", ".join(parts) or "no load test"


def judge_storage_days(
    rows: Iterable[OperationDay], rule: StorageRule
) -> dict[tuple[str, int], StorageDay]:
    """Judge each storage site and day (YYYYMMDD), in order."""
    groups: defaultdict[tuple[str, int], list[OperationDay]] = defaultdict(list)
    for row in rows:
        groups[row.site, row.day].append(row)
    return {key: StorageDay.from_operations(groups[key], rule) for key in sorted(groups)}
