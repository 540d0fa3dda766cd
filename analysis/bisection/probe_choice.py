"""Choice of the next build: the one whose job is expected to remove the most uncertainty."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from treehammer.analysis.bisection.step_posterior import (
    BUILD_VARIANCE,
    Floats,
    Hypotheses,
    StepPosterior,
)

#: Nodes and weights for expectations over a normal distribution.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def choose_build(posterior: StepPosterior, candidates: Iterable[int]) -> int:
    """Choose the build with the highest expected reduction of entropy; the first of equals."""
    gains = {build: expect_information(posterior, build) for build in candidates}
    return max(gains, key=lambda build: gains[build])


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
