"""Databases of every earlier revision, with data in them.

The rows of ``tests/unit/sql/frozen/REVISION.json`` are written to the tables as that revision made
them, by plain INSERTs: what is there must be read by every later version, and so never changes.  A
revision whose tables hold something new brings a file of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from measurement_factory import full_measurement

from treehammer.collectors.record.measurement_record import MAX_TEXT, Measurement
from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.errors import StoreError
from treehammer.sql.core import schema_upgrade
from treehammer.sql.core.database_engine import (
    alter_transaction,
    make_engine,
    parse_url,
    write_transaction,
)
from treehammer.sql.core.database_setup import upgrade_database
from treehammer.sql.core.migrations.shape import REAL
from treehammer.sql.core.schema import metadata
from treehammer.sql.write import quality_flags
from treehammer.sql.write.database_check import check_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store

FROZEN_FOLDER = Path(__file__).parents[2] / "unit/sql/frozen"
Row = dict[str, Any]

#: Every revision, the first one first; and all but the newest.
REVISIONS = sorted(
    script.revision
    for script in ScriptDirectory.from_config(schema_upgrade.alembic_config()).walk_revisions()
)
EARLIER_REVISIONS = REVISIONS[:-1]

_TYPES: dict[type, sa.types.TypeEngine[Any]] = {
    bool: sa.Boolean(),
    int: sa.BigInteger(),
    float: REAL,
    str: sa.String(),
}


def migrate_to(url: str, revision: str) -> None:
    """Bring an older or an empty database to that revision."""
    engine = make_engine(parse_url(url))
    with alter_transaction(engine) as connection:
        schema_upgrade.migrate_to(connection, revision)
    engine.dispose()


def make_database(url: str, revision: str) -> None:
    """Make a database of that revision, with all rows that were frozen until then."""
    for one in REVISIONS[: REVISIONS.index(revision) + 1]:
        migrate_to(url, one)
        insert_rows(url, load_frozen_rows(one))


def load_frozen_rows(revision: str) -> dict[str, list[Row]]:
    """Table -> rows that were written when that revision was the newest."""
    file = FROZEN_FOLDER / f"{revision}.json"
    found: dict[str, list[Row]] = {}
    if file.exists():
        found = json.loads(file.read_text(encoding="utf-8"))
    return found


def insert_rows(url: str, tables: dict[str, list[Row]]) -> None:
    """Write rows to tables as they are."""
    engine = make_engine(parse_url(url))
    with write_transaction(engine) as connection:
        for name, rows in tables.items():
            types = {column: _TYPES[type(value)] for row in rows for column, value in row.items()}
            long = [c for row in rows for c, value in row.items() if len(str(value)) > MAX_TEXT]
            types |= dict.fromkeys(long, sa.Text())
            table = sa.table(name, *(sa.column(c, kind) for c, kind in types.items()))
            nothing = dict.fromkeys(types)
            connection.execute(sa.insert(table), [{**nothing, **row} for row in rows])
    engine.dispose()


def check_upgrade(
    url: str, revision: str, *, check_schema: Callable[[Store], None] | None = None
) -> None:
    """A database of an earlier revision is refused, comes up to date, and holds what it held."""
    make_database(url, revision)
    with pytest.raises(StoreError, match=f"at revision {revision}.*(.|\n)*treehammer db upgrade"):
        Store.open(url)
    upgrade_database(url, backed_up=True)
    check_rows_kept(url, revision)
    with Store.open(url, create=False) as store:
        (check_schema or check_schema_by_alembic)(store)


def check_rows_kept(url: str, revision: str) -> None:
    """All frozen rows until that revision are there, as this version gives them back."""
    with Store.open(url, create=False) as store:
        for one in REVISIONS[: REVISIONS.index(revision) + 1]:
            tables = load_frozen_rows(one)
            given = list(_frozen_measurements(tables))
            assert store.add(given) == AddResult(0, len(given))
            for name in tables.keys() - {"measurement", "extra"}:
                assert _read_rows(store, name) == sorted(tables[name], key=_sort_row), name
        counts = check_database(url)
        assert all(
            counts[name] for name in metadata.tables if name not in _later_tables(revision)
        ), counts
        assert store.add([full_measurement(20)]) == AddResult(1, 0)


def _later_tables(revision: str) -> set[str]:
    """Tables whose first rows were frozen after a revision."""
    later = REVISIONS[REVISIONS.index(revision) + 1 :]
    return {name for one in later for name in load_frozen_rows(one)}


def _frozen_measurements(tables: dict[str, list[Row]]) -> Iterator[Measurement]:
    lists = [m.name for m in CATALOGUE if m.type in ("ints", "floats")]
    for row in tables.get("measurement", ()):
        values = {**row}
        values |= {name: json.loads(row[name]) for name in lists if name in row}
        why = quality_flags.strip_flag(row.get("implausible_reasons"))
        if why != row.get("implausible_reasons"):
            values |= {"implausible_reasons": why, "plausible": why is None}
        extras = {
            extra["name"]: extra["value"]
            for extra in tables["extra"]
            if extra["measurement_id"] == row["measurement_id"]
        }
        yield Measurement(values, extras)


def _read_rows(store: Store, name: str) -> list[Row]:
    """All that is known of a table's rows."""
    with store._engine.connect() as connection:
        found = [
            {
                column.name: value
                for column, value in zip(metadata.tables[name].columns, row, strict=True)
                if value is not None
            }
            for row in connection.execute(sa.select(metadata.tables[name]))
        ]
    return sorted(found, key=_sort_row)


def _sort_row(row: Row) -> str:
    return json.dumps(row, sort_keys=True)


def check_schema_by_alembic(store: Store) -> None:
    """The database has the tables that this version describes."""
    with store._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
