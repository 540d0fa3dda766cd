"""Slow days of a site: its time per event beside the same work at other sites and on other days."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treehammer.analysis.descriptive import peer_comparison
from treehammer.collectors.record.day_numbers import number_to_day
from treehammer.sql.read import peer_sums
from treehammer.sql.read.peer_sums import WorkSums
from treehammer.sql.read.reader import ResultsReader
from treehammer.text_formatting import pluralize

#: Difference that is slow: in standard deviations of the other sites, and at least.
SLOW_SIGMAS, SLOW_LEAST = 4.0, 0.1
#: Sites with the same work, and measurements, that a comparison needs.
MIN_PEERS, MIN_TIMED = 3, 3
#: Days before that a comparison with the past needs.
MIN_DAYS = 5
_SIGMA_PER_MAD = 1.4826
_WALL, _CPU = "wall_per_event_s", "cpu_per_event_s"


@dataclass(frozen=True)
class Slowness:
    """A slow day of a site.

    Attributes:
        ratio: time per event over that of the same work at other sites, or on the days before.
        peers: number of other sites; 0 if it is compared with the days before.
        since: end of a sentence with the first of the slow days in a row.
        action: cause and remedy.
    """

    ratio: float
    peers: int
    since: str
    action: str

    def describe(self) -> str:
        """Describe it without the origin."""
        reference = (
            f"at {pluralize(self.peers, 'other site')}" if self.peers else "on the days before"
        )
        return f"an event takes {self.ratio:.2g} times the wall time of the same work {reference}"


def find_slowness(store: ResultsReader, site: str, days: tuple[int, int]) -> Slowness | None:
    """Find out whether a site is slow on the last of some days (YYYYMMDD), and since when."""
    last_day = days[1]
    # Most sites are not slow, which the last day alone shows.
    compared = peer_comparison.compare_sites(_fetch_sums(store, site, (last_day, last_day)))
    differences = {
        name: comparison.difference for name, comparison in compared.items() if name != site
    }
    other_differences = [
        difference for difference in differences.values() if difference is not None
    ]
    if len(other_differences) < MIN_PEERS:
        return _compare_with_past(_fetch_sums(store, site, days), site, last_day)
    on_last_day = compared.get(site)
    slow = (on_last_day and on_last_day.difference) or 0.0
    if (
        on_last_day is None
        or on_last_day.compared_count < MIN_TIMED
        or not _is_slow(slow, other_differences)
    ):
        return None
    sums = _fetch_sums(store, site, days)
    daily = peer_comparison.compare_over_time(sums, site, lambda day: day)
    by_day = {
        comparison.time: comparison.difference
        for comparison in daily
        if comparison.difference is not None
    }
    since = _find_begin({**by_day, last_day: slow}, last_day)
    return Slowness(
        1 + slow, on_last_day.peer_count, since, _suggest_action(store, site, last_day, slow)
    )


def _fetch_sums(store: ResultsReader, site: str, days: tuple[int, int]) -> WorkSums:
    return peer_sums.fetch_peer_sums(store, site, _WALL, days, {}).dailies


def _is_slow(slow: float, other_differences: Sequence[float]) -> bool:
    """Return whether a difference is far above those of other sites or days."""
    middle = statistics.median(other_differences)
    spread = _SIGMA_PER_MAD * statistics.median(abs(value - middle) for value in other_differences)
    return slow >= max(SLOW_LEAST, SLOW_SIGMAS * spread)


def _compare_with_past(sums: WorkSums, site: str, last_day: int) -> Slowness | None:
    """Compare a site with its own days before, where too few others did the same work."""
    days: defaultdict[int, list[float]] = defaultdict(list)
    rows = zip(sums.day, sums.site, sums.work, sums.count, sums.total, strict=True)
    means = {
        (int(day), int(work)): total / count
        for day, index, work, count, total in rows
        if count and sums.sites[index] == site
    }
    usual = {
        work: statistics.median(mean for (day, other), mean in means.items() if other == work)
        for _, work in means
    }
    for (day, work), mean in means.items():
        if usual[work] > 0:
            days[day].append(mean / usual[work] - 1)
    changes = {day: statistics.median(values) for day, values in days.items()}
    past = [change for day, change in changes.items() if day < last_day]
    slow = changes.get(last_day, 0.0)
    if len(past) < MIN_DAYS or not _is_slow(slow, past):
        return None
    return Slowness(1 + slow, 0, "", "Cause: unknown. Run the same test at other sites.")


def _find_begin(by_day: Mapping[int, float], last_day: int) -> str:
    """Find the first of the slow days in a row; it is open if all searched days are slow."""
    threshold = by_day[last_day] / 2
    first_day = last_day
    for day in sorted((day for day in by_day if day < last_day), reverse=True):
        if by_day[day] < threshold:
            return f", since {number_to_day(first_day)}"
        first_day = day
    return f", since {number_to_day(first_day)} or before" if len(by_day) > 1 else ""


def _suggest_action(store: ResultsReader, site: str, day: int, slow: float) -> str:
    """Suggest to look at the nodes if the CPU time grew as well, otherwise at the door."""
    sums = peer_sums.fetch_peer_sums(store, site, _CPU, (day, day), {}).dailies
    comparison = peer_comparison.compare_sites(sums).get(site)
    cpu = comparison.difference if comparison else None
    if cpu is not None and cpu >= slow / 2:
        return "Cause: CPU time. Check load, CPU model and limits of the site's nodes."
    return "Cause: waiting for data. Check the door's load and the network to it."
