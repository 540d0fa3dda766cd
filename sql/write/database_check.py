"""Integrity check of a whole results database."""

from __future__ import annotations

import sqlalchemy as sa

from treehammer.errors import StoreError
from treehammer.sql.core import schema
from treehammer.sql.core.database_engine import require_integrity
from treehammer.sql.core.database_errors import display_url
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.setup.schema_check import require_complete_schema
from treehammer.sql.write import rollups
from treehammer.sql.write.damage_check import require_undamaged_values


def check_database(url: str) -> dict[str, int]:
    """Check that a database is intact, complete and of this schema version.

    Returns:
        number of rows by table.

    Raises:
        NothingToDoError: no database exists.
        StoreError: it is damaged or of another version; the message gives the remedy.
    """
    with ResultsReader.open(url) as reader, reader.connection() as connection:
        require_integrity(connection)
        require_complete_schema(connection)
        require_undamaged_values(connection)
        if difference := rollups.find_difference(connection):
            raise StoreError(
                f"a roll-up differs from its measurements: {difference}",
                where=display_url(reader.url),
                hint="Run: treehammer db rebuild",
            )
        tables = schema.metadata.sorted_tables
        count = sa.func.count()
        return {t.name: connection.scalar(sa.select(count).select_from(t)) or 0 for t in tables}
