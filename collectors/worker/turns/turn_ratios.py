"""Estimate of ln(B/A) from the times of both sides' turns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Sequence, Tuple

#: Share that is cut from either end: of a segment's repetitions, or of the weight of all ratios.
TRIMMED_SHARE = 0.2
#: Passes from which a segment has repetitions, so that disturbed ones can be left out.
MIN_PASSES = 2
#: The longer of two times of a segment was disturbed if it exceeds the shorter one by this factor.
DISTURBED_RATIO = 1.25


@dataclass(frozen=True)
class RatioEstimate:
    """ln(B/A) of a launch, and the standard deviation of its segments' ratios."""

    mean: float
    sd: float


def estimate_ratio(base: Sequence[int], other: Sequence[int], passes: int) -> RatioEstimate:
    """Estimate ln(B/A) from the times of both sides' turns, robust against disturbed turns.

    Every pass has the same segments.  The time of a segment is the trimmed mean over its passes (of
    two passes the mean, or the shorter time if the other was disturbed), and the times of all
    segments add up, so that work which differs in a few segments counts in full.  With a single
    pass, the segments' ratios are trimmed instead, which finds too little of such a difference.

    Args:
        base: times of the base's turns in nanoseconds, pass after pass.
        other: those of the other side.
        passes: number of passes.

    Raises:
        ValueError: no segment has positive times.
    """
    # A disturbance only makes a turn longer, so a segment weighs by the faster side.
    pairs = [(base[index], other[index]) for index in range(len(base))]
    ratios = [(math.log(b / a), float(min(a, b))) for a, b in pairs if a > 0 and b > 0]
    if not ratios:
        raise ValueError("no segment has positive times")
    sd = _compute_deviation(ratios)
    if passes >= MIN_PASSES:
        base_sum, other_sum = _sum_segments(base, passes), _sum_segments(other, passes)
        if base_sum > 0 and other_sum > 0:
            return RatioEstimate(math.log(other_sum / base_sum), sd)
    return RatioEstimate(compute_trimmed_mean(ratios), sd)


def _compute_deviation(weighted: Sequence[Tuple[float, float]]) -> float:
    """Compute the standard deviation of (value, weight)."""
    total = math.fsum(weight for _, weight in weighted)
    mean = math.fsum(value * weight for value, weight in weighted) / total
    return math.sqrt(math.fsum(weight * (value - mean) ** 2 for value, weight in weighted) / total)


def _sum_segments(times: Sequence[int], passes: int) -> float:
    """Sum the segments' times, each a robust mean over its repetitions."""
    count = len(times) // passes
    repetitions = (sorted(times[segment::count]) for segment in range(count))
    return math.fsum(fmean(_leave_out_disturbed(segment_times)) for segment_times in repetitions)


def _leave_out_disturbed(times: Sequence[int]) -> Sequence[int]:
    """Leave out the shortest and longest times, or the longer of two if it was disturbed."""
    cut = max(1, int(TRIMMED_SHARE * len(times)))
    if len(times) > 2 * cut:
        return times[cut:-cut]
    # Always the shorter time would favor the side with more noise.
    return times if times[1] <= DISTURBED_RATIO * times[0] else times[:1]


def compute_trimmed_mean(weighted: Sequence[Tuple[float, float]]) -> float:
    """Compute the mean of (value, weight) without :data:`TRIMMED_SHARE` of the weight at each end."""
    total = math.fsum(weight for _, weight in weighted)
    low, high = TRIMMED_SHARE * total, (1 - TRIMMED_SHARE) * total
    below, terms, weights = 0.0, [], []
    for value, weight in sorted(weighted):
        inside = max(0.0, min(below + weight, high) - max(below, low))
        terms.append(value * inside)
        weights.append(inside)
        below += weight
    return math.fsum(terms) / math.fsum(weights)
