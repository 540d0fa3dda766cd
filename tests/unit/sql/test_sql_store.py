"""The store on SQLite, including failures specific to files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from measurement_factory import full_measurement, make_measurement
from store_helpers import read_rows, run_script

from treehammer.errors import ConfigError, ExitCode, NothingToDoError, StoreError
from treehammer.sql.engine import backend, database_engine
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store

# Opening


def test_database_is_created_with_its_folder(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a b%c/ä/results.db"
    with Store.open(url) as store:
        store.add([make_measurement()])
    with Store.open(url, create=False) as store:
        assert len(read_rows(store)) == 1


def test_reading_creates_no_database(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    with pytest.raises(NothingToDoError, match=r"results\.db"):
        Store.open(f"sqlite:///{file}", create=False)
    assert not file.exists()


@pytest.mark.parametrize("url", ["", "results.db", "nosuch://host/db", "postgresql+nosuch://h/d"])
def test_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="database"):
        Store.open(url)


def test_password_is_masked() -> None:
    for text in ("postgresql://me:secret@host/db", "postgresql://me@host/db?password=secret"):
        assert "secret" not in backend.display_url(database_engine.parse_url(text))


def test_folder_creation_failure_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="folder"):
        Store.open(f"sqlite:///{tmp_path}/file/results.db")


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    file.write_text("this is a letter, no database\n" * 100)
    with pytest.raises(StoreError, match="not an SQLite database") as caught:
        Store.open(f"sqlite:///{file}")
    assert caught.value.exit_code is ExitCode.INFRASTRUCTURE
    assert file.read_text().startswith("this is a letter")


def test_foreign_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE recipes (cake TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="other than Treehammer"):
        Store.open(f"sqlite:///{file}")


def test_damaged_database_is_found(url: str, tmp_path: Path) -> None:
    with Store.open(url) as store:
        store.add(full_measurement(n) for n in range(200))
    file = tmp_path / "results.db"
    content = bytearray(file.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 8192] = b"\xff" * 8192
    file.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        check_database(url)


# Concurrent access and full disks


def test_locked_database_is_reported(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "BUSY_SECONDS", 0.1)
    with Store.open(url) as store:
        store.add([make_measurement(position=1)])
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process"):
            store.add([make_measurement(position=2)])
        assert len(read_rows(store)) == 1
        other.execute("ROLLBACK")
        other.close()
        assert store.add([make_measurement(position=2)]).new == 1


FILL = """
    import resource, sys
    from measurement_factory import full_measurement
    from treehammer.errors import StoreError
    from treehammer.sql.write.store import Store
    with Store.open(sys.argv[1]) as store:
        store.add(full_measurement(n) for n in range(100))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
        try:
            store.add(full_measurement(n) for n in range(20_000))
        except StoreError as error:
            print(error)
"""


def test_full_disk_loses_nothing(url: str) -> None:
    process = run_script(FILL, url)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "what was" in said
    assert "intact" in said
    assert 100 <= check_database(url)["measurement"] < 20_000
    with Store.open(url) as store:
        assert store.add(full_measurement(n) for n in range(100)) == AddResult(0, 100)
