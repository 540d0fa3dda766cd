"""Runs migrations on the connection that :mod:`treehammer.sql.engine.database_setup` hands over."""

from __future__ import annotations

from typing import Any

from alembic import context
from alembic.ddl.oracle import OracleImpl
from sqlalchemy.exc import DatabaseError

from treehammer.sql.core.schema import metadata
from treehammer.sql.engine.oracle_backend import is_already_applied


class _Resumable(OracleImpl):
    """Oracle implementation that skips changes already made by an interrupted upgrade.

    Oracle commits each schema change.
    """

    __dialect__ = "oracle"

    def _exec(self, construct: Any, *args: Any, **options: Any) -> Any:
        try:
            return super()._exec(construct, *args, **options)
        except DatabaseError as error:
            if not is_already_applied(error.statement or "", str(error.orig)):
                raise
            return None


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_type=True,
    # Transactions begin explicitly, because only then SQLite rolls back a failed migration.
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
