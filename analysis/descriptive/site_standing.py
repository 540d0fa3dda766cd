"""Place of a site among the others, and the parts of its difference from them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.sql.read.figure_query import Moments
from treehammer.sql.read.peer_sums import WorkKey


@dataclass(frozen=True)
class SiteStanding:
    """Place of a site among all that share work with others.

    Attributes:
        difference: the site's mean over the median of the same work, minus 1.
        place: 1 for the best; None for metrics without a better direction.
        sites: number of sites ranked.
    """

    difference: float
    place: int | None
    sites: int


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
    found = {
        name: one.difference for name, one in comparisons.items() if one.difference is not None
    }
    if site not in found:
        return None
    own = found[site]
    sign = {"higher": 1, "lower": -1}.get(better or "")
    place = None
    if sign:
        place = 1 + sum(sign * other > sign * own for other in found.values())
    return SiteStanding(own, place, len(found))


def find_peer_medians(
    sums: Iterable[tuple[str, WorkKey, Moments]], site: str
) -> dict[WorkKey, float]:
    """Find the median of the other sites' means, of each work that they did."""
    found: dict[WorkKey, dict[str, Moments]] = defaultdict(lambda: defaultdict(Moments))
    for name, work, moments in sums:
        if name != site and moments.value_count:
            found[work][name] += moments
    return {
        work: statistics.median(mean for one in sites.values() if (mean := one.mean) is not None)
        for work, sites in found.items()
    }


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
    whole = math.fsum(_expect(pairs) for pairs in parts.values())
    found = [_build_contribution(name, pairs, whole) for name, pairs in parts.items()]
    return sorted(found, key=lambda one: (-abs(one.share), one.name))


def _expect(pairs: Iterable[tuple[Moments, float]]) -> float:
    """Sum of the values that the site would have if it were the median."""
    return math.fsum(moments.value_count * median for moments, median in pairs)


def _build_contribution(
    name: str, pairs: list[tuple[Moments, float]], whole: float
) -> Contribution:
    count = sum(moments.value_count for moments, _ in pairs)
    total = math.fsum(moments.total for moments, _ in pairs)
    expected = _expect(pairs)
    share = (total - expected) / whole if whole else 0.0
    return Contribution(name, count, total / count, expected / count, share)
