"""Cost of caches: parsing of executions, intervals, and words for costs."""

from __future__ import annotations

import json
import math

import pytest
from scipy import stats

from treehammer.analysis.descriptive.cache_cost import (
    RATE,
    SECONDS,
    WHOLE_COPY,
    CacheComparison,
    CacheRead,
    LogMean,
    Spread,
    average_cells,
    describe_cost,
    parse_read,
    shorten_setups,
)
from treehammer.analysis.statistics.estimates import Estimate

COLUMNS = {
    "job_id": "j",
    "round": 1,
    "position": 1,
    "site": "SITE_A",
    "storage_site": None,
    "dataset": "raw-small",
    "door": "cache",
    "server_version": "XRootD v6.2.0",
    "server_cache_state": "cold",
    "variant": json.dumps({"pattern": "sparse", "fraction": 0.3, "block_kib": 64, "clients": 2}),
}


def make_read(door: str, release: str, state: str, seconds: float, round_: int = 1) -> CacheRead:
    metrics = {SECONDS: seconds, RATE: 1 / seconds}
    return CacheRead("j", round_, "SITE_A", door, release, state, 0.0, "10 %", 64.0, metrics)


def test_executions_are_parsed() -> None:
    read = parse_read(COLUMNS, {SECONDS: 2.0, RATE: 5.0})
    assert read is not None
    assert (read.setup, read.state, read.read) == ("SITE_A; raw-small; clients=2", "cold", "30 %")
    assert (read.block_kib, read.latency_ms) == (64.0, 0.0)
    copy = {"pattern": "copy", "block_kib": 0, "latency_ms": 20}
    columns = {**COLUMNS, "variant": json.dumps(copy), "server_cache_state": "unknown"}
    direct = parse_read(columns, {SECONDS: 2.0, RATE: 5.0})
    assert direct is not None
    assert (direct.read, direct.state, direct.latency_ms) == (WHOLE_COPY, "", 20.0)
    assert parse_read(COLUMNS, {SECONDS: None, RATE: None}) is None
    for variant in ('{"fraction": 1}', "[]", "", '{"block_kib": "x"}'):
        assert parse_read({**COLUMNS, "variant": variant}, {SECONDS: 2.0, RATE: 5.0}) is None


def test_interval_has_the_pooled_spread() -> None:
    cells = [[0.1, 0.3], [1.0, 1.1, 1.2]]
    spread = Spread.pool(cells)
    assert spread.df == 3
    assert spread.deviation == pytest.approx(math.sqrt((0.02 + 0.02) / 3))
    pooled = average_cells(cells, spread)
    error = spread.deviation * math.sqrt(1 / 2 + 1 / 3) / 2
    ends = pooled.ends
    assert ends is not None
    expected = stats.t.interval(0.95, 3, loc=0.65, scale=error)
    assert ends == pytest.approx([math.exp(end) for end in expected])
    assert average_cells([[1.0], [2.0]], Spread.pool([[1.0], [2.0]])).ends is None


def test_rounds_are_paired_and_caches_of_one_release_apart() -> None:
    reads = [
        make_read("root", "XRootD v5.9", "", 1.0),
        make_read("root", "XRootD v5.9", "", 4.0, round_=2),
        make_read("near", "XRootD v6.2.0", "warm", 2.0),
        make_read("far", "XRootD v6.2.0", "warm", 12.0, round_=2),
    ]
    comparison = CacheComparison(reads)
    assert comparison.releases == ["XRootD v6.2.0 (far)", "XRootD v6.2.0 (near)"]
    costs = [cell.cost.ratio for cell in comparison.cached if cell.cost]
    assert costs == pytest.approx([3.0, 2.0])


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.12, "cost 12 %"), (0.25, "save 75 %"), (3.14159, "cost a factor of 3.14")],
)
def test_costs_are_worded(ratio: float, text: str) -> None:
    assert describe_cost(LogMean(math.log(ratio), None)) == text


def test_costs_are_worded_with_intervals() -> None:
    saved = LogMean(math.log(0.5), Estimate(math.log(0.5), 0.01, 1e6))
    assert describe_cost(saved) == "save 50 % [49, 51]"
    doubtful = LogMean(math.log(1.05), Estimate(math.log(1.05), 0.05, 1e6))
    assert describe_cost(doubtful) == "cost 5 % [−5, 16]"


def test_setups_are_told_by_what_differs() -> None:
    setups = ["SITE_A; raw; clients=1; streams=1", "SITE_A; raw; clients=8; streams=1"]
    assert [*shorten_setups(setups).values()] == [
        "SITE_A; raw; clients=1",
        "SITE_A; raw; clients=8",
    ]
    assert shorten_setups([]) == {}
