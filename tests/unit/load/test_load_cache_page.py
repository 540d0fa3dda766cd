"""Page of caches: rates by block, cost against the direct door, and releases."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

import pytest
from measurement_factory import make_campaign_row, make_measurement
from page_contents import list_marks, load_charts
from service_thread import ServiceThread, run_service

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.load.report import describe_campaign

#: Time through the cache over that of the direct door, by state and distance.
COSTS = {("warm", 0.0): 1.12, ("cold", 0.0): 1.2, ("cold", 80.0): 3.0}
RELEASES = ("XRootD v5.5.3", "XRootD v5.8.1", "XRootD v6.2.0")
BLOCKS = (64, 1024)


def make_read(
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
                            yield make_read(variant, name, round_, state, time, release)
                            if direct:
                                args = (variant, name, round_, "unknown", seconds, "XRootD v5.9")
                                yield make_read(*args)


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    """Serve the study, with a read through another direct door and a second setup."""
    job = f"{RELEASES[0]}-warm-0.0-0.9-64-0"
    variant = {"fraction": 0.9, "block_kib": 64, "latency_ms": 0.0, "server_cache": "warm"}
    variant |= {"pattern": "sparse", "clients": 1}
    other_door = make_read(variant, job, 1, "unknown", 1.0, "v1", door="https")
    copies = {"pattern": "copy", "fraction": 1.0, "block_kib": 64, "clients": 8}
    other_setup = (
        make_read(copies, "eight", round_, state, time, release)
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
        pages.store.add([make_read(variant, f"job{number}", 1, "half", 2.0, name)])
        pages.store.add([make_read(variant, f"job{number}", 1, "unknown", 1.0, "XRootD v5.9")])
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
