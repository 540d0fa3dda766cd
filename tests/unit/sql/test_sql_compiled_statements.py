"""Compiled statements find and write the same rows as SQLAlchemy's own."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from measurement_factory import make_measurement
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from treehammer.sql.core.schema import measurement
from treehammer.sql.engine.backend import compile_query, compile_statement, round_length
from treehammer.sql.engine.database_engine import backend_of, read_transaction
from treehammer.sql.write.store import Store

#: Class of the dialect.
SQLITE: Any = SQLiteDialect_pysqlite
_BY_ID_AND_ROUND = sa.select(measurement.c.measurement_id).where(
    measurement.c.measurement_id.in_(sa.bindparam("ids", expanding=True)),
    measurement.c.round == sa.bindparam("round"),
)


@pytest.mark.parametrize(
    ("length", "compiled"), [(0, 1), (1, 1), (2, 2), (3, 4), (500, 512), (512, 512)]
)
def test_lengths_of_lists_are_powers_of_two(length: int, compiled: int) -> None:
    assert round_length(length) == compiled


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_lists_of_any_length_find_their_rows_only(store: Store, count: int) -> None:
    known = [make_measurement(job=str(number)) for number in range(6)]
    store.add(known)
    wanted = [one.id for one in known[:count]]
    engine = store._engine
    with read_transaction(engine) as connection:
        rows = backend_of(engine).fetch_rows(
            connection, _BY_ID_AND_ROUND, {"ids": [*wanted, "nothing"], "round": 1}
        )
        none = backend_of(engine).fetch_rows(
            connection, _BY_ID_AND_ROUND, {"ids": wanted, "round": 2}
        )
    assert sorted(row[0] for row in rows) == sorted(wanted)
    assert not none


def test_similar_lengths_share_one_compiled_query() -> None:
    query = compile_query(_BY_ID_AND_ROUND, 4, SQLITE, "qmark")
    assert query.text.count("?") == 5
    assert query.bind({"ids": ["a", "b", "c"], "round": 1}) == ("a", "b", "c", None, 1)


def test_empty_text_is_stored_as_null() -> None:
    change = (
        sa.update(measurement)
        .where(measurement.c.measurement_id == sa.bindparam("id"))
        .values(slot=sa.bindparam("slot"), plausible=sa.bindparam("good"))
    )
    compiled = compile_statement(change, SQLITE, "qmark")
    (row,) = compiled.bind([{"id": "a", "slot": "", "good": True}])
    assert dict(zip(compiled.names, row, strict=True)) == {
        "id": "a",
        "slot": None,
        "good": True,
    }
