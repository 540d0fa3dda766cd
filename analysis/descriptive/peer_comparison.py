"""Comparison of a site with the median of similar sites on the same work."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from treehammer.sql.read.figure_query import Moments
from treehammer.sql.read.peer_sums import MAX_DAILY_PEERS, DailySums, WorkKey

#: Definition of similar sites, for people.
SIMILAR_SITES_TEXT = (
    "Similar sites are those that did the same work at the same time: the same test, variant, "
    "ROOT release and dataset, read through a door of the same protocol. "
    "Of each work the median of their means is taken, and weighted as this site's measurements are, "
    "so that both lines stand for the same mix. Work that nobody else did has no part in the comparison. "
    f"Of more than {MAX_DAILY_PEERS} similar sites, {MAX_DAILY_PEERS} are in the chart, evenly by name."
)


@dataclass(frozen=True)
class PeerComparison:
    """A site at one time, compared with the others.

    Attributes:
        time: the day, or the Monday of the week (UTC, YYYYMMDD).
        count: good measurements that have the metric.
        mean: their mean, in the metric's unit.
        compared_count: those of work that other sites did, too.
        own_mean: mean of the compared ones; None without any.
        rms: scatter of the shown values, each about the mean of its own work.
        standard_error: of the shown value, assuming independent measurements.
        peer_median: median of similar sites, weighted by this site's work; None without any.
        peer_count: number of similar sites.
    """

    time: int
    count: int
    mean: float
    compared_count: int
    own_mean: float | None
    rms: float
    standard_error: float | None
    peer_median: float | None
    peer_count: int

    @property
    def difference(self) -> float | None:
        """The site's own over the median, minus 1; None where there is nothing to compare."""
        if self.own_mean is None or not self.peer_median:
            return None
        return self.own_mean / self.peer_median - 1


def compare_over_time(
    dailies: Iterable[DailySums], site: str, time: Callable[[int], int | None]
) -> list[PeerComparison]:
    """Compare the series of a site with the others, in order of time.

    Args:
        dailies: sums of one metric, of all sites.
        site: the site in question.
        time: the day or week that a day (YYYYMMDD) belongs to; None where it is no day.
    """
    own: dict[int, dict[WorkKey, Moments]] = defaultdict(lambda: defaultdict(Moments))
    found: dict[tuple[int, WorkKey], dict[str, tuple[int, float]]] = defaultdict(dict)
    time_of = cache(time)
    for day, of_site, work, number, total, squares in dailies:
        when = time_of(day)
        if when is None or not number:
            continue
        if of_site == site:
            own[when][work] += Moments(number, total, squares)
        else:
            sums = found[when, work]
            number_before, total_before = sums.get(of_site, (0, 0.0))
            sums[of_site] = (number_before + number, total_before + total)
    return [
        _compare_with_peers(
            when, works, *_summarize_peers({work: found[when, work] for work in works})
        )
        for when, works in sorted(own.items())
    ]


def _summarize_peers(
    sums: Mapping[WorkKey, Mapping[str, tuple[int, float]]],
) -> tuple[dict[WorkKey, float], int]:
    """Return the median over sites of each work that any did, and the number of these sites."""
    medians = {
        work: statistics.median(total / number for number, total in sites.values())
        for work, sites in sums.items()
        if sites
    }
    return medians, len(set(itertools.chain.from_iterable(sums.values())))


def compare_sites(sums: Iterable[tuple[str, WorkKey, Moments]]) -> dict[str, PeerComparison]:
    """Compare every site with the others over the whole period; their ``time`` is 0.

    Args:
        sums: site, work, and a metric of some of its good measurements.
    """
    own: dict[str, dict[WorkKey, Moments]] = defaultdict(dict)
    for site, work, moments in sums:
        if moments.value_count:
            mine = own[site]
            mine[work] = mine[work] + moments if work in mine else moments
    means: dict[WorkKey, dict[str, float]] = defaultdict(dict)
    for site, works in own.items():
        for work, moments in works.items():
            means[work][site] = moments.total / moments.value_count
    sites_of = {work: _SitesOfWork(of_sites) for work, of_sites in means.items()}
    counts = _PeerCounts(sites_of)
    return {
        site: _compare_with_peers(
            0,
            works,
            {
                work: sites_of[work].find_median_without(site)
                for work in works
                if len(means[work]) > 1
            },
            counts.count(works),
        )
        for site, works in own.items()
    }


class _SitesOfWork:
    """Means of all sites that did a work, sorted once for the medians of all sites."""

    def __init__(self, means: Mapping[str, float]) -> None:
        ordered = sorted(means, key=means.__getitem__)
        self.sites = frozenset(means)
        self._values = [means[site] for site in ordered]
        self._places = {site: place for place, site in enumerate(ordered)}

    def find_median_without(self, site: str) -> float:
        """Return the median of the other sites' means, of which there is at least one."""
        left_out, count = self._places[site], len(self._values) - 1
        middle = [(count - 1) // 2, count // 2]
        return statistics.fmean(self._values[place + (place >= left_out)] for place in middle)


class _PeerCounts:
    """Numbers of other sites; sites that did the same works share one count."""

    def __init__(self, sites_of: Mapping[WorkKey, _SitesOfWork]) -> None:
        self._sites_of = sites_of
        self._known: dict[frozenset[WorkKey], int] = {}

    def count(self, works: Iterable[WorkKey]) -> int:
        """Count the other sites that did any of a site's works."""
        key = frozenset(works)
        if key not in self._known:
            self._known[key] = len(frozenset().union(*(self._sites_of[w].sites for w in key))) - 1
        return self._known[key]


def _compare_with_peers(
    when: int, works: Mapping[WorkKey, Moments], medians: Mapping[WorkKey, float], peers: int
) -> PeerComparison:
    everything = _sum_moments(works.values())
    compared = _sum_moments(works[work] for work in medians)
    median = None
    if medians:
        weighed = (works[work].value_count * one for work, one in medians.items())
        median = math.fsum(weighed) / compared.value_count
    assert everything.mean is not None
    rms, error = _pooled_scatter([works[work] for work in medians] or list(works.values()))
    return PeerComparison(
        time=when,
        count=everything.value_count,
        mean=everything.mean,
        compared_count=compared.value_count,
        own_mean=compared.mean,
        rms=rms,
        standard_error=error,
        peer_median=median,
        peer_count=peers,
    )


def _sum_moments(found: Iterable[Moments]) -> Moments:
    return sum(found, Moments())


def _pooled_scatter(works: Iterable[Moments]) -> tuple[float, float | None]:
    """RMS and standard error of a mean over works: each scatters about its own mean, not about all."""
    variance, number, freedom = 0.0, 0, 0
    for one in works:
        rms = one.rms or 0.0
        variance += one.value_count * rms * rms
        number += one.value_count
        freedom += one.value_count - 1
    error = math.sqrt(variance / freedom / number) if freedom > 0 else None
    return math.sqrt(variance / number), error
