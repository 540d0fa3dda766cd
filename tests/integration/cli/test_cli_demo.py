"""The demo in a fresh clone: its output, and every number of its pages beside the store.

Expected numbers are computed here from the stored measurements, with nothing of the pages' code.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
import shutil
import sqlite3
import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uproot
from console import agrees, commands, normalize, run
from page_contents import (
    UNIT_SIZES,
    PageTable,
    agrees_with,
    find_heading_unit,
    parse_numbers,
    read_tables,
)
from repository_code import REPOSITORY, DemoRun
from service_thread import ServiceThread, run_service

from treehammer.analysis.statistics.verdict import Verdict
from treehammer.collectors.job_spec import MIN_LAUNCH_CPU_S, total_cpu_s
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.testbed.network import find_free_ports

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]


def query(demo: DemoRun, sql: str) -> list[Any]:
    """Query the demo's database; ``results`` includes the columns of the dimensions."""
    sql = sql.replace(
        "from results",
        "from measurement join subject on subject.id = subject_id"
        " join origin on origin.id = origin_id join software on software.id = software_id",
    )
    with sqlite3.connect(demo.folder / "demo-results" / "results.db") as connection:
        return connection.execute(sql).fetchall()


def test_both_releases_measure_all_variants_in_both_modes(demo_run: DemoRun) -> None:
    rows = query(
        demo_run,
        "select run_mode, kind, axis_root, axis_branches, count(*) from results"
        " where kind in ('timed', 'control') and failure_class is null and plausible"
        " and root_version = axis_root and axis_cache_mb = 30 group by 1, 2, 3, 4",
    )
    counts = {("solo", "timed"): 1, ("paired", "timed"): 4, ("paired", "control"): 4}
    assert {row[:4]: row[4] for row in rows} == {
        (mode, kind, root, branches): count
        for (mode, kind), count in counts.items()
        for root in ("6.38.00", "6.40.00")
        for branches in ("1.0", "0.02")
        if (kind, root) != ("control", "6.40.00")
    }


def test_demo_uses_checkout_history(demo_run: DemoRun) -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=demo_run.folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert query(demo_run, "select distinct commit_id, dirty, ref, test_path from results") == [
        (head, 0, "HEAD", "hctests/ttree-read")
    ]


def test_launches_do_not_overlap_and_begin_with_either_release(demo_run: DemoRun) -> None:
    rows = query(
        demo_run,
        "select job_id, round, min(started_us), max(ended_us), min(launch_order), min(kind)"
        " from results where run_mode = 'paired' group by 1, 2 order by 3",
    )
    assert len(rows) == 12
    ends = [row[3] for row in rows]
    assert all(row[2] >= end for row, end in zip(rows[1:], ends, strict=False))
    orders: dict[str, list[str]] = {}
    for job, _, _, _, order, kind in rows:
        if kind == "timed":
            orders.setdefault(job, []).append(order)
    assert all(sorted(found) == ["AB", "BA"] for found in orders.values())


def test_both_sides_of_launches_read_by_turns(demo_run: DemoRun) -> None:
    with Store.open(f"sqlite:///{demo_run.folder / 'demo-results' / 'results.db'}") as store:
        selected = Selection.parse(wheres=["run_mode=paired", "kind!=checksum"])
        found: list[Mapping[str, Any]] = list(store.measurements(selected))
    launches: dict[tuple[Any, Any], dict[str, Mapping[str, Any]]] = {}
    for row in found:
        side = row["launch_order"][row["position"] - 1]
        launches.setdefault((row["job_id"], row["round"]), {})[side] = row
        assert row["events_read"] == row["events_total"] > 0
        assert row["passes_counted"] == row["passes_done"] == len(row["pass_loop_wall_s"])
        loop = sum(row["pass_loop_user_s"]) + sum(row["pass_loop_sys_s"])
        assert loop == pytest.approx(sum(row["segment_cpu_ns"]) / 1e9, rel=0.01)
        # By the quantity that a verdict demands.
        assert total_cpu_s(row["loop_cpu_s"], row["passes_counted"]) >= MIN_LAUNCH_CPU_S
    assert len(launches) == 12
    for launch in launches.values():
        base, other = launch["A"], launch["B"]
        for name in (
            *("passes_done", "segments", "segment_entries"),
            *("loop_unzipped_bytes", "bytes_read"),
        ):
            assert base[name] == other[name], name
        assert base["segment_cpu_log_ratio"] is None
        assert abs(other["segment_cpu_log_ratio"]) < 0.3
        assert other["segment_wall_log_ratio_sd"] > 0


def test_both_releases_read_equal_values(demo_run: DemoRun) -> None:
    sums = query(
        demo_run,
        "select count(*), count(distinct value_checksum), min(checksum_leaves)"
        " from measurement where kind = 'checksum'",
    )
    assert sums[0][:2] == (4, 1)
    assert sums[0][2] == 400
    sizes = query(
        demo_run,
        "select axis_branches, count(distinct loop_unzipped_bytes) from results"
        " where kind = 'timed' and run_mode = 'solo' group by 1",
    )
    assert sizes == [("0.02", 1), ("1.0", 1)]


def test_demo_ends_with_verdict_control_counts_and_conclusion(demo_run: DemoRun) -> None:
    _, _, compared = demo_run.output.partition(" compare 6.38.00 6.40.00 --campaign last\n")
    rows = query(demo_run, "select label, metric, scope, verdict, hosts, evidence from verdict")
    assert {row[:2] for row in rows if row[2] == "host"} == {
        (f"branches={share}", f"{clock}_per_event_s")
        for share in ("100%", "2%")
        for clock in ("cpu", "wall")
    }
    for _, _, scope, verdict, hosts, evidence in rows:
        if scope == "host":
            # A busy machine may leave it undecided.
            assert Verdict(verdict).is_statistical, compared
            assert (hosts, VerdictEvidence.from_json(evidence).launches) == (1, 4)
    table, control, counters, conclusion = (
        compared.index(text)
        for text in ("this host (4 launches)", "4 A/A launches", "Exact counters", "On this host, ")
    )
    assert table < control < counters < conclusion
    # A control that differs on a busy machine comes first.
    assert "(6.38.00 against itself)" in compared[counters:]
    assert "same data proven" in compared


def test_demo_pages_contain_study_s0_figure_and_conclusion(demo_run: DemoRun) -> None:
    efficiency, report = (
        (demo_run.folder / "demo-results" / name).read_text(encoding="utf-8")
        for name in ("efficiency.html", "report.html")
    )
    assert 'id="efficiency' in efficiency
    assert efficiency.count("<svg") >= 2
    assert report.count("<svg") >= 1
    assert "On this host, " in report
    for page in (efficiency, report):
        assert not re.search(r"(src|href)=[\"']https?:", page)
        assert "<script" not in page


def test_tree_equals_database(demo_run: DemoRun) -> None:
    with uproot.open(demo_run.folder / "demo-results" / "results.root") as file:
        read = file["results"].arrays(["measurement_id", "cpu_per_event_s"], library="np")
    stored = dict(query(demo_run, "select measurement_id, cpu_per_event_s from measurement"))
    assert len(read["measurement_id"]) == len(stored)
    for name, value in zip(read["measurement_id"], read["cpu_per_event_s"], strict=True):
        assert value == pytest.approx(
            stored[name] if stored[name] is not None else float("nan"), rel=0, nan_ok=True
        )


def test_last_printed_commands_open_results_page(demo_run: DemoRun) -> None:
    """Run the printed commands unchanged except for the port, which may be in use."""
    typed, address = demo_run.output.splitlines()[-2:]
    _, _, command = typed.partition("The page on these results: ")
    (port,) = find_free_ports(1)
    where = urlsplit(address.split()[-1])
    assert (where.scheme, where.port, where.path) == ("http", 8443, "/")
    process = subprocess.Popen(
        shlex.split(command),
        cwd=demo_run.folder,
        env={**demo_run.environment, "TREEHAMMER_SERVE_PORT": str(port)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert any("serving at" in line for line in process.stderr)
        with httpx.Client(base_url=f"http://{where.hostname}:{port}", trust_env=False) as client:
            campaigns = client.get("/api/v1/campaigns").json()["tables"]["campaigns"]
            (site,) = client.get("/api/v1/sites").json()["tables"]["sites"]
            page = client.get("/", headers={"Accept": "text/html"})
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert page.status_code == 200
    assert len(campaigns) == 2
    assert all(one["campaign"] in page.text for one in campaigns)
    counts = "count(*), sum(failure_class is null and plausible)"
    ((recorded, good),) = query(demo_run, f"select {counts} from measurement")
    assert (sum(one["recorded"] for one in campaigns), site["good"]) == (recorded, good)
    assert good > 0


def test_demo_leaves_no_files_behind(demo_run: DemoRun) -> None:
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            where = path.readlink()
        except OSError:
            continue
        assert not where.is_relative_to(demo_run.folder / "demo-results"), path
    changed = subprocess.run(
        ["git", "status", "--porcelain"],
        cwd=demo_run.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    # A real clone differs only by the link to this environment.
    assert [line for line in changed.stdout.splitlines() if ".venv" not in line] == []


PAGES = (
    "first-run",
    "write-a-test",
    "compare-releases",
    "own-root-build",
    "read-results",
    "analysis",
    "datasets",
)


@pytest.mark.parametrize("name", PAGES)
def test_documented_output_matches_demo(demo_run: DemoRun, name: str) -> None:
    page = (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8")
    found = commands(page)
    assert found
    differing = []
    for command in found:
        printed = demo_run.output
        if command.text != "make demo":
            printed = run(command, demo_run.folder, demo_run.environment)
        if not agrees(command.expected, printed):
            differing.append(
                f"docs/{name}.md:{command.line}: $ {command.text}\n"
                f"--- in the page\n{normalize(command.expected)}\n--- printed\n{normalize(printed)}"
            )
    assert not differing, "\n\n".join(differing)


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
            evidence = vars(row.evidence)
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
