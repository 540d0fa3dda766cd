"""Identities of machines whose host names change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import StoredText

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("node", sa.Column("machine", StoredText(4000)))
