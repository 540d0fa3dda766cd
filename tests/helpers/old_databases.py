"""Databases of every earlier revision, with data in them."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sql_makers import full_measurement

from treehammer.collectors.metrics import CATALOGUE
from treehammer.collectors.record import Measurement
from treehammer.errors import StoreError
from treehammer.sql import migrate
from treehammer.sql.database import make_engine, parse_url, rebuilding
from treehammer.sql.recording import Added
from treehammer.sql.schema import NumberList, metadata
from treehammer.sql.store import Store, upgrade_database

#: Every revision but the newest, the first one first.
EARLIER = sorted(
    script.revision
    for script in ScriptDirectory.from_config(migrate.config()).walk_revisions()
    if script.revision != migrate.REVISION
)


def go_to(url: str, revision: str) -> None:
    """Bring an older or an empty database to that revision."""
    engine = make_engine(parse_url(url))
    with rebuilding(engine) as connection:
        migrate.run(connection, revision)
    engine.dispose()


def fill_first(url: str, measurements: int) -> None:
    """Rows as revision 0001 holds them: :func:`full_measurement`, each with an extra of its number."""
    engine = make_engine(parse_url(url))
    lists = NumberList()
    with engine.begin() as connection:
        tables = sa.MetaData()
        tables.reflect(connection, only=["measurement", "extra"])
        rows = [{**full_measurement(n).values} for n in range(measurements)]
        for metric in CATALOGUE:
            if metric.type in ("ints", "floats"):
                for row in rows:
                    value: Any = row[metric.name]
                    row[metric.name] = lists.process_bind_param(value, engine.dialect)
        connection.execute(sa.insert(tables.tables["measurement"]), rows)
        extras = [
            {"measurement_id": row["measurement_id"], "name": "number", "value": float(number)}
            for number, row in enumerate(rows)
        ]
        connection.execute(sa.insert(tables.tables["extra"]), extras)
    engine.dispose()


def check_an_upgrade_keeps_all(url: str, revision: str) -> None:
    """A database of an earlier revision is refused, comes up to date, and holds what it held."""
    go_to(url, EARLIER[0])
    fill_first(url, 20)
    go_to(url, revision)
    with pytest.raises(StoreError, match=f"at revision {revision}.*(.|\n)*treehammer db upgrade"):
        Store.open(url)
    upgrade_database(url)
    again = [Measurement(full_measurement(n).values, {"number": n}) for n in range(20)]
    with Store.open(url, create=False) as store:
        assert store.add(again) == Added(0, 20)
        assert store.add([full_measurement(20)]) == Added(1, 0)
        context = MigrationContext.configure(store._engine.connect(), opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        assert context.connection is not None
        context.connection.close()
