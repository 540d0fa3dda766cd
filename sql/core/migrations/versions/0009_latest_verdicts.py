"""Find the latest comparisons by the first verdict of each."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_index("ix_verdict_latest", "verdict", ["line", "created_us", "comparison_id"])
