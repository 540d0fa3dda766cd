"""Runs migrations on the connection that :mod:`treehammer.sql.migrate` hands over."""

from __future__ import annotations

from alembic import context

from treehammer.sql.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_type=True,
    # Our transactions begin explicitly, so that SQLite, too, undoes a half-done migration.
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
