"""Attribution from pooled evidence: sites that stand apart, then variants over the other sites."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean, median, variance

from treehammer.analysis.comparison.series_effects import SeriesEffect, group_by_host
from treehammer.analysis.comparison.site_pooling import PooledEffect, pool_separate_sites
from treehammer.analysis.statistics.estimates import (
    MIN_SPREAD,
    Estimate,
    adjust_holm,
)
from treehammer.analysis.statistics.verdict import ALPHA, MIN_HOSTS

#: Sites needed to find the odd one; of two that differ, it could be either.
MIN_CONTRASTED_SITES = 3
#: Variance of a median of normal values, relative to that of their mean.
_MEDIAN_VARIANCE = math.pi / 2


#: Metric and site -> (shift, low, high) in ln.
Shifts = Mapping[tuple[str, str], tuple[float, float, float]]


@dataclass(frozen=True)
class SiteContrasts:
    """Findings of one comparison.

    ``shifts`` maps metric and site to (shift, low, high) in ln, of the sites that stand apart.
    ``slower`` holds release key and metric of the variants that are slower over the other sites.
    """

    shifts: Shifts = field(default_factory=dict)
    slower: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class _Residuals:
    """A site's effects, less the median of the other sites, by variant and by independent unit."""

    by_variant: Sequence[float]
    by_unit: Sequence[float]


def contrast_sites(
    effects: Sequence[SeriesEffect], pooled: Sequence[PooledEffect], delta: float
) -> SiteContrasts:
    """Contrast each site with the median of the others, then pool variants over the rest.

    A site stands apart, or a variant is slower, if the effect is not 0 by Holm and its estimate
    lies beyond delta.  An undecided series contradicts nothing.
    """
    shifts = _find_shifts(effects, delta)
    judged = [
        (effect, estimate) for effect in pooled if (estimate := _pool_other_sites(effect, shifts))
    ]
    tests = adjust_holm([estimate.p for _, estimate in judged])
    slower = frozenset(
        (effect.series.release, effect.metric)
        for (effect, estimate), test in zip(judged, tests, strict=True)
        if test.p <= ALPHA and effect.headline.sign * estimate.mean > delta
    )
    return SiteContrasts(shifts, slower)


def _find_shifts(effects: Sequence[SeriesEffect], delta: float) -> Shifts:
    by_metric: dict[str, list[SeriesEffect]] = defaultdict(list)
    for effect in effects:
        if effect.refused is None:
            by_metric[effect.metric].append(effect)
    return {
        (metric, site): shift
        for metric, of_metric in by_metric.items()
        for site, shift in _find_odd_sites(of_metric, delta).items()
    }


def _pool_other_sites(effect: PooledEffect, shifts: Shifts) -> Estimate | None:
    """Pool the sites that do not stand apart; None with fewer than two or after a refusal."""
    estimates = {
        site: estimate
        for site, estimate in effect.estimates.items()
        if (effect.metric, site) not in shifts
    }
    pooled = pool_separate_sites(estimates, effect.shared_hosts) if effect.refused is None else None
    return pooled.estimate if pooled else None


def _find_odd_sites(
    effects: Sequence[SeriesEffect], delta: float
) -> dict[str, tuple[float, float, float]]:
    """Set sites apart one by one, the most certain first, while at least three are left."""
    sites: dict[str, list[SeriesEffect]] = defaultdict(list)
    for effect in effects:
        sites[effect.series.site].append(effect)
    level = ALPHA / max(len(sites), 1)
    contrasts: dict[str, tuple[float, float, float]] = {}
    while len(sites) >= MIN_CONTRASTED_SITES:
        shifts = _estimate_shifts(sites)
        candidates = [
            site for site, shift in shifts.items() if shift.p <= level and abs(shift.mean) > delta
        ]
        if not candidates:
            break
        site = max(candidates, key=lambda name: abs(shifts[name].mean) / shifts[name].se)
        contrasts[site] = (shifts[site].mean, *shifts[site].interval(level))
        del sites[site]
    return contrasts


def _estimate_shifts(sites: Mapping[str, Sequence[SeriesEffect]]) -> dict[str, Estimate]:
    """Estimate how each site differs from the median of the others.

    The error is the larger one of two: over variants, so that one slow variant is no slow site,
    and over hosts (jobs where a site has fewer than three hosts), so that one slow host is none
    either.  Each is the site's own or that pooled over all sites, whichever is larger.
    """
    means: dict[str, dict[str, float]] = {
        site: {effect.series.release: effect.mean for effect in of_site if effect.mean is not None}
        for site, of_site in sites.items()
    }
    residuals = {site: _collect_residuals(site, of_site, means) for site, of_site in sites.items()}
    inflation = 1 + _MEDIAN_VARIANCE / (len(sites) - 1)
    by_variant = _pool_errors(
        {site: residual.by_variant for site, residual in residuals.items()}, 1.0
    )
    by_unit = _pool_errors(
        {site: residual.by_unit for site, residual in residuals.items()}, inflation
    )
    shifts = {}
    for site, error in by_unit.items():
        se, df = max(error, by_variant.get(site, error))
        if se > MIN_SPREAD:
            shifts[site] = Estimate(fmean(residuals[site].by_variant), se, df)
    return shifts


def _collect_residuals(
    site: str, effects: Sequence[SeriesEffect], means: Mapping[str, Mapping[str, float]]
) -> _Residuals:
    by_variant: dict[str, float] = {}
    by_unit: dict[str, list[float]] = defaultdict(list)
    hosts = set[str]().union(*(effect.host_names for effect in effects))
    for effect in effects:
        release = effect.series.release
        center = _find_center(release, [of for name, of in means.items() if name != site])
        if center is None or effect.mean is None:
            continue
        by_variant[release] = effect.mean - center
        for host, values in group_by_host(effect.pairs, lambda pair: [pair.d]).items():
            by_unit[host].extend(value - center for value in values)
    has_enough_hosts = len(hosts) >= MIN_HOSTS
    units = (
        map(fmean, by_unit.values()) if has_enough_hosts else chain.from_iterable(by_unit.values())
    )
    return _Residuals(list(by_variant.values()), list(units))


def _find_center(release: str, other_sites: Iterable[Mapping[str, float]]) -> float | None:
    """Find the median effect of a release at the other sites; None where none measured it."""
    means = [of_site[release] for of_site in other_sites if release in of_site]
    return median(means) if means else None


def _pool_errors(
    groups: Mapping[str, Sequence[float]], inflation: float
) -> dict[str, tuple[float, float]]:
    """Return standard errors and degrees of freedom of groups; those of one value have none.

    Args:
        groups: values by site.
        inflation: factor on the variance.
    """
    pooled = {site: values for site, values in groups.items() if len(values) > 1}
    df = sum(len(values) - 1 for values in pooled.values())
    if not df:
        return {}
    variances = {site: variance(values) for site, values in pooled.items()}
    common = sum((len(values) - 1) * variances[site] for site, values in pooled.items()) / df
    return {
        site: (math.sqrt(inflation * max(variances[site], common) / len(values)), df)
        for site, values in pooled.items()
    }
