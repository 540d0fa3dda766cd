"""Every earlier revision comes up to date in H2's Oracle mode, interrupted anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from h2_cursor import refusal
from h2_oracle import Server
from old_databases import EARLIER, check_all_is_kept, check_an_upgrade_keeps_all, make
from sql_makers import full_measurement

from treehammer.errors import ConfigError, StoreError
from treehammer.sql.backends.oracle import was_done_before
from treehammer.sql.database import make_engine, parse_url
from treehammer.sql.store import Store, upgrade_database

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


def schema_of(h2: Server, service: str) -> list[set[tuple[object, ...]]]:
    """Columns, indexes and constraints of a database."""
    return [set(h2.ask(service, question)) for question in _SCHEMA]


@pytest.mark.parametrize("revision", EARLIER)
def test_every_earlier_database_comes_up_to_date_with_its_data(
    h2: Server, service: str, url: str, revision: str
) -> None:
    check_an_upgrade_keeps_all(
        url, revision, check_schema=lambda _store: is_as_if_laid_today(h2, service)
    )


def is_as_if_laid_today(h2: Server, service: str) -> None:
    Store.open(h2.url("today")).close()
    found, expected = schema_of(h2, service), schema_of(h2, "today")
    h2.forget("today")
    for one, other in zip(found, expected, strict=True):
        assert one == other


@contextmanager
def cut_after(h2: Server, statements: int) -> Iterator[None]:
    """Let so many changing statements pass, and no more."""
    left = statements

    def watch(statement: str, _rows: object) -> None:
        nonlocal left
        if not statement.startswith(("SELECT", "SET", "select", "begin")):
            left -= 1
        if left < 0:
            raise refusal("ORA-03113: end-of-file on communication channel")

    h2.watchers.append(watch)
    try:
        yield
    finally:
        h2.watchers.remove(watch)


def _upgrade_until_cut(h2: Server, url: str, statements: int) -> str:
    """What was said; '' when the upgrade came to its end."""
    try:
        with cut_after(h2, statements):
            upgrade_database(url, backed_up=True)
    except StoreError as error:
        return str(error)
    return ""


def test_an_upgrade_goes_on_where_it_was_cut(h2: Server, service: str, url: str) -> None:
    attempts = count()
    make(url, EARLIER[0])
    with pytest.raises(ConfigError, match=r"cannot undo(.|\n)*expdp(.|\n)*--backed-up"):
        upgrade_database(url)
    # Every time a little further than what was done before and has to be passed over.
    said = list(iter(lambda: _upgrade_until_cut(h2, url, 5 * next(attempts)), ""))
    assert len(said) > 15
    assert all("was lost" in one for one in said)
    assert "What was changed stays. Then run again" in said[-1]
    check_all_is_kept(url, EARLIER[0])
    is_as_if_laid_today(h2, service)


@pytest.mark.parametrize("statements", [1, 2, 3, 10, 25])
def test_laying_the_tables_begins_anew_where_it_was_cut(
    h2: Server, service: str, url: str, statements: int
) -> None:
    with pytest.raises(StoreError, match="lost"), cut_after(h2, statements):
        Store.open(url)
    with Store.open(url) as store:
        assert store.add([full_measurement()]).new == 1
    is_as_if_laid_today(h2, service)


def test_tables_of_something_else_are_left_alone(h2: Server, service: str, url: str) -> None:
    with make_engine(parse_url(url)).connect() as connection:
        connection.exec_driver_sql("CREATE TABLE recipes (cake VARCHAR2(10 CHAR))")
    with pytest.raises(StoreError, match="other than Treehammer"):
        Store.open(url)


def test_what_an_upgrade_passes_over() -> None:
    """Only what says that just this was done before."""
    assert was_done_before("\nCREATE TABLE a (b NUMBER)", "ORA-00955: name is already used")
    assert was_done_before("ALTER TABLE a ADD b NUMBER", "ORA-01430: column being added")
    assert was_done_before("ALTER TABLE a DROP COLUMN b", "ORA-00904: invalid identifier")
    assert was_done_before("ALTER TABLE a MODIFY b NOT NULL", "ORA-01442: already NOT NULL")
    assert not was_done_before("ALTER TABLE a ADD b NUMBER", "ORA-00904: invalid identifier")
    assert not was_done_before("ALTER TABLE a MODIFY b NUMBER", "ORA-00904: invalid identifier")
    assert not was_done_before("CREATE TABLE a (b NUMBER)", "ORA-01653: unable to extend")
    assert not was_done_before("UPDATE a SET b = 1", "ORA-00904: invalid identifier")
