"""Slow days of a site: its time per event beside the same work at other sites and on other days."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.descriptive.peer_comparison import PeerComparison
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
        action: cause, and what to do.
    """

    ratio: float
    peers: int
    since: str
    action: str

    def describe(self) -> str:
        """Describe it without the origin."""
        same = f"at {pluralize(self.peers, 'other site')}" if self.peers else "on the days before"
        return f"an event takes {self.ratio:.2g} times the wall time of the same work {same}"


def find_slowness(store: ResultsReader, site: str, days: tuple[int, int]) -> Slowness | None:
    """Find out whether a site is slow on the last of some days (YYYYMMDD), and since when."""
    last = days[1]
    sums = peer_sums.fetch_peer_sums(store, site, _WALL, days, {}).dailies
    by_day = {
        one.time: one
        for one in peer_comparison.compare_over_time(sums, site, lambda day: day)
        if one.difference is not None
    }
    now = by_day.get(last)
    if now is None or now.peer_count < MIN_PEERS:
        return _compare_with_past(sums, site, last)
    slow = now.difference or 0.0
    others = [
        one.difference
        for name, one in peer_comparison.compare_sites(_select_day(sums, last)).items()
        if name != site and one.difference is not None
    ]
    is_slow = slow >= max(SLOW_LEAST, SLOW_SIGMAS * _estimate_spread(others))
    if len(others) < MIN_PEERS or now.compared_count < MIN_TIMED or not is_slow:
        return None
    return Slowness(
        1 + slow,
        now.peer_count,
        _find_begin(by_day, last),
        _suggest_action(store, site, last, slow),
    )


def _compare_with_past(sums: WorkSums, site: str, last: int) -> Slowness | None:
    """Compare a site with its own days before, where too few others did the same work."""
    days: dict[int, list[float]] = {}
    own = _select(sums, sums.site == sums.sites.index(site)) if site in sums.sites else None
    if own is None:
        return None
    means = {
        (int(day), int(work)): total / count
        for day, work, count, total in zip(own.day, own.work, own.count, own.total, strict=True)
        if count
    }
    usual = {
        work: statistics.median(mean for (day, other), mean in means.items() if other == work)
        for _, work in means
    }
    for (day, work), mean in means.items():
        if usual[work] > 0:
            days.setdefault(day, []).append(mean / usual[work] - 1)
    changes = {day: statistics.median(values) for day, values in days.items()}
    past = [change for day, change in changes.items() if day < last]
    slow = changes.get(last, 0.0)
    if len(past) < MIN_DAYS or slow < max(SLOW_LEAST, SLOW_SIGMAS * _estimate_spread(past)):
        return None
    return Slowness(1 + slow, 0, "", "Cause: unknown. Run the same test at other sites.")


def _select_day(sums: WorkSums, day: int) -> WorkSums:
    return _select(sums, sums.day == day)


def _select(sums: WorkSums, chosen: npt.NDArray[np.bool_]) -> WorkSums:
    return replace(
        sums,
        day=sums.day[chosen],
        site=sums.site[chosen],
        work=sums.work[chosen],
        count=sums.count[chosen],
        total=sums.total[chosen],
        squares=sums.squares[chosen],
    )


def _estimate_spread(values: Sequence[float]) -> float:
    """Estimate the standard deviation from the median of absolute deviations."""
    middle = statistics.median(values)
    return _SIGMA_PER_MAD * statistics.median(abs(value - middle) for value in values)


def _find_begin(by_day: Mapping[int, PeerComparison], last: int) -> str:
    """Find the first of the slow days in a row; it is open if all searched days are slow."""
    least = (by_day[last].difference or 0.0) / 2
    first = last
    for day in sorted((day for day in by_day if day < last), reverse=True):
        if (by_day[day].difference or 0.0) < least:
            return f", since {number_to_day(first)}"
        first = day
    return f", since {number_to_day(first)} or before" if len(by_day) > 1 else ""


def _suggest_action(store: ResultsReader, site: str, day: int, slow: float) -> str:
    """Suggest to look at the nodes if the CPU time grew as well, otherwise at the door."""
    sums = peer_sums.fetch_peer_sums(store, site, _CPU, (day, day), {}).dailies
    comparison = peer_comparison.compare_sites(sums).get(site)
    cpu = comparison.difference if comparison else None
    if cpu is not None and cpu >= slow / 2:
        return "Cause: CPU time. Check load, CPU model and limits of the site's nodes."
    return "Cause: waiting for data. Check the door's load and the network to it."
