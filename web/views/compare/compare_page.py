"""Compare: the list of stored comparisons, and the form for a new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.analysis.comparison.verdict_headline import count_headline, describe_headline
from treehammer.analysis.samples.sample import CONTEXT_AXES, SELECTION_AXIS, natural_sort_key
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.read import campaign_queries, overview_queries
from treehammer.sql.read.overview_queries import ComparisonSummary
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.web.core.responses import AsciiJSONResponse
from treehammer.web.display.template_environment import format_time
from treehammer.web.views.compare import compare_query
from treehammer.web.views.compare.background_comparison import (
    BackgroundComparisons,
    ComparisonTask,
)
from treehammer.web.views.compare.compare_query import CompareQuery, TooManyMeasurementsError
from treehammer.web.views.compare.comparison_page import DisplayedComparison, comparison_view
from treehammer.web.views.compare.release_matrix import load_release_matrices
from treehammer.web.views.shared import comparison_columns
from treehammer.web.views.shared.page_context import (
    HTML,
    PageContext,
    PageView,
    error_sentence,
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
#: Seconds between two refreshes of the progress of a comparison in the background.
REFRESH_INTERVAL_S = 2
#: Newest campaigns listed in the form.
MAX_CAMPAIGN_CHOICES = 100


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes of the form with the list of comparisons, and of a stored comparison."""
    background = BackgroundComparisons(context.database)

    def query_page(store: Store, request: Request) -> PageView | Response:
        return compare_view(store, request, background)

    return [
        context.page_route("/compare", query_page, "compare"),
        context.page_route("/compare/{comparison}", stored_comparison_view, "comparison"),
    ]


def compare_view(
    store: Store, request: Request, background: BackgroundComparisons
) -> PageView | Response:
    """Collect the data of the list, or of the comparison that the URL describes."""
    query = compare_query.parse_compare_query(request, store)
    if not query.has_side:
        return _comparison_list_view(store, request, query)
    try:
        query.require_both_sides()
        comparison = _find_comparison(store, request, query, background)
    except (ConfigError, NothingToDoError) as error:
        if not wants_html(request):
            raise
        # The error is shown with the form, so that the parameters can be corrected.
        listing = _comparison_list_view(store, request, query)
        status = 404 if isinstance(error, NothingToDoError) else 400
        values = {**listing.values, "error": error_sentence(error)}
        return replace(listing, values=values, status=status)
    if isinstance(comparison, ComparisonTask):
        return _progress_view(request, comparison)
    values = {
        **_form_values(store, query),
        "command": query.compare_command if comparison.is_live else "",
    }
    return comparison_view(replace(comparison, values=values))


def _progress_view(request: Request, task: ComparisonTask) -> PageView | Response:
    """Show the progress of a comparison in the background; programs ask again."""
    if requested_format(request) == HTML:
        values = {"task": task, "refresh_s": REFRESH_INTERVAL_S}
        return PageView("compare_progress.html.j2", "Comparing", values, status=202)
    document = {"state": "running", "read": task.read, "count": task.count}
    headers = {"Retry-After": str(REFRESH_INTERVAL_S), "Cache-Control": "no-store"}
    return AsciiJSONResponse(document, 202, headers=headers)


def _find_comparison(
    store: Store, request: Request, query: CompareQuery, background: BackgroundComparisons
) -> DisplayedComparison | ComparisonTask:
    """Load the stored comparison, or compute it; a large one in the background."""
    if not request.query_params.get("recompute") and (
        rows := compare_query.load_stored_verdicts(store, query)
    ):
        return DisplayedComparison(store, request, rows)
    try:
        comparison = compare_query.compare_now(store, query, max_read=compare_query.MAX_READ)
    except TooManyMeasurementsError as error:
        task = background.request(query, error.count)
        if task.result is None:
            return task
        comparison = task.result
    return DisplayedComparison(store, request, comparison.verdicts, comparison.pairs)


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
    return comparison_view(DisplayedComparison(store, request, rows))


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
        TableColumn("headline", "variants", is_long=True),
        *(TableColumn(name, hidden=True) for name in ("over_sites", "by_site", "verdicts")),
    )
    table = DataTable(
        "comparisons",
        "Stored comparisons, newest first",
        columns,
        [_comparison_row(row, names) for row in comparisons],
        is_arrangeable=count <= COMPARISONS_PER_PAGE,
    )
    values = {
        "stored": table,
        "page": number,
        "pages": count_pages(count, COMPARISONS_PER_PAGE),
        "count": count,
        "error": "",
        "matrices": load_release_matrices(store, request) if number == 1 else [],
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
        "headline": describe_headline(count_headline(comparison.counts)),
        "verdicts": comparison.verdict_counts,
    }


def _form_values(store: Store, query: CompareQuery) -> dict[str, Any]:
    releases = sorted(
        overview_queries.list_subject_values(store, "axis_root"), key=natural_sort_key
    )
    campaigns = campaign_queries.list_campaign_choices(store, MAX_CAMPAIGN_CHOICES, query.campaigns)
    return {"query": query, "axes": COMPARABLE_AXES, "campaigns": campaigns, "releases": releases}
