"""Columns added after release 0.2.0."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import REAL, StoredText

revision = "0.3.0"
down_revision = "0.2.0"
branch_labels = None
depends_on = None

_TYPES: dict[str, Any] = {"text": StoredText(4000), "int": sa.BigInteger(), "real": REAL}

# Table -> its new columns, each NAME:TYPE, all of which may be NULL.
_COLUMNS = {
    "measurement": """
        energy_j:real energy_idle_w:real energy_idle_fraction:real energy_per_event_j:real
        origin_rtt_s:real server_cache_stored_bytes:int server_cache_asked_bytes:int
        server_cache_fetched_bytes:int
    """,
    "node": "architecture:text energy_missing:text",
    "release_check": "server:text",
    "storage": "origin_version:text distance_method:text cache_block_kib:int",
}


def upgrade() -> None:
    """Add the columns."""
    for table, columns in _COLUMNS.items():
        for column in columns.split():
            name, _, kind = column.partition(":")
            op.add_column(table, sa.Column(name, _TYPES[kind]))
