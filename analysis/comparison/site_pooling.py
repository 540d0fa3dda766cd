"""The same test at every site: one effect of a release, pooled over sites."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from treehammer.analysis.comparison.series_effects import SeriesEffect, estimate_effect
from treehammer.analysis.comparison.series_sides import SeriesSides, common_values
from treehammer.analysis.statistics.estimates import Estimate, PooledEstimate, pool_estimates
from treehammer.analysis.statistics.verdict import ONE_SIDED_VERDICTS, Verdict
from treehammer.hctests.matrix.headline import HeadlineMetric


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
    chosen = (
        entering
        or _select_refused(group, Verdict.BUILD_DIFFERS)
        or _select_refused(group, Verdict.OTHER_CONTENT)
    )
    sites = _group_by_site(chosen)
    # The doors of one site share its nodes: together they are one site's answer.
    estimates = {
        site: estimate
        for site, of_site in sites.items()
        if (estimate := estimate_effect(of_site)) is not None
    }
    jobs = [sum(effect.jobs for effect in of_site) for of_site in sites.values()]
    shared_hosts = _find_shared_hosts(sites)
    return PooledEffect(
        series=group[0].series,
        headline=group[0].headline,
        estimates=estimates,
        sites=tuple(sites),
        shared_hosts=shared_hosts,
        jobs=sum(jobs),
        hosts=_count_hosts(chosen),
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
        for host in set[str]().union(*(effect.host_names for effect in effects)):
            sites_of[host].append(site)
    return {host: tuple(names) for host, names in sorted(sites_of.items()) if len(names) > 1}


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


def _count_hosts(effects: Iterable[SeriesEffect]) -> int:
    return len(set[str]().union(*(effect.host_names for effect in effects)))


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


def _group_by_site(effects: Sequence[SeriesEffect]) -> Mapping[str, list[SeriesEffect]]:
    sites: dict[str, list[SeriesEffect]] = defaultdict(list)
    for effect in effects:
        sites[effect.series.site].append(effect)
    return dict(sorted(sites.items()))
