"""Cost of caches: parsing of executions, intervals, and words for costs."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from treehammer.analysis.statistics.estimates import Estimate
from treehammer.load.analysis.cache_cost import (
    CacheComparison,
    LogMean,
    Spread,
    average_cells,
    conclude,
    describe_cost,
)
from treehammer.load.analysis.cache_reads import (
    RATE,
    SECONDS,
    WHOLE_COPY,
    CacheRead,
    parse_read,
    shorten_setups,
)

COLUMNS = {
    "job_id": "j",
    "round": 1,
    "position": 1,
    "site": "SITE_A",
    "storage_site": "SITE_A",
    "dataset": "raw-small",
    "door": "cache",
    "server_version": "XRootD v6.2.0",
    "server_cache_state": "cold",
    "origin_version": None,
    "cache_block_kib": 128,
    "variant": json.dumps({"pattern": "sparse", "fraction": 0.3, "block_kib": 64, "clients": 2}),
}


def make_read(
    door: str, release: str, state: str, seconds: float, round_: int = 1, **changes: Any
) -> CacheRead:
    read = CacheRead(
        job="j",
        round=round_,
        setup="SITE_A",
        door=door,
        release=release,
        origin="",
        state=state,
        planned_state="",
        latency_ms=0.0,
        read="10 %",
        block_kib=64.0,
        metrics={SECONDS: seconds, RATE: 1 / seconds},
    )
    return read._replace(**changes)


def list_costs(comparison: CacheComparison) -> dict[tuple[str, str], object]:
    """Return the cost of each release and state."""
    cells = [(cell.key, cell.cost) for cell in comparison.cached if cell.cost]
    return {(key.release, key.state): pytest.approx(cost.ratio) for key, cost in cells}


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
    limited = parse_read(COLUMNS, {SECONDS: 2.0, RATE: None})
    assert limited is not None
    assert limited.metrics == {SECONDS: 2.0}, "a time without a rate has a cost"
    for variant in ('{"fraction": 1}', "[]", "", '{"block_kib": "x"}'):
        assert parse_read({**COLUMNS, "variant": variant}, {SECONDS: 2.0, RATE: 5.0}) is None


def test_interval_has_the_pooled_spread() -> None:
    from scipy import stats

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


def test_direct_reads_of_another_state_are_no_reference() -> None:
    """The origin of a job that evicts files is cold, too."""
    seconds = {"cold": (6.0, 3.0), "half": (4.0, 2.0), "warm": (1.0, 1.0)}
    reads = [
        read
        for state, (cached, direct) in seconds.items()
        for read in (
            make_read("cache", "X v6.2.0", state, cached, planned_state=state),
            make_read("root", "X v5.9.0", "", direct, planned_state=state),
        )
    ]
    comparison = CacheComparison(reads)
    assert list_costs(comparison) == {
        ("X v6.2.0", "warm"): 1.0,
        ("X v6.2.0", "half"): 2.0,
        ("X v6.2.0", "cold"): 2.0,
    }
    direct = {key.state: cell.rate for key, cell in comparison.cells.items() if key.is_direct}
    assert {state: rate and rate.ratio for state, rate in direct.items()} == pytest.approx(
        {"warm": 1.0, "half": 1 / 2, "cold": 1 / 3}
    )


def test_costs_refer_to_one_direct_door() -> None:
    reads = [
        make_read("cache", "X v6.2.0", "warm", 2.0),
        make_read("cache", "X v6.2.0", "warm", 2.0, round_=2),
        make_read("https", "X v5.9.0", "", 8.0),
        make_read("root", "X v5.9.0", "", 1.0),
        make_read("root", "X v5.9.0", "", 1.0, round_=2),
    ]
    comparison = CacheComparison(reads)
    assert (comparison.direct_doors, comparison.direct_door) == (["root", "https"], "root")
    assert list_costs(comparison) == {("X v6.2.0", "warm"): 2.0}
    assert [cell.jobs for key, cell in comparison.cells.items() if key.is_direct] == [1]
    other = CacheComparison(reads, "https")
    assert list_costs(other) == {("X v6.2.0", "warm"): 0.25}
    assert CacheComparison(reads, "none").direct_door == "root"


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({"cache_block_kib": 1024}, ["blocks of 64 KiB", "blocks of 1024 KiB"]),
        ({"origin": "X v5.9.0"}, ["origin X v5.8.1", "origin X v5.9.0"]),
        ({"door": "far"}, ["cache", "far"]),
    ],
)
def test_differing_caches_of_one_release_are_apart(
    changes: dict[str, Any], labels: list[str]
) -> None:
    cache = make_read("cache", "X v6.2.0", "warm", 2.0, origin="X v5.8.1", cache_block_kib=64)
    comparison = CacheComparison([cache, cache, cache._replace(**changes)])
    assert {*comparison.releases} == {f"X v6.2.0 ({label})" for label in labels}
    assert CacheComparison([cache, cache]).releases == ["X v6.2.0"]


def test_releases_are_in_the_order_of_their_versions() -> None:
    versions = ["5.5.3", "5.8.1", "5.9.2", "5.10.0", "6.0.0-rc1", "6.0.0-rc2", "6.0.0", "6.2.0"]
    reads = [make_read("cache", f"XRootD v{v}", "warm", 1.0) for v in reversed(versions)]
    assert CacheComparison(reads).releases == [f"XRootD v{version}" for version in versions]


def test_conclusion_is_on_the_share_with_most_conditions() -> None:
    reads = []
    for state, share in (("cold", "10 %"), ("cold", "30 %"), ("warm", "30 %")):
        for door, of_door, seconds in (("cache", state, 3.0), ("root", "", 1.0)):
            read = make_read(door, "v1", of_door, seconds)
            reads.append(read._replace(planned_state=state, read=share, job=state + share))
    text = conclude(CacheComparison(reads))
    assert "warm reads of 30 % cost a factor of 3 (without an interval); cold ones cost" in text


def test_uncertain_costs_are_not_concluded() -> None:
    wide = [
        read
        for round_, cached in enumerate((0.4, 3.0))
        for read in (
            make_read("cache", "v1", "half", cached, round_),
            make_read("root", "v0", "", 1.0, round_),
        )
    ]
    text = conclude(CacheComparison(wide))
    assert "half warm reads of 10 % cost nothing certain (10 % [" in text
    assert "0 of 1 cells of the map cost more than 30 %." in text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.12, "cost 12 %"), (0.25, "save 75 %"), (3.14159, "cost a factor of 3.14")],
)
def test_costs_are_worded(ratio: float, text: str) -> None:
    assert describe_cost(LogMean(math.log(ratio), None)) == f"{text} (without an interval)"


def test_costs_are_worded_with_intervals() -> None:
    saved = LogMean(math.log(0.5), Estimate(math.log(0.5), 0.01, 1e6))
    assert describe_cost(saved) == "save 50 % [49, 51]"
    doubtful = LogMean(math.log(1.05), Estimate(math.log(1.05), 0.05, 1e6))
    assert describe_cost(doubtful) == "cost nothing certain (5 % [−5, 16])"


def test_setups_are_told_by_what_differs() -> None:
    setups = ["SITE_A; raw; clients=1; streams=1", "SITE_A; raw; clients=8; streams=1"]
    assert [*shorten_setups(setups).values()] == [
        "SITE_A; raw; clients=1",
        "SITE_A; raw; clients=8",
    ]
    assert shorten_setups([]) == {}
