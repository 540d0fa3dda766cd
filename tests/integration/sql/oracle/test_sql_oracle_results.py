"""Results for Python programs, from H2's Oracle mode."""

from __future__ import annotations

import pytest
from h2_oracle import H2Server
from measurement_factory import make_measurement

import treehammer
from treehammer.errors import StoreError
from treehammer.sql.write.store import Store


def test_only_selected_columns_are_read(store: Store, url: str, h2_server: H2Server) -> None:
    store.add([make_measurement(eff_job=0.5, extras={"hits": 1})])
    asked: list[str] = []
    h2_server.watchers.append(lambda statement, _rows: asked.append(statement))
    treehammer.results(columns="eff_job", database=url)
    h2_server.watchers.pop()
    assert any("eff_job" in statement for statement in asked)
    assert not any("inventory" in statement for statement in asked)


def test_reader_failure_is_reported_on_oracle(store: Store, url: str) -> None:
    store.add([make_measurement(eff_job=0.5, extras={"hits": 1})])
    with store._engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE extra RENAME COLUMN value TO other")
    with pytest.raises(StoreError, match="ORA-00904"):
        treehammer.results(database=url)
