"""Oracle errors and their messages, in H2's Oracle mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_verbs import find_command
from click.testing import CliRunner, Result
from h2_oracle import H2Server
from measurement_factory import make_measurement
from next_revision import next_revision  # noqa: F401 - a fixture

from treehammer import config
from treehammer.errors import ConfigError, StoreError
from treehammer.sql.engine import backend, database_engine
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store

EVERYTHING = Selection()


def db(url: str, tmp_path: Path, *arguments: str) -> Result:
    settings = config.load_settings({"database": url}, environ={}, folder=tmp_path)
    return CliRunner().invoke(find_command("db"), arguments, obj=settings)


def test_upgrade_requires_a_backup(
    url: str, store: Store, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("next_revision")
    refused = db(url, tmp_path, "upgrade")
    assert isinstance(refused.exception, ConfigError)
    assert "--backed-up" in str(refused.exception)
    assert "never on an Oracle server" in refused.stderr
    done = db(url, tmp_path, "upgrade", "--backed-up")
    assert done.exception is None
    assert "is at revision" in done.stdout
    assert "no backup" not in done.stdout
    again = db(url, tmp_path, "check", "--json")
    assert again.exception is None
    assert "never on an Oracle server" in again.stderr


@pytest.mark.parametrize(
    ("version", "said"), [("18.4.0.0.0", r"Oracle 18\.4.*19c or later"), ("19.3.0.0.0", "")]
)
def test_old_server_is_refused(
    h2_server: H2Server, url: str, version: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h2_server, "version", version)
    if not said:
        Store.open(url).close()
        return
    with pytest.raises(StoreError, match=said):
        Store.open(url)


def test_narrow_character_set_is_refused(h2_server: H2Server, url: str, service: str) -> None:
    Store.open(url).close()
    with h2_server._open_databases[service].createStatement() as statement:
        statement.execute("UPDATE DICTIONARY.nls_database_parameters SET value = 'WE8MSWIN1252'")
    with pytest.raises(StoreError, match=r"character set is WE8MSWIN1252(.|\n)*AL32UTF8"):
        Store.open(url)


def test_text_with_too_many_bytes_rejects_its_batch(store: Store) -> None:
    store.add([make_measurement(host="é" * 2000)])
    with pytest.raises(StoreError, match=r"4000 bytes(.|\n)*two to four bytes"):
        store.add([make_measurement(position=2), make_measurement(position=3, host="é" * 2001)])
    assert len(list(store.measurements(EVERYTHING, ["host"]))) == 1


def test_only_writers_wait_for_each_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(url) as store, Store.open(url) as other:
        store.add([make_measurement()])
        monkeypatch.setattr(backend, "BUSY_SECONDS", 0)
        with database_engine.write_transaction(other._engine):
            with pytest.raises(StoreError, match="another process"):
                store.add([make_measurement(position=2)])
            assert len(list(store.measurements(EVERYTHING))) == 1
        assert store.add([make_measurement(position=2)]).new == 1


def test_reader_cannot_write(store: Store) -> None:
    with (
        pytest.raises(StoreError, match="ORA-01456"),
        database_engine.read_transaction(store._engine) as connection,
    ):
        connection.exec_driver_sql("DELETE FROM measurement")


def test_missing_lock_row_is_reported(store: Store) -> None:
    with database_engine.write_transaction(store._engine) as connection:
        connection.exec_driver_sql("DELETE FROM writer_lock")
    with pytest.raises(StoreError, match=r"lost its row(.|\n)*INSERT INTO writer_lock"):
        store.add([make_measurement()])


def test_rows_sort_by_code_points(store: Store) -> None:
    jobs = ["b", "a", "B", "_", "é", "Z"]
    store.add(make_measurement(job=job) for job in jobs)
    found = [row["job_id"] for row in store.measurements(EVERYTHING, ["job_id"])]
    assert found == sorted(jobs)
