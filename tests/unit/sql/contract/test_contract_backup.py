"""Backups of a database, and their recovery: completely or not at all, whatever happens."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa
from measurement_factory import make_measurement
from small_disk import mounted_small_disk
from store_helpers import kill_during, opened_plainly

from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.sql.core.schema import measurement
from treehammer.sql.engine import backend, database_backup
from treehammer.sql.engine.database_backup import back_up_database, recover_database
from treehammer.sql.engine.database_engine import parse_url
from treehammer.sql.engine.database_setup import copy_sqlite_file
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store

pytestmark = pytest.mark.backends("sqlite", "postgresql")
KILLS = 2
OLD, NEW = 60, 40


@pytest.fixture(autouse=True)
def programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put PostgreSQL's programs of the test server on PATH."""
    if request.node.callspec.params.get("backend") == "postgresql":
        server = request.getfixturevalue("postgresql")
        monkeypatch.setenv("PATH", f"{server.programs}{os.pathsep}{os.environ['PATH']}")


def add_measurements(url: str, number: int, job: str) -> None:
    with Store.open(url) as store:
        store.add(make_measurement(job, place) for place in range(number))


def read_ids(url: str) -> list[str]:
    with opened_plainly(url) as engine, engine.connect() as connection:
        return sorted(connection.scalars(sa.select(measurement.c.measurement_id)))


def test_recovery_replaces_everything(url: str, tmp_path: Path) -> None:
    add_measurements(url, 3, "early")
    early, backup = read_ids(url), tmp_path / "results.backup"
    back_up_database(url, backup)
    assert backup.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="the file exists"):
        back_up_database(url, backup)
    add_measurements(url, 2, "late")
    both = read_ids(url)
    assert len(both) == 5
    if url.startswith("sqlite"):
        replaced = recover_database(url, backup)
        assert read_ids(f"sqlite:///{replaced}") == both
    else:
        with pytest.raises(ConfigError, match="--replace"):
            recover_database(url, backup)
        assert recover_database(url, backup, replace=True) is None
        older = tmp_path / "older.backup"
        options = ["--format=custom", "--exclude-table=quality_flag", f"--file={older}"]
        hosts = url.replace("?host=", "?host=/nowhere:5432&host=") + ":5432"
        database_backup._run_tool(parse_url(hosts), ["pg_dump", *options])
        with pytest.raises(StoreError, match=r"a later version(.|\n)*an empty database"):
            recover_database(url, older, replace=True)
        older.write_bytes(backup.read_bytes()[:-4000])
        with pytest.raises(StoreError, match=r"incomplete or damaged(.|\n)*Give another one"):
            recover_database(url, older, replace=True)
        with pytest.raises(StoreError, match="nothing was written"):  # before it commits
            list(database_backup._iter_script(parse_url(url), older, []))
        database_backup._run_tool(parse_url(url), ["pg_dump", *options, "--table=alembic_version"])
        with pytest.raises(ConfigError, match="no backup of a database like"):
            recover_database(url, older, replace=True)
    assert read_ids(url) == early
    assert check_database(url)["measurement"] == 3
    add_measurements(url, 2, "late")
    assert read_ids(url) == both, "what came after the backup is stored again"


@pytest.mark.backends("postgresql")
def test_recovery_leaves_other_schemas_and_sessions_alone(url: str, tmp_path: Path) -> None:
    backup = tmp_path / "results.backup"
    add_measurements(url, 1, "early")
    with opened_plainly(url) as engine, engine.begin() as connection:
        connection.execute(sa.text("CREATE SCHEMA lab CREATE TABLE recipe (cake TEXT)"))
    back_up_database(url, backup)
    with opened_plainly(url) as engine, engine.begin() as connection:
        lost = "WITH lost AS (DELETE FROM alembic_version) INSERT INTO lab.recipe VALUES ('plum')"
        connection.execute(sa.text(lost))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "MIN_POSTGRESQL_VERSION", (99,))
        with pytest.raises(StoreError, match="99 or later"):
            recover_database(url, backup, replace=True)
    recover_database(url, backup, replace=True)
    with opened_plainly(url) as engine, engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT cake FROM lab.recipe, alembic_version")) == "plum"
    script = b"".join(database_backup._iter_script(parse_url(url), backup, []))
    assert b"COPY public.alembic_version" in script, "empty databases can be recovered into"
    assert b"transaction_timeout" not in script, "servers before 17 lack it"
    assert script.endswith(b"RESET ALL; COMMIT;\n"), "a pooler lends the session to others"


@pytest.mark.backends("sqlite")
def test_full_disk_is_named_and_keeps_no_part_of_a_backup(url: str, tmp_path: Path) -> None:
    with Store.open(url) as store:  # more than SQLite keeps in memory
        store.add(make_measurement(str(n), log_excerpt=f"{n:03}" * 9000) for n in range(100))
    with mounted_small_disk(tmp_path / "disk", 5) as disk:
        database, second = disk.folder / "results.db", disk.folder / "second.db"
        back_up_database(url, database)
        with pytest.raises(StoreError, match="no room left") as refusal:
            back_up_database(url, second)
        assert refusal.value.where == str(second)
        with pytest.raises(StoreError, match="no room left"):
            recover_database(f"sqlite:///{database}", Path(url.removeprefix("sqlite:///")))
        assert [*disk.folder.iterdir()] == [database], "nothing of a draft remains"
        assert check_database(f"sqlite:///{database}")["measurement"] == 100


def test_database_in_use_stays(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    add_measurements(url, 3, "early")
    backup = tmp_path / "results.backup"
    back_up_database(url, backup)
    with Store.open(url) as store:
        list(store.list_changes())
        with pytest.raises(StoreError, match=r"uses the database|is in use"):
            recover_database(url, backup, replace=True)
        if not url.startswith("sqlite"):  # sessions of other users count
            server, name = request.getfixturevalue("postgresql"), parse_url(url).database
            server.grant_reading(name)
            with pytest.raises(StoreError, match="is in use"):
                recover_database(server.guest_url(name), backup, replace=True)


def test_killed_recovery_leaves_old_or_new_content(url: str, tmp_path: Path) -> None:
    add_measurements(url, NEW, "new")
    new, new_backup, old_backup = read_ids(url), tmp_path / "new", tmp_path / "old"
    back_up_database(url, new_backup)
    add_measurements(url, OLD - NEW, "old")
    old = read_ids(url)
    back_up_database(url, old_backup)
    began = time.monotonic()
    recover_database(url, new_backup, replace=True)
    duration_s = time.monotonic() - began
    random = Random(1)
    for _ in range(KILLS):
        wait_until_unused(url)
        recover_database(url, old_backup, replace=True)
        kill_during(
            lambda: recover_database(url, new_backup, replace=True),
            random.uniform(0, 1.3 * duration_s),
        )
        wait_until_unused(url)
        assert read_ids(url) in (old, new)
        check_database(url)


def wait_until_unused(url: str) -> None:
    """Wait until the server has noticed the death of a client."""
    deadline = time.monotonic() + 30
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    while not url.startswith("sqlite") and time.monotonic() < deadline:
        with opened_plainly(url) as engine, engine.connect() as connection:
            if connection.scalar(sa.text(query)) == 1:
                return
        time.sleep(0.02)


@pytest.mark.backends("sqlite")
def test_log_of_a_dead_service_stays_out(url: str, tmp_path: Path) -> None:
    """A service that was killed leaves its log beside the file, with transactions of its own."""
    add_measurements(url, 3, "early")
    early, backup = read_ids(url), tmp_path / "results.backup"
    back_up_database(url, backup)
    file = Path(url.removeprefix("sqlite:///"))
    writer = f"""
import os, sqlite3
connection = sqlite3.connect({str(file)!r})
connection.execute("PRAGMA wal_autocheckpoint=0")
connection.execute("UPDATE measurement SET repeat = 77")
connection.commit()
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", writer], check=False, timeout=60)
    assert file.with_name("results.db-wal").stat().st_size
    recover_database(url, backup)
    assert read_ids(url) == early
    with closing(sqlite3.connect(file)) as connection:
        assert not connection.execute("SELECT 1 FROM measurement WHERE repeat = 77").fetchall()


@pytest.mark.backends("sqlite")
def test_damaged_or_missing_file_is_recovered(url: str, tmp_path: Path) -> None:
    add_measurements(url, 3, "early")
    early, backup = read_ids(url), tmp_path / "results.backup"
    back_up_database(url, backup)
    file = Path(url.removeprefix("sqlite:///"))
    content = backup.read_bytes()
    schema = content.replace(b"CREATE TABLE job (", b"CREATE TABLE job \xc5", 1)
    for damage in (b"no database" * 1000, content[:100] + bytes(3996) + content[4096:], schema):
        file.write_bytes(damage)
        with pytest.raises(StoreError, match=r"damaged|not an SQLite database"):
            Store.open(url)
        assert Path(recover_database(url, backup) or "").read_bytes() == damage
        assert read_ids(url) == early
    url = f"sqlite:///{tmp_path}/lost/results.db"
    assert recover_database(url, backup) is None
    assert read_ids(url) == early


@pytest.mark.backends("sqlite")
def test_other_files_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(NothingToDoError):
        back_up_database(url, tmp_path / "backup")
    add_measurements(url, 1, "early")
    ids = read_ids(url)
    text, foreign = tmp_path / "text", tmp_path / "foreign.db"
    text.write_text("hello")
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
    damaged = tmp_path / "damaged.db"
    back_up_database(url, damaged)
    half = damaged.read_bytes()[: damaged.stat().st_size // 2]
    damaged.write_bytes(half + bytes(len(half)))
    for file, message in (
        (text, "no backup"),
        (foreign, "something other than"),
        (damaged, "damaged|malformed"),
        (Path(url.removeprefix("sqlite:///")), "database itself"),
    ):
        with pytest.raises((ConfigError, StoreError), match=message):
            recover_database(url, file)
    with pytest.raises(StoreError, match="not an SQLite database") as refusal:
        copy_sqlite_file(parse_url(url), text, tmp_path / "draft")
    assert refusal.value.where == str(text), "the file that cannot be read"
    assert read_ids(url) == ids
