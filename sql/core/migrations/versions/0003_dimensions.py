"""Tables for what many measurements have in common, and the columns that will name their rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.migrations.shape import DIMENSIONS, type_of

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply this revision."""
    for name, columns in DIMENSIONS.items():
        op.create_table(
            name,
            sa.Column("id", sa.BigInteger(), nullable=False, autoincrement=False),
            *(
                sa.Column(column, type_of(kind), nullable=nullable)
                for column, (kind, nullable) in columns.items()
            ),
            sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
        )
        op.add_column("measurement", sa.Column(f"{name}_id", sa.BigInteger()))
    op.add_column("measurement", sa.Column("passes", sa.LargeBinary()))
    op.create_index("ix_subject_series", "subject", ["series"])
