"""States, events and messages of alarms, and checks of releases.

The three tables of alarms and the table of checks are new; nothing else changes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import REAL, LongText, StoredText

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "alarm_state",
        sa.Column("id", StoredText(128), nullable=False),
        sa.Column("kind", StoredText(64), nullable=False),
        sa.Column("subject", StoredText(4000)),
        sa.Column("state", StoredText(64), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alarm_state"),
    )
    op.create_table(
        "alarm_event",
        sa.Column("id", StoredText(128), nullable=False),
        sa.Column("kind", StoredText(64), nullable=False),
        sa.Column("subject_kind", StoredText(64), nullable=False),
        sa.Column("subject", StoredText(4000)),
        sa.Column("state", StoredText(64), nullable=False),
        sa.Column("severity", StoredText(64), nullable=False),
        sa.Column("happened_us", sa.BigInteger(), nullable=False),
        sa.Column("title", StoredText(4000), nullable=False),
        sa.Column("text", LongText()),
        sa.Column("evidence", StoredText(4000)),
        sa.PrimaryKeyConstraint("id", name="pk_alarm_event"),
    )
    op.create_index("ix_alarm_event_happened", "alarm_event", ["happened_us"])
    op.create_table(
        "alarm_message",
        sa.Column("id", StoredText(128), nullable=False),
        sa.Column("event_id", StoredText(128), nullable=False),
        sa.Column("channel", StoredText(64), nullable=False),
        sa.Column("recipient", StoredText(4000)),
        sa.Column("state", StoredText(64), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("leased_until_us", sa.BigInteger(), nullable=False),
        sa.Column("sent_us", sa.BigInteger()),
        sa.Column("error", StoredText(4000)),
        sa.PrimaryKeyConstraint("id", name="pk_alarm_message"),
        sa.ForeignKeyConstraint(
            ["event_id"], ["alarm_event.id"], name="fk_alarm_message_alarm_event"
        ),
    )
    op.create_index("ix_alarm_message_due", "alarm_message", ["state", "due_us"])
    op.create_table(
        "release_check",
        sa.Column("id", StoredText(128), nullable=False),
        sa.Column("campaign_id", StoredText(128), nullable=False),
        sa.Column("test_name", StoredText(4000)),
        sa.Column("a", StoredText(4000)),
        sa.Column("b", StoredText(4000)),
        sa.Column("state", StoredText(64), nullable=False),
        sa.Column("comparison_id", StoredText(128)),
        sa.Column("compared", sa.BigInteger(), nullable=False),
        sa.Column("slower", sa.BigInteger(), nullable=False),
        sa.Column("effect", REAL),
        sa.Column("text", LongText()),
        sa.Column("reruns", sa.BigInteger(), nullable=False),
        sa.Column("rerun_id", StoredText(128)),
        sa.Column("checked_us", sa.BigInteger(), nullable=False),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_release_check"),
    )
    op.create_index("ix_release_check_campaign", "release_check", ["campaign_id"])
    op.create_index("ix_release_check_state", "release_check", ["state", "changed_us"])
