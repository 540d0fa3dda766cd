"""Scatter, and Student's t, F and chi-squared distributions without SciPy.

Continued fractions and series are those of Numerical Recipes, chapter 6.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import lru_cache
from operator import mul
from statistics import NormalDist, median

_EPSILON = 1e-15
#: Standard deviation of a normal distribution over its median absolute deviation.
_SIGMA_PER_DEVIATION = 1.4826


def student_tail(df: float, t: float) -> float:
    """Compute the probability that Student's t exceeds ``t``."""
    if abs(t) < 1:  # where the difference of df / (df + t²) from 1 would lose its digits
        return 0.5 - math.copysign(_incomplete_beta(0.5, df / 2, t * t / (df + t * t)) / 2, t)
    tail = _incomplete_beta(df / 2, 0.5, df / (df + t * t)) / 2
    return tail if t >= 0 else 1 - tail


@lru_cache(4096)
def student_quantile(df: float, p: float) -> float:
    """Compute the value that Student's t exceeds with probability ``p``, which is below one half."""
    t, step = -NormalDist().inv_cdf(p), 1.0
    constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    while abs(step) > 1e-8:  # the next one would be below the precision of numbers
        density = math.exp(constant - (df + 1) / 2 * math.log1p(t * t / df))
        tail = student_tail(df, t)
        # Newton's step on logarithms, in which heavy tails are straight lines.
        step = math.log(tail / p) * tail / (t * density)
        t *= math.exp(step)
    return t


def shifted_student_tail(df: float, t: float, shift: float) -> float:
    """Compute the probability to 6 digits that Student's t, not central by ``shift``, exceeds ``t``.

    It is the mean of a normal probability over the logarithm of the spread, by the trapezoidal rule.
    """
    reach = math.sqrt(30 / df)
    step = max(min(0.25, 0.5 / math.sqrt(df + shift**2)), reach**2 / 1000)
    nodes = [math.exp(step * i) for i in range(-int((reach**2 + reach) / step), int(reach / step))]
    weights = [math.exp(df * (math.log(node) - (node * node - 1) / 2)) for node in nodes]
    tails = (math.erfc((t * node - shift) / math.sqrt(2)) / 2 for node in nodes)
    return math.fsum(map(mul, weights, tails)) / math.fsum(weights)


def f_tail(df1: float, df2: float, ratio: float) -> float:
    """Compute the probability that F with these degrees of freedom exceeds ``ratio``."""
    return _incomplete_beta(df2 / 2, df1 / 2, df2 / (df2 + df1 * ratio))


def chi_squared_quantile(df: float, p: float) -> float:
    """Compute the value that chi-squared exceeds with probability ``p``, to 6 digits, by bisection."""
    low, high = 0.0, df + 10 * math.sqrt(df) + 20
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        # F whose second degrees of freedom make no difference.
        low, high = (middle, high) if f_tail(df, 1e7, middle / df) > p else (low, middle)
    return high


def measure_scatter(values: Collection[float]) -> tuple[float, float]:
    """Measure the median, and the standard deviation by the median absolute deviation."""
    middle = median(values)
    return middle, _SIGMA_PER_DEVIATION * median(abs(value - middle) for value in values)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Compute the regularized incomplete beta function."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    if x <= 0:
        return 0.0
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logarithm + a * math.log(x) + b * math.log1p(-x)) / a
    d, c, fraction = 0.0, 1.0, 1.0
    for k in range(1, 20_000):
        m = k // 2
        term = (-(a + m) * (a + b + m) if k % 2 else m * (b - m)) * x / ((a + k - 1) * (a + k))
        d, c = 1 / (1 + term * d), 1 + term / c
        fraction *= d * c
        if abs(d * c - 1) < _EPSILON:
            break
    return front / fraction
