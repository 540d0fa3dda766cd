"""Find the jobs that are not over without reading all others."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_index("ix_job_state", "job", ["state", "campaign_id"])
