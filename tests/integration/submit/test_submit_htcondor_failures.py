"""Submitters to HTCondor killed at any moment, vanished nodes, and full disks of jobs."""

from __future__ import annotations

import json
import os
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
from grid_campaigns import GridUser
from grid_fixtures import Grid
from machine_requirements import helper_environment
from polling import wait_until

from treehammer.collectors.job_spec import JobState
from treehammer.errors import NothingToDoError
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch

#: Spooled -> rounds, and latest kill of a submitter in seconds after its start.
ROUNDS = {False: (6, 0.6), True: (2, 2.0)}

SUBMITTER = """
import sys
from pathlib import Path
from condor_jobs import CondorJobs, submit_text
from treehammer.errors import NothingToDoError
from treehammer.sql.write.store import Store
from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch
from treehammer.errors import NothingToDoError
from treehammer.sql.write.store import Store
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


#: Functions at whose nth call a submitter to this machine and two sites of a pool is killed.
KILLS_BETWEEN_SITES = [
    ("submit.batch.htcondor.htcondor_batch:HTCondorBatch.submit", 1),
    ("submit.batch.htcondor.htcondor_batch:HTCondorBatch._submit_cluster", 2),
    ("submit.batch.htcondor.schedd_queue:ScheddQueue.add", 1),
    ("submit.batch.htcondor.schedd_queue:ScheddQueue.add", 2),
    ("submit.batch.htcondor.submission_folder:Submission.record_cluster", 1),
    ("submit.batch.htcondor.submission_folder:Submission.record_cluster", 2),
    ("submit.batch.local_batch:LocalBatch.submit", 1),
    ("sql.write.store:Store.set_jobs", 1),
]
#: Submitters killed at random instants after the campaign was stored, and the latest of them.
RANDOM_KILLS = int(os.environ.get("TREEHAMMER_RANDOM_KILLS", "4"))
LATEST_KILL_S = 0.4


def test_resume_completes_submissions_killed_between_sites(user: GridUser) -> None:
    """Every job is accounted for after each kill, and each runs once."""
    arguments = ("submit", str(user.test), "--sites", "local,SITE_A,SITE_B", "-S", "repeats=1")
    stored, instants = "sql.write.store:Store.add_campaign", random.Random(1)
    for function, call in KILLS_BETWEEN_SITES:
        assert user.run_and_kill(function, *arguments, call=call)
        check_killed_submission(user)
    for _ in range(RANDOM_KILLS):
        after_s = instants.uniform(0, LATEST_KILL_S)
        user.run_and_kill(stored, *arguments, after_s=after_s)
        check_killed_submission(user)
    with Store.open(user.settings.database) as store:
        campaigns = [row.id for row in store.campaigns()]
        assert len(campaigns) == len(KILLS_BETWEEN_SITES) + RANDOM_KILLS
    for campaign in campaigns:
        assert "6 of 6 measured" in user.follow_campaign(campaign)
        with Store.open(user.settings.database) as store:
            attempts = store.attempts(job.id for job in store.jobs(campaign))
        assert [(row.number, row.failure_class) for row in attempts] == [(1, "")] * 3
        jobs = CondorJobs(HTCondorBatch(pool_from_sites_file(user.grid), user.folder), user.folder)
        jobs.campaign = campaign
        in_pool = find_jobs(jobs, "query") | find_jobs(jobs, "history")
        assert Counter(job_id for _, job_id in in_pool).most_common(1)[0][1] == 1
        assert len(in_pool) == 2
    assert not any(user.settings.submissions_dir.glob("*/jobs.json"))


def check_killed_submission(user: GridUser) -> None:
    """Check that all jobs of the last campaign are accounted for, and resume it."""
    rows = json.loads(user.invoke_command("status", "last", "--json").stdout)
    assert sum(row[state.value] for row in rows for state in JobState) == 3
    unqueued = sum(row["missing"].get("submission", 0) // 2 for row in rows)
    resumed = user.invoke_command("resume", "last")
    assert (
        isinstance(resumed.exception, NothingToDoError) if not unqueued else not resumed.exception
    )
    if unqueued:
        assert f"0 jobs released, {unqueued} requeued" in resumed.output
    with Store.open(user.settings.database) as store:
        assert all(job.batch_id for job in store.jobs(user.last_campaign_id()))
    print(f"{unqueued} of 3 jobs were left by the submitter")


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


LEASE_S = 20


def _limit_jobs(user: GridUser, folder: Path, limits: str, lines: str = "") -> str:
    """Change limits of the first site's template; return the site."""
    folder.mkdir()
    (folder / "htcondor.sub.j2").write_text(
        f'{{% extends "shipped/htcondor.sub.j2" %}}\n{{% set limits = dict(limits, {limits}) %}}\n'
        f"{{% block site %}}\n{lines}\n{{% endblock %}}\n"
    )
    site = user.grid.box.sites[0]
    user.write_sites_file(**{site: {"templates": folder}})
    return site


def _attempts(user: GridUser) -> list[AttemptRow]:
    with Store.open(user.settings.database) as store:
        return store.attempts(job.id for job in store.jobs(store.campaign("last").id))


@pytest.mark.parametrize("schedd_too", [False, True])
def test_status_names_lost_node_until_job_runs_again(
    user: GridUser, tmp_path: Path, schedd_too: bool
) -> None:
    site = _limit_jobs(user, tmp_path / "templates", f"lease_s={LEASE_S}")
    user.set_payload("sleep 5")
    user.submit_campaign("--sites", site, "-S", "repeats=1")
    started = user.grid.submit_dir / user.last_campaign_id()
    user.grid.wait_until(
        lambda: any("ExecuteEvent" in log.read_text() for log in started.glob("*/events.log")),
        "the job runs",
    )
    if schedd_too:
        user.grid.kill_schedd()
    user.grid.kill_startd(site)
    user.grid.wait_until(
        lambda: f"no contact to slot1@{site}@" in user.run_in_shell("status", "last"),
        "status names the lost node",
        timeout_s=LEASE_S,
    )
    said = user.follow_campaign("last")
    assert "2 of 2 measured" in said
    first, *_, last = _attempts(user)
    assert (first.failure_class, last.failure_class) == ("lost", "")
    assert last.started_us - first.started_us < 60e6, "no longer than the lease"


def test_job_that_fills_its_disk_is_removed(user: GridUser, tmp_path: Path) -> None:
    site = _limit_jobs(user, tmp_path / "templates", "idle_s=600", "request_disk = 20000")
    user.set_payload("head -c 50000000 /dev/zero >big; sleep 60")
    user.submit_campaign("--sites", site, "-S", "repeats=1", "--wait")
    attempt = _attempts(user)[-1]
    assert attempt.failure_class == "evicted"
    assert "MiB of disk, more than the 19 MiB requested" in attempt.message
