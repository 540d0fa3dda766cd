"""Load tests: states of storages by day, and the spread of real starts that were to be common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from treehammer.analysis.status.subject_state import SiteState
from treehammer.collectors.job_spec import ALONE, LATE, MAX_START_SPREAD_S
from treehammer.collectors.record.metric_catalogue import Value
from treehammer.load.operation_figures import OperationDay
from treehammer.text_formatting import format_share

if TYPE_CHECKING:
    # pydantic takes long to load, and the status of a campaign needs no rules.
    from treehammer.hctests.definition.toml_models import LoadTable
    from treehammer.watch.states.status_rules import OperationsRule


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
            parts += [f"{self.opened:,} of {opens:,} opens succeeded"] * bool(opens)
            parts += [f"{self.blocks:,} of {reads:,} reads succeeded"] * bool(reads)
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


#: Columns of a measurement that :func:`summarize_starts` needs.
START_COLUMNS = (
    "job_id",
    "attempt",
    "round",
    "position",
    "failure_class",
    "load_index",
    "load_jobs",
    "start_state",
    "start_planned_us",
    "start_offset_s",
    "clock_error_s",
)

_Row = Mapping[str, Value]


@dataclass(frozen=True)
class StartSpread:
    """Real starts after one common start.

    Attributes:
        start_us: the common start, microseconds since 1970 UTC.
        jobs: planned jobs.
        started: jobs that began their load.
        late: those of them that began too late, by up to ``latest_s``.
        spread_s: time between the first and the last real start, each from the start of its level;
            None if fewer than two are known.
        clock_error_s: the largest error of a node's clock; 0 if all jobs share one.
        missing_load: share of the planned load that late and absent jobs did not deliver.
    """

    start_us: int
    jobs: int
    started: int
    late: int
    latest_s: float
    spread_s: float | None
    clock_error_s: float
    missing_load: float

    @property
    def judgment(self) -> str:
        """``good`` if all jobs started within the spread of study S4, ``bad`` or ``unclear``."""
        spread_s = 0.0 if self.jobs == 1 else self.spread_s
        if self.late or self.started < self.jobs:
            return "bad"
        if spread_s is None:
            return "unclear"
        if spread_s + 2 * self.clock_error_s <= MAX_START_SPREAD_S:
            return "good"
        # Each of two clocks may be wrong by its error.
        return "bad" if spread_s - 2 * self.clock_error_s > MAX_START_SPREAD_S else "unclear"

    def describe(self) -> str:
        """Describe the starts in one line."""
        spread = "unknown" if self.spread_s is None else f"{1000 * self.spread_s:.0f} ms"
        clocks = f", clocks within {1000 * self.clock_error_s:.1f} ms" * bool(self.clock_error_s)
        parts = [
            f"{self.started} of {self.jobs} jobs started together, spread {spread} (at most "
            f"{1000 * MAX_START_SPREAD_S:.0f} ms{clocks})"
        ]
        if self.late:
            parts.append(f"{self.late} late, by up to {self.latest_s:.1f} s")
        if self.missing_load > 0.0005:
            parts.append(f"{format_share(self.missing_load, 1)} of the load missing")
        return f"{self.judgment}: {'; '.join(parts)}"


def summarize_starts(rows: Iterable[_Row], load: LoadTable) -> list[StartSpread]:
    """Summarize each common start of a campaign, in order of time.

    Args:
        rows: the campaign's measurements with :data:`START_COLUMNS`.
        load: of its test.
    """
    groups: dict[int, list[_Row]] = defaultdict(list)
    for row in _select_last_attempts(rows):
        if row["start_planned_us"] is not None:
            groups[int(str(row["start_planned_us"]))].append(row)
    return [_summarize_start(start_us, groups[start_us], load) for start_us in sorted(groups)]


def count_lonely_starts(rows: Iterable[_Row]) -> int:
    """Count the measurements whose load began without a common start."""
    return sum(row["start_state"] == ALONE for row in _select_last_attempts(rows))


def _select_last_attempts(rows: Iterable[_Row]) -> Iterator[_Row]:
    last: dict[tuple[Value, ...], _Row] = {}
    for row in rows:
        key = (row["job_id"], row["round"], row["position"])
        if _is_watch(row):
            continue  # It loads nothing.
        if key not in last or _number(row, "attempt") > _number(last[key], "attempt"):
            last[key] = row
    yield from last.values()


def _summarize_start(start_us: int, rows: Sequence[_Row], load: LoadTable) -> StartSpread:
    jobs = int(_number(rows[0], "load_jobs"))
    started = [row for row in rows if row["failure_class"] in (None, "")]
    offsets = [
        _number(row, "start_offset_s") for row in started if row["start_offset_s"] is not None
    ]
    late = [row for row in started if row["start_state"] == LATE]
    return StartSpread(
        start_us=start_us,
        jobs=jobs,
        started=len(started),
        late=len(late),
        latest_s=max((_number(row, "start_offset_s") for row in late), default=0.0),
        spread_s=max(offsets) - min(offsets) if len(offsets) > 1 else None,
        clock_error_s=max((_number(row, "clock_error_s") for row in started), default=0.0),
        missing_load=_missing_load(started, jobs, load),
    )


def _missing_load(started: Iterable[_Row], jobs: int, load: LoadTable) -> float:
    """Return the share of the planned load that late and absent jobs did not deliver."""
    planned = sum(_planned_s(load, index) for index in range(jobs))
    delivered = sum(
        _planned_s(load, int(_number(row, "load_index"))) - max(0.0, _number(row, "start_offset_s"))
        for row in started
    )
    return max(0.0, 1 - delivered / planned) if planned > 0 else 0.0


def _is_watch(row: _Row) -> bool:
    return row["load_index"] is not None and _number(row, "load_index") >= _number(row, "load_jobs")


def _planned_s(load: LoadTable, index: int) -> float:
    return max(0.0, load.duration_s - load.level_start_s(index))


def _number(row: _Row, name: str) -> float:
    value = row[name]
    return float(value) if isinstance(value, int | float) else 0.0
