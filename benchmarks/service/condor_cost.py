"""Submission to HTCondor and state of a large campaign, against HTCondor's commands."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.ratio_figures import RatioFigure, median_ratio, plot_points, write_rows
from treehammer import config
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.batch.htcondor.submission_folder import parse_batch_id
from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Door, Site
from treehammer.testbed.components import component_list, condor_pool
from treehammer.testbed.core import lifecycle, workspace

#: Jobs of a campaign by default.
JOB_COUNT = 10_000
ROUNDS = 6
#: Limit of CPU seconds for the state of such a campaign.
MAX_STATUS_S = 1.0

# Jobs that never start: only the queue is measured.
SUBMIT_TEXT = """
universe = vanilla
executable = /bin/true
transfer_executable = false
request_memory = 100 MB
request_disk = 10 MB
requirements = TARGET.GLIDEIN_Site == "NOWHERE"
"""
MATERIALIZE_LIMIT = 100
#: Labels by whether jobs are materialized late.
QUEUE_LABELS = {False: "all in the queue", True: f"{MATERIALIZE_LIMIT} in the queue at a time"}
#: Limit as a multiple of condor_submit's time.
MAX_RATIO = 1.2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--procs", type=int, default=JOB_COUNT, help=f"condor: jobs (default: {JOB_COUNT})"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Submit jobs by Treehammer and condor_submit in turn, then query their state."""
    procs = int(options.procs)
    rows: list[dict[str, Any]] = []
    with _condor_testbed() as grid, tempfile.TemporaryDirectory() as name:
        for late in (False, True):
            text = SUBMIT_TEXT + (f"max_materialize = {MATERIALIZE_LIMIT}\n" if late else "")
            for number in range(ROUNDS):
                folder = Path(name) / f"{late}-{number}"
                rows.append(_measure_round(grid, folder, text, procs, f"{int(late)}{number}"))
        rows_state, figures = _measure_status(grid, Path(name), procs)
    write_rows("condor_submit", rows)
    write_rows("condor_status", rows_state)
    _plot_rows(rows)
    return [*_ratio_figures(rows, procs), *figures]


@contextmanager
def _condor_testbed() -> Iterator[condor_pool.PoolLayout]:
    """Run a testbed with an HTCondor pool only."""
    box = workspace.define_workspace(f"bench{os.getpid()}", 1, config.load_settings())
    with lifecycle.run_testbed(box, component_list.build_pools(box), lambda _: None):
        yield condor_pool.first_pool_layout(box)


def _batch_pool(pool: condor_pool.PoolLayout) -> HTCondorPool:
    return HTCondorPool(
        "bench",
        config=Path(pool.client_env["CONDOR_CONFIG"]),
        submit_dir=condor_pool.submit_folder(pool.workspace),
    )


def _batch_system(pool: condor_pool.PoolLayout) -> HTCondorBatch:
    return HTCondorBatch(_batch_pool(pool), condor_pool.submit_folder(pool.workspace))


def _write_descriptions(folder: Path, text: str, procs: int, prefix: str) -> list[JobDescription]:
    folder.mkdir(parents=True)
    found = []
    for number in range(procs):
        job_id = f"{prefix}{number:022x}"
        job = folder / f"{job_id}.json"
        job.write_text("{}")
        found.append(JobDescription(job_id, text, {"job.json": job}))
    return found


def _measure_round(
    pool: condor_pool.PoolLayout, folder: Path, text: str, procs: int, prefix: str
) -> dict[str, Any]:
    """Submit the same jobs by submit() and by condor_submit with the same description.

    condor_submit finds the jobs' folders and files; copying them with cp is timed separately.
    """
    batch = _batch_system(pool)
    jobs = _write_descriptions(folder, text, procs, prefix)
    start = time.monotonic()
    ids = batch.submit(f"bench{prefix}", jobs)
    ours = time.monotonic() - start
    known = parse_batch_id(ids[jobs[0].job_id], batch.root)
    assert known is not None
    submission = known[0]
    start = time.monotonic()
    subprocess.run(["cp", "--recursive", "--link", submission.path, folder / "copy"], check=True)
    copied = time.monotonic() - start
    items = "\n".join(submission.job_ids)
    file = folder / "job.sub"
    file.write_text(f"{submission.description_file.read_text()}\nqueue job_id from (\n{items}\n)\n")
    start = time.monotonic()
    _condor_submit_command(pool, "condor_submit", "-terse", str(file))
    theirs = time.monotonic() - start
    _condor_submit_command(pool, "condor_rm", "-all")
    _empty_queue(pool)
    late = "max_materialize" in text
    return {
        "late": late,
        "procs": procs,
        "submit_s": ours,
        "condor_submit_s": theirs,
        "cp_s": copied,
    }


def _condor_submit_command(pool: condor_pool.PoolLayout, *words: str) -> str:
    program = next(
        path
        for folder in pool.client_env["PATH"].split(":")
        if (path := Path(folder, words[0])).exists()
    )
    done = subprocess.run(
        words,
        executable=program,
        env=pool.client_env,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def _empty_queue(pool: condor_pool.PoolLayout) -> None:
    while _condor_submit_command(pool, "condor_q", "-all", "-af", "ClusterId").strip():
        time.sleep(0.5)


def _ratio_figures(rows: list[dict[str, Any]], procs: int) -> list[RatioFigure]:
    figures = []
    for late, what in QUEUE_LABELS.items():
        mine = [row for row in rows if row["late"] is late]
        ours = [row["submit_s"] for row in mine]
        alone = [row["condor_submit_s"] for row in mine]
        both = [row["condor_submit_s"] + row["cp_s"] for row in mine]
        name = f"condor: submit() of {procs} jobs, {what}"
        bound = None if late else MAX_RATIO
        figures += [
            median_ratio(f"{name} / condor_submit", ours, alone, at_most=bound),
            median_ratio(f"{name} / cp and condor_submit", ours, both, at_most=MAX_RATIO),
        ]
    return figures


def _plot_rows(rows: list[dict[str, Any]]) -> None:
    columns = {"submit_s": "Treehammer", "condor_submit_s": "condor_submit", "cp_s": "cp"}
    plot_points(
        "condor_submit",
        f"Submitting {rows[0]['procs']} jobs",
        "seconds",
        {
            f"{name}, {what}": [row[column] for row in rows if row["late"] is late]
            for late, what in QUEUE_LABELS.items()
            for column, name in columns.items()
        },
        reference=None,
    )


def _measure_status(
    pool: condor_pool.PoolLayout, folder: Path, procs: int
) -> tuple[list[dict[str, Any]], list[RatioFigure]]:
    """Return the CPU seconds of ``treehammer status`` of a campaign."""
    rows, figures = [], []
    sites = folder / "sites.toml"
    doors = (Door("file", "file", str(folder)),)
    site = Site("s", "htcondor@bench", doors, requirements="true")
    sites_file.write_sites_file([site], [_batch_pool(pool)], sites)
    for late, what in QUEUE_LABELS.items():
        text = SUBMIT_TEXT + (f"max_materialize = {MATERIALIZE_LIMIT}\n" if late else "")
        prefix = f"2{int(late)}"
        data = folder / f"data-{prefix}"
        data.mkdir()
        jobs = _write_descriptions(folder / prefix, text, procs, prefix)
        batch = _batch_system(pool)
        ids = batch.submit(f"bench{prefix}", jobs)
        with Store.open(f"sqlite:///{data / 'results.db'}") as store:
            campaign = CampaignRow(
                f"bench{prefix}", "bench", 1, "", "", "", False, "t", "", "{}", procs, procs
            )
            store.add_campaign(
                campaign,
                (
                    JobRow(j, campaign.id, "s", "d", "timed", 1, "l", batch.name, b, 1, "queued")
                    for j, b in ids.items()
                ),
            )
        for number in range(ROUNDS):
            spent = _status_cpu_s(data, sites, campaign.id, procs)
            rows.append({"late": late, "procs": procs, "round": number, **spent})
        _condor_submit_command(pool, "condor_rm", "-all")
        _empty_queue(pool)
        cpu = statistics.median(row["cpu_s"] for row in rows if row["late"] is late)
        name = f"condor: CPU seconds of status of {procs} jobs, {what}"
        figures.append(RatioFigure(name, cpu, pairs=ROUNDS, upper_bound=MAX_STATUS_S))
    return rows, figures


def _status_cpu_s(data: Path, sites: Path, campaign: str, procs: int) -> dict[str, float]:
    """Return the CPU seconds of the whole process, start included."""
    words = ["--data-dir", str(data), "--sites-file", str(sites), "status", campaign, "--json"]
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    # Byte code is cached, as on a normal machine.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-m", "treehammer", *words], check=True, stdout=subprocess.PIPE, env=env
    )
    wall = time.monotonic() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    counts = json.loads(done.stdout)[0]
    assert counts["queued"] == procs, counts
    return {
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "wall_s": wall,
    }
