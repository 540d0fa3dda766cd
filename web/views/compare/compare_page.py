"""Comparison of two releases or any two selections: list, form and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.comparison import counter_changes, instruction_changes, verdict_text
from treehammer.analysis.comparison.attribution import summarize_attribution
from treehammer.analysis.comparison.counter_changes import CounterChange
from treehammer.analysis.samples.sample import CONTEXT_AXES, SELECTION_AXIS, natural_sort_key
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    ONE_SIDED_VERDICTS,
    SERIES_SCOPES,
    SITES_SCOPE,
)
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import campaign_queries, overview_queries
from treehammer.sql.read.overview_queries import ComparisonSummary
from treehammer.sql.write.store import Store
from treehammer.web.display.data_tables import MAX_SHOWN_ROWS, DataTable, Row, TableColumn
from treehammer.web.display.template_environment import format_time
from treehammer.web.views.compare import compare_query, comparison_columns, effect_tables
from treehammer.web.views.compare.compare_query import CompareQuery
from treehammer.web.views.shared.common_columns import format_counts
from treehammer.web.views.shared.page_context import (
    HTML,
    PageContext,
    PageView,
    error_sentence,
    link_to,
    requested_format,
    wants_html,
)
from treehammer.web.views.shared.pagination import count_pages, parse_page_number

#: Stored comparisons on one page of the list.
COMPARISONS_PER_PAGE = 20
#: Axes that every test has; others can be typed.
COMPARABLE_AXES = (
    "root",
    *CONTEXT_AXES,
    "branches",
    "cache_mb",
    "events",
    "access",
    "cache",
    "format",
    SELECTION_AXIS,
)
#: Newest campaigns listed in the form.
MAX_CAMPAIGN_CHOICES = 100
#: Maximum reach of the drawn axis to either side, in ln.
_MAX_AXIS_REACH = 2.5


def routes(context: PageContext) -> list[BaseRoute]:
    """Routes of the form with the list of comparisons, and of a stored comparison."""
    return [
        context.page_route("/compare", compare_view, "compare"),
        context.page_route("/compare/{comparison}", stored_comparison_view, "comparison"),
    ]


def compare_view(store: Store, request: Request) -> PageView:
    """Collect the data of the list, or of the comparison that the URL describes."""
    query = compare_query.parse_compare_query(request, store)
    if not query.has_side:
        return _comparison_list_view(store, request, query)
    try:
        query.require_both_sides()
        if not request.query_params.get("recompute") and (
            rows := compare_query.load_stored_verdicts(store, query)
        ):
            return _comparison_view(store, request, rows, query)
        rows, notes = compare_query.compare_now(store, query)
    except (ConfigError, NothingToDoError) as error:
        if not wants_html(request):
            raise
        # Shown with the form, so that the parameters can be corrected.
        listing = _comparison_list_view(store, request, query)
        status = 404 if isinstance(error, NothingToDoError) else 400
        values = {**listing.values, "error": error_sentence(error)}
        return replace(listing, values=values, status=status)
    return _comparison_view(store, request, rows, query, notes)


def stored_comparison_view(store: Store, request: Request) -> PageView:
    """Collect the data of a stored comparison.

    Raises:
        NothingToDoError: no comparison has this id.
    """
    identity = request.path_params["comparison"]
    rows = store.verdicts(identity) if len(identity) <= 64 and identity.isprintable() else []
    if not rows:
        raise NothingToDoError(
            "this comparison does not exist", hint="It may have been replaced by a newer one."
        )
    return _comparison_view(store, request, rows, None)


def _comparison_list_view(store: Store, request: Request, query: CompareQuery) -> PageView:
    number, count = parse_page_number(request), overview_queries.count_comparisons(store)
    comparisons = overview_queries.list_latest_comparisons(
        store, COMPARISONS_PER_PAGE, (number - 1) * COMPARISONS_PER_PAGE
    )
    names = comparison_columns.load_campaign_names(
        store, (row.first_verdict for row in comparisons)
    )
    columns = (
        *comparison_columns.comparison_columns(request),
        TableColumn("judged_us", "judged", format_time),
        TableColumn(
            "over_sites",
            "over all sites",
            format_row=_write_scope_counts(over_sites=True),
            is_long=True,
        ),
        TableColumn(
            "by_site", "by site", format_row=_write_scope_counts(over_sites=False), is_long=True
        ),
        TableColumn("verdicts", hidden=True),
    )
    table = DataTable(
        "comparisons",
        "Stored comparisons, newest first",
        columns,
        [_comparison_row(row, names) for row in comparisons],
    )
    values = {
        "stored": table,
        "page": number,
        "pages": count_pages(count, COMPARISONS_PER_PAGE),
        "count": count,
        "error": "",
    }
    values |= _form_values(store, query)
    return PageView("compare.html.j2", "Compare", values, (table,))


def _comparison_row(comparison: ComparisonSummary, names: Mapping[str, str]) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = {"by_site": Counter(), "over_sites": Counter()}
    for scopes in comparison.verdict_counts.values():
        by_site, over_sites = comparison_columns.split_by_scope(scopes)
        counts["by_site"].update(by_site)
        counts["over_sites"].update(over_sites)
    return {
        **comparison_columns.describe_comparison(comparison.first_verdict, names),
        **{name: dict(verdicts.most_common()) for name, verdicts in counts.items()},
        "verdicts": comparison.verdict_counts,
    }


def _write_scope_counts(*, over_sites: bool) -> Callable[[Row], str]:
    def write(row: Row) -> str:
        return _format_metric_counts(
            {
                metric: comparison_columns.split_by_scope(scopes)[over_sites]
                for metric, scopes in row["verdicts"].items()
            }
        )

    return write


def _format_metric_counts(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Write counts of verdicts per metric; CPU and wall time come from the same jobs."""
    texts = (
        f"{verdict_text.title_metric(metric)}: {format_counts(verdict_counts)}"
        for metric, verdict_counts in counts.items()
        if verdict_counts
    )
    return "; ".join(texts) or "–"


def _form_values(store: Store, query: CompareQuery) -> dict[str, Any]:
    releases = sorted(
        overview_queries.list_subject_values(store, "axis_root"), key=natural_sort_key
    )
    campaigns = campaign_queries.list_campaign_choices(store, MAX_CAMPAIGN_CHOICES, query.campaigns)
    return {"query": query, "axes": COMPARABLE_AXES, "campaigns": campaigns, "releases": releases}


@dataclass(frozen=True)
class _VerdictRows:
    """Verdicts of a comparison by the table that shows them, most notable first."""

    series: Sequence[VerdictRow]
    pooled: Sequence[VerdictRow]
    by_site: Sequence[VerdictRow]
    missing: Sequence[VerdictRow]

    @classmethod
    def split(cls, rows: Sequence[VerdictRow]) -> _VerdictRows:
        """Distribute rows over the tables."""
        series = [row for row in rows if row.scope in SERIES_SCOPES]
        return cls(
            series,
            _sort_by_weight(row for row in rows if row.scope == SITES_SCOPE),
            _sort_by_weight(row for row in series if row.verdict not in ONE_SIDED_VERDICTS),
            [row for row in series if row.verdict in ONE_SIDED_VERDICTS],
        )


def _comparison_view(
    store: Store,
    request: Request,
    rows: Sequence[VerdictRow],
    query: CompareQuery | None,
    live_notes: Sequence[str] | None = None,
) -> PageView:
    """Collect the data of a comparison.

    Args:
        store: the database.
        request: the request.
        rows: verdicts of the comparison.
        query: parameters of the form; None for a stored comparison opened by its id.
        live_notes: notes of a comparison computed just now; None for a stored one.
    """
    from treehammer.analysis.comparison import comparison_notes

    first, split, live = rows[0], _VerdictRows.split(rows), live_notes is not None
    limit = MAX_SHOWN_ROWS if requested_format(request) == HTML else None
    names = comparison_columns.load_campaign_names(store, [first])
    a, b = verdict_text.side_names(first, names)
    titled = replace(first, a=a, b=b)
    tables = _build_effect_tables(request, split, titled, limit)
    counts = instruction_changes.load_counted_work(store, rows)
    instructions = effect_tables.instruction_table(counts, titled)
    changes = counter_changes.stored_counters(rows)
    counters = _build_counter_table(request, changes, titled, limit)
    pairs = [] if live or limit else [effect_tables.pair_table(store, first.comparison_id)]
    notes = comparison_notes.comparison_notes(rows) if live_notes is None else live_notes
    description = comparison_columns.describe_comparison(first, names)
    reach = _axis_reach(rows)
    values = {
        "tables": tables,
        "instructions": instructions,
        "counters": counters,
        "counter_summary": counter_changes.summarize_counters(changes),
        "not_time": instruction_changes.NOT_TIME,
        "bars": {
            "pooled": [_effect_bar(row, reach) for row in split.pooled[:limit]],
            "by_site": [_effect_bar(row, reach) for row in split.by_site[:limit]],
        },
        "delta": description["delta"] or DEFAULT_DELTA,
        "reach": reach,
        "directions": verdict_text.name_directions(rows),
        "first": first,
        "counts": _count_verdicts(split.series),
        "notes": [*verdict_text.explain_not_pooled(split.pooled), *notes],
        "attribution": summarize_attribution(rows, names),
        "selection": description,
        "campaign_names": names,
        "live": live,
        "command": query.compare_command if query and live else "",
        "address": link_to(request, "comparison", comparison=first.comparison_id),
    }
    if query:
        values |= _form_values(store, query)
    return PageView(
        "comparison.html.j2",
        description["compared"],
        values,
        (*tables, counters, instructions, *pairs),
    )


def _build_effect_tables(
    request: Request, split: _VerdictRows, titled: VerdictRow, limit: int | None
) -> list[DataTable]:
    """Build the tables over sites, by site, and of series that lack a side."""
    sections = (
        (effect_tables.pooled_table, split.pooled),
        (effect_tables.site_table, split.by_site),
        (effect_tables.missing_table, split.missing),
    )
    return [
        replace(build(request, some[:limit], titled), note=_truncation_note(limit, len(some)))
        for build, some in sections
    ]


def _build_counter_table(
    request: Request, changes: Sequence[CounterChange], titled: VerdictRow, limit: int | None
) -> DataTable:
    """Build the table of exact counters; with a limit, of those only that changed."""
    if limit is None:
        return effect_tables.counter_table(request, changes, titled)
    changed = [one for one in changes if one.verdict != counter_changes.SAME]
    table = effect_tables.counter_table(request, changed[:limit], titled)
    return replace(table, note=_truncation_note(limit, len(changed)))


def _count_verdicts(series: Sequence[VerdictRow]) -> str:
    counts: dict[str, Counter[str]] = {}
    for row in series:
        counts.setdefault(row.metric, Counter())[row.verdict] += 1
    return _format_metric_counts({metric: dict(of.most_common()) for metric, of in counts.items()})


def _truncation_note(limit: int | None, count: int) -> str:
    if limit is None or count <= limit:
        return ""
    return f"First {limit} of {count:,} rows; CSV and JSON hold all."


def effect_weight(row: VerdictRow) -> float:
    """|effect| ÷ width of its interval, the sort key for notability; −1 without an interval."""
    if row.effect is None or row.low is None or row.high is None:
        return -1.0
    return abs(row.effect) / max(row.high - row.low, 1e-12)


def _sort_by_weight(rows: Iterable[VerdictRow]) -> list[VerdictRow]:
    return sorted(rows, key=effect_weight, reverse=True)


def _axis_reach(rows: Sequence[VerdictRow]) -> float:
    """Reach of the drawn axis to either side, in ln."""
    ends = sorted(
        max(abs(row.low), abs(row.high))
        for row in rows
        if row.low is not None and row.high is not None
    )
    # A few wide intervals may exceed the axis, so that the others remain distinguishable.
    typical = ends[int(0.9 * (len(ends) - 1))] if ends else DEFAULT_DELTA
    return min(max(1.1 * typical, 2 * DEFAULT_DELTA), _MAX_AXIS_REACH)


@dataclass(frozen=True)
class EffectBar:
    """An effect and its interval as positions from 0 to 100 on the drawn axis.

    Attributes:
        low: start of the interval, clipped to the axis.
        high: end of the interval, clipped to the axis.
        effect: None if it lies beyond the axis.
        starts_before_axis: whether the interval starts left of the axis.
        ends_beyond_axis: whether the interval ends right of the axis.
    """

    low: float
    high: float
    effect: float | None
    starts_before_axis: bool
    ends_beyond_axis: bool


def _effect_bar(row: VerdictRow, reach: float) -> EffectBar | None:
    if row.effect is None or row.low is None or row.high is None:
        return None

    def place(value: float) -> float:
        return round(50 + 50 * max(-1.0, min(1.0, value / reach)), 2)

    return EffectBar(
        place(row.low),
        place(row.high),
        place(row.effect) if abs(row.effect) <= reach else None,
        row.low < -reach,
        row.high > reach,
    )
