"""Columns of tables by the names of their values: titles, formats, links and alignment in one place.

Metrics have the titles of the catalogue. A page writes ``column("site")``, and what differs on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from treehammer.analysis.comparison.verdict_text import format_milliseconds
from treehammer.analysis.status.rule_judgements import DayOutcomes
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.tables import Row, TableColumn
from treehammer.text_formatting import format_duration, format_size
from treehammer.web.addresses import link_rows
from treehammer.web.display_formats import format_per_cent, format_time
from treehammer.web.labels import VARIANT_COLUMN, VariantLabels, title_column

#: Columns of a measurement that state its outcome.
OUTCOME_COLUMNS = (
    "plausible",
    "implausible_reasons",
    "failure_class",
    "failure_kind",
    "failure_phase",
    "failure_message",
)


def find_state_class(row: Row) -> str:
    """Return the CSS class of a row's state; none for a superseded one."""
    return "" if row.get("superseded_us") else str(row["state"]).lower().replace(" ", "-")


def _count(key: str, title: str = "") -> TableColumn:
    return TableColumn(key, title or key.replace("_", " "), is_number=True)


def _long(key: str, title: str = "") -> TableColumn:
    return TableColumn(key, title or key.replace("_", " "), is_long=True)


def _time(key: str, title: str) -> TableColumn:
    return TableColumn(key, title, format_time)


_DECLARED = (
    TableColumn("site", "site", link=link_rows("site", site="site")),
    TableColumn("storage_site", "storage"),
    TableColumn("job_id", "job", link=link_rows("job", job_id="job_id")),
    TableColumn("test_name", "test"),
    TableColumn("axis_root", "ROOT"),
    TableColumn("root", "ROOT"),
    TableColumn("root_version", "ROOT"),
    TableColumn("day", "day (UTC)"),
    TableColumn("state", "state", css_class=find_state_class),
    TableColumn("status", "status", css_class=lambda row: str(row["status"]).replace(" ", "-")),
    TableColumn("cause", "by"),
    TableColumn("failure_class", "class"),
    TableColumn("failure_kind", "kind"),
    TableColumn("failure_phase", "phase"),
    *map(_long, ("reason", "message", "remark", "remedy", "occasion", "result")),
    *map(_count, ("good", "failed", "implausible", "not_supported", "measurements")),
    *map(
        _count,
        ("round", "position", "attempts", "transient", "repeat", "recorded", "planned", "share"),
    ),
    _count("sites", "similar sites"),
    _time("since_us", "since"),
    _time("started_us", "started"),
    _time("submitted_us", "submitted"),
    _time("judged_us", "judged"),
    TableColumn("difference", "difference", format_per_cent, is_number=True),
    TableColumn("seconds", "duration", format_duration, is_number=True),
    TableColumn("cpu_per_event_s", "CPU, ms/event", format_milliseconds, is_number=True),
    TableColumn("wall_per_event_s", "wall, ms/event", format_milliseconds, is_number=True),
    TableColumn("loop_wall_s", "loop, s", is_number=True),
    TableColumn("bytes_read", "read", format_size, is_number=True),
    TableColumn("read_calls", "read calls", is_number=True),
    TableColumn("read_latency_p50_s", "read p50, ms", format_milliseconds, is_number=True),
    TableColumn("read_latency_p99_s", "read p99, ms", format_milliseconds, is_number=True),
)
_COLUMNS: Mapping[str, TableColumn] = {declared.key: declared for declared in _DECLARED}


def column(key: str, title: str = "", **changes: Any) -> TableColumn:
    """Return the usual column of a value, with another title or other attributes if given."""
    usual = _COLUMNS.get(key) or _describe_metric(key)
    return replace(usual, title=title or usual.title, **changes)


def hidden(key: str, **changes: Any) -> TableColumn:
    """Return a column that is exported but not shown."""
    return TableColumn(key, hidden=True, **changes)


def columns(*keys: str) -> tuple[TableColumn, ...]:
    """Return the usual columns of several values."""
    return tuple(map(column, keys))


def _describe_metric(key: str) -> TableColumn:
    metric = METRICS_BY_NAME.get(key)
    if metric is None:
        return TableColumn(key, key.replace("_", " "))
    return TableColumn(key, title_column(key), is_number=metric.type in ("int", "float"))


def count_columns(*keys: str) -> tuple[TableColumn, ...]:
    """Return columns of counts whose titles are their keys."""
    return tuple(TableColumn(key, key, is_number=True) for key in keys)


def job_column(job_ids: Iterable[str], title: str = "") -> TableColumn:
    """Return the column of jobs, whose identities are cut to the first letters that differ, at least 8."""
    distinct = {*job_ids}
    size = next(size for size in count(8) if len({id_[:size] for id_ in distinct}) == len(distinct))
    return column("job_id", title, format_value=lambda id_: id_[:size])


def variant_column(variants: VariantLabels, **changes: Any) -> TableColumn:
    """Return the column of variants' labels."""
    return TableColumn(VARIANT_COLUMN, "variant", variants.label, is_long=True, **changes)


def outcome_columns() -> tuple[TableColumn, ...]:
    """Return the columns of :func:`outcome_counts`."""
    return columns("good", "failed", "implausible", "not_supported")


def outcome_counts(outcomes: DayOutcomes) -> dict[str, Any]:
    """Return the number of measurements by outcome, as values of a row."""
    return {
        "good": outcomes.good,
        "failed": outcomes.failed,
        "implausible": outcomes.implausible,
        "not_supported": outcomes.unsupported,
    }
