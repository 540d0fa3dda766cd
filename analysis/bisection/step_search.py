"""Search for the build that changed a noisy metric: state, next build and conclusion."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import numpy as np

from treehammer.analysis.bisection.probe_choice import choose_build
from treehammer.analysis.bisection.step_posterior import (
    Floats,
    JobEffect,
    LevelEstimate,
    StepPosterior,
)

#: Builds of a search at most: hypotheses grow with their square.
MAX_BUILDS = 1000
DEFAULT_CERTAINTY = 0.95
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

    @property
    def is_decided(self) -> bool:
        """Whether the search may end."""
        return self.outcome is not SearchOutcome.UNDECIDED


@dataclass(frozen=True)
class StepSearch:
    """State of a search over ``builds`` builds: 0 is GOOD, the last one BAD.

    ``skipped`` holds the builds that cannot be measured.
    """

    builds: int
    certainty: float = DEFAULT_CERTAINTY
    jobs: tuple[JobEffect, ...] = ()
    skipped: frozenset[int] = field(default_factory=frozenset)

    def add_effects(self, build: int, effects: Collection[float]) -> StepSearch:
        """Return the search with the effects of further jobs of a build."""
        jobs = tuple(JobEffect(build, effect) for effect in effects)
        return replace(self, jobs=(*self.jobs, *jobs))

    def choose_next(self) -> int:
        """Choose the build to measure next: BAD first, then the most informative one.

        A build beside an otherwise certain step that was measured by one job is measured again.
        """
        if not self.jobs:
            return self.builds - 1
        _, steps, certainty = self._explanation
        if certainty >= self.certainty and (side := self._find_unconfirmed_side(steps)):
            return side
        return choose_build(self._posterior, self._list_measurable())

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
        level = posterior.estimate_last_level() if posterior.counts[-1] else None
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
        return self._find_explanation(self._posterior)

    def _find_unconfirmed_side(self, steps: tuple[FoundStep, ...]) -> int:
        """Find a build beside a step that has too few jobs; 0 if there is none.

        GOOD, build 0, is measured by every job.
        """
        sides = (side for step in steps for side in (step.last, step.first - 1) if side)
        counts = self._posterior.counts
        return next((side for side in sides if counts[side] < MIN_SIDE_JOBS), 0)

    def _list_measurable(self) -> list[int]:
        return [build for build in range(1, self.builds) if build not in self.skipped]

    def _group_starts(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Map each build to the next measurable one; steps in between are indistinguishable."""
        following = np.arange(self.builds)
        for build in range(self.builds - 2, -1, -1):
            if build in self.skipped:
                following[build] = following[build + 1]
        return following

    def _find_explanation(
        self, posterior: StepPosterior
    ) -> tuple[SearchOutcome, tuple[FoundStep, ...], float]:
        """Find the likeliest explanation: steps at certain (groups of) builds."""
        hypotheses, group = posterior.hypotheses, self._group_starts()
        first, second = (
            group[hypotheses.first],
            np.where(hypotheses.second > 0, group[hypotheses.second], 0),
        )
        keys = first * self.builds + second
        pairs, inverse = np.unique(keys, return_inverse=True)
        shares = np.bincount(inverse.ravel(), hypotheses.probability)
        best = int(np.argmax(shares))
        certainty = float(shares[best])
        earlier, later = divmod(int(pairs[best]), self.builds)
        if not earlier:
            return SearchOutcome.UNCHANGED, (), certainty
        if not later or earlier == later:  # two steps in one group look like one
            size = posterior.estimate_step(earlier, 0)
            return SearchOutcome.STEP, (self._make_step(earlier, certainty, size),), certainty
        sizes = (posterior.estimate_step(earlier, later, at_second=b) for b in (False, True))
        where = zip((earlier, later), (first, second), sizes, strict=True)
        steps = tuple(
            self._make_step(build, self._sum_share(hypotheses.probability, build, starts), size)
            for build, starts, size in where
        )
        return SearchOutcome.SEVERAL_STEPS, steps, certainty

    @staticmethod
    def _sum_share(
        probability: Floats, build: int, starts: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> float:
        return float(probability[starts == build].sum())

    def _make_step(self, build: int, certainty: float, size: LevelEstimate) -> FoundStep:
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
