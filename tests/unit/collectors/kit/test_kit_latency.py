"""Percentiles of read latencies, compared with the exact ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from treehammer.collectors.kit.treehammer_kit.pass_summary import LATENCY_PARTS, latency_percentile
from treehammer.collectors.record.metric_catalogue import LATENCY_BINS


def counted(latencies_us: np.ndarray) -> list[int]:
    """Count reads by latency as accounts.hpp does."""
    edges = [2.0 * part / LATENCY_PARTS for part in range(LATENCY_PARTS)]
    for number in range(1, LATENCY_BINS):
        edges += [2.0**number * (1 + part / LATENCY_PARTS) for part in range(LATENCY_PARTS)]
    return [int(count) for count in np.histogram(latencies_us, [*edges, math.inf])[0]]


@pytest.mark.parametrize("reads", [1, 4, 20, 10_000])
@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
@pytest.mark.parametrize(
    "distribution", ["page cache", "disk", "two populations", "all in the upper half of a bin"]
)
def test_percentiles_match_the_exact_ones(reads: int, share: float, distribution: str) -> None:
    random = np.random.default_rng(reads)
    latencies = {
        "page cache": random.lognormal(math.log(3), 0.5, reads) + 2,
        "disk": random.lognormal(math.log(150), 1, reads) + 2,
        "two populations": np.where(random.random(reads) < 0.8, 3.3, 20_000.0),
        "all in the upper half of a bin": random.uniform(14, 15.9, reads),
    }[distribution]
    true = float(np.quantile(latencies, share, method="inverted_cdf"))
    estimate = latency_percentile(counted(latencies), share, 1e-6 * float(latencies.max()))
    assert 1e6 * estimate == pytest.approx(true, rel=1 / LATENCY_PARTS)


def test_percentile_below_a_microsecond() -> None:
    estimate = latency_percentile(counted(np.full(100, 0.7)), 0.5, 0.8e-6)
    assert 1e6 * estimate == pytest.approx(0.7, abs=2 / LATENCY_PARTS)


def test_percentile_never_exceeds_the_longest_read() -> None:
    assert latency_percentile(counted(np.array([5.0, 900.0])), 1.0, 900e-6) == 900e-6
