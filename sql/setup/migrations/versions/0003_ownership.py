"""Owners of campaigns, receipts of uploads, and an audit trail of later changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import StoredText

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, and give each key the group of its holder's name."""
    op.create_table(
        "campaign_owner",
        sa.Column("campaign_id", StoredText(128), nullable=False),
        sa.Column("owner", StoredText(4000), nullable=False),
        sa.Column("claimed_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("campaign_id", name="pk_campaign_owner"),
    )
    key = ("subject", "kind", "key_id", "address")
    lengths = (128, 64, 128, 64)
    op.create_table(
        "receipt",
        *(
            sa.Column(name, StoredText(length), nullable=False)
            for name, length in zip(key, lengths, strict=True)
        ),
        sa.Column("campaign_id", StoredText(128), nullable=False),
        sa.Column("received_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(*key, name="pk_receipt"),
    )
    op.create_index("ix_receipt_campaign", "receipt", ["campaign_id"])
    op.create_index("ix_receipt_key", "receipt", ["key_id", "received_us"])
    op.create_table(
        "audit_entry",
        sa.Column("id", StoredText(128), nullable=False),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.Column("action", StoredText(64), nullable=False),
        sa.Column("actor", StoredText(4000), nullable=False),
        sa.Column("scope", StoredText(4000), nullable=False),
        sa.Column("reason", StoredText(4000)),
        sa.Column("measurements", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_entry"),
    )
    op.add_column("replica", sa.Column("owner", StoredText(4000)))
    op.add_column("access_key", sa.Column("owner", StoredText(4000)))
    op.execute("UPDATE access_key SET owner = name")
    with op.batch_alter_table("access_key") as batch:
        batch.alter_column("owner", existing_type=StoredText(4000), nullable=False)
