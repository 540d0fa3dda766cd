"""The results service under faults and in operation: measurements are stored exactly once."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificate_authority import CertificateAuthority
from click.testing import CliRunner
from command_forker import start_command
from measurement_factory import make_measurement
from polling import wait_until
from postgres_fixture import SharedPostgresServer, require_programs
from repository_code import find_command
from service_load import (
    ClientCrowd,
    RunningService,
    check_acknowledged_rows,
    pack_measurements,
    set_clock_offset,
)
from small_disk import SmallDisk, mounted_small_disk
from store_helpers import write_export

from treehammer import config
from treehammer.collectors.record.day_numbers import current_us
from treehammer.sql.core.access_keys import mint_job_token
from treehammer.sql.engine.database_backup import back_up_database, recover_database
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import ChangeScope, DatabaseChange, check_database
from treehammer.sql.write.store import Store

KILLS = 4


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'results.db'}"
        return
    server: SharedPostgresServer = request.getfixturevalue("postgresql")
    name = server.make_database()
    yield server.url(name)
    server.drop_database(name)


def start_two_services(
    authority: CertificateAuthority, folder: Path, database: str
) -> tuple[list[RunningService], str]:
    """Start two services on one database; return them and a key to both."""
    services = [RunningService(folder / name, database, authority) for name in "ab"]
    token = services[0].make_key().text
    services[1].share_keys_with(services[0])
    for service in services:
        service.start()
    return services, token


def test_services_of_one_database_survive_repeated_kills(
    authority: CertificateAuthority, tmp_path: Path, database: str
) -> None:
    services, token = start_two_services(authority, tmp_path, database)
    crowd = ClientCrowd(services, token, twice=True)
    dice = random.Random(20)
    with crowd.sending():
        for number in range(KILLS):
            crowd.wait_for_acknowledgments(dice.randint(1, 30))
            time.sleep(dice.uniform(0.0, 0.05))
            services[number % 2].kill()
            services[number % 2].start()
        crowd.wait_for_acknowledgments()
    for service in services:
        service.stop()
    assert crowd.broken >= KILLS / 2, "few kills interrupted a request"
    check_acknowledged_rows(database, crowd)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_import_survives_repeated_kills(tmp_path: Path, database: str) -> None:
    count, kills = 3000, 3
    source = f"sqlite:///{tmp_path / 'source.db'}"
    with Store.open(source) as store:
        store.add(
            make_measurement(f"job {n}", host=f"node {n % 7}", extras={"n": float(n)})
            for n in range(count)
        )
        scope = ChangeScope(since_us=0)
        store.apply_change(DatabaseChange("quarantine", scope, "me", 1, "wrong build", "all"))
        file = write_export(store, tmp_path / "results.parquet")
    dice = random.Random(21)
    interrupted = 0
    with (tmp_path / "log").open("ab") as log:
        for _ in range(kills):
            process = start_command(["--database", database, "import", str(file)], log)
            time.sleep(dice.uniform(0.3, 1.5))
            interrupted += process.poll() is None
            process.kill()
            process.wait(60)
        process = start_command(["--database", database, "import", str(file)], log)
        assert process.wait(180) == 0, (tmp_path / "log").read_text()
    assert interrupted, "no kill interrupted an import"
    assert check_database(database)["measurement"] == count
    with Store.open(source) as store, Store.open(database) as other:
        for read in (Store.measurements, Store.extras):
            assert [*read(other, Selection())] == [*read(store, Selection())]


def test_service_survives_restarts_of_database_server(
    authority: CertificateAuthority, tmp_path: Path, postgresql: SharedPostgresServer
) -> None:
    url = postgresql.url(postgresql.make_database())
    service = RunningService(tmp_path, url, authority)
    crowd = ClientCrowd([service], service.make_key().text)
    service.start()
    with crowd.sending():
        for end in (postgresql.stop, postgresql.crash):
            crowd.wait_for_acknowledgments(30)
            end()
            await_refusals(crowd, 10)  # more than were under way
            postgresql.start()
        crowd.wait_for_acknowledgments()
    status, _, health = service.send_request("GET", "/api/v1/health")
    assert (status, health["status"]) == (200, "ok")
    service.stop()
    sentences = {document["error"] for _, document in crowd.refusals}
    assert any("nothing of this request was stored" in sentence for sentence in sentences)
    assert "the database cannot be written to" in service.log.read_text()
    check_acknowledged_rows(url, crowd)


# Full disks


def test_service_survives_full_disk(authority: CertificateAuthority, tmp_path: Path) -> None:
    with mounted_small_disk(tmp_path / "disk", 24) as disk:
        url = f"sqlite:///{disk.folder / 'results.db'}"
        fill_disk_twice(RunningService(tmp_path, url, authority), disk, 100_000)


def test_service_survives_full_disk_of_database_server(authority: CertificateAuthority) -> None:
    programs = require_programs()
    # The path of a socket is limited to 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="treehammer-pg-", dir="/tmp") as folder,
        mounted_small_disk(Path(folder, "disk"), 150) as disk,
    ):
        server = SharedPostgresServer(programs, disk.folder)
        server.start()
        try:
            url = server.url(server.make_database())
            service = RunningService(Path(folder), url, authority)
            fill_disk_twice(service, disk, 400_000, revive=server.restart_if_crashed)
        finally:
            server.stop()


def fill_disk_twice(
    service: RunningService, disk: SmallDisk, leave: int, revive: Callable[[], None] = lambda: None
) -> None:
    """Fill and free the disk under load, twice; the service recovers by itself."""
    crowd = ClientCrowd([service], service.make_key().text, batch=20)
    service.start()
    with crowd.sending():
        for _ in range(2):
            crowd.wait_for_acknowledgments(100)
            disk.fill_disk(leave)
            await_refusals(crowd, 10)
            assert service.send_request("GET", "/api/v1/health")[0] in (200, 503)
            disk.free_space()
            revive()
            crowd.wait_for_acknowledgments(100)
    service.stop()
    assert "the database cannot be written to" in service.log.read_text()
    assert "no room left" in service.log.read_text()
    check_acknowledged_rows(service.database, crowd)


def await_refusals(crowd: ClientCrowd, count: int) -> None:
    enough = len(crowd.refusals) + count
    wait_until(lambda: len(crowd.refusals) >= enough, "writes are refused")


# Other faults


def test_service_survives_removed_database_file(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    """Rows written to the removed file would be lost."""
    file = tmp_path / "results.db"
    service = RunningService(tmp_path, f"sqlite:///{file}", authority)
    crowd = ClientCrowd([service], service.make_key().text)
    service.start()
    with crowd.sending():
        crowd.wait_for_acknowledgments(50)
        aside = tmp_path / "aside"
        aside.mkdir()
        resume = crowd.pause()
        for path in tmp_path.glob("results.db*"):
            path.rename(aside / path.name)
        resume()
        await_refusals(crowd, 5)
        resume = crowd.pause()
        for path in aside.iterdir():
            path.rename(tmp_path / path.name)
        resume()
        crowd.wait_for_acknowledgments(50)
    service.stop()
    assert "the database is gone" in service.log.read_text()
    check_acknowledged_rows(service.database, crowd)


def test_service_survives_clock_jumps(authority: CertificateAuthority, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    set_clock_offset(clock, 0)
    url = f"sqlite:///{tmp_path / 'results.db'}"
    service = RunningService(tmp_path, url, authority, clock=clock)
    key = service.make_key()
    soon_us = current_us() + 3600 * 1_000_000
    token = mint_job_token(key, "campaign", "job", soon_us)
    service.start()
    crowd = ClientCrowd([service], key.text)

    def check_token(credential: str = token) -> tuple[int, str]:
        status, _, document = service.send_request(
            "GET", "/api/v1/token", Authorization=f"Bearer {credential}"
        )
        return status, str(document.get("error", ""))

    with crowd.sending():
        for jump_s, status in ((0, 200), (86400, 401), (-86400, 200), (1e9, 401), (0, 200)):
            set_clock_offset(clock, jump_s)
            crowd.wait_for_acknowledgments(40)
            answer_status, error = check_token()
            assert answer_status == status, error
            assert ("expired at" in error and "the service's clock is at" in error) == (
                answer_status == 401
            )
            assert check_token(key.text)[0] == 200, "a key without expiry is valid at any time"
            _, _, health = service.send_request("GET", "/api/v1/health")
            assert health["status"] == "ok"
            assert abs(health["time_us"] / 1e6 - time.time() - jump_s) < 30
    assert not crowd.refusals, "clients with a valid key notice nothing"
    service.stop()
    check_acknowledged_rows(url, crowd)


def test_backup_made_during_ingest_restores_everything_acknowledged_before(
    authority: CertificateAuthority,
    tmp_path: Path,
    database: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backup, restored = tmp_path / "results.backup", f"sqlite:///{tmp_path / 'restored.db'}"
    if not database.startswith("sqlite"):
        server = request.getfixturevalue("postgresql")
        monkeypatch.setenv("PATH", f"{server.programs}{os.pathsep}{os.environ['PATH']}")
        restored = server.url(server.make_database())
    service = RunningService(tmp_path / "first", database, authority)
    key = service.make_key()
    crowd = ClientCrowd([service], key.text)
    service.start()
    with crowd.sending():
        crowd.wait_for_acknowledgments(100)
        before = set(crowd.acknowledged)
        back_up_database(database, backup)
        crowd.wait_for_acknowledgments(100)
    service.stop()
    recover_database(restored, backup)
    counts = check_database(restored)
    with Store.open(restored) as store:
        stored = {str(row["measurement_id"]) for row in store.measurements(Selection())}
    assert before <= stored < crowd.acknowledged.keys()
    assert counts["measurement"] == len(stored)
    # Jobs still hold what came after the backup, and send it again.
    restarted = RunningService(tmp_path / "again", restored, authority)
    restarted.share_keys_with(service)
    restarted.start()
    everything = list(crowd.acknowledged.values())
    new = 0
    for start in range(0, len(everything), 400):
        status, _, document = restarted.send_request(
            "POST",
            "/api/v1/measurements",
            pack_measurements(everything[start : start + 400]),
            Authorization=f"Bearer {key.text}",
            Content_Type="application/json",
        )
        assert (status, document["conflicting"]) == (200, [])
        new += document["new"]
    restarted.stop()
    assert new == len(everything) - len(stored)
    check_acknowledged_rows(restored, crowd)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_rolling_restart_of_two_services_loses_nothing(
    authority: CertificateAuthority, tmp_path: Path, database: str
) -> None:
    services, token = start_two_services(authority, tmp_path, database)
    # Clients accept no other failures than 503 and broken connections, and repeat these.
    crowd = ClientCrowd(services, token)
    with crowd.sending():
        for service in services:
            crowd.wait_for_acknowledgments(40)
            service.stop()
            # The other one goes on alone.
            crowd.wait_for_acknowledgments(40)
            service.start()
        crowd.wait_for_acknowledgments(40)
    for service in services:
        service.stop()
        log = service.log.read_text()
        assert log.count("stopped; all acknowledged measurements are in the database") == 2
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
    job_token = mint_job_token(old, "campaign", "job", current_us() + 10**10)
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
    assert [status_of(text) for text in (new.text, old.text, job_token)] == [200, 200, 200]
    assert "1 key revoked; 1 previous master key removed" in rotate("--finish")
    wait_until(lambda: status_of(old.text) == 401, "the old key is still valid")
    assert status_of(job_token) == 401
    assert status_of(new.text) == 200
    assert "1 key revoked" in rotate("--at-once")
    wait_until(lambda: status_of(new.text) == 401, "the disclosed key is still valid")
    service.stop()
    result = CliRunner().invoke(find_command("db"), ["audit", "--json"], obj=settings)
    actions = [row["action"] for row in json.loads(result.stdout) if row["action"] != "refuse"]
    assert actions.count("rotate master key") == 2
    assert actions.count("revoke key") == 2
