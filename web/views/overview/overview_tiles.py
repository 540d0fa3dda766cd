"""Numbers at the top of the overview, each linked to its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treehammer.analysis.statistics.verdict import SITES_SCOPE, Verdict
from treehammer.analysis.status.day_outcomes import DayOutcomes
from treehammer.analysis.status.site_state import SiteState
from treehammer.sql.read.overview_queries import ComparisonSummary
from treehammer.web.views.compare import comparison_columns
from treehammer.web.views.shared.site_day_matrix import SiteRow

#: Statuses from the worst to the best.
_WORST_FIRST = (SiteState.CRITICAL, SiteState.WARNING, SiteState.OK, SiteState.UNKNOWN)


@dataclass(frozen=True)
class Tile:
    """A number with its meaning; ``css_class`` is the status that colors it, '' for none."""

    number: str
    text: str
    address: str
    css_class: str = ""


def find_latest_day(line: SiteRow[DayOutcomes]) -> DayOutcomes:
    """Return the outcomes of the last shown day on which a site measured anything."""
    for cell in reversed(line.cells):
        if cell.judged.status is not SiteState.UNKNOWN:
            return cell.judged
    return line.cells[-1].judged


def sort_worst_first(lines: Sequence[SiteRow[DayOutcomes]]) -> list[SiteRow[DayOutcomes]]:
    """Sort sites by the status of their latest day, severe warnings first, then by name."""

    def key(line: SiteRow[DayOutcomes]) -> tuple[int, int, str]:
        latest = find_latest_day(line)
        return _WORST_FIRST.index(latest.status), -latest.severity, line.site

    return sorted(lines, key=key)


def build_tiles(
    lines: Sequence[SiteRow[DayOutcomes]],
    running: int,
    latest: Tile | None,
) -> list[Tile]:
    """Build the tiles of critical and warned sites, slower variants and running campaigns.

    Args:
        lines: sites by day.
        running: campaigns with active jobs.
        latest: tile of the newest comparison, if there is any.
    """
    statuses = [find_latest_day(line).status for line in lines]
    of_sites = [
        _tile_of_sites(statuses, SiteState.CRITICAL, "critical"),
        _tile_of_sites(statuses, SiteState.WARNING, "with warnings"),
    ]
    return [
        *(of_sites if statuses else []),
        *([latest] if latest else []),
        Tile(str(running), f"campaign{'s' * (running != 1)} running", "#running"),
    ]


def _tile_of_sites(statuses: Sequence[SiteState], status: SiteState, words: str) -> Tile:
    found = statuses.count(status)
    css_class = status.value if found else ""
    return Tile(
        f"{found} of {len(statuses)}", f"sites {words} on their latest day", "#days", css_class
    )


def tile_of_comparison(latest: ComparisonSummary, title: str, address: str) -> Tile:
    """Count the slower variants of the metric with most of them, over all sites if possible."""
    counts = [
        counted
        for scopes in latest.verdict_counts.values()
        if (counted := scopes.get(SITES_SCOPE) or comparison_columns.split_by_scope(scopes)[0])
    ]
    slower, total = max(
        ((one.get(Verdict.SLOWER, 0), sum(one.values())) for one in counts), default=(0, 0)
    )
    return Tile(
        f"{slower} of {total}", f"variants slower: {title}", address, "critical" if slower else ""
    )
