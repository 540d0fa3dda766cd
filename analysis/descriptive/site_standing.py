"""Place of a site among the others, and the parts of its difference from them."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from treehammer.analysis.descriptive.peer_comparison import PeerComparison, list_site_means
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.sql.read.peer_sums import WorkKey, WorkSums
from treehammer.sql.read.query_model import Moments

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
    differences = {
        name: comparison.difference
        for name, comparison in comparisons.items()
        if comparison.difference is not None
    }
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
    """Find the median of the other sites' means, of each work that they did."""
    medians = {}
    for work, means in list_site_means(sums).items():
        if peer_means := [mean for name, mean in means.items() if name != site]:
            medians[work] = statistics.median(peer_means)
    return medians


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
    expected_total = math.fsum(_expect(pairs) for pairs in parts.values())
    contributions = [
        _build_contribution(name, pairs, expected_total) for name, pairs in parts.items()
    ]
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


def _build_contribution(
    name: str, pairs: list[tuple[Moments, float]], expected_total: float
) -> Contribution:
    count = sum(moments.value_count for moments, _ in pairs)
    total = math.fsum(moments.total for moments, _ in pairs)
    expected = _expect(pairs)
    share = (total - expected) / expected_total if expected_total else 0.0
    return Contribution(name, count, total / count, expected / count, share)
