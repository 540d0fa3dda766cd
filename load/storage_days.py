"""States of storages by day, from load tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from treehammer.analysis.status.site_uses import SiteState
from treehammer.collectors.record.day_numbers import number_to_day
from treehammer.load.operation_figures import OperationDay, list_operation_days
from treehammer.sql.read.reader import ResultsReader
from treehammer.tables import DataTable, TableColumn

if TYPE_CHECKING:
    # pydantic takes long to load, and the status of a campaign needs no rules.
    from treehammer.analysis.status.day_outcomes import OperationsRule


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
        for name, successes, failed, minimum in (
            ("opens", self.opened, self.open_failed, rule.min_opens),
            ("reads", self.blocks, self.block_failed, rule.min_blocks),
        ):
            if not failed or successes + failed < minimum:
                continue
            if not successes:
                exceeded.append((SiteState.CRITICAL, f"none of {failed} {name} succeeded"))
            elif failed > rule.max_failed_per_success * successes:
                exceeded.append(
                    (SiteState.WARNING, f"{failed:,} of {successes + failed:,} {name} failed")
                )
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
    def grade(self) -> str:
        """Word for the day: its status."""
        return self.status.value

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
            parts += [f"{self.opened:,} of {opens:,} opens succeeded"] if opens else []
            parts += [f"{self.blocks:,} of {reads:,} reads succeeded"] if reads else []
            parts += [f"{self.block_s:.3g} s per block"] if self.block_s is not None else []
        elif self.letter == "N":
            parts = ["too few operations"]
        parts += [f"{self.limited_steps} steps left out"] if self.limited_steps else []
        return ", ".join(parts) or "no load test"


def judge_days(
    store: ResultsReader, first_day: int, last_day: int, rule: OperationsRule
) -> dict[tuple[str, int], StorageDay]:
    """Judge each storage site and day (YYYYMMDD) with load tests, in order."""
    groups: defaultdict[tuple[str, int], list[OperationDay]] = defaultdict(list)
    for row in list_operation_days(store, first_day, last_day):
        groups[row.site, row.day].append(row)
    return {key: StorageDay.from_operations(groups[key], rule) for key in sorted(groups)}


_LETTER_COLUMNS = (
    TableColumn("storage_site", "storage site"),
    TableColumn("day", "day"),
    TableColumn("letter", ""),
    TableColumn("opened", "opened", is_number=True),
    TableColumn("open_failed", "failed", is_number=True),
    TableColumn("blocks", "read", is_number=True),
    TableColumn("block_failed", "failed", is_number=True),
    TableColumn("block_s", "block (s)", lambda value: f"{value:.3f}", is_number=True),
    TableColumn("reason", "reason"),
)


def tabulate_days(store: ResultsReader, first_day: int, last_day: int, caption: str) -> DataTable:
    """Make a table of the status of each storage and day with load tests."""
    from treehammer.analysis.status.day_outcomes import OperationsRule

    rule = OperationsRule()
    judged = judge_days(store, first_day, last_day, rule)
    rows = [
        {"storage_site": site, "day": str(number_to_day(day)), **storage_day.as_dict()}
        for (site, day), storage_day in judged.items()
    ]
    return DataTable("letters", caption, _LETTER_COLUMNS, rows, note=rule.describe())
