"""Changes of the states of sites, with the rules, downtimes and overrides behind them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import LongText, StoredText

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "status_change",
        sa.Column("id", StoredText(128), nullable=False),
        sa.Column("subject_kind", StoredText(64), nullable=False),
        sa.Column("site", StoredText(4000)),
        sa.Column("rule", StoredText(64)),
        sa.Column("state", StoredText(64), nullable=False),
        sa.Column("previous", StoredText(64), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.Column("decided_us", sa.BigInteger(), nullable=False),
        sa.Column("cause", StoredText(64), nullable=False),
        sa.Column("rule_version", StoredText(64)),
        sa.Column("reason", StoredText(4000)),
        sa.Column("evidence", LongText()),
        sa.Column("superseded_us", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_status_change"),
    )
    op.create_index("ix_status_change_since", "status_change", ["since_us"])
    op.create_table(
        "status_rule_set",
        sa.Column("version", StoredText(64), nullable=False),
        sa.Column("document", LongText()),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("evaluated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_status_rule_set"),
    )
    op.create_table(
        "site_downtime",
        sa.Column("id", StoredText(128), nullable=False),
        sa.Column("source", StoredText(4000)),
        sa.Column("site", StoredText(4000)),
        sa.Column("subject_kind", StoredText(64)),
        sa.Column("starts_us", sa.BigInteger(), nullable=False),
        sa.Column("ends_us", sa.BigInteger(), nullable=False),
        sa.Column("severity", StoredText(64), nullable=False),
        sa.Column("description", StoredText(4000)),
        sa.Column("url", StoredText(4000)),
        sa.Column("imported_us", sa.BigInteger(), nullable=False),
        sa.Column("withdrawn_us", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_site_downtime"),
    )
    op.create_table(
        "site_override",
        sa.Column("id", StoredText(128), nullable=False),
        sa.Column("site", StoredText(4000)),
        sa.Column("subject_kind", StoredText(64)),
        sa.Column("state", StoredText(64), nullable=False),
        sa.Column("who", StoredText(4000), nullable=False),
        sa.Column("why", StoredText(4000), nullable=False),
        sa.Column("made_us", sa.BigInteger(), nullable=False),
        sa.Column("until_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger()),
        sa.Column("ended_by", StoredText(4000)),
        sa.PrimaryKeyConstraint("id", name="pk_site_override"),
    )
