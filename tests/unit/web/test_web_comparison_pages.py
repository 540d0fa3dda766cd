"""Pages of comparisons: matrices, filters, background computation, and the best door."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from measurement_factory import build_verdict, make_measurement
from page_contents import list_marks, load_charts, read_tables
from polling import wait_until
from service_thread import ServiceThread, run_service

from treehammer.analysis.comparison import compared_sides
from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.descriptive.door_comparison import is_sparse_read
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, Sample
from treehammer.analysis.statistics.verdict import attach_controls
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.hctests.definition.model import Variant
from treehammer.sql.core.evidence import ControlCheck, VerdictEvidence
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.web.pages import comparison_list_page
from treehammer.web.pages.effect_matrix import matrix_of_verdicts

RELEASES = ("6.38.00", "6.40.00")
#: Days of the jobs of one cell.
DAYS = (20261101, 20261108, 20261115)
CHANGES = {("FAST", "0"): 0.9, ("SLOW", "0"): 1.3, ("SLOW", "30"): 1.04}


def measure() -> Iterator[Measurement]:
    """Two variants at three sites; MISSING has no second release for the first of them."""
    dice = random.Random(5)
    for site in ("FAST", "SLOW", "MISSING"):
        for cache in ("0", "30"):
            for number in range(12):
                for position, release in enumerate(RELEASES, 1):
                    if (site, cache, release) == ("MISSING", "0", RELEASES[1]):
                        continue
                    change = CHANGES.get((site, cache), 1.0) if position == 2 else 1.0
                    seconds = dice.gauss(0.02, 0.0001) * change
                    variant: dict[str, Any] = {"root": release, "cache_mb": int(cache)}
                    yield make_measurement(
                        f"{site}-{cache}-{number}",
                        1,
                        position,
                        variant=Variant(tuple(variant.items())).canonical_json,
                        axis_root=release,
                        site=site,
                        host=f"node{number % 4}",
                        day=DAYS[number % 3],
                        cpu_per_event_s=seconds,
                        wall_per_event_s=1.2 * seconds,
                        loop_cpu_s=5.0,
                        plausible=True,
                    )


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceThread, str]]:
    """A service, and the address of a stored comparison."""
    folder = tmp_path_factory.mktemp("compared")
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        store.add(measure())
        samples = [Sample.from_row(row) for row in store.measurements(Selection(), SAMPLE_COLUMNS)]
        query = ComparisonQuery("root", *RELEASES, 0.02, Selection())
        made = compare_samples(samples, query, now_us=1_795_000_000_000_000)
        off = ControlCheck("cpu_per_event_s", RELEASES[0], 6, 0.08, 0.01, 0.07, 0.09)
        store.replace_comparison(query.id, made.pairs, attach_controls(made.verdicts, [off]))
    with run_service(folder, reading_open=True) as service:
        yield service, f"/compare/{query.id}"


def read_matrix(page: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Return class and text of each cell of the page's heat map by variant and site."""
    matrix = read_tables(page)["matrix"]
    return {
        (row["variant"].text, matrix.columns[column]): (cell.css_class, cell.text.split(" ")[0])
        for row in matrix.cells
        for column, cell in row.items()
        if column != "variant"
    }


def test_page_begins_with_conclusion_and_doubt(compared: tuple[ServiceThread, str]) -> None:
    service, address = compared
    page = service.read(address)
    (first,) = page.list_texts("p", "headline")
    assert first.startswith("Do not trust the CPU time: the control")
    about = service.client.get(address.replace("/compare/", "/api/v1/comparisons/")).json()["about"]
    assert about["conclusion"] in first
    assert any(note.startswith("Controls are off") for note in about["notes"])


def test_matrix_shows_each_variant_at_each_site(compared: tuple[ServiceThread, str]) -> None:
    service, address = compared
    cells = read_matrix(service.load_page(address))
    assert cells["cache_mb=0", "SLOW"] == ("worse-3", "+30")
    assert cells["cache_mb=30", "SLOW"] == ("worse-2", "+4")
    assert cells["cache_mb=0", "FAST"] == ("better-3", "−10")
    assert cells["cache_mb=30", "FAST"] == ("equal", "0")
    assert cells["cache_mb=0", "MISSING"] == ("missing", "–")
    sites = [site for label, site in cells if label == "cache_mb=0"]
    assert sites == ["all sites", "SLOW", "MISSING", "FAST"], "the slowest site first"


@pytest.mark.parametrize(
    "choices, expected",
    [
        ({"site": "SLOW"}, {("SLOW", "cache_mb=0"), ("SLOW", "cache_mb=30")}),
        ({"verdict": "faster"}, {("FAST", "cache_mb=0")}),
        (
            {"variant": "cache_mb=30", "metric": "wall_per_event_s"},
            {("FAST", "cache_mb=30"), ("MISSING", "cache_mb=30"), ("SLOW", "cache_mb=30")},
        ),
        ({"site": "none"}, set()),
    ],
)
def test_filters_choose_rows(
    compared: tuple[ServiceThread, str], choices: dict[str, str], expected: set[tuple[str, str]]
) -> None:
    service, address = compared
    rows = service.load_tables(f"{address}?{urlencode(choices)}")["by_site"]
    assert {(row["site"], row["label"]) for row in rows} == expected
    assert {row["metric"] for row in rows} <= {
        choices.get("metric", name) for name in ("cpu_per_event_s", "wall_per_event_s")
    }
    answer = service.client.get(
        f"{address.replace('/compare/', '/api/v1/comparisons/')}?{urlencode(choices)}"
    )
    assert len(answer.json()["tables"]["by_site"]) == len(rows)


def test_filter_is_shown_and_can_be_removed(compared: tuple[ServiceThread, str]) -> None:
    service, address = compared
    page = service.read(f"{address}?site=SLOW&metric=wall_per_event_s")
    links = {
        element.attributes.get("aria-label", element.text): element.attributes
        for element in page.elements
        if element.tag == "a"
    }
    assert links["Remove the filter site SLOW"]["href"] == "?metric=wall_per_event_s"
    assert links["wall"]["aria-current"] == "true"


def test_cell_opens_jobs_and_trend(compared: tuple[ServiceThread, str]) -> None:
    service, address = compared
    cells = [cell for row in service.read(address).tables["matrix"].cells for cell in row.values()]
    (link,) = (cell.link.partition("#")[0] for cell in cells if cell.css_class == "worse-3")
    jobs, trend = load_charts(service.load_page(f"{address}{link}"))
    assert [mark["s"] for mark in list_marks(jobs)] == [0] * 12 + [1] * 12, "both sides of each job"
    changes = [mark["y"] for mark in list_marks(trend) if mark["s"] == 0]
    assert len(changes) == len(DAYS)
    assert all(abs(change - 30) < 1.5 for change in changes)


def test_live_comparison_has_matrix_and_filters(compared: tuple[ServiceThread, str]) -> None:
    service, _ = compared
    asked = "/compare?a=6.38.00&b=6.40.00&recompute=1"
    assert read_matrix(service.load_page(asked))["cache_mb=0", "SLOW"][1] == "+30"
    assert "Jobs and trend" in service.load_page(f"{asked}&site=SLOW&variant=cache_mb%3D0")
    answer = service.client.get(f"/api/v1{asked}&site=FAST")
    assert {row["site"] for row in answer.json()["tables"]["by_site"]} == {"FAST"}


def test_cell_of_a_load_test_has_no_trend(pages: ServiceThread) -> None:
    """Figures know no daily means of a load test's headline metrics."""
    evidence = VerdictEvidence(
        of_a={"site": "A"}, of_b={"site": "A"}, campaigns=(), where=(), where_a=(), where_b=()
    )
    rows = [build_verdict("load", scope="site", site="A", metric="open_p99_s", evidence=evidence)]
    pages.store.replace_comparison("load", [], rows)
    page = pages.load_page("/compare/load?site=A&variant=all")
    assert "Jobs and trend" not in page


def test_several_series_of_a_cell_show_the_most_certain() -> None:
    rows = [
        build_verdict("c", scope="site", site="A", verdict="undecided", effect=0.4),
        build_verdict("c", scope="site", site="A", verdict="slower", effect=0.05),
        build_verdict("c", scope="site", site="B", verdict="different", effect=-1.2),
    ]
    matrix = matrix_of_verdicts(rows, lambda site, variant: f"{site}/{variant}")
    assert matrix is not None
    cells = [matrix.rows[0][f"site:{site}"] for site in "AB"]
    assert [(cell.text, cell.css_class) for cell in cells] == [
        ("+5", "worse-2"),
        ("≪", "pale better-1"),
    ]
    assert cells[0].description.endswith("the largest of 2 series")
    assert matrix_of_verdicts(rows[2:], lambda *_: "") is None, "one cell is no map"


def compare(
    a: str, b: str, *judged: tuple[str, float | None], scope: str = "sites", test: str = "read"
) -> list[VerdictRow]:
    sides = [{"test_name": test, "site": site} for site in "AB"]
    evidence = VerdictEvidence(of_a=sides[0], of_b=sides[1])
    return [
        build_verdict(
            "x",
            a=a,
            b=b,
            scope=scope,
            site="" if scope == "sites" else "A",
            label=str(number),
            verdict=verdict,
            effect=effect,
            low=effect,
            evidence=evidence,
        )
        for number, (verdict, effect) in enumerate(judged)
    ]


@pytest.fixture
def service(pages: ServiceThread) -> ServiceThread:
    compared = {
        "old": compare("6.36", "6.38", ("slower", 0.5)),
        "new": compare("6.36", "6.38", ("faster", -0.05), ("faster", -0.03), ("same", 0.0)),
        "both": compare("6.38", "6.40", ("slower", 0.05), ("faster", -0.1), ("undecided", 0.01)),
        "site": compare("6.36", "6.40", ("same", 0.001), ("only in A", None), scope="site"),
        "other": compare("6.38", "6.40", ("slower", 0.2), test="lonely"),
        "again": compare("6.36", "6.40", ("too little read", None)),
        "short": compare("6.38", "6.42", ("too little read", None), ("not enough data", None)),
    }
    for place, (identity, rows) in enumerate(compared.items()):
        changed = [replace(row, comparison_id=identity, created_us=place + 1) for row in rows]
        pages.store.replace_comparison(identity, [], changed)
    return pages


def test_newest_comparison_of_each_pair_is_shown(service: ServiceThread) -> None:
    page = service.read("/compare")
    (matrix,) = (table for name, table in page.tables.items() if name != "comparisons")
    assert page.charts == []  # No base has effects of two releases over sites.
    assert [*matrix.columns.values()] == ["compared with", "6.38", "6.40", "6.42"]
    cells = [
        (cell.css_class, cell.tooltip, cell.link.rpartition("/")[2], cell.text)
        for row in matrix.cells
        for cell in row.values()
        if cell.link
    ]
    assert cells == [
        ("better-2", "6.38 against 6.36: 2 faster, 1 same over sites", "new", "−3.9 % in 2 of 3"),
        ("equal", "6.40 against 6.36: 1 same, 1 only in A by site", "site", "same"),
        (
            "worse-2",
            "6.40 against 6.38: 1 faster, 1 slower, 1 undecided over sites",
            "both",
            "−9.5 % in 1 of 3, +5.1 % in 1 of 3",
        ),
        (
            "open",
            "6.42 against 6.38: 1 not enough data, 1 too little read over sites",
            "short",
            "no verdict",
        ),
    ]


def test_too_many_measurements_are_refused(
    filled_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_list_page, "MAX_READ", 10)
    monkeypatch.setattr(comparison_list_page, "MAX_BACKGROUND_READ", 20)
    answer = filled_service.client.get("/compare?a=6.38.00&b=6.40.00&recompute=1")
    assert answer.status_code == 400
    assert "the limit here is 20" in answer.json()["error"]


LARGE = "/compare?a=6.38.00&b=6.40.00&recompute=1"


@pytest.fixture
def paused_comparisons(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Every comparison runs in the background, and only once the event is set."""
    event = threading.Event()
    compare = compared_sides.compare_now

    def compare_later(*args: Any, **kwargs: Any) -> Any:
        if not kwargs["max_read"]:
            kwargs["on_progress"](7)
            assert event.wait(60)
        return compare(*args, **kwargs)

    monkeypatch.setattr(comparison_list_page, "MAX_READ", 10)
    monkeypatch.setattr(comparison_list_page, "compare_now", compare_later)
    yield event
    event.set()
    for thread in _list_comparisons():
        thread.join(60)


def test_large_comparisons_run_in_background(
    filled_service: ServiceThread, paused_comparisons: threading.Event
) -> None:
    get = filled_service.client.get
    wait_until(lambda: "Read 7 of" in get(LARGE, headers={"Accept": "text/html"}).text, "no page")
    page = get(LARGE, headers={"Accept": "text/html"})
    assert page.status_code == 202
    assert '<meta http-equiv="refresh" content="2">' in page.text
    answer = get(f"{LARGE}&format=json")
    assert (answer.status_code, answer.headers["Retry-After"]) == (202, "2")
    assert answer.json()["count"] > 10
    # Two others wait for it, a fourth one fits, and a fifth one is refused.
    codes = [get(f"{LARGE}&delta=0.0{n}").status_code for n in range(3, 7)]
    assert codes == [202, 202, 202, 503]
    paused_comparisons.set()
    wait_until(lambda: get(LARGE).status_code == 200, "no result")
    assert get(f"{LARGE}&format=json").json()["tables"]["by_site"]


def test_background_comparison_that_nobody_awaits_ends(
    filled_service: ServiceThread,
    paused_comparisons: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"{LARGE}&delta=0.011&format=json"
    wait_until(lambda: filled_service.client.get(address).json()["read"], "no progress")
    (thread,) = _list_comparisons()
    monkeypatch.setattr(comparison_list_page, "ABANDONED_AFTER_S", -1.0)
    paused_comparisons.set()
    thread.join(60)
    monkeypatch.undo()
    # Nothing is kept of it: the same query is computed anew, at once.
    assert filled_service.client.get(address).status_code == 200


def _list_comparisons() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "comparison"]


def test_all_releases_are_drawn_against_the_base_of_most_comparisons(pages: ServiceThread) -> None:
    effects = {
        ("6.34.08", "6.38.00"): 0.001,
        ("6.34.08", "6.40.00"): 0.05,
        ("6.38.00", "6.40.00"): 0.05,
    }
    for number, ((a, b), effect) in enumerate(effects.items()):
        row = build_verdict(
            str(number), a=a, b=b, label="branches=4%", verdict="slower" if effect > 0.02 else "same",
            effect=effect, low=effect - 0.005, high=effect + 0.005,
        )  # fmt: skip
        pages.store.replace_comparison(str(number), [], [row])
    (chart,) = load_charts(pages.load_page("/compare"))
    lines = {mark["line"]: round(mark["effect"], 1) for mark in list_marks(chart)}
    assert lines == {"6.38.00 · 4 % of the branches": 0.1, "6.40.00 · 4 % of the branches": 5.1}


DOORS = "/compare?axis=door&where=day>=20260301"
SPARSE, FULL = '{"branches":0.02}', '{"branches":1.0}'


def make_day(door: str, site: str, day: int, seconds: float, variant: str = SPARSE) -> Measurement:
    return make_measurement(
        f"{door}-{site}-{day}-{len(variant)}",
        site=site,
        day=20260301 + day if day < 30 else 20260607,
        door=door,
        door_protocol=door,
        variant=variant,
        wall_per_event_s=seconds,
        plausible=True,
    )


def make_days(sparse: dict[str, float]) -> Iterator[Measurement]:
    for site in ("A", "B"):
        for day in range(5):
            for number, (door, seconds) in enumerate(sparse.items()):
                wobble = 1 + 0.01 * ((day + number) % 3)
                yield make_day(door, site, day, seconds * wobble)
                # Full reads rank the doors the other way round.
                yield make_day(door, site, day, wobble / seconds, FULL)


def test_answer_names_the_door_with_its_certainty(pages: ServiceThread) -> None:
    pages.store.add(make_days({"xrootd": 1.0, "https": 1.25}))
    redirected = pages.client.get("/figures/doors?where=site=A&where=site=B&format=html")
    assert "format=html" in redirected.headers["location"]
    door, protocol = pages.read(redirected.headers["location"]).list_texts("p", "headline")
    assert door.startswith("xrootd is the best door for reads of few branches: https is 25.")
    assert "n = 10 days with both at 2 sites" in door
    assert protocol == door.replace(" door ", " protocol ")
    pages.store.add([make_day("xrootd", "A", 98, 1.0)])  # in June
    assert "all reads of few branches went through xrootd" in pages.read("/compare?axis=door").text
    assert "xrootd is the best door" in pages.read(DOORS).text


def test_equal_doors_have_no_best(pages: ServiceThread) -> None:
    pages.store.add(make_days({"xrootd": 1.0, "https": 1.001}))
    page = pages.read(DOORS).text
    assert "No door is certainly the best for reads of few branches" in page


def test_intervals_of_several_doors_name_their_common_confidence(pages: ServiceThread) -> None:
    pages.store.add(make_days({"xrootd": 1.0, "https": 1.25, "file": 1.5}))
    assert pages.read(DOORS).list_texts("p", "headline")[0].count("(98.3 % interval [") == 2


def test_tied_doors_are_not_compared(pages: ServiceThread) -> None:
    pages.store.add(
        make_day(door, "A", day, 1.0, f'{{"branches":{share}}}')
        for door, share in (("xrootd", 0.02), ("https", 0.04))
        for day in range(3)
    )
    page = pages.read(DOORS).text
    assert "No door can be named: no site did the same reads" in page
    assert "Each variant has one door only" in page


def test_explore_links_the_answer(pages: ServiceThread) -> None:
    pages.store.add(make_days({"xrootd": 1.0}))
    (link,) = pages.read("/explore?site=A").list_links("/compare.*axis=door")
    assert "where=site%3DA" in link
    assert "all reads of few branches went through xrootd" in pages.read(link).text


@pytest.mark.parametrize(
    ("variant", "is_sparse"),
    [
        (SPARSE, True),
        (FULL, False),
        ('{"branches":"@analysis.txt"}', True),
        ('{"branches":0.6}', False),
        ('{"cache":"warm"}', False),
        ("not JSON", False),
        ("[1]", False),
    ],
)
def test_reads_are_told_by_their_branches(variant: str, is_sparse: bool) -> None:
    assert is_sparse_read(variant) == is_sparse
