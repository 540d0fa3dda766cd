"""Submitting to HTCondor and asking for the state of a large campaign, against HTCondor's own commands."""

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

from benchmarks.report import Figure, draw_points, median_ratio, write_rows
from treehammer import config
from treehammer.sql.rows import CampaignRow, JobRow
from treehammer.sql.store import Store
from treehammer.submit import sites_file
from treehammer.submit.batch.base import Description
from treehammer.submit.batch.htcondor import HTCondorBatch
from treehammer.submit.batch.htcondor.layout import parse
from treehammer.submit.site import Door, Pool, Site
from treehammer.testbed import assembly, condor, curtain, lifecycle, places

#: Jobs of a campaign, unless the command line says otherwise.
PROCS = 10_000
ROUNDS = 6
#: CPU seconds that the state of such a campaign may take.
STATUS_S = 1.0

# Of a kind that never starts: what is measured is the queue.
TEXT = """
universe = vanilla
executable = /bin/true
transfer_executable = false
request_memory = 100 MB
request_disk = 10 MB
requirements = TARGET.GLIDEIN_Site == "NOWHERE"
"""
AT_ONCE = 100
#: How the jobs enter the queue, by whether it is late.
KINDS = {False: "all in the queue", True: f"{AT_ONCE} in the queue at a time"}
#: Of what condor_submit takes.
AT_MOST = 1.2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--procs", type=int, default=PROCS, help=f"condor: jobs (default: {PROCS})")


def measure(options: argparse.Namespace) -> list[Figure]:
    """Submit so many jobs, ours and by condor_submit in turn, then ask for their state."""
    procs = int(options.procs)
    rows: list[dict[str, Any]] = []
    with _pool() as grid, tempfile.TemporaryDirectory() as name:
        for late in (False, True):
            text = TEXT + (f"max_materialize = {AT_ONCE}\n" if late else "")
            for number in range(ROUNDS):
                folder = Path(name) / f"{late}-{number}"
                rows.append(_round(grid, folder, text, procs, f"{int(late)}{number}"))
        rows_state, figures = _status(grid, Path(name), procs)
    write_rows("condor_submit", rows)
    write_rows("condor_status", rows_state)
    _draw(rows)
    return [*_ratios(rows, procs), *figures]


@contextmanager
def _pool() -> Iterator[condor.Pool]:
    """A testbed with an HTCondor pool alone."""
    box = places.make_box(f"bench{os.getpid()}", 1, config.load())
    parts = assembly.pools(box)
    curtain.check(box)
    for part in parts:
        part.install(lambda _: None)
    lifecycle.up(box, parts, lambda _: None)
    try:
        yield condor.first_pool(box)
    finally:
        lifecycle.down(box, parts, lambda _: None)


def _pool_of(pool: condor.Pool) -> Pool:
    return Pool(
        "bench",
        config=Path(pool.client_env["CONDOR_CONFIG"]),
        submit_dir=condor.submit_dir(pool.box),
    )


def _batch(pool: condor.Pool) -> HTCondorBatch:
    return HTCondorBatch(_pool_of(pool), condor.submit_dir(pool.box))


def _descriptions(folder: Path, text: str, procs: int, prefix: str) -> list[Description]:
    folder.mkdir(parents=True)
    found = []
    for number in range(procs):
        job_id = f"{prefix}{number:022x}"
        job = folder / f"{job_id}.json"
        job.write_text("{}")
        found.append(Description(job_id, text, {"job.json": job}))
    return found


def _round(pool: condor.Pool, folder: Path, text: str, procs: int, prefix: str) -> dict[str, Any]:
    """The same jobs by our submit(), and by condor_submit of the description that it wrote.

    condor_submit finds the jobs' folders and files there; that cp makes them is timed on its own.
    """
    batch = _batch(pool)
    jobs = _descriptions(folder, text, procs, prefix)
    start = time.monotonic()
    ids = batch.submit(f"bench{prefix}", jobs)
    ours = time.monotonic() - start
    known = parse(ids[jobs[0].job_id], batch.root)
    assert known is not None
    submission = known[0]
    start = time.monotonic()
    subprocess.run(["cp", "--recursive", "--link", submission.path, folder / "copy"], check=True)
    copied = time.monotonic() - start
    items = "\n".join(submission.job_ids)
    file = folder / "job.sub"
    file.write_text(f"{submission.description.read_text()}\nqueue job_id from (\n{items}\n)\n")
    start = time.monotonic()
    _command(pool, "condor_submit", "-terse", str(file))
    theirs = time.monotonic() - start
    _command(pool, "condor_rm", "-all")
    _until_empty(pool)
    late = "max_materialize" in text
    return {
        "late": late,
        "procs": procs,
        "submit_s": ours,
        "condor_submit_s": theirs,
        "cp_s": copied,
    }


def _command(pool: condor.Pool, *words: str) -> str:
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


def _until_empty(pool: condor.Pool) -> None:
    while _command(pool, "condor_q", "-all", "-af", "ClusterId").strip():
        time.sleep(0.5)


def _ratios(rows: list[dict[str, Any]], procs: int) -> list[Figure]:
    figures = []
    for late, what in KINDS.items():
        mine = [row for row in rows if row["late"] is late]
        ours = [row["submit_s"] for row in mine]
        alone = [row["condor_submit_s"] for row in mine]
        both = [row["condor_submit_s"] + row["cp_s"] for row in mine]
        name = f"condor: submit() of {procs} jobs, {what}"
        bound = None if late else AT_MOST
        figures += [
            median_ratio(f"{name} / condor_submit", ours, alone, at_most=bound),
            median_ratio(f"{name} / cp and condor_submit", ours, both, at_most=AT_MOST),
        ]
    return figures


def _draw(rows: list[dict[str, Any]]) -> None:
    columns = {"submit_s": "Treehammer", "condor_submit_s": "condor_submit", "cp_s": "cp"}
    draw_points(
        "condor_submit",
        f"Submitting {rows[0]['procs']} jobs",
        "seconds",
        {
            f"{name}, {what}": [row[column] for row in rows if row["late"] is late]
            for late, what in KINDS.items()
            for column, name in columns.items()
        },
        reference=None,
    )


def _status(
    pool: condor.Pool, folder: Path, procs: int
) -> tuple[list[dict[str, Any]], list[Figure]]:
    """CPU seconds of ``treehammer status`` of a campaign of so many jobs, as a user types it."""
    rows, figures = [], []
    sites = folder / "sites.toml"
    doors = (Door("file", "file", str(folder)),)
    site = Site("s", "htcondor@bench", doors, requirements="true")
    sites_file.write([site], [_pool_of(pool)], sites)
    for late, what in KINDS.items():
        text = TEXT + (f"max_materialize = {AT_ONCE}\n" if late else "")
        prefix = f"2{int(late)}"
        data = folder / f"data-{prefix}"
        data.mkdir()
        jobs = _descriptions(folder / prefix, text, procs, prefix)
        batch = _batch(pool)
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
            spent = _looking(data, sites, campaign.id, procs)
            rows.append({"late": late, "procs": procs, "round": number, **spent})
        _command(pool, "condor_rm", "-all")
        _until_empty(pool)
        cpu = statistics.median(row["cpu_s"] for row in rows if row["late"] is late)
        name = f"condor: CPU seconds of status of {procs} jobs, {what}"
        figures.append(Figure(name, cpu, pairs=ROUNDS, at_most=STATUS_S))
    return rows, figures


def _looking(data: Path, sites: Path, campaign: str, procs: int) -> dict[str, float]:
    """What the whole process costs, its start included."""
    words = ["--data-dir", str(data), "--sites-file", str(sites), "status", campaign, "--json"]
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    # As on a machine where Python keeps what it has compiled.
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
