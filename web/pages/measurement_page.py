"""Page of one measurement: its values by group, phases, and differences from another one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from pydantic import Field

from treehammer.analysis.statistics.metric_units import format_metric, head_unit
from treehammer.collectors.record.metric_catalogue import CATALOGUE, Metric
from treehammer.collectors.record.outcome import classify_outcome
from treehammer.errors import NothingToDoError
from treehammer.sql.core.measurement_columns import DIMENSION_OF, SUBJECT
from treehammer.sql.core.rows import ExtraRow
from treehammer.sql.read.campaign_queries import MAX_JOB_MEASUREMENTS, load_campaign
from treehammer.sql.read.query_model import Condition, Selection
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.verticals import import_parts
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to
from treehammer.web.columns import OUTCOME_COLUMNS
from treehammer.web.display_formats import format_per_cent, format_seconds
from treehammer.web.figures import chart_parts as vega
from treehammer.web.figures.figure_layout import PALETTE, FigureSeries
from treehammer.web.labels import head_column
from treehammer.web.page import PageContent, PageRequest, page
from treehammer.web.page_query import FormInput, PageQuery, PathText, Text
from treehammer.web.pages.latency_figure import chart_histograms

#: Groups in which a difference is a change of the environment.
_ENVIRONMENT = ("Software", "Node", "Storage")
_MEASURED = ("Times", "Counts and ratios")
_GROUPS = ("Outcome", *_MEASURED, "Plan", *_ENVIRONMENT)
#: Groups of the other dimensions have their names.
_GROUP_OF_DIMENSION = {"origin": "Plan", "inventory": "Software"}
#: What distinguishes the executions of a job.
_EXECUTION = (
    *("measurement_id", "variant_label", "kind", "axis_root", "attempt", "round", "position"),
    *OUTCOME_COLUMNS,
)
#: Shown elsewhere, or too long for a table.
_LEFT_OUT = ("log_excerpt", "read_latency_hist", "inventory", "file_reads")
#: Numbers whose ratio says nothing.
_IDENTITIES = ("day", "started_us", "ended_us", "seed")

_WIDTH, _BAR_HEIGHT = 700, 34


class MeasurementQuery(PageQuery):
    """The measurement that an address names."""

    measurement_id: PathText = Field(description="Identity.")


class MeasurementPageQuery(MeasurementQuery):
    """Parameters of the page."""

    other: Text = Field(
        "", alias="with", description="Identity of the measurement to compare with."
    )


@page(
    "/measurements/{measurement_id:some}",
    "measurement-page",
    MeasurementPageQuery,
    position=53,
    is_crawled=False,
)
def measurement_page(request: PageRequest[MeasurementPageQuery]) -> PageContent:
    """Show the values of a measurement, beside those of another one if asked for."""
    identity, other = request.query.measurement_id, request.query.other
    a = _load_values(request.store, identity)
    b = _load_values(request.store, other) if other else None
    differences, *tables = _build_tables(a, b)
    parts = import_parts("measurement_part")
    figures = list(_draw_figures(a, b))
    choices = _list_others(request.store, a)
    if b:
        choices[other] = _title_measurement(b)
    choice = FormInput("with", "Compare with", other, {"": "–", **choices})
    sections = (
        ui.quiet(
            "Measurement ",
            ui.Code(identity),
            f", {a['kind']}, round {a['round']}, position {a['position']}, attempt {a['attempt']}: "
            f"{classify_outcome(a)} · ",
            ui.Link("Record as JSON", link_to("measurement", measurement_id=identity)),
        ),
        ui.Form([choice], "Compare") if choices else None,
        *_show_differences(b, differences),
        ui.Folded("End of the output", ui.Log(a["log_excerpt"]), is_open=True)
        if a["log_excerpt"]
        else None,
        *(section for part in parts for section in part.list_sections(a)),
        ui.Group("charts", *figures),
        *(ui.Titled(table.caption, table, anchor=table.name) for table in tables if table.rows),
    )
    return PageContent(
        _title_measurement(a),
        sections,
        (differences, *tables, *(table for part in parts for table in part.build_tables(a))),
        crumbs=[ui.Link("Job", link_to("job", job_id=a["job_id"]))],
    )


def _show_differences(b: Mapping[str, Any] | None, differences: DataTable) -> Iterator[ui.Section]:
    """Name the other measurement of a pair, and show the differences; nothing without one."""
    if b:
        address = link_to("measurement-page", measurement_id=b["measurement_id"])
        link = ui.Link(_title_measurement(b), address)
        yield ui.Paragraph("A is this measurement, B is ", link, ".")
        yield ui.Titled("What differs", differences, anchor="differences")


def _build_tables(a: Mapping[str, Any], b: Mapping[str, Any] | None) -> list[DataTable]:
    """Build the table of the differences of a pair, which is empty for one, and those of the groups."""
    rows = list(_list_values(a, b))
    differing = [row for row in rows if b and row["group"] in _ENVIRONMENT and not row["equal"]]
    groups = {group: [row for row in rows if row["group"] == group] for group in _GROUPS}
    return [
        _build_table("Differences of the environment", differing, a, b or a),
        *(_build_table(group, of_group, a, b) for group, of_group in groups.items()),
    ]


def _list_others(store: Store, row: Mapping[str, Any]) -> dict[str, str]:
    """Name the other measurements of the same job, in the order of their execution, by identity."""
    of_job = Selection((row["campaign_id"],), (Condition("job_id", "=", row["job_id"]),))
    with store.snapshot() as snapshot:
        measurements = snapshot.measurements(of_job, _EXECUTION)
        rows = sorted(
            islice(measurements, MAX_JOB_MEASUREMENTS),
            key=lambda other: [other[name] for name in ("attempt", "round", "position")],
        )
    attempts = {other["attempt"] for other in rows}
    return {
        str(other["measurement_id"]): ", ".join(
            (
                str(other["variant_label"] or other["kind"]),
                *([f"ROOT {other['axis_root']}"] if other["axis_root"] else []),
                *([f"attempt {other['attempt']}"] if len(attempts) > 1 else []),
                f"round {other['round']}, position {other['position']}",
                str(classify_outcome(other)),
            )
        )
        for other in rows
        if other["measurement_id"] != row["measurement_id"]
    }


def _title_measurement(row: Mapping[str, Any]) -> str:
    return f"{row['variant_label'] or row['kind']} at {row['site']}"


def _draw_figures(a: Mapping[str, Any], b: Mapping[str, Any] | None) -> Iterator[ui.Figure]:
    """Draw phases and read latencies, if they were recorded."""
    sides = {"A": a, "B": b} if b else {"": a}
    phases = chart_phases({name and _title_side(name, row): row for name, row in sides.items()})
    latencies = chart_histograms(
        {_title_side(name, row): row["read_latency_hist"] or () for name, row in sides.items()}
    )
    if phases:
        caption = "Time by phase: medians over the counted passes, and what precedes them once"
        title = "Time by phase"
        yield ui.Figure("phases", phases, caption, title=title, is_caption_first=True)
    if latencies:
        title = "Reads by latency"
        yield ui.Figure("latencies", latencies, title, title=title, is_caption_first=True)


def _title_side(name: str, row: Mapping[str, Any]) -> str:
    """Name a side with its release, e.g. ``A, ROOT 6.40.00``."""
    release = row["root_version"] or row["axis_root"]
    return ", ".join(filter(None, (name, release and f"ROOT {release}"))) or "all reads"


def _load_values(store: Store, identity: str) -> dict[str, Any]:
    """Load all values of a measurement; metrics of the test are under ``extras``."""
    selection = Selection(conditions=(Condition("measurement_id", "=", identity),))
    with store.snapshot() as snapshot:
        for row in snapshot.measurements(selection):
            work = "event"
            with suppress(NothingToDoError):  # its campaign may be uploaded later
                work = load_campaign(store, str(row["campaign_id"])).plan.definition.work
            return {**row, "work": work, "extras": list[ExtraRow](snapshot.extras(selection))}
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


def _find_group(metric: Metric) -> str:
    if metric.name in OUTCOME_COLUMNS:
        return "Outcome"
    dimension = DIMENSION_OF.get(metric.name)
    if metric.owner == "plan" or dimension is SUBJECT:
        return "Plan"
    if dimension:
        return _GROUP_OF_DIMENSION.get(dimension.name, dimension.name.capitalize())
    return "Times" if metric.unit == "s" else "Counts and ratios"


def _build_table(
    caption: str, rows: Sequence[Row], a: Mapping[str, Any], b: Mapping[str, Any] | None
) -> DataTable:
    is_pair = b is not None
    column_a, column_b = (
        TableColumn(side, format_row=partial(_format_value, side, row["work"]), is_long=True)
        for side, row in {"a": a, "b": b or a}.items()
    )
    columns = (
        TableColumn("name", "value", head_column),
        replace(column_a, title="A" if is_pair else "measured"),
        replace(column_b, title="B", hidden=not is_pair),
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


def _format_value(side: str, work: str, row: Row) -> str:
    value, unit = row[side], row["unit"]
    if value in (None, "", []):
        return "–"
    if not isinstance(value, list):
        return format_metric(row["name"], value, unit, work=work)
    texts = (format_metric(row["name"], number, unit, with_unit=False) for number in value)
    return f"{', '.join(texts)} {head_unit(row['name'], unit, work)}".strip()


class Phase(NamedTuple):
    """A phase of an execution, with the columns of its seconds, which are added."""

    name: str
    color: str
    wall: tuple[str, ...]
    cpu: tuple[str, ...]


# In their order; there are more phases than colors in the palette.
_PHASES = (
    Phase("set-up", "#9467bd", ("setup_wall_s",), ("setup_cpu_s",)),
    Phase("build", PALETTE[1], ("build_wall_s",), ("build_cpu_s",)),
    Phase("stage-in", PALETTE[2], ("stagein_wall_s",), ("stagein_cpu_s",)),
    Phase("loading ROOT", PALETTE[3], ("import_wall_s",), ("import_user_s", "import_sys_s")),
    Phase("compiling", PALETTE[4], ("compile_wall_s",), ()),
    Phase("open", PALETTE[5], ("open_wall_s",), ("open_user_s", "open_sys_s")),
    Phase("get the tree", PALETTE[6], ("get_tree_wall_s",), ("get_tree_user_s", "get_tree_sys_s")),
    Phase("prepare", PALETTE[7], ("prepare_wall_s",), ("prepare_user_s", "prepare_sys_s")),
    Phase("event loop", PALETTE[0], ("loop_wall_s",), ("loop_user_s", "loop_sys_s")),
    Phase("close", "#8c564b", ("close_wall_s",), ("close_user_s", "close_sys_s")),
)


def chart_phases(executions: Mapping[str, Mapping[str, Any]]) -> PhaseChart | None:
    """Chart wall and CPU time by phase of titled executions; None if no phase was recorded."""
    # By kind of time, so that the bars to compare lie beside each other.
    bars = {
        f"{kind}, {title}" if title else kind: {
            phase.name: sum(row[column] or 0.0 for column in getattr(phase, columns))
            for phase in _PHASES
        }
        for kind, columns in (("wall time", "wall"), ("CPU time", "cpu"))
        for title, row in executions.items()
    }
    phases = [
        phase for phase in _PHASES if any(seconds[phase.name] > 0 for seconds in bars.values())
    ]
    return PhaseChart("Time by phase", phases, bars) if phases else None


@dataclass(frozen=True)
class PhaseChart:
    """Seconds of each phase by bar, from its title; phases without seconds are left out."""

    title: str
    phases: Sequence[Phase]
    bars: Mapping[str, Mapping[str, float]]

    @property
    def series(self) -> list[FigureSeries]:
        """Name and color of each phase."""
        return [FigureSeries(phase.name, phase.color, "square") for phase in self.phases]

    @property
    def specification(self) -> vega.Specification:
        """The chart as Vega-Lite."""
        names = json.dumps([phase.name for phase in self.phases])
        encoding = {
            "x": vega.encode_field(
                "from", vega.QUANTITATIVE, title="time, s", scale={"nice": False}
            ),
            "x2": {"field": "to"},
            "y": vega.encode_field("bar", vega.NOMINAL, title=None, sort=list(self.bars)),
            "color": vega.encode_series(self.series, _WIDTH, names)["color"],
            "opacity": vega.FADE_SERIES,
            "tooltip": vega.encode_field("text", vega.NOMINAL, title=" "),
        }
        bars = vega.make_layer("bar", encoding, [vega.HIDE_SERIES], stroke="white", strokeWidth=0.5)
        size = _WIDTH, _BAR_HEIGHT * len(self.bars)
        chart = vega.chart_layers([bars], self.title, size, zoomed=["x"])
        meta = {"series": [asdict(line) for line in self.series], "legend": "Phases"}
        return vega.complete_specification(chart, self._list_rows(), meta)

    def _list_rows(self) -> list[dict[str, str | float]]:
        rows: list[dict[str, str | float]] = []
        for bar, seconds in self.bars.items():
            start = 0.0
            for number, phase in enumerate(self.phases):
                length = seconds.get(phase.name, 0.0)
                if length > 0:
                    end = start + length
                    text = f"{bar}, {phase.name}: {format_seconds(length)}"
                    rows.append({"bar": bar, "s": number, "from": start, "to": end, "text": text})
                    start = end
        return rows
