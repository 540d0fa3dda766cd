"""Campaigns with known effects, judged by ``compare``: false verdicts, power, attribution.

Each scenario states what is true; a row is wrong if it claims something else. The noise of jobs is
normal, or that of recorded A/A launches whose sides are swapped at random.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean

import numpy as np

from benchmarks.harness.figures import CLAIMED_RATE, SEED, RatioFigure, share_figure
from benchmarks.harness.synthetic_jobs import make_sample
from benchmarks.scenarios.paired_launches import load_equal_launches
from treehammer.analysis.comparison.comparison import (
    Comparison,
    compare_together,
    compare_with_first,
)
from treehammer.analysis.statistics.sample import HEADLINE_METRICS, Sample
from treehammer.analysis.statistics.verdict import (
    CERTAIN_VERDICTS,
    DEFAULT_DELTA,
    HOST_SCOPE,
    SITES_SCOPE,
    Verdict,
)
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read.query_model import Selection

TRIAL_COUNT = 100
#: Variants: fraction of branches, cache in MB.
VARIANTS = tuple((branches, cache) for branches in (1.0, 0.02) for cache in (0, 30, 300))


@dataclass(frozen=True)
class Effect:
    """True slowdown: of everything, at the first site alone, or of variants without a cache alone."""

    slowdown: float = 0.0
    first_site: bool = False
    without_cache: bool = False

    def size(self, site: int, variant: int) -> float:
        """Return ln(B/A) at a site, of a variant."""
        is_elsewhere = self.first_site and site != 0
        is_cached = self.without_cache and VARIANTS[variant][1] != 0
        return 0.0 if is_elsewhere or is_cached else math.log1p(self.slowdown)


NO_EFFECT = Effect()


@dataclass(frozen=True)
class Scenario:
    """A campaign and its truth.

    ``spread`` is the standard deviation of a job's ln(B/A), ``host_spread`` that of a host's own
    effect.  ``shared_hosts`` runs all sites on the same hosts.  ``unequal`` multiplies the spread on
    every first host.  ``recorded`` is the label of launches whose ln(B/A) replace the normal noise.
    """

    title: str
    effect: Effect = NO_EFFECT
    sites: int = 6
    variants: int = 6
    hosts: int = 3
    jobs: int = 6
    spread: float = 0.03
    host_spread: float = 0.0
    shared_hosts: bool = False
    unequal: float = 1.0
    releases: int = 1
    recorded: str = ""
    delta: float = DEFAULT_DELTA

    @property
    def trials(self) -> int:
        """Number of campaigns to draw; those of recorded noise are small."""
        return 1000 if self.recorded else TRIAL_COUNT


FALSE_SCENARIOS = (
    Scenario("one host, 6 launches", sites=1, hosts=1, spread=0.01),
    Scenario("one host, 3 launches", sites=1, hosts=1, jobs=3, spread=0.01),
    Scenario("one host, true +2 % (at delta)", Effect(0.0202), sites=1, hosts=1, spread=0.007),
    Scenario("two hosts, 3 jobs each, unequal", sites=1, hosts=2, unequal=4),
    Scenario(
        "two hosts of other effects", sites=1, hosts=2, host_spread=0.03, jobs=12, spread=0.01
    ),
    Scenario("6 sites, 6 jobs on 3 hosts"),
    Scenario("host effects of 3 %, 6 jobs on 3 hosts", host_spread=0.03),
    Scenario("host effects of 3 %, 24 jobs on 3 hosts", jobs=24, host_spread=0.03),
    Scenario("true +1 % everywhere, sd 1.2 %", Effect(0.01), spread=0.012),
    Scenario("3 sites, host effects of 3 %", sites=3, host_spread=0.03),
    Scenario(
        "6 sites on one host, its effect 3 %",
        hosts=1,
        spread=0.01,
        host_spread=0.03,
        shared_hosts=True,
    ),
    Scenario("20 sites, unequal hosts", sites=20, variants=2, unequal=4),
    Scenario("12 releases together", releases=12, variants=3),
    # The recorded scatter is so far below the default limit that nearly all rows are the same.  The
    # smaller limit tests the claims "different", "slower" and "faster" alone.
    *(
        Scenario(
            f"{title}, noise of a {label} machine, delta {100 * delta:g} %",
            sites=sites,
            variants=2,
            hosts=hosts,
            jobs=12,
            recorded=label,
            delta=delta,
        )
        for label in ("quiet", "busy")
        for title, sites, hosts in (("one host", 1, 1), ("one site", 1, 3), ("six sites", 6, 3))
        for delta in (DEFAULT_DELTA, 0.0001)
    ),
)
#: Planted change -> its effect, and the cause that must be named.
ATTRIBUTIONS = {
    "nothing": (NO_EFFECT, ""),
    "all +5 %": (Effect(0.05), "release"),
    "one site +10 %": (Effect(0.1, first_site=True), "site"),
    "cache=0 +10 %": (Effect(0.1, without_cache=True), "cache"),
}
#: Of a job: of paired mode, of a quiet and of a busy host.
SPREADS = (0.01, 0.03, 0.08)


def build_samples(scenario: Scenario, dice: np.random.Generator) -> list[Sample]:
    """Draw the executions of a campaign: one round a job, both metrics with half their noise alike."""
    samples: list[Sample] = []
    for site in range(scenario.sites):
        if site == 0 or not scenario.shared_hosts:
            hosts = dice.normal(0, scenario.host_spread, (scenario.releases, scenario.hosts))
        for variant in range(scenario.variants):
            for job in range(scenario.jobs):
                host = job % scenario.hosts
                spread = scenario.spread * (scenario.unequal if host == 0 else 1.0)
                cpu_noise, wall_noise = _draw_noise(scenario, spread, dice)
                effects = [
                    scenario.effect.size(site, variant) + hosts[release, host]
                    for release in range(scenario.releases)
                ]
                for side, effect in enumerate((0.0, *effects)):
                    cpu = 1e-3 * math.exp(effect + cpu_noise[side])
                    wall = 1e-3 * math.exp(effect + wall_noise[side])
                    name = f"host{host}" if scenario.shared_hosts else f"s{site:02d}-host{host}"
                    samples.append(_build_execution((site, variant, job, side), name, cpu, wall))
    return samples


def _draw_noise(
    scenario: Scenario, spread: float, dice: np.random.Generator
) -> tuple[Sequence[float], Sequence[float]]:
    """Draw the noise of all sides of a job in ln, of CPU and of wall time."""
    if scenario.recorded:
        launches = load_equal_launches()[scenario.recorded]
        launch = launches[dice.integers(len(launches))]
        sign = dice.choice((-1.0, 1.0))
        return (0.0, sign * launch.cpu_d), (0.0, sign * launch.wall_d)
    cpu = dice.normal(0, spread / math.sqrt(2), scenario.releases + 1)
    waits = dice.normal(0, 0.5 * spread, scenario.releases + 1)
    return cpu.tolist(), (cpu + waits).tolist()


def _build_execution(
    place: tuple[int, int, int, int], host: str, cpu: float, wall: float
) -> Sample:
    site, variant, job, side = place
    branches, cache = VARIANTS[variant]
    return make_sample(
        f"{site}-{variant}-{job}",
        str(side),
        {"root": f"6.{side:02d}", "branches": branches, "cache_mb": cache},
        site=f"s{site:02d}",
        host=host,
        loop_cpu_s=5.0,
        metrics=dict(zip(HEADLINE_METRICS, (cpu, wall), strict=True)),
    )


def compare_scenario(scenario: Scenario, dice: np.random.Generator) -> list[Comparison]:
    """Draw a campaign and compare all of its releases with the first together."""
    releases = [f"6.{side:02d}" for side in range(scenario.releases + 1)]
    queries = compare_with_first("root", releases, delta=scenario.delta, selection=Selection())
    return compare_together(build_samples(scenario, dice), queries, now_us=0)


def false_verdict_trial(scenario: Scenario, trial: int) -> Counter[str]:
    """Count wrong claims in one campaign, by claim and scope."""
    seed = (SEED, trial, FALSE_SCENARIOS.index(scenario))
    comparisons = compare_scenario(scenario, np.random.default_rng(seed))
    truths = _host_truths(scenario, np.random.default_rng(seed))
    tally = Counter[str]()
    for claim in ("slower or faster", "same", "different"):
        for scope in ("series", "sites"):
            tally[f"{claim}, {scope}"] += any(
                _is_wrong(row, claim, scenario, truths)
                for comparison in comparisons
                for row in (comparison.of_series if scope == "series" else comparison.over_sites)
            )
    return tally


def _host_truths(scenario: Scenario, dice: np.random.Generator) -> list[float]:
    """Draw the true mean effects of the first site's hosts by release, as campaigns do first."""
    hosts = dice.normal(0, scenario.host_spread, (scenario.releases, scenario.hosts))
    return [fmean(effects) for effects in hosts.tolist()]


def _find_truth(row: VerdictRow, scenario: Scenario, hosts: Sequence[float]) -> float:
    release = int(row.b.partition(".")[2]) - 1
    effect = scenario.effect.size(int(row.site[1:] or 0), 0)
    speaks_of_hosts = row.scope == HOST_SCOPE or (
        scenario.shared_hosts and row.evidence.tau is None
    )
    return effect + hosts[release] if speaks_of_hosts else effect


def _is_wrong(row: VerdictRow, claim: str, scenario: Scenario, hosts: Sequence[float]) -> bool:
    true = _find_truth(row, scenario, hosts)
    if claim == "slower or faster":
        beyond = true > scenario.delta if row.verdict == Verdict.SLOWER else true < -scenario.delta
        return row.verdict in CERTAIN_VERDICTS and not beyond
    if claim == "same":
        return row.verdict == Verdict.SAME and abs(true) >= scenario.delta
    return row.verdict == Verdict.DIFFERENT and true * (row.effect or 0.0) <= 0


def attribution_trial(effect: Effect, expected: str, spread: float, trial: int) -> Counter[str]:
    """Judge the attribution of one campaign at six sites (by CPU)."""
    dice = np.random.default_rng((SEED, trial, round(1e4 * spread)))
    (comparison,) = compare_scenario(Scenario("attribution", effect, spread=spread), dice)
    rows = [row for row in comparison.verdicts if row.metric == HEADLINE_METRICS[0]]
    sites = {row.site for row in comparison.of_series if row.evidence.site_shift}
    slower = [
        row.label for row in rows if row.scope == SITES_SCOPE and row.evidence.points_at_change
    ]
    tally = Counter(right=int(_name_cause(sites, slower) == expected))
    tally.update(_count_slower(rows, effect))
    return tally


def _count_slower(rows: Sequence[VerdictRow], effect: Effect) -> Counter[str]:
    """Count the rows with a true effect, and those of them that are slower, by scope."""
    tally = Counter[str]()
    for row in rows:
        if _true_effect(effect, row) > 0:
            scope = "sites" if row.scope == SITES_SCOPE else "series"
            tally[f"rows {scope}"] += 1
            tally[f"slower {scope}"] += row.verdict == Verdict.SLOWER
    return tally


def _name_cause(sites: Collection[str], slower: Collection[str]) -> str:
    """Name the cause that sites apart and variants slower over sites point at; '?' if unclear."""
    if sites:
        return "site" if set(sites) == {"s00"} and not slower else "?"
    if not slower:
        return ""
    if all("cache_mb=0" in label.split() for label in slower):
        return "cache"
    return "release" if len(slower) >= len(VARIANTS) - 1 else "?"


def _true_effect(effect: Effect, row: VerdictRow) -> float:
    """Return the true effect of a row; over sites that of a site like the others."""
    variant = 0 if "cache_mb=0" in row.label.split() else 1
    return effect.size(int(row.site[1:]) if row.site else 1, variant)


def measure(_: argparse.Namespace) -> list[RatioFigure]:
    """Simulate all scenarios."""
    with ProcessPoolExecutor() as pool:
        return [*_false_figures(pool), *_attribution_figures(pool)]


def _false_figures(pool: Executor) -> Iterator[RatioFigure]:
    for scenario in FALSE_SCENARIOS:
        total = _count_trials(pool, partial(false_verdict_trial, scenario), scenario.trials)
        for outcome, count in total.items():
            if scenario.sites > 1 or "sites" not in outcome:
                title = f"false verdicts: {scenario.title}, {outcome}"
                # A hundred simulated campaigns are too few to prove the claim.
                limit = CLAIMED_RATE if scenario.recorded else None
                yield share_figure(title, count, scenario.trials, limit)


def _attribution_figures(pool: Executor) -> Iterator[RatioFigure]:
    for (title, (effect, cause)), spread in product(ATTRIBUTIONS.items(), SPREADS):
        total = _count_trials(pool, partial(attribution_trial, effect, cause, spread), TRIAL_COUNT)
        scenario = f"{title}, sd {100 * spread:g} %"
        yield share_figure(f"attribution: {scenario}, right", total["right"], TRIAL_COUNT)
        for scope in ("series", "sites"):
            if rows := total[f"rows {scope}"]:
                slower = total[f"slower {scope}"]
                yield share_figure(f"power: {scenario}, slower, {scope}", slower, rows)


def _count_trials(
    pool: Executor, run_trial: Callable[[int], Counter[str]], count: int
) -> Counter[str]:
    """Run trials by their numbers, which seed them, and add up their counts."""
    total = Counter[str]()
    for tally in pool.map(run_trial, range(count), chunksize=10):
        total.update(tally)
    return total
