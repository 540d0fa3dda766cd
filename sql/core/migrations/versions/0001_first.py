"""Campaigns, jobs, attempts, measurements, pairs and verdicts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import oracle

from treehammer.sql.core.migrations.oracle_text import oracle_text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(oracle.BINARY_DOUBLE(), "oracle")


def _text(length: int) -> sa.types.TypeEngine[str]:
    # It sorts by code points everywhere, whatever language a PostgreSQL database is in.
    kind = sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
    return kind.with_variant(oracle_text(length), "oracle")


def upgrade() -> None:
    """Apply this revision."""
    _campaign()
    _measurement()
    _pair()
    _verdict()
    _extra()
    _job()
    _attempt()
    _replica()


def _campaign() -> None:
    op.create_table(
        "campaign",
        sa.Column("id", _text(128), nullable=False),
        sa.Column("name", _text(4000), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("repository", _text(4000), nullable=True),
        sa.Column("ref", _text(4000), nullable=True),
        sa.Column("commit_id", _text(128), nullable=True),
        sa.Column("dirty", sa.Boolean(), nullable=False),
        sa.Column("test_name", _text(4000), nullable=True),
        sa.Column("test_path", _text(4000), nullable=True),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("planned_jobs", sa.BigInteger(), nullable=False),
        sa.Column("planned_measurements", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_campaign"),
    )
    op.create_index("ix_campaign_created", "campaign", ["created_us"])


def _measurement() -> None:
    op.create_table(
        "measurement",
        sa.Column("measurement_id", _text(128), nullable=False),
        sa.Column("record_version", sa.BigInteger(), nullable=False),
        sa.Column("instrument_version", sa.BigInteger(), nullable=False),
        sa.Column("campaign_id", _text(128), nullable=False),
        sa.Column("campaign_name", _text(4000), nullable=True),
        sa.Column("job_id", _text(128), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("kind", _text(4000), nullable=True),
        sa.Column("repeat", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("test_name", _text(4000), nullable=True),
        sa.Column("repository", _text(4000), nullable=True),
        sa.Column("ref", _text(4000), nullable=True),
        sa.Column("commit_id", _text(4000), nullable=True),
        sa.Column("dirty", sa.Boolean(), nullable=False),
        sa.Column("test_path", _text(4000), nullable=True),
        sa.Column("test_hash", _text(4000), nullable=True),
        sa.Column("payload_hash", _text(4000), nullable=True),
        sa.Column("treehammer_version", _text(4000), nullable=True),
        sa.Column("series", _text(128), nullable=False),
        sa.Column("variant", _text(4000), nullable=True),
        sa.Column("variant_label", _text(4000), nullable=True),
        sa.Column("site", _text(4000), nullable=True),
        sa.Column("door", _text(4000), nullable=True),
        sa.Column("door_protocol", _text(4000), nullable=True),
        sa.Column("dataset", _text(4000), nullable=True),
        sa.Column("dataset_hash", _text(4000), nullable=True),
        sa.Column("content_hash", _text(4000), nullable=True),
        sa.Column("axis_root", _text(4000), nullable=True),
        sa.Column("axis_branches", _text(4000), nullable=True),
        sa.Column("axis_cache_mb", REAL, nullable=True),
        sa.Column("axis_events", REAL, nullable=True),
        sa.Column("axis_access", _text(4000), nullable=True),
        sa.Column("axis_cache", _text(4000), nullable=True),
        sa.Column("passes_planned", sa.BigInteger(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("setup_wall_s", REAL, nullable=True),
        sa.Column("setup_cpu_s", REAL, nullable=True),
        sa.Column("stagein_wall_s", REAL, nullable=True),
        sa.Column("stagein_cpu_s", REAL, nullable=True),
        sa.Column("stagein_bytes", sa.BigInteger(), nullable=True),
        sa.Column("payload_wall_s", REAL, nullable=True),
        sa.Column("payload_user_s", REAL, nullable=True),
        sa.Column("payload_sys_s", REAL, nullable=True),
        sa.Column("payload_run_queue_s", REAL, nullable=True),
        sa.Column("eff_payload", REAL, nullable=True),
        sa.Column("eff_job", REAL, nullable=True),
        sa.Column("access_rate_hz", REAL, nullable=True),
        sa.Column("eff_access", REAL, nullable=True),
        sa.Column("max_rss_bytes", sa.BigInteger(), nullable=True),
        sa.Column("tree_peak_rss_bytes", sa.BigInteger(), nullable=True),
        sa.Column("ctx_voluntary", sa.BigInteger(), nullable=True),
        sa.Column("ctx_involuntary", sa.BigInteger(), nullable=True),
        sa.Column("page_faults_minor", sa.BigInteger(), nullable=True),
        sa.Column("page_faults_major", sa.BigInteger(), nullable=True),
        sa.Column("io_read_chars", sa.BigInteger(), nullable=True),
        sa.Column("io_write_chars", sa.BigInteger(), nullable=True),
        sa.Column("io_read_bytes", sa.BigInteger(), nullable=True),
        sa.Column("io_write_bytes", sa.BigInteger(), nullable=True),
        sa.Column("processes", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("exit_signal", sa.BigInteger(), nullable=True),
        sa.Column("root_provider", _text(4000), nullable=True),
        sa.Column("host", _text(4000), nullable=True),
        sa.Column("cpu_model", _text(4000), nullable=True),
        sa.Column("cores_online", sa.BigInteger(), nullable=True),
        sa.Column("cores_allowed", sa.BigInteger(), nullable=True),
        sa.Column("cpu_mhz", REAL, nullable=True),
        sa.Column("cpu_steal_s", REAL, nullable=True),
        sa.Column("psi_cpu_some_s", REAL, nullable=True),
        sa.Column("psi_io_some_s", REAL, nullable=True),
        sa.Column("psi_memory_some_s", REAL, nullable=True),
        sa.Column("cgroup_cpu_limit", REAL, nullable=True),
        sa.Column("cgroup_memory_limit_bytes", sa.BigInteger(), nullable=True),
        sa.Column("cgroup_throttled_s", REAL, nullable=True),
        sa.Column("load1_start", REAL, nullable=True),
        sa.Column("load1_end", REAL, nullable=True),
        sa.Column("mem_total_bytes", sa.BigInteger(), nullable=True),
        sa.Column("mem_available_start_bytes", sa.BigInteger(), nullable=True),
        sa.Column("mem_available_end_bytes", sa.BigInteger(), nullable=True),
        sa.Column("calibration_before_s", REAL, nullable=True),
        sa.Column("calibration_after_s", REAL, nullable=True),
        sa.Column("kernel", _text(4000), nullable=True),
        sa.Column("os_name", _text(4000), nullable=True),
        sa.Column("container", _text(4000), nullable=True),
        sa.Column("slot", _text(4000), nullable=True),
        sa.Column("worker_python", _text(4000), nullable=True),
        sa.Column("concurrent_door_jobs", sa.BigInteger(), nullable=True),
        sa.Column("file_name", _text(4000), nullable=True),
        sa.Column("file_url", _text(4000), nullable=True),
        sa.Column("file_size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("data_server", _text(4000), nullable=True),
        sa.Column("address_family", _text(4000), nullable=True),
        sa.Column("server_version", _text(4000), nullable=True),
        sa.Column("door_rtt_s", REAL, nullable=True),
        sa.Column("client_cache_state", _text(4000), nullable=True),
        sa.Column("client_cache_method", _text(4000), nullable=True),
        sa.Column("client_cached_fraction", REAL, nullable=True),
        sa.Column("server_cache_state", _text(4000), nullable=True),
        sa.Column("server_cache_method", _text(4000), nullable=True),
        sa.Column("failure_class", _text(4000), nullable=True),
        sa.Column("failure_kind", _text(4000), nullable=True),
        sa.Column("failure_phase", _text(4000), nullable=True),
        sa.Column("failure_message", sa.Text(), nullable=True),
        sa.Column("failure_transient", sa.Boolean(), nullable=True),
        sa.Column("plausible", sa.Boolean(), nullable=False),
        sa.Column("implausible_reasons", sa.Text(), nullable=True),
        sa.Column("log_excerpt", sa.Text(), nullable=True),
        sa.Column("root_version", _text(4000), nullable=True),
        sa.Column("root_commit", _text(4000), nullable=True),
        sa.Column("root_platform", _text(4000), nullable=True),
        sa.Column("root_compiler", _text(4000), nullable=True),
        sa.Column("root_flags", _text(4000), nullable=True),
        sa.Column("root_cxx_standard", _text(4000), nullable=True),
        sa.Column("root_features", sa.Text(), nullable=True),
        sa.Column("zlib_version", _text(4000), nullable=True),
        sa.Column("lzma_version", _text(4000), nullable=True),
        sa.Column("lz4_version", _text(4000), nullable=True),
        sa.Column("zstd_version", _text(4000), nullable=True),
        sa.Column("libcore_sha256", _text(4000), nullable=True),
        sa.Column("file_class", _text(4000), nullable=True),
        sa.Column("import_wall_s", REAL, nullable=True),
        sa.Column("import_user_s", REAL, nullable=True),
        sa.Column("import_sys_s", REAL, nullable=True),
        sa.Column("compile_wall_s", REAL, nullable=True),
        sa.Column("passes_done", sa.BigInteger(), nullable=True),
        sa.Column("passes_counted", sa.BigInteger(), nullable=True),
        sa.Column("open_wall_s", REAL, nullable=True),
        sa.Column("pass_open_wall_s", sa.Text(), nullable=True),
        sa.Column("open_user_s", REAL, nullable=True),
        sa.Column("pass_open_user_s", sa.Text(), nullable=True),
        sa.Column("open_sys_s", REAL, nullable=True),
        sa.Column("pass_open_sys_s", sa.Text(), nullable=True),
        sa.Column("get_tree_wall_s", REAL, nullable=True),
        sa.Column("pass_get_tree_wall_s", sa.Text(), nullable=True),
        sa.Column("get_tree_user_s", REAL, nullable=True),
        sa.Column("pass_get_tree_user_s", sa.Text(), nullable=True),
        sa.Column("get_tree_sys_s", REAL, nullable=True),
        sa.Column("pass_get_tree_sys_s", sa.Text(), nullable=True),
        sa.Column("prepare_wall_s", REAL, nullable=True),
        sa.Column("pass_prepare_wall_s", sa.Text(), nullable=True),
        sa.Column("prepare_user_s", REAL, nullable=True),
        sa.Column("pass_prepare_user_s", sa.Text(), nullable=True),
        sa.Column("prepare_sys_s", REAL, nullable=True),
        sa.Column("pass_prepare_sys_s", sa.Text(), nullable=True),
        sa.Column("loop_wall_s", REAL, nullable=True),
        sa.Column("pass_loop_wall_s", sa.Text(), nullable=True),
        sa.Column("loop_user_s", REAL, nullable=True),
        sa.Column("pass_loop_user_s", sa.Text(), nullable=True),
        sa.Column("loop_sys_s", REAL, nullable=True),
        sa.Column("pass_loop_sys_s", sa.Text(), nullable=True),
        sa.Column("close_wall_s", REAL, nullable=True),
        sa.Column("pass_close_wall_s", sa.Text(), nullable=True),
        sa.Column("close_user_s", REAL, nullable=True),
        sa.Column("pass_close_user_s", sa.Text(), nullable=True),
        sa.Column("close_sys_s", REAL, nullable=True),
        sa.Column("pass_close_sys_s", sa.Text(), nullable=True),
        sa.Column("loop_cpu_s", REAL, nullable=True),
        sa.Column("loop_run_queue_s", REAL, nullable=True),
        sa.Column("pass_loop_run_queue_s", sa.Text(), nullable=True),
        sa.Column("cpu_per_event_s", REAL, nullable=True),
        sa.Column("wall_per_event_s", REAL, nullable=True),
        sa.Column("event_rate_hz", REAL, nullable=True),
        sa.Column("eff_loop", REAL, nullable=True),
        sa.Column("eff_loop_corrected", REAL, nullable=True),
        sa.Column("events_total", sa.BigInteger(), nullable=True),
        sa.Column("events_read", sa.BigInteger(), nullable=True),
        sa.Column("branches_total", sa.BigInteger(), nullable=True),
        sa.Column("branches_selected", sa.BigInteger(), nullable=True),
        sa.Column("selected_zip_bytes", sa.BigInteger(), nullable=True),
        sa.Column("loop_unzipped_bytes", sa.BigInteger(), nullable=True),
        sa.Column("bytes_read", sa.BigInteger(), nullable=True),
        sa.Column("bytes_read_extra", sa.BigInteger(), nullable=True),
        sa.Column("read_calls", sa.BigInteger(), nullable=True),
        sa.Column("read_calls_single", sa.BigInteger(), nullable=True),
        sa.Column("read_calls_vector", sa.BigInteger(), nullable=True),
        sa.Column("read_calls_prefetch", sa.BigInteger(), nullable=True),
        sa.Column("vector_chunks", REAL, nullable=True),
        sa.Column("read_fraction", REAL, nullable=True),
        sa.Column("cache_bytes", sa.BigInteger(), nullable=True),
        sa.Column("cache_efficiency", REAL, nullable=True),
        sa.Column("cache_efficiency_rel", REAL, nullable=True),
        sa.Column("cache_bytes_read", sa.BigInteger(), nullable=True),
        sa.Column("cache_read_calls", sa.BigInteger(), nullable=True),
        sa.Column("cache_missed_bytes", sa.BigInteger(), nullable=True),
        sa.Column("cache_missed_calls", sa.BigInteger(), nullable=True),
        sa.Column("perfstats_bytes_read", sa.BigInteger(), nullable=True),
        sa.Column("perfstats_read_calls", sa.BigInteger(), nullable=True),
        sa.Column("perfstats_read_s", REAL, nullable=True),
        sa.Column("perfstats_unzip_s", REAL, nullable=True),
        sa.Column("perfstats_wall_s", REAL, nullable=True),
        sa.Column("perfstats_cpu_s", REAL, nullable=True),
        sa.Column("ntuple_cluster_cache", sa.Boolean(), nullable=True),
        sa.Column("ntuple_pages_read", sa.BigInteger(), nullable=True),
        sa.Column("ntuple_pages_unzipped", sa.BigInteger(), nullable=True),
        sa.Column("ntuple_clusters_loaded", sa.BigInteger(), nullable=True),
        sa.Column("ntuple_vector_reads", sa.BigInteger(), nullable=True),
        sa.Column("ntuple_ranges_read", sa.BigInteger(), nullable=True),
        sa.Column("ntuple_payload_bytes", sa.BigInteger(), nullable=True),
        sa.Column("ntuple_overhead_bytes", sa.BigInteger(), nullable=True),
        sa.Column("ntuple_unzipped_bytes", sa.BigInteger(), nullable=True),
        sa.Column("ntuple_read_wall_s", REAL, nullable=True),
        sa.Column("ntuple_read_cpu_s", REAL, nullable=True),
        sa.Column("ntuple_unzip_wall_s", REAL, nullable=True),
        sa.Column("ntuple_unzip_cpu_s", REAL, nullable=True),
        sa.Column("kernel_read_chars", sa.BigInteger(), nullable=True),
        sa.Column("kernel_read_bytes", sa.BigInteger(), nullable=True),
        sa.Column("kernel_read_calls", sa.BigInteger(), nullable=True),
        sa.Column("first_byte_s", REAL, nullable=True),
        sa.Column("read_latency_hist", sa.Text(), nullable=True),
        sa.Column("read_latency_p50_s", REAL, nullable=True),
        sa.Column("read_latency_p95_s", REAL, nullable=True),
        sa.Column("read_latency_p99_s", REAL, nullable=True),
        sa.Column("read_latency_max_s", REAL, nullable=True),
        sa.Column("retries", sa.BigInteger(), nullable=True),
        sa.Column("inventory", sa.Text(), nullable=True),
        sa.Column("value_checksum", _text(4000), nullable=True),
        sa.Column("checksum_version", sa.BigInteger(), nullable=True),
        sa.Column("checksum_leaves", sa.BigInteger(), nullable=True),
        sa.Column("checksum_skipped_leaves", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("measurement_id", name="pk_measurement"),
    )
    # No index of Oracle can be as wide as these; a later revision takes them away.
    if op.get_context().dialect.name != "oracle":
        _index_measurements()


def _index_measurements() -> None:
    op.create_index(
        "ix_measurement_counts",
        "measurement",
        ["campaign_id", "site", "kind", "failure_class", "plausible"],
    )
    op.create_index(
        "ix_measurement_order",
        "measurement",
        ["campaign_id", "site", "job_id", "attempt", "round", "position", "measurement_id"],
    )
    op.create_index(
        "ix_measurement_series",
        "measurement",
        [
            "series",
            "started_us",
            "kind",
            "plausible",
            "failure_class",
            "host",
            "payload_wall_s",
            "eff_job",
            "cpu_per_event_s",
            "wall_per_event_s",
        ],
    )
    op.create_index(
        "ix_measurement_site_day",
        "measurement",
        [
            "test_name",
            "site",
            "day",
            "variant_label",
            "axis_root",
            "kind",
            "plausible",
            "failure_class",
            "eff_job",
            "cpu_per_event_s",
            "wall_per_event_s",
        ],
    )


def _pair() -> None:
    op.create_table(
        "pair",
        sa.Column("comparison_id", _text(128), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("site", _text(4000), nullable=True),
        sa.Column("comparison_key", _text(4000), nullable=True),
        sa.Column("label", _text(4000), nullable=True),
        sa.Column("metric", _text(4000), nullable=True),
        sa.Column("axis", _text(4000), nullable=True),
        sa.Column("a", _text(4000), nullable=True),
        sa.Column("b", _text(4000), nullable=True),
        sa.Column("job_id", _text(128), nullable=True),
        sa.Column("campaign_id", _text(128), nullable=True),
        sa.Column("host", _text(4000), nullable=True),
        sa.Column("rounds", sa.BigInteger(), nullable=False),
        sa.Column("a_value", REAL, nullable=False),
        sa.Column("b_value", REAL, nullable=False),
        sa.Column("d", REAL, nullable=False),
        sa.PrimaryKeyConstraint("comparison_id", "line", name="pk_pair"),
    )


def _verdict() -> None:
    op.create_table(
        "verdict",
        sa.Column("comparison_id", _text(128), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("site", _text(4000), nullable=True),
        sa.Column("comparison_key", _text(4000), nullable=True),
        sa.Column("label", _text(4000), nullable=True),
        sa.Column("metric", _text(4000), nullable=True),
        sa.Column("axis", _text(4000), nullable=True),
        sa.Column("a", _text(4000), nullable=True),
        sa.Column("b", _text(4000), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("rule_version", sa.BigInteger(), nullable=False),
        sa.Column("scope", _text(4000), nullable=True),
        sa.Column("verdict", _text(4000), nullable=True),
        sa.Column("effect", REAL, nullable=True),
        sa.Column("low", REAL, nullable=True),
        sa.Column("high", REAL, nullable=True),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("hosts", sa.BigInteger(), nullable=False),
        sa.Column("jobs_needed", sa.BigInteger(), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("comparison_id", "line", name="pk_verdict"),
    )


def _extra() -> None:
    op.create_table(
        "extra",
        sa.Column("measurement_id", _text(128), nullable=False),
        sa.Column("name", _text(64), nullable=False),
        sa.Column("value", REAL, nullable=False),
        sa.PrimaryKeyConstraint("measurement_id", "name", name="pk_extra"),
        sa.ForeignKeyConstraint(
            ["measurement_id"], ["measurement.measurement_id"], name="fk_extra_measurement"
        ),
    )


def _job() -> None:
    op.create_table(
        "job",
        sa.Column("id", _text(128), nullable=False),
        sa.Column("campaign_id", _text(128), nullable=False),
        sa.Column("site", _text(4000), nullable=True),
        sa.Column("door", _text(4000), nullable=True),
        sa.Column("kind", _text(4000), nullable=True),
        sa.Column("repeat", sa.BigInteger(), nullable=False),
        sa.Column("label", _text(4000), nullable=True),
        sa.Column("batch_system", _text(4000), nullable=True),
        sa.Column("batch_id", _text(128), nullable=True),
        sa.Column("planned_measurements", sa.BigInteger(), nullable=False),
        sa.Column("state", _text(4000), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaign.id"], name="fk_job_campaign"),
    )
    op.create_index("ix_job_campaign", "job", ["campaign_id", "site"])


def _attempt() -> None:
    op.create_table(
        "attempt",
        sa.Column("job_id", _text(128), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("state", _text(4000), nullable=True),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("failure_class", _text(4000), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "attempt", name="pk_attempt"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_attempt_job"),
    )


def _replica() -> None:
    op.create_table(
        "replica",
        sa.Column("id", _text(128), nullable=False),
        sa.Column("found_us", sa.BigInteger(), nullable=False),
        sa.Column("dataset", _text(4000), nullable=True),
        sa.Column("dataset_hash", _text(4000), nullable=True),
        sa.Column("site", _text(4000), nullable=True),
        sa.Column("door", _text(4000), nullable=True),
        sa.Column("file_name", _text(4000), nullable=True),
        sa.Column("url", _text(4000), nullable=True),
        sa.Column("good", sa.Boolean(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_replica"),
    )
