"""The campaign report and the page of a campaign's load: contents, values and escaping."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from measurement_factory import make_campaign_row, make_measurement, make_operation
from page_contents import agrees_with, find_heading_unit, load_charts, read_tables
from page_database import CAMPAIGN, LIMITED_STEP, RATES, SERVERS, STEPS, add_load_campaign
from service_thread import ServiceThread, run_service
from simulated_campaign import START_US, SimulatedCampaign

from treehammer.analysis.statistics.job_pairs import MeanAndRms
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.operation_figures import fetch_operations
from treehammer.sql.read.query_model import Selection
from treehammer.web import campaign_report
from treehammer.web.campaign_report import (
    REPORT_COLUMNS,
    CampaignReport,
    build_report,
    render_report,
)
from treehammer.web.figures.figure_layout import PALETTE, choose_release_colors
from treehammer.web.figures.line_chart import NumberAxis
from treehammer.web.pages import load_levels
from treehammer.web.report_figures import (
    ExecutionCell,
    draw_efficiency_figure,
    draw_time_figure,
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
        "id": "campaign-1",
        "name": "ttree-read nightly",
        "created_us": START_US,
        "repository": "https://git.example/tests.git",
        "ref": "main",
        "commit_id": "0123456789abcdef",
        "dirty": False,
        "test_name": "ttree-read",
        "test_path": "hctests/ttree-read",
        "plan": "{}",
        "planned_jobs": 8,
        "planned_measurements": 32,
    }
    return CampaignRow(**(row | changes))


def report_of(rows: Iterable[Mapping[str, Any]], **changes: Any) -> CampaignReport:
    return build_report(campaign_row(**changes), columns(rows), made_us=START_US)


def page_of(rows: Iterable[Mapping[str, Any]], **changes: Any) -> str:
    return render_report(report_of(rows, **changes))


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures, which take most of the time of a report."""
    for name in ("draw_efficiency_figure", "draw_time_figure"):
        monkeypatch.setattr(campaign_report, name, lambda _cells: None)


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


def test_report_names_changed_phase() -> None:
    rows = list(SimulatedCampaign(jobs=6).rows())
    for number, row in enumerate(rows):
        added_s = 0.5 if row["axis_root"] == "6.40.00" else 0.0
        unzip_s = 4.0 + added_s + 0.01 * (number % 3)
        row |= {"perfstats_unzip_s": unzip_s, "loop_cpu_s": 8.0 + added_s, "perfstats_read_s": 1.0}
    (comparison,) = report_of(rows).comparisons
    assert re.search(r"by phase, in % of the loop's CPU: decompress \+6\.", comparison.notes[0])
    assert "decompress +6." in Page(page_of(rows)).text


def assert_spread(text: str, rows: Sequence[Mapping[str, Any]], metric: str, unit: str) -> None:
    """Check a cell such as ``0.102 ± 0.003`` beside the mean and the RMS around it."""
    values = [row[metric] for row in rows if row.get(metric) is not None]
    mean, _, rms = text.partition("±")
    assert agrees_with(mean, statistics.fmean(values) if values else None, unit), (metric, text)
    assert not rms or agrees_with(rms, statistics.pstdev(values), unit), (metric, text)


@pytest.mark.usefixtures("without_figures")
def test_report_shows_the_numbers_of_its_measurements() -> None:
    rows = list(SimulatedCampaign(branches=(1.0, 0.02), jobs=3).rows())
    tables = read_tables(page_of(rows))
    means = tables["means"]
    assert len(means.rows) == 4
    for shown in means.rows:
        share = 0.02 if "2%" in shown["variant"] else 1.0
        cell = [
            row
            for row in rows
            if (row["site"], row["axis_root"]) == (shown["place"], shown["release"])
            and row["kind"] == "timed"
            and json.loads(row["variant"])["branches"] == share
        ]
        assert int(shown["executions"]) == len(cell) == 6
        assert int(shown["jobs"]) == len({row["job_id"] for row in cell})
        assert int(shown["hosts"]) == len({row["host"] for row in cell})
        for metric, heading in means.columns.items():
            if metric in METRICS_BY_NAME and METRICS_BY_NAME[metric].type in ("int", "float"):
                assert_spread(shown[metric], cell, metric, find_heading_unit(heading))
    measurements = tables["measurements"]
    for shown, row in zip(measurements.rows, rows, strict=True):
        for name in measurements.columns.keys() & row.keys():
            if isinstance(row[name], int | float) and not isinstance(row[name], bool):
                unit = find_heading_unit(measurements.columns[name])
                assert agrees_with(shown[name], row[name], unit), (name, shown[name], row[name])


def test_report_has_no_external_resources() -> None:
    text = page_of(SimulatedCampaign(sites=("T2_A", "T2_B")).rows())
    for match in URL.finditer(text):
        target = match[1] or match[2] or match[0]
        assert target.startswith(("#", "data:")), target
    assert "script" not in Page(text).tags
    assert "default-src 'none'" in text


def test_report_is_well_formed_with_unique_ids() -> None:
    page = Page(page_of(SimulatedCampaign(sites=("T2_A", "T2_B"), branches=(1.0, 0.02)).rows()))
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
    assert (report.executions, report.missing_count) == (len(rows) - 1, 1)
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


@pytest.mark.usefixtures("without_figures")
def test_single_host_is_judged_for_itself() -> None:
    rows = list(SimulatedCampaign(hosts=1, effect=0.1).rows())
    report = report_of(rows)
    assert report_of([*rows, {**rows[0], "host": None}]).hosts == report.hosts
    assert report.conclusions[0].startswith("On this host, ROOT 6.40.00 needs ")
    assert "on this host (8 jobs)" in Page(render_report(report)).text


@pytest.mark.usefixtures("without_figures")
def test_single_release_has_no_comparison() -> None:
    report = report_of(SimulatedCampaign(roots=("6.40.00",)).rows())
    assert report.comparisons == ()
    assert "No compared axis has more than one value" in Page(render_report(report)).text


def test_report_of_failures_only() -> None:
    failed = {"failure_class": "software-setup", "eff_job": None, "cpu_per_event_s": None}
    page = Page(page_of(row | failed for row in SimulatedCampaign().rows()))
    assert "svg" not in page.tags
    assert "No usable execution recorded a CPU efficiency" in page.text


def test_report_without_loop_metrics() -> None:
    bare = dict.fromkeys(
        ("cpu_per_event_s", "wall_per_event_s", "loop_wall_s", "eff_loop", "root_version")
    )
    report = report_of(row | bare for row in SimulatedCampaign().rows())
    assert report.comparisons == ()
    assert report.time_figure is None
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
    shown = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert set(names) <= shown
    assert {"branches=2% cache_mb=30 · root=6.40.00"} <= shown
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


def test_times_are_drawn_per_release() -> None:
    drawing = draw_time_figure(cells_of(branches=(1.0, 0.02)))
    assert drawing is not None
    assert "time of the loop per event (ms)" in drawing.svg
    assert "T2_A: CPU" in drawing.svg


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


@pytest.mark.usefixtures("without_figures")
def test_mean_has_digits_of_rms() -> None:
    report = report_of(SimulatedCampaign(jobs=1).rows())
    for mean, rms, shown in (
        (0.6523, 0.0131, "0.652 ± 0.013"),
        (1234.5, 67.8, "1234 ± 68"),
        (0.00432161, 7.5e-7, "0.004322 ± 8e-07"),
        (49.58, 0.0, "49.58"),
        (0.0, 0.0, "0"),
    ):
        metrics = {"eff_job": MeanAndRms(2, mean, rms)}
        cell = ExecutionCell("site", "variant", "6.40", 2, 1, 1, metrics)
        assert shown in Page(render_report(replace(report, cells=(cell,)))).text


@pytest.mark.usefixtures("without_figures")
def test_report_explains_efficiency_of_each_site() -> None:
    waiting = {
        "run_mode": "solo",
        "payload_wall_s": 30.0,
        "payload_user_s": 10.0,
        "pass_loop_wall_s": [29.0],
        "pass_loop_user_s": [9.5],
    }
    rows = [{**row, **waiting} for row in SimulatedCampaign(sites=("T2_A", "T2_B")).rows()]
    page = page_of(rows)
    for site in {row["site"] for row in rows}:
        assert f"<strong>{site} waits for data:" in page
    assert page.count("<summary>Parts of the wall time</summary>") == 2
    Page(page)
    assert report_of([{**row, "run_mode": "paired"} for row in rows]).explanations == ()


PAGE = f"/campaigns/{CAMPAIGN}/load"
API = f"/api/v1{PAGE}"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with run_service(tmp_path_factory.mktemp("loaded"), reading_open=True) as service:
        add_load_campaign(service.store)
        yield service


def test_levels_equal_stored_operations(loaded: ServiceThread) -> None:
    rows = loaded.load_tables(API)["levels"]
    assert [row["label"] for row in rows] == [f"clients={rate}" for rate in RATES]
    assert [row["attempted_hz"] for row in rows] == [20, 100, 200]
    assert [row["observed_hz"] for row in rows] == [20, 100, 150]
    assert [row["limited_steps"] for row in rows] == [0, 0, 6]
    assert rows[2]["failed_fraction"] == pytest.approx(0.25)
    assert rows[2]["failures"] == {"reset": 5 * 500}
    with loaded.store.snapshot() as snapshot:
        stored = fetch_operations(
            snapshot, Selection((CAMPAIGN,)), columns=["variant"], key=lambda row: row["variant"]
        )
    for row in rows:
        [group] = [one for one in stored if one.key == row["variant"]]
        names = ("done", "seconds", "active_clients", "measurements")
        assert [row[name] for name in names] == [getattr(group, name) for name in names]
        assert row["p95_s"] == group.latency.quantile(0.95)


def test_highest_load_is_shown_over_time(loaded: ServiceThread) -> None:
    document = loaded.load_document(PAGE)
    steps = document["tables"]["steps"]
    assert [row["start_s"] for row in steps] == [10 * step for step in range(STEPS)]
    limited = steps[LIMITED_STEP]
    assert (limited["steps"], limited["limited_steps"], limited["observed_hz"]) == (0, 6, None)
    assert {row["observed_hz"] for row in steps if row["steps"]} == {150}
    servers = {row["server"]: row for row in document["tables"]["servers"]}
    assert set(servers) == {"", *SERVERS}
    fast, slow = (servers[name] for name in SERVERS)
    assert fast["observed_hz"] + slow["observed_hz"] == pytest.approx(150)
    evenness = slow["done"] / fast["done"]
    assert document["about"]["evenness"] == pytest.approx(evenness)
    assert slow["p50_s"] == pytest.approx(0.5, rel=0.01)
    assert [row["site"] for row in document["tables"]["sites"]] == ["SITE_A", "SITE_B"]
    assert [row["observed_hz"] for row in document["tables"]["sites"]] == [75, 75]
    starts = document["tables"]["starts"]
    assert [(row["jobs"], row["judgment"]) for row in starts] == [(2, "good")] * len(RATES)
    assert starts[0]["spread_s"] == pytest.approx(0.1)


def test_levels_link_to_their_time_steps(loaded: ServiceThread) -> None:
    addresses = loaded.read(PAGE).list_links(".*/load.*#time")
    assert len(addresses) == len(RATES)
    assert "Over time: clients=20" in loaded.read(addresses[0]).text
    known = loaded.load_tables(API)["levels"][0]["load"]
    steps = loaded.load_tables(f"{API}?load={known}")["steps"]
    assert {row["observed_hz"] for row in steps} == {20}


def test_figures_have_points_marks_and_ideal(loaded: ServiceThread) -> None:
    page = unescape(loaded.load_page(PAGE))
    page += json.dumps(load_charts(page), ensure_ascii=False)
    for text in (
        "clients=200: 150 1/s at 200/s attempted; 6 rows left out",
        "ideal: all succeed at once",
        "S1's target, 100 1/s",
        "step 3: observed 150/s",
        "step 3: failed 50/s",
        f"step {LIMITED_STEP}: 6 of 6 rows left out",
        "Evenness: slow:1094 has the smallest rate, 33 % of the largest.",
        "Failures: 2500 reset.",
    ):
        assert text in page
    assert re.search(r"step 3: p99 50\d ms", page)
    assert re.search(r"Slowest: slow:1094, p50 \d+ ms, 2\d\d times that of the fastest", page)
    assert f"step {LIMITED_STEP}: observed" not in page
    assert "<script>" not in page
    assert loaded.read(f"/campaigns/{CAMPAIGN}").list_links(f"{PAGE}$") == [PAGE]


@pytest.mark.parametrize("test, is_study_s1", [("read-rate", True), ("pretend-transfer", False)])
def test_operations_and_sides_are_shown_one_at_a_time(
    pages: ServiceThread, test: str, is_study_s1: bool
) -> None:
    pages.store.add_campaign(make_campaign_row(test_name=test), [])
    steps = [
        make_operation([0.1] * 5),
        make_operation([0.2] * 50, operation="read", bytes=125_000_000),
        make_operation([0.1] * 50, operation="read", side="server"),
    ]
    pages.store.add([make_measurement(operations=steps, variant='{"clients":2,"root":"none"}')])
    about = pages.load_document("/campaigns/campaign/load")["about"]
    assert (about["operation"], about["side"]) == ("read", "client")
    page = unescape(pages.load_page("/campaigns/campaign/load"))
    assert "Over time: clients=2 root=none" in page
    assert "step 0: 12.5 MB/s" in page
    target = "Study S1's target of 150 MB/s is beyond the drawing."
    assert (target in page) == is_study_s1
    (other,) = pages.read("/campaigns/campaign/load").list_links(r"\?operation=read&side=server")
    shown = pages.read(f"/campaigns/campaign/load{other}")
    assert any(heading.endswith("read, server side") for heading in shown.list_texts("h2"))
    refused = pages.get_path("/campaigns/campaign/load?operation=write")
    assert refused.status_code == 400
    assert "Known: open, read" in refused.json()["error"]


def test_blocks_have_an_ideal_total_and_times_without_the_round_trip(
    pages: ServiceThread,
) -> None:
    """Study S1 compares the total rate with the ideal one, and excludes the round trip."""
    pages.store.add_campaign(make_campaign_row(test_name="read-rate"), [])
    for clients, trip_s, failed in ((2, 0.02, 0), (8, 0.02, 40)):
        steps = [
            make_operation(
                [0.12] * (10 * clients - failed),
                {"timeout": failed} if failed else {},
                operation="read",
                bytes=2_500_000 * (10 * clients - failed),
            )
        ]
        variant = json.dumps({"clients": clients})
        pages.store.add(
            [make_measurement(str(clients), operations=steps, variant=variant, door_rtt_s=trip_s)]
        )
    rows = pages.load_tables("/api/v1/campaigns/campaign/load")["levels"]
    assert [row["net_mean_s"] for row in rows] == pytest.approx([0.1, 0.1], rel=0.01)
    page = pages.load_page("/campaigns/campaign/load")
    assert "100 ms" in page
    rates, megabytes, *_ = (json.dumps(one) for one in load_charts(page))
    for chart in (rates, megabytes):
        assert "ideal: all succeed at once" in chart
    assert "Study S1's target of 150 MB/s" in unescape(page)


def test_client_and_server_are_drawn_together(pages: ServiceThread) -> None:
    """Calls that wait before the server sees them are slow for the client alone."""
    pages.store.add_campaign(make_campaign_row(), [])
    client = [make_operation([1.0] * 10, step=step) for step in range(2)]
    server = [make_operation([0.01] * 10, step=step, side="server") for step in range(2)]
    packets = [make_operation([], side="server", operation="net_send", scheduled=10**6)]
    for site, rows in (("NEAR", client), ("DISK1", [*server, *packets])):
        pages.store.add(
            [make_measurement(site, operations=rows, site=site, storage_site="STORAGE")]
        )
    page = unescape(pages.load_page("/campaigns/campaign/load"))
    document = pages.load_document("/campaigns/campaign/load")
    assert (document["about"]["operation"], document["about"]["side"]) == ("open", "client")
    for text in ("Client and server over time", "step 1: client p50 1", "step 1: server p99 10"):
        assert text in page
    sides = document["tables"]["sides"]
    assert [(row["step"], row["client_done"], row["server_done"]) for row in sides] == [
        (0, 10, 10),
        (1, 10, 10),
    ]
    assert sides[0]["client_p50_s"] == pytest.approx(1, rel=0.01)
    assert sides[0]["server_p50_s"] == pytest.approx(0.01, rel=0.01)


def test_ramp_makes_levels(pages: ServiceThread) -> None:
    plan = {"definition": {"load": {"ramp": "1/20s", "duration_s": 60.0}}}
    pages.store.add_campaign(make_campaign_row(plan=json.dumps(plan)), [])
    for index in range(2):
        steps = [make_operation([0.1] * 10, step=n) for n in range(2 * index, 6)]
        pages.store.add([make_measurement(f"{index}", operations=steps, load_jobs=2)])
    rows = pages.load_tables("/api/v1/campaigns/campaign/load")["levels"]
    assert [(row["label"], row["jobs"], row["attempted_hz"]) for row in rows] == [
        ("1 job", 1, 1.0),
        ("2 jobs", 2, 2.0),
    ]


def test_campaign_without_usable_operations(pages: ServiceThread) -> None:
    pages.store.add_campaign(make_campaign_row(), [])
    assert "No timed measurement" in pages.load_page("/campaigns/campaign/load")
    limited = make_operation([9.0], generator_limited=True)
    pages.store.add([make_measurement(operations=[limited])])
    page = pages.load_page("/campaigns/campaign/load")
    assert "no rate can be shown" in page
    assert "the storage carries at least 0.1 operations/s" in page
    assert pages.get_path("/campaigns/other/load").status_code == 404


def test_invalid_load_of_uploaded_plan_is_ignored(pages: ServiceThread) -> None:
    loads: list[object] = [{"ramp": "x"}, {"step_s": 0}, {"ceiling": 3}, {"x": 1}, [1], "a"]
    for number, load in enumerate(loads):
        plan = json.dumps({"definition": {"load": load}})
        pages.store.add_campaign(make_campaign_row(f"c{number}", plan=plan), [])
        operations = [make_operation()]
        pages.store.add(
            [
                make_measurement(
                    f"c{number}", campaign_id=f"c{number}", operations=operations, load_jobs=2
                )
            ]
        )
        assert "Over time: " in pages.load_page(f"/campaigns/c{number}/load"), load


def test_too_many_rows_are_refused(loaded: ServiceThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_levels, "MAX_ROWS", 10)
    refused = loaded.get_path(PAGE)
    assert refused.status_code == 400
    assert "summary --campaign load" in refused.json()["error"]


def test_number_axes_hold_their_values() -> None:
    assert NumberAxis([0.0, 0.3, 200.0]).ends == (0.0, 200.0)
    assert NumberAxis([4.0]).ends == (3.5, 4.5)
    decades = NumberAxis([0.0, 0.002, 5.0], logarithmic=True)
    assert decades.ends == (0.002, 5.0)
    assert decades.place(0.0) is None


@pytest.mark.usefixtures("draw_in_process")
def test_figures_are_available_as_files(loaded: ServiceThread) -> None:
    page = unescape(loaded.load_page(f"{PAGE}?operation=open"))
    names = {chart["title"] for chart in load_charts(page)}
    assert {"Observed rate by attempted rate", "Rate over time"} <= names
    (address,) = loaded.read(f"{PAGE}?operation=open").list_links(r".*drawing=all\.pdf")
    assert "operation=open" in address
    answer = loaded.client.get(f"{PAGE}{address}")
    assert answer.content.startswith(b"%PDF")
    assert 'filename="figure.pdf"' in answer.headers["content-disposition"]
    drawn = loaded.client.get(f"{PAGE}?drawing=all.svg").text
    for text in (
        "Load of opens: open; over time: clients=200",
        "Observed rate",
        "S1's target, 100 1/s",
        "p99",
        "Outlined:",
    ):
        assert text in unescape(drawn)
    assert loaded.client.get(f"{PAGE}?drawing=all.gif").status_code == 404
    assert loaded.client.get(f"{PAGE}?drawing=all.png&operation=none").status_code == 400
