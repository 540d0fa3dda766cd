"""Take the columns away that dimensions and packed lists have replaced, and index what is left."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.migrations.shape import DIMENSIONS, PACKED, text

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_FIGURES = [
    "kind",
    "plausible",
    "failure_class",
    "eff_job",
    "cpu_per_event_s",
    "wall_per_event_s",
]
_INDEXES = {
    "ix_measurement_order": [
        "campaign_id",
        "job_id",
        "attempt",
        "round",
        "position",
        "measurement_id",
    ],
    "ix_measurement_counts": ["campaign_id", "subject_id", "kind", "failure_class", "plausible"],
    "ix_measurement_day": ["day", "subject_id", *_FIGURES],
    "ix_measurement_subject": ["subject_id", "day", *_FIGURES, "started_us"],
}
_OLD_INDEXES = (
    "ix_measurement_order",
    "ix_measurement_counts",
    "ix_measurement_site_day",
    "ix_measurement_series",
)


def upgrade() -> None:
    """Apply this revision."""
    if op.get_context().dialect.name != "oracle":  # where they never were
        for name in _OLD_INDEXES:
            op.drop_index(name, "measurement")
    gone = [*(name for columns in DIMENSIONS.values() for name in columns), *PACKED]
    with op.batch_alter_table("measurement") as batch:
        for name in gone:
            batch.drop_column(name)
        for name in ("kind", "failure_class"):
            batch.alter_column(name, existing_type=text(4000), type_=text(64))
        for name in DIMENSIONS:
            batch.alter_column(f"{name}_id", existing_type=sa.BigInteger(), nullable=False)
            batch.create_foreign_key(f"fk_measurement_{name}", name, [f"{name}_id"], ["id"])
    for name, columns in _INDEXES.items():
        op.create_index(name, "measurement", columns)
