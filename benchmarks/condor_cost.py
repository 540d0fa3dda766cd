"""Submitting to HTCondor and asking for the state of a large campaign, against HTCondor's own commands."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, median_ratio, write_rows
from treehammer import config
from treehammer.sql.rows import CampaignRow, JobRow
from treehammer.sql.store import Store
from treehammer.submit.batch.base import Description
from treehammer.submit.batch.htcondor import HTCondorBatch
from treehammer.submit.batch.htcondor.layout import parse
from treehammer.submit.site import Pool
from treehammer.submit.tracking import Tracker
from treehammer.testbed import assembly, condor, curtain, lifecycle, places

#: Jobs of a campaign, unless the command line says otherwise.
PROCS = 10_000
ROUNDS = 3
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


def _batch(pool: condor.Pool) -> HTCondorBatch:
    mine = Pool(
        "bench",
        config=Path(pool.client_env["CONDOR_CONFIG"]),
        submit_dir=condor.submit_dir(pool.box),
    )
    return HTCondorBatch(mine, condor.submit_dir(pool.box))


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
    """The same jobs by our submit(), and by condor_submit of the description that it wrote."""
    batch = _batch(pool)
    jobs = _descriptions(folder, text, procs, prefix)
    start = time.monotonic()
    ids = batch.submit(f"bench{prefix}", jobs)
    ours = time.monotonic() - start
    known = parse(ids[jobs[0].job_id], batch.root)
    assert known is not None
    submission = known[0]
    items = "\n".join(submission.job_ids)
    file = folder / "job.sub"
    file.write_text(f"{submission.description.read_text()}\nqueue job_id from (\n{items}\n)\n")
    start = time.monotonic()
    _command(pool, "condor_submit", "-terse", str(file))
    theirs = time.monotonic() - start
    _command(pool, "condor_rm", "-all")
    _until_empty(pool)
    late = "max_materialize" in text
    return {"late": late, "procs": procs, "submit_s": ours, "condor_submit_s": theirs}


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
    for late in (False, True):
        mine = [row for row in rows if row["late"] is late]
        how = f", {AT_ONCE} at a time" if late else ""
        figures.append(
            median_ratio(
                f"condor: submit() of {procs} jobs{how} / condor_submit",
                [row["submit_s"] for row in mine],
                [row["condor_submit_s"] for row in mine],
                at_most=None if late else 1.2,
            )
        )
    return figures


def _status(
    pool: condor.Pool, folder: Path, procs: int
) -> tuple[list[dict[str, Any]], list[Figure]]:
    """CPU seconds of looking at a campaign of so many jobs, all queued one by one."""
    rows, figures = [], []
    for late in (False, True):
        text = TEXT + (f"max_materialize = {AT_ONCE}\n" if late else "")
        prefix = f"2{int(late)}"
        jobs = _descriptions(folder / prefix, text, procs, prefix)
        batch = _batch(pool)
        ids = batch.submit(f"bench{prefix}", jobs)
        with Store.open(f"sqlite:///{folder / f'{prefix}.db'}") as store:
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
                tracker = Tracker(store, lambda _: batch)  # noqa: B023
                cpu, wall = time.process_time(), time.monotonic()
                progress = tracker.look(campaign)
                spent = time.process_time() - cpu
                assert progress.planned == procs
                rows.append(
                    {
                        "late": late,
                        "procs": procs,
                        "round": number,
                        "cpu_s": spent,
                        "wall_s": time.monotonic() - wall,
                    }
                )
        _command(pool, "condor_rm", "-all")
        _until_empty(pool)
        middle = sorted(row["cpu_s"] for row in rows if row["late"] is late)[ROUNDS // 2]
        how = f"{AT_ONCE} in the queue" if late else "all in the queue"
        what = f"condor: CPU seconds of the state of {procs} jobs, {how}"
        figures.append(Figure(what, middle, pairs=ROUNDS, at_most=STATUS_S))
    return rows, figures
