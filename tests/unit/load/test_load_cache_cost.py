"""Cost of caches: parsing of executions, intervals, words for costs, and the page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from measurement_factory import make_campaign_row, make_measurement
from page_contents import list_marks, load_charts
from service_thread import ServiceThread, run_service

from treehammer.analysis.statistics.estimates import Estimate
from treehammer.collectors.record.measurement_record import Measurement
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
from treehammer.load.report import describe_campaign

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


#: Time through the cache over that of the direct door, by state and distance.
COSTS = {("warm", 0.0): 1.12, ("cold", 0.0): 1.2, ("cold", 80.0): 3.0}
RELEASES = ("XRootD v5.5.3", "XRootD v5.8.1", "XRootD v6.2.0")
BLOCKS = (64, 1024)


def record_read(
    variant: Mapping[str, object],
    job: str,
    round_: int,
    state: str,
    seconds: float,
    release: str,
    *,
    door: str = "",
) -> Measurement:
    return make_measurement(
        job,
        round_,
        3 if door else 1 if state == "unknown" else 2,
        test_name="cache-read",
        site="SITE_A",
        storage_site="SITE_A",
        dataset="raw-small",
        door=door or ("root" if state == "unknown" else "cache"),
        day=20260301,
        plausible=True,
        variant=json.dumps(variant),
        server_version=release,
        server_cache_state=state,
        extras={"total_s": seconds, "achieved_mb_per_s": 10 / seconds, "hit_share": 0.25},
    )


def make_study(*, slow_release: str = "", direct: bool = True) -> Iterator[Measurement]:
    """Yield reads of two shares and two blocks, of each kind three jobs with two rounds."""
    for release in RELEASES:
        for (state, latency), cost in COSTS.items():
            for fraction in (0.1, 0.9):
                for block in BLOCKS:
                    variant = {
                        "pattern": "sparse",
                        "fraction": fraction,
                        "block_kib": block,
                        "latency_ms": latency,
                        "server_cache": state,
                        "clients": 1,
                    }
                    factor = cost * (2 if release == slow_release else 1)
                    for job in range(3):
                        name = f"{release}-{state}-{latency}-{fraction}-{block}-{job}"
                        for round_ in (1, 2):
                            seconds = (1 + job) * fraction * math.sqrt(block)
                            wobble = 1 + 0.01 * ((job + round_) % 3 - 1)
                            time = seconds * factor * wobble
                            yield record_read(variant, name, round_, state, time, release)
                            if direct:
                                args = (variant, name, round_, "unknown", seconds, "XRootD v5.9")
                                yield record_read(*args)


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    """Serve the study, with a read through another direct door and a second setup."""
    job = f"{RELEASES[0]}-warm-0.0-0.9-64-0"
    variant = {"fraction": 0.9, "block_kib": 64, "latency_ms": 0.0, "server_cache": "warm"}
    variant |= {"pattern": "sparse", "clients": 1}
    other_door = record_read(variant, job, 1, "unknown", 1.0, "v1", door="https")
    copies = {"pattern": "copy", "fraction": 1.0, "block_kib": 64, "clients": 8}
    other_setup = (
        record_read(copies, "eight", round_, state, time, release)
        for round_, seconds in ((1, 2.0), (2, 2.1))
        for state, time, release in (
            ("cold", 2 * seconds, RELEASES[0]),
            ("unknown", seconds, "XRootD v5.9"),
        )
    )
    with run_service(tmp_path_factory.mktemp("studied"), reading_open=True) as service:
        service.store.add([*make_study(), other_door, *other_setup])
        yield service


def test_answer_names_the_cost_by_state_and_distance(studied: ServiceThread) -> None:
    page = studied.read("/figures/cache")
    assert "Through the cache (XRootD v6.2.0), warm reads of 10 % cost 12 % [11, 13]" in page.text
    assert "cold ones cost 20 % [19, 21], at 80 ms a factor of 3 [2.99, 3.01]." in page.text
    assert "12 of 36 cells of the map cost more than 30 %, 12 of them for certain." in page.text
    assert "Costs refer to the direct door root (XRootD v5.9) in the same job" in page.text
    rows = [{name: cell.text for name, cell in row.items()} for row in page.tables["caches"].cells]
    (cold,) = [
        row
        for row in rows
        if (row["release"], row["state"], row["latency_ms"]) == (RELEASES[1], "cold", "80")
        and (row["read"], row["block_kib"]) == ("90 %", "64")
    ]
    assert (cold["cost"], cold["jobs"], cold["hit_share"]) == ("3", "3", "25 %")


def test_figures_show_curves_costs_and_releases(pages: ServiceThread) -> None:
    pages.store.add(make_study(slow_release=RELEASES[1]))
    curves, cost = load_charts(pages.load_page("/figures/cache"))
    # Three releases and the direct door, two shares, two blocks; in three panels.
    assert len(list_marks(curves)) == 4 * 2 * 2 * 3
    marks = list_marks(cost)
    assert len(marks) == 3 * 3 * 4
    assert {round(mark["y"], 1) for mark in marks} == {1.1, 1.2, 2.2, 2.4, 3.0, 6.0}
    assert all(mark["l"] < mark["y"] < mark["h"] for mark in marks)


def test_colors_of_releases_are_stable(pages: ServiceThread) -> None:
    """A release has its color beside any others, and never that of the direct door."""
    variant = {"pattern": "copy", "fraction": 1.0, "block_kib": 64}
    colors: dict[str, set[str]] = {}
    # The palette's place of 5.8.2 is gray.
    for number, release in enumerate(("v6.2.0", "v5.5.3", "v5.8.2")):
        name = f"XRootD {release}"
        pages.store.add([record_read(variant, f"job{number}", 1, "half", 2.0, name)])
        pages.store.add([record_read(variant, f"job{number}", 1, "unknown", 1.0, "XRootD v5.9")])
        curves = load_charts(pages.load_page("/figures/cache"))[0]
        assert curves["params"][0]["value"] == ["half warm"]
        for line in curves["usermeta"]["series"]:
            colors.setdefault(line["name"].removeprefix("XRootD v"), set()).add(line["color"])
    assert colors.keys() == {
        f"{name}, whole copy" for name in ("6.2.0", "5.5.3", "5.8.2", "direct")
    }
    assert all(len(of_release) == 1 for of_release in colors.values())
    assert len(set.union(*colors.values())) == 4


def test_direct_door_and_share_can_be_chosen(studied: ServiceThread) -> None:
    page = studied.read("/figures/cache?read=90+%25")
    assert "the door https is left out" in page.text
    assert {row["read"] for row in page.tables["caches"].rows} == {"90 %"}
    page = studied.read("/figures/cache?direct=https")
    assert "the direct door https (v1)" in page.text
    costs = [row["cost"] for row in page.tables["caches"].rows if row["cost"] != "–"]
    assert len(costs) == 1


def test_operation_returns_the_cells(studied: ServiceThread) -> None:
    document = json.loads(studied.load_page("/api/v1/figures/cache"))
    assert document["about"]["answer"].startswith("Through the cache")
    (warm,) = [
        row
        for row in document["tables"]["caches"]
        if (row["release"], row["state"], row["read"], row["block_kib"])
        == (RELEASES[0], "warm", "10 %", 1024)
    ]
    assert warm["cost"] == pytest.approx(1.12, rel=0.01)
    assert warm["cost_low"] < warm["cost"] < warm["cost_high"]
    # 10 MB in the geometric mean of the jobs' times.
    seconds = 6 ** (1 / 3) * 0.1 * 32 * 1.12
    assert warm["rate_mb_per_s"] == pytest.approx(10 / seconds, rel=0.01)


def test_missing_door_or_reads_are_said(pages: ServiceThread) -> None:
    assert "Nothing was read through a cache" in pages.read("/figures/cache").text
    pages.store.add(make_study(direct=False))
    page = pages.read("/figures/cache").text
    assert "The cost of the cache is unknown" in page
    assert "-P bundle=door" in page


def test_other_axes_are_setups(studied: ServiceThread) -> None:
    assert "clients=8" in studied.read("/figures/cache").text
    setup = "SITE_A%3B%20raw-small%3B%20clients%3D8"
    text = studied.read(f"/figures/cache?setup={setup}").text
    assert "cold whole copies cost a factor of 2 (without an interval)." in text, "equal ratios"


def test_report_begins_with_the_cost_of_the_cache(studied: ServiceThread) -> None:
    with studied.store.snapshot() as snapshot:
        summary, sections = describe_campaign(snapshot, make_campaign_row())
    assert summary is None
    section = sections[0]
    assert section.heading.startswith("Reads through caches: ")
    title, *_ = section.sentences
    assert title.startswith("Through the cache (XRootD v6.2.0), warm reads of 10 % cost 12 %")
    assert [*section.figures] == ["Rate by size of block", "Cost of the cache"]
