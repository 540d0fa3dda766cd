"""Status of every site on each of several days, and the numbers at the top of the overview.

Each number is linked to its evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from itertools import groupby
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from treehammer.analysis.comparison.conclusion import count_headline, count_slower
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
from treehammer.web.addresses import link_to
from treehammer.web.cells import HeatCell, SparkCell
from treehammer.web.display_formats import day_number, format_day, format_time
from treehammer.web.sections import Badge, Link, Tile

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
        return HeatCell(judged.letter, judged.status, address=link, tooltip=title, is_symbol=True)

    return TableColumn(
        key, str(day.day), tooltip=name, css_class=lambda row: _day_class(row[key]), draw=draw
    )


def _day_class(judged: DayOutcomes | StorageDay) -> str:
    severity = getattr(judged, "severity", 0)
    status = judged.status.value
    return f"{status} severity-{severity}" if severity > 1 else status


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
        return Link(Badge(state.state), address, tooltip=title)

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
    lines: Sequence[SiteRow[DayOutcomes]], states: Mapping[str, StatusChangeRow]
) -> list[SiteRow[DayOutcomes]]:
    """Sort sites by their state, then by their latest day, severe warnings first, then by name."""

    def key(line: SiteRow[DayOutcomes]) -> tuple[int, int, int, str]:
        latest = find_latest_day(line)
        state = states.get(line.site)
        place = WORST_FIRST.index(SiteState(state.state)) if state else len(WORST_FIRST)
        return place, WORST_FIRST.index(latest.status), -latest.severity, line.site

    return sorted(lines, key=key)


def sort_by_state(states: Iterable[StatusChangeRow]) -> list[StatusChangeRow]:
    """Sort states from the worst to the best, then by site."""
    return sorted(states, key=lambda row: (WORST_FIRST.index(SiteState(row.state)), row.site))


def build_tiles(
    lines: Sequence[SiteRow[DayOutcomes]],
    states: Mapping[str, StatusChangeRow],
    running: Sequence[CampaignState],
    latest: Tile | None,
) -> list[Tile]:
    """Build the tiles of critical and warned sites, slower variants and running campaigns.

    Args:
        lines: sites by day.
        states: current states by site; without any, those of the latest days count.
        running: campaigns with active jobs.
        latest: tile of the newest comparison, if there is any.
    """
    if states:
        site_states, period = [SiteState(row.state) for row in states.values()], ""
    else:
        site_states, period = (
            [find_latest_day(line).status for line in lines],
            " on their latest day",
        )
    of_sites = [
        _tile_of_sites(site_states, SiteState.CRITICAL, f"critical{period}"),
        _tile_of_sites(site_states, SiteState.WARNING, f"with warnings{period}"),
    ]
    if down := site_states.count(SiteState.DOWNTIME):
        of_sites.append(Tile(f"{down} of {len(site_states)}", "sites in a downtime", "#days"))
    return [
        *(of_sites if site_states else []),
        *([latest] if latest else []),
        _tile_of_running(running),
    ]


def _tile_of_sites(states: Sequence[SiteState], state: SiteState, words: str) -> Tile:
    count = states.count(state)
    css_class = state.value if count else ""
    return Tile(f"{count} of {len(states)}", f"sites {words}", "#days", css_class)


def _tile_of_running(running: Sequence[CampaignState]) -> Tile:
    text = f"campaign{'s' * (len(running) != 1)} running"
    planned = sum(campaign_state.campaign.planned_measurements for campaign_state in running)
    if not planned:
        return Tile(str(len(running)), text, "#running")
    recorded = sum(
        min(campaign_state.recorded, campaign_state.campaign.planned_measurements)
        for campaign_state in running
    )
    text += f": {recorded:,} of {planned:,} measurements"
    return Tile(str(len(running)), text, "#running", share_done=recorded / planned)


def tile_of_comparison(latest: ComparisonSummary, title: str, address: str) -> Tile:
    """Count the slower variants of the metric with most of them, in the comparison's headline."""
    slower, total, scope = count_slower(count_headline(latest.counts))
    return Tile(
        f"{slower} of {total}",
        f"variants slower {scope}: {title}",
        address,
        "critical" if slower else "",
    )
