"""Jobs that report to a real service: live results, and collection without loss or duplicates."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from local_user import LocalUser
from polling import wait_until
from service_process import ServiceProcess, read_whole_rows
from spool_harness import SpoolHarness

from treehammer.collectors.job_spec import TOKEN_FILE
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import ConfigError
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_polling import make_tracker


def finish(desk: LocalUser) -> None:
    """Wait for the jobs without collecting their measurements."""
    with Store.open(desk.settings.database) as store:
        tracker, campaign = make_tracker(store, desk.settings), store.campaign("last")
        wait_until(
            lambda: all(job.state == "done" for job in tracker.refresh_jobs(campaign)),
            "all jobs are done",
        )


def sandboxes(desk: LocalUser) -> list[Path]:
    return sorted(desk.settings.spool_dir.glob("jobs/*/*/attempt-*/"))


def test_reported_and_collected_rows_are_equal(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    own = local_user.settings
    local_user.settings = service_process.settings_for_user(own)
    said = local_user.invoke_command("submit", str(local_user.test))
    assert said.exception is None, said.output
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
    said = local_user.invoke_command(
        "submit", str(local_user.test), "--service-timeout", "1s", "--wait"
    )
    assert said.exception is None, said.output
    assert "is not available" in said.output
    assert "each spends up to 1 s" in said.output
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
        assert "0 new measurements, 4 known" in local_user.invoke_command("collect", "last").output
        (lost, *_) = sandboxes(local_user)
        shutil.rmtree(lost)
        (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
        assert (site["done"], site["lost"], site["failures"]) == (2, 0, {})
    finally:
        served.end_process()


def test_lost_sandbox_keeps_reported_measurements(local_user: LocalUser, tmp_path: Path) -> None:
    served = ServiceProcess(tmp_path / "central", database=local_user.settings.database)
    served.start()
    bench = SpoolHarness(local_user.folder / "bench", spool=local_user.settings.spool_dir)
    try:
        own = local_user.settings
        local_user.settings = served.settings_for_user(own)
        assert local_user.invoke_command("submit", str(local_user.test)).exception is None
        wait_until(
            lambda: len(local_user.read_measurements()) == 4, "all measurements are reported"
        )
        wait_until(lambda: not bench.runner_pids(), "the runner has ended")
        shutil.rmtree(local_user.settings.spool_dir)
        (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
        assert (site["done"], site["lost"], site["failures"]) == (2, 0, {})
    finally:
        served.end_process()


def test_killed_service_loses_and_duplicates_nothing(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    local_user.write_payload(0.4)
    local_user.settings = replace(
        service_process.settings_for_user(local_user.settings), local_slots=2
    )
    said = local_user.invoke_command(
        "submit", str(local_user.test), "-S", "repeats=8", "--service-timeout", "60s"
    )
    assert said.exception is None, said.output
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
    said = local_user.invoke_command("submit", str(local_user.test), "--wait")
    assert said.exception is None, said.output
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
    assert not [secret for secret in secrets if secret.decode() in shown.output + said.output]


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

    def known() -> bool:
        error = local_user.invoke_command("submit", str(local_user.test), "--dry-run").exception
        refused.append(error)
        return isinstance(error, ConfigError)

    wait_until(known, "the service knows of the revocation")
    assert "was revoked" in str(refused[-1])
    assert "--no-service" in str(refused[-1])
    assert not local_user.settings.spool_dir.exists()
    without = local_user.invoke_command("submit", str(local_user.test), "--no-service", "--wait")
    assert without.exception is None
    assert len(local_user.read_measurements()) == 4
    assert service_process.read_measurements() == []


def test_workers_wait_for_restarted_service(
    local_user: LocalUser, service_process: ServiceProcess
) -> None:
    local_user.settings = service_process.settings_for_user(local_user.settings)
    assert local_user.invoke_command("submit", str(local_user.test)).exception is None
    service_process.end_process(signal.SIGTERM)
    time.sleep(1)
    service_process.start()
    finish(local_user)
    assert len(service_process.read_measurements()) == 4
