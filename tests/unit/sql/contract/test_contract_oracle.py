"""What the store does on Oracle alone, here H2 in Oracle mode: limits, locks and interrupted changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from h2_oracle import H2Server, make_oracle_error
from measurement_factory import full_measurement, make_measurement
from quick_databases import next_revision, run_migrations  # noqa: F401 - a fixture
from repository_code import find_command

from treehammer import config
from treehammer.errors import ConfigError, StoreError
from treehammer.sql.engine import database_engine, oracle_backend
from treehammer.sql.engine.database_setup import upgrade_database
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store

pytestmark = pytest.mark.backends("oracle")

EVERYTHING = Selection()


@pytest.fixture
def service(url: str) -> str:
    return url.partition("service_name=")[2]


def db(url: str, tmp_path: Path, *arguments: str) -> Result:
    settings = config.load_settings({"database": url}, environ={}, folder=tmp_path)
    return CliRunner().invoke(find_command("db"), arguments, obj=settings)


def test_upgrade_requires_a_backup(
    url: str, store: Store, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("next_revision")
    refused = db(url, tmp_path, "upgrade")
    assert isinstance(refused.exception, ConfigError)
    assert re.search(r"cannot undo(.|\n)*expdp(.|\n)*--backed-up", str(refused.exception))
    assert "never on an Oracle server" in refused.stderr
    done = db(url, tmp_path, "upgrade", "--backed-up")
    assert done.exception is None
    assert "is at revision" in done.stdout
    assert "no backup" not in done.stdout
    check = db(url, tmp_path, "check", "--json")
    assert check.exception is None
    assert "never on an Oracle server" in check.stderr


def test_old_server_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_backend, "MINIMUM_VERSION", (99,))
    with pytest.raises(StoreError, match=r"the server is Oracle 19.*; 99c or later"):
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


_SCHEMA = (
    "SELECT table_name, column_name, data_type, character_maximum_length, numeric_precision, "
    "numeric_scale, is_nullable FROM information_schema.columns WHERE table_schema = 'HAMMER'",
    "SELECT table_name, index_name, column_name, ordinal_position "
    "FROM information_schema.index_columns WHERE table_schema = 'HAMMER' AND index_name LIKE 'IX%'",
    "SELECT table_name, constraint_name, constraint_type "
    "FROM information_schema.table_constraints WHERE table_schema = 'HAMMER'",
    "SELECT table_name, constraint_name, column_name, ordinal_position "
    "FROM information_schema.key_column_usage WHERE table_schema = 'HAMMER'",
)


def schema_of(h2: H2Server, service: str) -> list[set[tuple[object, ...]]]:
    """Read columns, indexes and constraints of a database."""
    return [set(h2.query_h2(service, question)) for question in _SCHEMA]


def test_migrations_match_the_schema(h2_server: H2Server, service: str, url: str) -> None:
    run_migrations(url)
    assert_schema_is_current(h2_server, service)


def assert_schema_is_current(h2: H2Server, service: str) -> None:
    Store.open(h2.url("today")).close()
    current = schema_of(h2, "today")
    h2.drop_database("today")
    assert schema_of(h2, service) == current


@contextmanager
def cut_after(h2: H2Server, statements: int) -> Iterator[None]:
    """Let a number of changing statements pass, then fail."""
    left = statements

    def watch(statement: str, _rows: object) -> None:
        nonlocal left
        if not statement.startswith(("SELECT", "SET", "select", "begin")):
            left -= 1
        if left < 0:
            raise make_oracle_error("ORA-03113: end-of-file on communication channel")

    h2.watchers.append(watch)
    try:
        yield
    finally:
        h2.watchers.remove(watch)


def _upgrade_until_cut(h2: H2Server, url: str, statements: int) -> str:
    """Run the upgrade and return its error message; '' if it succeeds."""
    try:
        with cut_after(h2, statements):
            upgrade_database(url, backed_up=True)
    except StoreError as error:
        return str(error)
    return ""


def test_interrupted_upgrade_continues(
    h2_server: H2Server, url: str, store: Store, request: pytest.FixtureRequest
) -> None:
    store.add([full_measurement()])
    before = list(store.measurements(Selection()))
    request.getfixturevalue("next_revision")
    # Each attempt gets one statement further and skips the changes of the previous ones.
    statements = count()
    errors = list(iter(lambda: _upgrade_until_cut(h2_server, url, next(statements)), ""))
    assert len(errors) >= 4
    assert all("was lost" in error for error in errors)
    assert "Changes so far are kept. Then run again" in errors[-1]
    assert check_database(url)["measurement"] == 1
    with Store.open(url) as upgraded:
        assert list(upgraded.measurements(Selection())) == before


@pytest.mark.parametrize("statements", [1, 2, 3, 10, 25])
def test_interrupted_creation_starts_again(
    h2_server: H2Server, service: str, url: str, statements: int
) -> None:
    with pytest.raises(StoreError, match="lost"), cut_after(h2_server, statements):
        Store.open(url)
    with Store.open(url) as store:
        assert store.add([full_measurement()]).new == 1
    assert_schema_is_current(h2_server, service)
