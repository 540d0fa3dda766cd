"""A site beside similar ones: its series, and the median of what others got from the same work."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from treehammer.sql.figures import Moments
from treehammer.sql.site_history import Daily

#: What similar means, in words.
SIMILAR = (
    "Similar sites are those that did the same work at the same time: the same test, variant, "
    "ROOT release and dataset, read through a door of the same protocol. "
    "Of each work the median of their means is taken, and weighted as this site's measurements are, "
    "so that both lines stand for the same mix. Work that nobody else did has no part in the comparison."
)

_Work = tuple[object, ...]


@dataclass(frozen=True)
class Point:
    """A site at one time, beside the others.

    Attributes:
        time: the day, or the Monday of the week (UTC, YYYYMMDD).
        number: good measurements that have the metric.
        mean: of all of them, in the metric's unit.
        compared: those of work that others did, too.
        own: their mean; None without any.
        rms: the scatter of what is shown, each measurement about the mean of its own work.
        error: the standard error of what is shown, were all measurements independent.
        median: of similar sites, weighted by this site's work; None without any.
        sites: how many similar sites there were.
    """

    time: int
    number: int
    mean: float
    compared: int
    own: float | None
    rms: float
    error: float | None
    median: float | None
    sites: int

    @property
    def shown(self) -> float:
        """What stands beside the median; all of the site's work when there is none."""
        return self.mean if self.own is None else self.own

    @property
    def difference(self) -> float | None:
        """The site's own over the median, minus 1; None where there is nothing to compare."""
        if self.own is None or not self.median:
            return None
        return self.own / self.median - 1


def points(dailies: Iterable[Daily], site: str, time: Callable[[int], int | None]) -> list[Point]:
    """The series of a site beside the others, in order of time.

    Args:
        dailies: sums of one metric, of all sites.
        site: the site in question.
        time: the day or week that a day (YYYYMMDD) belongs to; None where it is no day.
    """
    own: dict[int, dict[_Work, Moments]] = defaultdict(dict)
    found: dict[tuple[int, _Work], dict[str, tuple[int, float]]] = defaultdict(dict)
    times: dict[int, int | None] = {}
    for day, of_site, work, number, total, squares in dailies:
        when = times[day] if day in times else times.setdefault(day, time(day))
        if when is None or not number:
            continue
        if of_site == site:
            mine, more = own[when], Moments(number, total, squares)
            mine[work] = mine[work] + more if work in mine else more
        else:
            sums = found[when, work]
            before = sums.get(of_site)
            sums[of_site] = (before[0] + number, before[1] + total) if before else (number, total)
    others = {
        (when, work): {name: total / number for name, (number, total) in found[when, work].items()}
        for when, works in own.items()
        for work in works
        if (when, work) in found
    }
    return [_point(when, works, others) for when, works in sorted(own.items())]


def standings(sums: Iterable[tuple[str, _Work, Moments]]) -> dict[str, Point]:
    """Every site beside the others over the whole time that sums are of; their ``time`` is 0.

    Args:
        sums: site, work, and a metric of some of its good measurements.
    """
    own: dict[str, dict[_Work, Moments]] = defaultdict(dict)
    means: dict[_Work, dict[str, float]] = defaultdict(dict)
    for site, work, moments in sums:
        if moments.mean is not None:
            mine = own[site]
            mine[work] = whole = mine[work] + moments if work in mine else moments
            assert whole.mean is not None
            means[work][site] = whole.mean
    return {
        site: _point(
            0,
            works,
            {
                (0, work): {name: mean for name, mean in means[work].items() if name != site}
                for work in works
                if len(means[work]) > 1
            },
        )
        for site, works in own.items()
    }


def _point(
    when: int,
    works: Mapping[_Work, Moments],
    others: Mapping[tuple[int, _Work], Mapping[str, float]],
) -> Point:
    everything = _sum(works.values())
    peers = {work: others[when, work] for work in works if (when, work) in others}
    compared = _sum(works[work] for work in peers)
    median = None
    if peers:
        weighed = (
            works[work].number * statistics.median(means.values()) for work, means in peers.items()
        )
        median = math.fsum(weighed) / compared.number
    assert everything.mean is not None
    rms, error = _scatter([works[work] for work in peers] or list(works.values()))
    return Point(
        time=when,
        number=everything.number,
        mean=everything.mean,
        compared=compared.number,
        own=compared.mean,
        rms=rms,
        error=error,
        median=median,
        sites=len(set(_names(peers.values()))),
    )


def _names(found: Iterable[Mapping[str, float]]) -> Iterator[str]:
    for means in found:
        yield from means


def _sum(found: Iterable[Moments]) -> Moments:
    return sum(found, Moments())


def _scatter(works: Iterable[Moments]) -> tuple[float, float | None]:
    """RMS and standard error of a mean over works: each scatters about its own mean, not about all."""
    variance, number, freedom = 0.0, 0, 0
    for one in works:
        rms = one.rms or 0.0
        variance += one.number * rms * rms
        number += one.number
        freedom += one.number - 1
    error = math.sqrt(variance / freedom / number) if freedom > 0 else None
    return math.sqrt(variance / number), error
