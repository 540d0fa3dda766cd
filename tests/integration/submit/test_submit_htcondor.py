"""HTCondor on a real pool: failures, damaged services, killed submitters, and SciTokens."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from condor_jobs import (
    CondorJobs,
    ScitokenIssuer,
    pool_from_sites_file,
    submit_text,
    write_client_config,
)
from grid_campaigns import GridUser
from grid_fixtures import Grid

from treehammer.collectors.job_spec import JobState
from treehammer.config import Settings
from treehammer.errors import BatchError, NothingToDoError
from treehammer.sql.write.store import Store
from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch
from treehammer.submit.batch.htcondor.pool import HTCondorPool, PoolConnection
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Door
from treehammer.testbed.components.condor_pool import SCITOKEN_USER

ALL = {"worker.out", "worker.err", "seen.json", "records/r.json"}


@pytest.fixture
def jobs(pool: Grid, tmp_path: Path) -> Iterator[CondorJobs]:
    made = CondorJobs(
        HTCondorBatch(pool_from_sites_file(pool), tmp_path / "unused"), tmp_path / "made"
    )
    yield made
    made.batch.cancel(made.ids.values())


def test_materialized_jobs_return_every_attempt(pool: Grid, jobs: CondorJobs) -> None:
    a, b, c = pool.box.sites[:3]
    described = [
        *jobs.describe_jobs("plain", 4, submit_text(site=a, at_once=2)),
        *jobs.describe_jobs("again", 1, submit_text("temporary", site=b)),
        *jobs.describe_jobs("killed", 1, submit_text("signal", site=c)),
    ]
    ids = jobs.submit(described)
    assert jobs.submit(described) == ids, "a repeated submission queues nothing"
    assert jobs.batch.find([*ids, "stranger"]) == ids
    clusters = {batch_id.partition(".")[0] for batch_id in ids.values()}
    assert len(clusters) == 3, "one for each text"
    records = jobs.batch.root.glob(f"{jobs.campaign}/*/cluster.json")
    schedds = {json.loads(record.read_text())["schedd"] for record in records}
    assert schedds == {"condor@condor.testbed"}
    assert sum("ProcId" in ad for ad in jobs.queued_ads()) <= 4, "two of the first text at a time"
    statuses = jobs.wait_until_final()
    assert {status.state for status in statuses.values()} == {JobState.DONE}
    for number in range(4):
        (attempt,) = statuses[f"plain{number}"].attempts
        assert (attempt.number, attempt.exit_code, attempt.event) == (1, 0, None)
        assert 0 < attempt.started_us <= attempt.ended_us
        assert attempt.host
        assert jobs.output_files(f"plain{number}") == {1: ALL}
    assert [a.exit_code for a in statuses["again0"].attempts] == [75, 0]
    assert [a.exit_code for a in statuses["killed0"].attempts] == [-9, 0]
    assert jobs.output_files("again0") == jobs.output_files("killed0") == {1: ALL, 2: ALL}
    sandbox = jobs.batch.sandboxes(ids["plain2"])[1]
    assert (sandbox / "seen.json").read_text() == '"plain2"'

    # The result is the same for another process, and without the event log.
    jobs.restart_client()
    assert jobs.statuses() == statuses
    for path in pool.submit_dir.glob(f"{jobs.campaign}/*/events.log"):
        path.unlink()
    jobs.restart_client()
    bare = jobs.statuses()
    assert {j: s.state for j, s in bare.items()} == {j: s.state for j, s in statuses.items()}
    assert {j: s.attempts[-1].exit_code for j, s in bare.items()} == dict.fromkeys(ids, 0)

    assert jobs.batch.purge(ids.values()) > 0
    assert not (pool.submit_dir / jobs.campaign).exists()


def test_failures_are_reported_with_their_reasons(pool: Grid, jobs: CondorJobs) -> None:
    """All at once: one after the other would take minutes."""
    a, b, c = pool.box.sites[:3]
    bad = submit_text(site=c).replace("executable = /bin/sh", "executable = /bin/no-such-program")
    jobs.submit(
        [
            *jobs.describe_jobs("startd", 1, submit_text("once", site=a)),
            *jobs.describe_jobs("stopped", 1, submit_text("once", site=b)),
            *jobs.describe_jobs("behind", 1, submit_text("once", site=c)),
            *jobs.describe_jobs("never", 3, submit_text(site="NOWHERE", at_once=2)),
        ]
    )
    jobs.wait_until_running("startd0", "stopped0", "behind0")
    time.sleep(2)  # let them execute for a while
    pool.kill_startd(a)
    with pool.without_site(b):
        pool.run_condor_command("condor_rm", jobs.ids["behind0"].partition(".")[0])
        # Submitted later, since each site has one slot.
        jobs.submit(jobs.describe_jobs("bad", 1, bad))
        held = jobs.wait_until(
            lambda s: s["bad0"].state is JobState.HELD, "the bad executable is held"
        )["bad0"]
        notes = jobs.batch.explain_waiting(jobs.ids.values())
        pool.run_condor_command("condor_rm", jobs.ids["never0"].partition(".")[0])
        pool.run_condor_command("condor_rm", jobs.ids["bad0"].partition(".")[0])
    assert held.hold
    assert "no-such-program" in held.hold.reason
    assert "2 jobs are idle: no slot of 2 matches (condor_q -better-analyze" in " ".join(notes)
    assert any(note.startswith("2 jobs are idle: no slot of") for note in notes)

    statuses = jobs.wait_until_final(120)
    for job_id, event in (("startd0", "lost"), ("stopped0", "evicted")):
        first, *_, last = statuses[job_id].attempts
        assert (first.state, first.event) == (JobState.LOST, event)
        assert (last.state, last.exit_code) == (JobState.DONE, 0)
        assert jobs.output_files(job_id)[last.number] == ALL
    assert "disconnected too long" in statuses["startd0"].attempts[0].reason
    for job_id, event, reason in (
        ("behind0", "lost", "via condor_rm"),
        ("bad0", "held", "condor_rm"),
        *((f"never{number}", "lost", "removed from the queue") for number in range(3)),
    ):
        status = statuses[job_id]
        assert (status.state, status.event) == (JobState.LOST, event), status
        assert reason in status.reason
    assert [a.event for a in statuses["bad0"].attempts] == ["held"]


def test_killed_schedd_loses_and_repeats_nothing(pool: Grid, jobs: CondorJobs) -> None:
    site = pool.box.sites[0]
    jobs.submit(jobs.describe_jobs("job", 4, submit_text("nap", site=site, at_once=2)))
    jobs.wait_until_running("job0")
    pool.wait_until(lambda: pool.starter_pids(site), "its starter is there")
    time.sleep(1)
    pool.kill_schedd()
    state = jobs.statuses()["job0"].state
    assert state in (JobState.RUNNING, JobState.DONE), "the log does without the schedd"
    jobs.wait_until_final()
    check_each_ran_once(jobs)


def check_each_ran_once(jobs: CondorJobs) -> None:
    """Check that every job is done after one attempt, and that the pool had it once."""
    statuses = jobs.statuses()
    assert {status.state for status in statuses.values()} == {JobState.DONE}, statuses
    assert {len(status.attempts) for status in statuses.values()} == {1}, statuses
    assert all(jobs.output_files(job_id) == {1: ALL} for job_id in jobs.ids)
    in_pool = find_jobs(jobs, "query_ads") | find_jobs(jobs, "query_history")
    assert Counter(job_id for _, job_id in in_pool) == dict.fromkeys(jobs.ids, 1)


def test_jobs_are_cancelled_and_released(pool: Grid, jobs: CondorJobs) -> None:
    a, b = pool.box.sites[:2]
    jobs.submit(jobs.describe_jobs("some", 3, submit_text("once", site=a, at_once=2)))
    jobs.submit(jobs.describe_jobs("held", 1, submit_text("once", site=b)))
    jobs.wait_until_running("some0", "held0")
    pool.run_condor_command("condor_hold", jobs.ids["held0"].partition("@")[0])
    # A job released before its shadow has ended would stay idle for minutes.
    jobs.wait_until(lambda s: bool(s["held0"].hold and s["held0"].attempts[0].hold), "it is held")
    time.sleep(1)
    assert jobs.batch.release(jobs.ids.values()) == 1
    job_ids = [jobs.ids[f"some{number}"] for number in range(3)]
    assert jobs.batch.cancel(job_ids) == 3
    statuses = jobs.wait_until_final()
    assert {statuses[f"some{n}"].state for n in range(3)} == {JobState.CANCELLED}
    assert statuses["some0"].attempts[0].state is JobState.CANCELLED
    assert not any(status.event for j, status in statuses.items() if j.startswith("some"))
    first, last = statuses["held0"].attempts
    assert (first.event, last.exit_code) == ("held", 0)
    assert jobs.batch.cancel(jobs.ids.values()) == 0


def test_shared_and_spooled_pools_in_one_process(
    pool: Grid, jobs: CondorJobs, tmp_path: Path
) -> None:
    spooled = pool_from_sites_file(pool, second=True, spool=True, submit_dir=None)
    other = CondorJobs(HTCondorBatch(spooled, tmp_path / "spooled"), tmp_path / "other")
    jobs.submit(jobs.describe_jobs("here", 1, submit_text(site=pool.box.sites[0])))
    everywhere = submit_text("temporary", at_once=2).replace(
        'TARGET.GLIDEIN_Site == "SITE_A"', "true"
    )
    other.submit(other.describe_jobs("there", 3, everywhere))
    assert {status.state for status in jobs.wait_until_final().values()} == {JobState.DONE}
    statuses = other.wait_until_final()
    for job_id, status in statuses.items():
        # The schedd of a job router does not see that a routed job starts again.
        assert [a.exit_code for a in status.attempts] == [None, 0]
        assert other.output_files(job_id) == {1: ALL, 2: ALL}
    assert other.batch.find(other.ids) == other.ids
    assert {s.state for s in jobs.statuses().values()} == {JobState.DONE}


def test_errors_are_reported(pool: Grid, jobs: CondorJobs, tmp_path: Path) -> None:
    good = pool_from_sites_file(pool)
    jobs.batch.connection.pauses_s = (0.1,)
    jobs.submit(jobs.describe_jobs("kept", 1, submit_text(site="NOWHERE")))
    nobody = HTCondorBatch(good.replace(name="nobody", collector="127.0.0.1:1"), tmp_path)
    nobody.connection.pauses_s = (0.1,)
    with pytest.raises(BatchError, match="does not answer"):
        nobody.submit(jobs.campaign, jobs.describe_jobs("lost", 1, submit_text()))
    assert nobody.find(["lost0"]) == {}, "nothing was kept"
    assert nobody.query(jobs.ids.values()).keys() == {*jobs.ids.values()}, "the log does without"
    for log in jobs.batch.root.glob(f"{jobs.campaign}/*/events.log"):
        log.unlink()
    with pytest.raises(BatchError, match="does not answer"):
        nobody.query(jobs.ids.values())
    with pytest.raises(BatchError, match=r"HTCondor configuration .* not found"):
        HTCondorBatch(good.replace(config=tmp_path / "none"), tmp_path).connection.identify_schedd()
    with pytest.raises(BatchError, match="does not accept the jobs"):
        jobs.submit(jobs.describe_jobs("odd", 1, submit_text() + "request_cpus = lots of\n"))
    assert jobs.batch.find(["odd0"]) == {}


@pytest.mark.parametrize(("answer_s", "calls"), [(0.0, 6), (0.5, 1)])
def test_only_calls_that_fail_quickly_are_repeated(
    monkeypatch: pytest.MonkeyPatch, answer_s: float, calls: int
) -> None:
    connection = PoolConnection(HTCondorPool(name="busy"))
    connection.pauses_s = (0.0, 0.4)
    waited, called = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: sum(waited), sleep=waited.append)
    monkeypatch.setattr("treehammer.submit.batch.htcondor.pool.time", clock)

    def fail(htcondor: ModuleType) -> None:
        called.append(htcondor)
        waited.append(answer_s)
        raise htcondor.HTCondorException("it did not respond")

    monkeypatch.setattr(connection, "locate_schedd", fail)
    for _ in range(2):
        with pytest.raises(BatchError, match="it did not respond"):
            connection.query_schedd(str)
    assert len(called) == calls


@pytest.fixture(scope="module")
def issuer(pool: Grid) -> ScitokenIssuer:
    made = ScitokenIssuer()
    made.publish_keys(pool.pool)
    return made


class TokenDesk(GridUser):
    """A user of the first pool who authenticates only by a SciToken."""

    settings: Settings

    def use_token(self, token: Path) -> None:
        """Write a sites file with this token, and spooling as for a remote schedd."""
        config = write_client_config(self.grid.pool, self.folder)
        pool = pool_from_sites_file(
            self.grid, config=config, scitoken_file=token, spool=True, submit_dir=None
        )
        path = self.folder / "sites.toml"
        site = self.sites[self.grid.box.sites[0]].replace(
            doors=(Door(name="file", protocol="file", prefix="/nowhere"),)
        )
        sites_file.write_sites_file([site], [pool], path)
        self.settings = replace(self.settings, sites_file=path)

    def checks(self) -> dict[str, dict[str, str]]:
        """Check the pool in a new process, as sessions last as long as their process."""
        rows = json.loads(
            self.run_in_shell("sites", "check", "--wait", "0", "--json").partition("]")[0] + "]"
        )
        return {row["check"]: row for row in rows if row["site"] == "pool first"}


@pytest.fixture
def user(pool: Grid, tmp_path: Path) -> TokenDesk:
    return TokenDesk(tmp_path, pool)


def test_campaign_runs_with_scitoken(user: TokenDesk, issuer: ScitokenIssuer) -> None:
    user.use_token(issuer.write_token(user.folder / "scitoken"))
    checks = user.checks()
    assert checks["token scitoken"]["finding"].startswith("valid until")
    assert f"accepts jobs of {SCITOKEN_USER}@{user.grid.pool.domain}" in checks["schedd"]["finding"]

    user.set_payload("test ! -e scitoken")
    output = user.run_in_shell(
        "submit", str(user.test), "--sites", user.grid.box.sites[0], "-S", "repeats=1", "--wait"
    )
    assert "2 of 2 measured" in output, output
    assert [row["failure_class"] for row in user.read_measurements()] == [None, None]
    query = f'TreehammerSite == "{user.grid.box.sites[0]}" && Owner == "{SCITOKEN_USER}"'
    owned = user.grid.run_condor_command(
        "condor_q", "-allusers", "-af", "ClusterId", "-constraint", query
    )
    owned += user.grid.run_condor_command(
        "condor_history", "-af", "ClusterId", "-constraint", query
    )
    assert len(owned.split()) == 1


def test_unusable_scitokens_are_reported(user: TokenDesk, issuer: ScitokenIssuer) -> None:
    user.use_token(issuer.write_token(user.folder / "old", life_s=-100))
    checks = user.checks()
    assert "expired at" in checks["token old"]["finding"]
    assert "denies access" in checks["collector"]["finding"]
    assert "scitoken_file" in checks["collector"]["remedy"]

    # An issuer of the same name, with a key that the pool does not know.
    user.use_token(ScitokenIssuer().write_token(user.folder / "forged"))
    checks = user.checks()
    assert checks["token forged"]["result"] == "ok"
    assert "denies access" in checks["collector"]["finding"]

    user.use_token(issuer.write_token(user.folder / "reader", scope="condor:/READ"))
    checks = user.checks()
    assert checks["collector"]["result"] == "ok"
    assert "denies access" in checks["schedd"]["finding"]
    secret = (user.folder / "reader").read_text().strip()
    output = user.run_in_shell("submit", str(user.test), "--sites", user.grid.box.sites[0])
    assert "denies access" in output, output
    assert "Try again" not in output
    assert secret not in output


def find_jobs(jobs: CondorJobs, source: str) -> set[tuple[str, str]]:
    """Return (cluster.proc, job id) of jobs in queue or history that were not removed."""
    constraint = f'TreehammerCampaign == "{jobs.campaign}" && ProcId >= 0 && JobStatus != 3'
    query = getattr(jobs.batch.connection, source)
    ads = query(constraint, ["ClusterId", "ProcId", "TreehammerJob"])
    return {(f"{ad['ClusterId']}.{ad['ProcId']}", str(ad["TreehammerJob"])) for ad in ads}


#: Functions at whose nth call a submitter to this machine and two sites of a pool is killed.
KILLS_BETWEEN_SITES = [
    ("submit.batch.htcondor.htcondor_batch:HTCondorBatch._submit_cluster", 2),
    ("submit.batch.htcondor.htcondor_batch:HTCondorBatch._add_cluster", 1),
    ("submit.batch.htcondor.htcondor_batch:HTCondorBatch._add_jobs", 1),
    ("submit.batch.htcondor.submit_description:Submission.record_cluster", 2),
    ("sql.write.store:Store.set_jobs", 1),
]


def test_resume_completes_submissions_killed_between_sites(user: GridUser) -> None:
    """Every job is accounted for after each kill, and each runs once."""
    arguments = ("submit", str(user.test), "--sites", "local,SITE_A,SITE_B", "-S", "repeats=1")
    for function, call in KILLS_BETWEEN_SITES:
        user.run_and_kill(function, *arguments, call=call)
        check_killed_submission(user)
    with Store.open(user.settings.database) as store:
        campaigns = [row.id for row in store.campaigns()]
        assert len(campaigns) == len(KILLS_BETWEEN_SITES)
    for campaign in campaigns:
        assert "6 of 6 measured" in user.follow_campaign(campaign)
        with Store.open(user.settings.database) as store:
            attempts = store.attempts(job.id for job in store.jobs(campaign))
        assert [(row.number, row.failure_class) for row in attempts] == [(1, "")] * 3
        jobs = CondorJobs(HTCondorBatch(pool_from_sites_file(user.grid), user.folder), user.folder)
        jobs.campaign = campaign
        in_pool = find_jobs(jobs, "query_ads") | find_jobs(jobs, "query_history")
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
