"""Comparison of a site with similar sites on the same work, and the days on which it was slow."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treehammer.collectors.record.day_numbers import number_to_day
from treehammer.sql.read.peer_sums import (
    MAX_DAILY_PEERS,
    Floats,
    Integers,
    WorkKey,
    WorkSums,
    fetch_peer_sums,
)
from treehammer.sql.read.reader import ResultsReader
from treehammer.text_formatting import pluralize

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
    sums: WorkSums, site: str, time: Callable[[int], int | None]
) -> list[PeerComparison]:
    """Compare the series of a site with the others, in order of time.

    Args:
        sums: of one metric by day, of all sites.
        site: the site in question.
        time: the day or week that a day (YYYYMMDD) belongs to; None for other numbers.
    """
    if site not in sums.sites:
        return []
    days, place_of_day = np.unique(sums.day, return_inverse=True)
    times = np.array([time(int(day)) or 0 for day in days], np.int64)
    cells = _WorkCells.collect(sums, times[place_of_day])
    of_site = cells.site == sums.sites.index(site)
    of_site &= cells.time > 0
    compared_times, owner = np.unique(cells.time[of_site], return_inverse=True)
    is_comparable = np.isin(cells.group, cells.group[of_site])
    pairs = np.unique(cells.time[is_comparable] * len(sums.sites) + cells.site[is_comparable])
    indices = np.searchsorted(compared_times, pairs // len(sums.sites))
    peer_counts = np.bincount(indices, minlength=len(compared_times)) - 1
    return _compare_owners(cells, np.flatnonzero(of_site), owner, compared_times, peer_counts)


def compare_sites(sums: WorkSums) -> dict[str, PeerComparison]:
    """Compare every site with the others over the whole period; their ``time`` is 0.

    Args:
        sums: of one metric over the period, of all sites.
    """
    cells = _WorkCells.collect(sums, np.zeros_like(sums.day))
    site_indices, owner = np.unique(cells.site, return_inverse=True)
    works, work = np.unique(cells.work, return_inverse=True)
    participation = np.zeros((len(works), len(site_indices)), np.float32)
    participation[work, owner] = 1
    peer_counts = (participation.T @ participation > 0).sum(axis=0) - 1
    comparisons = _compare_owners(
        cells, np.arange(len(cells.site)), owner, np.zeros_like(site_indices), peer_counts
    )
    return {
        sums.sites[index]: comparison
        for index, comparison in zip(site_indices, comparisons, strict=True)
    }


def list_site_means(sums: WorkSums) -> dict[WorkKey, dict[str, float]]:
    """Return the mean of each work at each site."""
    cells = _WorkCells.collect(sums, np.zeros_like(sums.day))
    means: dict[WorkKey, dict[str, float]] = defaultdict(dict)
    for work, site, mean in zip(cells.work, cells.site, cells.means, strict=True):
        means[sums.works[work]][sums.sites[site]] = float(mean)
    return means


def _add_by_place(indices: Integers, values: Floats, count: int) -> Floats:
    return np.bincount(indices, values, count).astype(float)


@dataclass(frozen=True)
class _WorkCells:
    """Sums by time, work and site, in this order, of those with a measurement.

    ``group`` is a number of each time and work.
    """

    time: Integers
    work: Integers
    site: Integers
    group: Integers
    count: Floats
    total: Floats
    squares: Floats

    @classmethod
    def collect(cls, sums: WorkSums, times: Integers) -> _WorkCells:
        """Add up the rows, each at its time."""
        used = sums.count > 0
        keys = (times * len(sums.works) + sums.work) * len(sums.sites) + sums.site
        cells, indices = np.unique(keys[used], return_inverse=True)
        group, site = np.divmod(cells, max(len(sums.sites), 1))
        time, work = np.divmod(group, max(len(sums.works), 1))
        added = (
            _add_by_place(indices, column[used], len(cells))
            for column in (sums.count, sums.total, sums.squares)
        )
        return cls(time, work, site, group, *added)

    @cached_property
    def means(self) -> Floats:
        """Mean of each cell."""
        return self.total / self.count

    @cached_property
    def other_medians(self) -> Floats:
        """Median of the other sites' means, at the time and of the work of each cell; or NaN."""
        order = np.lexsort((self.means, self.group))
        _, starts, sizes = np.unique(self.group, return_index=True, return_counts=True)
        start, peer_counts = np.repeat(starts, sizes), np.repeat(sizes, sizes) - 1
        left_out = np.arange(len(order)) - start
        ordered = self.means[order]

        def pick(middle: Integers) -> Floats:
            index = np.clip(middle + (middle >= left_out), 0, peer_counts)
            picked: Floats = ordered[start + index]
            return picked

        medians = (pick((peer_counts - 1) // 2) + pick(peer_counts // 2)) / 2
        at_cells = np.empty_like(medians)
        at_cells[order] = np.where(peer_counts > 0, medians, np.nan)
        return at_cells


def _compare_owners(
    cells: _WorkCells,
    cell_indices: Integers,
    owner: Integers,
    times: Integers,
    peer_counts: Integers,
) -> list[PeerComparison]:
    """Compare owners, each a site at a time, with the other sites.

    Args:
        cells: of all sites.
        cell_indices: places of the owners' cells.
        owner: owner of each of these.
        times: time of each owner.
        peer_counts: number of similar sites of each owner.
    """
    medians, count, total = (
        cells.other_medians[cell_indices],
        cells.count[cell_indices],
        cells.total[cell_indices],
    )
    is_compared = ~np.isnan(medians)
    variance = np.maximum(0.0, cells.squares[cell_indices] / count - cells.means[cell_indices] ** 2)

    def add(values: Floats, where: npt.NDArray[np.bool_]) -> Floats:
        return _add_by_place(owner, np.where(where, values, 0.0), len(times))

    all_cells = np.ones_like(is_compared)
    compared = add(count, is_compared)
    # Each work scatters about its own mean; all are shown where none can be compared.
    is_shown = is_compared | (compared == 0)[owner]
    columns = {
        "time": times,
        "count": add(count, all_cells),
        "total": add(total, all_cells),
        "compared": compared,
        "own_total": add(total, is_compared),
        "median_total": add(count * medians, is_compared),
        "shown": add(count, is_shown),
        "variance": add(count * variance, is_shown),
        "freedom": add(count - 1, is_shown),
        "others": peer_counts,
    }
    return [
        _build_comparison(**dict(zip(columns, map(float, values), strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]


def _build_comparison(
    *,
    time: float,
    count: float,
    total: float,
    compared: float,
    own_total: float,
    median_total: float,
    shown: float,
    variance: float,
    freedom: float,
    others: float,
) -> PeerComparison:
    """Build a comparison from sums over works; ``variance`` is summed over measurements."""
    return PeerComparison(
        time=int(time),
        count=int(count),
        mean=total / count,
        compared_count=int(compared),
        own_mean=own_total / compared if compared else None,
        rms=math.sqrt(variance / shown),
        standard_error=math.sqrt(variance / freedom / shown) if freedom > 0 else None,
        peer_median=median_total / compared if compared else None,
        peer_count=int(others),
    )


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
    compared = compare_sites(_fetch_sums(store, site, (last_day, last_day)))
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
    daily = compare_over_time(sums, site, lambda day: day)
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
    return fetch_peer_sums(store, site, _WALL, days, {}).dailies


def _is_slow(slow: float, other_differences: Sequence[float]) -> bool:
    """Return whether a difference is far above those of other sites or days."""
    middle = statistics.median(other_differences)
    spread = _SIGMA_PER_MAD * statistics.median(abs(value - middle) for value in other_differences)
    return slow >= max(SLOW_LEAST, SLOW_SIGMAS * spread)


def _compare_with_past(sums: WorkSums, site: str, last_day: int) -> Slowness | None:
    """Compare a site with its own days before, where too few others did the same work."""
    days = _compare_days_by_work(sums, site)
    changes = {day: statistics.median(values) for day, values in days.items()}
    past = [change for day, change in changes.items() if day < last_day]
    slow = changes.get(last_day, 0.0)
    if len(past) < MIN_DAYS or not _is_slow(slow, past):
        return None
    return Slowness(1 + slow, 0, "", "Cause: unknown. Run the same test at other sites.")


def _compare_days_by_work(sums: WorkSums, site: str) -> Mapping[int, list[float]]:
    """Return the relative difference of each work from its median over all days, by day."""
    by_work: defaultdict[int, dict[int, float]] = defaultdict(dict)
    rows = zip(sums.day, sums.site, sums.work, sums.count, sums.total, strict=True)
    for day, index, work, count, total in rows:
        if count and sums.sites[index] == site:
            by_work[int(work)][int(day)] = total / count
    differences: defaultdict[int, list[float]] = defaultdict(list)
    for means in by_work.values():
        usual = statistics.median(means.values())
        for day, mean in means.items() if usual > 0 else ():
            differences[day].append(mean / usual - 1)
    return differences


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
    sums = fetch_peer_sums(store, site, _CPU, (day, day), {}).dailies
    comparison = compare_sites(sums).get(site)
    cpu = comparison.difference if comparison else None
    if cpu is not None and cpu >= slow / 2:
        return "Cause: CPU time. Check load, CPU model and limits of the site's nodes."
    return "Cause: waiting for data. Check the door's load and the network to it."
