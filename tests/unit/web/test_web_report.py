"""The campaign report: contents, values and escaping."""

from __future__ import annotations

import functools
import json
import math
import re
import statistics
import weakref
from collections.abc import Iterable, Mapping, Sequence
from html.parser import HTMLParser
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import pytest
from measurement_factory import build_verdict, make_campaign_row
from page_contents import agrees_with, find_heading_unit, read_tables
from simulated_campaign import START_US, SimulatedCampaign

from treehammer.analysis.comparison.comparison_result import judge_campaign
from treehammer.analysis.comparison.verdict_text import title_metric
from treehammer.analysis.statistics.job_pairs import MeanAndRms, Row
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.write.store import Store
from treehammer.web import report_figures
from treehammer.web.campaign_report import REPORT_COLUMNS, CampaignReport, render_report
from treehammer.web.display_formats import format_mean_and_rms
from treehammer.web.figures.figure_layout import PALETTE, choose_release_colors
from treehammer.web.figures.forest_plot import ForestPlot
from treehammer.web.report_figures import (
    ExecutionCell,
    draw_efficiency_figure,
    summarize_executions,
)

HOSTILE = "<script>alert(1)</script>\"'&$\\frac{x}$_é\u202e"
URL = re.compile(
    r"(?:src|href|action|data|poster|srcset)\s*=\s*[\"']?([^\"'\s>]+)|url\(([^)]*)\)|@import", re.I
)


def columns(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in REPORT_COLUMNS} for row in rows]


def campaign_row(**changes: Any) -> CampaignRow:
    row: dict[str, Any] = {
        "name": "ttree-read nightly",
        "created_us": START_US,
        "repository": "https://git.example/tests.git",
        "ref": "main",
        "commit_id": "0123456789abcdef",
        "dirty": False,
        "test_name": "ttree-read",
        "test_path": "hctests/ttree-read",
        "plan": json.dumps({"definition": RELEASES}),
        "planned_jobs": 8,
        "planned_measurements": 32,
    }
    return make_campaign_row("campaign-1", **(row | changes))


#: What a campaign of two releases was submitted to compare.
RELEASES = {"axes": {"root": ["6.38.00", "6.40.00"]}, "bundle": ["root"], "mode": "solo"}


@functools.cache
def open_empty_store() -> Store:
    folder = TemporaryDirectory()
    store = Store.open(f"sqlite:///{folder.name}/results.db")
    weakref.finalize(store, folder.cleanup)
    return store


def report_of(
    rows: Iterable[Mapping[str, Any]], *, undisturbed: Sequence[Row] = (), **changes: Any
) -> CampaignReport:
    campaign, measured = campaign_row(**changes), columns(rows)
    verdict = judge_campaign(open_empty_store(), campaign, measured)
    return CampaignReport(campaign, measured, verdict, START_US, undisturbed)


def page_of(rows: Iterable[Mapping[str, Any]], **changes: Any) -> str:
    return render_report(report_of(rows, **changes))


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures, which take most of the time of a report."""
    for name in ("draw_efficiency_figure", "draw_forest"):
        monkeypatch.setattr(report_figures, name, lambda *_: None)


class Page(HTMLParser):
    """Tags, ids and text of a page; raises for tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "link", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.mark.usefixtures("without_figures")
def test_report_names_changed_phase() -> None:
    rows = list(SimulatedCampaign(jobs=6).rows())
    for number, row in enumerate(rows):
        added_s = 0.5 if row["axis_root"] == "6.40.00" else 0.0
        unzip_s = 4.0 + added_s + 0.01 * (number % 3)
        row |= {"perfstats_unzip_s": unzip_s, "loop_cpu_s": 8.0 + added_s, "perfstats_read_s": 1.0}
    assert "by phase, in % of the loop's CPU: decompress +6." in Page(page_of(rows)).text


def assert_spread(text: str, rows: Sequence[Mapping[str, Any]], metric: str, unit: str) -> None:
    """Check a cell such as ``0.102 ± 0.003`` beside the mean and the RMS around it."""
    values = [row[metric] for row in rows if row.get(metric) is not None]
    mean, _, rms = text.partition("±")
    assert agrees_with(mean, statistics.fmean(values) if values else None, unit), (metric, text)
    assert not rms or agrees_with(rms, statistics.pstdev(values), unit), (metric, text)


@pytest.mark.usefixtures("without_figures")
def test_report_shows_the_numbers_of_its_measurements() -> None:
    rows = list(SimulatedCampaign(branches=(1.0, 0.02), jobs=3).rows())
    means = read_tables(page_of(rows))["means"]
    assert len(means.rows) == 4
    for cells in means.rows:
        share = 0.02 if "2%" in cells["variant"] else 1.0
        cell = [
            row
            for row in rows
            if (row["site"], row["axis_root"]) == (cells["place"], cells["value"])
            and row["kind"] == "timed"
            and json.loads(row["variant"])["branches"] == share
        ]
        assert int(cells["executions"]) == len(cell) == 6
        assert int(cells["jobs"]) == len({row["job_id"] for row in cell})
        assert int(cells["hosts"]) == len({row["host"] for row in cell})
        for metric, heading in means.columns.items():
            if metric in METRICS_BY_NAME and METRICS_BY_NAME[metric].type in ("int", "float"):
                assert_spread(cells[metric], cell, metric, find_heading_unit(heading))


def test_report_is_well_formed_without_external_resources() -> None:
    text = page_of(SimulatedCampaign(sites=("T2_A", "T2_B"), branches=(1.0, 0.02)).rows())
    for match in URL.finditer(text):
        target = match[1] or match[2] or match[0]
        assert target.startswith(("#", "data:")), target
    assert "default-src 'none'" in text
    page = Page(text)
    assert "script" not in page.tags
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("h1") == 1
    assert page.tags.count("svg") == 2
    assert page.tags.count("figcaption") == 2
    assert page.tags.count("th") > 20


def test_report_counts_each_planned_execution_once(without_figures: None) -> None:
    rows = list(SimulatedCampaign(effect=0.06).rows())
    earlier = {**rows[0], "attempt": 0, "failure_class": "open", "failure_message": "no such file"}
    rows[5] |= {"failure_class": "evicted"}
    report = report_of([earlier, *rows], planned_measurements=len(rows))
    assert (len(report.rows), report.missing_count) == (len(rows) - 1, 1)
    assert report.failures == ()


@pytest.mark.usefixtures("without_figures")
def test_report_has_results_provenance_and_failures() -> None:
    rows = list(SimulatedCampaign(effect=0.06).rows())
    rows[0] |= {
        "failure_class": "open",
        "failure_kind": "timeout",
        "failure_phase": "open",
        "failure_message": "the door did not answer",
    }
    rows[5] |= {"plausible": False, "implausible_reasons": "efficiency above the cores"}
    # A check of values compiles no loop, and is no build of its own.
    rows[9] |= {"kind": "checksum", "loop_compiler": "no compiler"}
    assert "ROOT builds" not in page_of([{**rows[0], "axis_root": "none"}])
    page = Page(page_of(rows, dirty=True, planned_measurements=34)).text
    for expected in (
        "ttree-read nightly",
        "At T2_A, ROOT 6.40.00 needs 6.",
        "https://git.example/tests.git at main",
        "with uncommitted changes",
        "reference-small (dddddddddddd)",
        "gcc1421",
        "Example CPU 3000",
        "the door did not answer",
        "efficiency above the cores",
        "2 planned executions have no measurement",
        "32 of 34",
    ):
        assert expected in page
    assert "no compiler" not in page


@pytest.mark.usefixtures("without_figures")
def test_single_host_is_judged_for_itself() -> None:
    rows = list(SimulatedCampaign(hosts=1, effect=0.1).rows())
    report = report_of(rows)
    assert report_of([*rows, {**rows[0], "host": None}]).hosts == report.hosts
    assert report.title.startswith("On this host, ROOT 6.40.00 needs ")
    assert "on this host (8 jobs)" in Page(render_report(report)).text


@pytest.mark.usefixtures("without_figures")
def test_single_release_has_no_comparison() -> None:
    definition = {"axes": {"root": ["6.40.00"]}, "bundle": ["root"], "description": "All <muons>"}
    rows = list(SimulatedCampaign(roots=("6.40.00",)).rows())
    report = report_of(rows, plan=json.dumps({"definition": definition}))
    assert report.comparisons == ()
    page = Page(render_report(report))
    assert "comparison" not in page.ids
    assert "All <muons>" in page.text
    # Of the two requested releases one is missing.
    (problem,) = report_of(rows).verdict.problems
    assert problem == "Nothing was measured with root=6.38.00, so nothing is compared."


def test_report_of_failures_only() -> None:
    failed = {"failure_class": "software-setup", "eff_job": None, "cpu_per_event_s": None}
    page = Page(page_of(row | failed for row in SimulatedCampaign().rows()))
    assert "svg" not in page.tags
    assert "CPU efficiency" not in page.text
    assert page.text.startswith("At T2_A, ROOT 6.40.00 and 6.38.00 are not compared")


@pytest.mark.usefixtures("without_figures")
def test_title_is_the_verdict_and_text_goes_on() -> None:
    report = report_of(SimulatedCampaign(effect=0.06).rows())
    text = Page(render_report(report)).text
    assert re.match(r"At T2_A, ROOT 6\.40\.00 needs .* more CPU time per event", report.title)
    # The title of the document, and its heading.
    assert text.count(report.title) == 2
    assert text.index("ROOT 6.40.00 against 6.38.00") < text.index("CPU efficiency by variant")
    assert text.index("CPU efficiency by variant") < text.index("What was measured")
    solo = report_of(SimulatedCampaign(roots=("6.40.00",)).rows())
    mean = statistics.mean(row["eff_job"] for row in SimulatedCampaign(roots=("6.40.00",)).rows())
    assert solo.title == f"CPU efficiency {100 * mean:.0f} % at 1 site, test ttree-read"


COMMITS = ("a" * 40, "b" * 40)


@pytest.mark.parametrize(
    ("axis", "sides", "names"),
    [
        ("commit", COMMITS, ["aaaaaaaaaa", "bbbbbbbbbb"]),
        ("format", ("ttree", "rntuple"), ["ttree", "rntuple"]),
        ("cache_mb", (0, 30), ["0", "30"]),
        ("door", ("root", "https"), ["root", "https"]),
        ("cache", ("cold", "warm"), ["cold", "warm"]),
        ("branches", (0.02, 1.0), ["0.02", "1.0"]),
        ("dataset", ("plain", "zstd"), ["plain", "zstd"]),
        ("own_axis", ("x", "y"), ["x", "y"]),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.usefixtures("without_figures")
def test_report_judges_what_its_campaign_compared(
    axis: str, sides: tuple[Any, Any], names: list[str], is_turned: bool
) -> None:
    """Whatever the axis, the second requested value is judged against the first, and never averaged with it."""
    rows = []
    for row in SimulatedCampaign(effect=0.06).rows():
        place = int(row["axis_root"] == "6.40.00")
        values = {"root": "6.40.00", "branches": 1.0}
        if axis == "commit":
            row |= {"commit_id": sides[place], "test_hash": f"{place}" * 64}
        else:
            values[axis] = sides[place]
        variant = json.dumps(values, sort_keys=True, separators=(",", ":"))
        release = dict.fromkeys(("axis_root", "root_version", "root_commit"), "6.40.00")
        column = {axis: sides[place]} if axis in ("door", "dataset") else {}
        rows.append(row | {"variant": variant} | release | column)
    requested = [*reversed(sides)] if is_turned else [*sides]
    definition = {"axes": {"root": ["6.40.00"], axis: requested}, "bundle": [axis]}
    report = report_of(rows, plan=json.dumps({"definition": definition}))
    (result,) = report.verdict.results
    assert (result.comparison.query.a, result.comparison.query.b) == tuple(requested)
    first, second = (names[sides.index(value)] for value in requested)
    change = "less" if is_turned else "more"
    claim = f"{axis}.{second} needs .* {change} CPU time per event than {axis}.{first} "
    assert re.match(f"At T2_A, {claim}", report.title)
    assert sorted(cell.value for cell in report.cells) == sorted(names)
    text = Page(render_report(report)).text
    assert f"{second} against {first}" in text


@pytest.mark.usefixtures("without_figures")
def test_efficiencies_of_further_campaigns_are_the_second_section() -> None:
    paired = [
        {**row, "run_mode": "paired", "eff_job": None}
        for row in SimulatedCampaign(effect=0.06).rows()
    ]
    solo = columns(SimulatedCampaign(name="solo", jobs=1, sites=("T2_B",)).rows())
    report = report_of(paired, undisturbed=solo)
    assert report.efficiency == pytest.approx(statistics.mean(row["eff_job"] for row in solo))
    page = Page(render_report(report))
    assert [id_ for id_ in page.ids if "-" not in id_][:2] == ["comparison", "efficiency"]
    assert "mean over executions in solo mode, of the further campaigns too" in page.text
    assert f"T2_A ({report.hosts} hosts)" in page.text


def test_campaign_without_a_verdict_is_titled_by_its_efficiency() -> None:
    rows = [{**row, "loop_cpu_s": 0.1} for row in SimulatedCampaign(jobs=1).rows()]
    report = report_of(rows)
    assert report.title.startswith("CPU efficiency ")
    assert report.conclusions[0].startswith("On this host, too little was read to compare ROOT")


def test_forest_plot_has_the_verdicts_of_the_widest_scope() -> None:
    campaign = SimulatedCampaign(sites=("T2_A", "T2_B"), branches=(1.0, 0.02), effect=0.06)
    (comparison,) = report_of(campaign.rows()).comparisons
    plot = ForestPlot.of_comparisons([comparison.verdicts], comparison.query.delta)
    assert plot
    points = plot.specification["datasets"]["marks"]
    pooled = [row for row in comparison.over_sites if row.effect is not None]
    assert len(points) == len(pooled) == 4
    for point, row in zip(points, pooled, strict=True):
        assert point["effect"] == pytest.approx(100 * math.expm1(row.effect or 0))
        assert point["low"] < point["effect"] < point["high"]
        assert (point["metric"], point["claim"]) == (title_metric(row.metric), row.verdict)
    assert ForestPlot.of_comparisons([[]], 0.02) is None


def test_band_of_a_forest_plot_ends_at_the_limit_on_both_sides() -> None:
    """Equal distances in ln are none in per cent; the caption names the limit as all pages do."""
    plot = ForestPlot((build_verdict("c", verdict="same", effect=0.0, low=-0.1, high=0.1),), 0.2)
    band = plot.specification["spec"]["layer"][0]["encoding"]
    ends = [band[name]["datum"] for name in ("x", "x2")]
    assert ends == pytest.approx([-18.127, 22.140], abs=1e-3)
    assert "within the band, ±20 %, count as none" in plot.caption
    assert "95 %, or 90 % where they are the same." in plot.caption


def test_forest_plot_is_readable_beside_wide_intervals() -> None:
    claim = {"metric": "read_calls", "verdict": "slower"}
    wide, narrow = (
        build_verdict("c", effect=effect, low=0.1, high=high, label=f"cache={effect}", **claim)
        for effect, high in ((1.0, 15.0), (0.5, 0.9))
    )
    plot = ForestPlot.of_comparisons([[wide, narrow]], 0.02)
    assert plot is not None
    (marks,) = plot.specification["datasets"].values()
    assert {mark["claim"] for mark in marks} == {"worse"}
    assert {round(mark["high"]) for mark in marks} == {1000, round(100 * math.expm1(0.9))}
    assert "Intervals are cut off at 1,000 %." in plot.caption
    alone = ForestPlot.of_comparisons([[narrow]], 0.02)
    assert alone is not None
    assert "cut off" not in alone.caption


def test_nothing_of_a_pdf_lies_outside_its_sheet() -> None:
    import weasyprint

    campaign = SimulatedCampaign(
        sites=("T2_UK_SouthGrid_RALPP-Extended",), branches=(0.02,), jobs=2
    )
    rows = []
    for row in campaign.rows():
        variant = json.loads(row["variant"]) | {"_custom": "a-longer-setting-of-the-test"}
        failed = {"failure_class": "open", "failure_message": "no route " + "/path" * 30}
        changes: dict[str, Any] = {"variant": json.dumps(variant)}
        changes["host"] = f"worker-{row['host']}.cluster.physics.example.org"
        changes["root_features"] = "builtin_zstd " * 10
        rows.append(row | changes | (failed if row["round"] == 2 and row["repeat"] == 1 else {}))
    document = weasyprint.HTML(string=page_of(rows)).render()
    assert document.metadata.title
    outside = []
    for page in document.pages:
        sheet = page._page_box
        right = sheet.margin_left + sheet.width + 0.5
        outside += [
            getattr(box, "text", type(box).__name__)
            for box in sheet.descendants()
            if type(box).__name__.endswith(("TextBox", "ReplacedBox"))
            and not 0 <= box.position_x <= box.position_x + box.width <= right
        ]
    assert outside == []


def test_report_without_loop_metrics() -> None:
    bare = dict.fromkeys(
        ("cpu_per_event_s", "wall_per_event_s", "loop_wall_s", "eff_loop", "root_version")
    )
    report = report_of(row | bare for row in SimulatedCampaign().rows())
    assert report.comparisons == ()
    assert report.efficiency_figure is not None
    Page(render_report(report))


def test_hostile_text_is_escaped() -> None:
    rows = []
    for row in SimulatedCampaign(jobs=2).rows():
        variant = json.loads(row["variant"]) | {"_custom": f"{HOSTILE}{row['repeat']}"}
        rows.append(
            row
            | {
                "variant": json.dumps(variant),
                "site": HOSTILE,
                "host": HOSTILE,
                "variant_label": HOSTILE,
                "os_name": HOSTILE,
                "implausible_reasons": HOSTILE,
                "plausible": row["round"] == 1,
            }
        )
    text = page_of(rows, name=HOSTILE, repository="javascript:alert(1)", ref=HOSTILE)
    page = Page(text)
    assert "script" not in page.tags
    assert HOSTILE.partition("$")[0] in page.text
    assert "<a " not in text


def cells_of(**changes: Any) -> list[ExecutionCell]:
    return summarize_executions(columns(SimulatedCampaign(**changes).rows()))


@pytest.mark.parametrize("sites", [1, 12])
def test_efficiency_figure_shows_all_sites_and_variants(sites: int) -> None:
    names = tuple(f"T2_Site{i}" for i in range(1, sites + 1))
    cells = cells_of(sites=names, branches=(1.0, 0.02), cache_mb=(0.0, 30.0), jobs=2)
    drawing = draw_efficiency_figure(cells)
    assert drawing is not None
    root = ElementTree.fromstring(drawing.svg)
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert set(names) <= texts
    assert {"branches=2% cache_mb=30 · root=6.40.00"} <= texts
    assert "eff_job" in drawing.caption
    assert "RMS" in drawing.caption
    assert "n = 4" in drawing.caption
    assert root.attrib["role"] == "img"
    assert "T2_Site1, branches=2% cache_mb=0, 6.38.00: 0.6" in root.attrib["aria-label"]


def test_releases_have_distinct_colors() -> None:
    drawing = draw_efficiency_figure(
        cells_of(branches=(1.0, 0.02), cache_mb=(0.0, 3.0, 30.0), jobs=2)
    )
    assert drawing is not None
    colors = {color for color in PALETTE if color in drawing.svg}
    assert colors == {*choose_release_colors(["6.38.00", "6.40.00"]).values()}
    assert "currentColor" in drawing.svg


def test_single_execution_has_no_error_bar() -> None:
    def bars(**changes: Any) -> int:
        drawing = draw_efficiency_figure(cells_of(**changes))
        assert drawing is not None
        return len(re.findall(r'<line [^>]*stroke="#[0-9a-f]{6}" stroke-width="1.2"', drawing.svg))

    assert bars(jobs=1, rounds=1) == 0
    assert bars(jobs=2, rounds=1) == 2


def test_axis_includes_efficiency_above_one() -> None:
    cell = ExecutionCell("site", "threads=4", "6.40", 2, 1, 1, {"eff_job": MeanAndRms(2, 3.6, 0.1)})
    drawing = draw_efficiency_figure([cell])
    assert drawing is not None
    assert ">3.5<" in drawing.svg


def test_unusable_executions_are_not_averaged() -> None:
    rows = columns(SimulatedCampaign(jobs=1, rounds=3, roots=("6.40.00",)).rows())
    for row, value in zip(rows, (0.5, 0.7, 0.1), strict=True):
        row["eff_job"] = value
    rows[2]["plausible"] = False
    (cell,) = summarize_executions(rows)
    assert cell.executions == 2
    spread = cell.spreads["eff_job"]
    assert spread.n == 2
    assert (spread.mean, spread.rms) == pytest.approx((0.6, 0.1))


@pytest.mark.parametrize(
    ("mean", "rms", "text"),
    [
        (0.6523, 0.0131, "0.652 ± 0.013"),
        (1234.5, 67.8, "1,234 ± 68"),
        (0.00432161, 7.5e-7, "0.004322 ± 8e-07"),
        (49.58, 0.0, "49.58"),
        (0.0, 0.0, "0"),
    ],
)
def test_mean_has_digits_of_rms(mean: float, rms: float, text: str) -> None:
    assert format_mean_and_rms(mean, rms) == text


@pytest.mark.usefixtures("without_figures")
def test_report_explains_efficiency_of_each_site() -> None:
    values = {
        "run_mode": "solo",
        "payload_wall_s": 30.0,
        "payload_user_s": 10.0,
        "pass_loop_wall_s": [29.0],
        "pass_loop_user_s": [9.5],
    }
    rows = [{**row, **values} for row in SimulatedCampaign(sites=("T2_A", "T2_B")).rows()]
    page = page_of(rows)
    for site in {row["site"] for row in rows}:
        assert f"<strong>{site} waits for data:" in page
    assert page.count("<summary>Parts of the wall time</summary>") == 2
    Page(page)
    assert report_of([{**row, "run_mode": "paired"} for row in rows]).explanations == []
