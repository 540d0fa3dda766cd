"""Cancellation of running queries on real databases."""

from __future__ import annotations

import threading
import time

import pytest
import sqlalchemy as sa

from treehammer.errors import StoreError
from treehammer.sql.engine.database_engine import QueryGroup, is_cancelled, read_transaction
from treehammer.sql.engine.database_setup import open_engine

pytestmark = pytest.mark.backends("sqlite", "postgresql")

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT 1 FROM c) SELECT count(*) FROM c"
PATIENCE_S = 60.0


def test_cancelled_query_ends_and_others_go_on(url: str) -> None:
    engine = open_engine(url, create=True)
    group = QueryGroup()
    began = threading.Event()
    failures: list[StoreError] = []

    def run_endless_query() -> None:
        with read_transaction(engine) as connection:
            connection.scalar(sa.text("SELECT 1"))
            began.set()
            connection.scalar(sa.text(ENDLESS))

    def run_group() -> None:
        try:
            group.run(run_endless_query)
        except StoreError as error:
            failures.append(error)

    thread = threading.Thread(target=run_group, daemon=True)
    thread.start()
    assert began.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while thread.is_alive():
        assert time.monotonic() < deadline
        group.cancel()
        thread.join(0.05)
    assert failures
    with pytest.raises(StoreError, match="cancelled"):
        group.run(run_endless_query)
    assert not is_cancelled()
    with read_transaction(engine) as connection:
        assert connection.scalar(sa.text("SELECT 2")) == 2
    engine.dispose()
