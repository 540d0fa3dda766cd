"""Explore: any metric against any dimension, as a figure, as tables and as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.analysis.samples.sample import natural_sort_key
from treehammer.collectors.job_spec import EXECUTION_KINDS
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError
from treehammer.sql.core.metric_sums import HISTOGRAM_COLUMN
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read import campaign_queries, overview_queries
from treehammer.sql.read.figure_query import ROLLUP_GROUPINGS, TIME_UNITS
from treehammer.sql.write.store import Store
from treehammer.text_formatting import pluralize
from treehammer.web.core.responses import RequestRefusedError
from treehammer.web.display.data_tables import MAX_SHOWN_ROWS, DataTable
from treehammer.web.display.variant_labels import VARIANT_COLUMN, label_variants
from treehammer.web.figures import explore_query as asking
from treehammer.web.figures import figure_captions
from treehammer.web.figures.drawing import FIGURE_FORMATS
from treehammer.web.figures.drawing_process import MAX_DRAWING_PROCESSES, FigureFiles
from treehammer.web.figures.explore_query import (
    BARS,
    DIMENSIONS,
    DISTRIBUTION,
    FILTERS,
    LATENCY,
    METRICS,
    SCALES,
    VIEWS,
    ExploreQuery,
)
from treehammer.web.figures.figure_layout import FigureLayout
from treehammer.web.figures.figure_points import FigurePoints, load_points
from treehammer.web.views.explore import latency_figure, spread_figure
from treehammer.web.views.explore.row_links import RowLinks
from treehammer.web.views.shared.page_context import (
    HTML,
    PageContext,
    PageView,
    QueryPool,
    error_sentence,
    link_to,
    requested_format,
    wants_html,
)

#: Values that a list to choose from has; others can be typed.
MAX_FILTER_CHOICES = 300
#: Campaigns to choose from, the newest.
MAX_CAMPAIGN_CHOICES = 100

#: Study S0's figure: CPU efficiency by site, with the RMS of repeated executions.
S0 = ExploreQuery(metric="eff_job", by="site", colour=VARIANT_COLUMN)
S0_TITLE = "CPU efficiency by site (study S0)"


@dataclass(frozen=True)
class _FigureKind:
    """A figure with an address of its own.

    Attributes:
        default: what it shows when nothing is said.
        title: of what it shows then.
        apart: columns that are told apart where several values are selected.
    """

    default: ExploreQuery
    title: str = ""
    separated_columns: tuple[str, ...] = ()

    def figure_title(self, asked: ExploreQuery) -> str:
        """What the figure is called: by its own name only as long as it is that figure."""
        own = all(getattr(asked, name) == getattr(self.default, name) for name in _TITLE_FIELDS)
        return self.title if self.title and own else figure_captions.figure_heading(asked)


#: What makes a figure another one.
_TITLE_FIELDS = ("metric", "by", "colour", "panels", "view")
_FIGURE_KINDS = {
    "explore": _FigureKind(ExploreQuery()),
    "s0": _FigureKind(S0, S0_TITLE, ("test_name", "dataset")),
}


@dataclass(frozen=True)
class _ExploreResult:
    """What was asked for and found; ``refused`` says why nothing was, '' otherwise."""

    asked: ExploreQuery
    points: FigurePoints
    title: str
    refusal: str = ""

    def lay_out(self) -> FigureLayout | None:
        """The figure; None when there is nothing to draw."""
        lay_out = (
            latency_figure.lay_out_latencies
            if self.asked.view == LATENCY
            else spread_figure.lay_out_spreads
        )
        return lay_out(self.asked, self.points, self.title)

    def build_table(self, links: RowLinks) -> DataTable:
        """Its groups."""
        table = (
            latency_figure.latency_table
            if self.asked.view == LATENCY
            else spread_figure.spread_table
        )
        return table(self.asked, self.points, links)

    @property
    def about(self) -> Mapping[str, Any]:
        """What the page tells beside its tables."""
        asked = self.asked
        metric = METRICS_BY_NAME.get(asked.metric)
        of_metric = {"metric": asked.metric, "unit": metric.unit if metric else ""}
        return {
            **(
                of_metric
                if asked.view != LATENCY
                else {"metric": HISTOGRAM_COLUMN, "unit": "reads"}
            ),
            "meaning": figure_captions.describe_metric(asked),
            "bars": figure_captions.describe_bars(asked),
            "caption": figure_captions.describe_groups(asked),
            "selection": figure_captions.describe_selection(asked, self.points.points),
            "from": asked.first.isoformat() if asked.first else None,
            "to": asked.last.isoformat() if asked.last else None,
            "kind": asked.kind or None,
            "groups": list(asked.group_columns),
            "mixed": self.points.aggregation.describe_figure(asked.group_columns),
            "mixed_most": self.points.aggregation.largest_counts,
            "source": self.points.source,
        }


def routes(context: PageContext) -> list[BaseRoute]:
    """Explore, study S0's figure, and both as files."""
    files = FigureFiles()
    # Drawing takes seconds: who waits for it does so here, not where pages are asked for.
    room = QueryPool(anyio.CapacityLimiter(MAX_DRAWING_PROCESSES))
    found: list[BaseRoute] = []
    for name, path in (("explore", "/explore"), ("s0", "/figures/s0")):
        found.append(context.page_route(path, _page_view(name), name))
        drawn = _file_view(name, files)
        found.append(
            context.page_route(f"{path}/figure.{{form}}", drawn, f"{name}-file", room=room)
        )
    return found


def _run_query(store: Store, request: Request, kind: _FigureKind) -> _ExploreResult:
    """Ask the database.

    Raises:
        ConfigError: a program asks for what there is not; people are told so beside the form.
    """
    asked: ExploreQuery | None = None
    try:
        asked = asking.parse_explore_query(request, store, kind.default)
        found = load_points(store, asked)
        several = [
            name
            for name in kind.separated_columns
            if found.aggregation.counts_in_figure.get(name, 0) > 1
        ]
        if apart := tuple(name for name in several if name not in asked.group_columns):
            asked = replace(asked, separated_columns=apart)
            found = load_points(store, asked)
    except ConfigError as error:
        if not wants_html(request):
            raise
        asked = asked or asking.parse_leniently(request, store, kind.default)
        return _ExploreResult(
            asked, FigurePoints((), ""), kind.figure_title(asked), error_sentence(error)
        )
    return _ExploreResult(asked, found, kind.figure_title(asked))


def _page_view(name: str) -> Callable[[Store, Request], PageView]:
    kind = _FIGURE_KINDS[name]

    def view(store: Store, request: Request) -> PageView:
        found = _run_query(store, request, kind)
        asked, points = found.asked, found.points
        links = RowLinks(request, asked)
        whole = found.build_table(links)
        quantiles = latency_figure.quantile_table(asked, points, links)
        if requested_format(request) != HTML:
            tables = (whole, quantiles)
            return PageView("explore.html.j2", found.title, {**found.about}, tables=tables)
        picture = found.lay_out()
        values = {
            "asked": asked,
            "refused": found.refusal,
            "picture": picture,
            "shared": points.variants.note,
            "nothing": ""
            if picture or not points.points
            else figure_captions.explain_empty_figure(asked, points.points),
            "about": found.about,
            "shown": [_truncate_table(table, asked) for table in (quantiles, whole) if table.rows],
            "file": lambda form: _link_to_figure(request, f"{name}-file", asked, form=form),
            "permanent": _link_to_figure(request, name, asked),
            "presets": list(_preset_links(request, asked, name)),
            "form": _form_values(store, asked),
            "forms": [form for form in FIGURE_FORMATS if form != "root"] if picture else [],
        }
        status = 400 if found.refusal else 200
        return PageView("explore.html.j2", found.title, values, inline_styles=True, status=status)

    return view


def _file_view(name: str, files: FigureFiles) -> Callable[[Store, Request], Response]:
    kind = _FIGURE_KINDS[name]

    def answer(store: Store, request: Request) -> Response:
        form = request.path_params["form"]
        if form not in FIGURE_FORMATS:
            raise RequestRefusedError(
                404, f"there is no {form[:20]!r}; a figure is made as {', '.join(FIGURE_FORMATS)}"
            )
        found = _run_query(store, request, kind)
        if found.refusal:
            raise RequestRefusedError(400, found.refusal)
        wanted: dict[str, Any]
        if form == "root":
            whole = found.build_table(RowLinks(request, found.asked))
            wanted = {
                "columns": _column_types(found.asked, whole),
                "rows": whole.plain_rows(),
                "title": _tree_title(found),
            }
        else:
            drawn = found.lay_out()
            if drawn is None:
                raise RequestRefusedError(
                    404, figure_captions.explain_empty_figure(found.asked, found.points.points)
                )
            wanted = {"picture": asdict(drawn)}
        made = files.draw_file(form, wanted)
        shows = "inline" if form in ("png", "svg") else "attachment"
        headers = {
            "Content-Disposition": f'{shows}; filename="{name}.{form}"',
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return Response(made, headers=headers, media_type=FIGURE_FORMATS[form])

    return answer


def _tree_title(found: _ExploreResult) -> str:
    """What a TTree is of, in its title."""
    about = found.about
    said = (found.title, about["bars"], about["selection"], about["mixed"])
    return ". ".join(text.rstrip(".") for text in said if text)


def _truncate_table(whole: DataTable, asked: ExploreQuery) -> DataTable:
    """What the page shows: of times the newest."""
    if len(whole.rows) <= MAX_SHOWN_ROWS:
        return whole
    newest = asked.group_columns[0] in TIME_UNITS
    rows = whole.rows[-MAX_SHOWN_ROWS:] if newest else whole.rows[:MAX_SHOWN_ROWS]
    which = "last" if newest else "first"
    note = f"The {which} {MAX_SHOWN_ROWS} of {pluralize(len(whole.rows), 'row')}; CSV and JSON have all."
    return replace(whole, rows=rows, note=f"{whole.note} {note}".strip())


def _column_types(asked: ExploreQuery, whole: DataTable) -> list[dict[str, str]]:
    """The columns with the types that a TTree gives them."""
    counts = (
        "good",
        "failed",
        "implausible",
        "not_supported",
        "number",
        "jobs",
        "reads",
        *TIME_UNITS,
    )
    found = []
    for column in whole.columns:
        kind = "int" if column.key in counts else "text" if column.key == "mixes" else "float"
        if column.key in asked.group_columns and column.key in METRICS_BY_NAME:
            kind = METRICS_BY_NAME[column.key].type
        found.append({"name": column.key, "type": kind})
    return found


def _link_to_figure(request: Request, name: str, asked: ExploreQuery, **parts: Any) -> str:
    return f"{link_to(request, name, **parts)}?{urlencode(asked.query_parameters)}"


def _preset_links(request: Request, asked: ExploreQuery, here: str) -> Sequence[Mapping[str, Any]]:
    """Other looks at the same selection, one click away."""
    kept = [
        (n, v)
        for n, v in asked.query_parameters
        if n in ("from", "to", "campaign", "where", "kind")
    ]

    def one(title: str, **said: str) -> Mapping[str, Any]:
        query = urlencode([*said.items(), *kept])
        return {"title": title, "address": f"{link_to(request, 'explore')}?{query}"}

    metric = asked.metric
    s0 = {"title": S0_TITLE, "address": f"{link_to(request, 's0')}?{urlencode(kept)}"}
    # Each tells variants apart: a mean over several would be one of their mix.
    return [
        *([s0] if here != "s0" else []),
        one("Trend by day", metric=metric, by="day", colour="site", panels=VARIANT_COLUMN),
        one(
            "Distribution by site",
            metric=metric,
            by="site",
            colour="axis_root",
            panels=VARIANT_COLUMN,
            view=DISTRIBUTION,
        ),
        one(
            "Read latency by variant",
            metric=metric,
            by=VARIANT_COLUMN,
            colour="axis_root",
            view=LATENCY,
        ),
        one(
            "Small multiples by site",
            metric=metric,
            by=VARIANT_COLUMN,
            colour="axis_root",
            panels="site",
        ),
        one(
            "Trend by day, a panel per site",
            metric=metric,
            by="day",
            colour=VARIANT_COLUMN,
            panels="site",
        ),
    ]


def _form_values(store: Store, asked: ExploreQuery) -> Mapping[str, Any]:
    """What the form offers."""
    rolled = [m for m in METRICS if m.name in ROLLUP_METRICS]
    others = [m for m in METRICS if m.name not in ROLLUP_METRICS]
    known = {m.name for m in METRICS}
    quick = [name for name in DIMENSIONS if name in ROLLUP_GROUPINGS]
    slow = [name for name in DIMENSIONS if name not in ROLLUP_GROUPINGS]
    return {
        "metrics": (("summed up by day", rolled), ("read one by one", others)),
        "own_metric": asked.metric if asked.metric not in known else "",
        "dimensions": (("summed up by day", quick), ("read one by one", slow)),
        "views": VIEWS,
        "bars": BARS,
        "scales": SCALES,
        "kinds": EXECUTION_KINDS,
        "filters": [(name, *_filter_choices(store, asked, name)) for name in FILTERS],
        "campaigns": campaign_queries.list_campaign_choices(
            store, MAX_CAMPAIGN_CHOICES, asked.campaigns
        ),
        "filtered": bool(asked.conditions or asked.unreadable_conditions or asked.campaigns),
    }


def _filter_choices(
    store: Store, asked: ExploreQuery, name: str
) -> tuple[list[tuple[str, str, bool]], int]:
    """Values of a column: each with its text, and whether it is chosen.

    And how many they were cut to, the first in the order of the database; 0 where all are there.
    """
    known = overview_queries.list_subject_values(store, name, MAX_FILTER_CHOICES + 1)
    chosen = asked.chosen_values(name)
    values = {*known[:MAX_FILTER_CHOICES], *chosen} - {""}
    cut = MAX_FILTER_CHOICES if len(known) > MAX_FILTER_CHOICES else 0
    if name == VARIANT_COLUMN:
        names = label_variants(values).names
        return [(one, text, one in chosen) for one, text in names.items()], cut
    ordered = sorted(values, key=natural_sort_key)
    return [(value, value, value in chosen) for value in ordered], cut
