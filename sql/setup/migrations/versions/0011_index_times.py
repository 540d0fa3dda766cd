"""Times and nodes in two indexes, which find the last measurement of a day or campaign at once."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_measurement_counts": (
        *("campaign_id", "subject_id", "kind", "failure_class", "plausible", "started_us"),
    ),
    "ix_measurement_subject": (
        *("subject_id", "day", "kind", "plausible", "failure_class", "started_us"),
        *("eff_job", "cpu_per_event_s", "wall_per_event_s", "node_id"),
    ),
}


def upgrade() -> None:
    """Replace the indexes."""
    for name, columns in _INDEXES.items():
        op.drop_index(name, "measurement")
        op.create_index(name, "measurement", [*columns])
