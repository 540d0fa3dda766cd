"""Ctrl-C within a database transaction."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from treehammer.errors import StoreError
from treehammer.sql.engine.database_engine import alter_transaction, make_engine, parse_url


def interrupt_statement(engine: Engine) -> None:
    with alter_transaction(engine) as connection:
        connection.invalidate()  # as SQLAlchemy does when a statement is interrupted
        raise KeyboardInterrupt


def test_interrupt_passes_through_failing_cleanup() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupt_statement(make_engine(parse_url("sqlite://")))


def test_error_after_interrupt_is_reported() -> None:
    engine = make_engine(parse_url("sqlite://"))
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(StoreError), alter_transaction(engine) as connection:
            connection.exec_driver_sql("SELECT * FROM missing")
