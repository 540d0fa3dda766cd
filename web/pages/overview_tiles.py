"""Status of every site on each of several days, and the numbers at the top of the overview.

Each number is linked to its evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import date
from functools import cached_property
from itertools import groupby
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from treehammer.analysis.comparison.conclusion import count_headline, count_slower
from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.analysis.status.load_tests import StorageDay, judge_storage_days
from treehammer.analysis.status.rule_judgements import DayOutcomes
from treehammer.analysis.status.status_rules import load_operations_rule
from treehammer.analysis.status.subject_state import WORST_FIRST, SiteState
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.read import overview_queries
from treehammer.sql.read.operation_figures import list_operation_days
from treehammer.sql.read.overview_queries import JOB_SITE, STORAGE_SITE, CampaignState
from treehammer.sql.read.stored_comparisons import ComparisonSummary
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.text_formatting import format_share, format_significant, join_names
from treehammer.web.addresses import link_to
from treehammer.web.cells import HeatCell, SparkCell
from treehammer.web.display_formats import (
    day_number,
    format_day,
    format_per_cent,
    format_time,
)
from treehammer.web.sections import Badge, Link, Styled, Tile

#: Days over which efficiency and cost are counted.
EFFICIENCY_DAYS = 7
Judged = TypeVar("Judged", DayOutcomes, StorageDay)


@dataclass(frozen=True)
class DayCell(Generic[Judged]):
    """Outcomes of one site, or of the load tests of one storage, on one day."""

    day: date
    judged: Judged


@dataclass(frozen=True)
class SiteRow(Generic[Judged]):
    """One site over several days; ``by`` is the column that names it."""

    site: str
    cells: tuple[DayCell[Judged], ...]
    by: str = JOB_SITE

    @cached_property
    def query_string(self) -> str:
        """The query string that names the site."""
        return urlencode({"site": self.site})


def load_site_days(
    store: Store, days: Sequence[date], by: str = JOB_SITE
) -> list[SiteRow[DayOutcomes]]:
    """Load the daily outcomes of all sites that measured, or were read, on these days."""
    site_days = overview_queries.list_site_days(
        store, day_number(days[0]), day_number(days[-1]), by
    )
    judged = {
        (site_day.site, site_day.day): DayOutcomes.from_outcomes(site_day.outcomes)
        for site_day in site_days
    }
    return _build_rows(judged, DayOutcomes(0, 0, 0), days, by)


def select_days(
    rows: Sequence[SiteRow[DayOutcomes]], days: Sequence[date]
) -> list[SiteRow[DayOutcomes]]:
    """Select some days, and the sites with measurements in them."""
    selected = set(days)
    shortened_rows = (
        replace(row, cells=tuple(cell for cell in row.cells if cell.day in selected))
        for row in rows
    )
    return [row for row in shortened_rows if any(cell.judged.total for cell in row.cells)]


def make_day_table(
    name: str,
    caption: str,
    lines: Sequence[SiteRow[Any]],
    days: Sequence[date],
    address: Callable[[SiteRow[Any], date], str],
    columns: Sequence[TableColumn] = (),
    site_address: Callable[[str], str] = lambda _: "",
) -> DataTable:
    """Make the table of sites by day, with a letter and a color for each status.

    Args:
        name: of the table.
        caption: of the table.
        lines: sites; a row holds one under the key ``line``.
        days: of each site, in order.
        address: of the page of a site's day.
        columns: between the site and its days.
        site_address: of the page of a site, '' for none.
    """
    first = (
        TableColumn("site", "site", link=lambda row: site_address(row["site"])),
        *columns,
    )
    months = [(month, len(list(of_month))) for month, of_month in groupby(days, "{:%B %Y}".format)]
    rows = [
        {"site": line.site, "line": line}
        | {cell.day.isoformat(): cell.judged for cell in line.cells}
        for line in lines
    ]
    return DataTable(
        name,
        f"{caption} (UTC)",
        (*first, *(_make_day_column(day, address) for day in days)),
        rows,
        is_arrangeable=False,
        look="matrix",
        groups=(("", len(first)), *months),
    )


def _make_day_column(day: date, address: Callable[[SiteRow[Any], date], str]) -> TableColumn:
    key, name = day.isoformat(), format_day(day)

    def draw(row: Row) -> HeatCell:
        judged = row[key]
        link = address(row["line"], day) if judged.total else ""
        title = f"{row['site']}, {name}: {judged.status}, {judged}"
        is_load = isinstance(judged, StorageDay)
        letter = judged.letter if is_load else choose_letter(judged.status)
        return HeatCell(letter, judged.status, address=link, tooltip=title, is_symbol=True)

    return TableColumn(
        key, str(day.day), tooltip=name, css_class=lambda row: _day_class(row[key]), draw=draw
    )


def choose_letter(status: SiteState) -> str:
    """Return the letter of a day; days without trouble are blank, so that the others stand out."""
    return "·" if status is SiteState.OK else status.letter


def _day_class(judged: DayOutcomes | StorageDay) -> str:
    severity = getattr(judged, "severity", 0)
    status = judged.status.value
    return f"{status} severity-{severity}" if severity > 1 else status


def make_efficiency_column(
    comparisons: Mapping[str, PeerComparison], outliers: Collection[str]
) -> TableColumn:
    """Make the column of CPU efficiency, in which outliers stand out."""

    def draw(row: Row) -> Styled:
        comparison = comparisons.get(row["site"])
        if comparison is None or comparison.own_mean is None:
            return Styled("–")
        efficiency = format_share(comparison.own_mean)
        if comparison.difference is None:
            return Styled(efficiency)
        title = (
            f"{format_per_cent(comparison.difference)} against similar sites on the same work, whose "
            f"median is {format_share(comparison.peer_median or 0)}"
        )
        return Styled(efficiency, "badge warning" if row["site"] in outliers else "", title)

    return TableColumn(
        "efficiency",
        "CPU eff.",
        tooltip=f"CPU efficiency of jobs over {EFFICIENCY_DAYS} days on the work of similar sites",
        css_class=lambda _: "number",
        draw=draw,
    )


def make_good_column() -> TableColumn:
    """Make the column of the good measurements by day, as a small drawing."""
    return TableColumn(
        "good",
        "good",
        tooltip="good measurements by day, relative to the site's best day",
        css_class=lambda _: "spark",
        draw=lambda row: SparkCell([cell.judged.good for cell in row["line"].cells]),
    )


def make_state_column(states: Mapping[str, StatusChangeRow]) -> TableColumn:
    """Make the column of the current state of each site, linked to its evidence."""

    def draw(row: Row) -> Link | Badge:
        state = states.get(row["site"])
        if state is None:
            return Badge("unknown")
        reason = state.evidence.explanation or state.reason
        title = f"since {format_time(state.since_us)}, by {state.cause}: {reason}"
        address = link_to("state-change", change=state.id)
        text = state.state if state.state == SiteState.OK else Badge(state.state)
        return Link(text, address, tooltip=title)

    return TableColumn("state", "state", css_class=lambda _: "state", draw=draw)


def load_storage_days(store: Store, days: Sequence[date]) -> list[SiteRow[StorageDay]]:
    """Load the daily status of all storages that load tests used on these days."""
    operation_days = list_operation_days(store, day_number(days[0]), day_number(days[-1]))
    rule = load_operations_rule()
    judged = judge_storage_days(operation_days, rule)
    return _build_rows(judged, StorageDay.from_operations((), rule), days, STORAGE_SITE)


def _build_rows(
    judged: Mapping[tuple[str, int], Judged], empty: Judged, days: Sequence[date], by: str
) -> list[SiteRow[Judged]]:
    return [
        SiteRow(
            site,
            tuple(DayCell(day, judged.get((site, day_number(day)), empty)) for day in days),
            by,
        )
        for site in dict.fromkeys(site for site, _ in judged)
    ]


def find_latest_day(line: SiteRow[DayOutcomes]) -> DayOutcomes:
    """Return the outcomes of the last shown day on which a site measured anything."""
    for cell in reversed(line.cells):
        if cell.judged.status is not SiteState.UNKNOWN:
            return cell.judged
    return line.cells[-1].judged


def sort_worst_first(
    lines: Sequence[SiteRow[DayOutcomes]],
    states: Mapping[str, StatusChangeRow],
    inefficient: Sequence[str],
) -> list[SiteRow[DayOutcomes]]:
    """Sort sites by their state, then by their latest day, severe warnings first, inefficient ones, by name.

    Args:
        lines: sites by day.
        states: current states by site.
        inefficient: sites, the worst first.
    """

    def key(line: SiteRow[DayOutcomes]) -> tuple[int, int, int, int, str]:
        latest = find_latest_day(line)
        state = states.get(line.site)
        place = WORST_FIRST.index(SiteState(state.state)) if state else len(WORST_FIRST)
        order = inefficient.index(line.site) if line.site in inefficient else len(inefficient)
        return place, WORST_FIRST.index(latest.status), -latest.severity, order, line.site

    return sorted(lines, key=key)


def sort_by_state(states: Iterable[StatusChangeRow]) -> list[StatusChangeRow]:
    """Sort states from the worst to the best, then by site."""
    return sorted(states, key=lambda row: (WORST_FIRST.index(SiteState(row.state)), row.site))


def build_tiles(
    lines: Sequence[SiteRow[DayOutcomes]],
    states: Mapping[str, StatusChangeRow],
    inefficient: Sequence[str],
    running: Sequence[CampaignState],
    slowest: Tile | None,
    hours: float,
) -> list[Tile]:
    """Build the tiles: bad and inefficient sites, failures, slower variants, running work and its cost.

    Args:
        lines: sites by day.
        states: current states by site; without any, those of the latest days count.
        inefficient: sites with a lower CPU efficiency than similar ones, the lowest first.
        running: campaigns with active jobs.
        slowest: tile of the comparison with most slower variants, if there is any.
        hours: time of the good executions of :data:`EFFICIENCY_DAYS` days.
    """
    if states:
        site_states, period = [SiteState(row.state) for row in states.values()], ""
    else:
        site_states, period = (
            [find_latest_day(line).status for line in lines],
            " on their latest day",
        )
    tiles = []
    if site_states:
        tiles += [
            _tile_of_sites(site_states, SiteState.CRITICAL, f"critical{period}"),
            _tile_of_sites(site_states, SiteState.WARNING, f"with warnings{period}"),
        ]
        tiles += _tile_of_failures(lines)
    if down := site_states.count(SiteState.DOWNTIME):
        tiles.append(Tile(f"{down:,} of {len(site_states):,}", "sites in a downtime", "#days"))
    if inefficient:
        text = f"less CPU efficiency than similar sites: {join_names(inefficient)}"
        tiles.append(
            Tile(str(len(inefficient)), text, link_to("site", site=inefficient[0]), "warning")
        )
    if slowest:
        tiles.append(slowest)
    return [*tiles, _tile_of_running(running, hours)]


def _tile_of_failures(lines: Sequence[SiteRow[DayOutcomes]]) -> Iterator[Tile]:
    """Count the failures of the latest day with measurements."""
    for cells in zip(*(reversed(line.cells) for line in lines), strict=True):
        total = sum_outcomes(cell.judged for cell in cells)
        if total.total:
            status = total.status
            yield Tile(
                f"{total.failed + total.implausible:,} of {total.total:,}",
                f"measurements failed or implausible on {format_day(cells[0].day)}",
                "#days",
                "" if status is SiteState.OK else status.value,
            )
            return


def sum_outcomes(outcomes: Iterable[DayOutcomes]) -> DayOutcomes:
    """Add up outcomes."""
    rows = [astuple(day) for day in outcomes]
    return DayOutcomes(*map(sum, zip(*rows, strict=True)))


def _tile_of_sites(states: Sequence[SiteState], state: SiteState, words: str) -> Tile:
    count = states.count(state)
    css_class = state.value if count else ""
    return Tile(f"{count:,} of {len(states):,}", f"sites {words}", "#days", css_class)


def _tile_of_running(running: Sequence[CampaignState], hours: float) -> Tile:
    cost = f"; {format_significant(hours, 2)} hours of executions in {EFFICIENCY_DAYS} days"
    text = f"campaign{'s' * (len(running) != 1)} running"
    planned = sum(campaign_state.campaign.planned_measurements for campaign_state in running)
    if not planned:
        return Tile(str(len(running)), text + cost, "#running")
    recorded = sum(
        min(campaign_state.recorded, campaign_state.campaign.planned_measurements)
        for campaign_state in running
    )
    text += f": {recorded:,} of {planned:,} measurements{cost}"
    return Tile(str(len(running)), text, "#running", share_done=recorded / planned)


def tile_of_slowest(
    latest: Sequence[ComparisonSummary], title: Callable[[ComparisonSummary], str]
) -> Tile | None:
    """Count the slower variants of the comparison with most of them, the newest of several; None without any.

    Args:
        latest: the latest comparisons, newest first.
        title: returns what one compares.
    """
    if not latest:
        return None
    counts = [count_slower(count_headline(summary.counts)) for summary in latest]
    (slower, total, scope), slowest = max(
        zip(counts, latest, strict=True), key=lambda pair: pair[0][0]
    )
    return Tile(
        f"{slower:,} of {total:,}",
        f"variants slower {scope}: {title(slowest)}",
        link_to("comparison", comparison=slowest.first_verdict.comparison_id),
        "critical" if slower else "",
    )
