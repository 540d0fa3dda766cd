"""Uploads of campaigns, jobs and attempts from separate databases to a real service."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

from command_forker import run_command
from local_user import LocalUser
from polling import wait_until
from service_process import ServiceProcess, read_whole_rows

from treehammer.collectors.job_spec import EXTERNAL_PREFIX
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.write.store import Store


def remembered(
    database: str,
) -> tuple[list[CampaignRow], list[JobRow], list[AttemptRow]]:
    """Read campaigns, jobs and attempts of a database, without prefixes of external jobs."""
    with Store.open(database) as store:
        campaigns = store.campaigns()
        jobs = [job for one in campaigns for job in store.jobs(one.id)]
        attempts = store.attempts(job.id for job in jobs)
    plain = [replace(j, batch_system=j.batch_system.removeprefix(EXTERNAL_PREFIX)) for j in jobs]
    return campaigns, plain, attempts


def central(served: ServiceProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the database of the service."""
    folder = str(served.folder / "data")
    return run_command(["--database", served.database, "--data-dir", folder, *arguments])


def test_service_has_same_rows_as_submitter(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    own = local_user.settings
    local_user.settings = service_process.settings_for_user(own)
    (local_user.test / "run.sh").write_text("#!/bin/sh\nkill -9 $PPID\n")
    said = local_user.invoke_command(
        "submit", str(local_user.test), "-S", "repeats=1", "--name", "bad"
    )
    assert said.exception is None, said.output
    (bad,), (job,), _ = remembered(service_process.database)
    assert (bad.name, job.state, job.batch_system) == ("bad", "queued", "local"), (
        "uploaded at submission"
    )
    assert local_user.invoke_command("status", "bad", "--follow").exception is None
    local_user.write_payload(0)
    said = local_user.invoke_command("submit", str(local_user.test), "--name", "good", "--wait")
    assert said.exception is None, said.output
    there = remembered(service_process.database)
    assert there == remembered(own.database)
    assert [campaign.name for campaign in there[0]] == ["good", "bad"]
    assert {job.state for job in there[1]} == {"done", "lost"}
    assert {attempt.failure_class for attempt in there[2]} == {"", "lost"}, (
        "attempts without a record"
    )
    assert read_whole_rows(own.database) == service_process.read_measurements()
    # The administrator of the service can read the status without access to the queue.
    good = json.loads(central(service_process, "status", "good", "--json").stdout)
    assert [(site["done"], site["lost"], site["failures"]) for site in good] == [(2, 0, {})]
    (listed, _) = json.loads(central(service_process, "status", "--json").stdout)
    assert (listed["name"], listed["jobs"], listed["collected"]) == ("good", {"done": 2}, 4)
    file, page = (
        str(service_process.folder / "good.parquet"),
        str(service_process.folder / "good.html"),
    )
    assert central(service_process, "export", file, "--campaign", "good").returncode == 0
    assert central(service_process, "report", "--campaign", "good", "-o", page).returncode == 0
    assert remembered(service_process.database) == there


def test_service_leaves_running_jobs_to_submitter(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    local_user.write_payload(30)
    local_user.settings = service_process.settings_for_user(local_user.settings)
    assert (
        local_user.invoke_command("submit", str(local_user.test), "-S", "repeats=1").exception
        is None
    )

    def runs() -> bool:
        local_user.invoke_command("status", "last")
        return [job.state for job in remembered(service_process.database)[1]] == ["running"]

    wait_until(runs, "the service reports the job as running")
    before = remembered(service_process.database)
    (site,) = json.loads(central(service_process, "status", "last", "--json").stdout)
    assert (site["running"], site["lost"]) == (1, 0)
    refused = central(service_process, "cancel", "last")
    assert (refused.returncode, "another installation" in refused.stderr) == (2, True)
    assert remembered(service_process.database) == before
    assert local_user.invoke_command("cancel", "last").exception is None
    assert remembered(service_process.database) == remembered(local_user.settings.database)
    assert [job.state for job in remembered(service_process.database)[1]] == ["cancelled"]


def test_failed_uploads_are_repeated(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    local_user.settings = service_process.settings_for_user(local_user.settings)
    service_process.end_process()
    said = local_user.invoke_command(
        "submit", str(local_user.test), "--service-timeout", "1s", "--wait"
    )
    assert said.exception is None, said.output
    assert said.output.count("was not completely uploaded") == 1
    assert "treehammer collect" in said.output
    service_process.start()
    assert remembered(service_process.database) == ([], [], [])
    assert "not completely uploaded" not in local_user.invoke_command("collect", "last").output
    assert remembered(service_process.database) == remembered(local_user.settings.database)
    # A service that lost its database receives everything again.
    service_process.end_process()
    for path in Path(service_process.folder).glob("central.db*"):
        path.unlink()
    service_process.start()
    service_process.key.unlink()
    service_process.settings_for_user(local_user.settings)
    assert local_user.invoke_command("status", "last").exception is None
    assert remembered(service_process.database) == ([], [], []), "everything was acknowledged"
    assert "not completely uploaded" not in local_user.invoke_command("collect", "last").output
    assert remembered(service_process.database) == remembered(local_user.settings.database)


def test_campaign_without_service_is_not_uploaded(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    local_user.settings = service_process.settings_for_user(local_user.settings)
    assert (
        local_user.invoke_command(
            "submit", str(local_user.test), "--no-service", "--wait"
        ).exception
        is None
    )
    assert local_user.invoke_command("collect", "last").exception is None
    assert remembered(service_process.database) == ([], [], [])


def test_shared_database_tracks_local_jobs(local_user: LocalUser, tmp_path: Path) -> None:
    served = ServiceProcess(tmp_path / "central", database=local_user.settings.database)
    served.start()
    try:
        local_user.settings = served.settings_for_user(local_user.settings)
        assert local_user.invoke_command("submit", str(local_user.test), "--wait").exception is None
        assert "not completely uploaded" not in local_user.invoke_command("collect", "last").output
        with Store.open(served.database) as store:
            jobs = store.jobs(store.campaign("last").id)
        assert {(job.state, job.batch_system) for job in jobs} == {("done", "local")}
    finally:
        served.end_process()
