"""Numbers at the top of the overview, each linked to its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from treehammer.analysis.comparison.verdict_headline import count_headline, count_slower
from treehammer.analysis.status.day_states import DayOutcomes
from treehammer.analysis.status.site_state import WORST_FIRST, SiteState
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.read.overview_queries import CampaignState, ComparisonSummary
from treehammer.web.views.shared.site_day_matrix import SiteRow


@dataclass(frozen=True)
class Tile:
    """A number with its meaning.

    ``css_class`` is the status that colors it, '' for none; ``share_done`` draws a bar, None for none.
    """

    number: str
    text: str
    address: str
    css_class: str = ""
    share_done: float | None = None


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
