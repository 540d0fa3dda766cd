"""The heat map of a comparison, its filters, and the charts of one cell."""

from __future__ import annotations

import html
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from measurement_factory import build_verdict, make_measurement
from page_charts import list_marks, load_charts
from page_tables import read_tables
from service_thread import ServiceThread, run_service

from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.comparison.count_changes import CounterChange
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, Sample
from treehammer.analysis.statistics.verdict import ControlCheck, attach_controls
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.hctests.definition.model import Variant
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.web.pages.effect_matrix import matrix_of_counters, matrix_of_verdicts

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
    page = html.unescape(service.load_page(address))
    first = page.split("</h1>")[1].lstrip()
    assert first.startswith('<p class="headline">Do not trust this result: the control')
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
    "shown, expected",
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
    compared: tuple[ServiceThread, str],
    shown: dict[str, str],
    expected: set[tuple[str, str]],
) -> None:
    service, address = compared
    rows = service.load_tables(f"{address}?{urlencode(shown)}")["by_site"]
    assert {(row["site"], row["label"]) for row in rows} == expected
    assert {row["metric"] for row in rows} <= {
        shown.get("metric", name) for name in ("cpu_per_event_s", "wall_per_event_s")
    }
    told = service.client.get(
        f"{address.replace('/compare/', '/api/v1/comparisons/')}?{urlencode(shown)}"
    )
    assert len(told.json()["tables"]["by_site"]) == len(rows)


def test_filter_is_shown_and_can_be_removed(compared: tuple[ServiceThread, str]) -> None:
    service, address = compared
    page = html.unescape(service.load_page(f"{address}?site=SLOW&metric=wall_per_event_s"))
    (removal,) = re.findall(r'href="(.*?)" aria-label="Remove the filter site SLOW"', page)
    assert removal == "?metric=wall_per_event_s"
    assert 'aria-current="true">wall</a>' in page


def test_cell_opens_jobs_and_trend(compared: tuple[ServiceThread, str]) -> None:
    service, address = compared
    page = html.unescape(service.load_page(address))
    (link,) = re.findall(r'class="worse-3" title[^<]*<a href="(.*?)#cell"', page)
    jobs, trend = load_charts(service.load_page(f"{address}{link}"))
    assert [mark["s"] for mark in list_marks(jobs)] == [0] * 12 + [1] * 12, "both sides of each job"
    changes = [mark["y"] for mark in list_marks(trend) if mark["s"] == 0]
    assert len(changes) == len(DAYS)
    assert all(abs(one - 30) < 1.5 for one in changes)


def test_live_comparison_has_matrix_and_filters(compared: tuple[ServiceThread, str]) -> None:
    service, _ = compared
    asked = "/compare?a=6.38.00&b=6.40.00&recompute=1"
    assert read_matrix(service.load_page(asked))["cache_mb=0", "SLOW"][1] == "+30"
    assert "Jobs and trend" in service.load_page(f"{asked}&site=SLOW&variant=cache_mb%3D0")
    told = service.client.get(f"/api/v1{asked}&site=FAST")
    assert {row["site"] for row in told.json()["tables"]["by_site"]} == {"FAST"}


def test_cell_of_a_load_test_has_no_trend(tmp_path: Path) -> None:
    """Figures know no daily means of a load test's headline metrics."""
    conditions: dict[str, list[str]] = {
        name: [] for name in ("campaigns", "where", "where_a", "where_b")
    }
    evidence = json.dumps({"of_a": {"site": "A"}, "of_b": {"site": "A"}, **conditions})
    rows = [build_verdict("load", scope="site", site="A", metric="open_p99_s", evidence=evidence)]
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.replace_comparison("load", [], rows)
    with run_service(tmp_path, reading_open=True) as service:
        page = service.load_page("/compare/load?site=A&variant=all")
    assert "Jobs and trend" not in page


def test_several_series_of_a_cell_show_the_most_certain() -> None:
    rows = [
        build_verdict("c", scope="site", site="A", verdict="undecided", effect=0.4),
        build_verdict("c", scope="site", site="A", verdict="slower", effect=0.05),
        build_verdict("c", scope="site", site="B", verdict="different", effect=-1.2),
    ]
    matrix = matrix_of_verdicts(rows, lambda site, variant: f"{site}/{variant}")
    assert matrix is not None
    ((_, cells),) = matrix.rows
    assert [(cell.text, cell.css_class) for cell in cells] == [
        ("+5", "worse-2"),
        ("≪", "pale better-1"),
    ]
    assert cells[0].description.endswith("the largest of 2 series")
    assert matrix_of_verdicts(rows[2:], lambda *_: "") is None, "one cell is no map"


@pytest.mark.parametrize(
    "metric, verdict, effect, expected",
    [
        ("read_calls", "more", 0.7, ("worse-3", "≫")),
        ("read_calls", "fewer", -0.05, ("better-2", "−5")),
        ("read_calls", "same", 0.0, ("equal", "0")),
        ("read_calls", "varies", 0.1, ("missing", "–")),
        ("read_calls", "more", None, ("worse-1", "–")),
    ],
)
def test_counters_have_a_matrix(
    metric: str, verdict: str, effect: float | None, expected: tuple[str, str]
) -> None:
    changes = [
        CounterChange("counter", site, "all", metric, verdict, 1.0, 2.0, effect, 3)
        for site in ("A", "B")
    ]
    matrix = matrix_of_counters(changes, lambda *_: "")
    assert matrix is not None
    cell = matrix.rows[0][1][0]
    assert (cell.css_class, cell.text) == expected


def test_stored_comparison_needs_no_statistics_library() -> None:
    """The first page after a start must not wait for scipy, and no page for scipy.stats."""
    code = (
        "import sys, treehammer.web.pages.comparison_page; print('scipy' in sys.modules);"
        "import treehammer.web.service.app; print('scipy.stats' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
