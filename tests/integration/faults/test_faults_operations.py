"""Operation of the service: restored backups, rolling restarts, rotation of the master key."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from polling import wait_until
from postgres_fixture import SharedPostgresServer, require_programs
from repository_code import find_command
from service_load import (
    ClientCrowd,
    RunningService,
    check_acknowledged_rows,
    pack_measurements,
)

from treehammer import config
from treehammer.sql.auth.access_keys import mint_job_token
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store
from treehammer.testbed.credentials import CertificateAuthority


class SQLiteBackup:
    """Backup with SQLite's own interface, as ``.backup`` of its shell makes it."""

    def __init__(self, database: str, folder: Path) -> None:
        self._source = database.removeprefix("sqlite:///")
        self._file = folder / "restored.db"

    def save(self) -> None:
        with (
            closing(sqlite3.connect(self._source)) as old,
            closing(sqlite3.connect(self._file)) as new,
        ):
            old.backup(new)

    def restore(self) -> str:
        return f"sqlite:///{self._file}"


class PostgreSQLBackup:
    """Backup with ``pg_dump``."""

    def __init__(self, database: str, folder: Path, server: SharedPostgresServer) -> None:
        self._source = database
        self._file = folder / "results.dump"
        self._server = server
        self._programs = require_programs()

    def save(self) -> None:
        self._run("pg_dump", "--format=custom", f"--file={self._file}", self._source)

    def restore(self) -> str:
        target = self._server.url(self._server.make_database())
        self._run("pg_restore", f"--dbname={target}", "--exit-on-error", str(self._file))
        return target

    def _run(self, program: str, *arguments: str) -> None:
        found = shutil.which(program, path=f"{self._programs}:{os.environ['PATH']}")
        if found is None:
            pytest.skip(f"{program} is not installed")
        subprocess.run([found, *arguments], check=True)


@pytest.fixture
def backup(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> SQLiteBackup | PostgreSQLBackup:
    if database.startswith("sqlite"):
        return SQLiteBackup(database, tmp_path)
    return PostgreSQLBackup(database, tmp_path, request.getfixturevalue("postgresql"))


def test_backup_made_during_ingest_restores_everything_acknowledged_before(
    authority: CertificateAuthority,
    tmp_path: Path,
    database: str,
    backup: SQLiteBackup | PostgreSQLBackup,
) -> None:
    service = RunningService(tmp_path / "first", database, authority)
    key = service.make_key()
    crowd = ClientCrowd([service], key.text)
    service.start()
    with crowd.sending():
        crowd.wait_for_acknowledgments(100)
        before = set(crowd.acknowledged)
        backup.save()
        crowd.wait_for_acknowledgments(100)
    service.stop()
    restored = backup.restore()
    counts = check_database(restored)
    with Store.open(restored) as store:
        stored = {str(row["measurement_id"]) for row in store.measurements(Selection())}
    assert before <= stored < crowd.acknowledged.keys()
    assert counts["measurement"] == len(stored)
    # Jobs still hold what came after the backup, and send it again.
    again = RunningService(tmp_path / "again", restored, authority)
    again.share_keys_with(service)
    again.start()
    everything = list(crowd.acknowledged.values())
    new = 0
    for start in range(0, len(everything), 400):
        status, _, document = again.send_request(
            "POST",
            "/api/v1/measurements",
            pack_measurements(everything[start : start + 400]),
            Authorization=f"Bearer {key.text}",
            Content_Type="application/json",
        )
        assert (status, document["conflicting"]) == (200, [])
        new += document["new"]
    again.stop()
    assert new == len(everything) - len(stored)
    check_acknowledged_rows(restored, crowd)


def test_rolling_restart_of_two_services_loses_nothing(
    authority: CertificateAuthority, tmp_path: Path, database: str
) -> None:
    services = [RunningService(tmp_path / name, database, authority) for name in "ab"]
    one, other = services
    token = one.make_key().text
    other.share_keys_with(one)
    for service in services:
        service.start()
    # Clients accept no other failures than 503 and broken connections, and repeat these.
    crowd = ClientCrowd(services, token)
    with crowd.sending():
        for service in services * 2:
            crowd.wait_for_acknowledgments(40)
            service.stop()
            # The other one goes on alone.
            crowd.wait_for_acknowledgments(40)
            service.start()
        crowd.wait_for_acknowledgments(40)
    for service in services:
        service.stop()
        log = service.log.read_text()
        assert log.count("stopped; all acknowledged measurements are in the database") == 3
        assert "Traceback" not in log
    check_acknowledged_rows(database, crowd)
    assert crowd.new == len(crowd.acknowledged), "an acknowledgment was lost"


def test_master_key_is_rotated_without_a_restart(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'results.db'}"
    service = RunningService(tmp_path, url, authority)
    old = service.make_key()
    settings = config.load_settings(
        {"data_dir": tmp_path / "data", "database": url}, environ={}, folder=tmp_path
    )
    job_token = mint_job_token(old, "campaign", "job", time.time_ns() // 1000 + 10**10)
    service.start()

    def status_of(token: str) -> int:
        return service.send_request("GET", "/api/v1/token", Authorization=f"Bearer {token}")[0]

    def rotate(*arguments: str) -> str:
        done = CliRunner().invoke(
            find_command("token"), ["rotate-master", *arguments], obj=settings
        )
        assert done.exit_code == 0, done.output
        return done.output

    assert "1 key of previous master keys still valid" in rotate()
    new = service.make_key()
    assert [status_of(one) for one in (new.text, old.text, job_token)] == [200, 200, 200]
    assert "1 key revoked; 1 previous master key removed" in rotate("--finish")
    wait_until(lambda: status_of(old.text) == 401, "the old key is still valid")
    assert status_of(job_token) == 401
    assert status_of(new.text) == 200
    assert "1 key revoked" in rotate("--at-once")
    wait_until(lambda: status_of(new.text) == 401, "the disclosed key is still valid")
    service.stop()
    shown = CliRunner().invoke(find_command("db"), ["audit", "--json"], obj=settings)
    actions = [row["action"] for row in json.loads(shown.stdout) if row["action"] != "refuse"]
    assert actions.count("rotate master key") == 2
    assert actions.count("revoke key") == 2
