"""Rates, failures and latencies of operations, merged over steps, jobs and servers, or by day."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.latency_histograms import QUANTILES, LatencyHistogram
from treehammer.collectors.record.operation_steps import CLIENT, MAIN_OPERATIONS, OPERATION_FIGURES
from treehammer.collectors.record.outcome import OUTCOME_COLUMNS, Outcome, classify_outcome
from treehammer.sql.core.measurement_columns import decode_latency
from treehammer.sql.core.schema import (
    ROLLUP_COUNTS,
    dimension_tables,
    rollup_column_names,
    rollup_day,
    rollup_operation,
)
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader

Row = Mapping[str, Any]
#: A ceiling that holds back a larger share of the operations was the limit; a smaller share is held
#: back where instants of several readers coincide.
MAX_HELD_FRACTION = 0.5
#: Key that steps of one group share, beside side and operation; None leaves a step out.
FindKey = Callable[[Row], Hashable | None]
#: Measurement, begin and end of a step in µs -> its clients.
_Intervals = dict[tuple[str, int, int], int]


@dataclass(frozen=True)
class OperationGroup:
    """One operation on one side, over all steps that share a key.

    Steps in which the load generator was the limit are counted, but enter no other figure.

    Attributes:
        key: the key that the steps share.
        side: ``client`` or ``server``.
        operation: its name.
        measurements: number of measurements that performed it.
        active_clients: most clients that were active at one time.
        seconds: time that the steps cover; simultaneous steps count once, and where some are left out,
            by the share of the others.
        due_seconds: the same without the time after a load in which overdue answers came.
        steps: number of time steps that enter the figures, of all jobs.
        limited_steps: number of time steps left out, of all jobs.
        limited_seconds: time that these cover, with successful operations, their bytes and failures
            in ``limited_done``, ``limited_bytes`` and ``limited_failures``.
        scheduled: operations that were due.
        done: operations that succeeded.
        failed: operations that failed.
        late: operations that were sent late.
        held: operations that the door's ceiling held back, those of steps left out among them, where
            ``due`` operations were due.
        bytes: bytes that successful operations moved.
        failures: failed operations by class.
        latency: latencies of successful operations.
        round_trip_s: mean round trip to the door over these operations; None if it is unknown for
            one, or not among the requested columns.
    """

    key: Hashable
    side: str
    operation: str
    measurements: int
    active_clients: int
    seconds: float
    due_seconds: float
    steps: int
    limited_steps: int
    scheduled: int
    done: int
    failed: int
    late: int
    bytes: int
    failures: Mapping[str, int]
    latency: LatencyHistogram
    round_trip_s: float | None = None
    limited_seconds: float = 0.0
    limited_done: int = 0
    limited_bytes: int = 0
    limited_failures: Mapping[str, int] = field(default_factory=dict)
    held: int = 0
    due: int = 0

    @property
    def is_limited(self) -> bool:
        """Whether the load generator was the limit in all steps in which operations were due."""
        return self.limited_steps > 0 and not self.scheduled

    @property
    def least_hz(self) -> float | None:
        """Lower bound of the rate that the storage carries, if only limited steps measured it."""
        return self._find_least(self.limited_done)

    @property
    def least_bytes_per_s(self) -> float | None:
        """Lower bound of the traffic, as :attr:`least_hz`."""
        return self._find_least(self.limited_bytes)

    def _find_least(self, amount: int) -> float | None:
        return amount / self.limited_seconds if self.is_limited and self.limited_seconds else None

    @property
    def held_fraction(self) -> float | None:
        """Share of the operations that the door's ceiling held back; None if none were due."""
        return self.held / self.due if self.due else None

    @property
    def is_held(self) -> bool:
        """Whether the door's ceiling was the limit of the load, and most operations succeeded."""
        is_failing = self.failed >= self.done + self.limited_done
        return not is_failing and (self.held_fraction or 0.0) > MAX_HELD_FRACTION

    def describe_limit(self) -> str:
        """Describe a load of which only lower bounds are known; '' for others."""
        if self.is_held:
            limit = (
                "the door's ceiling (key load in the sites file) was the limit, not the storage: it held "
                f"back {100 * (self.held_fraction or 0.0):.3g} % of the operations"
            )
        elif self.is_limited:
            limit = "the load generator was the limit in all steps"
        else:
            return ""
        done_hz = self.least_hz if self.observed_hz is None else self.observed_hz
        bytes_per_s = self.least_bytes_per_s if self.bytes_per_s is None else self.bytes_per_s
        if not done_hz:
            return "" if done_hz is None else f"{limit}, and no operation succeeded"
        bounds = [f"{done_hz:.3g} operations/s"]
        if bytes_per_s:
            bounds.append(f"{bytes_per_s / 1e6:.3g} MB/s")
        return (
            f"{limit}, so that only lower bounds are known: the storage carries at least "
            f"{' and '.join(bounds)}"
        )

    @property
    def attempted_hz(self) -> float | None:
        """Operations due per second; None without any counted step."""
        return self.scheduled / self.due_seconds if self.due_seconds else None

    @property
    def observed_hz(self) -> float | None:
        """Successful operations per second."""
        return self.done / self.seconds if self.seconds else None

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes moved per second."""
        return self.bytes / self.seconds if self.seconds else None

    @property
    def failed_fraction(self) -> float | None:
        """Share of the ended operations that failed; None if none ended."""
        ended = self.done + self.failed
        return self.failed / ended if ended else None

    @property
    def net_mean_s(self) -> float | None:
        """Mean latency without the round trip; None if that is unknown."""
        if self.round_trip_s is None:
            return None
        return max(0.0, self.latency.mean - self.round_trip_s)

    def list_figures(self) -> dict[str, Any]:
        """Return all figures by name, with the quantiles of the latency in seconds."""
        return {
            name: getattr(self, name) for name in OPERATION_FIGURES
        } | self.latency.list_quantiles()


def load_operations(
    snapshot: DatabaseSnapshot,
    selection: Selection,
    *,
    columns: Sequence[str] = (),
    key: FindKey = lambda _row: (),
) -> list[OperationGroup]:
    """Merge the operations of the selected measurements that are timed and good.

    Args:
        snapshot: state of the database.
        selection: the measurements.
        columns: catalogue columns that ``key`` needs beside those of the operation.
        key: key that steps of one group share, beside side and operation.

    Returns:
        groups in the order of their first rows.
    """
    [groups] = load_groupings(snapshot, selection, [key], columns=columns)
    return groups


def load_groupings(
    snapshot: DatabaseSnapshot,
    selection: Selection,
    keys: Sequence[FindKey],
    *,
    columns: Sequence[str],
) -> list[list[OperationGroup]]:
    """Merge operations by each of several keys; see :func:`load_operations`."""
    needed = dict.fromkeys(("kind", *OUTCOME_COLUMNS, *columns))
    groupings = [_OperationGrouping(find_key) for find_key in keys]
    for row in snapshot.operations(selection, tuple(needed)):
        if row["kind"] != TIMED or classify_outcome(row) is not Outcome.GOOD:
            continue
        groups = [grouping.find_group(row) for grouping in groupings]
        if not any(groups):
            continue
        latency = decode_latency(str(row["latency"] or ""))
        for sums in filter(None, groups):
            sums.add(row, latency)
    return [grouping.build_groups() for grouping in groupings]


class _OperationGrouping:
    """Sums of operations by key, side and operation."""

    def __init__(self, find_key: FindKey) -> None:
        self._find_key = find_key
        self._sums: defaultdict[tuple[Hashable, str, str], _OperationSums] = defaultdict(
            _OperationSums
        )

    def find_group(self, row: Row) -> _OperationSums | None:
        """Return the sums that a row belongs to; None if it is left out."""
        key = self._find_key(row)
        return None if key is None else self._sums[key, str(row["side"]), str(row["operation"])]

    def build_groups(self) -> list[OperationGroup]:
        """Return the groups in the order of their first rows."""
        return [sums.build(*names) for names, sums in self._sums.items()]


class _OperationSums:
    """Sums over the rows of one group."""

    def __init__(self) -> None:
        own_counts = ("steps", "limited_steps", "limited_done", "limited_bytes", "held", "due")
        self.counts = dict.fromkeys((*own_counts, *ROLLUP_COUNTS), 0)
        self.failures: Counter[str] = Counter()
        self.limited_failures: Counter[str] = Counter()
        self.latency = LatencyHistogram()
        self.round_trips_s: float | None = 0.0
        self.measurements: set[str] = set()
        # All servers share a step and its clients.
        self.intervals: _Intervals = {}
        self.limited_intervals: _Intervals = {}

    def add(self, row: Row, latency: LatencyHistogram) -> None:
        self.measurements.add(row["measurement_id"])
        self.counts["held"] += row["held"] or 0
        self.counts["due"] += row["scheduled"]
        start_us = row["step_start_us"]
        interval = (row["measurement_id"], start_us, start_us + round(row["step_s"] * 1e6))
        failures = self.limited_failures if row["generator_limited"] else self.failures
        is_step = row["clients"] > 0 or row["side"] != CLIENT  # and no time of late answers
        if row["failed"]:
            failures.update(json.loads(row["failures"]))
        if row["generator_limited"]:
            self.counts["limited_steps"] += is_step and interval not in self.limited_intervals
            self.counts["limited_done"] += row["done"]
            self.counts["limited_bytes"] += row["bytes"]
            self.limited_intervals[interval] = row["clients"]
            return
        self.counts["steps"] += is_step and interval not in self.intervals
        for name in ROLLUP_COUNTS:
            self.counts[name] += row[name]
        self.latency.add(latency)
        trip_s = row.get("door_rtt_s")
        if trip_s is None or self.round_trips_s is None:
            self.round_trips_s = None
        else:
            self.round_trips_s += row["done"] * trip_s
        self.intervals[interval] = max(self.intervals.get(interval, 0), row["clients"])

    def build(self, key: Hashable, side: str, operation: str) -> OperationGroup:
        is_limited = self.counts["limited_steps"] and not self.counts["scheduled"]
        intervals = {} if is_limited else self.intervals
        count, trips_s = self.counts["done"], self.round_trips_s
        share = count / ((count + self.counts["limited_done"]) or 1)
        seconds, due_seconds = _count_seconds(intervals, self.limited_intervals, side, share)
        return OperationGroup(
            key=key,
            side=side,
            operation=operation,
            measurements=len(self.measurements),
            active_clients=_sweep_intervals(intervals, self.limited_intervals)[1],
            seconds=seconds,
            due_seconds=due_seconds,
            failures=dict(self.failures.most_common()),
            latency=self.latency,
            round_trip_s=trips_s / count if count and trips_s is not None else None,
            limited_seconds=_sweep_intervals(self.limited_intervals, {})[0],
            limited_failures=dict(self.limited_failures.most_common()),
            **self.counts,
        )


def _count_seconds(
    counted: _Intervals, limited: _Intervals, side: str, done_share: float
) -> tuple[float, float]:
    """Return the seconds that intervals cover, and those without the time of late answers.

    Steps of jobs at a time that are left out leave out their share of both.  Where answers came late, they
    came in any steps: then ``done_share``, that of the other steps' answers, makes the rate that of all.
    """
    intervals = {**counted, **limited}
    steps = {key: n for key, n in intervals.items() if n or side != CLIENT}
    lengths = {key: key[2] - key[1] for key in steps}
    counted_us = sum(length for key, length in lengths.items() if key in counted)
    share = counted_us / max(sum(lengths.values()), 1)
    has_late = len(steps) < len(intervals)
    all_share = done_share if has_late and done_share else share
    return all_share * _sweep_intervals(intervals, {})[0], share * _sweep_intervals(steps, {})[0]


def _sweep_intervals(intervals: _Intervals, beside: _Intervals) -> tuple[float, int]:
    """Return the seconds that any interval covers, and the most clients in them, with those beside."""
    # At equal times, ends come first.
    events = sorted(
        event
        for part, change in ((intervals, 1), (beside, 0))
        for (_, start, end), clients in part.items()
        for event in ((start, change, clients), (end, -change, -clients))
    )
    covered_us = active = clients = most = since = 0
    for time, change, more in events:
        if active:
            covered_us += time - since
        since = time
        active += change
        clients += more
        most = max(most, clients) if active else most
    return covered_us / 1e6, most


_DAY_COLUMNS = ("limited_steps", "done", "failed", "latency")


@dataclass(frozen=True)
class OperationDay:
    """One operation of one subject on one day (UTC, YYYYMMDD), as its clients saw it.

    Attributes:
        site: site of the storage.
        day: the day.
        operation: its name.
        limited_steps: time steps left out because the load generator was the limit.
        done: operations that succeeded.
        failed: operations that failed.
        latency: latencies of successful operations.
        round_trip_s: mean round trip to the door; None if unknown.
    """

    site: str
    day: int
    operation: str
    limited_steps: int
    done: int
    failed: int
    latency: LatencyHistogram
    round_trip_s: float | None


def list_operation_days(store: ResultsReader, first: int, last: int) -> list[OperationDay]:
    """List the operations of good measurements from ``first`` to ``last`` (YYYYMMDD)."""
    subject, table = dimension_tables["subject"], rollup_operation.c
    site = subject.c.storage_site
    condition = sa.and_(
        table.day.between(first, last), table.side == CLIENT, table.outcome == Outcome.GOOD.value
    )
    columns = (
        table.subject_id,
        table.day,
        site,
        table.operation,
        *(table[c] for c in _DAY_COLUMNS),
    )
    query = (
        sa.select(*columns)
        .select_from(rollup_operation.join(subject))
        .where(condition)
        .order_by(site, table.day, table.operation, table.subject_id)
    )
    count, total, _ = rollup_column_names("door_rtt_s")
    by = (rollup_day.c.subject_id, rollup_day.c.day)
    sums = sa.func.sum(rollup_day.c[total]), sa.func.sum(rollup_day.c[count])
    trips = (
        sa.select(*by, *sums)
        .where(
            rollup_day.c.day.between(first, last),
            rollup_day.c.subject_id.in_(sa.select(table.subject_id).where(condition)),
            rollup_day.c[count] > 0,
        )
        .group_by(*by)
    )
    with store.connection() as connection:
        rows = connection.execute(query).all()
        round_trips = {
            (subject_id, day): float(seconds) / int(number)
            for subject_id, day, seconds, number in (connection.execute(trips) if rows else ())
        }
    return [
        OperationDay(
            site=storage or "",
            day=int(day),
            operation=operation,
            limited_steps=int(limited),
            done=int(successes),
            failed=int(failed),
            latency=decode_latency(latency),
            round_trip_s=round_trips.get((subject_id, day)),
        )
        for subject_id, day, storage, operation, limited, successes, failed, latency in rows
    ]


def add_figures(
    snapshot: DatabaseSnapshot, selection: Selection, rows: Iterable[dict[str, Any]]
) -> None:
    """Add the figures that tests state as their metrics, of operations on the client's side.

    Args:
        selection: of the campaigns of the rows.
        rows: measurements with ``headline``.
    """
    operations: dict[str, dict[str, OperationGroup]] = defaultdict(dict)
    for group in load_operations(snapshot, selection, key=lambda row: row["measurement_id"]):
        if group.side == CLIENT:
            operations[str(group.key)][group.operation] = group
    for row in rows:
        groups = operations.get(row["measurement_id"], {})
        main = next((name for name in MAIN_OPERATIONS if name in groups), "")
        for metric in row["headline"]:
            name = metric.operation or main
            if metric.figure and name in groups:
                row[metric.name] = _compute_figure(groups[name], metric.figure)


def _compute_figure(group: OperationGroup, figure: str) -> float | None:
    """Compute a figure; a quantile needs as many latencies as make one lie above it."""
    if figure in QUANTILES:
        share, count = QUANTILES[figure], group.latency.count
        enough = count > 0 and (share == 1 or count * (1 - share) >= 1 - 1e-9)
        return group.latency.quantile(share) if enough else None
    if figure == "rate_hz":
        return group.observed_hz
    if figure == "bytes_per_s":
        return group.bytes_per_s
    return None if group.failed_fraction is None else 1 - group.failed_fraction
