"""Compare: the list of stored comparisons, and the form for a new one.

Comparisons that read too much for one request are computed in the background.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.analysis.comparison.conclusion import count_headline, describe_headline
from treehammer.analysis.statistics.sample import CONTEXT_AXES, SELECTION_AXIS, natural_sort_key
from treehammer.errors import ConfigError, NothingToDoError, TreehammerError
from treehammer.sql.read import campaign_queries, overview_queries, stored_comparisons
from treehammer.sql.read.stored_comparisons import ComparisonSummary
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.web.addresses import HTML, requested_format, wants_html
from treehammer.web.arranged_table import count_pages
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.core.responses import AsciiJSONResponse, service_unavailable
from treehammer.web.display_formats import format_time
from treehammer.web.page_query import (
    ListQuery,
    OneOf,
    PageOperation,
    PathText,
)
from treehammer.web.page_service import PageContext, PageModule, PageView, error_sentence
from treehammer.web.pages import compare_query
from treehammer.web.pages.common_tables import (
    comparison_columns,
    describe_comparison,
    load_campaign_names,
    split_by_scope,
)
from treehammer.web.pages.compare_query import (
    CompareQuery,
    TooManyMeasurementsError,
    VerdictFilter,
    compare_now,
)
from treehammer.web.pages.comparison_page import DisplayedComparison, comparison_view
from treehammer.web.pages.effect_matrix import load_release_matrices

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison import Comparison

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
#: Maximum number of measurements read by a comparison in the background: 1 GB of memory.
MAX_BACKGROUND_READ = 200_000
#: Comparisons that run or wait; one of them runs.
MAX_TASKS = 4
#: Seconds without a request after which a comparison is stopped, or its result is dropped.
ABANDONED_AFTER_S, FORGOTTEN_AFTER_S = 60.0, 900.0

_COMPARISON_TABLES = {
    "pooled": "variants over all sites",
    "by_site": "variants by site",
    "missing": "variants measured on one side only",
    "counters": "exact counters of the same variants with their changes",
    "instructions": "instructions per event of the same variants, where they were counted",
}
_COMPARISON_ABOUT = ("conclusion", "selection", "attribution", "notes")


class StoredComparisonQuery(VerdictFilter):
    """Parameters of a stored comparison."""

    comparison: PathText = Field(description="Identity.")


class ComputedComparisonQuery(VerdictFilter, CompareQuery):
    """Parameters of a comparison that is found or computed, and filters of its rows."""

    recompute: Annotated[str, OneOf(("1",))] = Field(
        "", description="Compute the comparison again even if it is stored."
    )


#: Content of the pages for programs.
OPERATIONS = (
    PageOperation(
        "/comparisons",
        "listComparisons",
        "compare",
        "Stored comparisons, newest first, 20 per page",
        {"comparisons": "comparisons"},
        ListQuery,
        ("page", "pages", "count"),
    ),
    PageOperation(
        "/comparisons/{comparison}",
        "getComparison",
        "comparison",
        "A stored comparison with its pairs of jobs",
        {**_COMPARISON_TABLES, "pairs": "pairs of jobs"},
        StoredComparisonQuery,
        _COMPARISON_ABOUT,
    ),
    PageOperation(
        "/compare",
        "compareSelections",
        "compare",
        "Comparison of two releases or selections, stored or computed",
        _COMPARISON_TABLES,
        ComputedComparisonQuery,
        _COMPARISON_ABOUT,
        # Without parameters the page lists the stored comparisons.
        always_about=False,
    ),
)


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes of the form with the list of comparisons, and of a stored comparison."""
    background = BackgroundComparisons(context.database)

    def query_page(store: Store, request: Request) -> PageView | Response:
        return compare_view(store, request, background)

    return [
        context.page_route("/compare", query_page, "compare"),
        context.page_route("/compare/{comparison}", stored_comparison_view, "comparison"),
    ]


PAGES = PageModule(routes, position=30, menu={"compare": "Compare"}, operations=OPERATIONS)


def compare_view(
    store: Store, request: Request, background: BackgroundComparisons
) -> PageView | Response:
    """Collect the data of the list, or of the comparison that the URL describes."""
    query = CompareQuery.parse(request).resolve(store)
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
    identity = StoredComparisonQuery.parse(request).comparison
    rows = store.verdicts(identity) if len(identity) <= 64 and identity.isprintable() else []
    if not rows:
        raise NothingToDoError(
            "this comparison does not exist", hint="It may have been replaced by a newer one."
        )
    return comparison_view(DisplayedComparison(store, request, rows))


def _comparison_list_view(store: Store, request: Request, query: CompareQuery) -> PageView:
    number = ListQuery.parse(request).page
    count = stored_comparisons.count_comparisons(store)
    comparisons = stored_comparisons.list_latest_comparisons(
        store, COMPARISONS_PER_PAGE, (number - 1) * COMPARISONS_PER_PAGE
    )
    names = load_campaign_names(store, (row.first_verdict for row in comparisons))
    columns = (
        *comparison_columns(),
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
        "matrices": load_release_matrices(store) if number == 1 else [],
    }
    values |= _form_values(store, query)
    return PageView("compare.html.j2", "Compare", values, (table,))


def _comparison_row(comparison: ComparisonSummary, names: Mapping[str, str]) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = {"by_site": Counter(), "over_sites": Counter()}
    for scopes in comparison.verdict_counts.values():
        by_site, over_sites = split_by_scope(scopes)
        counts["by_site"].update(by_site)
        counts["over_sites"].update(over_sites)
    return {
        **describe_comparison(comparison.first_verdict, names),
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


class _AbandonedError(TreehammerError):
    """A comparison was not requested for a while."""


@dataclass
class ComparisonTask:
    """A comparison in the background.

    Attributes:
        query: the comparison.
        count: largest possible number of measurements.
        read: measurements read so far.
        asked_s: time of the last request, of the monotonic clock.
        result: None until it is complete.
        error: failure, if there will be no result.
    """

    query: CompareQuery
    count: int
    read: int = 0
    asked_s: float = field(default_factory=time.monotonic)
    result: Comparison | None = None
    error: Exception | None = None

    @property
    def is_running(self) -> bool:
        """Whether it waits or runs."""
        return self.result is None and self.error is None

    @property
    def sentence(self) -> str:
        """Progress as a sentence."""
        if not self.read:
            return f"Waiting to read up to {self.count:,} measurements."
        return f"Read {self.read:,} of up to {self.count:,} measurements."

    def report_progress(self, read: int) -> None:
        """Note the number of measurements read.

        Raises:
            _AbandonedError: the comparison was not requested for a while.
        """
        self.read = read
        if time.monotonic() - self.asked_s > ABANDONED_AFTER_S:
            raise _AbandonedError("no reader asked for progress for a while")


class BackgroundComparisons:
    """Comparisons that run one after the other while their readers ask for progress; thread-safe.

    Args:
        database: opened by each comparison.
    """

    def __init__(self, database: LiveDatabase) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._turn = threading.Semaphore(1)
        self._tasks: dict[CompareQuery, ComparisonTask] = {}

    def request(self, query: CompareQuery, count: int) -> ComparisonTask:
        """Return the task of a comparison, started if it is new.

        Args:
            query: the comparison.
            count: largest possible number of measurements.

        Raises:
            ConfigError: it would read too many measurements.
            RequestRefusedError: too many comparisons wait.
            Exception: the comparison failed.
        """
        if count > MAX_BACKGROUND_READ:
            raise ConfigError(
                f"this comparison would read up to {count:,} measurements; "
                f"the limit here is {MAX_BACKGROUND_READ:,}",
                hint="Choose a campaign, or a site with where=site=NAME. 'treehammer compare' has "
                "no limit, and its results are listed on this page.",
            )
        with self._lock:
            self._drop_old_tasks()
            task = self._tasks.get(query)
            if task is None:
                task = self._start(query, count)
            elif task.error is not None:
                del self._tasks[query]
                raise task.error
            task.asked_s = time.monotonic()
        return task

    def _drop_old_tasks(self) -> None:
        now = time.monotonic()
        for query, task in list(self._tasks.items()):
            if not task.is_running and now - task.asked_s > FORGOTTEN_AFTER_S:
                del self._tasks[query]
        complete = [query for query, task in self._tasks.items() if not task.is_running]
        for query in complete[:-MAX_TASKS]:
            del self._tasks[query]

    def _start(self, query: CompareQuery, count: int) -> ComparisonTask:
        if sum(task.is_running for task in self._tasks.values()) >= MAX_TASKS:
            raise service_unavailable("too many comparisons are waiting")
        task = self._tasks[query] = ComparisonTask(query, count)
        # A daemon: a stopping service does not wait for it.
        threading.Thread(target=self._run, args=[task], name="comparison", daemon=True).start()
        return task

    def _run(self, task: ComparisonTask) -> None:
        with self._turn:
            try:
                with self._database.open_store() as store:
                    task.result = compare_now(
                        store, task.query, max_read=None, on_progress=task.report_progress
                    )
            except _AbandonedError:
                with self._lock:
                    del self._tasks[task.query]
            except Exception as error:
                # Raised again by the next request.
                task.error = error
