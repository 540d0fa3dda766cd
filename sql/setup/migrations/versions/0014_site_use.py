"""The states of sites alone decide on their use: the patrol's own back-off is gone."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the columns of the back-off."""
    for column in ("failures", "probe_us", "changed_us", "reason"):
        op.drop_column("patrol_site", column)
