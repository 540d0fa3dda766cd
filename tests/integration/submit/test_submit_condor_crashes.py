"""Submitters to HTCondor killed when a job is queued, or at random: no job is lost or duplicated."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from condor_jobs import CondorJobs, pool_from_sites_file
from grid_fixtures import Grid
from helper_paths import helper_environment
from polling import wait_until

from treehammer.collectors.job_state import JobState
from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch

#: Spooled -> rounds, and latest kill of a submitter in seconds after its start.
ROUNDS = {False: (6, 0.6), True: (2, 2.0)}

SUBMITTER = """
import sys
from pathlib import Path
from condor_jobs import CondorJobs, submit_text
from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch
from treehammer.submit.batch.htcondor.pool import HTCondorPool
config, submit_dir, folder, campaign, spool, *sites = sys.argv[1:]
pool = HTCondorPool("first", config=Path(config), submit_dir=Path(submit_dir), spool=spool == "1")
jobs = CondorJobs(HTCondorBatch(pool, Path(folder) / "unused"), Path(folder) / f"made-{spool}")
jobs.campaign = campaign
described = [job for n, site in enumerate(sites) for job in jobs.describe_jobs(f"{campaign}-{n}-", 2, submit_text(site=site))]
print("ready", flush=True)
jobs.submit(described)
print("done", flush=True)
"""


def submitter(grid: Grid, jobs: CondorJobs, folder: Path, spool: bool) -> subprocess.Popen[str]:
    """Start a process that submits six jobs in three clusters."""
    pool = jobs.batch.pool
    arguments = [pool.config, pool.submit_dir, folder, jobs.campaign, str(int(spool))]
    return subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, *map(str, arguments), *grid.box.sites[:3]],
        stdout=subprocess.PIPE,
        text=True,
        env=helper_environment(),
    )


def find_jobs(jobs: CondorJobs, source: str) -> set[tuple[str, str]]:
    """Return (cluster.proc, job id) of jobs in queue or history that were not removed."""
    mine = f'TreehammerCampaign == "{jobs.campaign}" && JobStatus != 3'
    wanted = ["ClusterId", "ProcId", "TreehammerJob"]
    ads = jobs.batch.connection.query_schedd(lambda schedd: getattr(schedd, source)(mine, wanted))
    return {(f"{ad['ClusterId']}.{ad['ProcId']}", str(ad["TreehammerJob"])) for ad in ads}


@pytest.mark.slow
@pytest.mark.parametrize("spool", [False, True], ids=["shared", "spooled"])
def test_next_submitter_completes_killed_submission(
    pool: Grid, tmp_path: Path, spool: bool
) -> None:
    rounds, latest_s = ROUNDS[spool]
    campaigns: list[CondorJobs] = []
    for seed in range(rounds):
        folder = tmp_path / str(seed)
        folder.mkdir()
        changes: dict[str, Any] = {"spool": True, "submit_dir": folder / "spooled"} if spool else {}
        batch = HTCondorBatch(pool_from_sites_file(pool, **changes), folder / "unused")
        jobs = CondorJobs(batch, folder / "watcher")
        first = submitter(pool, jobs, folder, spool)
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        wanted = [f"{jobs.campaign}-{n}-{number}" for n in range(3) for number in range(2)]
        if seed == 0:  # at least one dies with jobs in the queue, however slow the machine is
            wait_until(partial(find_jobs, jobs, "query"), "a job is queued")
        else:
            time.sleep(random.Random(seed).uniform(0.0, latest_s))
        first.send_signal(signal.SIGKILL)
        first.wait()
        first.stdout.close()
        early = dict(batch.find(wanted))
        second = submitter(pool, jobs, folder, spool)
        out, _ = second.communicate(timeout=60)
        assert out == "ready\ndone\n"
        jobs.ids = dict(batch.find(wanted))
        assert set(jobs.ids) == set(wanted)
        assert jobs.ids.items() >= early.items(), "queued jobs keep their batch ids"
        campaigns.append(jobs)
    for jobs in campaigns:
        found = jobs.wait_until_final(180)
        assert {status.state for status in found.values()} == {JobState.DONE}
        assert {len(status.attempts) for status in found.values()} == {1}
        # The schedd knows each job once; spooled ones may still be leaving the queue.
        known = find_jobs(jobs, "query") | find_jobs(jobs, "history")
        assert Counter(job_id for _, job_id in known) == dict.fromkeys(jobs.ids, 1)
