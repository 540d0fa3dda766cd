"""Leader, entries, starts, charges and sites of patrols."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import REAL, LongText, StoredText

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "patrol_lease",
        sa.Column("name", StoredText(64), nullable=False),
        sa.Column("holder", StoredText(4000), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("acquired_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_patrol_lease"),
    )
    op.create_table(
        "patrol_entry",
        sa.Column("name", StoredText(128), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("test", StoredText(4000)),
        sa.Column("follows", StoredText(4000)),
        sa.Column("sites", StoredText(4000)),
        sa.Column("every_s", sa.BigInteger()),
        sa.Column("in_flight", sa.BigInteger(), nullable=False),
        sa.Column("next_us", sa.BigInteger()),
        sa.Column("note", LongText()),
        sa.Column("checked_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_patrol_entry"),
    )
    _create_starts()
    op.create_table(
        "patrol_site",
        sa.Column("site", StoredText(128), nullable=False),
        sa.Column("cpu_limit_s", REAL),
        sa.Column("bytes_limit", sa.BigInteger()),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("probe_us", sa.BigInteger()),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.Column("reason", LongText()),
        sa.PrimaryKeyConstraint("site", name="pk_patrol_site"),
    )


def _create_starts() -> None:
    op.create_table(
        "patrol_start",
        sa.Column("entry", StoredText(128), nullable=False),
        sa.Column("occasion", StoredText(128), nullable=False),
        sa.Column("campaign_id", StoredText(128)),
        sa.Column("state", StoredText(64), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("claimed_us", sa.BigInteger(), nullable=False),
        sa.Column("finished_us", sa.BigInteger()),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("holder", StoredText(4000), nullable=False),
        sa.Column("request", LongText()),
        sa.Column("message", LongText()),
        sa.PrimaryKeyConstraint("entry", "occasion", name="pk_patrol_start"),
    )
    op.create_index("ix_patrol_start_campaign", "patrol_start", ["campaign_id"], unique=True)
    op.create_index("ix_patrol_start_state", "patrol_start", ["state", "entry"])
    op.create_table(
        "patrol_charge",
        sa.Column("campaign_id", StoredText(128), nullable=False),
        sa.Column("site", StoredText(128), nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("reserved_cpu_s", REAL, nullable=False),
        sa.Column("reserved_bytes", sa.BigInteger(), nullable=False),
        sa.Column("used_cpu_s", REAL),
        sa.Column("used_bytes", sa.BigInteger()),
        sa.PrimaryKeyConstraint("campaign_id", "site", name="pk_patrol_charge"),
    )
    op.create_index("ix_patrol_charge_day", "patrol_charge", ["day", "site"])
