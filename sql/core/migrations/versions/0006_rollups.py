"""A table for sums and counts by day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.migrations.rolled import FIGURES
from treehammer.sql.core.migrations.shape import REAL, text

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply this revision."""
    columns: list[sa.Column[object]] = []
    for name in FIGURES:
        columns += [
            sa.Column(f"n_{name}", sa.BigInteger(), nullable=False),
            sa.Column(f"s_{name}", REAL, nullable=False),
            sa.Column(f"q_{name}", REAL, nullable=False),
        ]
    op.create_table(
        "rollup_day",
        sa.Column("day", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("subject_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("kind", text(64), nullable=False),
        sa.Column("outcome", text(64), nullable=False),
        sa.Column("measurements", sa.BigInteger(), nullable=False),
        *columns,
        sa.Column("read_latency_hist", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("day", "subject_id", "kind", "outcome", name="pk_rollup_day"),
        sa.ForeignKeyConstraint(["subject_id"], ["subject.id"], name="fk_rollup_day_subject"),
    )
    op.create_index("ix_rollup_day_subject", "rollup_day", ["subject_id", "day"])
