"""Changes after release 0.3.0: reads of commands."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import REAL, LongText, StoredText

revision = "0.4.0"
down_revision = "0.3.0"
branch_labels = None
depends_on = None

_TYPES: dict[str, Any] = {
    "text": StoredText(4000),
    "long": LongText(),
    "int": sa.BigInteger(),
    "real": REAL,
}

# Table -> its new columns, each NAME:TYPE, all of which may be NULL.
_COLUMNS = {
    "measurement": """
        files_read:int bytes_touched:int read_calls_sequential:int read_wait_s:real
        mapped_bytes:int threads_mean:real threads_idle:real file_reads:long
        file_reads_missing:text skipped_forward_bytes:int skipped_backward_bytes:int
    """,
}


def upgrade() -> None:
    """Add columns."""
    for table, columns in _COLUMNS.items():
        for column in columns.split():
            name, _, kind = column.partition(":")
            op.add_column(table, sa.Column(name, _TYPES[kind]))
