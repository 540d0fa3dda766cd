"""Events and messages of alarms in one table, in place of three."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import LongText, StoredText

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the tables; the present states are recorded as new ones."""
    for name in ("alarm_message", "alarm_event", "alarm_state"):
        op.drop_table(name)
    op.create_table(
        "alarm_message",
        sa.Column("id", StoredText(128), nullable=False),
        sa.Column("event_id", StoredText(128), nullable=False),
        sa.Column("kind", StoredText(64), nullable=False),
        sa.Column("subject_kind", StoredText(64), nullable=False),
        sa.Column("subject", StoredText(4000)),
        sa.Column("state", StoredText(64), nullable=False),
        sa.Column("severity", StoredText(64), nullable=False),
        sa.Column("happened_us", sa.BigInteger(), nullable=False),
        sa.Column("recorded_us", sa.BigInteger(), nullable=False),
        sa.Column("title", StoredText(4000), nullable=False),
        sa.Column("text", LongText()),
        sa.Column("evidence", StoredText(4000)),
        sa.Column("channel", StoredText(64)),
        sa.Column("recipient", StoredText(4000)),
        sa.Column("delivery", StoredText(64)),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("error", StoredText(4000)),
        sa.PrimaryKeyConstraint("id", name="pk_alarm_message"),
    )
    op.create_index("ix_alarm_message_due", "alarm_message", ["delivery", "due_us"])
    op.create_index("ix_alarm_message_recorded", "alarm_message", ["recorded_us"])
