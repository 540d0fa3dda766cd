"""Read sessions of browsers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import StoredText

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "read_session",
        sa.Column("token_hash", StoredText(128), nullable=False),
        sa.Column("role", StoredText(128), nullable=False),
        sa.Column("name", StoredText(4000), nullable=False),
        sa.Column("key_id", StoredText(128)),
        sa.Column("identity", StoredText(4000)),
        sa.Column("address", StoredText(64), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_read_session"),
    )
