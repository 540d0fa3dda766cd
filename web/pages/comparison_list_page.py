"""Compare: the list of stored comparisons, and the form for a new one.

Comparisons that read too much for one request are computed in the background.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from starlette.responses import RedirectResponse, Response

from treehammer.analysis.comparison.compared_sides import TooManyMeasurementsError, compare_now
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, SITES_SCOPE
from treehammer.errors import ConfigError, NothingToDoError, TreehammerError
from treehammer.sql.read import campaign_queries, stored_comparisons
from treehammer.sql.read.stored_comparisons import list_release_comparisons, load_scope_verdicts
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, hidden_columns
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to, link_to_same_page, wants_html
from treehammer.web.arranged_table import count_pages
from treehammer.web.columns import column
from treehammer.web.core.responses import AsciiJSONResponse, service_unavailable
from treehammer.web.figures.forest_plot import ForestPlot
from treehammer.web.page import PageContent, PageOperation, PageRequest, PageResources, page
from treehammer.web.page_query import ListQuery, OneOf, PageQuery, PathText
from treehammer.web.page_service import error_sentence
from treehammer.web.pages import common_tables
from treehammer.web.pages.compare_query import (
    CompareQuery,
    MeasuredAxes,
    VerdictFilter,
    load_stored_verdicts,
)
from treehammer.web.pages.comparison_findings import answer_doors
from treehammer.web.pages.comparison_page import DisplayedComparison, build_comparison
from treehammer.web.pages.effect_matrix import METRIC, load_release_matrices

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison import Comparison

#: Tests whose releases are drawn.
MAX_FORESTS = 3
#: Stored comparisons on one page of the list.
COMPARISONS_PER_PAGE = 20
#: Seconds between two refreshes of the progress of a comparison in the background.
REFRESH_INTERVAL_S = 2
#: Values of an axis suggested in the form.
MAX_SUGGESTED = 200
#: Newest campaigns listed in the form.
MAX_CAMPAIGN_CHOICES = 100
#: Maximum number of measurements read by a comparison computed on request.
MAX_READ = 30_000
#: Maximum number of measurements read by a comparison in the background: 1 GB of memory.
MAX_BACKGROUND_READ = 200_000
#: Comparisons that run or wait; one of them runs.
MAX_TASKS = 4
#: Seconds without a request after which a comparison is stopped, or its result is dropped.
ABANDONED_AFTER_S, FORGOTTEN_AFTER_S = 60.0, 900.0

_COMPARISON_TABLES = {
    "summary": "certain regressions and improvements by metric",
    "pooled": "variants over all sites",
    "by_site": "variants by site",
    "missing": "variants measured on one side only",
    "counters": "exact counters of the same variants with their changes",
    "instructions": "instructions per event of the same variants, where they were counted",
}
_COMPARISON_ABOUT = ("conclusion", "selection", "environment", "attribution", "notes")


class StoredComparisonQuery(VerdictFilter):
    """Parameters of a stored comparison."""

    comparison: PathText = Field(description="Identity.")


class ComputedComparisonQuery(VerdictFilter, CompareQuery):
    """Parameters of a comparison that is found or computed, and filters of its rows."""

    recompute: Annotated[str, OneOf(("1",))] = Field(
        "", description="Compute the comparison again even if it is stored."
    )


@page(
    "/compare",
    "compare",
    CompareQuery,
    menu="Compare",
    position=30,
    reads_measurements=False,
    help="compare-releases",
    api=(
        PageOperation(
            "listComparisons",
            "Stored comparisons, newest first, 20 per page",
            {"comparisons": "comparisons"},
            ("page", "pages", "count"),
            path="/comparisons",
            query=ListQuery,
        ),
        PageOperation(
            "compareSelections",
            "Comparison of two releases or selections, stored or computed",
            _COMPARISON_TABLES,
            _COMPARISON_ABOUT,
            query=ComputedComparisonQuery,
            # Without parameters the page lists the stored comparisons.
            always_about=False,
        ),
    ),
)
def compare_page(request: PageRequest[CompareQuery]) -> PageContent | Response:
    """Build the list, or the comparison that the URL describes."""
    store = request.store
    query = request.query.resolve(store)
    # A form that was sent has its sides, if empty ones.
    sides = (query.a, query.b, query.conditions_a, query.conditions_b)
    if not any(sides) and "a" not in request.raw.query_params:
        return _build_list(request, query)
    try:
        query.require_both_sides()
        comparison = _find_comparison(request, query)
    except (ConfigError, NothingToDoError) as error:
        if not wants_html(request.raw):
            raise
        # The error is shown with the form, so that the parameters can be corrected.
        status = 404 if isinstance(error, NothingToDoError) else 400
        return _build_list(request, query, error_sentence(error), status)
    if isinstance(comparison, ComparisonTask):
        return _show_progress(request, comparison)
    form = _build_form(query, store, MeasuredAxes.load(store))
    command = query.compare_command if comparison.is_live else ""
    return build_comparison(replace(comparison, form=form, command=command))


def _show_progress(
    request: PageRequest[CompareQuery], task: ComparisonTask
) -> PageContent | Response:
    """Show the progress of a comparison in the background; programs ask again."""
    if not request.is_html:
        document = {"state": "running", "read": task.read, "count": task.count}
        headers = {"Retry-After": str(REFRESH_INTERVAL_S), "Cache-Control": "no-store"}
        return AsciiJSONResponse(document, 202, headers=headers)
    sections = (
        ui.Paragraph(task.sentence, role="status"),
        ui.Progress(task.read, task.count, "measurements read"),
        ui.quiet(
            "This page refreshes itself until the comparison is complete. It stops if nobody looks for a "
            "minute."
        ),
    )
    crumbs = [ui.Link("Compare", link_to("compare"))]
    return PageContent(
        "Comparing", sections, (), crumbs=crumbs, status=202, refresh_s=REFRESH_INTERVAL_S
    )


def _find_comparison(
    request: PageRequest[CompareQuery], query: CompareQuery
) -> DisplayedComparison | ComparisonTask:
    """Load the stored comparison, or compute it; a large one in the background."""
    store, raw = request.store, request.raw
    if not raw.query_params.get("recompute") and (rows := load_stored_verdicts(store, query)):
        return DisplayedComparison(store, raw, rows)
    MeasuredAxes.load(store).require(query)
    try:
        comparison = compare_now(store, query.sides, max_read=MAX_READ)
    except TooManyMeasurementsError as error:
        task = request.resources.share(BackgroundComparisons).request(query, error.count)
        if task.result is None:
            return task
        comparison = task.result
    return DisplayedComparison(store, raw, comparison.verdicts, comparison.pairs)


@page(
    "/compare/{comparison}",
    "comparison",
    StoredComparisonQuery,
    position=31,
    reads_measurements=False,
    help="compare-releases",
    api=PageOperation(
        "getComparison",
        "A stored comparison with its pairs of jobs",
        {**_COMPARISON_TABLES, "pairs": "pairs of jobs"},
        _COMPARISON_ABOUT,
        path="/comparisons/{comparison}",
    ),
)
def stored_comparison_page(request: PageRequest[StoredComparisonQuery]) -> PageContent:
    """Build the page of a stored comparison; an unknown one is refused."""
    identity = request.query.comparison
    is_valid = len(identity) <= 64 and identity.isprintable()
    rows = request.store.verdicts(identity) if is_valid else []
    if not rows:
        raise NothingToDoError(
            "this comparison does not exist", hint="It may have been replaced by a newer one."
        )
    return build_comparison(DisplayedComparison(request.store, request.raw, rows))


def _build_list(
    request: PageRequest[CompareQuery], query: CompareQuery, error: str = "", status: int = 200
) -> PageContent:
    """Show the form, what was wrong with its values, and the stored comparisons."""
    store, number = request.store, ListQuery.parse(request.raw).page
    count = stored_comparisons.count_comparisons(store)
    comparisons = stored_comparisons.list_latest_comparisons(
        store, COMPARISONS_PER_PAGE, (number - 1) * COMPARISONS_PER_PAGE
    )
    rows = []
    described = common_tables.describe_comparisons(store, comparisons)
    for description, summary in zip(described, comparisons, strict=True):
        sums: dict[str, Counter[str]] = {"over_sites": Counter(), "by_site": Counter()}
        for scopes in summary.verdict_counts.values():
            by_site, over_sites = common_tables.split_by_scope(scopes)
            sums["by_site"].update(by_site)
            sums["over_sites"].update(over_sites)
        counts = {name: dict(verdicts.most_common()) for name, verdicts in sums.items()}
        rows.append({**description, **counts, "verdicts": summary.verdict_counts})
    columns = (
        *common_tables.comparison_columns(),
        column("judged_us"),
        column("headline", "verdicts", is_long=True),
        *hidden_columns("over_sites", "by_site", "verdicts"),
    )
    table = DataTable(
        "comparisons",
        "Stored comparisons, newest first",
        columns,
        rows,
        is_arrangeable=count <= COMPARISONS_PER_PAGE,
    )
    pages = count_pages(count, COMPARISONS_PER_PAGE)
    matrices = load_release_matrices(store) if number == 1 else []
    start = ui.suggest(
        "No stored comparisons yet. Compare two measured releases above, or in a terminal, which stores "
        "the result:",
        "treehammer compare 6.38.00 6.40.00",
    )
    measured = MeasuredAxes.load(store)
    sections = (
        # The sides are not chosen yet.
        *map(ui.headline, answer_doors(store, query.selection) if query.axis == "door" else ()),
        ui.Paragraph("Is B faster or slower than A, where, and how certain is that?"),
        _build_form(query, store, measured),
        ui.Paragraph(ui.end_sentence(error), look="headline", role="alert") if error else None,
        ui.Links([*measured.list_settings()], "Settings"),
        ui.quiet(measured.missing_text),
        ui.Titled(
            "Releases",
            ui.quiet(
                "CPU time per event of the release above, against the one on the left: the newest stored "
                "comparison with an interval, if any, over all sites where possible."
            ),
            *(ui.TableSection(matrix, is_static=True) for matrix in matrices),
            *_draw_releases(store),
            anchor="releases",
        )
        if matrices
        else None,
        ui.Titled(
            "Stored comparisons",
            *((table, ui.build_pager(number, pages, "#stored")) if count else start),
            anchor="stored",
        ),
    )
    about = {"page": number, "pages": pages, "count": count}
    return PageContent("Compare", sections, (table,), about, status=status)


@page("/figures/doors", "doors", position=23)
def doors_page(_request: PageRequest[PageQuery]) -> Response:
    """Lead to the comparison of doors, which was a page of its own."""
    return RedirectResponse(link_to("compare") + link_to_same_page(axis="door"))


def _draw_releases(store: Store) -> Iterator[ui.Figure]:
    """Draw all releases against the base of most effects, one forest plot for each test."""
    by_test: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for comparison in list_release_comparisons(store, METRIC):
        effects = [effect for effect in comparison.effects if effect.scope == SITES_SCOPE]
        if any(effect.effect is not None for effect in effects):
            by_test[comparison.test][comparison.a].append(comparison.comparison_id)
    for test, by_base in sorted(by_test.items())[:MAX_FORESTS]:
        base, ids = max(by_base.items(), key=lambda item: (len(item[1]), natural_sort_key(item[0])))
        rows = load_scope_verdicts(store, ids, SITES_SCOPE)
        plot = ForestPlot.of_comparisons([rows], DEFAULT_DELTA)
        if plot and len(ids) > 1:
            heading = f"{test or 'Several tests'}: releases against {base}"
            yield ui.Figure(f"releases-{test}", plot, plot.caption, heading)


def _build_form(query: CompareQuery, store: Store, measured: MeasuredAxes) -> ui.Special:
    return ui.Special(
        "compare_form.html.j2",
        query=query,
        axes=dict.fromkeys((*measured.comparable, query.axis)),
        campaigns=campaign_queries.list_campaign_choices(
            store, MAX_CAMPAIGN_CHOICES, query.campaigns
        ),
        values_by_axis={axis: values[:MAX_SUGGESTED] for axis, values in measured.values.items()},
    )


class _AbandonedError(TreehammerError):
    """A comparison was not requested for a while."""


@dataclass
class ComparisonTask:
    """A comparison in the background.

    Attributes:
        count: largest possible number of measurements.
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
        """Note the number of measurements read; end a comparison that nobody asks for."""
        self.read = read
        if time.monotonic() - self.asked_s > ABANDONED_AFTER_S:
            raise _AbandonedError("no reader asked for progress for a while")


class BackgroundComparisons:
    """Comparisons that run in turn while their readers ask for progress; thread-safe."""

    def __init__(self, resources: PageResources) -> None:
        self._database = resources.database
        self._lock = threading.Lock()
        self._turn = threading.Semaphore(1)
        self._tasks: dict[CompareQuery, ComparisonTask] = {}

    def request(self, query: CompareQuery, count: int) -> ComparisonTask:
        """Return the task of a comparison of up to ``count`` measurements, started if it is new."""
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
                if sum(task.is_running for task in self._tasks.values()) >= MAX_TASKS:
                    raise service_unavailable("too many comparisons are waiting")
                task = self._tasks[query] = ComparisonTask(query, count)
                # A daemon: a stopping service does not wait for it.
                name, target = "comparison", self._run
                threading.Thread(target=target, args=[task], name=name, daemon=True).start()
            elif task.error is not None:
                del self._tasks[query]
                raise task.error
            task.asked_s = time.monotonic()
        return task

    def _drop_old_tasks(self) -> None:
        oldest_s = time.monotonic() - FORGOTTEN_AFTER_S
        complete = [query for query, task in self._tasks.items() if not task.is_running]
        fresh = [query for query in complete if self._tasks[query].asked_s >= oldest_s]
        for query in {*complete} - {*fresh[-MAX_TASKS:]}:
            del self._tasks[query]

    def _run(self, task: ComparisonTask) -> None:
        with self._turn:
            try:
                with self._database.open_store() as store:
                    task.result = compare_now(
                        store, task.query.sides, max_read=None, on_progress=task.report_progress
                    )
            except _AbandonedError:
                with self._lock:
                    del self._tasks[task.query]
            except Exception as error:
                # Raised again by the next request.
                task.error = error
