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


# New columns, all of which may be NULL.
_COLUMNS: dict[str, Any] = {
    "files_read": sa.BigInteger(),
    "bytes_touched": sa.BigInteger(),
    "read_calls_sequential": sa.BigInteger(),
    "read_wait_s": REAL,
    "mapped_bytes": sa.BigInteger(),
    "threads_mean": REAL,
    "threads_idle": REAL,
    "file_reads": LongText(),
    "file_reads_missing": StoredText(4000),
    "skipped_forward_bytes": sa.BigInteger(),
    "skipped_backward_bytes": sa.BigInteger(),
}


def upgrade() -> None:
    """Add columns of measurements."""
    for name, kind in _COLUMNS.items():
        op.add_column("measurement", sa.Column(name, kind))
