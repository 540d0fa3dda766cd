"""The demo in a fresh clone: its measurements, output, pages and files."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from captured_runs import run_captured
from certificate_authority import find_free_port
from console import agrees, commands, normalize, run
from polling import wait_until
from repository_code import REPOSITORY, DemoRun

from treehammer.analysis.statistics.verdict import STATISTICAL_VERDICTS, Verdict
from treehammer.collectors.job_spec import MIN_LAUNCH_CPU_S, total_cpu_s
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1500)]


def query(demo: DemoRun, sql: str) -> list[Any]:
    """Query the demo's database; ``results`` includes the columns of the dimensions."""
    sql = sql.replace(
        "from results",
        "from measurement join subject on subject.id = subject_id"
        " join origin on origin.id = origin_id and origin.campaign_name not like 'in-print-%'"
        " join software on software.id = software_id",
    )
    with closing(sqlite3.connect(demo.folder / "demo-results" / "results.db")) as connection:
        return connection.execute(sql).fetchall()


def test_both_releases_measure_all_variants_in_both_modes(demo_run: DemoRun) -> None:
    rows = query(
        demo_run,
        "select run_mode, kind, axis_root, axis_branches, count(*) from results"
        " where kind in ('timed', 'control') and failure_class is null and plausible"
        " and root_version = axis_root and axis_cache_mb = 30 group by 1, 2, 3, 4",
    )
    counts = {
        ("solo", "timed", "1.0"): 1,
        ("solo", "timed", "0.02"): 1,
        ("paired", "timed", "1.0"): 6,
        ("paired", "control", "1.0"): 4,
    }
    assert {row[:4]: row[4] for row in rows} == {
        (mode, kind, root, branches): count
        for (mode, kind, branches), count in counts.items()
        for root in ("6.38.00", "6.40.00")
        if (kind, root) != ("control", "6.40.00")
    }


def test_demo_uses_checkout_history(demo_run: DemoRun) -> None:
    head = run_captured(
        ["git", "rev-parse", "HEAD"], cwd=demo_run.folder, check=True
    ).stdout.strip()
    assert query(demo_run, "select distinct commit_id, dirty, ref, test_path from results") == [
        (head, 0, "HEAD", "hctests/ttree-read")
    ]


def test_both_sides_of_launches_read_by_turns(demo_run: DemoRun) -> None:
    with Store.open(f"sqlite:///{demo_run.folder / 'demo-results' / 'results.db'}") as store:
        selected = Selection.parse((store.campaign("last").id,), ["kind!=checksum"])
        rows: list[Mapping[str, Any]] = list(store.measurements(selected))
    launches: dict[tuple[Any, Any], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        side = row["launch_order"][row["position"] - 1]
        launches.setdefault((row["job_id"], row["round"]), {})[side] = row
        assert row["events_read"] == row["events_total"] > 0
        assert row["passes_counted"] == row["passes_done"] == len(row["pass_loop_wall_s"])
        assert row["own_text_bytes"] > 10e6
        assert 0 <= row["huge_page_bytes"] <= row["tree_peak_rss_bytes"]
        assert row["raw_clock_ratio"] == pytest.approx(1, abs=1e-3)  # NTP steers by 500 ppm at most
        loop = sum(row["pass_loop_user_s"]) + sum(row["pass_loop_sys_s"])
        assert loop == pytest.approx(sum(row["segment_cpu_ns"]) / 1e9, rel=0.01)
        # By the quantity that a verdict demands.
        assert total_cpu_s(row["loop_cpu_s"], row["passes_counted"]) >= MIN_LAUNCH_CPU_S
    assert len(launches) == 8
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


def test_both_releases_read_equal_sizes(demo_run: DemoRun) -> None:
    sizes = query(
        demo_run,
        "select axis_branches, count(distinct loop_unzipped_bytes) from results"
        " where kind = 'timed' and run_mode = 'solo' group by 1",
    )
    assert sizes == [("0.02", 1), ("1.0", 1)]


def test_demo_begins_with_results_that_are_in_print(demo_run: DemoRun) -> None:
    lines = [line.split() for line in demo_run.output.splitlines()]
    (compression,) = [line for line in lines if line[:4] == ["zlib-over-lz4", "2.6", "to", "4.5"]]
    assert compression[-1] == "agrees"
    (twin,) = [line for line in lines if line[:2] == ["ttree-over-rntuple-zlib", "1.3"]]
    assert twin[-1] != "differs"
    report = (demo_run.folder / "demo-results" / "report.html").read_text(encoding="utf-8")
    assert f"Here {float(compression[4]):.3g} times" in report


def test_demo_ends_with_verdict_control_counts_and_conclusion(demo_run: DemoRun) -> None:
    _, _, compared = demo_run.output.partition("18 of 18 measured\n")
    rows = query(
        demo_run,
        "select label, metric, scope, verdict, hosts, evidence from verdict where axis = 'root'",
    )
    assert {row[:2] for row in rows if row[2] == "host"} == {
        ("ttree-read", f"{clock}_per_event_s") for clock in ("cpu", "wall")
    }
    for _, _, scope, verdict, hosts, evidence in rows:
        if scope == "host":
            # A busy machine may leave it undecided, or its control off.
            assert verdict in (*STATISTICAL_VERDICTS, Verdict.CONTROL_OFF), compared
            assert (hosts, VerdictEvidence.from_json(evidence).launches) == (1, 6)
    table, conclusion, details = (
        compared.index(text)
        for text in ("this host (6 launches)", "On this host, ", "Details: treehammer ")
    )
    assert conclusion < table < details


def test_demo_pages_contain_study_s0_figure_and_conclusion(demo_run: DemoRun) -> None:
    report = (demo_run.folder / "demo-results" / "report.html").read_text(encoding="utf-8")
    assert report.index("On this host, ") < report.index('id="efficiency')
    assert report.count("<svg") >= 2
    assert not re.search(r"(src|href)=[\"']https?:", report)
    assert "<script" not in report


def test_last_printed_commands_open_results_page(demo_run: DemoRun) -> None:
    """Run the printed commands unchanged except for the port, which may be in use."""
    typed, address = demo_run.output.splitlines()[-2:]
    _, _, command = typed.partition("The page on these results: ")
    port = find_free_port()
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
    assert len(campaigns) == 4
    assert all(campaign["campaign"] in page.text for campaign in campaigns)
    counts = "count(*), sum(failure_class is null and plausible)"
    ((recorded, good),) = query(demo_run, f"select {counts} from measurement")
    assert (sum(campaign["recorded"] for campaign in campaigns), site["good"]) == (recorded, good)
    assert good > 0


def list_users(folder: Path) -> list[psutil.Process]:
    """List the processes that work in a folder."""
    processes = psutil.process_iter(["cwd"])
    return [item for item in processes if Path(item.info["cwd"] or "/").is_relative_to(folder)]


def test_demo_leaves_no_files_behind(demo_run: DemoRun) -> None:
    # The local runner waits some seconds for further jobs.
    wait_until(lambda: not list_users(demo_run.folder / "demo-results"), "the runner leaves")
    changed = run_captured(["git", "status", "--porcelain"], cwd=demo_run.folder, check=True)
    # A real clone differs only by the link to this environment.
    assert [line for line in changed.stdout.splitlines() if ".venv" not in line] == []


PAGES = (
    "first-run",
    "write-a-test",
    "compare-releases",
    "own-root-build",
    "read-results",
    "datasets",
)


@pytest.mark.parametrize("name", PAGES)
def test_documented_output_matches_demo(demo_run: DemoRun, name: str) -> None:
    page = (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8")
    lines = commands(page)
    assert lines
    differing = []
    for command in lines:
        printed = demo_run.output
        if command.text != "make demo":
            printed = run(command, demo_run.folder, demo_run.environment)
        if not agrees(command.expected, printed):
            differing.append(
                f"docs/{name}.md:{command.line}: $ {command.text}\n"
                f"--- in the page\n{normalize(command.expected)}\n--- printed\n{normalize(printed)}"
            )
    assert not differing, "\n\n".join(differing)
