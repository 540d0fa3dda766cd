"""The first revision: all tables of release 0.2.0."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import REAL, LongText, StoredText

revision = "0.2.0"
down_revision = None
branch_labels = None
depends_on = None

_TYPES: dict[str, Any] = {
    "key": StoredText(128),
    "word": StoredText(64),
    "short": StoredText(32),
    "text": StoredText(4000),
    "long": LongText(),
    "int": sa.BigInteger(),
    "real": REAL,
    "bool": sa.Boolean(),
    "bytes": sa.LargeBinary(),
}

# Table -> its columns, each NAME:TYPE, with a question mark when it may be NULL.
_TABLES = {
    "access_key": """
        key_id:key role:key name:text created_us:int expires_us:int? revoked_us:int?
        master_key_fingerprint:key owner:text
    """,
    "access_revocation": "scope:key subject:key revoked_us:int",
    "alarm_message": """
        id:key event_id:key kind:word subject_kind:word subject:text? state:word severity:word
        happened_us:int recorded_us:int title:text text:long? evidence:text? channel:word?
        recipient:text? delivery:word? attempts:int due_us:int error:text?
    """,
    "audit_entry": """
        id:key changed_us:int action:word actor:text scope:text reason:text? measurements:int
    """,
    "campaign": """
        id:key name:text? created_us:int repository:text? ref:text? commit_id:key? dirty:bool
        test_name:text? test_path:text? plan:long? planned_jobs:int planned_measurements:int
    """,
    "campaign_owner": "campaign_id:key owner:text claimed_us:int",
    "change_point": """
        id:key found_us:int updated_us:int day:int state:word kind:word metric:word test_name:text?
        control:text? attribution:word subject:text? effect:real low:real high:real p_value:real
        days_before:int days_after:int seconded:bool cause:long? evidence:long?
    """,
    "instruction_count": """
        count_id:key line:int created_us:int test_name:text? test_hash:key? variant:text?
        label:text? root_version:text? dataset:text? dataset_hash:text? events:int host:text?
        valgrind:text? library:text? function_name:text? instructions:int
    """,
    "inventory": "id:int inventory:long?",
    "node": """
        id:int host:text? machine:text? cpu_model:text? cores_online:int? cores_allowed:int?
        cgroup_cpu_limit:real? cgroup_memory_limit_bytes:int? mem_total_bytes:int? kernel:text?
        os_name:text? container:text? worker_python:text? hw_counters_missing:text?
    """,
    "origin": """
        id:int record_version:int instrument_version:int campaign_name:text? repository:text?
        ref:text? commit_id:text? dirty:bool test_path:text? test_hash:text? payload_hash:text?
        treehammer_version:text?
    """,
    "pair": """
        comparison_id:key job_id:key? campaign_id:key? site:text? host:text? comparison_key:text?
        label:text? metric:text? axis:text? a:text? b:text? rounds:int a_value:real b_value:real
        log_ratio:real line:int
    """,
    "patrol_charge": """
        campaign_id:key site:key day:int reserved_cpu_s:real reserved_bytes:int used_cpu_s:real?
        used_bytes:int?
    """,
    "patrol_entry": """
        name:key line:int test:text? follows:text? sites:text? every_s:int? in_flight:int
        next_us:int? note:long? checked_us:int
    """,
    "patrol_lease": "name:word holder:text epoch:int acquired_us:int expires_us:int",
    "patrol_site": "site:key cpu_limit_s:real? bytes_limit:int?",
    "patrol_start": """
        entry:key occasion:key campaign_id:key? state:word due_us:int claimed_us:int
        finished_us:int? epoch:int holder:text request:long? message:long?
    """,
    "read_session": """
        token_hash:key role:key name:text key_id:key? identity:text? address:word created_us:int
        expires_us:int
    """,
    "receipt": "subject:key kind:word key_id:key address:word campaign_id:key received_us:int",
    "release_check": """
        id:key campaign_id:key test_name:text? a:text? b:text? state:word comparison_id:key?
        compared:int slower:int effect:real? text:long? reruns:int rerun_id:key? checked_us:int
        changed_us:int
    """,
    "replica": """
        id:key found_us:int dataset:text? dataset_hash:text? site:text? door:text? file_name:text?
        url:text? good:bool message:long? owner:text?
    """,
    "site_downtime": """
        id:key source:text? site:text? subject_kind:word? starts_us:int ends_us:int severity:word
        description:text? url:text? imported_us:int withdrawn_us:int?
    """,
    "site_override": """
        id:key site:text? subject_kind:word? state:word who:text why:text made_us:int until_us:int
        ended_us:int? ended_by:text?
    """,
    "software": """
        id:int root_provider:text? root_version:text? root_commit:text? root_platform:text?
        root_compiler:text? root_flags:text? root_cxx_standard:text? root_features:long?
        zlib_version:text? lzma_version:text? lz4_version:text? zstd_version:text?
        libcore_sha256:text?
    """,
    "status_change": """
        id:key subject_kind:word site:text? rule:word? state:word previous:word since_us:int
        decided_us:int cause:word rule_version:word? reason:text? evidence:long? superseded_us:int?
    """,
    "status_rule_set": "version:word document:long? started_us:int evaluated_us:int",
    "storage": """
        id:int file_name:text? file_url:text? file_size_bytes:int? file_class:text?
        data_server:text? address_family:text? server_version:text? client_cache_state:text?
        client_cache_method:text? server_cache_state:text? server_cache_method:text?
    """,
    "subject": """
        id:int series:key test_name:text? variant:text? variant_label:text? site:text?
        storage_site:text? door:text? door_protocol:text? dataset:text? dataset_hash:text?
        content_hash:text? axis_root:text? axis_branches:text? axis_cache_mb:real? axis_events:real?
        axis_access:text? axis_cache:text? passes_planned:int run_mode:word? launch_order:word?
    """,
    "verdict": """
        comparison_id:key created_us:int rule_version:int scope:text? site:text?
        comparison_key:text? label:text? metric:text? axis:text? a:text? b:text? verdict:text?
        effect:real? low:real? high:real? jobs:int hosts:int jobs_needed:int? evidence:long?
        line:int
    """,
    "watched_series": """
        id:key kind:word metric:word test_name:text? work_key:text? variant_label:text? site:text?
        storage_site:text? door:text? root_release:text? control:text? host:text?
    """,
    "job": """
        id:key campaign_id:key site:text? door:text? kind:text? repeat:int label:text?
        batch_system:text? batch_id:key? planned_measurements:int state:text?
    """,
    "measurement": """
        measurement_id:key campaign_id:key job_id:key attempt:int kind:word? repeat:int round:int
        position:int started_us:int ended_us:int day:int setup_wall_s:real? setup_cpu_s:real?
        build_wall_s:real? build_cpu_s:real? stagein_wall_s:real? stagein_cpu_s:real?
        stagein_bytes:int? payload_wall_s:real? payload_user_s:real? payload_sys_s:real?
        payload_run_queue_s:real? eff_payload:real? eff_job:real? access_rate_hz:real?
        eff_access:real? pinned_core:int? segments:int? segment_entries:int?
        segment_cpu_log_ratio:real? segment_cpu_log_ratio_sd:real? segment_wall_log_ratio:real?
        segment_wall_log_ratio_sd:real? max_rss_bytes:int? tree_peak_rss_bytes:int?
        ctx_voluntary:int? ctx_involuntary:int? page_faults_minor:int? page_faults_major:int?
        io_read_chars:int? io_write_chars:int? io_read_bytes:int? io_write_bytes:int? processes:int?
        exit_code:int? exit_signal:int? retries:int? load_index:int? load_jobs:int?
        start_state:word? start_planned_us:int? start_present_jobs:int? start_offset_s:real?
        start_wait_s:real? clock_offset_s:real? clock_error_s:real? cpu_mhz:real? cpu_steal_s:real?
        psi_cpu_some_s:real? psi_io_some_s:real? psi_memory_some_s:real? cgroup_throttled_s:real?
        load1_start:real? load1_end:real? mem_available_start_bytes:int?
        mem_available_end_bytes:int? calibration_before_s:real? calibration_after_s:real? slot:text?
        concurrent_door_jobs:int? door_rtt_s:real? client_cached_fraction:real? failure_class:word?
        failure_kind:text? failure_phase:text? failure_message:long? failure_transient:bool?
        plausible:bool implausible_reasons:long? log_excerpt:long? import_wall_s:real?
        import_user_s:real? import_sys_s:real? compile_wall_s:real? passes_done:int?
        passes_counted:int? open_wall_s:real? open_user_s:real? open_sys_s:real?
        get_tree_wall_s:real? get_tree_user_s:real? get_tree_sys_s:real? prepare_wall_s:real?
        prepare_user_s:real? prepare_sys_s:real? loop_wall_s:real? loop_user_s:real?
        loop_sys_s:real? close_wall_s:real? close_user_s:real? close_sys_s:real? loop_cpu_s:real?
        loop_run_queue_s:real? cpu_per_event_s:real? wall_per_event_s:real? event_rate_hz:real?
        eff_loop:real? eff_loop_corrected:real? events_total:int? events_read:int?
        branches_total:int? branches_selected:int? content_notes:long? selected_zip_bytes:int?
        loop_unzipped_bytes:int? bytes_read:int? bytes_read_extra:int? read_calls:int?
        read_calls_single:int? read_calls_vector:int? read_calls_prefetch:int? vector_chunks:real?
        read_fraction:real? cache_bytes:int? cache_efficiency:real? cache_efficiency_rel:real?
        cache_bytes_read:int? cache_read_calls:int? cache_missed_bytes:int? cache_missed_calls:int?
        perfstats_bytes_read:int? perfstats_read_calls:int? baskets_read:int? perfstats_read_s:real?
        perfstats_unzip_s:real? perfstats_wall_s:real? perfstats_cpu_s:real?
        ntuple_cluster_cache:bool? ntuple_pages_read:int? ntuple_pages_unzipped:int?
        ntuple_clusters_loaded:int? ntuple_vector_reads:int? ntuple_ranges_read:int?
        ntuple_payload_bytes:int? ntuple_overhead_bytes:int? ntuple_unzipped_bytes:int?
        ntuple_read_wall_s:real? ntuple_read_cpu_s:real? ntuple_unzip_wall_s:real?
        ntuple_unzip_cpu_s:real? kernel_read_chars:int? kernel_read_bytes:int?
        kernel_read_calls:int? hw_instructions:int? hw_cycles:int? hw_cache_misses:int?
        first_byte_s:real? read_latency_hist:long? read_latency_p50_s:real? read_latency_p95_s:real?
        read_latency_p99_s:real? read_latency_max_s:real? load_started_us:int? value_checksum:text?
        checksum_version:int? checksum_leaves:int? checksum_skipped_leaves:long? passes:bytes?
        subject_id:int origin_id:int software_id:int inventory_id:int node_id:int storage_id:int
    """,
    "rollup_day": """
        day:int subject_id:int kind:word outcome:word measurements:int last_us:int? software_id:int?
        node_id:int? storage_id:int? read_latency_hist:long
    """,
    "rollup_operation": """
        day:int subject_id:int outcome:word side:word operation:word steps:int limited_steps:int
        scheduled:int done:int failed:int late:int bytes:int latency:long?
    """,
    "watched_day": "series_id:key day:int value:real squares:real jobs:int context:long?",
    "attempt": """
        job_id:key attempt:int state:text? started_us:int ended_us:int exit_code:int?
        failure_class:text? message:long?
    """,
    "extra": "measurement_id:key name:word value:real",
    "operation": """
        measurement_id:key line:int side:word? operation:short server:text? step:int
        step_start_us:int step_s:real clients:int scheduled:int done:int failed:int late:int
        lateness_max_s:real generator_cpu:real generator_limited:bool bytes:int failures:text?
        latency:long?
    """,
}

# Each has three columns in rollup_day: the number of values, their sum and the sum of squares.
_ROLLUP_METRICS = """
    eff_job eff_payload eff_loop eff_access cpu_per_event_s wall_per_event_s event_rate_hz
    access_rate_hz setup_wall_s stagein_wall_s payload_wall_s payload_run_queue_s loop_wall_s
    loop_cpu_s first_byte_s bytes_read bytes_read_extra read_calls read_fraction kernel_read_bytes
    cache_efficiency_rel perfstats_read_s perfstats_unzip_s tree_peak_rss_bytes retries door_rtt_s
    load1_start
"""

# Table -> its primary key, where that is not its first column.
_PRIMARY_KEYS = {
    "access_revocation": "scope subject",
    "instruction_count": "count_id line",
    "pair": "comparison_id line",
    "patrol_charge": "campaign_id site",
    "patrol_start": "entry occasion",
    "receipt": "subject kind key_id address",
    "verdict": "comparison_id line",
    "rollup_day": "day subject_id kind outcome",
    "rollup_operation": "day subject_id outcome side operation",
    "watched_day": "series_id day",
    "attempt": "job_id attempt",
    "extra": "measurement_id name",
    "operation": "measurement_id line",
}

# Table -> columns that refer to another table, each COLUMN:TABLE.
_FOREIGN_KEYS = {
    "job": "campaign_id:campaign",
    "measurement": "inventory_id:inventory node_id:node origin_id:origin software_id:software storage_id:storage subject_id:subject",
    "rollup_day": "subject_id:subject",
    "rollup_operation": "subject_id:subject",
    "watched_day": "series_id:watched_series",
    "attempt": "job_id:job",
    "extra": "measurement_id:measurement",
    "operation": "measurement_id:measurement",
}

# Index -> its table and columns.
_INDEXES = {
    "ix_alarm_message_due": ("alarm_message", "delivery due_us"),
    "ix_alarm_message_recorded": ("alarm_message", "recorded_us"),
    "ix_campaign_created": ("campaign", "created_us"),
    "ix_change_point_day": ("change_point", "day"),
    "ix_instruction_count_test": ("instruction_count", "test_hash"),
    "ix_job_campaign": ("job", "campaign_id site"),
    "ix_job_state": ("job", "state campaign_id"),
    "ix_measurement_counts": (
        "measurement",
        "campaign_id subject_id kind failure_class plausible started_us",
    ),
    "ix_measurement_day": (
        "measurement",
        "day subject_id kind plausible failure_class eff_job cpu_per_event_s wall_per_event_s",
    ),
    "ix_measurement_order": (
        "measurement",
        "campaign_id job_id attempt round position measurement_id",
    ),
    "ix_measurement_subject": (
        "measurement",
        "subject_id day kind plausible failure_class started_us eff_job cpu_per_event_s "
        "wall_per_event_s node_id",
    ),
    "ix_patrol_charge_day": ("patrol_charge", "day site"),
    "ix_patrol_start_campaign": ("patrol_start", "campaign_id"),
    "ix_patrol_start_state": ("patrol_start", "state entry"),
    "ix_receipt_campaign": ("receipt", "campaign_id"),
    "ix_receipt_key": ("receipt", "key_id received_us"),
    "ix_release_check_campaign": ("release_check", "campaign_id"),
    "ix_release_check_state": ("release_check", "state changed_us"),
    "ix_rollup_day_subject": ("rollup_day", "subject_id day"),
    "ix_rollup_operation_subject": ("rollup_operation", "subject_id day"),
    "ix_status_change_since": ("status_change", "since_us"),
    "ix_subject_series": ("subject", "series"),
    "ix_verdict_latest": ("verdict", "line created_us comparison_id"),
    "ix_watched_day_day": ("watched_day", "day"),
}

_UNIQUE_INDEXES = ("ix_patrol_start_campaign",)


def upgrade() -> None:
    """Create all tables and indexes."""
    for table, columns in _TABLES.items():
        names = columns.split()
        key = _PRIMARY_KEYS.get(table, names[0].partition(":")[0]).split()
        constraints: list[sa.Constraint] = [
            sa.PrimaryKeyConstraint(*key, name=f"pk_{table}"),
        ]
        for reference in _FOREIGN_KEYS.get(table, "").split():
            column, _, referred = reference.partition(":")
            remote = "measurement_id" if referred == "measurement" else "id"
            constraints.append(
                sa.ForeignKeyConstraint(
                    [column], [f"{referred}.{remote}"], name=f"fk_{table}_{referred}"
                )
            )
        if table == "rollup_day":
            names += [
                f"{prefix}_{metric}:{kind}"
                for metric in _ROLLUP_METRICS.split()
                for prefix, kind in (("n", "int"), ("s", "real"), ("q", "real"))
            ]
        op.create_table(table, *map(_parse_column, names), *constraints)
    for index, (table, columns) in _INDEXES.items():
        op.create_index(index, table, columns.split(), unique=index in _UNIQUE_INDEXES)


def _parse_column(text: str) -> sa.Column[Any]:
    name, _, kind = text.partition(":")
    # Integer keys are computed, never assigned by the database.
    return sa.Column(
        name, _TYPES[kind.rstrip("?")], nullable=kind.endswith("?"), autoincrement=False
    )
