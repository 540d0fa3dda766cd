"""Search for the build that changed a metric: posterior, choice of the next build, and conclusion.

For a noisy metric, the effect of a build is its level in ln(build/GOOD).  Builds without a change have
the level of GOOD, 0; a step begins a new level.  Three kinds of hypotheses compete: no step, one step
at build k, and two steps at builds j < k.  Levels and noise are unknown: with a normal prior for levels
in units of the noise and an inverse gamma prior for its variance, every marginal likelihood is a closed
formula (normal inverse gamma regression; Gelman et al., Bayesian Data Analysis, 3rd ed., 14.2).  The
next build is the one whose job is expected to remove the most uncertainty.  For an exact counter, one
job of each build decides: plain halving.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treehammer.analysis.comparison.series_changes import log_ratio
from treehammer.analysis.statistics.estimates import Estimate
from treehammer.analysis.statistics.verdict import DEFAULT_CERTAINTY

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

#: Probabilities of no step, one step and two before any measurement.
PRIOR_SHARES = (0.15, 0.75, 0.10)
#: Expected noise of one paired job in ln, and the number of jobs that this expectation is worth.
PRIOR_NOISE, PRIOR_JOBS = 0.01, 4.0
#: Standard deviation of levels before any measurement, in units of the noise.
LEVEL_SCALE = 50.0
#: Variance between builds without a change, in units of a job's: code moves to other addresses.
BUILD_VARIANCE = 0.1
#: Hypotheses with a smaller share of the probability are not followed.
NEGLIGIBLE = 1e-6
#: Build of one paired job, and its ln(build/GOOD).
JobEffect = tuple[int, float]


@dataclass(frozen=True)
class Hypotheses:
    """Hypotheses that matter: ``first`` and ``second`` are the steps' builds, 0 for none."""

    probability: Floats
    first: Indices
    second: Indices


class StepPosterior:
    """Probabilities of all hypotheses given the jobs measured so far.

    Args:
        builds: number of builds; build 0 is GOOD, the last one BAD.
        jobs: effects of paired jobs, in any order.
    """

    def __init__(self, builds: int, jobs: Sequence[JobEffect]) -> None:
        self.builds = builds
        builds_of_jobs = np.array([build for build, _ in jobs], dtype=np.int64)
        effect = np.array([effect for _, effect in jobs], dtype=float)
        self.counts = np.bincount(builds_of_jobs, minlength=builds).astype(float)
        sums = np.bincount(builds_of_jobs, effect, minlength=builds)
        self.means = np.divide(sums, self.counts, out=np.zeros(builds), where=self.counts > 0)
        residual_squares = float(np.sum((effect - self.means[builds_of_jobs]) ** 2))
        weights = self.counts / (1 + BUILD_VARIANCE * self.counts)
        self._weight = np.concatenate([[0.0], np.cumsum(weights)])
        self._moment = np.concatenate([[0.0], np.cumsum(weights * self.means)])
        self._squares = residual_squares + float(np.sum(weights * self.means**2))
        self.shape = (PRIOR_JOBS + len(jobs)) / 2

    @cached_property
    def hypotheses(self) -> Hypotheses:
        """Hypotheses with more than a negligible probability, which sums to 1."""
        # No step, one at each build, and every pair.
        j, k = np.triu_indices(self.builds - 1, 1)
        zeros = np.zeros(self.builds, dtype=np.int64)
        first = np.concatenate([np.arange(self.builds), j + 1])
        second = np.concatenate([zeros, k + 1])
        kind = (first > 0).astype(int) + (second > 0)
        shares = np.asarray(PRIOR_SHARES) / np.maximum(np.bincount(kind, minlength=3), 1)
        explained, occam = self._explain(first, second)
        log = np.log(shares)[kind] + occam - self.shape * np.log(self._scale(explained))
        probability = np.exp(log - log.max())
        probability /= probability.sum()
        likely = probability > NEGLIGIBLE
        return Hypotheses(
            probability[likely] / probability[likely].sum(), first[likely], second[likely]
        )

    @cached_property
    def gaps(self) -> Indices:
        """Number the gaps between measured builds: steps in one gap explain the jobs equally well."""
        return np.concatenate([[0], np.cumsum(self.counts[:-1] > 0) + 1])

    def level(self, start: Indices, end: Indices) -> tuple[Floats, Floats]:
        """Return mean and variance, in units of the noise's, of the level of builds [start, end)."""
        weight = self._weight[end] - self._weight[start] + LEVEL_SCALE**-2
        return (self._moment[end] - self._moment[start]) / weight, 1 / weight

    def noise_variance(self, first: Indices, second: Indices) -> Floats:
        """Return the variance of a job's noise under each hypothesis."""
        explained, _ = self._explain(first, second)
        return self._scale(explained) / self.shape

    def estimate_step(self, first: int, second: int, *, at_second: bool = False) -> Estimate:
        """Estimate the size of the first or the second step of a hypothesis."""
        first_build, second_build = np.array([first]), np.array([second])
        end = np.where(second_build > 0, second_build, self.builds)
        mean, variance = self.level(first_build, end)
        if at_second:
            later_mean, later_variance = self.level(second_build, np.array([self.builds]))
            mean, variance = later_mean - mean, variance + later_variance
        noise = self.noise_variance(first_build, second_build)
        scale = math.sqrt(float((variance * noise)[0]))
        return Estimate(float(mean[0]), scale, 2 * self.shape)

    def _scale(self, explained: Floats) -> Floats:
        prior = PRIOR_JOBS / 2 * PRIOR_NOISE**2
        # Rounding may leave less than nothing of exactly explained effects.
        return prior + np.maximum(self._squares - explained, 0.0) / 2

    def _explain(self, first: Indices, second: Indices) -> tuple[Floats, Floats]:
        """Sum over the levels: squares that they explain, and the log of their Occam factors."""
        explained, occam = np.zeros(len(first)), np.zeros(len(first))
        last = np.full_like(second, self.builds)
        for start, end in ((first, np.where(second > 0, second, last)), (second, last)):
            weight = np.where(start > 0, self._weight[end] - self._weight[start], 0.0)
            moment = np.where(start > 0, self._moment[end] - self._moment[start], 0.0)
            explained += moment**2 / (weight + LEVEL_SCALE**-2)
            occam -= np.log1p(weight * LEVEL_SCALE**2) / 2
        return explained, occam


#: Nodes and weights for expectations over a normal distribution.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def expect_information(posterior: StepPosterior, build: int) -> float:
    """Compute the expected information of one more job, in nats.

    This is the mutual information of the job's effect and the hypothesis.
    """
    hypotheses = _merge_equal(posterior, build)
    share = hypotheses.probability
    if len(share) == 1:
        return 0.0
    mean, scale = _predict_effect(posterior, hypotheses, build)
    # Rows: the hypothesis from which an effect is drawn, at each node; columns: every hypothesis.
    effects = mean[:, None] + scale[:, None] * _NODES
    distance = (effects[:, :, None] - mean) / scale
    density = np.exp(-(distance**2) / 2) / scale
    undiluted = np.exp(-(_NODES**2) / 2) / scale[:, None]
    mixed = density @ share
    return float(share @ (np.log(undiluted / mixed) @ _WEIGHTS))


def _merge_equal(posterior: StepPosterior, build: int) -> Hypotheses:
    """Merge hypotheses that predict the same for a build.

    They agree on the measured builds that each level covers, and on the level of this build.
    """
    hypotheses, gap = posterior.hypotheses, posterior.gaps
    width = 2 * (int(gap[-1]) + 1)
    codes = (2 * gap[hypotheses.first] + (hypotheses.first <= build)) * width
    codes += 2 * gap[hypotheses.second] + (hypotheses.second <= build)
    share: Floats = np.bincount(codes, hypotheses.probability).astype(float)
    representatives = np.zeros(len(share), dtype=np.int64)
    representatives[codes] = np.arange(len(codes))
    possible = np.flatnonzero(share)
    return Hypotheses(
        share[possible],
        hypotheses.first[representatives[possible]],
        hypotheses.second[representatives[possible]],
    )


def _predict_effect(
    posterior: StepPosterior, hypotheses: Hypotheses, build: int
) -> tuple[Floats, Floats]:
    """Predict the effect of one more job of a build under each hypothesis: mean and spread."""
    first, second = hypotheses.first, hypotheses.second
    in_second = (second > 0) & (second <= build)
    changed = (first > 0) & (first <= build)
    start = np.where(in_second, second, np.where(changed, first, 0))
    end = np.where(in_second | (second == 0), posterior.builds, second)
    mean, variance = posterior.level(start, end)
    mean, variance = np.where(changed, mean, 0.0), np.where(changed, variance, 0.0)
    count = posterior.counts[build]
    pull = BUILD_VARIANCE * count / (1 + BUILD_VARIANCE * count)
    spread = 1 + BUILD_VARIANCE / (1 + BUILD_VARIANCE * count) + (1 - pull) ** 2 * variance
    noise = posterior.noise_variance(first, second)
    return mean * (1 - pull) + pull * posterior.means[build], np.sqrt(spread * noise)


#: Builds of a search at most: hypotheses grow with their square.
MAX_BUILDS = 1000
#: Jobs of the builds on both sides of a step: a single one may have been disturbed.
MIN_SIDE_JOBS = 2


class SearchOutcome(Enum):
    """Result of a search."""

    STEP = "step"
    SEVERAL_STEPS = "several steps"
    UNCHANGED = "unchanged"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class FoundStep:
    """A step in the row of builds.

    The first changed build is one of ``first`` … ``last``: they are one build, unless those in
    between could not be measured.  ``effect`` is the size in ln and None where it was not measured.
    """

    first: int
    last: int
    certainty: float
    effect: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Conclusion:
    """Result of a search at some moment.

    Attributes:
        outcome: conclusion from the measurements at the requested certainty.
        certainty: probability of that; of the likeliest explanation while undecided.
        steps: its steps, in order of builds.
        candidates: first and last build that may have changed the metric, with 95 % probability.
        last_level: BAD's effect (mean, low, high in ln); None where it was not measured.
        shares: probability of no step, one step, and two or more.
    """

    outcome: SearchOutcome
    certainty: float
    steps: tuple[FoundStep, ...]
    candidates: tuple[int, int]
    last_level: tuple[float, float, float] | None = None
    shares: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class StepSearch:
    """State of a search over ``builds`` builds: 0 is GOOD, the last one BAD.

    ``jobs`` holds the measured effects, ``skipped`` the builds that cannot be measured.
    """

    builds: int
    certainty: float = DEFAULT_CERTAINTY
    jobs: tuple[JobEffect, ...] = ()
    skipped: frozenset[int] = field(default_factory=frozenset)

    def choose_next(self) -> int:
        """Choose the build to measure next: BAD first, then the first of the most informative ones.

        A build beside an otherwise certain step that was measured by one job is measured again.
        """
        if not self.jobs:
            return self.builds - 1
        _, steps, certainty = self._explanation
        if certainty >= self.certainty and (side := self._find_unconfirmed_side(steps)):
            return side
        measurable = [build for build in range(1, self.builds) if build not in self.skipped]
        return max(measurable, key=lambda build: expect_information(self._posterior, build))

    def conclude(self) -> Conclusion:
        """Conclude from the jobs measured so far."""
        posterior = self._posterior
        hypotheses = posterior.hypotheses
        kind = (hypotheses.first > 0).astype(int) + (hypotheses.second > 0)
        shares = np.bincount(kind, hypotheses.probability, minlength=3)
        likeliest, steps, certainty = self._explanation
        outcome = SearchOutcome.UNDECIDED
        if certainty >= self.certainty and not self._find_unconfirmed_side(steps):
            outcome = likeliest
        # BAD's level from its own jobs alone.
        level = posterior.estimate_step(self.builds - 1, 0) if posterior.counts[-1] else None
        return Conclusion(
            outcome,
            certainty,
            steps,
            self._find_candidates(posterior),
            None if level is None else (level.mean, *level.interval()),
            (float(shares[0]), float(shares[1]), float(shares[2])),
        )

    @cached_property
    def _posterior(self) -> StepPosterior:
        return StepPosterior(self.builds, self.jobs)

    @cached_property
    def _explanation(self) -> tuple[SearchOutcome, tuple[FoundStep, ...], float]:
        """The likeliest explanation: steps at certain (groups of) builds."""
        hypotheses, group = self._posterior.hypotheses, self._group_starts()
        first = group[hypotheses.first]
        second = np.where(hypotheses.second > 0, group[hypotheses.second], 0)
        keys = first * self.builds + second
        pairs, inverse = np.unique(keys, return_inverse=True)
        shares = np.bincount(inverse.ravel(), hypotheses.probability)
        best = int(np.argmax(shares))
        certainty = float(shares[best])
        earlier, later = divmod(int(pairs[best]), self.builds)
        if not earlier:
            return SearchOutcome.UNCHANGED, (), certainty
        if not later or earlier == later:  # two steps in one group look like one
            size = self._posterior.estimate_step(earlier, 0)
            return SearchOutcome.STEP, (self._make_step(earlier, certainty, size),), certainty
        sizes = (self._posterior.estimate_step(earlier, later, at_second=b) for b in (False, True))
        where = zip((earlier, later), (first, second), sizes, strict=True)
        steps = tuple(
            self._make_step(build, float(hypotheses.probability[starts == build].sum()), size)
            for build, starts, size in where
        )
        return SearchOutcome.SEVERAL_STEPS, steps, certainty

    def _find_unconfirmed_side(self, steps: tuple[FoundStep, ...]) -> int:
        """Find a build beside a step that has too few jobs; 0 if there is none.

        GOOD, build 0, is measured by every job.
        """
        sides = (side for step in steps for side in (step.last, step.first - 1) if side)
        counts = self._posterior.counts
        return next((side for side in sides if counts[side] < MIN_SIDE_JOBS), 0)

    def _group_starts(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Map each build to the next measurable one; steps in between are indistinguishable."""
        following = np.arange(self.builds)
        for build in range(self.builds - 2, -1, -1):
            if build in self.skipped:
                following[build] = following[build + 1]
        return following

    def _make_step(self, build: int, certainty: float, size: Estimate) -> FoundStep:
        first = build
        while first - 1 in self.skipped:
            first -= 1
        return FoundStep(first, build, certainty, size.mean, *size.interval())

    def _find_candidates(self, posterior: StepPosterior) -> tuple[int, int]:
        """Find the range of builds that holds the first step with 95 % probability."""
        hypotheses = posterior.hypotheses
        share = np.bincount(hypotheses.first, hypotheses.probability, minlength=self.builds)[1:]
        if not share.sum():
            return 1, self.builds - 1
        total = np.cumsum(share / share.sum())
        low, high = np.searchsorted(total, [0.025, 0.975])
        return int(low) + 1, min(int(high) + 1, self.builds - 1)


@dataclass(frozen=True)
class CounterSearch:
    """State of a search: ``values`` holds the counter of GOOD (build 0) and of measured builds."""

    builds: int
    values: Mapping[int, float] = field(default_factory=dict)
    skipped: frozenset[int] = field(default_factory=frozenset)

    def choose_next(self) -> int:
        """Choose the build to measure next: BAD first, then the middle of those left."""
        if not self.values:
            return self.builds - 1
        last_same, first_changed = self._bracket()
        remaining = self._list_between(last_same, first_changed)
        middle = (last_same + first_changed) / 2
        return min(remaining, key=lambda build: abs(build - middle))

    def conclude(self) -> Conclusion:
        """Conclude from the values measured so far."""
        if not self.values:
            return Conclusion(SearchOutcome.UNDECIDED, 0.0, (), (1, self.builds - 1))
        good, bad = self.values[0], self.values[self.builds - 1]
        last_same, first_changed = self._bracket()
        level = log_ratio(good, bad)
        last_level = None if level is None else (level, level, level)
        if good == bad:
            all_builds = (1, self.builds - 1)
            return Conclusion(SearchOutcome.UNCHANGED, 1.0, (), all_builds, last_level)
        if self._list_between(last_same, first_changed):
            certainty = 1 / (first_changed - last_same)
            remaining = (last_same + 1, first_changed)
            return Conclusion(SearchOutcome.UNDECIDED, certainty, (), remaining, last_level)
        steps = [self._make_step(last_same, first_changed)]
        outcome = SearchOutcome.STEP
        if self.values[first_changed] != bad:
            outcome = SearchOutcome.SEVERAL_STEPS
            last_unchanged = max(build for build, counter in self.values.items() if counter != bad)
            first_bad = min(build for build in self.values if build > last_unchanged)
            steps.append(self._make_step(last_unchanged, first_bad))
        return Conclusion(outcome, 1.0, tuple(steps), (last_same + 1, first_changed), last_level)

    def _make_step(self, before: int, after: int) -> FoundStep:
        size = log_ratio(self.values[before], self.values[after])
        return FoundStep(before + 1, after, 1.0, size, size, size)

    def _bracket(self) -> tuple[int, int]:
        """Return the last build before the first known change, and the build with that change."""
        good = self.values[0]
        others = (build for build, value in self.values.items() if value != good)
        changed = min(others, default=self.builds - 1)
        return max(b for b, value in self.values.items() if value == good and b < changed), changed

    def _list_between(self, low: int, high: int) -> list[int]:
        return [b for b in range(low + 1, high) if b not in self.skipped and b not in self.values]
