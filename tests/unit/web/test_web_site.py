"""Page of a site, and how its failures and slowness are explained."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from measurement_factory import STARTED_DAY, make_measurement, variant_values
from page_contents import list_marks, load_charts
from service_thread import BROWSER, ServiceThread, run_service

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
from treehammer.sql.read.query_model import Condition, Moments, Selection
from treehammer.sql.write.store import Store
from treehammer.web import display_formats
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, DayAxis, LineChart

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
    document = standing_service.client.get(f"/api/v1/sites/{site}{query}").json()
    assert document["about"]["standing"] == sentence


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


LIGHT, HEAVY = '{"branches":0.02}', '{"branches":1.0}'


def test_series_agrees_with_database(filled_service: ServiceThread) -> None:
    rows = filled_service.load_tables("/sites/SITE_B")["series"]
    good = Selection(
        conditions=(Condition("site", "=", "SITE_B"), Condition("plausible", "=", True))
    )
    rows_of_site = [
        row for row in filled_service.store.measurements(good) if row["eff_job"] is not None
    ]
    assert sum(row["measurements"] for row in rows) == len(rows_of_site)
    for row in rows:
        day = int(row["day"].replace("-", ""))
        values = [item["eff_job"] for item in rows_of_site if item["day"] == day]
        assert row["mean"] == pytest.approx(statistics.fmean(values))  # type: ignore[arg-type]
        assert row["sites"] > 0


def test_server_updates_are_marked(filled_service: ServiceThread) -> None:
    tables = filled_service.load_tables("/sites/SITE_A")
    (change,) = tables["changes"]
    assert change["thing"] == "door near (root)"
    assert (change["before"], change["after"]) == (["XRootD v5.6.9"], ["XRootD v5.8.1"])
    (now,) = [row for row in tables["state"] if row["what"] == "server version"]
    assert (now["value"], now["since"]) == (["XRootD v5.8.1"], change["day"])
    page = filled_service.load_page("/sites/SITE_A")
    assert '"text": "door near (root): server version XRootD v5.8.1"' in page


@pytest.mark.parametrize(
    "address, status, expected",
    [
        ("/sites/SITE_X", 404, "Did you mean"),
        ("/sites/SITE_A?metric=host", 400, "Metric must be one of"),
        ("/sites/SITE_A?to=2020-01-01", 200, "Choose a longer period"),
        ("/sites/SITE_A?to=0001-01-01&days=180", 200, "Choose a longer period"),
        ("/sites/SITE_A?to=9999-12-31", 200, "Choose a longer period"),
        ("/sites/SITE_A?variant=branches%3D2%25", 400, "must be a JSON object"),
        ("/sites/SITE_A?variant=%7B%22own%22%3A1%7D", 200, "selected>own=1</option>"),
        ("/sites/SITE_A?root=6.41.00", 200, "selected>6.41.00</option>"),
        ("/sites/SITE_A?protocol=none", 200, "or “all” in the filters"),
        ("/sites/SITE_A?days=180&root=6.40.00&test=ttree-read", 200, "by week"),
    ],
)
def test_page_responds_to_parameters(
    filled_service: ServiceThread, address: str, status: int, expected: str
) -> None:
    answer = filled_service.client.get(address, headers=BROWSER)
    assert answer.status_code == status
    assert expected in answer.text


def test_site_without_similar_sites_is_explained(pages: ServiceThread) -> None:
    assert "treehammer submit" in pages.load_page("/sites")
    day = date.today() - timedelta(days=1)
    number = day.year * 10000 + day.month * 100 + day.day
    pages.store.add([make_measurement("one", day=number, site="ONLY/HE\nRE", eff_job=0.5)])
    address = "/sites/ONLY%2FHE%0ARE"
    page = pages.load_page(address)
    assert "No other site did the same work" in page
    assert address in pages.read("/sites").list_links()
    assert pages.client.get(f"/api/v1{address}").status_code == 200


def on(site: str, back: int, eff: float, number: int = 1, **more: Any) -> Iterator[Measurement]:
    """Measurements of a site ``back`` days ago."""
    day = display_formats.today() - timedelta(days=back)
    for place in range(number):
        values = {
            "site": site,
            "day": display_formats.day_number(day),
            "eff_job": eff,
            "plausible": True,
        }
        values |= {"variant": LIGHT, "axis_root": "6.40.00", "root_version": "6.40.00"}
        yield make_measurement(f"{site} {back} {place} {more}", place + 1, **{**values, **more})


def add(service: ServiceThread, *measured: Iterable[Measurement]) -> None:
    service.store.add(measurement for measurements in measured for measurement in measurements)


def test_similar_sites_did_same_work(pages: ServiceThread) -> None:
    add(pages, on("A", 1, 0.5), on("B", 1, 0.6), on("C", 1, 0.7), on("D", 2, 0.1))
    add(pages, on("E", 1, 0.2, variant=HEAVY))
    (row,) = pages.load_tables("/sites/A")["series"]
    assert (row["sites"], row["median"], row["measurements"]) == (2, pytest.approx(0.65), 1)
    assert "median 0.65 of 2 sites" in pages.client.get("/sites/A").text


def test_site_list_compares_same_work(pages: ServiceThread) -> None:
    heavy: dict[str, Any] = {"variant": HEAVY}
    # Both have the same efficiency for the same work; one does the heavy work more often.
    add(pages, on("A", 1, 0.9, 2), on("A", 1, 0.5, 6, **heavy))
    add(pages, on("B", 2, 0.9, 6), on("B", 1, 0.5, 2, **heavy), on("C", 1, 0.1, **heavy))
    add(pages, on("ALONE", 1, 0.2, variant='{"own":1}'))
    rows = {row["site"]: row for row in pages.load_tables("/sites")["sites"]}
    assert (rows["A"]["eff_job"], rows["B"]["eff_job"]) == pytest.approx((0.6, 0.8))
    assert [rows["A"][name] for name in ("own", "sites")] == [pytest.approx(0.6), 2]
    assert rows["A"]["median"] == pytest.approx((2 * 0.9 + 6 * 0.3) / 8)
    assert rows["B"]["median"] == pytest.approx((6 * 0.9 + 2 * 0.3) / 8)
    assert rows["ALONE"]["median"] is None
    page = pages.client.get("/sites").text
    assert "How similar sites are chosen" in page
    assert ">0.2000<" not in page, "means over a site's own mix are not shown"


def test_bars_are_rms_around_mean_of_each_work(pages: ServiceThread) -> None:
    add(pages, on("A", 1, 0.4), on("A", 1, 0.6, door="x"), on("A", 1, 0.1, variant=HEAVY))
    (row,) = pages.load_tables("/sites/A")["series"]
    assert row["rms"] == pytest.approx((2 * 0.1**2 / 3) ** 0.5)
    add(pages, on("B", 1, 0.5))
    assert "bars are the RMS of executions" in pages.client.get("/sites/A").text


def test_state_may_be_older_than_window(pages: ServiceThread) -> None:
    add(pages, *(on("A", back, 0.5) for back in (20, 10, 5)))
    add(pages, *(on("A", back, 0.5, root_version="6.40.02") for back in (2, 1)))
    add(pages, on("A", 1, 0.5, server_version="XRootD 5.8", axis_root="6.38.00"))
    add(pages, on("A", 1, 0.5, axis_root="none", root_version=None, root_provider="none"))

    def since(asked: str) -> dict[str, tuple[str, bool]]:
        states = pages.load_tables("/sites/A", days=asked)["state"]
        return {row["what"]: (row["since"], row["since_known"]) for row in states}

    renewed = (str(display_formats.today() - timedelta(days=2)), True)
    assert since("30")["build"] == since("14")["build"] == renewed
    yesterday = str(display_formats.today() - timedelta(days=1))
    # The 30 days include all measurements, the 14 days do not.
    assert since("30")["server version"] == (yesterday, True)
    assert since("14")["server version"] == (yesterday, False)
    assert f"{yesterday} or before" in pages.client.get("/sites/A?days=14").text


def test_nodes_without_compiled_loops_are_named_with_the_reason(pages: ServiceThread) -> None:
    reason = "the scratch folder is mounted noexec"
    add(
        pages,
        on("A", 2, 0.5, loop_compiler="g++ 12 -O2"),
        # This test needs ROOT's interpreter.
        on("A", 2, 0.5, loop_compiler="cling", test_name="rdf"),
        on("A", 1, 0.5, loop_compiler="cling", loop_fallback=reason),
    )
    add(pages, on("B", 1, 0.5, loop_compiler="cling", loop_fallback=reason))
    add(pages, on("B", 1, 0.5, number=2, loop_compiler="g++ 12 -O2"))
    tables = pages.load_tables("/sites/A")
    (change,) = [row for row in tables["changes"] if row["what"] == "loop compiler"]
    assert (change["before"], change["after"]) == (["g++ 12 -O2"], [f"cling: {reason}"])
    for site in "AB":
        text = f"Nodes of {site} measure by cling because {reason}."
        assert text in pages.load_page(f"/sites/{site}")


def test_links_to_explore_keep_filters(filled_service: ServiceThread) -> None:
    chosen = {"test": "ttree-read", "root": "6.40.00", "protocol": "root", "days": "14"}
    page = filled_service.read(f"/sites/SITE_A?{urlencode(chosen)}")
    queries = [urlsplit(link).query for link in page.list_links(r"/explore\?")]
    assert len(queries) == 3
    for query in map(dict, map(parse_qsl, queries)):
        conditions = {"test_name": "ttree-read", "axis_root": "6.40.00", "door_protocol": "root"}
        conditions |= {"site": "SITE_A", "to": str(display_formats.today())}
        conditions["from"] = str(display_formats.today() - timedelta(days=13))
        assert conditions.items() <= query.items()


def test_close_marks_are_merged() -> None:
    first = date(2026, 1, 1)
    lines = [ChartLine("a", "own", [ChartDot(first, 1.0)])]
    marks = [ChartMark(first + timedelta(days=n), n + 1, f"t{n}") for n in (0, 50, 51, 52, 90)]
    chart = LineChart(
        "x", lines, DayAxis(first, first + timedelta(days=99)), marks, values=""
    ).marks
    assert [mark["label"] for mark in chart] == ["1", "51–53", "91"]
    assert [mark["end"] > mark["x"] for mark in chart] == [False, True, False]
    assert [mark["text"] for mark in chart] == ["t0", "changes 51 to 53 in the table", "t90"]


def test_weeks_are_drawn_in_the_middle_of_their_days(pages: ServiceThread) -> None:
    add(pages, *(on(site, back, 0.5) for site in "AB" for back in range(90)))
    page = pages.client.get("/sites/A?days=90").text
    (chart,) = load_charts(page)
    places = [mark["x"] for mark in list_marks(chart) if mark["s"] == 0]
    steps = [b - a for a, b in itertools.pairwise(places)]
    # Complete weeks are equidistant; truncated weeks are closer.
    assert {*steps[1:-1]} == {7 * 24 * 3600 * 1000} == {max(steps)}


def measure_door(door: str, back: int, version: str, variant: str, seconds: float) -> Measurement:
    """Measure one variant through a door, some days back."""
    return make_measurement(
        f"{door} {back} {variant}",
        site="A",
        day=display_formats.day_number(display_formats.today() - timedelta(days=back)),
        door=door,
        door_protocol="root",
        server_version=f"XRootD {version}",
        variant=variant,
        cpu_per_event_s=seconds,
        wall_per_event_s=seconds,
        plausible=True,
    )


def test_doors_are_compared_by_the_same_work(pages: ServiceThread) -> None:
    """Another mix of work is no change; an upgrade is a mark."""
    points = []
    for back, version, factor in ((3, "v5.8.1", 1.0), (1, "v6.2.0", 1.5)):
        for variant, seconds in ((LIGHT, 1.0), (HEAVY, 10.0)):
            points.append(("testing", back, version, variant, factor * seconds))
            # The stable door reads the heavy variant on the second day alone.
            if variant == LIGHT or back == 1:
                points.append(("stable", back, "v5.8.1", variant, seconds))
    add(pages, itertools.starmap(measure_door, points))
    tables = pages.load_tables("/sites/A")
    page = pages.load_page("/sites/A")
    days = [[row[name] for name in ("door", "cpu_per_event_s")] for row in tables["door_days"]]
    assert [door for door, _ in days] == ["stable", "testing"] * 2
    before, after = (math.log1p(days[n + 1][1]) - math.log1p(days[n][1]) for n in (0, 2))
    assert after == pytest.approx(math.log(1.5))
    assert before == pytest.approx(0, abs=1e-6), "whatever they read"
    (change,) = [row for row in tables["changes"] if row["what"] == "server version"]
    assert change["thing"] == "door testing (root)"
    assert page.count('"text": "door testing (root): server version XRootD v6.2.0"') == 2
    assert "Wall time per event by door" in page
    assert f"on {change['day']}, too few days to judge." in pages.read("/sites/A").text


def test_effect_of_a_servers_version_is_said(pages: ServiceThread) -> None:
    """By the days before and after, as far as the neighboring changes of its version."""
    for back in range(1, 10):
        version, factor = ("v6.2.0", 1.25) if back < 5 else ("v5.8.1", 1.0)
        seconds = factor * (1 + 0.002 * (back % 3))
        add(pages, [measure_door("near", back, version, LIGHT, seconds)])
    (change,) = pages.load_tables("/sites/A")["changes"]
    assert change["effect"].startswith("+2")
    page = pages.read("/sites/A").text
    sentence = f"door near (root): server XRootD v5.8.1 → XRootD v6.2.0 on {change['day']}, wall time per event"
    assert f"{sentence} {change['effect']}." in page


DAY = date.fromisoformat(str(STARTED_DAY))


def test_days_are_shown_by_either_site(pages: ServiceThread) -> None:
    pages.store.add(
        [
            make_measurement(position=1, site="A", storage_site="B"),
            make_measurement(position=2, site="A", storage_site="C"),
            make_measurement(position=3, site="A"),  # from before it was recorded
        ]
    )

    def count_by_site(by: str) -> dict[str, int]:
        answer = pages.client.get(f"/?format=json&to={DAY}&by={by}").json()
        rows = answer["tables"]["site_days"]
        return {row["site"]: row["good"] for row in rows if row["day"] == str(DAY)}

    assert count_by_site("site") == {"A": 3}
    assert count_by_site("storage_site") == {"A": 1, "B": 1, "C": 1}
    page = pages.read(f"/?to={DAY}&by=storage_site")
    explored = page.list_links("/explore.*where=storage_site")
    assert len(explored) == 3
    assert "storage_site=B" in pages.read(explored[1]).text
    # Only A has a page: no job ran at the others.
    assert {*page.list_links("/sites/.")} == {"/sites/A"}
    assert pages.client.get("/?by=door", headers=BROWSER).status_code == 400
