"""Page of one measurement: its values by group, and its differences from another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.collectors.record.metric_catalogue import CATALOGUE, Metric
from treehammer.collectors.record.outcome import classify_outcome
from treehammer.errors import NothingToDoError
from treehammer.sql.core.dimensions import DIMENSION_OF, SUBJECT
from treehammer.sql.core.rows import ExtraRow
from treehammer.sql.read.measurement_selection import Condition, Selection
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.text_formatting import format_cell, format_size
from treehammer.web.core.route_paths import require_text
from treehammer.web.display.display_units import fit_unit, format_per_cent
from treehammer.web.display.metric_titles import head_column
from treehammer.web.display.template_environment import format_time
from treehammer.web.figures.figure_chart import FigureChart
from treehammer.web.figures.histogram_chart import chart_histograms
from treehammer.web.figures.phase_chart import PhaseChart, chart_phases
from treehammer.web.views.shared.page_context import PageContext, PageView, link_to

#: Parameter with the identity of the measurement to compare with.
OTHER = "with"
#: Groups in which a difference is a change of the environment.
_ENVIRONMENT = ("Software", "Node", "Storage")
_MEASURED = ("Times", "Counts and ratios")
_GROUPS = ("Outcome", *_MEASURED, "Plan", *_ENVIRONMENT)
_GROUP_OF_DIMENSION = {
    "origin": "Plan",
    "software": "Software",
    "inventory": "Software",
    "node": "Node",
    "storage": "Storage",
}
_OUTCOME = (
    "plausible",
    "implausible_reasons",
    "failure_class",
    "failure_kind",
    "failure_phase",
    "failure_message",
)
#: Shown elsewhere, or too long for a table.
_LEFT_OUT = ("log_excerpt", "read_latency_hist", "inventory")


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page."""
    path = require_text("/measurements/{measurement_id}")
    return [context.page_route(path, measurement_view, "measurement-page")]


def measurement_view(store: Store, request: Request) -> PageView:
    """Collect the values of a measurement, beside those of another one if asked for.

    Raises:
        NothingToDoError: a measurement does not exist.
    """
    identity, other = request.path_params["measurement_id"], request.query_params.get(OTHER, "")
    a = _fetch_values(store, identity)
    b = _fetch_values(store, other) if other else None
    differences, *tables = _build_tables(list(_list_values(a, b)), is_pair=b is not None)
    charts = _build_charts({"A": a, "B": b} if b else {"": a})
    values = {
        "row": a,
        "other": b,
        "outcome": classify_outcome(a),
        "differences": differences,
        "groups": [table for table in tables if table.rows],
        "log": a["log_excerpt"],
        "job": link_to(request, "job", job_id=a["job_id"]),
        "record": link_to(request, "measurement", measurement_id=identity),
        "asked": OTHER,
        "charts": charts,
    }
    title = f"{a['variant_label'] or a['kind']} at {a['site']}"
    return PageView("measurement.html.j2", title, values, (differences, *tables), charts=charts)


def _build_charts(sides: Mapping[str, Mapping[str, Any]]) -> dict[str, PhaseChart | FigureChart]:
    """Build the charts of phases and of read latencies, if they were recorded."""
    charts = {
        "phases": chart_phases(
            {name and _title_side(name, row): row for name, row in sides.items()}
        ),
        "latencies": chart_histograms(
            {_title_side(name, row): row["read_latency_hist"] or () for name, row in sides.items()}
        ),
    }
    return {name: chart for name, chart in charts.items() if chart}


def _title_side(name: str, row: Mapping[str, Any]) -> str:
    """Name a side with its release, e.g. ``A, ROOT 6.40.00``."""
    release = row["root_version"] or row["axis_root"]
    return ", ".join(filter(None, (name, release and f"ROOT {release}"))) or "all reads"


def _fetch_values(store: Store, identity: str) -> dict[str, Any]:
    """Fetch all values of a measurement; metrics of the test are under ``extras``."""
    selection = Selection(conditions=(Condition("measurement_id", "=", identity),))
    with store.snapshot() as snapshot:
        for row in snapshot.measurements(selection):
            return {**row, "extras": list[ExtraRow](snapshot.extras(selection))}
    raise NothingToDoError(f"there is no measurement {identity[:100]!r}")


def _list_values(a: Mapping[str, Any], b: Mapping[str, Any] | None) -> Iterator[Row]:
    """List the known values of both measurements with their groups."""
    other: Mapping[str, Any] = b or {"extras": ()}
    for metric in CATALOGUE:
        pair = a[metric.name], other.get(metric.name)
        if metric.name not in _LEFT_OUT and any(value not in (None, "", []) for value in pair):
            yield _value_row(metric.name, _find_group(metric), metric, pair)
    first, second = ({extra.name: extra.value for extra in side["extras"]} for side in (a, other))
    for name in {**first, **second}:
        yield _value_row(name, "Counts and ratios", None, (first.get(name), second.get(name)))


def _value_row(name: str, group: str, metric: Metric | None, pair: tuple[Any, Any]) -> Row:
    a, b = pair
    numbers = [value for value in pair if isinstance(value, int | float)]
    is_ratio = len(numbers) == 2 and not isinstance(a, bool) and a and group in _MEASURED
    is_ratio = is_ratio and name not in _IDENTITIES
    return {
        "group": group,
        "name": name,
        "meaning": metric.meaning if metric else "Metric of the test.",
        "unit": metric.unit if metric else "",
        "a": a,
        "b": b,
        "change": b / a - 1 if is_ratio else None,
        "equal": a == b,
    }


#: Numbers whose ratio says nothing.
_IDENTITIES = ("day", "started_us", "ended_us", "seed")


def _find_group(metric: Metric) -> str:
    if metric.name in _OUTCOME:
        return "Outcome"
    dimension = DIMENSION_OF.get(metric.name)
    if metric.owner == "plan" or dimension is SUBJECT:
        return "Plan"
    if dimension:
        return _GROUP_OF_DIMENSION[dimension.name]
    return "Times" if metric.unit == "s" else "Counts and ratios"


def _build_tables(rows: Sequence[Row], *, is_pair: bool) -> list[DataTable]:
    """Build the table of differences, which is empty unless there is a pair, and one per group."""
    groups = {group: [row for row in rows if row["group"] == group] for group in _GROUPS}
    differing = [row for row in rows if row["group"] in _ENVIRONMENT and not row["equal"]]
    return [
        _build_table("Differences of the environment", differing if is_pair else [], is_pair=True),
        *(_build_table(group, group_rows, is_pair=is_pair) for group, group_rows in groups.items()),
    ]


def _build_table(caption: str, rows: Sequence[Row], *, is_pair: bool) -> DataTable:
    columns = (
        TableColumn("name", "value", head_column),
        TableColumn(
            "a", "A" if is_pair else "measured", format_row=_make_format("a"), is_long=True
        ),
        TableColumn("b", "B", format_row=_make_format("b"), is_long=True, hidden=not is_pair),
        TableColumn(
            "change",
            "B against A",
            format_row=lambda row: "" if row["change"] is None else format_per_cent(row["change"]),
            is_number=True,
            hidden=not is_pair,
        ),
        TableColumn("meaning", "meaning", is_long=True),
        *hidden_columns("unit", "group", "equal"),
    )
    name = caption.lower().replace(" ", "_")
    return DataTable(name, caption, columns, rows, "No differences are known.")


def _make_format(side: str) -> Any:
    return lambda row: _format_value(row["name"], row[side], row["unit"])


def _format_value(name: str, value: Any, unit: str) -> str:
    if value in (None, "", []):
        return "–"
    if name.endswith("_us"):
        return format_time(value)
    if unit == "B":
        return format_size(value)
    values = value if isinstance(value, list) else [value]
    if not isinstance(values[0], int | float) or isinstance(values[0], bool):
        return ", ".join(map(format_cell, values))
    fitting = fit_unit(
        {"ns": "s"}.get(unit, unit), [_SIZES.get(unit, 1.0) * number for number in values]
    )
    texts = [format_cell(fitting.convert(_SIZES.get(unit, 1.0) * number)) for number in values]
    return f"{', '.join(texts)} {fitting.name}".strip()


#: Units that are converted before the fitting one is chosen.
_SIZES = {"ns": 1e-9}
