"""Jobs and campaigns that report to a real service: no loss, no duplicates."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from command_forker import run_command
from local_user import LocalUser
from polling import wait_until
from service_process import ServiceProcess, read_whole_rows

from treehammer.collectors.job_spec import EXTERNAL_PREFIX, TOKEN_FILE
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import ConfigError
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_polling import make_tracker


def finish(user: LocalUser) -> None:
    """Wait for the jobs without collecting their measurements."""
    with Store.open(user.settings.database) as store:
        tracker, campaign = make_tracker(store, user.settings), store.campaign("last")
        wait_until(
            lambda: all(job.state == "done" for job in tracker.refresh_jobs(campaign)),
            "all jobs are done",
        )


def sandboxes(user: LocalUser) -> list[Path]:
    return sorted(user.settings.spool_dir.glob("jobs/*/*/attempt-*/"))


def test_reported_and_collected_rows_are_equal(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    own = local_user.settings
    local_user.settings = service_process.settings_for_user(own)
    submitted = local_user.invoke_command("submit", str(local_user.test))
    assert submitted.exception is None, submitted.output
    finish(local_user)
    assert local_user.read_measurements() == [], "nothing is collected yet"
    reported = service_process.read_measurements()
    assert len(reported) == 4
    service_process.end_process()
    collected = local_user.invoke_command("collect", "last")
    assert "4 new measurements, 0 known" in collected.output
    assert read_whole_rows(own.database) == reported, "column by column"
    on_disk = [path for box in sandboxes(local_user) for path in (box / "records").glob("*.json")]
    records = [Measurement.from_json(path.read_text()) for path in on_disk]
    assert {record.id for record in records} == {str(row["measurement_id"]) for row in reported}
    for record in records:
        row = next(row for row in reported if row["measurement_id"] == record.id)
        assert row["extras"] == record.extras == {"answer": 42.0}
        assert {name: row[name] for name in record.values} == dict(record.values)


def test_unavailable_service_loses_nothing(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    service_process.end_process()
    own = local_user.settings
    local_user.settings = service_process.settings_for_user(own)
    submitted = local_user.invoke_command(
        "submit", str(local_user.test), "--service-timeout", "1s", "--wait"
    )
    assert submitted.exception is None, submitted.output
    assert "is not available" in submitted.output
    assert "each spends up to 1 s" in submitted.output
    collected = read_whole_rows(own.database)
    assert len(collected) == 4
    assert {row["failure_class"] for row in collected} == {None}
    # The remaining records are sent once the service is back.
    service_process.start()
    assert service_process.read_measurements() == []
    worker = next(local_user.settings.spool_dir.glob("jobs/*/1/inputs/worker.pyz"))
    command = [sys.executable, str(worker), "upload", "--token-file", str(service_process.key)]
    subprocess.run([*command, *map(str, sandboxes(local_user))], check=True)
    assert service_process.read_measurements() == collected, "column by column"


def test_shared_database_of_service_and_submitter(local_user: LocalUser, tmp_path: Path) -> None:
    served = ServiceProcess(tmp_path / "central", database=local_user.settings.database)
    served.start()
    try:
        local_user.settings = served.settings_for_user(local_user.settings)
        assert local_user.invoke_command("submit", str(local_user.test)).exception is None
        finish(local_user)
        assert len(local_user.read_measurements()) == 4, "reported by the jobs"
        collected = local_user.invoke_command("collect", "last").output
        assert "0 new measurements, 4 known" in collected
        assert "not completely uploaded" not in collected
        wait_until(lambda: not local_user.queue.runner_pids(), "the runner has ended")
        shutil.rmtree(local_user.settings.spool_dir)
        (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
        assert (site["done"], site["lost"], site["failures"]) == (2, 0, {})
        with Store.open(served.database) as store:
            jobs = store.jobs(store.campaign("last").id)
        assert {(job.state, job.batch_system) for job in jobs} == {("done", "local")}
    finally:
        served.end_process()


def test_killed_service_loses_and_duplicates_nothing(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    local_user.write_payload(0.4)
    local_user.settings = replace(
        service_process.settings_for_user(local_user.settings), local_slots=2
    )
    submitted = local_user.invoke_command(
        "submit", str(local_user.test), "-S", "repeats=8", "--service-timeout", "60s"
    )
    assert submitted.exception is None, submitted.output
    for _ in range(2):
        count = len(service_process.read_measurements())
        wait_until(
            lambda count=count: len(service_process.read_measurements()) > count,  # type: ignore[misc]
            "another job has reported",
        )
        service_process.end_process()
        time.sleep(2)
        service_process.start()
    finish(local_user)
    reported = service_process.read_measurements()
    assert len(reported) == 16, "each measurement is stored once"
    local_user.invoke_command("collect", "last")
    assert read_whole_rows(local_user.settings.database) == reported
    accounts = [json.loads((box / "attempt.json").read_text()) for box in sandboxes(local_user)]
    assert [account["upload"]["pending"] for account in accounts] == [0] * 8


def test_token_appears_only_in_its_file(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    (local_user.test / "run.sh").write_text(
        "#!/bin/sh\nenv\nls -la ../..\ncat ../../service-token\n"
        'echo \'{"format": 1, "extras": {"answer": 1}}\' > "$TREEHAMMER_RESULT"\n'
    )
    local_user.settings = service_process.settings_for_user(local_user.settings)
    submitted = local_user.invoke_command("submit", str(local_user.test), "--wait")
    assert submitted.exception is None, submitted.output
    tokens = list(local_user.settings.data_dir.rglob(TOKEN_FILE))
    assert len(tokens) == 2, "only in the input of each job"
    assert {stat.S_IMODE(path.stat().st_mode) for path in tokens} == {0o600}
    secrets = [path.read_bytes().strip().rpartition(b".")[2] for path in tokens]
    secrets.append(service_process.key.read_bytes().strip().rpartition(b".")[2])
    searched = [*local_user.folder.rglob("*")]
    holders = [
        path
        for path in searched
        if path.is_file() and path not in (*tokens, service_process.key) and _holds(path, secrets)
    ]
    assert holders == []
    shown = local_user.invoke_command("render", str(local_user.test), "--full")
    assert not [secret for secret in secrets if secret.decode() in shown.output + submitted.output]


def _holds(path: Path, secrets: list[bytes]) -> bool:
    content = path.read_bytes()
    return any(secret in content for secret in secrets)


def test_revoked_key_is_refused_before_submission(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    local_user.settings = service_process.settings_for_user(local_user.settings)
    kid = service_process.key.read_text().split(".")[1]
    service_process.run_command("token", "revoke", kid)
    refused: list[object] = []

    def is_refused() -> bool:
        error = local_user.invoke_command("submit", str(local_user.test), "--dry-run").exception
        refused.append(error)
        return isinstance(error, ConfigError)

    wait_until(is_refused, "the service knows of the revocation")
    assert "was revoked" in str(refused[-1])
    assert "--no-service" in str(refused[-1])
    assert not local_user.settings.spool_dir.exists()
    without = local_user.invoke_command("submit", str(local_user.test), "--no-service", "--wait")
    assert without.exception is None
    assert len(local_user.read_measurements()) == 4
    assert local_user.invoke_command("collect", "last").exception is None
    assert service_process.read_measurements() == []
    assert read_rows(service_process.database) == ([], [], [])


def read_rows(
    database: str,
) -> tuple[list[CampaignRow], list[JobRow], list[AttemptRow]]:
    """Read campaigns, jobs and attempts of a database, without prefixes of external jobs."""
    with Store.open(database) as store:
        campaigns = store.campaigns()
        jobs = [job for campaign in campaigns for job in store.jobs(campaign.id)]
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
    submitted = local_user.invoke_command(
        "submit", str(local_user.test), "-S", "repeats=1", "--name", "bad"
    )
    assert submitted.exception is None, submitted.output
    (bad,), (job,), _ = read_rows(service_process.database)
    assert (bad.name, job.state, job.batch_system) == ("bad", "queued", "local"), (
        "uploaded at submission"
    )
    assert local_user.invoke_command("status", "bad", "--follow").exception is None
    local_user.write_payload(0)
    submitted = local_user.invoke_command(
        "submit", str(local_user.test), "--name", "good", "--wait"
    )
    assert submitted.exception is None, submitted.output
    stored = read_rows(service_process.database)
    assert stored == read_rows(own.database)
    assert [campaign.name for campaign in stored[0]] == ["good", "bad"]
    assert {job.state for job in stored[1]} == {"done", "lost"}
    assert {attempt.failure_class for attempt in stored[2]} == {"", "lost"}, (
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
    assert read_rows(service_process.database) == stored


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
        return [job.state for job in read_rows(service_process.database)[1]] == ["running"]

    wait_until(runs, "the service reports the job as running")
    before = read_rows(service_process.database)
    (site,) = json.loads(central(service_process, "status", "last", "--json").stdout)
    assert (site["running"], site["lost"]) == (1, 0)
    refused = central(service_process, "cancel", "last")
    assert (refused.returncode, "another installation" in refused.stderr) == (2, True)
    assert read_rows(service_process.database) == before
    assert local_user.invoke_command("cancel", "last").exception is None
    assert read_rows(service_process.database) == read_rows(local_user.settings.database)
    assert [job.state for job in read_rows(service_process.database)[1]] == ["cancelled"]


def test_failed_uploads_are_repeated(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    local_user.settings = service_process.settings_for_user(local_user.settings)
    service_process.end_process()
    submitted = local_user.invoke_command(
        "submit", str(local_user.test), "--service-timeout", "1s", "--wait"
    )
    assert submitted.exception is None, submitted.output
    assert submitted.output.count("was not completely uploaded") == 1
    assert "treehammer collect" in submitted.output
    service_process.start()
    assert read_rows(service_process.database) == ([], [], [])
    assert "not completely uploaded" not in local_user.invoke_command("collect", "last").output
    assert read_rows(service_process.database) == read_rows(local_user.settings.database)
    # A service that lost its database receives everything again.
    service_process.end_process()
    for path in Path(service_process.folder).glob("central.db*"):
        path.unlink()
    service_process.start()
    service_process.key.unlink()
    service_process.settings_for_user(local_user.settings)
    assert local_user.invoke_command("status", "last").exception is None
    assert read_rows(service_process.database) == ([], [], []), "everything was acknowledged"
    assert "not completely uploaded" not in local_user.invoke_command("collect", "last").output
    assert read_rows(service_process.database) == read_rows(local_user.settings.database)
