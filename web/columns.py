"""Columns of tables by the names of their values, and cells that are drawn.

Titles, formats, links and alignment are declared once; metrics have the titles of the catalogue. A page
writes ``column("site")``, and what differs on it. Drawn cells are heat, sparks and intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from markupsafe import Markup, escape

from treehammer.analysis.statistics.metric_units import format_metric, head_unit
from treehammer.analysis.status.day_outcomes import DAY_GRADES, DayOutcomes
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.tables import Row, TableColumn, titled_columns
from treehammer.text_formatting import format_duration
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


def metric_column(name: str, title: str = "", key: str = "", **changes: Any) -> TableColumn:
    """Return the column of a metric's values, with its display unit in the heading.

    Args:
        name: of the metric.
        title: without the unit; the metric's by default.
        key: of the value, if it is not the metric's name.
        changes: further attributes.
    """
    unit = head_unit(name)
    title = title or title_column(name)
    heading = f"{title}, {unit}" if unit else title
    write = partial(format_metric, name, with_unit=False)
    return replace(TableColumn(key or name, heading, write, is_number=True), **changes)


#: Grade of a day -> CSS class.
_GRADE_CLASSES = {grade: severity.value for severity, grade in DAY_GRADES.items()}
_DECLARED = (
    *titled_columns(storage_site="storage", test_name="test", day="day (UTC)", cause="by"),
    *titled_columns(failure_class="class", failure_kind="kind", failure_phase="phase"),
    *titled_columns(axis_root="ROOT", root="ROOT", root_version="ROOT"),
    *titled_columns(thing="component", what="attribute", mark="mark"),
    TableColumn("site", "site", link=link_rows("site", site="site")),
    TableColumn("job_id", "job", link=link_rows("job", job_id="job_id")),
    TableColumn("state", "state", css_class=find_state_class),
    TableColumn("status", "status", css_class=lambda row: _GRADE_CLASSES[row["status"]]),
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
    *map(
        metric_column,
        ("cpu_per_event_s", "wall_per_event_s", "loop_wall_s", "bytes_read", "read_calls"),
        ("CPU", "wall", "loop", "read", "read calls"),
    ),
    *map(metric_column, ("read_latency_p50_s", "read_latency_p99_s"), ("read p50", "read p99")),
)
_COLUMNS: Mapping[str, TableColumn] = {declared.key: declared for declared in _DECLARED}


def column(key: str, title: str = "", **changes: Any) -> TableColumn:
    """Return the usual column of a value, with another title or other attributes if given."""
    usual, metric = _COLUMNS.get(key), METRICS_BY_NAME.get(key)
    if usual is None and metric and metric.type in ("int", "float"):
        usual = metric_column(key)
    elif usual is None:
        usual = TableColumn(key, title_column(key) if metric else key.replace("_", " "))
    return replace(usual, title=title or usual.title, **changes)


def hidden(key: str, **changes: Any) -> TableColumn:
    """Return a column that is exported but not shown."""
    return TableColumn(key, hidden=True, **changes)


def columns(*keys: str) -> tuple[TableColumn, ...]:
    """Return the usual columns of several values."""
    return tuple(map(column, keys))


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


@dataclass(frozen=True)
class HeatCell:
    """A colored cell with a short text, whose description screen readers read.

    Attributes:
        text: a few characters.
        description: in words.
        address: of the evidence, '' for none.
        is_symbol: the text is a letter that the description replaces.
    """

    text: str
    description: str
    css_class: str = ""
    address: str = ""
    tooltip: str = ""
    is_symbol: bool = False

    def __html__(self) -> str:
        """Render the content of the cell."""
        # Comparisons have a thousand cells: Markup.format would take a tenth of their page's time.
        text, description = escape(self.text), escape(self.description)
        content = f'{text}<span class="unseen"> {description}</span>'
        if self.is_symbol:
            content = (
                f'<span aria-hidden="true">{text}</span><span class="unseen">{description}</span>'
            )
        if not self.address:
            return f'<span class="letter">{content}</span>'
        title = f' title="{escape(self.tooltip)}"' if self.tooltip else ""
        return f'<a href="{escape(self.address)}"{title}>{content}</a>'


@dataclass(frozen=True)
class SparkCell:
    """Counts by day as steps, relative to the largest."""

    counts: Sequence[int]

    @property
    def path(self) -> str:
        """SVG path in a box of one unit a day by 1."""
        largest = max(self.counts, default=0) or 1
        steps = (f"V{round(1 - count / largest, 2):g}h1" for count in self.counts)
        return f"M0 1{''.join(steps)}V1z"

    def __html__(self) -> str:
        """Render the drawing."""
        return Markup(
            '<svg viewBox="0 0 {} 1" preserveAspectRatio="none" aria-hidden="true" '
            'focusable="false"><path d="{}"/></svg>'
        ).format(len(self.counts), self.path)


@dataclass(frozen=True)
class IntervalCell:
    """A value and its interval on an axis around zero that many rows share.

    Attributes:
        low: start of the interval; None for none.
        reach: end of the axis to either side; intervals beyond it end in an arrow.
        band: values within it are ignored.
    """

    low: float | None
    high: float | None
    value: float | None
    reach: float
    band: float

    def _place(self, value: float) -> float:
        return round(50 + 50 * max(-1.0, min(1.0, value / self.reach)), 2)

    def _draw_interval(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return ""
        low, high, value = self._place(self.low), self._place(self.high), self._place(self.value)
        parts = [f'<line class="bar" x1="{low}" x2="{high}" y1="6" y2="6"/>']
        if self.low < -self.reach:
            parts.append('<path class="cut" d="M0 6l6-4v8z"/>')
        if self.high > self.reach:
            parts.append('<path class="cut" d="M100 6l-6-4v8z"/>')
        if abs(self.value) <= self.reach:
            parts.append(f'<line class="mean" x1="{value}" x2="{value}" y1="2" y2="10"/>')
        return "".join(parts)

    def __html__(self) -> str:
        """Render the drawing."""
        half = round(50 * min(self.band / self.reach, 1), 2)
        return Markup(  # noqa: S704
            '<svg class="effect" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true" '
            f'focusable="false"><rect class="none" x="{50 - half}" y="0" width="{2 * half}" '
            'height="12"/><line class="zero" x1="50" x2="50" y1="0" y2="12"/>'
            f"{self._draw_interval()}</svg>"
        )
