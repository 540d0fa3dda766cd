"""Tables of the results database, as SQLAlchemy Core metadata.

Every entry of the metric catalogue has one column: in the measurement table or in the table of its
dimension (:mod:`treehammer.sql.core.measurement_columns`). Lists of passes share the column ``passes``
(:mod:`treehammer.sql.core.measurement_columns`). Most other tables have a row class in
:mod:`treehammer.sql.core.rows` or :mod:`treehammer.sql.core.watch_rows`, whose fields are their
columns. SQLite, PostgreSQL and Oracle can hold the same rows: names have at most 30 characters,
times are whole microseconds since 1970 UTC, and empty text is NULL, as on Oracle. For
Oracle, tests compile statements only; see docs/databases.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args, get_type_hints

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from treehammer.collectors.record.metric_catalogue import (
    CATALOGUE,
    MAX_IDENTITY,
    MAX_TEXT,
    MAX_WORD,
    METRICS_BY_NAME,
    Metric,
)
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.sql.core import rows, watch_rows
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.column_types import REAL, DocumentText, LongText, NumberList, StoredText
from treehammer.sql.core.evidence import Evidence
from treehammer.sql.core.measurement_columns import DIMENSION_OF, DIMENSIONS

#: Type of the catalogue, or name of the type of a row's field -> type of the column.
_TYPES: dict[str, TypeEngine[Any]] = {
    "int": sa.BigInteger(),
    "float": REAL,
    "bool": sa.Boolean(),
    "ints": NumberList(),
}

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
    }
)


def _metric_column(metric: Metric) -> sa.Column[Any]:
    # Text other than identities may be '', which is stored as NULL.
    optional_text = metric.type == "text" and not metric.is_identity
    kind = _TYPES.get(metric.type) or (
        LongText() if metric.max_length > MAX_TEXT else StoredText(metric.max_length)
    )
    return sa.Column(
        metric.name,
        kind,
        primary_key=metric.name == "measurement_id",
        nullable=optional_text or not metric.required,
    )


def _row_table(
    name: str,
    row_class: type[rows.StoredRow],
    *items: sa.Column[Any] | sa.Index,
    key: tuple[str, ...] = ("id",),
    references: Mapping[str, sa.Column[Any]] = {},
    column_names: Mapping[str, str] = {},
) -> sa.Table:
    """Create the table of a row class.

    Args:
        name: name of the table.
        row_class: its fields are the columns.
        items: further columns, and indexes.
        key: fields of the primary key.
        references: columns of other tables that fields refer to.
        column_names: names of columns in the database, where a field's name is reserved.
    """
    columns = []
    for field, hint in get_type_hints(row_class, include_extras=True).items():
        kind, nullable = _field_column_type(hint)
        columns.append(
            sa.Column(
                column_names.get(field, field),
                kind,
                *([sa.ForeignKey(references[field])] if field in references else ()),
                key=field,
                primary_key=field in key,
                autoincrement=False,
                nullable=nullable and field not in key,
            )
        )
    return sa.Table(name, metadata, *columns, *items)


def _line_column() -> sa.Column[Any]:
    """Return the sort key of a row of an operation or a comparison."""
    return sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False)


def _field_column_type(hint: Any) -> tuple[TypeEngine[Any], bool]:
    """Return the type of a row field's column, and whether it may be NULL."""
    kind, *details = get_args(hint) or (hint,)
    if issubclass(kind, Evidence | CampaignPlan):
        return DocumentText(kind), True
    if kind is str:
        text = StoredText(details[0]) if details[0] else LongText()
        return text, rows.REQUIRED not in details
    return _TYPES[kind.__name__], type(None) in details


dimension_tables = {
    dimension.name: sa.Table(
        dimension.name,
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        *(_metric_column(METRICS_BY_NAME[name]) for name in dimension.columns),
    )
    for dimension in DIMENSIONS
}

measurement = sa.Table(
    "measurement",
    metadata,
    *(
        _metric_column(metric)
        for metric in CATALOGUE
        if metric.name not in DIMENSION_OF and metric.type != "floats"
    ),
    sa.Column("passes", sa.LargeBinary),
    *(
        sa.Column(key, sa.BigInteger, sa.ForeignKey(f"{name}.id"), nullable=False)
        for name, key in ((dimension.name, dimension.key) for dimension in DIMENSIONS)
    ),
)

#: Order of every listing and export.
MEASUREMENT_ORDER = (
    measurement.c.campaign_id,
    measurement.c.job_id,
    measurement.c.attempt,
    measurement.c.round,
    measurement.c.position,
    measurement.c.measurement_id,
)
sa.Index("ix_measurement_order", *MEASUREMENT_ORDER)
# Counts and last start of a campaign, read from the index and the few subjects alone.
sa.Index(
    "ix_measurement_counts",
    measurement.c.campaign_id,
    measurement.c.subject_id,
    measurement.c.kind,
    measurement.c.failure_class,
    measurement.c.plausible,
    measurement.c.started_us,
)
# Measurements of some days, read from the index alone.
sa.Index(
    "ix_measurement_day",
    measurement.c.day,
    measurement.c.subject_id,
    measurement.c.kind,
    measurement.c.plausible,
    measurement.c.failure_class,
    measurement.c.eff_job,
    measurement.c.cpu_per_event_s,
    measurement.c.wall_per_event_s,
)
# Measurements of some subjects, the last one of a day, and means by node.
sa.Index(
    "ix_measurement_subject",
    measurement.c.subject_id,
    measurement.c.day,
    measurement.c.kind,
    measurement.c.plausible,
    measurement.c.failure_class,
    measurement.c.started_us,
    measurement.c.eff_job,
    measurement.c.cpu_per_event_s,
    measurement.c.wall_per_event_s,
    measurement.c.node_id,
)
# History of a series across addresses and labels of its door.
sa.Index("ix_subject_series", dimension_tables["subject"].c.series)

#: Metrics that roll-ups sum by day.
ROLLUP_METRICS = (
    "eff_job",
    "eff_payload",
    "eff_loop",
    "eff_access",
    "cpu_per_event_s",
    "wall_per_event_s",
    "event_rate_hz",
    "access_rate_hz",
    "setup_wall_s",
    "stagein_wall_s",
    "payload_wall_s",
    "payload_run_queue_s",
    "loop_wall_s",
    "loop_cpu_s",
    "first_byte_s",
    "bytes_read",
    "bytes_read_extra",
    "read_calls",
    "read_fraction",
    "kernel_read_bytes",
    "cache_efficiency_rel",
    "perfstats_read_s",
    "perfstats_unzip_s",
    "tree_peak_rss_bytes",
    "retries",
    "door_rtt_s",
    "load1_start",
)


#: Columns of a roll-up's last good measurement: its start, and its rows of dimensions.
LAST_COLUMNS = ("last_us", "software_id", "node_id", "storage_id")


class RollupColumnNames(NamedTuple):
    """Names of a metric's roll-up columns: count, sum and sum of squares."""

    value_count: str
    total: str
    squares: str


def rollup_column_names(name: str) -> RollupColumnNames:
    """Return the roll-up columns of a metric of :data:`ROLLUP_METRICS`."""
    return RollupColumnNames(f"n_{name}", f"s_{name}", f"q_{name}")


def _rollup_owner_columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("day", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column(
            "subject_id",
            sa.BigInteger,
            sa.ForeignKey(dimension_tables["subject"].c.id),
            primary_key=True,
            autoincrement=False,
        ),
    )


rollup_day = sa.Table(
    "rollup_day",
    metadata,
    *_rollup_owner_columns(),
    sa.Column("kind", StoredText(MAX_WORD), primary_key=True),
    sa.Column("outcome", StoredText(MAX_WORD), primary_key=True),
    sa.Column("measurements", sa.BigInteger, nullable=False),
    # For the history of sites, whose measurements lie scattered; NULL for other outcomes.
    *(sa.Column(name, sa.BigInteger) for name in LAST_COLUMNS),
    *(
        sa.Column(column, kind, nullable=False)
        for name in ROLLUP_METRICS
        for column, kind in zip(rollup_column_names(name), (_TYPES["int"], REAL, REAL), strict=True)
    ),
    # Histograms merge by adding their bins, which gives percentiles of any selection.
    sa.Column("read_latency_hist", NumberList, nullable=False),
    sa.Index("ix_rollup_day_subject", "subject_id", "day"),
)

extra = _row_table(
    "extra",
    rows.ExtraRow,
    key=("measurement_id", "name"),
    references={"measurement_id": measurement.c.measurement_id},
)

quality_flag = _row_table(
    "quality_flag",
    rows.FlagRow,
    key=("measurement_id", "kind"),
    references={"measurement_id": measurement.c.measurement_id},
)

# Steps of load tests; ``line`` preserves their order in the measurement.
operation = sa.Table(
    "operation",
    metadata,
    sa.Column(
        "measurement_id",
        StoredText(MAX_IDENTITY),
        sa.ForeignKey(measurement.c.measurement_id),
        primary_key=True,
    ),
    _line_column(),
    *map(_metric_column, OPERATION_METRICS),
)

#: Counts that roll-ups of operations sum by day.
ROLLUP_COUNTS = ("scheduled", "done", "failed", "late", "bytes")

# Steps in which the load generator was the limit are only counted, in ``limited_steps``.
rollup_operation = sa.Table(
    "rollup_operation",
    metadata,
    *_rollup_owner_columns(),
    *(
        sa.Column(name, StoredText(MAX_WORD), primary_key=True)
        for name in ("outcome", "side", "operation")
    ),
    *(
        sa.Column(name, sa.BigInteger, nullable=False)
        for name in ("steps", "limited_steps", *ROLLUP_COUNTS)
    ),
    sa.Column("latency", LongText),
    sa.Index("ix_rollup_operation_subject", "subject_id", "day"),
)


def _plan_column(name: str, kind: TypeEngine[Any]) -> sa.Column[Any]:
    """Create a column with a property of the campaign's plan, which queries select by."""
    return sa.Column(
        name,
        kind,
        default=lambda context: getattr(context.get_current_parameters()["plan"], name),
    )


campaign = _row_table(
    "campaign",
    rows.CampaignRow,
    _plan_column("has_own_metrics", sa.Boolean()),
    _plan_column("is_sequential", sa.Boolean()),
    _plan_column("axes", StoredText(MAX_TEXT)),
    _plan_column("submitter", StoredText(MAX_TEXT)),
    sa.Index("ix_campaign_created", "created_us"),
)

job = _row_table(
    "job",
    rows.JobRow,
    sa.Index("ix_job_campaign", "campaign_id", "site"),
    # Unfinished jobs: few among very many.
    sa.Index("ix_job_state", "state", "campaign_id"),
    references={"campaign_id": campaign.c.id},
)

attempt = _row_table(
    "attempt",
    rows.AttemptRow,
    key=("job_id", "number"),
    references={"job_id": job.c.id},
    # NUMBER is a reserved word on Oracle.
    column_names={"number": "attempt"},
)

# FILE is a reserved word on Oracle.
replica = _row_table("replica", rows.ReplicaRow, column_names={"file": "file_name"})


pair = _row_table("pair", rows.PairRow, _line_column(), key=("comparison_id",))

verdict = _row_table(
    "verdict",
    rows.VerdictRow,
    _line_column(),
    # Latest comparisons, by the first line of each.
    sa.Index("ix_verdict_latest", "line", "created_us", "comparison_id"),
    key=("comparison_id",),
)

# FUNCTION is a reserved word on PostgreSQL.
instruction_count = _row_table(
    "instruction_count",
    rows.InstructionRow,
    sa.Index("ix_instruction_count_test", "test_hash"),
    key=("count_id", "line"),
    column_names={"function": "function_name"},
)

access_key = _row_table("access_key", rows.AccessKeyRow, key=("key_id",))

campaign_owner = _row_table("campaign_owner", rows.CampaignOwnerRow, key=("campaign_id",))

receipt = _row_table(
    "receipt",
    rows.ReceiptRow,
    sa.Index("ix_receipt_campaign", "campaign_id"),
    sa.Index("ix_receipt_key", "key_id", "received_us"),
    key=("subject", "kind", "key_id", "address"),
)

# AUDIT is a reserved word on Oracle.
audit_entry = _row_table("audit_entry", rows.AuditRow)

access_revocation = _row_table("access_revocation", rows.RevocationRow, key=("scope", "subject"))

read_session = _row_table("read_session", rows.ReadSession, key=("token_hash",))

status_change = _row_table(
    "status_change", watch_rows.StatusChangeRow, sa.Index("ix_status_change_since", "since_us")
)

status_rule_set = _row_table("status_rule_set", watch_rows.RuleSetRow, key=("version",))

site_downtime = _row_table("site_downtime", watch_rows.DowntimeRow)

site_override = _row_table("site_override", watch_rows.OverrideRow)

alarm_message = _row_table(
    "alarm_message",
    watch_rows.AlarmMessage,
    sa.Index("ix_alarm_message_due", "delivery", "due_us"),
    sa.Index("ix_alarm_message_recorded", "recorded_us"),
)

release_check = _row_table(
    "release_check",
    watch_rows.ReleaseCheck,
    sa.Index("ix_release_check_campaign", "campaign_id"),
    sa.Index("ix_release_check_state", "state", "changed_us"),
)

patrol_lease = _row_table("patrol_lease", watch_rows.PatrolLeaseRow, key=("name",))

patrol_entry = _row_table("patrol_entry", watch_rows.PatrolEntryRow, key=("name",))

patrol_start = _row_table(
    "patrol_start",
    watch_rows.PatrolStartRow,
    sa.Index("ix_patrol_start_campaign", "campaign_id", unique=True),
    sa.Index("ix_patrol_start_state", "state", "entry"),
    key=("entry", "occasion"),
)

patrol_charge = _row_table(
    "patrol_charge",
    watch_rows.PatrolChargeRow,
    sa.Index("ix_patrol_charge_day", "day", "site"),
    key=("campaign_id", "site"),
)

patrol_site = _row_table("patrol_site", watch_rows.PatrolSiteRow, key=("site",))

watched_series = _row_table(
    "watched_series",
    watch_rows.WatchedSeriesRow,
    # WORK is a reserved word on Oracle, RELEASE on PostgreSQL.
    column_names={"work": "work_key", "release": "root_release"},
)

watched_day = _row_table(
    "watched_day",
    watch_rows.WatchedDayRow,
    sa.Index("ix_watched_day_day", "day"),
    key=("series_id", "day"),
    references={"series_id": watched_series.c.id},
)

change_point = _row_table(
    "change_point", watch_rows.ChangePointRow, sa.Index("ix_change_point_day", "day")
)
