"""Daily series that are watched, and the change points found in them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import REAL, LongText, StoredText

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    texts = (
        *("test_name", "work_key", "variant_label", "site", "storage_site", "door"),
        *("root_release", "control", "host"),
    )
    op.create_table(
        "watched_series",
        sa.Column("id", StoredText(128), nullable=False),
        sa.Column("kind", StoredText(64), nullable=False),
        sa.Column("metric", StoredText(64), nullable=False),
        *(sa.Column(name, StoredText(4000)) for name in texts),
        sa.PrimaryKeyConstraint("id", name="pk_watched_series"),
    )
    op.create_table(
        "watched_day",
        sa.Column("series_id", StoredText(128), nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("value", REAL, nullable=False),
        sa.Column("squares", REAL, nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("context", LongText()),
        sa.PrimaryKeyConstraint("series_id", "day", name="pk_watched_day"),
        sa.ForeignKeyConstraint(
            ["series_id"], ["watched_series.id"], name="fk_watched_day_watched_series"
        ),
    )
    op.create_index("ix_watched_day_day", "watched_day", ["day"])
    words = ("state", "kind", "metric")
    op.create_table(
        "change_point",
        sa.Column("id", StoredText(128), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("found_us", "updated_us", "day")
        ),
        *(sa.Column(name, StoredText(64), nullable=False) for name in words),
        sa.Column("test_name", StoredText(4000)),
        sa.Column("control", StoredText(4000)),
        sa.Column("attribution", StoredText(64), nullable=False),
        sa.Column("subject", StoredText(4000)),
        *(sa.Column(name, REAL, nullable=False) for name in ("effect", "low", "high", "p_value")),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("days_before", "days_after")
        ),
        sa.Column("seconded", sa.Boolean(), nullable=False),
        sa.Column("cause", LongText()),
        sa.Column("evidence", LongText()),
        sa.PrimaryKeyConstraint("id", name="pk_change_point"),
    )
    op.create_index("ix_change_point_day", "change_point", ["day"])
