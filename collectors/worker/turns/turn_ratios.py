"""Estimate of ln(B/A) from the times of both sides' turns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence, Tuple

#: Share of the weight that is cut from either end of the ratios.
TRIMMED_SHARE = 0.2


@dataclass(frozen=True)
class RatioEstimate:
    """Trimmed mean of ln(B/A) over the segments of a launch, and their standard deviation."""

    mean: float
    sd: float


def estimate_ratio(base: Sequence[int], other: Sequence[int]) -> RatioEstimate:
    """Estimate ln(B/A) from the times of both sides' turns, robust against disturbed turns.

    Segments differ in their work, since a basket is unzipped at its first entry.  Each therefore
    weighs by its time, as it would in the ratio of the sums: that of the faster side, since a
    disturbance only makes a turn longer.

    Raises:
        ValueError: no segment has positive times.
    """
    times = [(base[index], other[index]) for index in range(len(base))]
    found = [(math.log(b / a), float(min(a, b))) for a, b in times if a > 0 and b > 0]
    if not found:
        raise ValueError("no segment has positive times")
    total = math.fsum(weight for _, weight in found)
    mean = math.fsum(ratio * weight for ratio, weight in found) / total
    variance = math.fsum(weight * (ratio - mean) ** 2 for ratio, weight in found) / total
    return RatioEstimate(compute_trimmed_mean(found), math.sqrt(variance))


def compute_trimmed_mean(weighted: Sequence[Tuple[float, float]]) -> float:
    """Compute the mean of (value, weight) without :data:`TRIMMED_SHARE` of the weight at each end."""
    total = math.fsum(weight for _, weight in weighted)
    low, high = TRIMMED_SHARE * total, (1 - TRIMMED_SHARE) * total
    below, terms, kept = 0.0, [], []
    for value, weight in sorted(weighted):
        inside = max(0.0, min(below + weight, high) - max(below, low))
        terms.append(value * inside)
        kept.append(inside)
        below += weight
    return math.fsum(terms) / math.fsum(kept)
