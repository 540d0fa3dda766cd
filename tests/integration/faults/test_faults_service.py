"""The results service under faults: acknowledged measurements are stored exactly once."""

from __future__ import annotations

import random
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from polling import wait_until
from postgres_fixture import SharedPostgresServer, postgresql, require_programs  # noqa: F401 - a fixture
from service_load import (
    ClientCrowd,
    RunningService,
    check_acknowledged_rows,
    set_clock_offset,
)
from storage_alone import SmallDisk, mounted_small_disk

from treehammer.sql.auth.access_keys import mint_job_token
from treehammer.testbed.credentials import CertificateAuthority

KILLS = 20


def test_service_survives_repeated_kills(
    authority: CertificateAuthority, tmp_path: Path, database: str
) -> None:
    service = RunningService(tmp_path, database, authority)
    crowd = ClientCrowd([service], service.make_key().text)
    dice = random.Random(20)
    service.start()
    with crowd.sending():
        for _ in range(KILLS):
            crowd.wait_for_acknowledgments(dice.randint(1, 30))
            time.sleep(dice.uniform(0.0, 0.05))
            service.kill()
            service.start()
        crowd.wait_for_acknowledgments()
    service.stop()
    assert crowd.broken >= KILLS / 2, "no kill interrupted a request"
    check_acknowledged_rows(database, crowd)


def test_service_survives_graceful_stops(
    authority: CertificateAuthority, tmp_path: Path, database: str
) -> None:
    service = RunningService(tmp_path, database, authority)
    crowd = ClientCrowd([service], service.make_key().text)
    service.start()
    with crowd.sending():
        for _ in range(3):
            crowd.wait_for_acknowledgments(20)
            service.stop()
            service.start()
        crowd.wait_for_acknowledgments(20)
    service.stop()
    log = service.log.read_text()
    assert log.count("stopped; all acknowledged measurements are in the database") == 4
    assert "Traceback" not in log
    check_acknowledged_rows(database, crowd)


def test_two_services_share_database(
    authority: CertificateAuthority, tmp_path: Path, database: str
) -> None:
    one, other = (RunningService(tmp_path / n, database, authority) for n in "ab")
    token = one.make_key().text
    other.share_keys_with(one)
    one.start()
    other.start()
    crowd = ClientCrowd([one, other], token, twice=True)
    with crowd.sending():
        crowd.wait_for_acknowledgments(150)
        other.kill()
        crowd.wait_for_acknowledgments()
        other.start()
        crowd.wait_for_acknowledgments(150)
        one.stop()
        crowd.wait_for_acknowledgments()
    other.stop()
    check_acknowledged_rows(database, crowd)
    # Rows committed by a killed service before its response are reported as known afterwards.
    assert len(crowd.acknowledged) - 100 <= crowd.new <= len(crowd.acknowledged)


def test_service_survives_restarts_of_database_server(
    authority: CertificateAuthority,
    tmp_path: Path,
    postgresql: SharedPostgresServer,  # noqa: F811
) -> None:
    url = postgresql.url(postgresql.make_database())
    service = RunningService(tmp_path, url, authority)
    crowd = ClientCrowd([service], service.make_key().text)
    service.start()
    with crowd.sending():
        for end, away_s in (
            (postgresql.stop, 0.0),
            (postgresql.crash, 0.3),
            (postgresql.stop, 1.5),
            (postgresql.crash, 0.0),
            (postgresql.crash, 0.0),
        ):
            crowd.wait_for_acknowledgments(30)
            end()
            time.sleep(away_s)
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
    folder = Path(tempfile.mkdtemp(prefix="treehammer-pg-", dir="/tmp"))
    try:
        with mounted_small_disk(folder / "disk", 150) as disk:
            server = SharedPostgresServer(programs, disk.folder)
            server.start()
            try:
                url = server.url(server.make_database())
                service = RunningService(folder, url, authority)
                fill_disk_twice(service, disk, 400_000, revive=server.restart_if_crashed)
            finally:
                server.stop()
    finally:
        shutil.rmtree(folder)


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


def test_service_survives_file_size_limit(authority: CertificateAuthority, tmp_path: Path) -> None:
    """The limit acts like an exhausted quota, and needs no root."""
    service = RunningService(tmp_path, f"sqlite:///{tmp_path / 'r.db'}", authority)
    crowd = ClientCrowd([service], service.make_key().text, batch=20)
    service.start()
    unlimited = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
    with crowd.sending():
        crowd.wait_for_acknowledgments(100)
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (500_000, unlimited[1]))
        await_refusals(crowd, 10)
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, unlimited)
        crowd.wait_for_acknowledgments(100)
    service.stop()
    check_acknowledged_rows(service.database, crowd)


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
    soon_us = time.time_ns() // 1000 + 3600 * 1_000_000
    token = mint_job_token(key, "campaign", "job", soon_us)
    service.start()
    crowd = ClientCrowd([service], key.text)

    def check_token(shown: str = token) -> tuple[int, str]:
        status, _, document = service.send_request(
            "GET", "/api/v1/token", Authorization=f"Bearer {shown}"
        )
        return status, str(document.get("error", ""))

    with crowd.sending():
        for jump_s, status in ((0, 200), (86400, 401), (-86400, 200), (1e9, 401), (0, 200)):
            set_clock_offset(clock, jump_s)
            crowd.wait_for_acknowledgments(40)
            found, error = check_token()
            assert found == status, error
            assert ("expired at" in error and "the service's clock is at" in error) == (
                found == 401
            )
            assert check_token(key.text)[0] == 200, "a key without expiry is valid at any time"
            _, _, health = service.send_request("GET", "/api/v1/health")
            assert health["status"] == "ok"
            assert abs(health["time_us"] / 1e6 - time.time() - jump_s) < 30
    assert not crowd.refusals, "clients with a valid key notice nothing"
    service.stop()
    check_acknowledged_rows(url, crowd)
