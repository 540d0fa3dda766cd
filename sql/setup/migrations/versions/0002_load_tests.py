"""Load tests: operations, their roll-ups, the common start of jobs, and the storage site."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import REAL, LongText, StoredText

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of operations, and add common start and storage site."""
    _create_operations()
    _create_operation_rollups()
    _add_common_start()
    _add_storage_site()


def _create_operations() -> None:
    op.create_table(
        "operation",
        sa.Column("measurement_id", StoredText(128), nullable=False),
        _count("line"),
        sa.Column("side", StoredText(64)),
        sa.Column("operation", StoredText(32), nullable=False),
        sa.Column("server", StoredText(4000)),
        _count("step"),
        _count("step_start_us"),
        sa.Column("step_s", REAL, nullable=False),
        *map(_count, ("clients", "scheduled", "done", "failed", "late")),
        sa.Column("lateness_max_s", REAL, nullable=False),
        sa.Column("generator_cpu", REAL, nullable=False),
        sa.Column("generator_limited", sa.Boolean, nullable=False),
        _count("bytes"),
        sa.Column("failures", StoredText(4000)),
        sa.Column("latency", LongText),
        sa.PrimaryKeyConstraint("measurement_id", "line", name="pk_operation"),
        sa.ForeignKeyConstraint(
            ["measurement_id"], ["measurement.measurement_id"], name="fk_operation_measurement"
        ),
    )


def _create_operation_rollups() -> None:
    key = ("day", "subject_id", "outcome", "side", "operation")
    counts = ("steps", "limited_steps", "scheduled", "done", "failed", "late", "bytes")
    op.create_table(
        "rollup_operation",
        *map(_count, key[:2]),
        *(sa.Column(name, StoredText(64), nullable=False) for name in key[2:]),
        *map(_count, counts),
        sa.Column("latency", LongText),
        sa.PrimaryKeyConstraint(*key, name="pk_rollup_operation"),
        sa.ForeignKeyConstraint(["subject_id"], ["subject.id"], name="fk_rollup_operation_subject"),
    )
    op.create_index("ix_rollup_operation_subject", "rollup_operation", ["subject_id", "day"])


def _add_common_start() -> None:
    op.add_column("measurement", sa.Column("start_state", StoredText(64)))
    for name in (
        "load_index",
        "load_jobs",
        "start_planned_us",
        "start_present_jobs",
        "load_started_us",
    ):
        op.add_column("measurement", sa.Column(name, sa.BigInteger()))
    for name in ("start_offset_s", "start_wait_s", "clock_offset_s", "clock_error_s"):
        op.add_column("measurement", sa.Column(name, REAL))


def _add_storage_site() -> None:
    op.add_column("subject", sa.Column("storage_site", StoredText(4000)))
    op.execute("UPDATE subject SET storage_site = site")


def _count(name: str) -> sa.Column[int]:
    # Integer keys are computed, never assigned by the database.
    return sa.Column(name, sa.BigInteger(), nullable=False, autoincrement=False)
