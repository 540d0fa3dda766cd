"""Effects of a release over sites: pooled effect, sites that stand apart, and attribution."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import fmean, median, variance

from treehammer.analysis.comparison.series_effects import (
    SeriesEffect,
    estimate_effect,
    group_by_host,
)
from treehammer.analysis.comparison.series_sides import SeriesSides, common_values
from treehammer.analysis.comparison.verdict_text import strip_door
from treehammer.analysis.statistics.estimates import (
    MIN_SPREAD,
    Estimate,
    PooledEstimate,
    adjust_holm,
    pool_estimates,
)
from treehammer.analysis.statistics.verdict import ALPHA, MIN_HOSTS, ONE_SIDED_VERDICTS, Verdict
from treehammer.hctests.definition.judged_metrics import HeadlineMetric


@dataclass(frozen=True)
class PooledEffect:
    """Effect on one metric of one test variant, over sites.

    Attributes:
        series: one of its series, for its name.
        headline: the metric.
        estimates: estimate of each site that enters.
        sites: sites that enter; ``jobs``, ``hosts`` and ``jobs_per_site`` count theirs alone.
        shared_hosts: host of several sites -> these sites.
        pooled: None with fewer than two sites.
        refused: verdict that replaces the statistical one; None where the rule applies.
        why: reason of ``refused``.
        of_a: columns in which the executions of side A agree at all sites, with their values.
        of_b: the same of side B.
    """

    series: SeriesSides
    headline: HeadlineMetric
    estimates: Mapping[str, Estimate]
    sites: tuple[str, ...]
    shared_hosts: Mapping[str, tuple[str, ...]]
    jobs: int
    hosts: int
    jobs_per_site: int
    pooled: PooledEstimate | None
    refused: Verdict | None
    why: str
    of_a: Mapping[str, str | int]
    of_b: Mapping[str, str | int]

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self.headline.name

    @property
    def estimate(self) -> Estimate | None:
        """Effect over the sites; None with fewer than two."""
        return self.pooled.estimate if self.pooled else None


def pool_over_sites(effects: Sequence[SeriesEffect]) -> list[PooledEffect]:
    """Pool the series of each release key and metric over sites, in order of label.

    Keys that no site measured on both sides are left out, and so are series with too little data or
    other values.  If no series may enter a verdict, those whose builds or contents differ are pooled
    for information.
    """
    groups: dict[tuple[str, str], list[SeriesEffect]] = defaultdict(list)
    for effect in effects:
        groups[effect.series.release, effect.metric].append(effect)
    return [
        _pool_group(group)
        for group in groups.values()
        if any(effect.refused not in ONE_SIDED_VERDICTS for effect in group)
    ]


def _pool_group(group: Sequence[SeriesEffect]) -> PooledEffect:
    entering = _select_refused(group, None)
    refused, why = _find_refusal(group, entering)
    series = (
        entering
        or _select_refused(group, Verdict.BUILD_DIFFERS)
        or _select_refused(group, Verdict.OTHER_CONTENT)
    )
    sites = _group_by_site(series)
    # The doors of one site share its nodes: together they are one site's answer.
    estimates = {
        site: estimate
        for site, of_site in sites.items()
        if (estimate := estimate_effect(of_site)) is not None
    }
    jobs = [sum(effect.jobs for effect in of_site) for of_site in sites.values()]
    shared_hosts = _find_shared_hosts(sites)
    return PooledEffect(
        series=replace(group[0].series, label=strip_door(group[0].series.label)),
        headline=group[0].headline,
        estimates=estimates,
        sites=tuple(sites),
        shared_hosts=shared_hosts,
        jobs=sum(jobs),
        hosts=len(_collect_hosts(series)),
        jobs_per_site=int(median(jobs or [0])),
        pooled=pool_separate_sites(estimates, shared_hosts),
        refused=refused,
        why=why,
        of_a=common_values(chain.from_iterable(effect.series.a for effect in group)),
        of_b=common_values(chain.from_iterable(effect.series.b for effect in group)),
    )


def _select_refused(group: Iterable[SeriesEffect], verdict: Verdict | None) -> list[SeriesEffect]:
    return [effect for effect in group if effect.refused is verdict]


def _find_shared_hosts(
    sites: Mapping[str, Sequence[SeriesEffect]],
) -> dict[str, tuple[str, ...]]:
    """Find the hosts that measured for several sites, with these sites."""
    sites_of: dict[str, list[str]] = defaultdict(list)
    for site, effects in sites.items():
        for host in _collect_hosts(effects):
            sites_of[host].append(site)
    return {host: tuple(names) for host, names in sorted(sites_of.items()) if len(names) > 1}


def _collect_hosts(effects: Iterable[SeriesEffect]) -> set[str]:
    return set[str]().union(*(effect.host_names for effect in effects))


def pool_separate_sites(
    estimates: Mapping[str, Estimate], shared_hosts: Mapping[str, Sequence[str]]
) -> PooledEstimate | None:
    """Pool the estimates of sites; those that share a host are not independent and form one group."""
    groups = [{site} for site in estimates]
    for sharing in shared_hosts.values():
        joined = [group for group in groups if group.intersection(sharing)]
        groups = [group for group in groups if group not in joined]
        groups += [set[str]().union(*joined)] if joined else []
    return pool_estimates([[estimates[site] for site in sorted(group)] for group in groups])


def _find_refusal(
    group: Sequence[SeriesEffect], entering: Sequence[SeriesEffect]
) -> tuple[Verdict | None, str]:
    excluded = {
        effect.series.site: effect.refused for effect in group if effect.refused is not None
    }
    counts = Counter(verdict.value for verdict in excluded.values())
    reasons = ", ".join(f"{count} × {verdict}" for verdict, count in sorted(counts.items()))
    if not entering:
        verdicts = set(excluded.values()) - set(ONE_SIDED_VERDICTS)
        refusal = verdicts.pop() if len(verdicts) == 1 else Verdict.NOT_ENOUGH
        return refusal, f"no site enters the verdict ({reasons})"
    sites = sorted(_group_by_site(entering))
    note = f"; outside: {reasons}" if reasons else ""
    if len(sites) == 1:
        return Verdict.NOT_ENOUGH, f"one site ({sites[0]}); two needed{note}"
    return None, note.removeprefix("; ")


def _group_by_site(effects: Sequence[SeriesEffect]) -> dict[str, list[SeriesEffect]]:
    sites: dict[str, list[SeriesEffect]] = defaultdict(list)
    for effect in effects:
        sites[effect.series.site].append(effect)
    return dict(sorted(sites.items()))


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
    sites = _group_by_site(effects)
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
    for effect in effects:
        release = effect.series.release
        other_means = [of[release] for name, of in means.items() if name != site and release in of]
        if not other_means or effect.mean is None:
            continue
        center = median(other_means)
        by_variant[release] = effect.mean - center
        for host, values in group_by_host(effect.pairs, lambda pair: [pair.d]).items():
            by_unit[host].extend(value - center for value in values)
    has_enough_hosts = len(_collect_hosts(effects)) >= MIN_HOSTS
    units = (
        map(fmean, by_unit.values()) if has_enough_hosts else chain.from_iterable(by_unit.values())
    )
    return _Residuals(list(by_variant.values()), list(units))


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
