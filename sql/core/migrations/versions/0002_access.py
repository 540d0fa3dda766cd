"""Keys to the results service, and what was revoked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.migrations.oracle_text import oracle_text

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _text(length: int) -> sa.types.TypeEngine[str]:
    # It sorts by code points everywhere, whatever language a PostgreSQL database is in.
    kind = sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
    return kind.with_variant(oracle_text(length), "oracle")


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "access_key",
        sa.Column("kid", _text(128), nullable=False),
        sa.Column("role", _text(128), nullable=False),
        sa.Column("name", _text(4000), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("revoked_us", sa.BigInteger(), nullable=True),
        sa.Column("made_with", _text(128), nullable=False),
        sa.PrimaryKeyConstraint("kid", name="pk_access_key"),
    )
    op.create_table(
        "access_revocation",
        sa.Column("scope", _text(128), nullable=False),
        sa.Column("subject", _text(128), nullable=False),
        sa.Column("revoked_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "subject", name="pk_access_revocation"),
    )
