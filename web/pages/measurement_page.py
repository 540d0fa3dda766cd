"""Page of one measurement: its values by group, phases, and differences from another one.

Whole outputs of its execution are read from the output folders of jobs on this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import BaseRoute

from treehammer.collectors.job_spec import HTCONDOR_PREFIX, LOCAL_BATCH
from treehammer.collectors.record.metric_catalogue import CATALOGUE, Metric
from treehammer.collectors.record.outcome import classify_outcome
from treehammer.config import Settings
from treehammer.errors import NothingToDoError, TreehammerError
from treehammer.sql.core.measurement_columns import DIMENSION_OF, SUBJECT
from treehammer.sql.core.rows import ExtraRow, JobRow
from treehammer.sql.read.query_model import Condition, Selection
from treehammer.sql.write.store import Store
from treehammer.submit.sites.site_registry import open_batch_system
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.text_formatting import format_cell, format_size
from treehammer.web.addresses import link_to
from treehammer.web.core.responses import require_text
from treehammer.web.display_formats import (
    DisplayUnit,
    fit_unit,
    format_per_cent,
    format_seconds,
    format_time,
)
from treehammer.web.figures.chart_parts import (
    FADE_SERIES,
    HIDE_SERIES,
    NOMINAL,
    QUANTITATIVE,
    Specification,
    chart_layers,
    complete_specification,
    encode_color,
    encode_field,
    make_layer,
)
from treehammer.web.figures.figure_chart import FigureChart
from treehammer.web.figures.figure_layout import PALETTE, FigureSeries
from treehammer.web.labels import head_column
from treehammer.web.page_query import PageQuery, PathText, Text
from treehammer.web.page_service import PageContext, PageModule, PageView
from treehammer.web.pages.latency_figure import chart_histograms

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
#: Numbers whose ratio says nothing.
_IDENTITIES = ("day", "started_us", "ended_us", "seed")
#: Units that are converted before the fitting one is chosen.
_SIZES = {"ns": 1e-9}

_WIDTH, _BAR_HEIGHT = 700, 34
#: Maps a job to its output folders by attempt, as far as they are on this machine.
FindFolders = Callable[[JobRow], Mapping[int, Path]]

_LOG_NAME = re.compile(r"\d{1,9}-\d{1,9}\.(out|err)")
_ADDRESS = re.compile(rf"(\d{{1,9}})/({_LOG_NAME.pattern})")


class MeasurementQuery(PageQuery):
    """The measurement that an address names."""

    measurement_id: PathText = Field(description="Identity.")


class MeasurementPageQuery(MeasurementQuery):
    """Parameters of the page."""

    other: Text = Field(
        "", alias="with", description="Identity of the measurement to compare with."
    )


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page."""
    path = require_text("/measurements/{measurement_id}")
    return [context.page_route(path, measurement_view, "measurement-page")]


PAGES = PageModule(routes, position=53)


def measurement_view(store: Store, request: Request) -> PageView:
    """Collect the values of a measurement, beside those of another one if asked for.

    Raises:
        NothingToDoError: a measurement does not exist.
    """
    query = MeasurementPageQuery.parse(request)
    a = _fetch_values(store, query.measurement_id)
    b = _fetch_values(store, query.other) if query.other else None
    differences, *tables = _build_tables(list(_list_values(a, b)), is_pair=b is not None)
    charts = _build_charts({"A": a, "B": b} if b else {"": a})
    values = {
        "row": a,
        "other": b,
        "outcome": classify_outcome(a),
        "differences": differences,
        "groups": [table for table in tables if table.rows],
        "log": a["log_excerpt"],
        "job": link_to("job", job_id=a["job_id"]),
        "record": link_to("measurement", measurement_id=query.measurement_id),
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
    """Chart wall and CPU time by phase; None if no phase was recorded.

    Args:
        executions: title of each execution, '' for a single one -> its values by column.
    """
    # By kind of time, so that the bars to compare lie beside each other.
    bars = {
        f"{kind}, {title}" if title else kind: {
            phase.name: _add_seconds(row, getattr(phase, columns)) for phase in _PHASES
        }
        for kind, columns in (("wall time", "wall"), ("CPU time", "cpu"))
        for title, row in executions.items()
    }
    phases = [
        phase for phase in _PHASES if any(seconds[phase.name] > 0 for seconds in bars.values())
    ]
    return PhaseChart("Time by phase", phases, bars) if phases else None


def _add_seconds(row: Mapping[str, Any], columns: Sequence[str]) -> float:
    return sum(row[column] or 0.0 for column in columns)


@dataclass(frozen=True)
class PhaseChart:
    """Seconds of each phase by bar.

    Attributes:
        title: of the chart.
        phases: phases in their order.
        bars: title of each bar -> seconds by phase; phases without seconds are left out.
    """

    title: str
    phases: Sequence[Phase]
    bars: Mapping[str, Mapping[str, float]]

    @property
    def series(self) -> list[FigureSeries]:
        """Name and color of each phase."""
        return [FigureSeries(phase.name, phase.color, "square") for phase in self.phases]

    @property
    def unit(self) -> DisplayUnit:
        """Unit of the axis."""
        return fit_unit("s", (sum(seconds.values()) for seconds in self.bars.values()))

    @property
    def specification(self) -> Specification:
        """The chart as Vega-Lite."""
        names = json.dumps([phase.name for phase in self.phases])
        encoding = {
            "x": encode_field(
                "from", QUANTITATIVE, title=f"time, {self.unit.name}", scale={"nice": False}
            ),
            "x2": {"field": "to"},
            "y": encode_field("bar", NOMINAL, title=None, sort=list(self.bars)),
            "color": encode_color(self.series, _WIDTH, names),
            "opacity": FADE_SERIES,
            "tooltip": encode_field("text", NOMINAL, title=" "),
        }
        bars = make_layer("bar", encoding, [HIDE_SERIES], stroke="white", strokeWidth=0.5)
        size = _WIDTH, _BAR_HEIGHT * len(self.bars)
        chart = chart_layers([bars], self.title, size, zoomed=["x"])
        meta = {"series": [asdict(line) for line in self.series], "legend": "Phases"}
        return complete_specification(chart, self._list_rows(), meta)

    def _list_rows(self) -> list[dict[str, str | float]]:
        rows: list[dict[str, str | float]] = []
        for bar, seconds in self.bars.items():
            start = 0.0
            for number, phase in enumerate(self.phases):
                length = seconds.get(phase.name, 0.0)
                if length > 0:
                    end = start + length
                    text = f"{bar}, {phase.name}: {format_seconds(length)}"
                    ends = {"from": self.unit.convert(start), "to": self.unit.convert(end)}
                    rows.append({"bar": bar, "s": number, **ends, "text": text})
                    start = end
        return rows


def find_output_folders(settings: Settings) -> FindFolders:
    """Return a function that finds the output folders of jobs that this installation submitted."""

    def find(job: JobRow) -> Mapping[int, Path]:
        folders = {LOCAL_BATCH: settings.spool_dir, HTCONDOR_PREFIX: settings.htcondor_dir}
        kind, at, _ = job.batch_system.partition("@")
        folder = folders.get(kind + at)
        if folder is not None and not folder.is_dir():
            return {}  # nothing was submitted here, and reading must not make the folder
        try:
            return open_batch_system(job.batch_system, settings).sandboxes(job.batch_id)
        except TreehammerError:
            return {}  # such as a pool of another installation

    return find


def list_logs(folder: Path | None, round_: int, position: int) -> list[tuple[str, int]]:
    """List the logs of an execution that contain anything, each with its bytes."""
    if folder is None:
        return []
    names = [f"{round_}-{position}.{stream}" for stream in ("err", "out")]
    paths = ((name, _find_log(folder, name)) for name in names)
    sizes = ((name, path.stat().st_size) for name, path in paths if path)
    return [(name, size) for name, size in sizes if size]


def send_log(folders: Mapping[int, Path], address: str) -> FileResponse:
    """Send a whole log as plain text.

    Args:
        folders: output folders of the job by attempt.
        address: attempt and name, e.g. ``1/2-1.out``.

    Raises:
        NothingToDoError: there is no such log on this machine.
    """
    match = _ADDRESS.fullmatch(address)
    folder = folders.get(int(match[1])) if match else None
    path = _find_log(folder, match[2]) if match and folder else None
    if path is None:
        raise NothingToDoError(
            f"there is no log {address[:80]!r} of this job on this machine",
            hint="It is in the job's folder on the submit node until the campaign is purged.",
        )
    return FileResponse(
        path, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-store"}
    )


def _find_log(folder: Path, name: str) -> Path | None:
    """Find a log by its name; a link that leads out of the folder, as a payload may leave, is none."""
    try:
        path = (folder / "logs" / name).resolve(strict=True)
        inside = path.is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return None
    return path if inside and path.is_file() else None
