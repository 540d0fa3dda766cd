"""Time of building a test's own libraries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import REAL

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("measurement", sa.Column("build_wall_s", REAL))
    op.add_column("measurement", sa.Column("build_cpu_s", REAL))
