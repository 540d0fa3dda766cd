"""Posterior over the positions of steps in a row of builds, from noisy paired jobs.

The effect of a build is its level in ln(build/GOOD).  Builds without a change have the level of
GOOD, 0; a step begins a new level.  Three kinds of hypotheses compete: no step, one step at build k,
and two steps at builds j < k.  Levels and noise are unknown: with a normal prior for levels in units
of the noise and an inverse gamma prior for its variance, every marginal likelihood is a closed
formula (normal inverse gamma regression; Gelman et al., Bayesian Data Analysis, 3rd ed., 14.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import special

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


@dataclass(frozen=True)
class JobEffect:
    """ln(build/GOOD) of one paired job."""

    build: int
    effect: float


@dataclass(frozen=True)
class LevelEstimate:
    """Student's t distribution of a level or of a step, in ln."""

    mean: float
    scale: float
    df: float

    def interval(self, level: float = 0.05) -> tuple[float, float]:
        """Compute the interval that misses the true value with probability ``level``."""
        half = -float(special.stdtrit(self.df, level / 2)) * self.scale
        return self.mean - half, self.mean + half


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

    def __init__(self, builds: int, jobs: Iterable[JobEffect]) -> None:
        self.builds = builds
        self.jobs = tuple(jobs)
        builds_of_jobs = np.array([job.build for job in self.jobs], dtype=np.int64)
        effect = np.array([job.effect for job in self.jobs], dtype=float)
        self.counts = np.bincount(builds_of_jobs, minlength=builds).astype(float)
        sums = np.bincount(builds_of_jobs, effect, minlength=builds)
        self.means = np.divide(sums, self.counts, out=np.zeros(builds), where=self.counts > 0)
        residual_squares = float(np.sum((effect - self.means[builds_of_jobs]) ** 2))
        weights = self.counts / (1 + BUILD_VARIANCE * self.counts)
        self._weight = np.concatenate([[0.0], np.cumsum(weights)])
        self._moment = np.concatenate([[0.0], np.cumsum(weights * self.means)])
        self._squares = residual_squares + float(np.sum(weights * self.means**2))
        self.shape = (PRIOR_JOBS + len(self.jobs)) / 2

    @cached_property
    def hypotheses(self) -> Hypotheses:
        """Hypotheses with more than a negligible probability, which sums to 1."""
        first, second = self._list_steps()
        log = self._log_prior(first, second) + self._log_likelihood(first, second)
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

    def estimate_step(self, first: int, second: int, *, at_second: bool = False) -> LevelEstimate:
        """Estimate the size of the first or the second step of a hypothesis."""
        first_build, second_build = np.array([first]), np.array([second])
        end = np.where(second_build > 0, second_build, self.builds)
        mean, variance = self.level(first_build, end)
        if at_second:
            later_mean, later_variance = self.level(second_build, np.array([self.builds]))
            mean, variance = later_mean - mean, variance + later_variance
        noise = self.noise_variance(first_build, second_build)
        scale = math.sqrt(float((variance * noise)[0]))
        return LevelEstimate(float(mean[0]), scale, 2 * self.shape)

    def estimate_last_level(self) -> LevelEstimate:
        """Estimate BAD's level from its own jobs alone."""
        return self.estimate_step(self.builds - 1, 0)

    def _list_steps(self) -> tuple[Indices, Indices]:
        """List every hypothesis: no step, one at each build, and every pair."""
        single = np.arange(1, self.builds)
        j, k = np.triu_indices(self.builds - 1, 1)
        none = np.zeros(1, dtype=np.int64)
        first = np.concatenate([none, single, j + 1])
        second = np.concatenate([none, np.zeros(len(single), dtype=np.int64), k + 1])
        return first, second

    def _log_prior(self, first: Indices, second: Indices) -> Floats:
        kind = (first > 0).astype(int) + (second > 0)
        sizes = np.bincount(kind, minlength=3)
        shares: Floats = np.log(np.asarray(PRIOR_SHARES) / np.maximum(sizes, 1))
        return np.asarray(shares[kind])

    def _log_likelihood(self, first: Indices, second: Indices) -> Floats:
        explained, occam = self._explain(first, second)
        result: Floats = occam - self.shape * np.log(self._scale(explained))
        return result

    def _scale(self, explained: Floats) -> Floats:
        prior = PRIOR_JOBS / 2 * PRIOR_NOISE**2
        # Rounding may leave less than nothing of exactly explained effects.
        return prior + np.maximum(self._squares - explained, 0.0) / 2

    def _explain(self, first: Indices, second: Indices) -> tuple[Floats, Floats]:
        """Sum over the levels: squares that they explain, and the log of their Occam factors."""
        end = np.where(second > 0, second, self.builds)
        first_level = self._explain_level(first, end)
        second_level = self._explain_level(second, np.full_like(second, self.builds))
        has_one, has_two = first > 0, second > 0
        explained = np.where(has_one, first_level[0], 0.0) + np.where(has_two, second_level[0], 0.0)
        occam = np.where(has_one, first_level[1], 0.0) + np.where(has_two, second_level[1], 0.0)
        return explained, occam

    def _explain_level(self, start: Indices, end: Indices) -> tuple[Floats, Floats]:
        weight = self._weight[end] - self._weight[start]
        moment = self._moment[end] - self._moment[start]
        explained: Floats = moment**2 / (weight + LEVEL_SCALE**-2)
        return explained, -np.log1p(weight * LEVEL_SCALE**2) / 2
