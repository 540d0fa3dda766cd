"""Comparison of a site with similar sites on the same work, its place among them, and the parts of its difference."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treehammer.analysis.statistics.distributions import measure_scatter
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.sql.read.peer_sums import MAX_DAILY_PEERS, Floats, Integers, WorkKey, WorkSums
from treehammer.sql.read.query_model import LEAST_VARIANCE, FigureQuery, Moments
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.read.site_history import WORKLOAD_COLUMNS, group_workload_key

#: Definition of similar sites, for people.
SIMILAR_SITES_TEXT = (
    "Similar sites are those that did the same work at the same time: the same test, variant, "
    "ROOT release and dataset, read through a door of the same protocol. "
    "Of each work the median of their means is taken, and weighted as this site's measurements are, "
    "so that both lines stand for the same mix. Work that nobody else did has no part in the comparison. "
    f"Of more than {MAX_DAILY_PEERS} similar sites, {MAX_DAILY_PEERS} are in the chart, evenly by name."
)

#: Days over which sites are compared, unless a reader chooses others.
COMPARED_DAYS = 30
#: A site is an outlier if it is lower than the median of all by so much, and so many standard deviations.
LEAST_DEVIATION, OUTLIER_SIGMAS = 0.03, 4.0
#: Fewer compared sites have no outliers.
MIN_COMPARED_SITES = 4


@dataclass(frozen=True)
class PeerComparison:
    """A site at one time, compared with the others.

    Attributes:
        time: the day, or the Monday of the week (UTC, YYYYMMDD).
        count: good measurements that have the metric.
        mean: their mean, in the metric's unit.
        compared_count: those of work that other sites did, too.
        own_mean: mean of the compared ones; None without any.
        rms: scatter of the shown values, each about the mean of its own work; None if each is alone.
        standard_error: of the shown value, assuming independent measurements.
        peer_median: median of similar sites, weighted by this site's work; None without any.
        peer_count: number of similar sites.
    """

    time: int
    count: int
    mean: float
    compared_count: int
    own_mean: float | None
    rms: float | None
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


def compare_all_sites(
    reader: ResultsReader, metrics: Sequence[str], last: date
) -> dict[str, dict[str, PeerComparison]]:
    """Compare every site with the others in the :data:`COMPARED_DAYS` days up to one, by metric and site."""
    query = FigureQuery(
        tuple(metrics),
        ("site", *WORKLOAD_COLUMNS),
        first_day=day_to_number(last - timedelta(days=COMPARED_DAYS - 1)),
        last_day=day_to_number(last),
    )
    groups = reader.load_figure(query).groups
    comparisons = {}
    for metric in metrics:
        rows = []
        for group in groups:
            site, moments = str(group.by["site"] or ""), group.metrics[metric]
            sums = (moments.value_count, moments.total, moments.squares)
            rows.append((0, site, group_workload_key(group), *sums))
        comparisons[metric] = compare_sites(WorkSums.collect(rows))
    return comparisons


def list_differences(comparisons: Mapping[str, PeerComparison]) -> dict[str, float]:
    """List the differences of the sites that could be compared."""
    differences = {name: comparison.difference for name, comparison in comparisons.items()}
    return {name: value for name, value in differences.items() if value is not None}


def find_inefficient_sites(
    comparisons: Mapping[str, PeerComparison],
) -> dict[str, PeerComparison]:
    """Find the sites whose metric is lower than that of similar sites beyond the scatter of all.

    Args:
        comparisons: by site, of a metric that is better when higher.

    Returns:
        The outliers, the lowest first: lower than the median of all sites by :data:`LEAST_DEVIATION`
        and by :data:`OUTLIER_SIGMAS` robust standard deviations.
    """
    differences = list_differences(comparisons)
    if len(differences) < MIN_COMPARED_SITES:
        return {}
    middle, spread = measure_scatter(differences.values())
    limit = middle - max(LEAST_DEVIATION, OUTLIER_SIGMAS * spread)
    outliers = sorted(
        (difference, site) for site, difference in differences.items() if difference < limit
    )
    return {site: comparisons[site] for _, site in outliers}


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
        totals = (
            _add_by_place(indices, column[used], len(cells))
            for column in (sums.count, sums.total, sums.squares)
        )
        return cls(time, work, site, group, *totals)

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
    squared_means = cells.means[cell_indices] ** 2
    variance = cells.squares[cell_indices] / count - squared_means
    variance[variance <= LEAST_VARIANCE * squared_means] = 0.0

    def add(values: Floats, where: npt.NDArray[np.bool_]) -> Floats:
        return _add_by_place(owner, np.where(where, values, 0.0), len(times))

    all_cells = np.ones_like(is_compared)
    compared = add(count, is_compared)
    # Each work scatters about its own mean; all are shown where none can be compared.
    is_shown = is_compared | (compared == 0)[owner]
    columns = (
        times,
        add(count, all_cells),
        add(total, all_cells),
        compared,
        add(total, is_compared),
        add(count * medians, is_compared),
        add(count, is_shown),
        add(count * variance, is_shown),
        add(count - 1, is_shown),
        peer_counts,
    )
    return [
        PeerComparison(
            time=int(time),
            count=int(n),
            mean=total / n,
            compared_count=int(n_compared),
            own_mean=own_total / n_compared if n_compared else None,
            rms=math.sqrt(deviation / n_shown) if freedom > 0 else None,
            standard_error=math.sqrt(deviation / freedom / n_shown) if freedom > 0 else None,
            peer_median=median_total / n_compared if n_compared else None,
            peer_count=int(peers),
        )
        for time, n, total, n_compared, own_total, median_total, n_shown, deviation, freedom, peers in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


#: Relative variance below which differences are noise of the arithmetic.
_LEAST_VARIANCE = 1e-8


@dataclass(frozen=True)
class SiteStanding:
    """Place of a site among all that share work with others.

    Attributes:
        difference: the site's mean over the median of the same work, minus 1.
        place: 1 for the best; None for metrics without a better direction.
        sites: number of sites ranked.
        better_sites: those with a better place, the best first.
    """

    difference: float
    place: int | None
    sites: int
    better_sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contribution:
    """Part of a site's difference, of one variant, door, host or CPU model.

    Attributes:
        name: of the variant, door, host or CPU model.
        count: good measurements of work that other sites did, too.
        own_mean: their mean.
        peer_median: median of the other sites, weighted by the same work.
        share: part of the site's relative difference; those of all names add up to it.
    """

    name: str
    count: int
    own_mean: float
    peer_median: float
    share: float

    @property
    def difference(self) -> float | None:
        """The own mean over the median, minus 1."""
        return self.own_mean / self.peer_median - 1 if self.peer_median else None


def rank_site(
    comparisons: Mapping[str, PeerComparison], site: str, better: str | None
) -> SiteStanding | None:
    """Rank a site by its difference from the median of the same work; None without any.

    Args:
        comparisons: of all sites.
        site: the site.
        better: ``higher`` or ``lower``; anything else gives no place.
    """
    differences = list_differences(comparisons)
    if site not in differences:
        return None
    difference = differences[site]
    sign = {"higher": 1, "lower": -1}.get(better or "")
    if sign is None:
        return SiteStanding(difference, None, len(differences))
    order = sorted(differences, key=lambda name: (-sign * differences[name], name))
    better_sites = tuple(name for name in order if sign * differences[name] > sign * difference)
    return SiteStanding(difference, 1 + len(better_sites), len(differences), better_sites)


@dataclass(frozen=True)
class ConditionContrast:
    """A condition that most better sites do not share with a site.

    Attributes:
        title: of the condition.
        site_values: values at the site.
        peer_counts: value -> number of better sites that have it, the most frequent first.
        differing: better sites that share none of the site's values.
        reporting: better sites that report the condition.
    """

    title: str
    site_values: tuple[str, ...]
    peer_counts: Mapping[str, int]
    differing: int
    reporting: int


def contrast_conditions(
    site_conditions: Mapping[str, Collection[str]],
    peer_conditions: Iterable[Mapping[str, Collection[str]]],
) -> list[ConditionContrast]:
    """Find the conditions in which most of the better sites differ, the clearest first.

    Args:
        site_conditions: title of a condition -> the site's values.
        peer_conditions: the same of each better site.
    """
    contrasts = []
    better = list(peer_conditions)
    for title, values in site_conditions.items():
        reported = [set(conditions[title]) for conditions in better if conditions.get(title)]
        differing = sum(site_values.isdisjoint(values) for site_values in reported)
        if 2 * differing > len(reported):
            counts = Counter(value for site_values in reported for value in site_values)
            contrasts.append(
                ConditionContrast(
                    title,
                    tuple(sorted(values, key=natural_sort_key)),
                    dict(counts.most_common()),
                    differing,
                    len(reported),
                )
            )
    return sorted(
        contrasts,
        key=lambda contrast: (
            -contrast.differing / contrast.reporting,
            -contrast.reporting,
            contrast.title,
        ),
    )


def find_peer_medians(sums: WorkSums, site: str) -> dict[WorkKey, float]:
    """Find the median of the other sites' means, of each work of a site that they did, too."""
    cells = _WorkCells.collect(sums, np.zeros_like(sums.day))
    of_site = (cells.site == sums.sites.index(site)) & ~np.isnan(cells.other_medians)
    pairs = zip(cells.work[of_site], cells.other_medians[of_site], strict=True)
    return {sums.works[work]: float(median) for work, median in pairs}


def split_difference(
    groups: Iterable[tuple[str, WorkKey, Moments]], medians: Mapping[WorkKey, float]
) -> list[Contribution]:
    """Split a site's difference into parts, the largest first.

    Args:
        groups: name of the part, work, and the site's moments.
        medians: of the other sites by work; work without one is left out.
    """
    parts: dict[str, list[tuple[Moments, float]]] = defaultdict(list)
    for name, work, moments in groups:
        if work in medians and moments.value_count:
            parts[name].append((moments, medians[work]))
    expected = {name: _expect(pairs) for name, pairs in parts.items()}
    all_expected = math.fsum(expected.values())
    contributions = []
    for name, pairs in parts.items():
        count = sum(moments.value_count for moments, _ in pairs)
        total = math.fsum(moments.total for moments, _ in pairs)
        share = (total - expected[name]) / all_expected if all_expected else 0.0
        contributions.append(
            Contribution(name, count, total / count, expected[name] / count, share)
        )
    return sorted(
        contributions, key=lambda contribution: (-abs(contribution.share), contribution.name)
    )


def score_partition(
    groups: Iterable[tuple[str, WorkKey, Moments]], medians: Mapping[WorkKey, float]
) -> float:
    """Score how well parts explain a site's difference: the lower, the better.

    Schwarz's criterion, per measurement, for a model in which each part has a relative difference
    of its own: many parts must explain more than few.

    Args:
        groups: as for :func:`split_difference`.
        medians: as for :func:`split_difference`.
    """
    parts: dict[str, list[tuple[Moments, float]]] = defaultdict(list)
    for name, work, moments in groups:
        if medians.get(work) and moments.value_count:
            parts[name].append((moments, medians[work]))
    count = sum(moments.value_count for pairs in parts.values() for moments, _ in pairs)
    if not count:
        return math.inf
    squares = math.fsum(map(_sum_residuals, parts.values()))
    return math.log(max(squares / count, _LEAST_VARIANCE)) + len(parts) * math.log(count) / count


def _sum_residuals(pairs: Sequence[tuple[Moments, float]]) -> float:
    """Sum the squares of relative deviations from the mean of a part."""
    total = math.fsum(moments.total for moments, _ in pairs)
    common = total / _expect(pairs)
    return math.fsum(
        moments.value_count
        * (((moments.mean or 0.0) / median - common) ** 2 + ((moments.rms or 0.0) / median) ** 2)
        for moments, median in pairs
    )


def _expect(pairs: Iterable[tuple[Moments, float]]) -> float:
    """Sum of the values that the site would have if it were the median."""
    return math.fsum(moments.value_count * median for moments, median in pairs)
