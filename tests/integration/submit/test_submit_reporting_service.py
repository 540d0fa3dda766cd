"""Jobs and campaigns that report to a real service: no loss, no duplicates."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_forker import run_command
from local_user import LocalUser
from polling import wait_until
from service_process import ServiceProcess, read_whole_rows

from treehammer.collectors.job_spec import EXTERNAL_PREFIX
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_polling import make_tracker


@pytest.fixture
def service(service_process: ServiceProcess) -> ServiceProcess:
    return service_process


@pytest.fixture
def user(local_user: LocalUser, service: ServiceProcess) -> LocalUser:
    """A user whose jobs report to the service."""
    local_user.settings = service.settings_for_user(local_user.settings)
    return local_user


def finish_jobs(user: LocalUser) -> None:
    """Wait for the jobs without collecting their measurements."""
    with Store.open(user.settings.database) as store:
        tracker, campaign = make_tracker(store, user.settings), store.campaign("last")
        wait_until(
            lambda: all(job.state == "done" for job in tracker.refresh_jobs(campaign)),
            "all jobs are done",
        )


def sandboxes(user: LocalUser) -> list[Path]:
    return sorted(user.settings.spool_dir.glob("jobs/*/*/attempt-*/"))


def read_rows(database: str) -> tuple[list[CampaignRow], list[JobRow], list[AttemptRow]]:
    """Read campaigns, jobs and attempts of a database, without prefixes of external jobs."""
    with Store.open(database) as store:
        campaigns = store.campaigns()
        jobs = [job for campaign in campaigns for job in store.jobs(campaign.id)]
        attempts = store.attempts(job.id for job in jobs)
    plain = [replace(j, batch_system=j.batch_system.removeprefix(EXTERNAL_PREFIX)) for j in jobs]
    return campaigns, plain, attempts


NO_ROWS: tuple[list[CampaignRow], list[JobRow], list[AttemptRow]] = ([], [], [])


def test_service_that_is_away_receives_everything_later(
    user: LocalUser, service: ServiceProcess
) -> None:
    service.end_process()
    output = user.submit_test("--service-timeout", "1s", "--wait")
    for message in ("is not available", "each spends up to 1 s", "treehammer collect"):
        assert message in output
    assert output.count("was not completely uploaded") == 1
    collected = read_whole_rows(user.settings.database)
    assert len(collected) == 4
    assert {row["failure_class"] for row in collected} == {None}
    service.start()
    assert (service.read_measurements(), read_rows(service.database)) == ([], NO_ROWS)
    worker = next(user.settings.spool_dir.glob("jobs/*/1/inputs/worker.pyz"))
    command = [sys.executable, str(worker), "upload", "--token-file", str(service.key)]
    subprocess.run([*command, *map(str, sandboxes(user))], check=True)
    assert service.read_measurements() == collected, "column by column"
    assert "not completely uploaded" not in user.invoke_command("collect", "last").output
    assert read_rows(service.database) == read_rows(user.settings.database)
    # A service that lost its database receives the campaign again.
    service.end_process()
    for path in Path(service.folder).glob("central.db*"):
        path.unlink()
    service.start()
    service.key.unlink()
    service.settings_for_user(user.settings)
    assert user.invoke_command("status", "last").exception is None
    assert read_rows(service.database) == NO_ROWS, "everything was acknowledged"
    assert "not completely uploaded" not in user.invoke_command("collect", "last").output
    assert read_rows(service.database) == read_rows(user.settings.database)


def test_shared_database_of_service_and_submitter(local_user: LocalUser, tmp_path: Path) -> None:
    served = ServiceProcess(tmp_path / "central", database=local_user.settings.database)
    served.start()
    try:
        local_user.settings = served.settings_for_user(local_user.settings)
        local_user.submit_test()
        finish_jobs(local_user)
        assert len(local_user.read_measurements()) == 4, "reported by the jobs"
        output = local_user.invoke_command("collect", "last").output
        assert "0 new measurements, 4 known" in output
        assert "not completely uploaded" not in output
        wait_until(lambda: not local_user.queue.runner_pids(), "the runner has ended")
        shutil.rmtree(local_user.settings.spool_dir)
        (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
        assert (site["done"], site["lost"], site["failures"]) == (2, 0, {})
        _, jobs, _ = read_rows(served.database)
        assert {(job.state, job.batch_system) for job in jobs} == {("done", "local")}
    finally:
        served.end_process()


def run_at_service(service: ServiceProcess, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the database of the service."""
    folder = str(service.folder / "data")
    return run_command(["--database", service.database, "--data-dir", folder, *words])


def test_service_has_same_rows_as_submitter(user: LocalUser, service: ServiceProcess) -> None:
    (user.test / "run.sh").write_text("#!/bin/sh\nkill -9 $PPID\n")
    user.submit_test("-S", "repeats=1", "--name", "bad")
    (bad,), (job,), _ = read_rows(service.database)
    uploaded = (bad.name, job.state, job.batch_system)
    assert uploaded == ("bad", "queued", "local"), "uploaded at submission"
    assert user.invoke_command("status", "bad", "--follow").exception is None
    user.write_payload(0)
    user.submit_test("--name", "good", "--wait")
    stored = campaigns, jobs, attempts = read_rows(service.database)
    assert stored == read_rows(user.settings.database)
    assert [campaign.name for campaign in campaigns] == ["good", "bad"]
    assert {job.state for job in jobs} == {"done", "lost"}
    assert {attempt.failure_class for attempt in attempts} == {"", "lost"}, "without a record, too"
    assert read_whole_rows(user.settings.database) == service.read_measurements()
    # The administrator of the service can read the status without access to the queue.
    good = json.loads(run_at_service(service, "status", "good", "--json").stdout)
    assert [(site["done"], site["lost"], site["failures"]) for site in good] == [(2, 0, {})]
    (listed, _) = json.loads(run_at_service(service, "status", "--json").stdout)
    assert (listed["name"], listed["jobs"], listed["collected"]) == ("good", {"done": 2}, 4)
    file, page = (str(service.folder / name) for name in ("good.parquet", "good.html"))
    assert run_at_service(service, "export", file, "--campaign", "good").returncode == 0
    assert run_at_service(service, "report", "--campaign", "good", "-o", page).returncode == 0
    assert read_rows(service.database) == stored


def test_service_leaves_running_jobs_to_submitter(user: LocalUser, service: ServiceProcess) -> None:
    user.write_payload(30)
    user.submit_test("-S", "repeats=1")

    def list_states() -> list[str]:
        user.invoke_command("status", "last")
        return [job.state for job in read_rows(service.database)[1]]

    wait_until(lambda: list_states() == ["running"], "the service reports the job as running")
    before = read_rows(service.database)
    (site,) = json.loads(run_at_service(service, "status", "last", "--json").stdout)
    assert (site["running"], site["lost"]) == (1, 0)
    refused = run_at_service(service, "cancel", "last")
    assert (refused.returncode, "another installation" in refused.stderr) == (2, True)
    assert read_rows(service.database) == before
    assert user.invoke_command("cancel", "last").exception is None
    assert list_states() == ["cancelled"]
    assert read_rows(service.database) == read_rows(user.settings.database)
