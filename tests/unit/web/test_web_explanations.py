"""Tests of explanations: of failures, and of a site's difference from similar ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from measurement_factory import make_measurement, variant_values
from service_thread import ServiceThread, run_service

from treehammer.analysis.descriptive.peer_comparison import (
    PeerComparison,
    contrast_conditions,
    find_peer_medians,
    rank_site,
    score_partition,
    split_difference,
)
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.read.peer_sums import WorkSums, load_peer_sums
from treehammer.sql.read.query_model import Moments
from treehammer.sql.write.store import Store

TODAY = datetime.now(UTC).date()


#: Efficiency of each site; that of SLOW on its second host.
EFFICIENCIES = {"BEST": 0.9, "MIDDLE": 0.8, "SLOW": 0.8}
SLOW_HOST = 0.6


def measure() -> Iterator[Measurement]:
    for site, usual in EFFICIENCIES.items():
        for number in range(8):
            slow = site == "SLOW" and number % 2
            values: dict[str, Any] = {
                "site": site,
                "host": f"node{number % 2}.{site}",
                "cpu_model": "old" if slow else "new",
                "server_version": "XRootD v5.6.9" if site == "SLOW" else "XRootD v5.8.1",
                "kernel": f"5.14.{len(site)}",
                "door": "near" if number < 4 else "far",
                "door_protocol": "root",
                "day": TODAY.year * 10000 + TODAY.month * 100 + TODAY.day,
                **variant_values(f"branches={(2, 100)[number // 2 % 2]}% root=6.40.00"),
                "axis_root": "6.40.00",
                "test_name": "ttree-read",
                "dataset_hash": "d",
                "eff_job": SLOW_HOST if slow else usual,
                "cpu_per_event_s": 1.0 if slow else 0.5,
                "plausible": True,
            }
            yield make_measurement(f"{site}-{number}", **values)


#: Begin, and action by the kind of the main part.
ADVICE = (
    f"So in all weeks from {TODAY - timedelta(days=6)} on. Check the load, disk and network of "
    "node1.SLOW, or take it out of the batch system."
)


@pytest.fixture(scope="module")
def standing_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with run_service(tmp_path_factory.mktemp("standing"), reading_open=True) as running:
        running.store.add(measure())
        yield running


@pytest.mark.parametrize(
    "site, query, sentence",
    [
        (
            "SLOW",
            "",
            "CPU efficiency 17.6 % below the median of the same work; 3rd of 3 sites. "
            f"Mainly host node1.SLOW: 29.4 % below. {ADVICE}",
        ),
        ("BEST", "", "CPU efficiency 20.0 % above the median of the same work; 1st of 3 sites."),
        (
            "SLOW",
            "?metric=cpu_per_event_s",
            "CPU time per event 50.0 % above the median of the same work; 3rd of 3 sites. "
            f"Mainly host node1.SLOW: 100.0 % above. {ADVICE}",
        ),
        ("MIDDLE", "?metric=loop_wall_s", ""),
    ],
)
def test_page_begins_with_standing(
    standing_service: ServiceThread, site: str, query: str, sentence: str
) -> None:
    page = standing_service.read(f"/sites/{site}{query}")
    assert page.list_texts("p", "headline") == [sentence] * bool(sentence)
    told = standing_service.client.get(f"/api/v1/sites/{site}{query}").json()
    assert told["about"]["standing"] == sentence


def test_parts_add_up_and_name_the_slow_host(standing_service: ServiceThread) -> None:
    rows = standing_service.load_tables("/sites/SLOW")["parts"]
    kinds = {row["kind"] for row in rows}
    assert kinds == {"variant", "door", "host", "cpu_model"}
    for kind in kinds:
        shares = [row["share"] for row in rows if row["kind"] == kind]
        assert math.fsum(shares) == pytest.approx(0.7 / 0.85 - 1)
    (worst, other) = [row for row in rows if row["kind"] == "host"]
    assert (worst["name"], worst["measurements"]) == ("node1.SLOW", 4)
    assert worst["difference"] == pytest.approx(0.6 / 0.85 - 1)
    assert other["difference"] == pytest.approx(0.8 / 0.85 - 1)


def test_list_of_sites_draws_differences_on_one_axis(standing_service: ServiceThread) -> None:
    page = standing_service.load_page("/sites")
    places = [float(x) for x in re.findall(r'class="mean" x1="([0-9.]+)"', page)]
    sites = standing_service.load_tables("/sites")["sites"]
    differences = [row["difference"] for row in sites if row["difference"] is not None]
    assert places == sorted(places), "the worst site first, on the left"
    assert [place < 50 for place in places] == [difference < 0 for difference in differences]


def test_page_lists_conditions_of_better_sites(standing_service: ServiceThread) -> None:
    rows = standing_service.load_tables("/sites/SLOW")["contrasts"]
    assert [(row["condition"], row["differing"], row["known"]) for row in rows] == [
        ("storage server", 2, 2)
    ]
    assert rows[0]["own"] == ["XRootD v5.6.9"]
    assert rows[0]["others"] == {"XRootD v5.8.1": 2}
    page = standing_service.read("/sites/SLOW").text
    assert "XRootD v5.8.1 (2 sites)" in page
    assert "Compared with BEST, MIDDLE: the best sites by the same work." in page
    # Nothing is better than the best site.
    assert standing_service.load_tables("/sites/BEST")["contrasts"] == []
    assert "What differs at better sites" not in standing_service.load_page("/sites/BEST")


def test_conditions_that_few_better_sites_differ_in_are_left_out() -> None:
    site = {"kernel": {"5"}, "CPU model": {"old", "new"}, "container": {"none"}, "cores": {"4"}}
    peers = [
        {"kernel": {"6"}, "CPU model": {"new"}, "container": {"none"}},
        {"kernel": {"6"}, "CPU model": {"newest"}, "container": {"docker"}},
        {"kernel": {"5"}, "CPU model": {"newest"}, "container": {"none"}},
    ]
    contrasts = contrast_conditions(site, peers)
    assert [(contrast.title, contrast.differing, contrast.reporting) for contrast in contrasts] == [
        ("CPU model", 2, 3),
        ("kernel", 2, 3),
    ]
    assert contrasts[0].peer_counts == {"newest": 2, "new": 1}
    assert contrast_conditions(site, []) == []


def test_page_shows_few_parts_and_files_all(
    standing_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treehammer.web.pages.site_page.MAX_PARTS", 1)
    page = standing_service.read("/sites/SLOW")
    names = page.tables["parts"].column("name")
    assert "node1.SLOW" in names
    assert "node0.SLOW" not in names
    assert "4 smaller parts are in CSV and JSON." in page.text
    assert len(standing_service.load_tables("/sites/SLOW")["parts"]) == 8


def test_filter_applies_to_parts(standing_service: ServiceThread) -> None:
    (work, *_) = standing_service.load_tables("/sites/SLOW")["work"]
    query = urlencode({"variant": work["variant"]})
    parts = standing_service.load_tables(f"/sites/SLOW?{query}")["parts"]
    assert {row["kind"] for row in parts} == {"door", "host", "cpu_model"}
    assert sum(row["measurements"] for row in parts if row["kind"] == "host") == 4


def test_too_many_measurements_are_not_read(
    standing_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treehammer.web.pages.site_standing.MAX_READ", 3)
    kinds = {row["kind"] for row in standing_service.load_tables("/sites/SLOW")["parts"]}
    assert kinds == {"variant", "door"}


def test_hosts_are_those_of_the_newest_days(pages: ServiceThread) -> None:
    # A past day, so that the day of the service does not matter.
    last = TODAY - timedelta(days=3)

    def day_before(days: int) -> int:
        return int((last - timedelta(days=days)).strftime("%Y%m%d"))

    # The first and the last day of the newest seven, and the day before them.
    hosts = {"today": 0, "week": 6, "earlier": 7}
    pages.store.add(
        make_measurement(
            f"{site}-{host}", site=site, host=host, day=day_before(days), eff_job=efficiency
        )
        for site, efficiency in (("A", 0.6), ("B", 0.9))
        for host, days in hosts.items()
    )
    rows = pages.load_tables(f"/sites/A?to={last}")["parts"]
    page = pages.load_page(f"/sites/A?to={last}")
    assert {row["name"] for row in rows if row["kind"] == "host"} == {"today", "week"}
    assert f"Hosts and CPU models are those from {last - timedelta(days=6)} on." in page


def test_chart_takes_some_of_many_sites_and_the_place_all(
    pages: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treehammer.sql.read.peer_sums.MAX_DAILY_PEERS", 4)
    day = TODAY.year * 10000 + TODAY.month * 100 + TODAY.day
    pages.store.add(
        make_measurement(f"job-{number}", site=f"S{number}", day=day, eff_job=0.9 - number / 20)
        for number in range(10)
    )
    pages.store.add(
        [make_measurement("other", site="OTHER", day=day, test_name="other", eff_job=1.0)]
    )
    answer = pages.client.get("/api/v1/sites/S9").json()
    (point,) = answer["tables"]["series"]
    assert point["sites"] == 4
    assert point["median"] == pytest.approx((0.8 + 0.7) / 2), "of S0, S2, S4 and S6"
    assert answer["about"]["standing"].partition(". ")[0].endswith("; 10th of 10 sites")


def test_work_without_a_site_has_a_chart_among_many_sites(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treehammer.sql.read.peer_sums.MAX_DAILY_PEERS", 2)
    day = TODAY.year * 10000 + TODAY.month * 100 + TODAY.day
    store.add(
        make_measurement(f"job-{site}", site=site, day=day, eff_job=0.5)
        for site in ("", "A", "B", "C")
    )
    sums = load_peer_sums(store, "", "eff_job", (day, day), {})
    names = [sums.dailies.sites[place] for place in sums.dailies.site]
    assert names.count("") == 1
    assert len(names) == 3


def compared(difference: float | None) -> PeerComparison:
    mean = None if difference is None else 1 + difference
    return PeerComparison(0, 1, 1.0, 1, mean, 0.0, None, 1.0, 2)


def test_rank_follows_the_better_direction() -> None:
    sites = {"A": compared(0.1), "B": compared(-0.1), "C": compared(None)}
    places = [rank_site(sites, "A", better) for better in ("higher", "lower", None)]
    assert [rank and (rank.place, rank.sites) for rank in places] == [(1, 2), (2, 2), (None, 2)]
    assert rank_site(sites, "C", "higher") is None


def test_work_without_peers_is_left_out() -> None:
    sums = WorkSums.collect(
        [
            (0, "own", ("w",), 2, 6.0, 20.0),
            (0, "a", ("w",), 1, 2.0, 4.0),
            (0, "b", ("w",), 1, 4.0, 16.0),
            (0, "own", ("alone",), 1, 9.0, 81.0),
        ]
    )
    medians = find_peer_medians(sums, "own")
    assert medians == {("w",): 3.0}
    (part,) = split_difference(
        [("host", work, moments) for work, moments in sums.select_site("own")], medians
    )
    assert (part.count, part.own_mean, part.share) == (2, 3.0, 0.0)


def test_bad_host_explains_more_than_the_variants_that_ran_on_it() -> None:
    def sums(mean: float) -> Moments:
        return Moments(4, 4 * mean, 4 * (mean**2 + 1e-6))

    works: list[tuple[str, ...]] = [(str(number),) for number in range(12)]
    medians = dict.fromkeys(works, 0.8)
    means = [0.6 if number % 4 == 3 else 0.8 for number in range(12)]
    # The noise of single variants makes their spread the largest.
    variants = [
        (work[0], work, sums(mean - 1e-4 * number))
        for number, (work, mean) in enumerate(zip(works, means, strict=True))
    ]
    hosts = [
        (f"node{number % 4}", work, moments) for number, (_, work, moments) in enumerate(variants)
    ]
    models = [
        (f"model{number % 4 // 2}", work, moments)
        for number, (_, work, moments) in enumerate(variants)
    ]
    scores = [score_partition(groups, medians) for groups in (hosts, variants, models)]
    assert scores == sorted(scores)
    assert score_partition([], medians) == math.inf
