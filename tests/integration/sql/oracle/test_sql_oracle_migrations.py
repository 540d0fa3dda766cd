"""Schema creation and upgrades in H2's Oracle mode, interrupted at any statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from h2_connection import make_oracle_error
from h2_oracle import H2Server
from measurement_factory import full_measurement
from next_revision import next_revision, run_migrations  # noqa: F401 - a fixture

from treehammer.errors import ConfigError, StoreError
from treehammer.sql.engine.database_engine import make_engine, parse_url
from treehammer.sql.engine.database_setup import upgrade_database
from treehammer.sql.engine.oracle_backend import is_already_applied
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store

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
    found, expected = schema_of(h2, service), schema_of(h2, "today")
    h2.drop_database("today")
    for one, other in zip(found, expected, strict=True):
        assert one == other


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
    with pytest.raises(ConfigError, match=r"cannot undo(.|\n)*expdp(.|\n)*--backed-up"):
        upgrade_database(url)
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


def test_foreign_tables_are_left_alone(h2_server: H2Server, service: str, url: str) -> None:
    with make_engine(parse_url(url)).connect() as connection:
        connection.exec_driver_sql("CREATE TABLE recipes (cake VARCHAR2(10 CHAR))")
    with pytest.raises(StoreError, match="other than Treehammer"):
        Store.open(url)


def test_applied_changes_are_recognized() -> None:
    """Only errors that show the same change was made before are accepted."""
    assert is_already_applied("\nCREATE TABLE a (b NUMBER)", "ORA-00955: name is already used")
    assert is_already_applied("ALTER TABLE a ADD b NUMBER", "ORA-01430: column being added")
    assert is_already_applied("ALTER TABLE a DROP COLUMN b", "ORA-00904: invalid identifier")
    assert is_already_applied("ALTER TABLE a MODIFY b NOT NULL", "ORA-01442: already NOT NULL")
    assert not is_already_applied("ALTER TABLE a ADD b NUMBER", "ORA-00904: invalid identifier")
    assert not is_already_applied("ALTER TABLE a MODIFY b NUMBER", "ORA-00904: invalid identifier")
    assert not is_already_applied("CREATE TABLE a (b NUMBER)", "ORA-01653: unable to extend")
    assert not is_already_applied("UPDATE a SET b = 1", "ORA-00904: invalid identifier")
