"""Every number of the demo's pages, reports and exports beside the store, by column name.

Expected values are computed here from the stored measurements, with nothing of the pages' code.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shutil
import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import uproot
from page_contents import (
    UNIT_SIZES,
    PageTable,
    agrees_with,
    find_heading_unit,
    parse_numbers,
    read_tables,
)
from repository_code import DemoRun
from service_thread import ServiceThread, run_service

from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1500)]

Row = Mapping[str, Any]
#: Part of an address that differs between pages of one kind; each kind is visited so often.
IDENTITY, MAX_VISITS = re.compile(r"[0-9a-f]{12,}|\d{4}-\d\d-\d\d"), 5
MEAN_METRICS = (
    *("cpu_per_event_s", "wall_per_event_s", "loop_wall_s", "eff_job", "eff_payload", "eff_loop"),
    *("bytes_read", "read_calls", "max_rss_bytes"),
)


@pytest.fixture(scope="module")
def results(demo_run: DemoRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the demo's results, so that a service may write into their database."""
    folder = tmp_path_factory.mktemp("numbers")
    shutil.copytree(demo_run.folder / "demo-results", folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def stored(results: Path) -> list[dict[str, Any]]:
    with Store.open(f"sqlite:///{results / 'results.db'}") as store:
        return list(store.measurements(Selection()))


@pytest.fixture(scope="module")
def verdicts(results: Path) -> list[VerdictRow]:
    with Store.open(f"sqlite:///{results / 'results.db'}") as store:
        with run_service(results, reading_open=True) as service:
            comparisons = service.load_tables("/compare")["comparisons"]
        return [row for one in comparisons for row in store.verdicts(one["comparison_id"])]


@pytest.fixture(scope="module")
def service(results: Path) -> Iterator[ServiceThread]:
    with run_service(results, reading_open=True) as running:
        yield running


def select(rows: Iterable[Row], **values: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def select_good(rows: Iterable[Row], kind: str = "timed") -> list[Row]:
    return [r for r in rows if r["kind"] == kind and r["plausible"] and not r["failure_class"]]


def mean_and_rms(rows: Iterable[Row], metric: str) -> tuple[float | None, float | None]:
    """Return the mean and the RMS around it, as in study S0: over executions, by hand."""
    values = [row[metric] for row in rows if row[metric] is not None]
    return (statistics.fmean(values), statistics.pstdev(values)) if values else (None, None)


def branches_of(variant: str) -> str:
    """Return the fraction of branches in a label such as ``branches=2%`` or a JSON variant."""
    if variant.startswith("{"):
        return str(json.loads(variant)["branches"])
    match = re.search(r"branches=([\d.]+)%", variant)
    assert match, variant
    return str(float(match[1]) / 100)


def assert_spread(text: str, rows: Iterable[Row], metric: str, heading: str) -> None:
    """Check a cell such as ``0.102 ± 0.003`` in the unit of its heading."""
    unit = find_heading_unit(heading)
    mean, rms = mean_and_rms(rows, metric)
    assert agrees_with(text, mean, unit), (metric, heading, text, mean)
    if "±" in text:
        assert agrees_with(text.split("±")[1], rms, unit), (metric, heading, text, rms)


@pytest.mark.parametrize("name", ["report.html", "efficiency.html"])
def test_report_shows_means_of_its_campaign(
    results: Path, stored: Sequence[Row], name: str
) -> None:
    page = (results / name).read_text(encoding="utf-8")
    tables = read_tables(page)
    match = re.search(r"<dt>campaign</dt><dd><code>(\w+)</code>", page)
    assert match
    campaign = select(stored, campaign_id=match[1])
    good = select_good(campaign)
    means = tables["means"]
    assert len(means.rows) == 4
    for row in means.rows:
        cell = select(
            good,
            site=row["place"],
            axis_root=row["release"],
            axis_branches=branches_of(row["variant"]),
        )
        assert int(row["executions"]) == len(cell) > 0
        assert int(row["jobs"]) == len({one["job_id"] for one in cell})
        assert int(row["hosts"]) == len({one["host"] for one in cell})
        for metric in MEAN_METRICS:
            assert_spread(row[metric], cell, metric, means.columns[metric])
    assert sum(int(row["executions"]) for row in tables["builds"].rows) == len(campaign)
    for row in tables["nodes"].rows:
        nodes = select(campaign, site=row["site"], host=row["host"])
        assert int(row["executions"]) == len(nodes)
        assert (int(row["cores_online"]), row["kernel"]) == (
            nodes[0]["cores_online"],
            nodes[0]["kernel"],
        )
        calibration_s = [one["calibration_before_s"] for one in nodes]
        assert agrees_with(row["calibration_s"], statistics.median(filter(None, calibration_s)))
    measurements = tables["measurements"]
    assert len(measurements.rows) == len(campaign)
    for shown, measured in zip(measurements.rows, campaign, strict=True):
        assert_row(shown, measured, measurements)


def assert_row(shown: Mapping[str, str], row: Row, table: PageTable) -> None:
    """Check each number of a row beside the value of the same name."""
    for name, text in shown.items():
        if name in row and isinstance(row[name], int | float) and not isinstance(row[name], bool):
            unit = find_heading_unit(table.columns[name])
            assert agrees_with(text, row[name], unit), (table.name, name, text, row[name])


def test_report_and_pages_show_the_stored_effects(
    results: Path, verdicts: Sequence[VerdictRow], service: ServiceThread
) -> None:
    tables = [
        read_tables((results / "report.html").read_text(encoding="utf-8"))["by_site root=6.40.00"]
    ]
    comparisons = service.load_tables("/compare")["comparisons"]
    pages = [service.load_page(f"/compare/{one['comparison_id']}") for one in comparisons]
    tables += [read_tables(page)["by_site"] for page in pages]
    series = [row for row in verdicts if row.site and row.metric.endswith("_per_event_s")]
    for table in tables:
        assert len(table.rows) == len(series) == 4
        for shown in table.rows:
            metric = {"CPU": "cpu_per_event_s", "wall": "wall_per_event_s"}[shown["metric"]]
            (row,) = (r for r in series if (r.label, r.metric) == (shown["label"], metric))
            evidence = json.loads(row.evidence)
            effect = shown["change" if "change" in shown else "effect"]
            assert row.effect is not None
            assert agrees_with(effect, 2.718281828459045**row.effect - 1), (effect, row.effect)
            for side in ("a_value", "b_value"):
                value, unit = evidence[side], find_heading_unit(table.columns[side])
                assert agrees_with(shown[side], value, unit), (side, shown[side], value)


def figure_rows(rows: Sequence[Row], shown: Mapping[str, str], raw: Row) -> list[Row]:
    """Select the measurements behind a row of a figure."""
    selected = select(rows, site=raw["site"])
    if "axis_root" in raw:
        selected = select(selected, axis_root=raw["axis_root"])
    if "variant" in raw:
        selected = select(selected, variant=raw["variant"])
    return selected


@pytest.mark.parametrize("address", ["/explore", "/figures/s0"])
def test_figures_show_means_of_the_store(
    service: ServiceThread, stored: Sequence[Row], address: str
) -> None:
    table = read_tables(service.load_page(address))["figure"]
    raw_rows = service.load_tables(address)["figure"]
    assert len(table.rows) == len(raw_rows) > 0
    for shown, raw in zip(table.rows, raw_rows, strict=True):
        timed = select_good(figure_rows(stored, shown, raw))
        measured = [row for row in timed if row["eff_job"] is not None]
        assert int(shown["good"]) == raw["good"] == len(timed)
        assert int(shown["number"]) == len(measured)
        assert_spread(f"{shown['mean']} ± {shown['rms']}", measured, "eff_job", "")


def test_day_shows_means_and_counts_of_the_store(
    service: ServiceThread, stored: Sequence[Row]
) -> None:
    (day,) = {row["day"] for row in service.load_tables("/sites/local")["outcomes"]}
    tables = read_tables(service.load_page(f"/days/{day}?site=local"))
    raw_rows = service.load_tables(f"/days/{day}?site=local")["measured"]
    measured = tables["measured"]
    assert len(measured.rows) == len(raw_rows) > 0
    counted = 0
    for shown, raw in zip(measured.rows, raw_rows, strict=True):
        cell = select(
            stored,
            axis_branches=branches_of(raw["variant"]),
            axis_root=raw["axis_root"],
            kind=raw["kind"],
        )
        counted += len(cell)
        assert int(shown["good"]) == len(cell)
        for metric in ("eff_job", "cpu_per_event_s", "wall_per_event_s"):
            name = f"{metric}_mean"
            assert_spread(shown[name], cell, metric, measured.columns[name])
    assert counted == len(stored)
    jobs = tables["jobs"]
    assert sum(int(row["measurements"]) for row in jobs.rows) == len(stored)


def test_lists_show_counts_of_the_store(service: ServiceThread, stored: Sequence[Row]) -> None:
    by_campaign: dict[str, list[Row]] = defaultdict(list)
    for row in stored:
        by_campaign[row["campaign_id"]].append(row)
    campaigns = service.load_tables("/campaigns")["campaigns"]
    shown_campaigns = read_tables(service.load_page("/campaigns"))["campaigns"].rows
    assert len(campaigns) == len(by_campaign) == 2
    for raw, shown in zip(campaigns, shown_campaigns, strict=True):
        rows = by_campaign[raw["campaign_id"]]
        assert shown["recorded"] == f"{len(rows)} of {raw['planned']}"
        assert (shown["failed"], shown["implausible"]) == ("0", "0")
        page = read_tables(service.load_page(f"/campaigns/{raw['campaign_id']}"))
        (site,) = page["sites"].rows
        jobs = {row["job_id"] for row in rows}
        assert (int(site["recorded"]), int(site["done"])) == (len(rows), len(jobs))
        assert sum(int(job["recorded"]) for job in page["jobs"].rows) == len(rows)
        assert len(page["jobs"].rows) == len(jobs)
    (site,) = read_tables(service.load_page("/sites"))["sites"].rows
    assert (int(site["good"]), site["failed"]) == (len(stored), "0")
    local = read_tables(service.load_page("/sites/local"))
    (outcomes,) = local["outcomes"].rows
    assert int(outcomes["good"]) == len(stored)
    timed = [row for row in select_good(stored) if row["eff_job"] is not None]
    (series,) = local["series"].rows
    assert int(series["measurements"]) == len(timed)
    assert agrees_with(series["mean"], mean_and_rms(timed, "eff_job")[0])


def test_jobs_and_measurements_show_the_stored_values(
    service: ServiceThread, stored: Sequence[Row]
) -> None:
    by_job: dict[str, list[Row]] = defaultdict(list)
    for row in stored:
        by_job[row["job_id"]].append(row)
    for job_id, rows in by_job.items():
        attempt = read_tables(service.load_page(f"/jobs/{job_id}"))["attempt_1"]
        assert len(attempt.rows) == len(rows)
        for shown in attempt.rows:
            (row,) = select(
                rows,
                kind=shown["kind"],
                round=int(shown["round"]),
                position=int(shown["position"]),
                axis_branches=branches_of(shown["variant"])
                if "variant" in shown
                else rows[0]["axis_branches"],
                axis_root=shown["axis_root"],
            )
            assert_row(shown, {**row, "started_us": None}, attempt)
    row = by_job[job_id][-1]
    address = f"/measurements/{row['measurement_id']}"
    tables = read_tables(service.load_page(address))
    numbers = 0
    for name, raw_rows in service.load_tables(address).items():
        for raw, shown in zip(raw_rows, tables[name].rows, strict=True) if name in tables else ():
            value = row.get(raw["name"])
            if isinstance(value, int | float) and raw["name"] not in ("plausible", "dirty"):
                numbers += 1
                assert raw["a"] == pytest.approx(value), raw
                is_time = raw["name"].endswith("_us")
                size = UNIT_SIZES.get(raw["unit"], 1.0)
                assert is_time or agrees_with(shown["a"], value * size), (raw, shown)
    assert numbers > 40


def test_every_number_of_every_page_is_that_of_its_export(service: ServiceThread) -> None:
    """Numbers of a table are those of its CSV and JSON, by column name."""
    visits: Counter[str] = Counter()
    seen, names, addresses = set[str](), set[str](), ["/"]
    while addresses:
        address = addresses.pop(0)
        place = address.partition("?")[0]
        kind = IDENTITY.sub("ID", place)
        if place in seen or visits[kind] == MAX_VISITS or place.startswith(("/static/", "/api/")):
            continue
        seen.add(place)
        answer = service.client.get(address, headers={"Accept": "text/html"})
        if "text/html" not in answer.headers.get("content-type", ""):
            continue
        visits[kind] += 1
        assert answer.status_code == 200, address
        tables = read_tables(answer.text)
        names |= tables.keys()
        assert_as_exported(service, address, tables)
        links = map(html.unescape, re.findall(r'href="(/[^"#]*)', answer.text))
        addresses += [link for link in links if "format=" not in link]
    assert {"/", "/campaigns/ID", "/jobs/ID", "/measurements/ID", "/days/ID"} <= visits.keys()
    assert {"days", "figure", "by_site", "matrix", "series", "work_matrix", "measured"} <= names


def assert_as_exported(
    service: ServiceThread, address: str, tables: Mapping[str, PageTable]
) -> None:
    separator = "&" if "?" in address else "?"
    answer = service.client.get(f"{address}{separator}format=json")
    exported = answer.json().get("tables", {}) if answer.status_code == 200 else {}
    for name in tables.keys() & exported.keys():
        table, raw_rows = tables[name], exported[name]
        csv_text = service.client.get(f"{address}{separator}format=csv&table={name}").text
        lines = list(csv.DictReader(io.StringIO(csv_text)))
        assert [row.keys() for row in lines] == [row.keys() for row in raw_rows]
        if len(table.rows) != len(raw_rows):
            continue  # a page folds or shortens some
        for shown, raw in zip(table.rows, raw_rows, strict=True):
            for column, text in shown.items():
                value = raw.get(column)
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if is_number and parse_numbers(text) and not text.endswith(" UTC"):
                    unit = find_heading_unit(table.columns[column])
                    size = UNIT_SIZES.get(raw.get("unit", ""), 1.0)
                    where = address, name, column, text, value
                    assert agrees_with(text, value * size, unit), where


def export(demo_run: DemoRun, results: Path, path: Path) -> None:
    command = ["treehammer", "--data-dir", str(results), "export", str(path)]
    subprocess.run(command, env=demo_run.environment, check=True, capture_output=True)


def read_csv(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def read_root(path: Path) -> list[dict[str, Any]]:
    with uproot.open(path) as file:
        tree = file["results"]
        names = [name for name in tree.keys(recursive=False) if "/" not in name]
        columns = {name: tree[name].array(library="np") for name in names}
    return [{name: column[i] for name, column in columns.items()} for i in range(tree.num_entries)]


def read_parquet(path: Path) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


READERS: Mapping[str, Callable[[Path], list[dict[str, Any]]]] = {
    "csv": read_csv,
    "root": read_root,
    "parquet": read_parquet,
}


@pytest.mark.parametrize("form", READERS)
def test_export_holds_each_number_of_the_store_under_its_name(
    demo_run: DemoRun, results: Path, stored: Sequence[Row], tmp_path: Path, form: str
) -> None:
    path = tmp_path / f"results.{form}"
    export(demo_run, results, path)
    rows = {str(row["measurement_id"]): row for row in READERS[form](path)}
    assert rows.keys() == {row["measurement_id"] for row in stored}
    compared = 0
    for row in stored:
        exported = rows[row["measurement_id"]]
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                compared += 1
                assert float(exported[name]) == pytest.approx(value, rel=1e-6), (name, value)
    assert compared > 2000
