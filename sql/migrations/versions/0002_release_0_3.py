"""Changes after release 0.2.0: new columns, reasons of implausible measurements, sessions of keys alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import REAL, LongText, StoredText

revision = "0.3.0"
down_revision = "0.2.0"
branch_labels = None
depends_on = None

_TYPES: dict[str, Any] = {
    "text": StoredText(4000),
    "int": sa.BigInteger(),
    "real": REAL,
    "bool": sa.Boolean(),
}

# Table -> its new columns, each NAME:TYPE, all of which may be NULL.
_COLUMNS = {
    "campaign": "has_own_metrics:bool is_sequential:bool axes:text submitter:text",
    "change_point": "until_day:int",
    "measurement": """
        energy_j:real energy_idle_w:real energy_idle_fraction:real energy_per_event_j:real
        origin_rtt_s:real server_cache_stored_bytes:int server_cache_asked_bytes:int
        server_cache_fetched_bytes:int own_text_bytes:int huge_page_bytes:int
        raw_clock_ratio:real
    """,
    "node": "architecture:text energy_missing:text node_lacks:text",
    "operation": "held:int",
    "release_check": "server:text",
    "software": "loop_compiler:text loop_fallback:text",
    "storage": "origin_version:text distance_method:text cache_block_kib:int",
}

# Release 0.2.0 kept flags as text after the reasons of the recording.
_LATER_FLAG = re.compile("(?:^|; )(bad replica|quarantined|outlier): ")
_RECORDED, _ORIGINATOR = "recorded", "upgrade"
_CHUNK_ROWS = 1000


def upgrade() -> None:
    """Add columns and the table of flags, fill it, and end sessions that no key opened."""
    for table, columns in _COLUMNS.items():
        for column in columns.split():
            name, _, kind = column.partition(":")
            op.add_column(table, sa.Column(name, _TYPES[kind]))
    op.create_table(
        "quality_flag",
        sa.Column("measurement_id", StoredText(128), nullable=False),
        sa.Column("kind", StoredText(64), nullable=False),
        sa.Column("reason", LongText()),
        sa.Column("set_by", StoredText(4000), nullable=False),
        sa.Column("set_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("measurement_id", "kind", name="pk_quality_flag"),
        sa.ForeignKeyConstraint(
            ["measurement_id"],
            ["measurement.measurement_id"],
            name="fk_quality_flag_measurement",
        ),
    )
    _fill_flags(op.get_bind())
    _fill_plan_columns(op.get_bind())
    op.execute(sa.text("DELETE FROM read_session WHERE key_id IS NULL"))
    with op.batch_alter_table("read_session") as batch:
        batch.alter_column("key_id", existing_type=StoredText(128), nullable=False)
        batch.drop_column("identity")


def _fill_plan_columns(connection: sa.Connection) -> None:
    """Store what queries need of each campaign's plan; an unreadable plan has none of it."""
    campaign = sa.table(
        "campaign",
        sa.column("id", StoredText(128)),
        sa.column("plan", LongText()),
        *(sa.column(name, sa.Boolean()) for name in ("has_own_metrics", "is_sequential")),
        *(sa.column(name, StoredText(4000)) for name in ("axes", "submitter")),
    )
    update = sa.update(campaign).where(campaign.c.id == sa.bindparam("key"))
    query = sa.select(campaign.c.id, campaign.c.plan)
    rows = [{"key": id_, **_describe_plan(plan)} for id_, plan in connection.execute(query)]
    for start in range(0, len(rows), _CHUNK_ROWS):
        connection.execute(update, rows[start : start + _CHUNK_ROWS])


def _describe_plan(text: str | None) -> dict[str, Any]:
    try:
        plan = json.loads(text or "{}")
        definition = plan.get("definition", {})
        metrics = definition.get("metrics", {}).values()
        axes = definition.get("axes", {})
        return {
            "has_own_metrics": bool(definition.get("headline"))
            or any(metric.get("exact") for metric in metrics),
            "is_sequential": plan.get("until_decided") is not None,
            "axes": " ".join(sorted(axis for axis, values in axes.items() if len(values) > 1)),
            "submitter": str(plan.get("submitter", "")),
        }
    except (ValueError, AttributeError, TypeError):
        return dict.fromkeys(("has_own_metrics", "is_sequential", "axes", "submitter"))


def _fill_flags(connection: sa.Connection) -> None:
    """Store a row for each flag of the implausible measurements."""
    measurement = sa.table(
        "measurement",
        sa.column("measurement_id", StoredText(128)),
        sa.column("plausible", sa.Boolean()),
        sa.column("implausible_reasons", LongText()),
        sa.column("ended_us", sa.BigInteger()),
    )
    flag = sa.table(
        "quality_flag",
        *(sa.column(name, StoredText(4000)) for name in ("measurement_id", "kind", "set_by")),
        sa.column("reason", LongText()),
        sa.column("set_us", sa.BigInteger()),
    )
    columns = measurement.c
    query = sa.select(columns.measurement_id, columns.implausible_reasons, columns.ended_us).where(
        sa.not_(columns.plausible),
        # An interrupted upgrade of Oracle may have stored some.
        columns.measurement_id.not_in(sa.select(flag.c.measurement_id)),
    )
    flags = [values for row in connection.execute(query).all() for values in _split_flags(*row)]
    for start in range(0, len(flags), _CHUNK_ROWS):
        connection.execute(sa.insert(flag), flags[start : start + _CHUNK_ROWS])


def _split_flags(
    measurement_id: str, reasons: str | None, ended_us: int
) -> Iterator[dict[str, Any]]:
    """Yield the flags of a measurement; their order in the text is that of their times."""
    recorded, *later = _LATER_FLAG.split(reasons or "")
    flags = [(_RECORDED, recorded)] if recorded or not later else []
    flags += zip(later[::2], later[1::2], strict=True)
    for place, (kind, reason) in enumerate(flags):
        yield {
            "measurement_id": measurement_id,
            "kind": kind,
            "reason": reason or None,
            "set_by": _ORIGINATOR,
            "set_us": ended_us + place,
        }
