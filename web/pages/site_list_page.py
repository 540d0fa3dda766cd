"""List of sites with their outcomes, states and CPU efficiency of comparable work."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.analysis.statistics.metric_units import find_display_unit
from treehammer.analysis.status.day_outcomes import DayOutcomes, describe_daily_rule
from treehammer.sql.read import overview_queries
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.text_formatting import format_share
from treehammer.verticals import import_parts
from treehammer.web import display_formats
from treehammer.web.columns import IntervalCell, column, columns, outcome_columns, outcome_counts
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import PageQuery
from treehammer.web.pages.common_tables import DEFAULT_METRIC, DEFAULT_WINDOW_DAYS
from treehammer.web.sections import Folded, quiet, suggest

#: Key of a column -> value of the comparison with similar sites.
_COMPARED_VALUES = {
    DEFAULT_METRIC: "mean",
    "own": "own_mean",
    "median": "peer_median",
    "difference": "difference",
}


class ListedStates(Protocol):
    """What ``page_parts`` of a vertical shows of each site's state in the list."""

    columns: Sequence[TableColumn]

    def describe(self, site: str) -> Row:
        """Return a site's values of the columns."""

    def rank(self, row: Row) -> int:
        """Return the place of a row, the worst state first."""


@page(
    "/sites",
    "sites",
    menu="Sites",
    position=60,
    reads_measurements=False,
    help="site-status",
    api=PageOperation("listSites", "All sites and their last 30 days", {"sites": "sites"}),
)
def site_list_page(request: PageRequest[PageQuery]) -> PageContent:
    """Build the list of sites."""
    table = _build_table(request.store)
    rule = f"{describe_daily_rule()} Here all days of a site count together."
    similar = f"{peer_comparison.SIMILAR_SITES_TEXT} Here the period is {DEFAULT_WINDOW_DAYS} days."
    start = suggest("No measurements yet. Start a campaign:", "treehammer submit ttree-read --wait")
    explained = (table, quiet(rule), Folded("How similar sites are chosen", quiet(similar)))
    return PageContent("Sites", explained if table.rows else start, (table,))


def _build_table(store: Store) -> DataTable:
    """Build the table, the worst state first, then the lowest efficiency against similar sites."""
    metric = DEFAULT_METRIC
    comparisons = peer_comparison.compare_all_sites(store, [metric], display_formats.today())[
        metric
    ]
    parts: list[ListedStates] = [part.ListedStates(store) for part in import_parts("page_parts")]
    rows = _list_rows(store, comparisons, parts)

    def rank(row: Row) -> tuple[float, ...]:
        difference = math.inf if row["difference"] is None else row["difference"]
        return *(states.rank(row) for states in parts), difference

    write = display_formats.aligned_format(
        (row[name] for row in rows for name in ("own", "median")), find_display_unit(DEFAULT_METRIC)
    )
    table_columns = (
        column("site"),
        *chain.from_iterable(states.columns for states in parts),
        column("status", f"{DEFAULT_WINDOW_DAYS} days"),
        *outcome_columns(),
        # Averages over a site's own mix of work are not comparable, so they are exported only.
        *hidden_columns(DEFAULT_METRIC),
        column("own", "CPU efficiency of comparable work", format_value=write, is_number=True),
        column("median", "median of similar sites", format_value=write, is_number=True),
        column("difference", is_low_first=True),
        _make_dot_column(comparisons),
        *columns("sites"),
        column(
            "last_day",
            "last measured",
            format_row=lambda row: row["last_day"] or f"more than {DEFAULT_WINDOW_DAYS} days ago",
        ),
    )
    caption = f"Sites over the last {DEFAULT_WINDOW_DAYS} days"
    return DataTable("sites", caption, table_columns, sorted(rows, key=rank))


def _list_rows(
    store: Store, comparisons: Mapping[str, PeerComparison], parts: Sequence[ListedStates]
) -> list[Row]:
    days = display_formats.days_until(display_formats.today(), DEFAULT_WINDOW_DAYS)
    window = display_formats.day_number(days[0]), display_formats.day_number(days[-1])
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    last_days: dict[str, str] = {}
    # In the order of days.
    for day in overview_queries.list_site_days(store, *window):
        outcomes[day.site].update(day.outcomes)
        last_days[day.site] = display_formats.day_from_number(day.day).isoformat()
    rows: list[Row] = []
    for site in overview_queries.list_sites(store):
        compared = comparisons.get(site)
        judged = DayOutcomes.from_outcomes(outcomes[site])
        values: dict[str, Any] = {
            "site": site,
            "last_day": last_days.get(site),
            "status": judged.grade,
            **outcome_counts(judged),
            # Sites without common work have no comparison.
            **{key: getattr(compared, name, None) for key, name in _COMPARED_VALUES.items()},
            "sites": compared.peer_count if compared else 0,
        }
        for states in parts:
            values |= states.describe(site)
        rows.append(values)
    return rows


def _make_dot_column(comparisons: Mapping[str, PeerComparison]) -> TableColumn:
    """Draw the differences of all sites on one axis, with intervals of two standard errors."""
    estimates: dict[str, tuple[float, float]] = {}
    for site, compared in comparisons.items():
        if compared.difference is not None and compared.peer_median:
            error = 2 * (compared.standard_error or 0.0) / compared.peer_median
            estimates[site] = compared.difference, error
    reach = max((abs(difference) + error for difference, error in estimates.values()), default=0.0)
    reach = max(math.ceil(100 * reach), 1) / 100

    def draw(row: Row) -> IntervalCell:
        difference, error = estimates.get(row["site"], (None, 0.0))
        if difference is None:
            return IntervalCell(None, None, None, reach, 0.0)
        return IntervalCell(difference - error, difference + error, difference, reach, 0.0)

    ends = " … ".join(format_share(end) for end in (-reach, reach))
    return TableColumn("bar", ends, tooltip="difference ± two standard errors", draw=draw)
