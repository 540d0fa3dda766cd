"""Tables of the results database, as SQLAlchemy Core metadata.

Every entry of the metric catalogue has one column: in the measurement table or in the table of its
dimension (:mod:`treehammer.sql.core.dimensions`). Lists of passes share the column ``passes``
(:mod:`treehammer.sql.core.packing`). SQLite, PostgreSQL and Oracle can hold the same rows: names
have at most 30 characters, times are whole microseconds since 1970 UTC, and empty text is NULL, as
on Oracle. Tests run on SQLite, on PostgreSQL and on a substitute for Oracle; see docs/databases.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
from treehammer.sql.core.column_types import REAL, LongText, NumberList, StoredText
from treehammer.sql.core.dimensions import DIMENSION_OF, DIMENSIONS, Dimension

#: Longest name of a test-defined metric, in characters; see ``record.EXTRA_NAME``.
EXTRA_NAME_LENGTH = 64


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


def column_type(metric: Metric) -> TypeEngine[Any]:
    """Return the database type for values of a metric."""
    if metric.type == "text":
        return LongText() if metric.max_length > MAX_TEXT else StoredText(metric.max_length)
    return _TYPES[metric.type]


def _metric_column(metric: Metric) -> sa.Column[Any]:
    # Text other than identities may be '', which is stored as NULL.
    optional_text = metric.type == "text" and not metric.is_identity
    return sa.Column(
        metric.name,
        column_type(metric),
        primary_key=metric.name == "measurement_id",
        nullable=optional_text or not metric.required,
    )


def _dimension_table(dimension: Dimension) -> sa.Table:
    return sa.Table(
        dimension.name,
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        *(_metric_column(METRICS_BY_NAME[name]) for name in dimension.columns),
    )


def _dimension_key_column(dimension: Dimension) -> sa.Column[Any]:
    return sa.Column(
        dimension.key,
        sa.BigInteger,
        sa.ForeignKey(dimension_tables[dimension.name].c.id),
        nullable=False,
    )


dimension_tables = {dimension.name: _dimension_table(dimension) for dimension in DIMENSIONS}

measurement = sa.Table(
    "measurement",
    metadata,
    *(
        _metric_column(metric)
        for metric in CATALOGUE
        if metric.name not in DIMENSION_OF and metric.type != "floats"
    ),
    sa.Column("passes", sa.LargeBinary),
    *map(_dimension_key_column, DIMENSIONS),
)

# Order of every listing and export.
sa.Index(
    "ix_measurement_order",
    measurement.c.campaign_id,
    measurement.c.job_id,
    measurement.c.attempt,
    measurement.c.round,
    measurement.c.position,
    measurement.c.measurement_id,
)
# Counts of a campaign, read from the index and the few subjects alone.
sa.Index(
    "ix_measurement_counts",
    measurement.c.campaign_id,
    measurement.c.subject_id,
    measurement.c.kind,
    measurement.c.failure_class,
    measurement.c.plausible,
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
# Measurements of some subjects, and their history.
sa.Index(
    "ix_measurement_subject",
    measurement.c.subject_id,
    measurement.c.day,
    measurement.c.kind,
    measurement.c.plausible,
    measurement.c.failure_class,
    measurement.c.eff_job,
    measurement.c.cpu_per_event_s,
    measurement.c.wall_per_event_s,
    measurement.c.started_us,
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


class RollupColumnNames(NamedTuple):
    """Names of a metric's roll-up columns: count, sum and sum of squares."""

    value_count: str
    total: str
    squares: str


def rollup_column_names(name: str) -> RollupColumnNames:
    """Return the roll-up columns of a metric of :data:`ROLLUP_METRICS`."""
    return RollupColumnNames(f"n_{name}", f"s_{name}", f"q_{name}")


def _rollup_columns(name: str) -> tuple[sa.Column[Any], ...]:
    names = rollup_column_names(name)
    return (
        sa.Column(names.value_count, sa.BigInteger, nullable=False),
        sa.Column(names.total, REAL, nullable=False),
        sa.Column(names.squares, REAL, nullable=False),
    )


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


def _measurement_key_column() -> sa.Column[Any]:
    return sa.Column(
        "measurement_id",
        StoredText(MAX_IDENTITY),
        sa.ForeignKey(measurement.c.measurement_id),
        primary_key=True,
    )


rollup_day = sa.Table(
    "rollup_day",
    metadata,
    *_rollup_owner_columns(),
    sa.Column("kind", StoredText(MAX_WORD), primary_key=True),
    sa.Column("outcome", StoredText(MAX_WORD), primary_key=True),
    sa.Column("measurements", sa.BigInteger, nullable=False),
    *(column for name in ROLLUP_METRICS for column in _rollup_columns(name)),
    # Histograms merge by adding their bins, which gives percentiles of any selection.
    sa.Column("read_latency_hist", NumberList, nullable=False),
    sa.Index("ix_rollup_day_subject", "subject_id", "day"),
)

extra = sa.Table(
    "extra",
    metadata,
    _measurement_key_column(),
    sa.Column("name", StoredText(EXTRA_NAME_LENGTH), primary_key=True),
    sa.Column("value", REAL, nullable=False),
)

# Steps of load tests; ``line`` preserves their order in the measurement.
operation = sa.Table(
    "operation",
    metadata,
    _measurement_key_column(),
    sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),
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

campaign = sa.Table(
    "campaign",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("name", StoredText(MAX_TEXT)),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("repository", StoredText(MAX_TEXT)),
    sa.Column("ref", StoredText(MAX_TEXT)),
    sa.Column("commit_id", StoredText(MAX_IDENTITY)),
    sa.Column("dirty", sa.Boolean, nullable=False),
    sa.Column("test_name", StoredText(MAX_TEXT)),
    sa.Column("test_path", StoredText(MAX_TEXT)),
    sa.Column("plan", LongText),
    sa.Column("planned_jobs", sa.BigInteger, nullable=False),
    sa.Column("planned_measurements", sa.BigInteger, nullable=False),
    sa.Index("ix_campaign_created", "created_us"),
)

job = sa.Table(
    "job",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column(
        "campaign_id", StoredText(MAX_IDENTITY), sa.ForeignKey(campaign.c.id), nullable=False
    ),
    sa.Column("site", StoredText(MAX_TEXT)),
    sa.Column("door", StoredText(MAX_TEXT)),
    sa.Column("kind", StoredText(MAX_TEXT)),
    sa.Column("repeat", sa.BigInteger, nullable=False),
    sa.Column("label", StoredText(MAX_TEXT)),
    sa.Column("batch_system", StoredText(MAX_TEXT)),
    sa.Column("batch_id", StoredText(MAX_IDENTITY)),
    sa.Column("planned_measurements", sa.BigInteger, nullable=False),
    sa.Column("state", StoredText(MAX_TEXT)),
    sa.Index("ix_job_campaign", "campaign_id", "site"),
    # Unfinished jobs: few among very many.
    sa.Index("ix_job_state", "state", "campaign_id"),
)

attempt = sa.Table(
    "attempt",
    metadata,
    sa.Column("job_id", StoredText(MAX_IDENTITY), sa.ForeignKey(job.c.id), primary_key=True),
    # NUMBER is a reserved word on Oracle.
    sa.Column("attempt", sa.BigInteger, key="number", primary_key=True, autoincrement=False),
    sa.Column("state", StoredText(MAX_TEXT)),
    sa.Column("started_us", sa.BigInteger, nullable=False),
    sa.Column("ended_us", sa.BigInteger, nullable=False),
    sa.Column("exit_code", sa.BigInteger),
    sa.Column("failure_class", StoredText(MAX_TEXT)),
    sa.Column("message", LongText),
)

# FILE is a reserved word on Oracle.
replica = sa.Table(
    "replica",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("found_us", sa.BigInteger, nullable=False),
    sa.Column("dataset", StoredText(MAX_TEXT)),
    sa.Column("dataset_hash", StoredText(MAX_TEXT)),
    sa.Column("site", StoredText(MAX_TEXT)),
    sa.Column("door", StoredText(MAX_TEXT)),
    sa.Column("file_name", StoredText(MAX_TEXT), key="file"),
    sa.Column("url", StoredText(MAX_TEXT)),
    sa.Column("good", sa.Boolean, nullable=False),
    sa.Column("message", LongText),
    # Group whose campaigns the check applies to; NULL for all.
    sa.Column("owner", StoredText(MAX_TEXT)),
)


def _comparison_columns() -> tuple[sa.Column[Any], ...]:
    # ``line`` preserves the order of the comparison's rows.
    return (
        sa.Column("comparison_id", StoredText(MAX_IDENTITY), primary_key=True),
        sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("site", StoredText(MAX_TEXT)),
        sa.Column("comparison_key", StoredText(MAX_TEXT)),
        sa.Column("label", StoredText(MAX_TEXT)),
        sa.Column("metric", StoredText(MAX_TEXT)),
        sa.Column("axis", StoredText(MAX_TEXT)),
        sa.Column("a", StoredText(MAX_TEXT)),
        sa.Column("b", StoredText(MAX_TEXT)),
    )


pair = sa.Table(
    "pair",
    metadata,
    *_comparison_columns(),
    sa.Column("job_id", StoredText(MAX_IDENTITY)),
    sa.Column("campaign_id", StoredText(MAX_IDENTITY)),
    sa.Column("host", StoredText(MAX_TEXT)),
    sa.Column("rounds", sa.BigInteger, nullable=False),
    sa.Column("a_value", REAL, nullable=False),
    sa.Column("b_value", REAL, nullable=False),
    sa.Column("log_ratio", REAL, nullable=False),
)

verdict = sa.Table(
    "verdict",
    metadata,
    *_comparison_columns(),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("rule_version", sa.BigInteger, nullable=False),
    sa.Column("scope", StoredText(MAX_TEXT)),
    sa.Column("verdict", StoredText(MAX_TEXT)),
    sa.Column("effect", REAL),
    sa.Column("low", REAL),
    sa.Column("high", REAL),
    sa.Column("jobs", sa.BigInteger, nullable=False),
    sa.Column("hosts", sa.BigInteger, nullable=False),
    sa.Column("jobs_needed", sa.BigInteger),
    sa.Column("evidence", LongText),
    # Latest comparisons, by the first line of each.
    sa.Index("ix_verdict_latest", "line", "created_us", "comparison_id"),
)

# Counts under callgrind: facts of a release and a variant, not measurements. FUNCTION is a reserved
# word on PostgreSQL.
instruction_count = sa.Table(
    "instruction_count",
    metadata,
    sa.Column("count_id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("test_name", StoredText(MAX_TEXT)),
    sa.Column("test_hash", StoredText(MAX_IDENTITY)),
    sa.Column("variant", StoredText(MAX_TEXT)),
    sa.Column("label", StoredText(MAX_TEXT)),
    sa.Column("root_version", StoredText(MAX_TEXT)),
    sa.Column("dataset", StoredText(MAX_TEXT)),
    sa.Column("dataset_hash", StoredText(MAX_TEXT)),
    sa.Column("events", sa.BigInteger, nullable=False),
    sa.Column("host", StoredText(MAX_TEXT)),
    sa.Column("valgrind", StoredText(MAX_TEXT)),
    sa.Column("library", StoredText(MAX_TEXT)),
    sa.Column("function_name", StoredText(MAX_TEXT), key="function"),
    sa.Column("instructions", sa.BigInteger, nullable=False),
    sa.Index("ix_instruction_count_test", "test_hash"),
)

# Key to the results service. Its secret is derived from the service's master key and is not stored;
# ``master_key_fingerprint`` identifies the master key.
access_key = sa.Table(
    "access_key",
    metadata,
    sa.Column("key_id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("role", StoredText(MAX_IDENTITY), nullable=False),
    sa.Column("name", StoredText(MAX_TEXT), nullable=False),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("expires_us", sa.BigInteger),
    sa.Column("revoked_us", sa.BigInteger),
    sa.Column("master_key_fingerprint", StoredText(MAX_IDENTITY), nullable=False),
    # Holders of keys of one group share their campaigns.
    sa.Column("owner", StoredText(MAX_TEXT), nullable=False),
)

# Group that a campaign belongs to: that of the key which first sent something of it.
campaign_owner = sa.Table(
    "campaign_owner",
    metadata,
    sa.Column("campaign_id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("owner", StoredText(MAX_TEXT), nullable=False),
    sa.Column("claimed_us", sa.BigInteger, nullable=False),
)

# Who first sent what: measurements of a job, a campaign and its jobs, or a check of a replica.
receipt = sa.Table(
    "receipt",
    metadata,
    sa.Column("subject", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("kind", StoredText(MAX_WORD), primary_key=True),
    sa.Column("key_id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("address", StoredText(MAX_WORD), primary_key=True),
    sa.Column("campaign_id", StoredText(MAX_IDENTITY), nullable=False),
    sa.Column("received_us", sa.BigInteger, nullable=False),
    sa.Index("ix_receipt_campaign", "campaign_id"),
    sa.Index("ix_receipt_key", "key_id", "received_us"),
)

# Changes of recorded results by administrators.
# AUDIT is a reserved word on Oracle.
audit_entry = sa.Table(
    "audit_entry",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("changed_us", sa.BigInteger, nullable=False),
    sa.Column("action", StoredText(MAX_WORD), nullable=False),
    sa.Column("actor", StoredText(MAX_TEXT), nullable=False),
    sa.Column("scope", StoredText(MAX_TEXT), nullable=False),
    sa.Column("reason", StoredText(MAX_TEXT)),
    sa.Column("measurements", sa.BigInteger, nullable=False),
)

# Campaigns and jobs with revoked tokens; ``scope`` is 'campaign' or 'job'.
access_revocation = sa.Table(
    "access_revocation",
    metadata,
    sa.Column("scope", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("subject", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("revoked_us", sa.BigInteger, nullable=False),
)

# Signed-in browsers. The cookie holds a random token, of which only the hash is stored.
read_session = sa.Table(
    "read_session",
    metadata,
    sa.Column("token_hash", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("role", StoredText(MAX_IDENTITY), nullable=False),
    sa.Column("name", StoredText(MAX_TEXT), nullable=False),
    # The key that signed in, or the issuer and subject of a sign-in by OpenID Connect.
    sa.Column("key_id", StoredText(MAX_IDENTITY)),
    sa.Column("identity", StoredText(MAX_TEXT)),
    sa.Column("address", StoredText(MAX_WORD), nullable=False),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("expires_us", sa.BigInteger, nullable=False),
)

# Changes of the states of sites. ``rule`` is NULL in the changes of the state that all rules, downtimes
# and overrides give together. A change that late results contradict is superseded, never removed.
status_change = sa.Table(
    "status_change",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("subject_kind", StoredText(MAX_WORD), nullable=False),
    sa.Column("site", StoredText(MAX_TEXT)),
    sa.Column("rule", StoredText(MAX_WORD)),
    sa.Column("state", StoredText(MAX_WORD), nullable=False),
    sa.Column("previous", StoredText(MAX_WORD), nullable=False),
    sa.Column("since_us", sa.BigInteger, nullable=False),
    sa.Column("decided_us", sa.BigInteger, nullable=False),
    sa.Column("cause", StoredText(MAX_WORD), nullable=False),
    sa.Column("rule_version", StoredText(MAX_WORD)),
    sa.Column("reason", StoredText(MAX_TEXT)),
    sa.Column("evidence", LongText),
    sa.Column("superseded_us", sa.BigInteger),
    sa.Index("ix_status_change_since", "since_us"),
)

# Rules by which states were evaluated, with their text.
status_rule_set = sa.Table(
    "status_rule_set",
    metadata,
    sa.Column("version", StoredText(MAX_WORD), primary_key=True),
    sa.Column("document", LongText),
    sa.Column("started_us", sa.BigInteger, nullable=False),
    sa.Column("evaluated_us", sa.BigInteger, nullable=False),
)

# Announced downtimes of sites; ``subject_kind`` is NULL if jobs and storage are down.
site_downtime = sa.Table(
    "site_downtime",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("source", StoredText(MAX_TEXT)),
    sa.Column("site", StoredText(MAX_TEXT)),
    sa.Column("subject_kind", StoredText(MAX_WORD)),
    sa.Column("starts_us", sa.BigInteger, nullable=False),
    sa.Column("ends_us", sa.BigInteger, nullable=False),
    sa.Column("severity", StoredText(MAX_WORD), nullable=False),
    sa.Column("description", StoredText(MAX_TEXT)),
    sa.Column("url", StoredText(MAX_TEXT)),
    sa.Column("imported_us", sa.BigInteger, nullable=False),
    sa.Column("withdrawn_us", sa.BigInteger),
)

# States that people set for a time; ``ended_us`` is the end, if somebody ended it early.
site_override = sa.Table(
    "site_override",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("site", StoredText(MAX_TEXT)),
    sa.Column("subject_kind", StoredText(MAX_WORD)),
    sa.Column("state", StoredText(MAX_WORD), nullable=False),
    sa.Column("who", StoredText(MAX_TEXT), nullable=False),
    sa.Column("why", StoredText(MAX_TEXT), nullable=False),
    sa.Column("made_us", sa.BigInteger, nullable=False),
    sa.Column("until_us", sa.BigInteger, nullable=False),
    sa.Column("ended_us", sa.BigInteger),
    sa.Column("ended_by", StoredText(MAX_TEXT)),
)

# Last announced state of each site and of the service; ``id`` is a hash of kind and subject.
alarm_state = sa.Table(
    "alarm_state",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("kind", StoredText(MAX_WORD), nullable=False),
    sa.Column("subject", StoredText(MAX_TEXT)),
    sa.Column("state", StoredText(MAX_WORD), nullable=False),
    sa.Column("since_us", sa.BigInteger, nullable=False),
)

# Events that cause messages; ``id`` is a hash of the event, so that each is recorded once.
alarm_event = sa.Table(
    "alarm_event",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("kind", StoredText(MAX_WORD), nullable=False),
    sa.Column("subject_kind", StoredText(MAX_WORD), nullable=False),
    sa.Column("subject", StoredText(MAX_TEXT)),
    sa.Column("state", StoredText(MAX_WORD), nullable=False),
    sa.Column("severity", StoredText(MAX_WORD), nullable=False),
    sa.Column("happened_us", sa.BigInteger, nullable=False),
    sa.Column("title", StoredText(MAX_TEXT), nullable=False),
    sa.Column("text", LongText),
    # Path of the page with the evidence, below the service's public address.
    sa.Column("evidence", StoredText(MAX_TEXT)),
    sa.Index("ix_alarm_event_happened", "happened_us"),
)

# Messages about events, one for each recipient. A message is claimed by a lease before it is sent.
alarm_message = sa.Table(
    "alarm_message",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column(
        "event_id", StoredText(MAX_IDENTITY), sa.ForeignKey(alarm_event.c.id), nullable=False
    ),
    sa.Column("channel", StoredText(MAX_WORD), nullable=False),
    sa.Column("recipient", StoredText(MAX_TEXT)),
    sa.Column("state", StoredText(MAX_WORD), nullable=False),
    sa.Column("attempts", sa.BigInteger, nullable=False),
    sa.Column("due_us", sa.BigInteger, nullable=False),
    sa.Column("leased_until_us", sa.BigInteger, nullable=False),
    sa.Column("sent_us", sa.BigInteger),
    sa.Column("error", StoredText(MAX_TEXT)),
    sa.Index("ix_alarm_message_due", "state", "due_us"),
)

# Comparison of two releases in a finished campaign, and the reruns that confirm a regression.
release_check = sa.Table(
    "release_check",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("campaign_id", StoredText(MAX_IDENTITY), nullable=False),
    sa.Column("test_name", StoredText(MAX_TEXT)),
    sa.Column("a", StoredText(MAX_TEXT)),
    sa.Column("b", StoredText(MAX_TEXT)),
    sa.Column("state", StoredText(MAX_WORD), nullable=False),
    sa.Column("comparison_id", StoredText(MAX_IDENTITY)),
    # Compared and slower variants of the last comparison, and the largest effect, in ln.
    sa.Column("compared", sa.BigInteger, nullable=False),
    sa.Column("slower", sa.BigInteger, nullable=False),
    sa.Column("effect", REAL),
    sa.Column("text", LongText),
    sa.Column("reruns", sa.BigInteger, nullable=False),
    # Campaign of the rerun in progress, or of the last one.
    sa.Column("rerun_id", StoredText(MAX_IDENTITY)),
    sa.Column("checked_us", sa.BigInteger, nullable=False),
    sa.Column("changed_us", sa.BigInteger, nullable=False),
    sa.Index("ix_release_check_campaign", "campaign_id"),
    sa.Index("ix_release_check_state", "state", "changed_us"),
)

# Lease of the one leader among several patrols. ``epoch`` grows with every change of the holder.
patrol_lease = sa.Table(
    "patrol_lease",
    metadata,
    sa.Column("name", StoredText(MAX_WORD), primary_key=True),
    sa.Column("holder", StoredText(MAX_TEXT), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("acquired_us", sa.BigInteger, nullable=False),
    sa.Column("expires_us", sa.BigInteger, nullable=False),
)

# Entries of the patrol file, as the leader last saw them.
patrol_entry = sa.Table(
    "patrol_entry",
    metadata,
    sa.Column("name", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("line", sa.BigInteger, nullable=False),
    sa.Column("test", StoredText(MAX_TEXT)),
    sa.Column("follows", StoredText(MAX_TEXT)),
    sa.Column("sites", StoredText(MAX_TEXT)),
    sa.Column("every_s", sa.BigInteger),
    sa.Column("in_flight", sa.BigInteger, nullable=False),
    sa.Column("next_us", sa.BigInteger),
    sa.Column("note", LongText),
    sa.Column("checked_us", sa.BigInteger, nullable=False),
)

# Starts of campaigns. A row is written before anything is submitted, once for each occasion: a time,
# a commit, a tag or a release.
patrol_start = sa.Table(
    "patrol_start",
    metadata,
    sa.Column("entry", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("occasion", StoredText(MAX_IDENTITY), primary_key=True),
    # NULL for what existed before the patrol began to follow it.
    sa.Column("campaign_id", StoredText(MAX_IDENTITY)),
    sa.Column("state", StoredText(MAX_WORD), nullable=False),
    sa.Column("due_us", sa.BigInteger, nullable=False),
    sa.Column("claimed_us", sa.BigInteger, nullable=False),
    sa.Column("finished_us", sa.BigInteger),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("holder", StoredText(MAX_TEXT), nullable=False),
    sa.Column("request", LongText),
    sa.Column("message", LongText),
    sa.Index("ix_patrol_start_campaign", "campaign_id", unique=True),
    sa.Index("ix_patrol_start_state", "state", "entry"),
)

# Cost of a campaign at a site on the day of its start (UTC, days since 1970): reserved with the
# start, settled at the end.
patrol_charge = sa.Table(
    "patrol_charge",
    metadata,
    sa.Column("campaign_id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("site", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("day", sa.BigInteger, nullable=False),
    sa.Column("reserved_cpu_s", REAL, nullable=False),
    sa.Column("reserved_bytes", sa.BigInteger, nullable=False),
    sa.Column("used_cpu_s", REAL),
    sa.Column("used_bytes", sa.BigInteger),
    sa.Index("ix_patrol_charge_day", "day", "site"),
)

# Daily limits of a site, and its back-off: no campaigns but one probe at ``probe_us``.
patrol_site = sa.Table(
    "patrol_site",
    metadata,
    sa.Column("site", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("cpu_limit_s", REAL),
    sa.Column("bytes_limit", sa.BigInteger),
    sa.Column("failures", sa.BigInteger, nullable=False),
    sa.Column("probe_us", sa.BigInteger),
    sa.Column("changed_us", sa.BigInteger, nullable=False),
    sa.Column("reason", LongText),
)

# Series that change points are searched in, by day: derived from the measurements.
watched_series = sa.Table(
    "watched_series",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("kind", StoredText(MAX_WORD), nullable=False),
    sa.Column("metric", StoredText(MAX_WORD), nullable=False),
    sa.Column("test_name", StoredText(MAX_TEXT)),
    # WORK is a reserved word on Oracle.
    sa.Column("work_key", StoredText(MAX_TEXT), key="work"),
    sa.Column("variant_label", StoredText(MAX_TEXT)),
    sa.Column("site", StoredText(MAX_TEXT)),
    sa.Column("storage_site", StoredText(MAX_TEXT)),
    sa.Column("door", StoredText(MAX_TEXT)),
    # RELEASE is a reserved word on PostgreSQL.
    sa.Column("root_release", StoredText(MAX_TEXT), key="release"),
    sa.Column("control", StoredText(MAX_TEXT)),
    sa.Column("host", StoredText(MAX_TEXT)),
)

watched_day = sa.Table(
    "watched_day",
    metadata,
    sa.Column(
        "series_id", StoredText(MAX_IDENTITY), sa.ForeignKey(watched_series.c.id), primary_key=True
    ),
    sa.Column("day", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("value", REAL, nullable=False),
    sa.Column("squares", REAL, nullable=False),
    sa.Column("jobs", sa.BigInteger, nullable=False),
    sa.Column("context", LongText),
    sa.Index("ix_watched_day_day", "day"),
)

# Steps found in them.
change_point = sa.Table(
    "change_point",
    metadata,
    sa.Column("id", StoredText(MAX_IDENTITY), primary_key=True),
    sa.Column("found_us", sa.BigInteger, nullable=False),
    sa.Column("updated_us", sa.BigInteger, nullable=False),
    sa.Column("day", sa.BigInteger, nullable=False),
    sa.Column("state", StoredText(MAX_WORD), nullable=False),
    sa.Column("kind", StoredText(MAX_WORD), nullable=False),
    sa.Column("metric", StoredText(MAX_WORD), nullable=False),
    sa.Column("test_name", StoredText(MAX_TEXT)),
    sa.Column("control", StoredText(MAX_TEXT)),
    sa.Column("attribution", StoredText(MAX_WORD), nullable=False),
    sa.Column("subject", StoredText(MAX_TEXT)),
    sa.Column("effect", REAL, nullable=False),
    sa.Column("low", REAL, nullable=False),
    sa.Column("high", REAL, nullable=False),
    sa.Column("p_value", REAL, nullable=False),
    sa.Column("days_before", sa.BigInteger, nullable=False),
    sa.Column("days_after", sa.BigInteger, nullable=False),
    sa.Column("seconded", sa.Boolean, nullable=False),
    sa.Column("cause", LongText),
    sa.Column("evidence", LongText),
    sa.Index("ix_change_point_day", "day"),
)
