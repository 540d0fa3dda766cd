"""Compare: what two releases, or any two selections, differ by; where, and how certainly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.attribution import summarize_attribution
from treehammer.analysis.samples.sample import CONTEXT_AXES, SELECTION_AXIS, natural_sort_key
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    ONE_SIDED_VERDICTS,
    RELEASE_SCOPE,
    SERIES_SCOPE,
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

#: Stored comparisons on a page of their list.
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
#: Campaigns to choose from, the newest.
MAX_CAMPAIGN_CHOICES = 100
#: How far the drawn axis reaches at most, in ln.
_MAX_AXIS_REACH = 2.5


def routes(context: PageContext) -> list[BaseRoute]:
    """Comparisons that were stored, one of them, and those that are made when they are asked for."""
    return [
        context.page_route("/compare", compare_view, "compare"),
        context.page_route("/compare/{comparison}", stored_comparison_view, "comparison"),
    ]


def compare_view(store: Store, request: Request) -> PageView:
    """The list of comparisons, or the one that the address asks for."""
    asked = compare_query.parse_compare_query(request, store)
    if not asked.has_side:
        return _comparison_list_view(store, request, asked)
    try:
        asked.require_both_sides()
        if not request.query_params.get("now") and (
            rows := compare_query.load_stored_verdicts(store, asked)
        ):
            return _comparison_view(store, request, rows, asked)
        rows, notes = compare_query.compare_now(store, asked)
    except (ConfigError, NothingToDoError) as error:
        if not wants_html(request):
            raise
        # With the form, in which it can be asked for otherwise.
        listing = _comparison_list_view(store, request, asked)
        status = 404 if isinstance(error, NothingToDoError) else 400
        values = {**listing.values, "refused": error_sentence(error)}
        return replace(listing, values=values, status=status)
    return _comparison_view(store, request, rows, asked, notes)


def stored_comparison_view(store: Store, request: Request) -> PageView:
    """One that was stored.

    Raises:
        NothingToDo: there is none of this identity.
    """
    identity = request.path_params["comparison"]
    rows = store.verdicts(identity) if len(identity) <= 64 and identity.isprintable() else []
    if not rows:
        raise NothingToDoError("there is no such comparison", hint="It may have been made anew.")
    return _comparison_view(store, request, rows, None)


def _comparison_list_view(store: Store, request: Request, asked: CompareQuery) -> PageView:
    number, count = parse_page_number(request), overview_queries.count_comparisons(store)
    found = overview_queries.list_latest_comparisons(
        store, COMPARISONS_PER_PAGE, (number - 1) * COMPARISONS_PER_PAGE
    )
    names = comparison_columns.load_campaign_names(store, (one.first_verdict for one in found))
    columns = (
        *comparison_columns.comparison_columns(request),
        TableColumn("judged_us", "judged", format_time),
        TableColumn(
            "over_sites",
            "over all sites",
            format_row=_write_scope_counts(RELEASE_SCOPE),
            is_long=True,
        ),
        TableColumn(
            "by_site", "by site", format_row=_write_scope_counts(SERIES_SCOPE), is_long=True
        ),
        TableColumn("verdicts", hidden=True),
    )
    listed = DataTable(
        "comparisons",
        "Comparisons that were made, the newest first",
        columns,
        [_comparison_row(one, names) for one in found],
    )
    values = {
        "listed": listed,
        "page": number,
        "pages": count_pages(count, COMPARISONS_PER_PAGE),
        "count": count,
        "refused": "",
    }
    values |= _form_values(store, asked)
    return PageView("compare.html.j2", "Compare", values, (listed,))


def _comparison_row(one: ComparisonSummary, names: Mapping[str, str]) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = {RELEASE_SCOPE: Counter(), SERIES_SCOPE: Counter()}
    for of_metric in one.verdict_counts.values():
        for scope, verdicts in of_metric.items():
            counts[scope].update(verdicts)
    return {
        **comparison_columns.describe_comparison(one.first_verdict, names),
        "over_sites": dict(counts[RELEASE_SCOPE].most_common()),
        "by_site": dict(counts[SERIES_SCOPE].most_common()),
        "verdicts": one.verdict_counts,
    }


def _write_scope_counts(scope: str) -> Callable[[Row], str]:
    def write(row: Row) -> str:
        return _format_metric_counts(
            {metric: of.get(scope, {}) for metric, of in row["verdicts"].items()}
        )

    return write


def _format_metric_counts(counts: Mapping[str, Mapping[str, int]]) -> str:
    """How often each verdict was given, of CPU and of wall time apart: both are of the same jobs."""
    told = (
        f"{verdict_text.METRIC_TITLES.get(metric, metric)}: {format_counts(of)}"
        for metric, of in counts.items()
        if of
    )
    return "; ".join(told) or "–"


def _form_values(store: Store, asked: CompareQuery) -> dict[str, Any]:
    releases = sorted(
        overview_queries.list_subject_values(store, "axis_root"), key=natural_sort_key
    )
    known = campaign_queries.list_campaign_choices(store, MAX_CAMPAIGN_CHOICES, asked.campaigns)
    return {"asked": asked, "axes": COMPARABLE_AXES, "campaigns": known, "releases": releases}


def _comparison_view(
    store: Store,
    request: Request,
    rows: Sequence[VerdictRow],
    asked: CompareQuery | None,
    live: Sequence[str] | None = None,
) -> PageView:
    """A comparison: ``live`` holds the notes of one that was made just now."""
    from treehammer.analysis.comparison import comparison_notes

    first = rows[0]
    series = [row for row in rows if row.scope == SERIES_SCOPE]
    missing = [row for row in series if row.verdict in ONE_SIDED_VERDICTS]
    both = _sort_by_weight([row for row in series if row not in missing])
    pooled = _sort_by_weight([row for row in rows if row.scope == RELEASE_SCOPE])
    people = requested_format(request) == HTML
    one_host = len({row.site for row in series}) == 1 and max(row.hosts for row in series) <= 1
    said = (
        live
        if live is not None
        else list(comparison_notes.comparison_notes(rows, one_host=one_host))
    )
    names = comparison_columns.load_campaign_names(store, [first])
    a, b = verdict_text.side_names(first, names)
    headed = replace(first, a=a, b=b)
    made = (
        (effect_tables.pooled_table, pooled),
        (effect_tables.site_table, both),
        (effect_tables.missing_table, missing),
    )
    tables = [
        replace(
            table(request, _limit_for_people(some, people), headed),
            note=_truncation_note(len(_limit_for_people(some, people)), len(some)),
        )
        for table, some in made
    ]
    if not people and live is None:
        tables.append(effect_tables.pair_table(store, first.comparison_id))
    described = comparison_columns.describe_comparison(first, names)
    values = {
        "tables": tables[:3],
        "lines": {
            "pooled": _effect_bars(_limit_for_people(pooled, people), rows),
            "by_site": _effect_bars(_limit_for_people(both, people), rows),
        },
        "delta": described["delta"] or DEFAULT_DELTA,
        "reach": _axis_reach(rows),
        "first": first,
        "counts": _count_verdicts(series),
        "notes": [*verdict_text.explain_not_pooled(pooled), *said],
        "attribution": summarize_attribution(rows, names),
        "asked_of": described,
        "campaign_names": names,
        "live": live is not None,
        "command": asked.compare_command if asked and live is not None else "",
        "address": link_to(request, "comparison", comparison=first.comparison_id),
    }
    if asked:
        values |= _form_values(store, asked)
    return PageView("comparison.html.j2", described["compared"], values, tuple(tables))


def _count_verdicts(series: Sequence[VerdictRow]) -> str:
    counts: dict[str, Counter[str]] = {}
    for row in series:
        counts.setdefault(row.metric, Counter())[row.verdict] += 1
    return _format_metric_counts({metric: dict(of.most_common()) for metric, of in counts.items()})


def _limit_for_people(rows: Sequence[VerdictRow], people: bool) -> Sequence[VerdictRow]:
    """What people see of the rows; programs get all."""
    return rows[:MAX_SHOWN_ROWS] if people else rows


def _truncation_note(shown: int, of: int) -> str:
    return f"The first {shown} of {of:,} rows; CSV and JSON have all." if shown < of else ""


def effect_weight(row: VerdictRow) -> float:
    """|effect| ÷ width of the interval: what stands out is first; below 0 where there is none."""
    if row.effect is None or row.low is None or row.high is None:
        return -1.0
    return abs(row.effect) / max(row.high - row.low, 1e-12)


def _sort_by_weight(rows: Sequence[VerdictRow]) -> list[VerdictRow]:
    return sorted(rows, key=effect_weight, reverse=True)


def _axis_reach(rows: Sequence[VerdictRow]) -> float:
    """How far the drawn axis reaches to either side, in ln."""
    ends = sorted(
        max(abs(row.low), abs(row.high))
        for row in rows
        if row.low is not None and row.high is not None
    )
    # Some wide intervals may leave the picture, so that the others can be told apart.
    usual = ends[int(0.9 * (len(ends) - 1))] if ends else DEFAULT_DELTA
    return min(max(1.1 * usual, 2 * DEFAULT_DELTA), _MAX_AXIS_REACH)


@dataclass(frozen=True)
class EffectBar:
    """An effect with its interval between 0 and 100 along the drawn axis.

    Attributes:
        low: where the interval begins, at most as far as the axis reaches.
        high: where it ends.
        effect: None where it lies beyond the axis.
        before: whether the interval begins before the axis.
        beyond: whether it goes on after the axis.
    """

    low: float
    high: float
    effect: float | None
    starts_before_axis: bool
    ends_beyond_axis: bool


def _effect_bars(
    rows: Sequence[VerdictRow], everything: Sequence[VerdictRow]
) -> list[EffectBar | None]:
    """What is drawn of each row; None where there is no interval."""
    reach = _axis_reach(everything)
    return [_effect_bar(row, reach) for row in rows]


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
