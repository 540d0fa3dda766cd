"""Page of a campaign's load: rates, failures and tails by level, step, server and site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.descriptive.start_spread import StartSpread
from treehammer.analysis.descriptive.storage_status import load_rule
from treehammer.collectors.record.operation_steps import CLIENT
from treehammer.errors import ConfigError
from treehammer.hctests.matrix.load_settings import LoadSettings
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.read.operation_figures import (
    FIGURE_NAMES,
    OperationGroup,
    fetch_groupings,
    fetch_operations,
)
from treehammer.sql.read.operation_queries import QUANTILES
from treehammer.sql.write.store import Store
from treehammer.submit.tracking.load_starts import read_load, summarize_campaign_starts
from treehammer.web.core.route_paths import require_text
from treehammer.web.display.data_tables import MAX_SHOWN_ROWS, DataTable, TableColumn
from treehammer.web.display.display_units import format_seconds
from treehammer.web.display.template_environment import format_time
from treehammer.web.views.load.load_charts import LoadChart, draw_levels, draw_steps
from treehammer.web.views.load.load_levels import (
    LEVEL_COLUMNS,
    LevelFinder,
    LevelLabels,
    LoadLevel,
    ServerShare,
    compute_evenness,
    find_slowest,
    make_detail_keys,
    share_among_servers,
)
from treehammer.web.views.load.side_comparison import draw_sides, list_sides, make_side_table
from treehammer.web.views.shared.common_columns import format_counts
from treehammer.web.views.shared.page_context import (
    HTML,
    PageContext,
    PageView,
    QueryPool,
    link_to,
    requested_format,
)

#: Rows of operations that the page reads, pages read at a time, and points of a figure over time.
MAX_ROWS, MAX_CONCURRENT, MAX_POINTS = 50_000, 2, 240


@dataclass(frozen=True)
class LoadDetails:
    """Operations of a campaign: all levels, and the parts of the chosen one.

    Attributes:
        levels: all operations by level, in order.
        chosen: the chosen level and operation; None without any.
        steps: its time steps, with number and start as key, in order.
        servers: its servers.
        sites: sites of its jobs.
        labels: labels of the levels.
        points: time steps merged into each of :attr:`steps`.
        sides: time steps by side, if both timed the operation.
    """

    levels: Sequence[OperationGroup]
    chosen: OperationGroup | None
    steps: Sequence[OperationGroup]
    servers: Sequence[ServerShare]
    sites: Sequence[OperationGroup]
    labels: LevelLabels
    points: int
    sides: dict[str, list[OperationGroup]] = field(default_factory=dict)

    def label(self, group: OperationGroup) -> str:
        """Label a level."""
        return self.labels.label(level_of(group))

    @property
    def similar(self) -> list[OperationGroup]:
        """Levels of the chosen operation and side."""
        one = self.chosen
        return [
            group
            for group in self.levels
            if one and (group.operation, group.side) == (one.operation, one.side)
        ]

    def group_by_line(self) -> dict[str, list[OperationGroup]]:
        """Group the similar levels by the line that they form."""
        lines: dict[str, list[OperationGroup]] = {}
        for group in self.similar:
            lines.setdefault(self.labels.label_series(level_of(group)), []).append(group)
        return lines


def level_of(group: OperationGroup) -> LoadLevel:
    """Return the level of a group by level."""
    assert isinstance(group.key, LoadLevel)
    return group.key


def routes(context: PageContext) -> list[BaseRoute]:
    """Route of the page; it comes before that of a campaign, whose identity may be any text."""
    pool = QueryPool(anyio.CapacityLimiter(MAX_CONCURRENT))
    path = require_text("/campaigns/{campaign_id}/load")
    return [context.page_route(path, load_view, "campaign-load", pool=pool)]


def load_view(store: Store, request: Request) -> PageView:
    """Collect the data of the page.

    Raises:
        ConfigError: a parameter names nothing of the campaign, or its operations are too many.
        NothingToDoError: the campaign does not exist.
    """
    campaign = campaign_queries.fetch_campaign(store, request.path_params["campaign_id"])
    load = read_load(campaign)
    with store.snapshot() as snapshot:
        details = _load_details(snapshot, campaign, load, request)
    spreads, lonely = summarize_campaign_starts(store, campaign)
    shown = requested_format(request) == HTML
    tables = {
        "levels": _level_table(details, request),
        "steps": _step_table(details),
        "sides": make_side_table(details.sides),
        "servers": _server_table(details),
        "sites": _site_table(details),
        "starts": _start_table(spreads),
    }
    values = {
        **{name: table.truncate(MAX_SHOWN_ROWS) for name, table in tables.items()},
        "campaign": campaign,
        "load_text": load.describe() if load else "",
        **_describe_chosen(details),
        "operations": list(dict.fromkeys((one.operation, one.side) for one in details.levels)),
        "loads": [(level_of(one).id, details.label(one)) for one in details.similar],
        "level_charts": _draw_level_charts(details) if shown else [],
        "step_charts": _draw_step_charts(details) if shown else [],
        "slowest": find_slowest(details.servers),
        "evenness": compute_evenness(details.servers),
        "lonely": lonely,
    }
    title = f"Load of {campaign.name or campaign.id}"
    return PageView("load.html.j2", title, values, tuple(tables.values()))


def _describe_chosen(details: LoadDetails) -> dict[str, Any]:
    """Return the values of the chosen level and operation; empty ones without any."""
    chosen = details.chosen
    if chosen is None:
        texts = ("operation", "side", "load", "load_label", "failures")
        return {**dict.fromkeys(texts, ""), "chosen": None}
    return {
        "operation": chosen.operation,
        "side": chosen.side,
        "load": level_of(chosen).id,
        "load_label": details.label(chosen),
        "failures": format_counts(chosen.failures),
        "chosen": chosen,
    }


def _draw_level_charts(details: LoadDetails) -> list[LoadChart]:
    chosen = details.chosen
    if chosen is None:
        return []
    shown = details.labels.label_series(level_of(chosen))
    lines = details.group_by_line()
    return draw_levels(lines, details.label, load_rule(), chosen.operation, shown)


def _draw_step_charts(details: LoadDetails) -> list[LoadChart]:
    return [
        *draw_sides(details.sides, details.points),
        *draw_steps(details.steps, details.points),
    ]


def _load_details(
    snapshot: DatabaseSnapshot, campaign: CampaignRow, load: LoadSettings | None, request: Request
) -> LoadDetails:
    selection = Selection((campaign.id,))
    rows = snapshot.count_operation_rows(selection)
    if rows > MAX_ROWS:
        raise ConfigError(
            f"the campaign has {rows} rows of operations, this page reads at most {MAX_ROWS}",
            hint=f"Use treehammer summary --campaign {campaign.id} --by step, which has no limit.",
        )
    finder = LevelFinder(load)
    levels = fetch_operations(snapshot, selection, columns=LEVEL_COLUMNS, key=finder.find)
    labels = LevelLabels(level_of(one) for one in levels)
    levels.sort(key=lambda one: (one.operation, one.side, labels.sort_key(level_of(one))))
    chosen = _choose_level(levels, request)
    if chosen is None:
        return LoadDetails([], None, [], [], [], labels, 1)
    points = -(-int(load.duration_s // load.step_s) // MAX_POINTS) if load else 1
    keys = make_detail_keys(finder, chosen, max(points, 1))
    steps, servers, sites, both = fetch_groupings(snapshot, selection, keys, columns=LEVEL_COLUMNS)
    both.sort(key=lambda one: one.key)  # type: ignore[arg-type,return-value]
    return LoadDetails(
        levels=levels,
        chosen=chosen,
        steps=sorted(steps, key=lambda one: one.key),  # type: ignore[arg-type,return-value]
        servers=share_among_servers(chosen, servers),
        sites=sorted(sites, key=lambda one: str(one.key)),
        labels=labels,
        points=max(points, 1),
        sides=list_sides(both),
    )


def _choose_level(levels: Sequence[OperationGroup], request: Request) -> OperationGroup | None:
    """Choose by the parameters, else the operation with the most and the highest load.

    Raises:
        ConfigError: nothing has the values of the parameters.
    """
    if not levels:
        return None
    found = list(levels)
    choices: Mapping[str, Callable[[OperationGroup], str]] = {
        "operation": lambda one: one.operation,
        "side": lambda one: one.side,
        "load": lambda one: level_of(one).id,
    }
    for name, find in choices.items():
        wanted = request.query_params.get(name)
        if not wanted:
            continue
        found = [one for one in found if find(one) == wanted]
        if not found:
            known = ", ".join(dict.fromkeys(map(find, levels)))
            raise ConfigError(f"{name} cannot be {wanted[:40]!r} here", hint=f"Known: {known}.")
    most = max(found, key=_count_operations)
    same = [one for one in found if (one.operation, one.side) == (most.operation, most.side)]
    return max(same, key=lambda one: (one.attempted_hz or 0.0, one.limited_steps))


def _count_operations(group: OperationGroup) -> tuple[bool, int]:
    # A server's packets outnumber every load.
    return group.side == CLIENT, group.scheduled


def _level_table(details: LoadDetails, request: Request) -> DataTable:
    def link_to_level(row: Mapping[str, Any]) -> str:
        query = {name: row[name] for name in ("operation", "side", "load")}
        id_ = request.path_params["campaign_id"]
        return link_to(request, "campaign-load", campaign_id=id_, query=query) + "#time"

    rows = [
        {
            "load": level_of(one).id,
            "label": details.label(one),
            **{name: getattr(level_of(one), name) for name in ("storage_site", "door", "variant")},
            "jobs": level_of(one).jobs or None,
            **one.list_figures(),
        }
        for one in details.levels
    ]
    columns = (
        TableColumn("label", "load", link=link_to_level),
        *(
            TableColumn(name, hidden=True)
            for name in ("load", "storage_site", "door", "variant", "jobs")
        ),
        TableColumn("operation", "operation"),
        TableColumn("side", "side"),
        *_figure_columns("operation", "side"),
    )
    empty = "No timed measurement of this campaign that is good has operations."
    return DataTable(
        "levels", "All loads", columns, rows, empty_text=empty, note=details.labels.variants.note
    )


def _step_table(details: LoadDetails) -> DataTable:
    rows = [
        {"step": step, "start_s": start_s, **one.list_figures()}
        for one in details.steps
        for step, start_s in (_step_key(one),)
    ]
    columns = (
        TableColumn("step", "step", is_number=True),
        TableColumn("start_s", "from (s)", is_number=True),
        *(TableColumn(name, hidden=True) for name in ("operation", "side")),
        *_figure_columns("operation", "side"),
    )
    merged = f"Each row merges {details.points} steps." * (details.points > 1)
    return DataTable("steps", "Time steps", columns, rows, note=merged)


def _step_key(step: OperationGroup) -> tuple[int, float]:
    assert isinstance(step.key, tuple)
    return step.key


def _server_table(details: LoadDetails) -> DataTable:
    rows = [
        {
            "server": one.server,
            **one.group.list_figures(),
            "observed_hz": one.observed_hz,
            "bytes_per_s": one.bytes_per_s,
            "attempted_hz": None,
        }
        for one in details.servers
    ]
    columns = (
        TableColumn("server", "server", lambda name: name or "unknown"),
        *(TableColumn(name, hidden=True) for name in ("operation", "side", "attempted_hz")),
        *_figure_columns("operation", "side", "attempted_hz"),
    )
    note = "Rates are over the whole time of the load."
    return DataTable("servers", "Servers", columns, rows, note=note)


def _site_table(details: LoadDetails) -> DataTable:
    rows = [{"site": one.key, **one.list_figures()} for one in details.sites]
    columns = (
        TableColumn("site", "site of the jobs"),
        *(TableColumn(name, hidden=True) for name in ("operation", "side")),
        *_figure_columns("operation", "side"),
    )
    return DataTable("sites", "Sites of the jobs", columns, rows)


def _start_table(spreads: Sequence[StartSpread]) -> DataTable:
    rows = [
        {
            **{name: getattr(one, name) for name in StartSpread.__annotations__},
            "judgment": one.judgment,
        }
        for one in spreads
    ]

    def format_spread(value: float | None) -> str:
        return "–" if value is None else format_seconds(value)

    columns = (
        TableColumn("start_us", "common start", format_time),
        TableColumn("judgment", "judged"),
        TableColumn("spread_s", "spread", format_spread, is_number=True),
        TableColumn("clock_error_s", "clocks within", format_spread, is_number=True),
        TableColumn("jobs", "jobs", is_number=True),
        TableColumn("started", "started", is_number=True),
        TableColumn("late", "late", is_number=True),
        TableColumn("latest_s", "by up to (s)", is_number=True),
        TableColumn("missing_load", "load missing", "{:.1%}".format, is_number=True),
    )
    return DataTable("starts", "Spread of the real starts", columns, rows)


def _figure_columns(*shown: str) -> Iterator[TableColumn]:
    """Columns of all figures but those shown already."""
    titles = {
        "active_clients": "clients",
        "attempted_hz": "attempted (1/s)",
        "observed_hz": "observed (1/s)",
        "failed_fraction": "failed",
        "bytes_per_s": "MB/s",
        **{name: name.removesuffix("_s") for name in QUANTILES},
        "failures": "failures",
        "steps": "rows",
        "limited_steps": "left out",
    }
    formats: Mapping[str, Callable[[Any], str]] = {
        "failed_fraction": lambda value: _dash(value, "{:.2%}".format),
        "bytes_per_s": lambda value: _dash(value, lambda rate: f"{rate / 1e6:.4g}"),
        "failures": format_counts,
        **{name: lambda value: _dash(value, format_seconds) for name in QUANTILES},
    }
    names = [*titles, *(name for name in FIGURE_NAMES if name not in titles)]
    for name in names:
        if name in shown:
            continue
        plain = {"format_value": formats[name]} if name in formats else {}
        yield TableColumn(
            name,
            titles.get(name, name),
            **plain,
            is_number=name != "failures",
            is_long=name == "failures",
            hidden=name not in titles,
        )


def _dash(value: float | None, write: Callable[[float], str]) -> str:
    return "–" if value is None else write(value)
