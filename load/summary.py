"""Rates, failures and latencies of the operations of load tests, by group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from treehammer.analysis.descriptive.group_summary import (
    CONTEXT_COLUMNS,
    check_axes,
    load_timed_rows,
)
from treehammer.analysis.statistics.job_pairs import find_distinguishing_names, lookup_value
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.record.latency_histograms import QUANTILES
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.operation_steps import CLIENT, FIGURE_NAMES, FILES_UNREAD
from treehammer.load.operation_figures import OperationGroup, load_operations
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.tables import TableColumn, hidden_columns
from treehammer.text_formatting import pluralize

#: Columns of an operation to group by, beside axes and columns of its measurement.
STEP_COLUMNS = ("step", "server")
_MORE_JOBS = "To find more: more jobs with fewer clients each, on free nodes."
_HIGHER_CEILING = (
    "To find more: a higher load of the door in the sites file, with the site's consent."
)
_OPERATIONS_NOTE = (
    "Rates are over the time that the steps cover, observed ones until the answers came; latencies are "
    "those of successful operations, from the scheduled instant. Steps in which the load generator was "
    "the limit are left out."
)


@dataclass(frozen=True)
class OperationSummary:
    """Operations of load tests in groups.

    Attributes:
        by: axes, columns of the catalogue and :data:`STEP_COLUMNS`.
        groups: in order; the key of each has a value for every name in ``by``.
    """

    by: Sequence[str]
    groups: Sequence[OperationGroup]

    def list_rows(self) -> list[dict[str, Any]]:
        """List a row of each operation and group."""
        names = [*map(_name_key, self.by)]
        keys: list[Any] = [group.key for group in self.groups]
        return [
            dict(zip(names, key, strict=True)) | group.list_figures()
            for key, group in zip(keys, self.groups, strict=True)
        ]

    def make_columns(self, _rows: Sequence[Mapping[str, Any]]) -> list[TableColumn]:
        """Make the columns of :meth:`list_rows`."""
        return [*(TableColumn(_name_key(name), name) for name in self.by), *_OPERATION_COLUMNS]

    def describe_notes(self) -> Iterator[str]:
        """Describe the figures, the loads with lower bounds alone, and the failures."""
        yield _OPERATIONS_NOTE
        if "step" not in self.by:  # answers may have come in later steps
            yield from _describe_limits(self.groups, self.by)
        yield from _describe_failures(self.groups)


def _describe_limits(groups: Sequence[OperationGroup], by: Sequence[str]) -> list[str]:
    """Describe each load of which only lower bounds are known."""
    texts = []
    remedies: dict[str, None] = {}
    for group in groups:
        key: Any = group.key
        values = (f"{name} {value}" for name, value in zip(by, key, strict=True))
        side = group.side if group.side != CLIENT else ""
        if limit := group.describe_limit():
            texts.append(f"{', '.join(filter(None, (*values, group.operation, side)))}: {limit}.")
            remedies[_HIGHER_CEILING if group.is_held else _MORE_JOBS] = None
    return [*texts, *remedies]


def list_limited_loads(snapshot: DatabaseSnapshot, selection: Selection) -> list[str]:
    """Describe each load of which only lower bounds are known, and files that loads left unread."""
    by = ("storage_site", "door", "variant_label")
    groups = load_operations(snapshot, selection, columns=("variant", *by), key=_GroupKey(by).find)
    groups.sort(key=lambda group: (str(group.key), group.operation, group.side))
    texts = []
    for group in groups:
        key: Any = group.key
        names = (*key, group.operation, group.side if group.side != CLIENT else "")
        if limit := group.describe_limit():
            texts.append(f"{', '.join(filter(None, names))}: {limit}.")
    return [*texts, *describe_unread(snapshot, selection)]


def describe_unread(snapshot: DatabaseSnapshot, selection: Selection) -> Iterator[str]:
    """Describe the files that loads left unread when their time was over, if there are any."""
    extras = snapshot.extras(selection)
    unread = int(sum(extra.value for extra in extras if extra.name == FILES_UNREAD))
    if unread:
        yield f"The load ended at its longest duration (load.duration_s) with {pluralize(unread, 'file')} unread."


def _describe_failures(groups: Sequence[OperationGroup]) -> Iterator[str]:
    """Describe the failures of each operation by class, the most frequent first."""
    for steps, find_failures in (
        ("", attrgetter("failures")),
        (" of steps left out", attrgetter("limited_failures")),
    ):
        totals: dict[str, Counter[str]] = defaultdict(Counter)
        for group in groups:
            totals[group.operation].update(find_failures(group))
        parts = [
            f"{operation}: {', '.join(f'{name} {count:,}' for name, count in counts.most_common())}"
            for operation, counts in sorted(totals.items())
            if counts
        ]
        if parts:
            yield f"Failed operations{steps}: {'; '.join(parts)}."


class _GroupKey:
    """Values of the columns to group by, looked up once for each measurement."""

    def __init__(self, by: Sequence[str]) -> None:
        self._by = by
        self._measurements: dict[str, dict[str, Any]] = {}

    def find(self, row: Mapping[str, Any]) -> tuple[Any, ...] | None:
        if "step" in self._by and not row["clients"] and row["side"] == CLIENT:
            return None  # the time of late answers
        axis_values = self._measurements.get(row["measurement_id"])
        if axis_values is None:
            axis_values = {name: lookup_value(row, name) for name in self._by}
            self._measurements[row["measurement_id"]] = axis_values
        return tuple(row[name] if name in STEP_COLUMNS else axis_values[name] for name in self._by)


def _sort_key(group: OperationGroup) -> tuple[Any, ...]:
    key: Any = group.key
    parts = tuple((2,) if value is None else natural_sort_key(value) for value in key)
    return (*parts, group.operation, group.side)


def _name_key(name: str) -> str:
    """Name a grouping column in a line, where an axis may have the name of a figure."""
    return f"axis_{name}" if name in FIGURE_NAMES else name


def _make_column(key: str, title: str, factor: float = 1) -> TableColumn:
    def format_value(value: float) -> str:
        """Format a number with three significant digits, without an exponent."""
        value *= factor
        limits = ((0, 99.95), (1, 9.995), (2, 0.9995))
        return f"{value:.{next((n for n, limit in limits if value >= limit), 3)}f}"

    return TableColumn(key, title, format_value, is_number=True)


_OPERATION_COLUMNS = (
    TableColumn("operation", "operation"),
    TableColumn("side", "side"),
    TableColumn("active_clients", "active\nclients", is_number=True),
    _make_column("attempted_hz", "attempted\n(1/s)"),
    _make_column("observed_hz", "observed\n(1/s)"),
    _make_column("failed_fraction", "failed\n(%)", 100),
    *(_make_column(name, f"{name[:-2]}\n(ms)", 1000) for name in QUANTILES),
    _make_column("bytes_per_s", "rate\n(MB/s)", 1e-6),
    TableColumn("limited_steps", "steps\nleft out", is_number=True),
    *hidden_columns("held_fraction"),
)


def summarize(
    store: ResultsReader, selection: Selection, by: Sequence[str]
) -> OperationSummary | None:
    """Summarize operations by some names, by default by all that vary; None without operations."""
    with store.snapshot() as snapshot:
        if not snapshot.has_operations(selection):
            return None
    group_columns = [name for name in by if name not in STEP_COLUMNS]
    rows = load_timed_rows(store, selection, (), group_columns)
    by = by or find_distinguishing_names(rows, CONTEXT_COLUMNS)
    check_axes(rows, group_columns)
    with store.snapshot() as snapshot:
        columns = ["variant", *(name for name in by if name in METRICS_BY_NAME)]
        groups = load_operations(snapshot, selection, columns=columns, key=_GroupKey(by).find)
    return OperationSummary(by, sorted(groups, key=_sort_key))
