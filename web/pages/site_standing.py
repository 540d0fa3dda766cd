"""Parameters of a site's page, its first sentence, and the table of the parts of its difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any

from pydantic import Field

from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.descriptive.peer_comparison import ConditionContrast, SiteStanding
from treehammer.analysis.statistics.metric_units import find_display_unit
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.value_checks import is_variant
from treehammer.errors import ConfigError
from treehammer.hctests.definition.model import drop_release_axis
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read import figure_sql, peer_sums, site_history
from treehammer.sql.read.peer_sums import PartSums, PeerSums, WorkKey, WorkSums
from treehammer.sql.read.query_model import DAY, WEEK, Condition, FigureQuery, Moments, Selection
from treehammer.sql.read.site_history import Workload
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, build_table
from treehammer.text_formatting import pluralize
from treehammer.web import display_formats
from treehammer.web.columns import column, hidden, metric_column
from treehammer.web.labels import VARIANT_COLUMN, head_column, label_variants, title_column
from treehammer.web.page_query import OneOf, PathText, Text, WindowQuery
from treehammer.web.pages.common_tables import DEFAULT_METRIC, DEFAULT_WINDOW_DAYS, WINDOW_CHOICES

#: Windows of at least this many days are shown by week.
WEEKLY_FROM_DAYS = 90
#: Newest days whose single measurements are read; roll-ups cover the other days.
RECENT_DAYS = 7
#: Parameter -> column of the workload that it filters.
FILTERS = {
    "test": "test_name",
    "variant": VARIANT_COLUMN,
    "root": "axis_root",
    "protocol": "door_protocol",
}
#: Measurements up to which a site's hosts and CPU models are read.
MAX_READ = 30_000
#: Parts shown of each kind; CSV and JSON hold all.
MAX_PARTS = 5
#: Better sites whose conditions are compared, and values shown of each condition.
MAX_BETTER_SITES, MAX_VALUES = 10, 4
#: Difference below which a site equals the median, and share of a main part.
_EQUAL, _MAIN_SHARE = 5e-4, 0.5
#: Difference that is worth an action.
_NOTABLE = 0.02
#: Kind of the main part of a difference -> suggested action.
_ACTIONS = {
    "host": "Check the load, disk and network of {}, or take it out of the batch system.",
    "cpu_model": "Compare the limits and settings of nodes with {} with those of the others.",
    "door": "Check the load of the door {} and the network to it.",
}
#: Kinds of parts that only measurements know.
_MEASURED = ("host", "cpu_model")


class SiteQuery(WindowQuery):
    """Parameters of the page of a site."""

    site: PathText = Field(description="Name of the site.")
    metric: Annotated[str, OneOf(ROLLUP_METRICS)] = Field(
        DEFAULT_METRIC, description="A metric with daily roll-ups."
    )
    test: Text = Field("", description="Only this test.")
    variant: Text = Field("", description="Only this variant, for any release: its axes as JSON.")
    root: Text = Field("", title="ROOT", description="Only this release.")
    protocol: Text = Field("", description="Only doors of this protocol.")
    days: Annotated[int, OneOf(WINDOW_CHOICES)] = Field(
        DEFAULT_WINDOW_DAYS, description="Number of days."
    )

    def normalize_variant(self, works: Sequence[Workload]) -> SiteQuery:
        """Return the query with its variant for any release; a variant that is none is refused."""
        variant = self.variant
        if not variant:
            return self
        if not is_variant(variant) and variant not in {work.variant for work in works}:
            raise ConfigError(
                f"variant must be a JSON object of axes and values, not {variant[:40]!r}",
                hint="Choose one on the page of the site.",
            )
        return self.model_copy(update={"variant": drop_release_axis(variant)})

    @property
    def filters(self) -> dict[str, str]:
        """Parameter -> value that a workload must have."""
        return {name: text for name in FILTERS if (text := getattr(self, name))}

    @property
    def first(self) -> date:
        """First day."""
        return self.window[0]

    @property
    def day_numbers(self) -> tuple[int, int]:
        """First and last day as database day numbers."""
        return display_formats.day_number(self.first), display_formats.day_number(self.to)

    @property
    def recent_first(self) -> date:
        """First of the newest days, whose single measurements are read."""
        return self.to - timedelta(days=min(len(self.window), RECENT_DAYS) - 1)

    @property
    def recent_day_numbers(self) -> tuple[int, int]:
        """First and last of the newest days."""
        return display_formats.day_number(self.recent_first), display_formats.day_number(self.to)

    @property
    def work_filters(self) -> dict[str, str]:
        """Column of the workload -> its only value."""
        return {FILTERS[name]: text for name, text in self.filters.items()}

    def find_recorded_filters(self, store: Store) -> dict[str, Any]:
        """Find the values of the workload's columns; of a variant those recorded with any release."""
        filters: dict[str, Any] = dict(self.work_filters)
        if self.variant:
            recorded = site_history.list_recorded_variants(store, [self.variant], self.site)
            filters[VARIANT_COLUMN] = tuple(recorded) or self.variant
        return filters

    @property
    def is_weekly(self) -> bool:
        """Whether points are weeks."""
        return self.time_column == WEEK

    @property
    def time_column(self) -> str:
        """Column of time whose values are points: day or week."""
        return WEEK if len(self.window) >= WEEKLY_FROM_DAYS else DAY


@dataclass(frozen=True)
class StandingView:
    """Answer to "how is this site?".

    Attributes:
        metric: name of the metric.
        sentence: difference and place; '' where no other site did the same work.
        rows: parts of the difference by kind, the largest first.
        contrasts: conditions in which most of the better sites differ.
        better_sites: the sites that these are compared with.
        measured_note: which days the hosts and CPU models are from; '' for all.
    """

    metric: str
    sentence: str
    rows: Sequence[Row]
    contrasts: Sequence[ConditionContrast] = ()
    better_sites: Sequence[str] = ()
    measured_note: str = ""

    def build_contrast_table(self) -> DataTable:
        """Build the table of conditions that differ at better sites."""
        columns = (
            column("condition", value="title"),
            column("own", "here", format_value=", ".join, is_long=True, value="site_values"),
            column(
                "others",
                "at better sites",
                format_value=_format_values,
                is_long=True,
                value=lambda contrast: dict(contrast.peer_counts),
            ),
            column(
                "differing",
                "sites that differ",
                format_row=lambda row: f"{row['differing']} of {row['known']}",
                is_number=True,
            ),
            hidden("known", value="reporting"),
        )
        names = ", ".join(self.better_sites)
        note = f"Compared with {names}: the best sites by the same work. A difference is not yet a cause."
        return build_table(
            "contrasts",
            "What differs at better sites",
            columns,
            self.contrasts,
            empty_text="In no known condition do most of the better sites differ.",
            note=note if self.contrasts else "",
        )

    def build_table(self, limit: int | None) -> DataTable:
        """Build the table of the parts, with at most so many of each kind."""
        displayed = [row for row in self.rows if limit is None or row["place"] < limit]
        values = (row[name] for row in displayed for name in ("own", "median"))
        write = display_formats.aligned_format(values, find_display_unit(self.metric))
        columns = (
            TableColumn("kind", "by", title_column),
            TableColumn("name", "name", is_long=True),
            TableColumn(
                "share", "part of the difference", display_formats.format_per_cent, is_number=True
            ),
            column("difference", "own difference"),
            metric_column(self.metric, "mean", "own", format_value=write),
            metric_column(self.metric, "median of the same work", "median", format_value=write),
            column("measurements"),
            hidden("place"),
        )
        caption = f"Parts of the difference in {title_column(self.metric)}"
        omitted = len(self.rows) - len(displayed)
        omitted_note = f"{omitted} smaller parts are in CSV and JSON." if omitted else ""
        note = " ".join(filter(None, (self.measured_note, omitted_note)))
        return DataTable("parts", caption, columns, displayed, "Nothing to split.", note)


def describe_standing(store: Store, query: SiteQuery, peers: PeerSums) -> StandingView:
    """Compare a site over the whole period with all others that did its work."""
    sums = peers.totals
    comparisons = peer_comparison.compare_sites(sums)
    standing = peer_comparison.rank_site(
        comparisons, query.site, METRICS_BY_NAME[query.metric].better
    )
    if not standing:
        return StandingView(query.metric, "", [])
    rows = _list_parts(store, query, sums)
    sentences = [_describe_place(query, standing)]
    if abs(standing.difference) >= _EQUAL:
        main_part = _find_main_part(standing, rows)
        if main_part:
            size = _describe_difference(main_part["difference"])
            sentences.append(
                f"Mainly {title_column(main_part['kind'])} {main_part['name']}: {size}."
            )
        if _is_notably_worse(query, standing):
            sentences.append(_describe_begin(peers.dailies, query, standing))
            sentences.append(_suggest_action(main_part))
    better_sites = standing.better_sites[:MAX_BETTER_SITES]
    is_recent = query.recent_first > query.first
    measured = any(row["kind"] in _MEASURED for row in rows)
    note = f"Hosts and CPU models are those from {query.recent_first} on."
    return StandingView(
        query.metric,
        " ".join(sentences),
        rows,
        _contrast_conditions(store, query, better_sites),
        better_sites,
        note if is_recent and measured else "",
    )


def _format_values(values: Mapping[str, int]) -> str:
    """Write values with the number of sites that have them, e.g. ``XRootD 6.0.0 (3 sites)``."""
    texts = [f"{value} ({pluralize(count, 'site')})" for value, count in values.items()]
    further = [f"{len(texts) - MAX_VALUES} others"] if len(texts) > MAX_VALUES else []
    return ", ".join([*texts[:MAX_VALUES], *further])


def _find_main_part(standing: SiteStanding, rows: Sequence[Row]) -> Row | None:
    """Return the first part if it makes up most of the difference and stands apart from the others."""
    other_differences = [
        row["difference"] or 0.0 for row in rows[1:] if row["kind"] == rows[0]["kind"]
    ]
    if not other_differences or rows[0]["share"] / standing.difference < _MAIN_SHARE:
        return None
    stands_apart = abs(rows[0]["difference"]) > 2 * max(map(abs, other_differences))
    return rows[0] if stands_apart else None


def _describe_begin(dailies: WorkSums, query: SiteQuery, standing: SiteStanding) -> str:
    """Describe since when the difference is at least half as large, by weeks until the last day."""

    def count_weeks(day: int) -> int:
        # Times are above 0.
        return 1 + (query.to - display_formats.day_from_number(day)).days // 7

    weeks = {
        week.time: week.difference / standing.difference
        for week in peer_comparison.compare_over_time(dailies, query.site, count_weeks)
        if week.difference is not None
    }
    good = min((week for week in weeks if weeks[week] < 0.5), default=None)
    bad = [week for week in weeks if good is None or week < good]
    if not bad:
        return "Not in the last week."
    begin = max(query.first, query.to - timedelta(days=7 * max(bad) - 1))
    return f"So in all weeks from {begin} on." if good is None else f"So since the week of {begin}."


def _is_notably_worse(query: SiteQuery, standing: SiteStanding) -> bool:
    """Return whether a site is so much worse than the median that its operator should act."""
    is_worse = (standing.difference < 0) == (METRICS_BY_NAME[query.metric].better == "higher")
    return standing.place is not None and is_worse and abs(standing.difference) >= _NOTABLE


def _suggest_action(main_part: Row | None) -> str:
    if main_part is None or main_part["kind"] not in _ACTIONS:
        return "See where the time went, below."
    return _ACTIONS[main_part["kind"]].format(main_part["name"])


def _contrast_conditions(
    store: Store, query: SiteQuery, better_sites: Sequence[str]
) -> list[ConditionContrast]:
    """Compare the conditions of the site with those of better sites; nothing without any."""
    if not better_sites:
        return []
    sites = [query.site, *better_sites]
    conditions = site_history.load_conditions(store, sites, *query.day_numbers)
    better = [conditions[site] for site in better_sites if site in conditions]
    return peer_comparison.contrast_conditions(conditions.get(query.site, {}), better)


def _describe_difference(difference: float) -> str:
    return f"{100 * abs(difference):.1f} % {'below' if difference < 0 else 'above'}"


def _describe_place(query: SiteQuery, standing: SiteStanding) -> str:
    title = head_column(query.metric)
    is_equal = abs(standing.difference) < _EQUAL
    comparison = "equal to" if is_equal else _describe_difference(standing.difference)
    text = f"{title} {comparison} the median of the same work"
    if standing.place is None:
        return f"{text}, of {standing.sites:,} sites."
    is_teen = standing.place % 100 in (11, 12, 13)
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(standing.place % 10, "th")
    return f"{text}; {standing.place:,}{ending} of {standing.sites:,} sites."


def _list_parts(store: Store, query: SiteQuery, sums: WorkSums) -> list[Row]:
    """List the parts of each kind; the kind that explains the difference best comes first."""
    medians = peer_comparison.find_peer_medians(sums, query.site)
    site_sums = sums.select_site(query.site)
    names = label_variants({str(work[1]) for work, _ in site_sums}).names
    variants = [
        (names.get(str(work[1])) or "default", work, moments) for work, moments in site_sums
    ]
    doors = peer_sums.load_door_sums(store, query.site, query.metric, query.day_numbers)
    groups = {"variant": variants, "door": doors, **_load_node_sums(store, query)}
    best_first = sorted(
        groups, key=lambda kind: peer_comparison.score_partition(groups[kind], medians)
    )
    return [row for kind in best_first for row in _part_rows(kind, groups[kind], medians)]


def _part_rows(
    kind: str, groups: Iterable[tuple[str, WorkKey, Moments]], medians: dict[WorkKey, float]
) -> list[Row]:
    """Return the parts of one kind; a single one explains nothing."""
    parts = peer_comparison.split_difference(groups, medians)
    return [
        {
            "kind": kind,
            "name": part.name,
            "measurements": part.count,
            "own": part.own_mean,
            "median": part.peer_median,
            "difference": part.difference,
            "share": part.share,
            "place": place,
        }
        for place, part in enumerate(parts)
        if len(parts) > 1
    ]


def _load_node_sums(store: Store, query: SiteQuery) -> dict[str, PartSums]:
    """Load the site's moments by host and CPU model; none if too many would be read."""
    # Roll-ups hold neither column, and a month of measurements takes too long to read.
    days = query.recent_day_numbers
    figure = FigureQuery(
        (),
        (),
        Selection(conditions=(Condition("site", "=", query.site or None),)),
        first_day=days[0],
        last_day=days[1],
    )
    with store.connection() as connection:
        if figure_sql.estimate_max_measurements(connection, figure) > MAX_READ:
            return {}
    return peer_sums.load_node_sums(store, query.site, query.metric, days)
