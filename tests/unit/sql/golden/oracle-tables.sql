-- What Treehammer sends to an Oracle server; the same for 19c and 23ai.
-- Renewed by: PYTHONPATH=tests/helpers .venv/bin/python -m oracle_golden

-- laying the tables

ALTER SESSION SET NLS_SORT = BINARY NLS_COMP = BINARY NLS_NUMERIC_CHARACTERS = '.,'
;

select sys_context( 'userenv', 'current_schema' ) from dual
;

begin
                   :trans_id := dbms_transaction.local_transaction_id( TRUE );
                end;
;

SELECT 1.1 FROM DUAL
;

SET TRANSACTION READ ONLY
;

SELECT value FROM nls_database_parameters WHERE parameter = 'NLS_CHARACTERSET'
;

SELECT 1 FROM DUAL
;

SELECT tables_and_views.table_name
FROM (SELECT a_tables.table_name AS table_name, a_tables.owner AS owner
FROM all_tables a_tables UNION ALL SELECT a_views.view_name AS table_name, a_views.owner AS owner
FROM all_views a_views) tables_and_views
WHERE tables_and_views.table_name IN (:table_names_1) AND tables_and_views.owner = :owner
;

SELECT a_tables.table_name
FROM all_tables a_tables
WHERE (coalesce(a_tables.tablespace_name, :coalesce_1) NOT IN (:coalesce_2_1, :coalesce_2_2)) AND
    a_tables.owner = :owner_1 AND a_tables.iot_name IS NULL AND a_tables.duration IS NULL MINUS
    SELECT a_mviews.mview_name AS table_name
FROM all_mviews a_mviews
WHERE a_mviews.owner = :owner_2
;

CREATE TABLE writer_lock (id NUMBER(1) NOT NULL, CONSTRAINT pk_writer_lock PRIMARY KEY (id))
;

SELECT id FROM writer_lock
;

INSERT INTO writer_lock (id) VALUES (1)
;

SELECT id FROM writer_lock WHERE id = 1 FOR UPDATE WAIT 30
;

SELECT tables_and_views.table_name
FROM (SELECT a_tables.table_name AS table_name, a_tables.owner AS owner
FROM all_tables a_tables UNION ALL SELECT a_views.view_name AS table_name, a_views.owner AS owner
FROM all_views a_views) tables_and_views
WHERE tables_and_views.table_name IN (:table_names_1, :table_names_2, :table_names_3,
    :table_names_4, :table_names_5, :table_names_6, :table_names_7, :table_names_8, :table_names_9,
    :table_names_10, :table_names_11, :table_names_12, :table_names_13, :table_names_14,
    :table_names_15, :table_names_16, :table_names_17) AND tables_and_views.owner = :owner
;

CREATE TABLE subject (
  id NUMBER(19) NOT NULL,
  series VARCHAR2(128 CHAR) NOT NULL,
  test_name VARCHAR2(4000 BYTE),
  variant VARCHAR2(4000 BYTE),
  variant_label VARCHAR2(4000 BYTE),
  site VARCHAR2(4000 BYTE),
  door VARCHAR2(4000 BYTE),
  door_protocol VARCHAR2(4000 BYTE),
  dataset VARCHAR2(4000 BYTE),
  dataset_hash VARCHAR2(4000 BYTE),
  content_hash VARCHAR2(4000 BYTE),
  axis_root VARCHAR2(4000 BYTE),
  axis_branches VARCHAR2(4000 BYTE),
  axis_cache_mb BINARY_DOUBLE,
  axis_events BINARY_DOUBLE,
  axis_access VARCHAR2(4000 BYTE),
  axis_cache VARCHAR2(4000 BYTE),
  passes_planned NUMBER(19) NOT NULL,
  CONSTRAINT pk_subject PRIMARY KEY (id)
)
;

CREATE INDEX ix_subject_series ON subject (series)
;

CREATE TABLE origin (
  id NUMBER(19) NOT NULL,
  record_version NUMBER(19) NOT NULL,
  instrument_version NUMBER(19) NOT NULL,
  campaign_name VARCHAR2(4000 BYTE),
  repository VARCHAR2(4000 BYTE),
  ref VARCHAR2(4000 BYTE),
  commit_id VARCHAR2(4000 BYTE),
  dirty SMALLINT NOT NULL,
  test_path VARCHAR2(4000 BYTE),
  test_hash VARCHAR2(4000 BYTE),
  payload_hash VARCHAR2(4000 BYTE),
  treehammer_version VARCHAR2(4000 BYTE),
  CONSTRAINT pk_origin PRIMARY KEY (id)
)
;

CREATE TABLE software (
  id NUMBER(19) NOT NULL,
  root_provider VARCHAR2(4000 BYTE),
  root_version VARCHAR2(4000 BYTE),
  root_commit VARCHAR2(4000 BYTE),
  root_platform VARCHAR2(4000 BYTE),
  root_compiler VARCHAR2(4000 BYTE),
  root_flags VARCHAR2(4000 BYTE),
  root_cxx_standard VARCHAR2(4000 BYTE),
  root_features CLOB,
  zlib_version VARCHAR2(4000 BYTE),
  lzma_version VARCHAR2(4000 BYTE),
  lz4_version VARCHAR2(4000 BYTE),
  zstd_version VARCHAR2(4000 BYTE),
  libcore_sha256 VARCHAR2(4000 BYTE),
  CONSTRAINT pk_software PRIMARY KEY (id)
)
;

CREATE TABLE inventory (
  id NUMBER(19) NOT NULL,
  inventory CLOB,
  CONSTRAINT pk_inventory PRIMARY KEY (id)
)
;

CREATE TABLE node (
  id NUMBER(19) NOT NULL,
  host VARCHAR2(4000 BYTE),
  cpu_model VARCHAR2(4000 BYTE),
  cores_online NUMBER(19),
  cores_allowed NUMBER(19),
  cgroup_cpu_limit BINARY_DOUBLE,
  cgroup_memory_limit_bytes NUMBER(19),
  mem_total_bytes NUMBER(19),
  kernel VARCHAR2(4000 BYTE),
  os_name VARCHAR2(4000 BYTE),
  container VARCHAR2(4000 BYTE),
  worker_python VARCHAR2(4000 BYTE),
  CONSTRAINT pk_node PRIMARY KEY (id)
)
;

CREATE TABLE storage (
  id NUMBER(19) NOT NULL,
  file_name VARCHAR2(4000 BYTE),
  file_url VARCHAR2(4000 BYTE),
  file_size_bytes NUMBER(19),
  file_class VARCHAR2(4000 BYTE),
  data_server VARCHAR2(4000 BYTE),
  address_family VARCHAR2(4000 BYTE),
  server_version VARCHAR2(4000 BYTE),
  client_cache_state VARCHAR2(4000 BYTE),
  client_cache_method VARCHAR2(4000 BYTE),
  server_cache_state VARCHAR2(4000 BYTE),
  server_cache_method VARCHAR2(4000 BYTE),
  CONSTRAINT pk_storage PRIMARY KEY (id)
)
;

CREATE TABLE campaign (
  id VARCHAR2(128 CHAR) NOT NULL,
  name VARCHAR2(4000 BYTE),
  created_us NUMBER(19) NOT NULL,
  repository VARCHAR2(4000 BYTE),
  ref VARCHAR2(4000 BYTE),
  commit_id VARCHAR2(128 CHAR),
  dirty SMALLINT NOT NULL,
  test_name VARCHAR2(4000 BYTE),
  test_path VARCHAR2(4000 BYTE),
  plan CLOB,
  planned_jobs NUMBER(19) NOT NULL,
  planned_measurements NUMBER(19) NOT NULL,
  CONSTRAINT pk_campaign PRIMARY KEY (id)
)
;

CREATE INDEX ix_campaign_created ON campaign (created_us)
;

CREATE TABLE replica (
  id VARCHAR2(128 CHAR) NOT NULL,
  found_us NUMBER(19) NOT NULL,
  dataset VARCHAR2(4000 BYTE),
  dataset_hash VARCHAR2(4000 BYTE),
  site VARCHAR2(4000 BYTE),
  door VARCHAR2(4000 BYTE),
  file_name VARCHAR2(4000 BYTE),
  url VARCHAR2(4000 BYTE),
  good SMALLINT NOT NULL,
  message CLOB,
  CONSTRAINT pk_replica PRIMARY KEY (id)
)
;

CREATE TABLE pair (
  comparison_id VARCHAR2(128 CHAR) NOT NULL,
  line NUMBER(19) NOT NULL,
  site VARCHAR2(4000 BYTE),
  comparison_key VARCHAR2(4000 BYTE),
  label VARCHAR2(4000 BYTE),
  metric VARCHAR2(4000 BYTE),
  axis VARCHAR2(4000 BYTE),
  a VARCHAR2(4000 BYTE),
  b VARCHAR2(4000 BYTE),
  job_id VARCHAR2(128 CHAR),
  campaign_id VARCHAR2(128 CHAR),
  host VARCHAR2(4000 BYTE),
  rounds NUMBER(19) NOT NULL,
  a_value BINARY_DOUBLE NOT NULL,
  b_value BINARY_DOUBLE NOT NULL,
  d BINARY_DOUBLE NOT NULL,
  CONSTRAINT pk_pair PRIMARY KEY (comparison_id, line)
)
;

CREATE TABLE verdict (
  comparison_id VARCHAR2(128 CHAR) NOT NULL,
  line NUMBER(19) NOT NULL,
  site VARCHAR2(4000 BYTE),
  comparison_key VARCHAR2(4000 BYTE),
  label VARCHAR2(4000 BYTE),
  metric VARCHAR2(4000 BYTE),
  axis VARCHAR2(4000 BYTE),
  a VARCHAR2(4000 BYTE),
  b VARCHAR2(4000 BYTE),
  created_us NUMBER(19) NOT NULL,
  rule_version NUMBER(19) NOT NULL,
  scope VARCHAR2(4000 BYTE),
  verdict VARCHAR2(4000 BYTE),
  effect BINARY_DOUBLE,
  low BINARY_DOUBLE,
  high BINARY_DOUBLE,
  jobs NUMBER(19) NOT NULL,
  hosts NUMBER(19) NOT NULL,
  jobs_needed NUMBER(19),
  evidence CLOB,
  CONSTRAINT pk_verdict PRIMARY KEY (comparison_id, line)
)
;

CREATE INDEX ix_verdict_latest ON verdict (line, created_us, comparison_id)
;

CREATE TABLE access_key (
  kid VARCHAR2(128 CHAR) NOT NULL,
  role VARCHAR2(128 CHAR) NOT NULL,
  name VARCHAR2(4000 BYTE) NOT NULL,
  created_us NUMBER(19) NOT NULL,
  expires_us NUMBER(19),
  revoked_us NUMBER(19),
  made_with VARCHAR2(128 CHAR) NOT NULL,
  CONSTRAINT pk_access_key PRIMARY KEY (kid)
)
;

CREATE TABLE access_revocation (
  scope VARCHAR2(128 CHAR) NOT NULL,
  subject VARCHAR2(128 CHAR) NOT NULL,
  revoked_us NUMBER(19) NOT NULL,
  CONSTRAINT pk_access_revocation PRIMARY KEY (scope, subject)
)
;

CREATE TABLE measurement (
  measurement_id VARCHAR2(128 CHAR) NOT NULL,
  campaign_id VARCHAR2(128 CHAR) NOT NULL,
  job_id VARCHAR2(128 CHAR) NOT NULL,
  attempt NUMBER(19) NOT NULL,
  kind VARCHAR2(64 CHAR),
  repeat NUMBER(19) NOT NULL,
  round NUMBER(19) NOT NULL,
  position NUMBER(19) NOT NULL,
  started_us NUMBER(19) NOT NULL,
  ended_us NUMBER(19) NOT NULL,
  day NUMBER(19) NOT NULL,
  setup_wall_s BINARY_DOUBLE,
  setup_cpu_s BINARY_DOUBLE,
  stagein_wall_s BINARY_DOUBLE,
  stagein_cpu_s BINARY_DOUBLE,
  stagein_bytes NUMBER(19),
  payload_wall_s BINARY_DOUBLE,
  payload_user_s BINARY_DOUBLE,
  payload_sys_s BINARY_DOUBLE,
  payload_run_queue_s BINARY_DOUBLE,
  eff_payload BINARY_DOUBLE,
  eff_job BINARY_DOUBLE,
  access_rate_hz BINARY_DOUBLE,
  eff_access BINARY_DOUBLE,
  max_rss_bytes NUMBER(19),
  tree_peak_rss_bytes NUMBER(19),
  ctx_voluntary NUMBER(19),
  ctx_involuntary NUMBER(19),
  page_faults_minor NUMBER(19),
  page_faults_major NUMBER(19),
  io_read_chars NUMBER(19),
  io_write_chars NUMBER(19),
  io_read_bytes NUMBER(19),
  io_write_bytes NUMBER(19),
  processes NUMBER(19),
  exit_code NUMBER(19),
  exit_signal NUMBER(19),
  cpu_mhz BINARY_DOUBLE,
  cpu_steal_s BINARY_DOUBLE,
  psi_cpu_some_s BINARY_DOUBLE,
  psi_io_some_s BINARY_DOUBLE,
  psi_memory_some_s BINARY_DOUBLE,
  cgroup_throttled_s BINARY_DOUBLE,
  load1_start BINARY_DOUBLE,
  load1_end BINARY_DOUBLE,
  mem_available_start_bytes NUMBER(19),
  mem_available_end_bytes NUMBER(19),
  calibration_before_s BINARY_DOUBLE,
  calibration_after_s BINARY_DOUBLE,
  slot VARCHAR2(4000 BYTE),
  concurrent_door_jobs NUMBER(19),
  door_rtt_s BINARY_DOUBLE,
  client_cached_fraction BINARY_DOUBLE,
  failure_class VARCHAR2(64 CHAR),
  failure_kind VARCHAR2(4000 BYTE),
  failure_phase VARCHAR2(4000 BYTE),
  failure_message CLOB,
  failure_transient SMALLINT,
  plausible SMALLINT NOT NULL,
  implausible_reasons CLOB,
  log_excerpt CLOB,
  import_wall_s BINARY_DOUBLE,
  import_user_s BINARY_DOUBLE,
  import_sys_s BINARY_DOUBLE,
  compile_wall_s BINARY_DOUBLE,
  passes_done NUMBER(19),
  passes_counted NUMBER(19),
  open_wall_s BINARY_DOUBLE,
  open_user_s BINARY_DOUBLE,
  open_sys_s BINARY_DOUBLE,
  get_tree_wall_s BINARY_DOUBLE,
  get_tree_user_s BINARY_DOUBLE,
  get_tree_sys_s BINARY_DOUBLE,
  prepare_wall_s BINARY_DOUBLE,
  prepare_user_s BINARY_DOUBLE,
  prepare_sys_s BINARY_DOUBLE,
  loop_wall_s BINARY_DOUBLE,
  loop_user_s BINARY_DOUBLE,
  loop_sys_s BINARY_DOUBLE,
  close_wall_s BINARY_DOUBLE,
  close_user_s BINARY_DOUBLE,
  close_sys_s BINARY_DOUBLE,
  loop_cpu_s BINARY_DOUBLE,
  loop_run_queue_s BINARY_DOUBLE,
  cpu_per_event_s BINARY_DOUBLE,
  wall_per_event_s BINARY_DOUBLE,
  event_rate_hz BINARY_DOUBLE,
  eff_loop BINARY_DOUBLE,
  eff_loop_corrected BINARY_DOUBLE,
  events_total NUMBER(19),
  events_read NUMBER(19),
  branches_total NUMBER(19),
  branches_selected NUMBER(19),
  selected_zip_bytes NUMBER(19),
  loop_unzipped_bytes NUMBER(19),
  bytes_read NUMBER(19),
  bytes_read_extra NUMBER(19),
  read_calls NUMBER(19),
  read_calls_single NUMBER(19),
  read_calls_vector NUMBER(19),
  read_calls_prefetch NUMBER(19),
  vector_chunks BINARY_DOUBLE,
  read_fraction BINARY_DOUBLE,
  cache_bytes NUMBER(19),
  cache_efficiency BINARY_DOUBLE,
  cache_efficiency_rel BINARY_DOUBLE,
  cache_bytes_read NUMBER(19),
  cache_read_calls NUMBER(19),
  cache_missed_bytes NUMBER(19),
  cache_missed_calls NUMBER(19),
  perfstats_bytes_read NUMBER(19),
  perfstats_read_calls NUMBER(19),
  perfstats_read_s BINARY_DOUBLE,
  perfstats_unzip_s BINARY_DOUBLE,
  perfstats_wall_s BINARY_DOUBLE,
  perfstats_cpu_s BINARY_DOUBLE,
  ntuple_cluster_cache SMALLINT,
  ntuple_pages_read NUMBER(19),
  ntuple_pages_unzipped NUMBER(19),
  ntuple_clusters_loaded NUMBER(19),
  ntuple_vector_reads NUMBER(19),
  ntuple_ranges_read NUMBER(19),
  ntuple_payload_bytes NUMBER(19),
  ntuple_overhead_bytes NUMBER(19),
  ntuple_unzipped_bytes NUMBER(19),
  ntuple_read_wall_s BINARY_DOUBLE,
  ntuple_read_cpu_s BINARY_DOUBLE,
  ntuple_unzip_wall_s BINARY_DOUBLE,
  ntuple_unzip_cpu_s BINARY_DOUBLE,
  kernel_read_chars NUMBER(19),
  kernel_read_bytes NUMBER(19),
  kernel_read_calls NUMBER(19),
  first_byte_s BINARY_DOUBLE,
  read_latency_hist CLOB,
  read_latency_p50_s BINARY_DOUBLE,
  read_latency_p95_s BINARY_DOUBLE,
  read_latency_p99_s BINARY_DOUBLE,
  read_latency_max_s BINARY_DOUBLE,
  retries NUMBER(19),
  value_checksum VARCHAR2(4000 BYTE),
  checksum_version NUMBER(19),
  checksum_leaves NUMBER(19),
  checksum_skipped_leaves CLOB,
  passes BLOB,
  subject_id NUMBER(19) NOT NULL,
  origin_id NUMBER(19) NOT NULL,
  software_id NUMBER(19) NOT NULL,
  inventory_id NUMBER(19) NOT NULL,
  node_id NUMBER(19) NOT NULL,
  storage_id NUMBER(19) NOT NULL,
  CONSTRAINT pk_measurement PRIMARY KEY (measurement_id),
  CONSTRAINT fk_measurement_subject FOREIGN KEY(subject_id) REFERENCES subject (id),
  CONSTRAINT fk_measurement_origin FOREIGN KEY(origin_id) REFERENCES origin (id),
  CONSTRAINT fk_measurement_software FOREIGN KEY(software_id) REFERENCES software (id),
  CONSTRAINT fk_measurement_inventory FOREIGN KEY(inventory_id) REFERENCES inventory (id),
  CONSTRAINT fk_measurement_node FOREIGN KEY(node_id) REFERENCES node (id),
  CONSTRAINT fk_measurement_storage FOREIGN KEY(storage_id) REFERENCES storage (id)
)
;

CREATE INDEX ix_measurement_counts ON measurement (campaign_id, subject_id, kind, failure_class,
    plausible)
;

CREATE INDEX ix_measurement_day ON measurement (day, subject_id, kind, plausible, failure_class,
    eff_job, cpu_per_event_s, wall_per_event_s)
;

CREATE INDEX ix_measurement_order ON measurement (campaign_id, job_id, attempt, round, position,
    measurement_id)
;

CREATE INDEX ix_measurement_subject ON measurement (subject_id, day, kind, plausible, failure_class,
    eff_job, cpu_per_event_s, wall_per_event_s, started_us)
;

CREATE TABLE rollup_day (
  day NUMBER(19) NOT NULL,
  subject_id NUMBER(19) NOT NULL,
  kind VARCHAR2(64 CHAR) NOT NULL,
  outcome VARCHAR2(64 CHAR) NOT NULL,
  measurements NUMBER(19) NOT NULL,
  n_eff_job NUMBER(19) NOT NULL,
  s_eff_job BINARY_DOUBLE NOT NULL,
  q_eff_job BINARY_DOUBLE NOT NULL,
  n_eff_payload NUMBER(19) NOT NULL,
  s_eff_payload BINARY_DOUBLE NOT NULL,
  q_eff_payload BINARY_DOUBLE NOT NULL,
  n_eff_loop NUMBER(19) NOT NULL,
  s_eff_loop BINARY_DOUBLE NOT NULL,
  q_eff_loop BINARY_DOUBLE NOT NULL,
  n_eff_access NUMBER(19) NOT NULL,
  s_eff_access BINARY_DOUBLE NOT NULL,
  q_eff_access BINARY_DOUBLE NOT NULL,
  n_cpu_per_event_s NUMBER(19) NOT NULL,
  s_cpu_per_event_s BINARY_DOUBLE NOT NULL,
  q_cpu_per_event_s BINARY_DOUBLE NOT NULL,
  n_wall_per_event_s NUMBER(19) NOT NULL,
  s_wall_per_event_s BINARY_DOUBLE NOT NULL,
  q_wall_per_event_s BINARY_DOUBLE NOT NULL,
  n_event_rate_hz NUMBER(19) NOT NULL,
  s_event_rate_hz BINARY_DOUBLE NOT NULL,
  q_event_rate_hz BINARY_DOUBLE NOT NULL,
  n_access_rate_hz NUMBER(19) NOT NULL,
  s_access_rate_hz BINARY_DOUBLE NOT NULL,
  q_access_rate_hz BINARY_DOUBLE NOT NULL,
  n_setup_wall_s NUMBER(19) NOT NULL,
  s_setup_wall_s BINARY_DOUBLE NOT NULL,
  q_setup_wall_s BINARY_DOUBLE NOT NULL,
  n_stagein_wall_s NUMBER(19) NOT NULL,
  s_stagein_wall_s BINARY_DOUBLE NOT NULL,
  q_stagein_wall_s BINARY_DOUBLE NOT NULL,
  n_payload_wall_s NUMBER(19) NOT NULL,
  s_payload_wall_s BINARY_DOUBLE NOT NULL,
  q_payload_wall_s BINARY_DOUBLE NOT NULL,
  n_payload_run_queue_s NUMBER(19) NOT NULL,
  s_payload_run_queue_s BINARY_DOUBLE NOT NULL,
  q_payload_run_queue_s BINARY_DOUBLE NOT NULL,
  n_loop_wall_s NUMBER(19) NOT NULL,
  s_loop_wall_s BINARY_DOUBLE NOT NULL,
  q_loop_wall_s BINARY_DOUBLE NOT NULL,
  n_loop_cpu_s NUMBER(19) NOT NULL,
  s_loop_cpu_s BINARY_DOUBLE NOT NULL,
  q_loop_cpu_s BINARY_DOUBLE NOT NULL,
  n_first_byte_s NUMBER(19) NOT NULL,
  s_first_byte_s BINARY_DOUBLE NOT NULL,
  q_first_byte_s BINARY_DOUBLE NOT NULL,
  n_bytes_read NUMBER(19) NOT NULL,
  s_bytes_read BINARY_DOUBLE NOT NULL,
  q_bytes_read BINARY_DOUBLE NOT NULL,
  n_bytes_read_extra NUMBER(19) NOT NULL,
  s_bytes_read_extra BINARY_DOUBLE NOT NULL,
  q_bytes_read_extra BINARY_DOUBLE NOT NULL,
  n_read_calls NUMBER(19) NOT NULL,
  s_read_calls BINARY_DOUBLE NOT NULL,
  q_read_calls BINARY_DOUBLE NOT NULL,
  n_read_fraction NUMBER(19) NOT NULL,
  s_read_fraction BINARY_DOUBLE NOT NULL,
  q_read_fraction BINARY_DOUBLE NOT NULL,
  n_kernel_read_bytes NUMBER(19) NOT NULL,
  s_kernel_read_bytes BINARY_DOUBLE NOT NULL,
  q_kernel_read_bytes BINARY_DOUBLE NOT NULL,
  n_cache_efficiency_rel NUMBER(19) NOT NULL,
  s_cache_efficiency_rel BINARY_DOUBLE NOT NULL,
  q_cache_efficiency_rel BINARY_DOUBLE NOT NULL,
  n_perfstats_read_s NUMBER(19) NOT NULL,
  s_perfstats_read_s BINARY_DOUBLE NOT NULL,
  q_perfstats_read_s BINARY_DOUBLE NOT NULL,
  n_perfstats_unzip_s NUMBER(19) NOT NULL,
  s_perfstats_unzip_s BINARY_DOUBLE NOT NULL,
  q_perfstats_unzip_s BINARY_DOUBLE NOT NULL,
  n_tree_peak_rss_bytes NUMBER(19) NOT NULL,
  s_tree_peak_rss_bytes BINARY_DOUBLE NOT NULL,
  q_tree_peak_rss_bytes BINARY_DOUBLE NOT NULL,
  n_retries NUMBER(19) NOT NULL,
  s_retries BINARY_DOUBLE NOT NULL,
  q_retries BINARY_DOUBLE NOT NULL,
  n_door_rtt_s NUMBER(19) NOT NULL,
  s_door_rtt_s BINARY_DOUBLE NOT NULL,
  q_door_rtt_s BINARY_DOUBLE NOT NULL,
  n_load1_start NUMBER(19) NOT NULL,
  s_load1_start BINARY_DOUBLE NOT NULL,
  q_load1_start BINARY_DOUBLE NOT NULL,
  read_latency_hist CLOB NOT NULL,
  CONSTRAINT pk_rollup_day PRIMARY KEY (day, subject_id, kind, outcome),
  CONSTRAINT fk_rollup_day_subject FOREIGN KEY(subject_id) REFERENCES subject (id)
)
;

CREATE INDEX ix_rollup_day_subject ON rollup_day (subject_id, day)
;

CREATE TABLE job (
  id VARCHAR2(128 CHAR) NOT NULL,
  campaign_id VARCHAR2(128 CHAR) NOT NULL,
  site VARCHAR2(4000 BYTE),
  door VARCHAR2(4000 BYTE),
  kind VARCHAR2(4000 BYTE),
  repeat NUMBER(19) NOT NULL,
  label VARCHAR2(4000 BYTE),
  batch_system VARCHAR2(4000 BYTE),
  batch_id VARCHAR2(128 CHAR),
  planned_measurements NUMBER(19) NOT NULL,
  state VARCHAR2(4000 BYTE),
  CONSTRAINT pk_job PRIMARY KEY (id),
  CONSTRAINT fk_job_campaign FOREIGN KEY(campaign_id) REFERENCES campaign (id)
)
;

CREATE INDEX ix_job_campaign ON job (campaign_id, site)
;

CREATE INDEX ix_job_state ON job (state, campaign_id)
;

CREATE TABLE extra (
  measurement_id VARCHAR2(128 CHAR) NOT NULL,
  name VARCHAR2(64 CHAR) NOT NULL,
  value BINARY_DOUBLE NOT NULL,
  CONSTRAINT pk_extra PRIMARY KEY (measurement_id, name),
  CONSTRAINT fk_extra_measurement FOREIGN KEY(measurement_id) REFERENCES measurement
    (measurement_id)
)
;

CREATE TABLE attempt (
  job_id VARCHAR2(128 CHAR) NOT NULL,
  attempt NUMBER(19) NOT NULL,
  state VARCHAR2(4000 BYTE),
  started_us NUMBER(19) NOT NULL,
  ended_us NUMBER(19) NOT NULL,
  exit_code NUMBER(19),
  failure_class VARCHAR2(4000 BYTE),
  message CLOB,
  CONSTRAINT pk_attempt PRIMARY KEY (job_id, attempt),
  CONSTRAINT fk_attempt_job FOREIGN KEY(job_id) REFERENCES job (id)
)
;

CREATE TABLE alembic_version (
  version_num VARCHAR2(32 CHAR) NOT NULL,
  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
;

INSERT INTO alembic_version (version_num) VALUES (:version_num)
;

SELECT alembic_version.version_num
FROM alembic_version
;

SELECT table_name, column_name FROM user_tab_columns
;

SELECT table_name, index_name, column_name FROM user_ind_columns ORDER BY table_name, index_name,
    column_position
;

SELECT table_name, constraint_name, column_name FROM user_cons_columns WHERE constraint_name IN
    (SELECT constraint_name FROM user_constraints WHERE constraint_type = 'P') ORDER BY table_name,
    constraint_name, position
;

SELECT measurement.measurement_id, measurement.read_latency_hist AS read_latency_hist
FROM measurement
WHERE measurement.read_latency_hist IS NOT NULL
;

SELECT measurement.measurement_id, measurement.passes AS passes
FROM measurement
WHERE measurement.passes IS NOT NULL
;

SELECT rollup_day.day, rollup_day.subject_id, rollup_day.kind, rollup_day.outcome,
    rollup_day.measurements, rollup_day.n_eff_job, rollup_day.s_eff_job, rollup_day.q_eff_job,
    rollup_day.n_eff_payload, rollup_day.s_eff_payload, rollup_day.q_eff_payload,
    rollup_day.n_eff_loop, rollup_day.s_eff_loop, rollup_day.q_eff_loop, rollup_day.n_eff_access,
    rollup_day.s_eff_access, rollup_day.q_eff_access, rollup_day.n_cpu_per_event_s,
    rollup_day.s_cpu_per_event_s, rollup_day.q_cpu_per_event_s, rollup_day.n_wall_per_event_s,
    rollup_day.s_wall_per_event_s, rollup_day.q_wall_per_event_s, rollup_day.n_event_rate_hz,
    rollup_day.s_event_rate_hz, rollup_day.q_event_rate_hz, rollup_day.n_access_rate_hz,
    rollup_day.s_access_rate_hz, rollup_day.q_access_rate_hz, rollup_day.n_setup_wall_s,
    rollup_day.s_setup_wall_s, rollup_day.q_setup_wall_s, rollup_day.n_stagein_wall_s,
    rollup_day.s_stagein_wall_s, rollup_day.q_stagein_wall_s, rollup_day.n_payload_wall_s,
    rollup_day.s_payload_wall_s, rollup_day.q_payload_wall_s, rollup_day.n_payload_run_queue_s,
    rollup_day.s_payload_run_queue_s, rollup_day.q_payload_run_queue_s, rollup_day.n_loop_wall_s,
    rollup_day.s_loop_wall_s, rollup_day.q_loop_wall_s, rollup_day.n_loop_cpu_s,
    rollup_day.s_loop_cpu_s, rollup_day.q_loop_cpu_s, rollup_day.n_first_byte_s,
    rollup_day.s_first_byte_s, rollup_day.q_first_byte_s, rollup_day.n_bytes_read,
    rollup_day.s_bytes_read, rollup_day.q_bytes_read, rollup_day.n_bytes_read_extra,
    rollup_day.s_bytes_read_extra, rollup_day.q_bytes_read_extra, rollup_day.n_read_calls,
    rollup_day.s_read_calls, rollup_day.q_read_calls, rollup_day.n_read_fraction,
    rollup_day.s_read_fraction, rollup_day.q_read_fraction, rollup_day.n_kernel_read_bytes,
    rollup_day.s_kernel_read_bytes, rollup_day.q_kernel_read_bytes,
    rollup_day.n_cache_efficiency_rel, rollup_day.s_cache_efficiency_rel,
    rollup_day.q_cache_efficiency_rel, rollup_day.n_perfstats_read_s, rollup_day.s_perfstats_read_s,
    rollup_day.q_perfstats_read_s, rollup_day.n_perfstats_unzip_s, rollup_day.s_perfstats_unzip_s,
    rollup_day.q_perfstats_unzip_s, rollup_day.n_tree_peak_rss_bytes, rollup_day.s_tree_peak_rss_bytes,
    rollup_day.q_tree_peak_rss_bytes, rollup_day.n_retries, rollup_day.s_retries,
    rollup_day.q_retries, rollup_day.n_door_rtt_s, rollup_day.s_door_rtt_s, rollup_day.q_door_rtt_s,
    rollup_day.n_load1_start, rollup_day.s_load1_start, rollup_day.q_load1_start,
    rollup_day.read_latency_hist AS read_latency_hist
FROM rollup_day
;

SELECT measurement.day, measurement.subject_id, coalesce(measurement.kind, '-') AS coalesce_1, CASE
    WHEN (measurement.failure_kind = 'not-supported' AND measurement.failure_class = 'software
    setup') THEN 'software setup: not supported' WHEN (measurement.failure_kind = 'not-supported'
    AND measurement.failure_class = 'stage-in') THEN 'stage-in: not supported' ELSE
    coalesce(measurement.failure_class, CASE WHEN (measurement.plausible = 1) THEN 'good' ELSE
    'implausible' END) END AS anon_1, measurement.read_latency_hist AS read_latency_hist
FROM measurement
WHERE measurement.read_latency_hist IS NOT NULL
;

SELECT measurement.day AS day, measurement.subject_id AS subject_id, coalesce(measurement.kind, '-')
    AS kind, CASE WHEN (measurement.failure_kind = 'not-supported' AND measurement.failure_class =
    'software setup') THEN 'software setup: not supported' WHEN (measurement.failure_kind =
    'not-supported' AND measurement.failure_class = 'stage-in') THEN 'stage-in: not supported' ELSE
    coalesce(measurement.failure_class, CASE WHEN (measurement.plausible = 1) THEN 'good' ELSE
    'implausible' END) END AS outcome, count(*) AS measurements, count(CASE WHEN
    (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END) AS n_eff_job, coalesce(sum(CASE WHEN
    (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END), :coalesce_1) AS s_eff_job, coalesce(sum(CASE
    WHEN (CASE WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END BETWEEN :param_3 AND :param_4) THEN NULL ELSE
    CASE WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.eff_job AS
    BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN CAST(measurement.eff_job AS BINARY_DOUBLE)
    END END), :coalesce_2) AS q_eff_job, count(CASE WHEN (CAST(measurement.eff_payload AS
    BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN CAST(measurement.eff_payload AS
    BINARY_DOUBLE) END) AS n_eff_payload, coalesce(sum(CASE WHEN (CAST(measurement.eff_payload AS
    BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN CAST(measurement.eff_payload AS
    BINARY_DOUBLE) END), :coalesce_3) AS s_eff_payload, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.eff_payload AS BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN
    CAST(measurement.eff_payload AS BINARY_DOUBLE) END BETWEEN :param_7 AND :param_8) THEN NULL ELSE
    CASE WHEN (CAST(measurement.eff_payload AS BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN
    CAST(measurement.eff_payload AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.eff_payload AS
    BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN CAST(measurement.eff_payload AS
    BINARY_DOUBLE) END END), :coalesce_4) AS q_eff_payload, count(CASE WHEN
    (CAST(measurement.eff_loop AS BINARY_DOUBLE) BETWEEN :param_9 AND :param_10) THEN
    CAST(measurement.eff_loop AS BINARY_DOUBLE) END) AS n_eff_loop, coalesce(sum(CASE WHEN
    (CAST(measurement.eff_loop AS BINARY_DOUBLE) BETWEEN :param_9 AND :param_10) THEN
    CAST(measurement.eff_loop AS BINARY_DOUBLE) END), :coalesce_5) AS s_eff_loop, coalesce(sum(CASE
    WHEN (CASE WHEN (CAST(measurement.eff_loop AS BINARY_DOUBLE) BETWEEN :param_9 AND :param_10)
    THEN CAST(measurement.eff_loop AS BINARY_DOUBLE) END BETWEEN :param_11 AND :param_12) THEN NULL
    ELSE CASE WHEN (CAST(measurement.eff_loop AS BINARY_DOUBLE) BETWEEN :param_9 AND :param_10) THEN
    CAST(measurement.eff_loop AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.eff_loop AS
    BINARY_DOUBLE) BETWEEN :param_9 AND :param_10) THEN CAST(measurement.eff_loop AS BINARY_DOUBLE)
    END END), :coalesce_6) AS q_eff_loop, count(CASE WHEN (CAST(measurement.eff_access AS
    BINARY_DOUBLE) BETWEEN :param_13 AND :param_14) THEN CAST(measurement.eff_access AS
    BINARY_DOUBLE) END) AS n_eff_access, coalesce(sum(CASE WHEN (CAST(measurement.eff_access AS
    BINARY_DOUBLE) BETWEEN :param_13 AND :param_14) THEN CAST(measurement.eff_access AS
    BINARY_DOUBLE) END), :coalesce_7) AS s_eff_access, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.eff_access AS BINARY_DOUBLE) BETWEEN :param_13 AND :param_14) THEN
    CAST(measurement.eff_access AS BINARY_DOUBLE) END BETWEEN :param_15 AND :param_16) THEN NULL
    ELSE CASE WHEN (CAST(measurement.eff_access AS BINARY_DOUBLE) BETWEEN :param_13 AND :param_14)
    THEN CAST(measurement.eff_access AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.eff_access
    AS BINARY_DOUBLE) BETWEEN :param_13 AND :param_14) THEN CAST(measurement.eff_access AS
    BINARY_DOUBLE) END END), :coalesce_8) AS q_eff_access, count(CASE WHEN
    (CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) BETWEEN :param_17 AND :param_18) THEN
    CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) END) AS n_cpu_per_event_s, coalesce(sum(CASE
    WHEN (CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) BETWEEN :param_17 AND :param_18) THEN
    CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) END), :coalesce_9) AS s_cpu_per_event_s,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) BETWEEN
    :param_17 AND :param_18) THEN CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) END BETWEEN
    :param_19 AND :param_20) THEN NULL ELSE CASE WHEN (CAST(measurement.cpu_per_event_s AS
    BINARY_DOUBLE) BETWEEN :param_17 AND :param_18) THEN CAST(measurement.cpu_per_event_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) BETWEEN
    :param_17 AND :param_18) THEN CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) END END),
    :coalesce_10) AS q_cpu_per_event_s, count(CASE WHEN (CAST(measurement.wall_per_event_s AS
    BINARY_DOUBLE) BETWEEN :param_21 AND :param_22) THEN CAST(measurement.wall_per_event_s AS
    BINARY_DOUBLE) END) AS n_wall_per_event_s, coalesce(sum(CASE WHEN
    (CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) BETWEEN :param_21 AND :param_22) THEN
    CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) END), :coalesce_11) AS s_wall_per_event_s,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) BETWEEN
    :param_21 AND :param_22) THEN CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) END BETWEEN
    :param_23 AND :param_24) THEN NULL ELSE CASE WHEN (CAST(measurement.wall_per_event_s AS
    BINARY_DOUBLE) BETWEEN :param_21 AND :param_22) THEN CAST(measurement.wall_per_event_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) BETWEEN
    :param_21 AND :param_22) THEN CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) END END),
    :coalesce_12) AS q_wall_per_event_s, count(CASE WHEN (CAST(measurement.event_rate_hz AS
    BINARY_DOUBLE) BETWEEN :param_25 AND :param_26) THEN CAST(measurement.event_rate_hz AS
    BINARY_DOUBLE) END) AS n_event_rate_hz, coalesce(sum(CASE WHEN (CAST(measurement.event_rate_hz
    AS BINARY_DOUBLE) BETWEEN :param_25 AND :param_26) THEN CAST(measurement.event_rate_hz AS
    BINARY_DOUBLE) END), :coalesce_13) AS s_event_rate_hz, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.event_rate_hz AS BINARY_DOUBLE) BETWEEN :param_25 AND :param_26) THEN
    CAST(measurement.event_rate_hz AS BINARY_DOUBLE) END BETWEEN :param_27 AND :param_28) THEN NULL
    ELSE CASE WHEN (CAST(measurement.event_rate_hz AS BINARY_DOUBLE) BETWEEN :param_25 AND
    :param_26) THEN CAST(measurement.event_rate_hz AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.event_rate_hz AS BINARY_DOUBLE) BETWEEN :param_25 AND :param_26) THEN
    CAST(measurement.event_rate_hz AS BINARY_DOUBLE) END END), :coalesce_14) AS q_event_rate_hz,
    count(CASE WHEN (CAST(measurement.access_rate_hz AS BINARY_DOUBLE) BETWEEN :param_29 AND
    :param_30) THEN CAST(measurement.access_rate_hz AS BINARY_DOUBLE) END) AS n_access_rate_hz,
    coalesce(sum(CASE WHEN (CAST(measurement.access_rate_hz AS BINARY_DOUBLE) BETWEEN :param_29 AND
    :param_30) THEN CAST(measurement.access_rate_hz AS BINARY_DOUBLE) END), :coalesce_15) AS
    s_access_rate_hz, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.access_rate_hz AS
    BINARY_DOUBLE) BETWEEN :param_29 AND :param_30) THEN CAST(measurement.access_rate_hz AS
    BINARY_DOUBLE) END BETWEEN :param_31 AND :param_32) THEN NULL ELSE CASE WHEN
    (CAST(measurement.access_rate_hz AS BINARY_DOUBLE) BETWEEN :param_29 AND :param_30) THEN
    CAST(measurement.access_rate_hz AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.access_rate_hz AS BINARY_DOUBLE) BETWEEN :param_29 AND :param_30) THEN
    CAST(measurement.access_rate_hz AS BINARY_DOUBLE) END END), :coalesce_16) AS q_access_rate_hz,
    count(CASE WHEN (CAST(measurement.setup_wall_s AS BINARY_DOUBLE) BETWEEN :param_33 AND
    :param_34) THEN CAST(measurement.setup_wall_s AS BINARY_DOUBLE) END) AS n_setup_wall_s,
    coalesce(sum(CASE WHEN (CAST(measurement.setup_wall_s AS BINARY_DOUBLE) BETWEEN :param_33 AND
    :param_34) THEN CAST(measurement.setup_wall_s AS BINARY_DOUBLE) END), :coalesce_17) AS
    s_setup_wall_s, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.setup_wall_s AS
    BINARY_DOUBLE) BETWEEN :param_33 AND :param_34) THEN CAST(measurement.setup_wall_s AS
    BINARY_DOUBLE) END BETWEEN :param_35 AND :param_36) THEN NULL ELSE CASE WHEN
    (CAST(measurement.setup_wall_s AS BINARY_DOUBLE) BETWEEN :param_33 AND :param_34) THEN
    CAST(measurement.setup_wall_s AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.setup_wall_s
    AS BINARY_DOUBLE) BETWEEN :param_33 AND :param_34) THEN CAST(measurement.setup_wall_s AS
    BINARY_DOUBLE) END END), :coalesce_18) AS q_setup_wall_s, count(CASE WHEN
    (CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) BETWEEN :param_37 AND :param_38) THEN
    CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) END) AS n_stagein_wall_s, coalesce(sum(CASE
    WHEN (CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) BETWEEN :param_37 AND :param_38) THEN
    CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) END), :coalesce_19) AS s_stagein_wall_s,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) BETWEEN
    :param_37 AND :param_38) THEN CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) END BETWEEN
    :param_39 AND :param_40) THEN NULL ELSE CASE WHEN (CAST(measurement.stagein_wall_s AS
    BINARY_DOUBLE) BETWEEN :param_37 AND :param_38) THEN CAST(measurement.stagein_wall_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) BETWEEN
    :param_37 AND :param_38) THEN CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) END END),
    :coalesce_20) AS q_stagein_wall_s, count(CASE WHEN (CAST(measurement.payload_wall_s AS
    BINARY_DOUBLE) BETWEEN :param_41 AND :param_42) THEN CAST(measurement.payload_wall_s AS
    BINARY_DOUBLE) END) AS n_payload_wall_s, coalesce(sum(CASE WHEN (CAST(measurement.payload_wall_s
    AS BINARY_DOUBLE) BETWEEN :param_41 AND :param_42) THEN CAST(measurement.payload_wall_s AS
    BINARY_DOUBLE) END), :coalesce_21) AS s_payload_wall_s, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.payload_wall_s AS BINARY_DOUBLE) BETWEEN :param_41 AND :param_42) THEN
    CAST(measurement.payload_wall_s AS BINARY_DOUBLE) END BETWEEN :param_43 AND :param_44) THEN NULL
    ELSE CASE WHEN (CAST(measurement.payload_wall_s AS BINARY_DOUBLE) BETWEEN :param_41 AND
    :param_42) THEN CAST(measurement.payload_wall_s AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.payload_wall_s AS BINARY_DOUBLE) BETWEEN :param_41 AND :param_42) THEN
    CAST(measurement.payload_wall_s AS BINARY_DOUBLE) END END), :coalesce_22) AS q_payload_wall_s,
    count(CASE WHEN (CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) BETWEEN :param_45 AND
    :param_46) THEN CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) END) AS
    n_payload_run_queue_s, coalesce(sum(CASE WHEN (CAST(measurement.payload_run_queue_s AS
    BINARY_DOUBLE) BETWEEN :param_45 AND :param_46) THEN CAST(measurement.payload_run_queue_s AS
    BINARY_DOUBLE) END), :coalesce_23) AS s_payload_run_queue_s, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) BETWEEN :param_45 AND :param_46) THEN
    CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) END BETWEEN :param_47 AND :param_48) THEN
    NULL ELSE CASE WHEN (CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) BETWEEN :param_45
    AND :param_46) THEN CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) BETWEEN :param_45 AND :param_46) THEN
    CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) END END), :coalesce_24) AS
    q_payload_run_queue_s, count(CASE WHEN (CAST(measurement.loop_wall_s AS BINARY_DOUBLE) BETWEEN
    :param_49 AND :param_50) THEN CAST(measurement.loop_wall_s AS BINARY_DOUBLE) END) AS
    n_loop_wall_s, coalesce(sum(CASE WHEN (CAST(measurement.loop_wall_s AS BINARY_DOUBLE) BETWEEN
    :param_49 AND :param_50) THEN CAST(measurement.loop_wall_s AS BINARY_DOUBLE) END), :coalesce_25)
    AS s_loop_wall_s, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.loop_wall_s AS
    BINARY_DOUBLE) BETWEEN :param_49 AND :param_50) THEN CAST(measurement.loop_wall_s AS
    BINARY_DOUBLE) END BETWEEN :param_51 AND :param_52) THEN NULL ELSE CASE WHEN
    (CAST(measurement.loop_wall_s AS BINARY_DOUBLE) BETWEEN :param_49 AND :param_50) THEN
    CAST(measurement.loop_wall_s AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.loop_wall_s AS
    BINARY_DOUBLE) BETWEEN :param_49 AND :param_50) THEN CAST(measurement.loop_wall_s AS
    BINARY_DOUBLE) END END), :coalesce_26) AS q_loop_wall_s, count(CASE WHEN
    (CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) BETWEEN :param_53 AND :param_54) THEN
    CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) END) AS n_loop_cpu_s, coalesce(sum(CASE WHEN
    (CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) BETWEEN :param_53 AND :param_54) THEN
    CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) END), :coalesce_27) AS s_loop_cpu_s,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) BETWEEN
    :param_53 AND :param_54) THEN CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) END BETWEEN
    :param_55 AND :param_56) THEN NULL ELSE CASE WHEN (CAST(measurement.loop_cpu_s AS BINARY_DOUBLE)
    BETWEEN :param_53 AND :param_54) THEN CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) END * CASE
    WHEN (CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) BETWEEN :param_53 AND :param_54) THEN
    CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) END END), :coalesce_28) AS q_loop_cpu_s,
    count(CASE WHEN (CAST(measurement.first_byte_s AS BINARY_DOUBLE) BETWEEN :param_57 AND
    :param_58) THEN CAST(measurement.first_byte_s AS BINARY_DOUBLE) END) AS n_first_byte_s,
    coalesce(sum(CASE WHEN (CAST(measurement.first_byte_s AS BINARY_DOUBLE) BETWEEN :param_57 AND
    :param_58) THEN CAST(measurement.first_byte_s AS BINARY_DOUBLE) END), :coalesce_29) AS
    s_first_byte_s, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.first_byte_s AS
    BINARY_DOUBLE) BETWEEN :param_57 AND :param_58) THEN CAST(measurement.first_byte_s AS
    BINARY_DOUBLE) END BETWEEN :param_59 AND :param_60) THEN NULL ELSE CASE WHEN
    (CAST(measurement.first_byte_s AS BINARY_DOUBLE) BETWEEN :param_57 AND :param_58) THEN
    CAST(measurement.first_byte_s AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.first_byte_s
    AS BINARY_DOUBLE) BETWEEN :param_57 AND :param_58) THEN CAST(measurement.first_byte_s AS
    BINARY_DOUBLE) END END), :coalesce_30) AS q_first_byte_s, count(CASE WHEN
    (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN :param_61 AND :param_62) THEN
    CAST(measurement.bytes_read AS BINARY_DOUBLE) END) AS n_bytes_read, coalesce(sum(CASE WHEN
    (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN :param_61 AND :param_62) THEN
    CAST(measurement.bytes_read AS BINARY_DOUBLE) END), :coalesce_31) AS s_bytes_read,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN
    :param_61 AND :param_62) THEN CAST(measurement.bytes_read AS BINARY_DOUBLE) END BETWEEN
    :param_63 AND :param_64) THEN NULL ELSE CASE WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE)
    BETWEEN :param_61 AND :param_62) THEN CAST(measurement.bytes_read AS BINARY_DOUBLE) END * CASE
    WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN :param_61 AND :param_62) THEN
    CAST(measurement.bytes_read AS BINARY_DOUBLE) END END), :coalesce_32) AS q_bytes_read,
    count(CASE WHEN (CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) BETWEEN :param_65 AND
    :param_66) THEN CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) END) AS n_bytes_read_extra,
    coalesce(sum(CASE WHEN (CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) BETWEEN :param_65
    AND :param_66) THEN CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) END), :coalesce_33) AS
    s_bytes_read_extra, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.bytes_read_extra AS
    BINARY_DOUBLE) BETWEEN :param_65 AND :param_66) THEN CAST(measurement.bytes_read_extra AS
    BINARY_DOUBLE) END BETWEEN :param_67 AND :param_68) THEN NULL ELSE CASE WHEN
    (CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) BETWEEN :param_65 AND :param_66) THEN
    CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) BETWEEN :param_65 AND :param_66) THEN
    CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) END END), :coalesce_34) AS
    q_bytes_read_extra, count(CASE WHEN (CAST(measurement.read_calls AS BINARY_DOUBLE) BETWEEN
    :param_69 AND :param_70) THEN CAST(measurement.read_calls AS BINARY_DOUBLE) END) AS
    n_read_calls, coalesce(sum(CASE WHEN (CAST(measurement.read_calls AS BINARY_DOUBLE) BETWEEN
    :param_69 AND :param_70) THEN CAST(measurement.read_calls AS BINARY_DOUBLE) END), :coalesce_35)
    AS s_read_calls, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.read_calls AS
    BINARY_DOUBLE) BETWEEN :param_69 AND :param_70) THEN CAST(measurement.read_calls AS
    BINARY_DOUBLE) END BETWEEN :param_71 AND :param_72) THEN NULL ELSE CASE WHEN
    (CAST(measurement.read_calls AS BINARY_DOUBLE) BETWEEN :param_69 AND :param_70) THEN
    CAST(measurement.read_calls AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.read_calls AS
    BINARY_DOUBLE) BETWEEN :param_69 AND :param_70) THEN CAST(measurement.read_calls AS
    BINARY_DOUBLE) END END), :coalesce_36) AS q_read_calls, count(CASE WHEN
    (CAST(measurement.read_fraction AS BINARY_DOUBLE) BETWEEN :param_73 AND :param_74) THEN
    CAST(measurement.read_fraction AS BINARY_DOUBLE) END) AS n_read_fraction, coalesce(sum(CASE WHEN
    (CAST(measurement.read_fraction AS BINARY_DOUBLE) BETWEEN :param_73 AND :param_74) THEN
    CAST(measurement.read_fraction AS BINARY_DOUBLE) END), :coalesce_37) AS s_read_fraction,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.read_fraction AS BINARY_DOUBLE) BETWEEN
    :param_73 AND :param_74) THEN CAST(measurement.read_fraction AS BINARY_DOUBLE) END BETWEEN
    :param_75 AND :param_76) THEN NULL ELSE CASE WHEN (CAST(measurement.read_fraction AS
    BINARY_DOUBLE) BETWEEN :param_73 AND :param_74) THEN CAST(measurement.read_fraction AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.read_fraction AS BINARY_DOUBLE) BETWEEN
    :param_73 AND :param_74) THEN CAST(measurement.read_fraction AS BINARY_DOUBLE) END END),
    :coalesce_38) AS q_read_fraction, count(CASE WHEN (CAST(measurement.kernel_read_bytes AS
    BINARY_DOUBLE) BETWEEN :param_77 AND :param_78) THEN CAST(measurement.kernel_read_bytes AS
    BINARY_DOUBLE) END) AS n_kernel_read_bytes, coalesce(sum(CASE WHEN
    (CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) BETWEEN :param_77 AND :param_78) THEN
    CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) END), :coalesce_39) AS s_kernel_read_bytes,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) BETWEEN
    :param_77 AND :param_78) THEN CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) END BETWEEN
    :param_79 AND :param_80) THEN NULL ELSE CASE WHEN (CAST(measurement.kernel_read_bytes AS
    BINARY_DOUBLE) BETWEEN :param_77 AND :param_78) THEN CAST(measurement.kernel_read_bytes AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) BETWEEN
    :param_77 AND :param_78) THEN CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) END END),
    :coalesce_40) AS q_kernel_read_bytes, count(CASE WHEN (CAST(measurement.cache_efficiency_rel AS
    BINARY_DOUBLE) BETWEEN :param_81 AND :param_82) THEN CAST(measurement.cache_efficiency_rel AS
    BINARY_DOUBLE) END) AS n_cache_efficiency_rel, coalesce(sum(CASE WHEN
    (CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) BETWEEN :param_81 AND :param_82) THEN
    CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) END), :coalesce_41) AS
    s_cache_efficiency_rel, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.cache_efficiency_rel
    AS BINARY_DOUBLE) BETWEEN :param_81 AND :param_82) THEN CAST(measurement.cache_efficiency_rel AS
    BINARY_DOUBLE) END BETWEEN :param_83 AND :param_84) THEN NULL ELSE CASE WHEN
    (CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) BETWEEN :param_81 AND :param_82) THEN
    CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) BETWEEN :param_81 AND :param_82) THEN
    CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) END END), :coalesce_42) AS
    q_cache_efficiency_rel, count(CASE WHEN (CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) BETWEEN
    :param_85 AND :param_86) THEN CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) END) AS
    n_perfstats_read_s, coalesce(sum(CASE WHEN (CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) BETWEEN
    :param_85 AND :param_86) THEN CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) END), :coalesce_43)
    AS s_perfstats_read_s, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.perfstats_read_s AS
    BINARY_DOUBLE) BETWEEN :param_85 AND :param_86) THEN CAST(measurement.perfstats_read_s AS
    BINARY_DOUBLE) END BETWEEN :param_87 AND :param_88) THEN NULL ELSE CASE WHEN
    (CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) BETWEEN :param_85 AND :param_86) THEN
    CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.perfstats_read_s AS
    BINARY_DOUBLE) BETWEEN :param_85 AND :param_86) THEN CAST(measurement.perfstats_read_s AS
    BINARY_DOUBLE) END END), :coalesce_44) AS q_perfstats_read_s, count(CASE WHEN
    (CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) BETWEEN :param_89 AND :param_90) THEN
    CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) END) AS n_perfstats_unzip_s, coalesce(sum(CASE WHEN
    (CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) BETWEEN :param_89 AND :param_90) THEN
    CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) END), :coalesce_45) AS s_perfstats_unzip_s,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) BETWEEN
    :param_89 AND :param_90) THEN CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) END BETWEEN
    :param_91 AND :param_92) THEN NULL ELSE CASE WHEN (CAST(measurement.perfstats_unzip_s AS
    BINARY_DOUBLE) BETWEEN :param_89 AND :param_90) THEN CAST(measurement.perfstats_unzip_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) BETWEEN
    :param_89 AND :param_90) THEN CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) END END),
    :coalesce_46) AS q_perfstats_unzip_s, count(CASE WHEN (CAST(measurement.tree_peak_rss_bytes AS
    BINARY_DOUBLE) BETWEEN :param_93 AND :param_94) THEN CAST(measurement.tree_peak_rss_bytes AS
    BINARY_DOUBLE) END) AS n_tree_peak_rss_bytes, coalesce(sum(CASE WHEN
    (CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) BETWEEN :param_93 AND :param_94) THEN
    CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) END), :coalesce_47) AS
    s_tree_peak_rss_bytes, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.tree_peak_rss_bytes
    AS BINARY_DOUBLE) BETWEEN :param_93 AND :param_94) THEN CAST(measurement.tree_peak_rss_bytes AS
    BINARY_DOUBLE) END BETWEEN :param_95 AND :param_96) THEN NULL ELSE CASE WHEN
    (CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) BETWEEN :param_93 AND :param_94) THEN
    CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) BETWEEN :param_93 AND :param_94) THEN
    CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) END END), :coalesce_48) AS
    q_tree_peak_rss_bytes, count(CASE WHEN (CAST(measurement.retries AS BINARY_DOUBLE) BETWEEN
    :param_97 AND :param_98) THEN CAST(measurement.retries AS BINARY_DOUBLE) END) AS n_retries,
    coalesce(sum(CASE WHEN (CAST(measurement.retries AS BINARY_DOUBLE) BETWEEN :param_97 AND
    :param_98) THEN CAST(measurement.retries AS BINARY_DOUBLE) END), :coalesce_49) AS s_retries,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.retries AS BINARY_DOUBLE) BETWEEN :param_97
    AND :param_98) THEN CAST(measurement.retries AS BINARY_DOUBLE) END BETWEEN :param_99 AND
    :param_100) THEN NULL ELSE CASE WHEN (CAST(measurement.retries AS BINARY_DOUBLE) BETWEEN
    :param_97 AND :param_98) THEN CAST(measurement.retries AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.retries AS BINARY_DOUBLE) BETWEEN :param_97 AND :param_98) THEN
    CAST(measurement.retries AS BINARY_DOUBLE) END END), :coalesce_50) AS q_retries, count(CASE WHEN
    (CAST(measurement.door_rtt_s AS BINARY_DOUBLE) BETWEEN :param_101 AND :param_102) THEN
    CAST(measurement.door_rtt_s AS BINARY_DOUBLE) END) AS n_door_rtt_s, coalesce(sum(CASE WHEN
    (CAST(measurement.door_rtt_s AS BINARY_DOUBLE) BETWEEN :param_101 AND :param_102) THEN
    CAST(measurement.door_rtt_s AS BINARY_DOUBLE) END), :coalesce_51) AS s_door_rtt_s,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.door_rtt_s AS BINARY_DOUBLE) BETWEEN
    :param_101 AND :param_102) THEN CAST(measurement.door_rtt_s AS BINARY_DOUBLE) END BETWEEN
    :param_103 AND :param_104) THEN NULL ELSE CASE WHEN (CAST(measurement.door_rtt_s AS
    BINARY_DOUBLE) BETWEEN :param_101 AND :param_102) THEN CAST(measurement.door_rtt_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.door_rtt_s AS BINARY_DOUBLE) BETWEEN :param_101
    AND :param_102) THEN CAST(measurement.door_rtt_s AS BINARY_DOUBLE) END END), :coalesce_52) AS
    q_door_rtt_s, count(CASE WHEN (CAST(measurement.load1_start AS BINARY_DOUBLE) BETWEEN :param_105
    AND :param_106) THEN CAST(measurement.load1_start AS BINARY_DOUBLE) END) AS n_load1_start,
    coalesce(sum(CASE WHEN (CAST(measurement.load1_start AS BINARY_DOUBLE) BETWEEN :param_105 AND
    :param_106) THEN CAST(measurement.load1_start AS BINARY_DOUBLE) END), :coalesce_53) AS
    s_load1_start, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.load1_start AS BINARY_DOUBLE)
    BETWEEN :param_105 AND :param_106) THEN CAST(measurement.load1_start AS BINARY_DOUBLE) END
    BETWEEN :param_107 AND :param_108) THEN NULL ELSE CASE WHEN (CAST(measurement.load1_start AS
    BINARY_DOUBLE) BETWEEN :param_105 AND :param_106) THEN CAST(measurement.load1_start AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.load1_start AS BINARY_DOUBLE) BETWEEN
    :param_105 AND :param_106) THEN CAST(measurement.load1_start AS BINARY_DOUBLE) END END),
    :coalesce_54) AS q_load1_start
FROM measurement GROUP BY measurement.day, measurement.subject_id, coalesce(measurement.kind, '-'),
    CASE WHEN (measurement.failure_kind = 'not-supported' AND measurement.failure_class = 'software
    setup') THEN 'software setup: not supported' WHEN (measurement.failure_kind = 'not-supported'
    AND measurement.failure_class = 'stage-in') THEN 'stage-in: not supported' ELSE
    coalesce(measurement.failure_class, CASE WHEN (measurement.plausible = 1) THEN 'good' ELSE
    'implausible' END) END
;

SELECT count(*) AS count_1
FROM access_key
;

SELECT count(*) AS count_1
FROM access_revocation
;

SELECT count(*) AS count_1
FROM campaign
;

SELECT count(*) AS count_1
FROM inventory
;

SELECT count(*) AS count_1
FROM node
;

SELECT count(*) AS count_1
FROM origin
;

SELECT count(*) AS count_1
FROM pair
;

SELECT count(*) AS count_1
FROM replica
;

SELECT count(*) AS count_1
FROM software
;

SELECT count(*) AS count_1
FROM storage
;

SELECT count(*) AS count_1
FROM subject
;

SELECT count(*) AS count_1
FROM verdict
;

SELECT count(*) AS count_1
FROM job
;

SELECT count(*) AS count_1
FROM measurement
;

SELECT count(*) AS count_1
FROM rollup_day
;

SELECT count(*) AS count_1
FROM attempt
;

SELECT count(*) AS count_1
FROM extra
;

-- revision 0001

CREATE TABLE measurement (
  measurement_id VARCHAR2(128 CHAR) NOT NULL,
  record_version NUMBER(19) NOT NULL,
  instrument_version NUMBER(19) NOT NULL,
  campaign_id VARCHAR2(128 CHAR) NOT NULL,
  campaign_name VARCHAR2(4000 BYTE),
  job_id VARCHAR2(128 CHAR) NOT NULL,
  attempt NUMBER(19) NOT NULL,
  kind VARCHAR2(4000 BYTE),
  repeat NUMBER(19) NOT NULL,
  round NUMBER(19) NOT NULL,
  position NUMBER(19) NOT NULL,
  test_name VARCHAR2(4000 BYTE),
  repository VARCHAR2(4000 BYTE),
  ref VARCHAR2(4000 BYTE),
  commit_id VARCHAR2(4000 BYTE),
  dirty SMALLINT NOT NULL,
  test_path VARCHAR2(4000 BYTE),
  test_hash VARCHAR2(4000 BYTE),
  payload_hash VARCHAR2(4000 BYTE),
  treehammer_version VARCHAR2(4000 BYTE),
  series VARCHAR2(128 CHAR) NOT NULL,
  variant VARCHAR2(4000 BYTE),
  variant_label VARCHAR2(4000 BYTE),
  site VARCHAR2(4000 BYTE),
  door VARCHAR2(4000 BYTE),
  door_protocol VARCHAR2(4000 BYTE),
  dataset VARCHAR2(4000 BYTE),
  dataset_hash VARCHAR2(4000 BYTE),
  content_hash VARCHAR2(4000 BYTE),
  axis_root VARCHAR2(4000 BYTE),
  axis_branches VARCHAR2(4000 BYTE),
  axis_cache_mb BINARY_DOUBLE,
  axis_events BINARY_DOUBLE,
  axis_access VARCHAR2(4000 BYTE),
  axis_cache VARCHAR2(4000 BYTE),
  passes_planned NUMBER(19) NOT NULL,
  started_us NUMBER(19) NOT NULL,
  ended_us NUMBER(19) NOT NULL,
  day NUMBER(19) NOT NULL,
  setup_wall_s BINARY_DOUBLE,
  setup_cpu_s BINARY_DOUBLE,
  stagein_wall_s BINARY_DOUBLE,
  stagein_cpu_s BINARY_DOUBLE,
  stagein_bytes NUMBER(19),
  payload_wall_s BINARY_DOUBLE,
  payload_user_s BINARY_DOUBLE,
  payload_sys_s BINARY_DOUBLE,
  payload_run_queue_s BINARY_DOUBLE,
  eff_payload BINARY_DOUBLE,
  eff_job BINARY_DOUBLE,
  access_rate_hz BINARY_DOUBLE,
  eff_access BINARY_DOUBLE,
  max_rss_bytes NUMBER(19),
  tree_peak_rss_bytes NUMBER(19),
  ctx_voluntary NUMBER(19),
  ctx_involuntary NUMBER(19),
  page_faults_minor NUMBER(19),
  page_faults_major NUMBER(19),
  io_read_chars NUMBER(19),
  io_write_chars NUMBER(19),
  io_read_bytes NUMBER(19),
  io_write_bytes NUMBER(19),
  processes NUMBER(19),
  exit_code NUMBER(19),
  exit_signal NUMBER(19),
  root_provider VARCHAR2(4000 BYTE),
  host VARCHAR2(4000 BYTE),
  cpu_model VARCHAR2(4000 BYTE),
  cores_online NUMBER(19),
  cores_allowed NUMBER(19),
  cpu_mhz BINARY_DOUBLE,
  cpu_steal_s BINARY_DOUBLE,
  psi_cpu_some_s BINARY_DOUBLE,
  psi_io_some_s BINARY_DOUBLE,
  psi_memory_some_s BINARY_DOUBLE,
  cgroup_cpu_limit BINARY_DOUBLE,
  cgroup_memory_limit_bytes NUMBER(19),
  cgroup_throttled_s BINARY_DOUBLE,
  load1_start BINARY_DOUBLE,
  load1_end BINARY_DOUBLE,
  mem_total_bytes NUMBER(19),
  mem_available_start_bytes NUMBER(19),
  mem_available_end_bytes NUMBER(19),
  calibration_before_s BINARY_DOUBLE,
  calibration_after_s BINARY_DOUBLE,
  kernel VARCHAR2(4000 BYTE),
  os_name VARCHAR2(4000 BYTE),
  container VARCHAR2(4000 BYTE),
  slot VARCHAR2(4000 BYTE),
  worker_python VARCHAR2(4000 BYTE),
  concurrent_door_jobs NUMBER(19),
  file_name VARCHAR2(4000 BYTE),
  file_url VARCHAR2(4000 BYTE),
  file_size_bytes NUMBER(19),
  data_server VARCHAR2(4000 BYTE),
  address_family VARCHAR2(4000 BYTE),
  server_version VARCHAR2(4000 BYTE),
  door_rtt_s BINARY_DOUBLE,
  client_cache_state VARCHAR2(4000 BYTE),
  client_cache_method VARCHAR2(4000 BYTE),
  client_cached_fraction BINARY_DOUBLE,
  server_cache_state VARCHAR2(4000 BYTE),
  server_cache_method VARCHAR2(4000 BYTE),
  failure_class VARCHAR2(4000 BYTE),
  failure_kind VARCHAR2(4000 BYTE),
  failure_phase VARCHAR2(4000 BYTE),
  failure_message CLOB,
  failure_transient SMALLINT,
  plausible SMALLINT NOT NULL,
  implausible_reasons CLOB,
  log_excerpt CLOB,
  root_version VARCHAR2(4000 BYTE),
  root_commit VARCHAR2(4000 BYTE),
  root_platform VARCHAR2(4000 BYTE),
  root_compiler VARCHAR2(4000 BYTE),
  root_flags VARCHAR2(4000 BYTE),
  root_cxx_standard VARCHAR2(4000 BYTE),
  root_features CLOB,
  zlib_version VARCHAR2(4000 BYTE),
  lzma_version VARCHAR2(4000 BYTE),
  lz4_version VARCHAR2(4000 BYTE),
  zstd_version VARCHAR2(4000 BYTE),
  libcore_sha256 VARCHAR2(4000 BYTE),
  file_class VARCHAR2(4000 BYTE),
  import_wall_s BINARY_DOUBLE,
  import_user_s BINARY_DOUBLE,
  import_sys_s BINARY_DOUBLE,
  compile_wall_s BINARY_DOUBLE,
  passes_done NUMBER(19),
  passes_counted NUMBER(19),
  open_wall_s BINARY_DOUBLE,
  pass_open_wall_s CLOB,
  open_user_s BINARY_DOUBLE,
  pass_open_user_s CLOB,
  open_sys_s BINARY_DOUBLE,
  pass_open_sys_s CLOB,
  get_tree_wall_s BINARY_DOUBLE,
  pass_get_tree_wall_s CLOB,
  get_tree_user_s BINARY_DOUBLE,
  pass_get_tree_user_s CLOB,
  get_tree_sys_s BINARY_DOUBLE,
  pass_get_tree_sys_s CLOB,
  prepare_wall_s BINARY_DOUBLE,
  pass_prepare_wall_s CLOB,
  prepare_user_s BINARY_DOUBLE,
  pass_prepare_user_s CLOB,
  prepare_sys_s BINARY_DOUBLE,
  pass_prepare_sys_s CLOB,
  loop_wall_s BINARY_DOUBLE,
  pass_loop_wall_s CLOB,
  loop_user_s BINARY_DOUBLE,
  pass_loop_user_s CLOB,
  loop_sys_s BINARY_DOUBLE,
  pass_loop_sys_s CLOB,
  close_wall_s BINARY_DOUBLE,
  pass_close_wall_s CLOB,
  close_user_s BINARY_DOUBLE,
  pass_close_user_s CLOB,
  close_sys_s BINARY_DOUBLE,
  pass_close_sys_s CLOB,
  loop_cpu_s BINARY_DOUBLE,
  loop_run_queue_s BINARY_DOUBLE,
  pass_loop_run_queue_s CLOB,
  cpu_per_event_s BINARY_DOUBLE,
  wall_per_event_s BINARY_DOUBLE,
  event_rate_hz BINARY_DOUBLE,
  eff_loop BINARY_DOUBLE,
  eff_loop_corrected BINARY_DOUBLE,
  events_total NUMBER(19),
  events_read NUMBER(19),
  branches_total NUMBER(19),
  branches_selected NUMBER(19),
  selected_zip_bytes NUMBER(19),
  loop_unzipped_bytes NUMBER(19),
  bytes_read NUMBER(19),
  bytes_read_extra NUMBER(19),
  read_calls NUMBER(19),
  read_calls_single NUMBER(19),
  read_calls_vector NUMBER(19),
  read_calls_prefetch NUMBER(19),
  vector_chunks BINARY_DOUBLE,
  read_fraction BINARY_DOUBLE,
  cache_bytes NUMBER(19),
  cache_efficiency BINARY_DOUBLE,
  cache_efficiency_rel BINARY_DOUBLE,
  cache_bytes_read NUMBER(19),
  cache_read_calls NUMBER(19),
  cache_missed_bytes NUMBER(19),
  cache_missed_calls NUMBER(19),
  perfstats_bytes_read NUMBER(19),
  perfstats_read_calls NUMBER(19),
  perfstats_read_s BINARY_DOUBLE,
  perfstats_unzip_s BINARY_DOUBLE,
  perfstats_wall_s BINARY_DOUBLE,
  perfstats_cpu_s BINARY_DOUBLE,
  ntuple_cluster_cache SMALLINT,
  ntuple_pages_read NUMBER(19),
  ntuple_pages_unzipped NUMBER(19),
  ntuple_clusters_loaded NUMBER(19),
  ntuple_vector_reads NUMBER(19),
  ntuple_ranges_read NUMBER(19),
  ntuple_payload_bytes NUMBER(19),
  ntuple_overhead_bytes NUMBER(19),
  ntuple_unzipped_bytes NUMBER(19),
  ntuple_read_wall_s BINARY_DOUBLE,
  ntuple_read_cpu_s BINARY_DOUBLE,
  ntuple_unzip_wall_s BINARY_DOUBLE,
  ntuple_unzip_cpu_s BINARY_DOUBLE,
  kernel_read_chars NUMBER(19),
  kernel_read_bytes NUMBER(19),
  kernel_read_calls NUMBER(19),
  first_byte_s BINARY_DOUBLE,
  read_latency_hist CLOB,
  read_latency_p50_s BINARY_DOUBLE,
  read_latency_p95_s BINARY_DOUBLE,
  read_latency_p99_s BINARY_DOUBLE,
  read_latency_max_s BINARY_DOUBLE,
  retries NUMBER(19),
  inventory CLOB,
  value_checksum VARCHAR2(4000 BYTE),
  checksum_version NUMBER(19),
  checksum_leaves NUMBER(19),
  checksum_skipped_leaves CLOB,
  CONSTRAINT pk_measurement PRIMARY KEY (measurement_id)
)
;

INSERT INTO alembic_version (version_num) VALUES ('0001') RETURNING alembic_version.version_num INTO
    :ret_0
;

-- revision 0002

UPDATE alembic_version SET version_num='0002' WHERE alembic_version.version_num = '0001'
;

-- revision 0003

ALTER TABLE measurement ADD subject_id NUMBER(19)
;

ALTER TABLE measurement ADD origin_id NUMBER(19)
;

ALTER TABLE measurement ADD software_id NUMBER(19)
;

ALTER TABLE measurement ADD inventory_id NUMBER(19)
;

ALTER TABLE measurement ADD node_id NUMBER(19)
;

ALTER TABLE measurement ADD storage_id NUMBER(19)
;

ALTER TABLE measurement ADD passes BLOB
;

UPDATE alembic_version SET version_num='0003' WHERE alembic_version.version_num = '0002'
;

-- revision 0004

SELECT measurement.measurement_id, measurement.series, measurement.test_name, measurement.variant,
    measurement.variant_label, measurement.site, measurement.door, measurement.door_protocol,
    measurement.dataset, measurement.dataset_hash, measurement.content_hash, measurement.axis_root,
    measurement.axis_branches, measurement.axis_cache_mb, measurement.axis_events,
    measurement.axis_access, measurement.axis_cache, measurement.passes_planned,
    measurement.record_version, measurement.instrument_version, measurement.campaign_name,
    measurement.repository, measurement.ref, measurement.commit_id, measurement.dirty,
    measurement.test_path, measurement.test_hash, measurement.payload_hash,
    measurement.treehammer_version, measurement.root_provider, measurement.root_version,
    measurement.root_commit, measurement.root_platform, measurement.root_compiler,
    measurement.root_flags, measurement.root_cxx_standard, measurement.root_features,
    measurement.zlib_version, measurement.lzma_version, measurement.lz4_version,
    measurement.zstd_version, measurement.libcore_sha256, measurement.inventory, measurement.host,
    measurement.cpu_model, measurement.cores_online, measurement.cores_allowed,
    measurement.cgroup_cpu_limit, measurement.cgroup_memory_limit_bytes,
    measurement.mem_total_bytes, measurement.kernel, measurement.os_name, measurement.container,
    measurement.worker_python, measurement.file_name, measurement.file_url,
    measurement.file_size_bytes, measurement.file_class, measurement.data_server,
    measurement.address_family, measurement.server_version, measurement.client_cache_state,
    measurement.client_cache_method, measurement.server_cache_state, measurement.server_cache_method,
    measurement.pass_open_wall_s, measurement.pass_open_user_s, measurement.pass_open_sys_s,
    measurement.pass_get_tree_wall_s, measurement.pass_get_tree_user_s,
    measurement.pass_get_tree_sys_s, measurement.pass_prepare_wall_s,
    measurement.pass_prepare_user_s, measurement.pass_prepare_sys_s, measurement.pass_loop_wall_s,
    measurement.pass_loop_user_s, measurement.pass_loop_sys_s, measurement.pass_close_wall_s,
    measurement.pass_close_user_s, measurement.pass_close_sys_s, measurement.pass_loop_run_queue_s
FROM measurement
WHERE 1 = 1 ORDER BY measurement.measurement_id
 FETCH FIRST 500 ROWS ONLY
;

SELECT subject.id
FROM subject
WHERE subject.id IN (:id_1_1, :id_1_2, :id_1_3, :id_1_4, :id_1_5)
;

INSERT INTO subject (id, series, test_name, variant, variant_label, site, door, door_protocol,
    dataset, dataset_hash, content_hash, axis_root, axis_branches, axis_cache_mb, axis_events,
    axis_access, axis_cache, passes_planned) VALUES (:id, :series, :test_name, :variant,
    :variant_label, :site, :door, :door_protocol, :dataset, :dataset_hash, :content_hash,
    :axis_root, :axis_branches, :axis_cache_mb, :axis_events, :axis_access, :axis_cache,
    :passes_planned)
; -- many rows

SELECT origin.id
FROM origin
WHERE origin.id IN (:id_1_1, :id_1_2, :id_1_3)
;

INSERT INTO origin (id, record_version, instrument_version, campaign_name, repository, ref,
    commit_id, dirty, test_path, test_hash, payload_hash, treehammer_version) VALUES (:id,
    :record_version, :instrument_version, :campaign_name, :repository, :ref, :commit_id, :dirty,
    :test_path, :test_hash, :payload_hash, :treehammer_version)
; -- many rows

SELECT software.id
FROM software
WHERE software.id IN (:id_1_1, :id_1_2, :id_1_3)
;

INSERT INTO software (id, root_provider, root_version, root_commit, root_platform, root_compiler,
    root_flags, root_cxx_standard, root_features, zlib_version, lzma_version, lz4_version,
    zstd_version, libcore_sha256) VALUES (:id, :root_provider, :root_version, :root_commit,
    :root_platform, :root_compiler, :root_flags, :root_cxx_standard, :root_features, :zlib_version,
    :lzma_version, :lz4_version, :zstd_version, :libcore_sha256)
; -- many rows

SELECT inventory.id
FROM inventory
WHERE inventory.id IN (:id_1_1, :id_1_2, :id_1_3)
;

INSERT INTO inventory (id, inventory) VALUES (:id, :inventory)
; -- many rows

SELECT node.id
FROM node
WHERE node.id IN (:id_1_1, :id_1_2, :id_1_3, :id_1_4)
;

INSERT INTO node (id, host, cpu_model, cores_online, cores_allowed, cgroup_cpu_limit,
    cgroup_memory_limit_bytes, mem_total_bytes, kernel, os_name, container, worker_python) VALUES
    (:id, :host, :cpu_model, :cores_online, :cores_allowed, :cgroup_cpu_limit,
    :cgroup_memory_limit_bytes, :mem_total_bytes, :kernel, :os_name, :container, :worker_python)
; -- many rows

SELECT storage.id
FROM storage
WHERE storage.id IN (:id_1_1, :id_1_2, :id_1_3)
;

INSERT INTO storage (id, file_name, file_url, file_size_bytes, file_class, data_server,
    address_family, server_version, client_cache_state, client_cache_method, server_cache_state,
    server_cache_method) VALUES (:id, :file_name, :file_url, :file_size_bytes, :file_class,
    :data_server, :address_family, :server_version, :client_cache_state, :client_cache_method,
    :server_cache_state, :server_cache_method)
; -- many rows

UPDATE measurement SET passes=:passes, subject_id=:subject_id, origin_id=:origin_id,
    software_id=:software_id, inventory_id=:inventory_id, node_id=:node_id, storage_id=:storage_id
    WHERE measurement.measurement_id = :this
; -- many rows

SELECT measurement.measurement_id, measurement.series, measurement.test_name, measurement.variant,
    measurement.variant_label, measurement.site, measurement.door, measurement.door_protocol,
    measurement.dataset, measurement.dataset_hash, measurement.content_hash, measurement.axis_root,
    measurement.axis_branches, measurement.axis_cache_mb, measurement.axis_events,
    measurement.axis_access, measurement.axis_cache, measurement.passes_planned,
    measurement.record_version, measurement.instrument_version, measurement.campaign_name,
    measurement.repository, measurement.ref, measurement.commit_id, measurement.dirty,
    measurement.test_path, measurement.test_hash, measurement.payload_hash,
    measurement.treehammer_version, measurement.root_provider, measurement.root_version,
    measurement.root_commit, measurement.root_platform, measurement.root_compiler,
    measurement.root_flags, measurement.root_cxx_standard, measurement.root_features,
    measurement.zlib_version, measurement.lzma_version, measurement.lz4_version,
    measurement.zstd_version, measurement.libcore_sha256, measurement.inventory, measurement.host,
    measurement.cpu_model, measurement.cores_online, measurement.cores_allowed,
    measurement.cgroup_cpu_limit, measurement.cgroup_memory_limit_bytes,
    measurement.mem_total_bytes, measurement.kernel, measurement.os_name, measurement.container,
    measurement.worker_python, measurement.file_name, measurement.file_url,
    measurement.file_size_bytes, measurement.file_class, measurement.data_server,
    measurement.address_family, measurement.server_version, measurement.client_cache_state,
    measurement.client_cache_method, measurement.server_cache_state, measurement.server_cache_method,
    measurement.pass_open_wall_s, measurement.pass_open_user_s, measurement.pass_open_sys_s,
    measurement.pass_get_tree_wall_s, measurement.pass_get_tree_user_s,
    measurement.pass_get_tree_sys_s, measurement.pass_prepare_wall_s,
    measurement.pass_prepare_user_s, measurement.pass_prepare_sys_s, measurement.pass_loop_wall_s,
    measurement.pass_loop_user_s, measurement.pass_loop_sys_s, measurement.pass_close_wall_s,
    measurement.pass_close_user_s, measurement.pass_close_sys_s, measurement.pass_loop_run_queue_s
FROM measurement
WHERE measurement.measurement_id > :measurement_id_1 ORDER BY measurement.measurement_id
 FETCH FIRST 500 ROWS ONLY
;

UPDATE alembic_version SET version_num='0004' WHERE alembic_version.version_num = '0003'
;

-- revision 0005

ALTER TABLE measurement DROP COLUMN series
;

ALTER TABLE measurement DROP COLUMN test_name
;

ALTER TABLE measurement DROP COLUMN variant
;

ALTER TABLE measurement DROP COLUMN variant_label
;

ALTER TABLE measurement DROP COLUMN site
;

ALTER TABLE measurement DROP COLUMN door
;

ALTER TABLE measurement DROP COLUMN door_protocol
;

ALTER TABLE measurement DROP COLUMN dataset
;

ALTER TABLE measurement DROP COLUMN dataset_hash
;

ALTER TABLE measurement DROP COLUMN content_hash
;

ALTER TABLE measurement DROP COLUMN axis_root
;

ALTER TABLE measurement DROP COLUMN axis_branches
;

ALTER TABLE measurement DROP COLUMN axis_cache_mb
;

ALTER TABLE measurement DROP COLUMN axis_events
;

ALTER TABLE measurement DROP COLUMN axis_access
;

ALTER TABLE measurement DROP COLUMN axis_cache
;

ALTER TABLE measurement DROP COLUMN passes_planned
;

ALTER TABLE measurement DROP COLUMN record_version
;

ALTER TABLE measurement DROP COLUMN instrument_version
;

ALTER TABLE measurement DROP COLUMN campaign_name
;

ALTER TABLE measurement DROP COLUMN repository
;

ALTER TABLE measurement DROP COLUMN ref
;

ALTER TABLE measurement DROP COLUMN commit_id
;

ALTER TABLE measurement DROP COLUMN dirty
;

ALTER TABLE measurement DROP COLUMN test_path
;

ALTER TABLE measurement DROP COLUMN test_hash
;

ALTER TABLE measurement DROP COLUMN payload_hash
;

ALTER TABLE measurement DROP COLUMN treehammer_version
;

ALTER TABLE measurement DROP COLUMN root_provider
;

ALTER TABLE measurement DROP COLUMN root_version
;

ALTER TABLE measurement DROP COLUMN root_commit
;

ALTER TABLE measurement DROP COLUMN root_platform
;

ALTER TABLE measurement DROP COLUMN root_compiler
;

ALTER TABLE measurement DROP COLUMN root_flags
;

ALTER TABLE measurement DROP COLUMN root_cxx_standard
;

ALTER TABLE measurement DROP COLUMN root_features
;

ALTER TABLE measurement DROP COLUMN zlib_version
;

ALTER TABLE measurement DROP COLUMN lzma_version
;

ALTER TABLE measurement DROP COLUMN lz4_version
;

ALTER TABLE measurement DROP COLUMN zstd_version
;

ALTER TABLE measurement DROP COLUMN libcore_sha256
;

ALTER TABLE measurement DROP COLUMN inventory
;

ALTER TABLE measurement DROP COLUMN host
;

ALTER TABLE measurement DROP COLUMN cpu_model
;

ALTER TABLE measurement DROP COLUMN cores_online
;

ALTER TABLE measurement DROP COLUMN cores_allowed
;

ALTER TABLE measurement DROP COLUMN cgroup_cpu_limit
;

ALTER TABLE measurement DROP COLUMN cgroup_memory_limit_bytes
;

ALTER TABLE measurement DROP COLUMN mem_total_bytes
;

ALTER TABLE measurement DROP COLUMN kernel
;

ALTER TABLE measurement DROP COLUMN os_name
;

ALTER TABLE measurement DROP COLUMN container
;

ALTER TABLE measurement DROP COLUMN worker_python
;

ALTER TABLE measurement DROP COLUMN file_name
;

ALTER TABLE measurement DROP COLUMN file_url
;

ALTER TABLE measurement DROP COLUMN file_size_bytes
;

ALTER TABLE measurement DROP COLUMN file_class
;

ALTER TABLE measurement DROP COLUMN data_server
;

ALTER TABLE measurement DROP COLUMN address_family
;

ALTER TABLE measurement DROP COLUMN server_version
;

ALTER TABLE measurement DROP COLUMN client_cache_state
;

ALTER TABLE measurement DROP COLUMN client_cache_method
;

ALTER TABLE measurement DROP COLUMN server_cache_state
;

ALTER TABLE measurement DROP COLUMN server_cache_method
;

ALTER TABLE measurement DROP COLUMN pass_open_wall_s
;

ALTER TABLE measurement DROP COLUMN pass_open_user_s
;

ALTER TABLE measurement DROP COLUMN pass_open_sys_s
;

ALTER TABLE measurement DROP COLUMN pass_get_tree_wall_s
;

ALTER TABLE measurement DROP COLUMN pass_get_tree_user_s
;

ALTER TABLE measurement DROP COLUMN pass_get_tree_sys_s
;

ALTER TABLE measurement DROP COLUMN pass_prepare_wall_s
;

ALTER TABLE measurement DROP COLUMN pass_prepare_user_s
;

ALTER TABLE measurement DROP COLUMN pass_prepare_sys_s
;

ALTER TABLE measurement DROP COLUMN pass_loop_wall_s
;

ALTER TABLE measurement DROP COLUMN pass_loop_user_s
;

ALTER TABLE measurement DROP COLUMN pass_loop_sys_s
;

ALTER TABLE measurement DROP COLUMN pass_close_wall_s
;

ALTER TABLE measurement DROP COLUMN pass_close_user_s
;

ALTER TABLE measurement DROP COLUMN pass_close_sys_s
;

ALTER TABLE measurement DROP COLUMN pass_loop_run_queue_s
;

ALTER TABLE measurement MODIFY kind VARCHAR2(64 CHAR)
;

ALTER TABLE measurement MODIFY failure_class VARCHAR2(64 CHAR)
;

ALTER TABLE measurement MODIFY subject_id NOT NULL
;

ALTER TABLE measurement ADD CONSTRAINT fk_measurement_subject FOREIGN KEY(subject_id) REFERENCES
    subject (id)
;

ALTER TABLE measurement MODIFY origin_id NOT NULL
;

ALTER TABLE measurement ADD CONSTRAINT fk_measurement_origin FOREIGN KEY(origin_id) REFERENCES
    origin (id)
;

ALTER TABLE measurement MODIFY software_id NOT NULL
;

ALTER TABLE measurement ADD CONSTRAINT fk_measurement_software FOREIGN KEY(software_id) REFERENCES
    software (id)
;

ALTER TABLE measurement MODIFY inventory_id NOT NULL
;

ALTER TABLE measurement ADD CONSTRAINT fk_measurement_inventory FOREIGN KEY(inventory_id) REFERENCES
    inventory (id)
;

ALTER TABLE measurement MODIFY node_id NOT NULL
;

ALTER TABLE measurement ADD CONSTRAINT fk_measurement_node FOREIGN KEY(node_id) REFERENCES node (id)
;

ALTER TABLE measurement MODIFY storage_id NOT NULL
;

ALTER TABLE measurement ADD CONSTRAINT fk_measurement_storage FOREIGN KEY(storage_id) REFERENCES
    storage (id)
;

UPDATE alembic_version SET version_num='0005' WHERE alembic_version.version_num = '0004'
;

-- revision 0006

UPDATE alembic_version SET version_num='0006' WHERE alembic_version.version_num = '0005'
;

-- revision 0007

DELETE FROM rollup_day
;

INSERT INTO rollup_day (day, subject_id, kind, outcome, measurements, n_eff_job, s_eff_job,
    q_eff_job, n_eff_payload, s_eff_payload, q_eff_payload, n_eff_loop, s_eff_loop, q_eff_loop,
    n_eff_access, s_eff_access, q_eff_access, n_cpu_per_event_s, s_cpu_per_event_s,
    q_cpu_per_event_s, n_wall_per_event_s, s_wall_per_event_s, q_wall_per_event_s, n_event_rate_hz,
    s_event_rate_hz, q_event_rate_hz, n_access_rate_hz, s_access_rate_hz, q_access_rate_hz,
    n_setup_wall_s, s_setup_wall_s, q_setup_wall_s, n_stagein_wall_s, s_stagein_wall_s,
    q_stagein_wall_s, n_payload_wall_s, s_payload_wall_s, q_payload_wall_s, n_payload_run_queue_s,
    s_payload_run_queue_s, q_payload_run_queue_s, n_loop_wall_s, s_loop_wall_s, q_loop_wall_s,
    n_loop_cpu_s, s_loop_cpu_s, q_loop_cpu_s, n_first_byte_s, s_first_byte_s, q_first_byte_s,
    n_bytes_read, s_bytes_read, q_bytes_read, n_bytes_read_extra, s_bytes_read_extra,
    q_bytes_read_extra, n_read_calls, s_read_calls, q_read_calls, n_read_fraction, s_read_fraction,
    q_read_fraction, n_kernel_read_bytes, s_kernel_read_bytes, q_kernel_read_bytes,
    n_cache_efficiency_rel, s_cache_efficiency_rel, q_cache_efficiency_rel, n_perfstats_read_s,
    s_perfstats_read_s, q_perfstats_read_s, n_perfstats_unzip_s, s_perfstats_unzip_s, q_perfstats_unzip_s,
    n_tree_peak_rss_bytes, s_tree_peak_rss_bytes, q_tree_peak_rss_bytes, n_retries, s_retries,
    q_retries, n_door_rtt_s, s_door_rtt_s, q_door_rtt_s, n_load1_start, s_load1_start,
    q_load1_start, read_latency_hist) SELECT measurement.day, measurement.subject_id,
    coalesce(measurement.kind, '-') AS coalesce_1, coalesce(measurement.failure_class, CASE WHEN
    (measurement.plausible = 1) THEN 'good' ELSE 'implausible' END) AS coalesce_2, count(*) AS
    count_1, count(CASE WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND
    :param_2) THEN CAST(measurement.eff_job AS BINARY_DOUBLE) END) AS count_2, coalesce(sum(CASE
    WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END), :coalesce_4) AS coalesce_3, coalesce(sum(CASE
    WHEN (CASE WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END BETWEEN :param_3 AND :param_4) THEN NULL ELSE
    CASE WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.eff_job AS
    BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN CAST(measurement.eff_job AS BINARY_DOUBLE)
    END END), :coalesce_6) AS coalesce_5, count(CASE WHEN (CAST(measurement.eff_payload AS
    BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN CAST(measurement.eff_payload AS
    BINARY_DOUBLE) END) AS count_3, coalesce(sum(CASE WHEN (CAST(measurement.eff_payload AS
    BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN CAST(measurement.eff_payload AS
    BINARY_DOUBLE) END), :coalesce_8) AS coalesce_7, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.eff_payload AS BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN
    CAST(measurement.eff_payload AS BINARY_DOUBLE) END BETWEEN :param_7 AND :param_8) THEN NULL ELSE
    CASE WHEN (CAST(measurement.eff_payload AS BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN
    CAST(measurement.eff_payload AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.eff_payload AS
    BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN CAST(measurement.eff_payload AS
    BINARY_DOUBLE) END END), :coalesce_10) AS coalesce_9, count(CASE WHEN (CAST(measurement.eff_loop
    AS BINARY_DOUBLE) BETWEEN :param_9 AND :param_10) THEN CAST(measurement.eff_loop AS
    BINARY_DOUBLE) END) AS count_4, coalesce(sum(CASE WHEN (CAST(measurement.eff_loop AS
    BINARY_DOUBLE) BETWEEN :param_9 AND :param_10) THEN CAST(measurement.eff_loop AS BINARY_DOUBLE)
    END), :coalesce_12) AS coalesce_11, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.eff_loop
    AS BINARY_DOUBLE) BETWEEN :param_9 AND :param_10) THEN CAST(measurement.eff_loop AS
    BINARY_DOUBLE) END BETWEEN :param_11 AND :param_12) THEN NULL ELSE CASE WHEN
    (CAST(measurement.eff_loop AS BINARY_DOUBLE) BETWEEN :param_9 AND :param_10) THEN
    CAST(measurement.eff_loop AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.eff_loop AS
    BINARY_DOUBLE) BETWEEN :param_9 AND :param_10) THEN CAST(measurement.eff_loop AS BINARY_DOUBLE)
    END END), :coalesce_14) AS coalesce_13, count(CASE WHEN (CAST(measurement.eff_access AS
    BINARY_DOUBLE) BETWEEN :param_13 AND :param_14) THEN CAST(measurement.eff_access AS
    BINARY_DOUBLE) END) AS count_5, coalesce(sum(CASE WHEN (CAST(measurement.eff_access AS
    BINARY_DOUBLE) BETWEEN :param_13 AND :param_14) THEN CAST(measurement.eff_access AS
    BINARY_DOUBLE) END), :coalesce_16) AS coalesce_15, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.eff_access AS BINARY_DOUBLE) BETWEEN :param_13 AND :param_14) THEN
    CAST(measurement.eff_access AS BINARY_DOUBLE) END BETWEEN :param_15 AND :param_16) THEN NULL
    ELSE CASE WHEN (CAST(measurement.eff_access AS BINARY_DOUBLE) BETWEEN :param_13 AND :param_14)
    THEN CAST(measurement.eff_access AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.eff_access
    AS BINARY_DOUBLE) BETWEEN :param_13 AND :param_14) THEN CAST(measurement.eff_access AS
    BINARY_DOUBLE) END END), :coalesce_18) AS coalesce_17, count(CASE WHEN
    (CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) BETWEEN :param_17 AND :param_18) THEN
    CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) END) AS count_6, coalesce(sum(CASE WHEN
    (CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) BETWEEN :param_17 AND :param_18) THEN
    CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) END), :coalesce_20) AS coalesce_19,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) BETWEEN
    :param_17 AND :param_18) THEN CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) END BETWEEN
    :param_19 AND :param_20) THEN NULL ELSE CASE WHEN (CAST(measurement.cpu_per_event_s AS
    BINARY_DOUBLE) BETWEEN :param_17 AND :param_18) THEN CAST(measurement.cpu_per_event_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) BETWEEN
    :param_17 AND :param_18) THEN CAST(measurement.cpu_per_event_s AS BINARY_DOUBLE) END END),
    :coalesce_22) AS coalesce_21, count(CASE WHEN (CAST(measurement.wall_per_event_s AS
    BINARY_DOUBLE) BETWEEN :param_21 AND :param_22) THEN CAST(measurement.wall_per_event_s AS
    BINARY_DOUBLE) END) AS count_7, coalesce(sum(CASE WHEN (CAST(measurement.wall_per_event_s AS
    BINARY_DOUBLE) BETWEEN :param_21 AND :param_22) THEN CAST(measurement.wall_per_event_s AS
    BINARY_DOUBLE) END), :coalesce_24) AS coalesce_23, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) BETWEEN :param_21 AND :param_22) THEN
    CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) END BETWEEN :param_23 AND :param_24) THEN
    NULL ELSE CASE WHEN (CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) BETWEEN :param_21 AND
    :param_22) THEN CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) BETWEEN :param_21 AND :param_22) THEN
    CAST(measurement.wall_per_event_s AS BINARY_DOUBLE) END END), :coalesce_26) AS coalesce_25,
    count(CASE WHEN (CAST(measurement.event_rate_hz AS BINARY_DOUBLE) BETWEEN :param_25 AND
    :param_26) THEN CAST(measurement.event_rate_hz AS BINARY_DOUBLE) END) AS count_8,
    coalesce(sum(CASE WHEN (CAST(measurement.event_rate_hz AS BINARY_DOUBLE) BETWEEN :param_25 AND
    :param_26) THEN CAST(measurement.event_rate_hz AS BINARY_DOUBLE) END), :coalesce_28) AS
    coalesce_27, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.event_rate_hz AS BINARY_DOUBLE)
    BETWEEN :param_25 AND :param_26) THEN CAST(measurement.event_rate_hz AS BINARY_DOUBLE) END
    BETWEEN :param_27 AND :param_28) THEN NULL ELSE CASE WHEN (CAST(measurement.event_rate_hz AS
    BINARY_DOUBLE) BETWEEN :param_25 AND :param_26) THEN CAST(measurement.event_rate_hz AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.event_rate_hz AS BINARY_DOUBLE) BETWEEN
    :param_25 AND :param_26) THEN CAST(measurement.event_rate_hz AS BINARY_DOUBLE) END END),
    :coalesce_30) AS coalesce_29, count(CASE WHEN (CAST(measurement.access_rate_hz AS BINARY_DOUBLE)
    BETWEEN :param_29 AND :param_30) THEN CAST(measurement.access_rate_hz AS BINARY_DOUBLE) END) AS
    count_9, coalesce(sum(CASE WHEN (CAST(measurement.access_rate_hz AS BINARY_DOUBLE) BETWEEN
    :param_29 AND :param_30) THEN CAST(measurement.access_rate_hz AS BINARY_DOUBLE) END),
    :coalesce_32) AS coalesce_31, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.access_rate_hz
    AS BINARY_DOUBLE) BETWEEN :param_29 AND :param_30) THEN CAST(measurement.access_rate_hz AS
    BINARY_DOUBLE) END BETWEEN :param_31 AND :param_32) THEN NULL ELSE CASE WHEN
    (CAST(measurement.access_rate_hz AS BINARY_DOUBLE) BETWEEN :param_29 AND :param_30) THEN
    CAST(measurement.access_rate_hz AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.access_rate_hz AS BINARY_DOUBLE) BETWEEN :param_29 AND :param_30) THEN
    CAST(measurement.access_rate_hz AS BINARY_DOUBLE) END END), :coalesce_34) AS coalesce_33,
    count(CASE WHEN (CAST(measurement.setup_wall_s AS BINARY_DOUBLE) BETWEEN :param_33 AND
    :param_34) THEN CAST(measurement.setup_wall_s AS BINARY_DOUBLE) END) AS count_10,
    coalesce(sum(CASE WHEN (CAST(measurement.setup_wall_s AS BINARY_DOUBLE) BETWEEN :param_33 AND
    :param_34) THEN CAST(measurement.setup_wall_s AS BINARY_DOUBLE) END), :coalesce_36) AS
    coalesce_35, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.setup_wall_s AS BINARY_DOUBLE)
    BETWEEN :param_33 AND :param_34) THEN CAST(measurement.setup_wall_s AS BINARY_DOUBLE) END
    BETWEEN :param_35 AND :param_36) THEN NULL ELSE CASE WHEN (CAST(measurement.setup_wall_s AS
    BINARY_DOUBLE) BETWEEN :param_33 AND :param_34) THEN CAST(measurement.setup_wall_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.setup_wall_s AS BINARY_DOUBLE) BETWEEN
    :param_33 AND :param_34) THEN CAST(measurement.setup_wall_s AS BINARY_DOUBLE) END END),
    :coalesce_38) AS coalesce_37, count(CASE WHEN (CAST(measurement.stagein_wall_s AS BINARY_DOUBLE)
    BETWEEN :param_37 AND :param_38) THEN CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) END) AS
    count_11, coalesce(sum(CASE WHEN (CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) BETWEEN
    :param_37 AND :param_38) THEN CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) END),
    :coalesce_40) AS coalesce_39, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.stagein_wall_s
    AS BINARY_DOUBLE) BETWEEN :param_37 AND :param_38) THEN CAST(measurement.stagein_wall_s AS
    BINARY_DOUBLE) END BETWEEN :param_39 AND :param_40) THEN NULL ELSE CASE WHEN
    (CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) BETWEEN :param_37 AND :param_38) THEN
    CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) BETWEEN :param_37 AND :param_38) THEN
    CAST(measurement.stagein_wall_s AS BINARY_DOUBLE) END END), :coalesce_42) AS coalesce_41,
    count(CASE WHEN (CAST(measurement.payload_wall_s AS BINARY_DOUBLE) BETWEEN :param_41 AND
    :param_42) THEN CAST(measurement.payload_wall_s AS BINARY_DOUBLE) END) AS count_12,
    coalesce(sum(CASE WHEN (CAST(measurement.payload_wall_s AS BINARY_DOUBLE) BETWEEN :param_41 AND
    :param_42) THEN CAST(measurement.payload_wall_s AS BINARY_DOUBLE) END), :coalesce_44) AS
    coalesce_43, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.payload_wall_s AS
    BINARY_DOUBLE) BETWEEN :param_41 AND :param_42) THEN CAST(measurement.payload_wall_s AS
    BINARY_DOUBLE) END BETWEEN :param_43 AND :param_44) THEN NULL ELSE CASE WHEN
    (CAST(measurement.payload_wall_s AS BINARY_DOUBLE) BETWEEN :param_41 AND :param_42) THEN
    CAST(measurement.payload_wall_s AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.payload_wall_s AS BINARY_DOUBLE) BETWEEN :param_41 AND :param_42) THEN
    CAST(measurement.payload_wall_s AS BINARY_DOUBLE) END END), :coalesce_46) AS coalesce_45,
    count(CASE WHEN (CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) BETWEEN :param_45 AND
    :param_46) THEN CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) END) AS count_13,
    coalesce(sum(CASE WHEN (CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) BETWEEN :param_45
    AND :param_46) THEN CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) END), :coalesce_48)
    AS coalesce_47, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.payload_run_queue_s AS
    BINARY_DOUBLE) BETWEEN :param_45 AND :param_46) THEN CAST(measurement.payload_run_queue_s AS
    BINARY_DOUBLE) END BETWEEN :param_47 AND :param_48) THEN NULL ELSE CASE WHEN
    (CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) BETWEEN :param_45 AND :param_46) THEN
    CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) BETWEEN :param_45 AND :param_46) THEN
    CAST(measurement.payload_run_queue_s AS BINARY_DOUBLE) END END), :coalesce_50) AS coalesce_49,
    count(CASE WHEN (CAST(measurement.loop_wall_s AS BINARY_DOUBLE) BETWEEN :param_49 AND :param_50)
    THEN CAST(measurement.loop_wall_s AS BINARY_DOUBLE) END) AS count_14, coalesce(sum(CASE WHEN
    (CAST(measurement.loop_wall_s AS BINARY_DOUBLE) BETWEEN :param_49 AND :param_50) THEN
    CAST(measurement.loop_wall_s AS BINARY_DOUBLE) END), :coalesce_52) AS coalesce_51,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.loop_wall_s AS BINARY_DOUBLE) BETWEEN
    :param_49 AND :param_50) THEN CAST(measurement.loop_wall_s AS BINARY_DOUBLE) END BETWEEN
    :param_51 AND :param_52) THEN NULL ELSE CASE WHEN (CAST(measurement.loop_wall_s AS
    BINARY_DOUBLE) BETWEEN :param_49 AND :param_50) THEN CAST(measurement.loop_wall_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.loop_wall_s AS BINARY_DOUBLE) BETWEEN :param_49
    AND :param_50) THEN CAST(measurement.loop_wall_s AS BINARY_DOUBLE) END END), :coalesce_54) AS
    coalesce_53, count(CASE WHEN (CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) BETWEEN :param_53
    AND :param_54) THEN CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) END) AS count_15,
    coalesce(sum(CASE WHEN (CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) BETWEEN :param_53 AND
    :param_54) THEN CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) END), :coalesce_56) AS
    coalesce_55, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.loop_cpu_s AS BINARY_DOUBLE)
    BETWEEN :param_53 AND :param_54) THEN CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) END BETWEEN
    :param_55 AND :param_56) THEN NULL ELSE CASE WHEN (CAST(measurement.loop_cpu_s AS BINARY_DOUBLE)
    BETWEEN :param_53 AND :param_54) THEN CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) END * CASE
    WHEN (CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) BETWEEN :param_53 AND :param_54) THEN
    CAST(measurement.loop_cpu_s AS BINARY_DOUBLE) END END), :coalesce_58) AS coalesce_57, count(CASE
    WHEN (CAST(measurement.first_byte_s AS BINARY_DOUBLE) BETWEEN :param_57 AND :param_58) THEN
    CAST(measurement.first_byte_s AS BINARY_DOUBLE) END) AS count_16, coalesce(sum(CASE WHEN
    (CAST(measurement.first_byte_s AS BINARY_DOUBLE) BETWEEN :param_57 AND :param_58) THEN
    CAST(measurement.first_byte_s AS BINARY_DOUBLE) END), :coalesce_60) AS coalesce_59,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.first_byte_s AS BINARY_DOUBLE) BETWEEN
    :param_57 AND :param_58) THEN CAST(measurement.first_byte_s AS BINARY_DOUBLE) END BETWEEN
    :param_59 AND :param_60) THEN NULL ELSE CASE WHEN (CAST(measurement.first_byte_s AS
    BINARY_DOUBLE) BETWEEN :param_57 AND :param_58) THEN CAST(measurement.first_byte_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.first_byte_s AS BINARY_DOUBLE) BETWEEN
    :param_57 AND :param_58) THEN CAST(measurement.first_byte_s AS BINARY_DOUBLE) END END),
    :coalesce_62) AS coalesce_61, count(CASE WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE)
    BETWEEN :param_61 AND :param_62) THEN CAST(measurement.bytes_read AS BINARY_DOUBLE) END) AS
    count_17, coalesce(sum(CASE WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN
    :param_61 AND :param_62) THEN CAST(measurement.bytes_read AS BINARY_DOUBLE) END), :coalesce_64)
    AS coalesce_63, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE)
    BETWEEN :param_61 AND :param_62) THEN CAST(measurement.bytes_read AS BINARY_DOUBLE) END BETWEEN
    :param_63 AND :param_64) THEN NULL ELSE CASE WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE)
    BETWEEN :param_61 AND :param_62) THEN CAST(measurement.bytes_read AS BINARY_DOUBLE) END * CASE
    WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN :param_61 AND :param_62) THEN
    CAST(measurement.bytes_read AS BINARY_DOUBLE) END END), :coalesce_66) AS coalesce_65, count(CASE
    WHEN (CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) BETWEEN :param_65 AND :param_66) THEN
    CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) END) AS count_18, coalesce(sum(CASE WHEN
    (CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) BETWEEN :param_65 AND :param_66) THEN
    CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) END), :coalesce_68) AS coalesce_67,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) BETWEEN
    :param_65 AND :param_66) THEN CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) END BETWEEN
    :param_67 AND :param_68) THEN NULL ELSE CASE WHEN (CAST(measurement.bytes_read_extra AS
    BINARY_DOUBLE) BETWEEN :param_65 AND :param_66) THEN CAST(measurement.bytes_read_extra AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) BETWEEN
    :param_65 AND :param_66) THEN CAST(measurement.bytes_read_extra AS BINARY_DOUBLE) END END),
    :coalesce_70) AS coalesce_69, count(CASE WHEN (CAST(measurement.read_calls AS BINARY_DOUBLE)
    BETWEEN :param_69 AND :param_70) THEN CAST(measurement.read_calls AS BINARY_DOUBLE) END) AS
    count_19, coalesce(sum(CASE WHEN (CAST(measurement.read_calls AS BINARY_DOUBLE) BETWEEN
    :param_69 AND :param_70) THEN CAST(measurement.read_calls AS BINARY_DOUBLE) END), :coalesce_72)
    AS coalesce_71, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.read_calls AS BINARY_DOUBLE)
    BETWEEN :param_69 AND :param_70) THEN CAST(measurement.read_calls AS BINARY_DOUBLE) END BETWEEN
    :param_71 AND :param_72) THEN NULL ELSE CASE WHEN (CAST(measurement.read_calls AS BINARY_DOUBLE)
    BETWEEN :param_69 AND :param_70) THEN CAST(measurement.read_calls AS BINARY_DOUBLE) END * CASE
    WHEN (CAST(measurement.read_calls AS BINARY_DOUBLE) BETWEEN :param_69 AND :param_70) THEN
    CAST(measurement.read_calls AS BINARY_DOUBLE) END END), :coalesce_74) AS coalesce_73, count(CASE
    WHEN (CAST(measurement.read_fraction AS BINARY_DOUBLE) BETWEEN :param_73 AND :param_74) THEN
    CAST(measurement.read_fraction AS BINARY_DOUBLE) END) AS count_20, coalesce(sum(CASE WHEN
    (CAST(measurement.read_fraction AS BINARY_DOUBLE) BETWEEN :param_73 AND :param_74) THEN
    CAST(measurement.read_fraction AS BINARY_DOUBLE) END), :coalesce_76) AS coalesce_75,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.read_fraction AS BINARY_DOUBLE) BETWEEN
    :param_73 AND :param_74) THEN CAST(measurement.read_fraction AS BINARY_DOUBLE) END BETWEEN
    :param_75 AND :param_76) THEN NULL ELSE CASE WHEN (CAST(measurement.read_fraction AS
    BINARY_DOUBLE) BETWEEN :param_73 AND :param_74) THEN CAST(measurement.read_fraction AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.read_fraction AS BINARY_DOUBLE) BETWEEN
    :param_73 AND :param_74) THEN CAST(measurement.read_fraction AS BINARY_DOUBLE) END END),
    :coalesce_78) AS coalesce_77, count(CASE WHEN (CAST(measurement.kernel_read_bytes AS
    BINARY_DOUBLE) BETWEEN :param_77 AND :param_78) THEN CAST(measurement.kernel_read_bytes AS
    BINARY_DOUBLE) END) AS count_21, coalesce(sum(CASE WHEN (CAST(measurement.kernel_read_bytes AS
    BINARY_DOUBLE) BETWEEN :param_77 AND :param_78) THEN CAST(measurement.kernel_read_bytes AS
    BINARY_DOUBLE) END), :coalesce_80) AS coalesce_79, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) BETWEEN :param_77 AND :param_78) THEN
    CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) END BETWEEN :param_79 AND :param_80) THEN
    NULL ELSE CASE WHEN (CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) BETWEEN :param_77 AND
    :param_78) THEN CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) BETWEEN :param_77 AND :param_78) THEN
    CAST(measurement.kernel_read_bytes AS BINARY_DOUBLE) END END), :coalesce_82) AS coalesce_81,
    count(CASE WHEN (CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) BETWEEN :param_81 AND
    :param_82) THEN CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) END) AS count_22,
    coalesce(sum(CASE WHEN (CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) BETWEEN
    :param_81 AND :param_82) THEN CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) END),
    :coalesce_84) AS coalesce_83, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) BETWEEN :param_81 AND :param_82) THEN
    CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) END BETWEEN :param_83 AND :param_84)
    THEN NULL ELSE CASE WHEN (CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) BETWEEN
    :param_81 AND :param_82) THEN CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) END * CASE
    WHEN (CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) BETWEEN :param_81 AND :param_82)
    THEN CAST(measurement.cache_efficiency_rel AS BINARY_DOUBLE) END END), :coalesce_86) AS
    coalesce_85, count(CASE WHEN (CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) BETWEEN :param_85
    AND :param_86) THEN CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) END) AS count_23,
    coalesce(sum(CASE WHEN (CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) BETWEEN :param_85 AND
    :param_86) THEN CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) END), :coalesce_88) AS
    coalesce_87, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.perfstats_read_s AS BINARY_DOUBLE)
    BETWEEN :param_85 AND :param_86) THEN CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) END BETWEEN
    :param_87 AND :param_88) THEN NULL ELSE CASE WHEN (CAST(measurement.perfstats_read_s AS
    BINARY_DOUBLE) BETWEEN :param_85 AND :param_86) THEN CAST(measurement.perfstats_read_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) BETWEEN :param_85
    AND :param_86) THEN CAST(measurement.perfstats_read_s AS BINARY_DOUBLE) END END), :coalesce_90) AS
    coalesce_89, count(CASE WHEN (CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) BETWEEN :param_89
    AND :param_90) THEN CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) END) AS count_24,
    coalesce(sum(CASE WHEN (CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) BETWEEN :param_89 AND
    :param_90) THEN CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) END), :coalesce_92) AS
    coalesce_91, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE)
    BETWEEN :param_89 AND :param_90) THEN CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) END
    BETWEEN :param_91 AND :param_92) THEN NULL ELSE CASE WHEN (CAST(measurement.perfstats_unzip_s AS
    BINARY_DOUBLE) BETWEEN :param_89 AND :param_90) THEN CAST(measurement.perfstats_unzip_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) BETWEEN
    :param_89 AND :param_90) THEN CAST(measurement.perfstats_unzip_s AS BINARY_DOUBLE) END END),
    :coalesce_94) AS coalesce_93, count(CASE WHEN (CAST(measurement.tree_peak_rss_bytes AS
    BINARY_DOUBLE) BETWEEN :param_93 AND :param_94) THEN CAST(measurement.tree_peak_rss_bytes AS
    BINARY_DOUBLE) END) AS count_25, coalesce(sum(CASE WHEN (CAST(measurement.tree_peak_rss_bytes AS
    BINARY_DOUBLE) BETWEEN :param_93 AND :param_94) THEN CAST(measurement.tree_peak_rss_bytes AS
    BINARY_DOUBLE) END), :coalesce_96) AS coalesce_95, coalesce(sum(CASE WHEN (CASE WHEN
    (CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) BETWEEN :param_93 AND :param_94) THEN
    CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) END BETWEEN :param_95 AND :param_96) THEN
    NULL ELSE CASE WHEN (CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) BETWEEN :param_93
    AND :param_94) THEN CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) BETWEEN :param_93 AND :param_94) THEN
    CAST(measurement.tree_peak_rss_bytes AS BINARY_DOUBLE) END END), :coalesce_98) AS coalesce_97,
    count(CASE WHEN (CAST(measurement.retries AS BINARY_DOUBLE) BETWEEN :param_97 AND :param_98)
    THEN CAST(measurement.retries AS BINARY_DOUBLE) END) AS count_26, coalesce(sum(CASE WHEN
    (CAST(measurement.retries AS BINARY_DOUBLE) BETWEEN :param_97 AND :param_98) THEN
    CAST(measurement.retries AS BINARY_DOUBLE) END), :coalesce_100) AS coalesce_99,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.retries AS BINARY_DOUBLE) BETWEEN :param_97
    AND :param_98) THEN CAST(measurement.retries AS BINARY_DOUBLE) END BETWEEN :param_99 AND
    :param_100) THEN NULL ELSE CASE WHEN (CAST(measurement.retries AS BINARY_DOUBLE) BETWEEN
    :param_97 AND :param_98) THEN CAST(measurement.retries AS BINARY_DOUBLE) END * CASE WHEN
    (CAST(measurement.retries AS BINARY_DOUBLE) BETWEEN :param_97 AND :param_98) THEN
    CAST(measurement.retries AS BINARY_DOUBLE) END END), :coalesce_102) AS coalesce_101, count(CASE
    WHEN (CAST(measurement.door_rtt_s AS BINARY_DOUBLE) BETWEEN :param_101 AND :param_102) THEN
    CAST(measurement.door_rtt_s AS BINARY_DOUBLE) END) AS count_27, coalesce(sum(CASE WHEN
    (CAST(measurement.door_rtt_s AS BINARY_DOUBLE) BETWEEN :param_101 AND :param_102) THEN
    CAST(measurement.door_rtt_s AS BINARY_DOUBLE) END), :coalesce_104) AS coalesce_103,
    coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.door_rtt_s AS BINARY_DOUBLE) BETWEEN
    :param_101 AND :param_102) THEN CAST(measurement.door_rtt_s AS BINARY_DOUBLE) END BETWEEN
    :param_103 AND :param_104) THEN NULL ELSE CASE WHEN (CAST(measurement.door_rtt_s AS
    BINARY_DOUBLE) BETWEEN :param_101 AND :param_102) THEN CAST(measurement.door_rtt_s AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.door_rtt_s AS BINARY_DOUBLE) BETWEEN :param_101
    AND :param_102) THEN CAST(measurement.door_rtt_s AS BINARY_DOUBLE) END END), :coalesce_106) AS
    coalesce_105, count(CASE WHEN (CAST(measurement.load1_start AS BINARY_DOUBLE) BETWEEN :param_105
    AND :param_106) THEN CAST(measurement.load1_start AS BINARY_DOUBLE) END) AS count_28,
    coalesce(sum(CASE WHEN (CAST(measurement.load1_start AS BINARY_DOUBLE) BETWEEN :param_105 AND
    :param_106) THEN CAST(measurement.load1_start AS BINARY_DOUBLE) END), :coalesce_108) AS
    coalesce_107, coalesce(sum(CASE WHEN (CASE WHEN (CAST(measurement.load1_start AS BINARY_DOUBLE)
    BETWEEN :param_105 AND :param_106) THEN CAST(measurement.load1_start AS BINARY_DOUBLE) END
    BETWEEN :param_107 AND :param_108) THEN NULL ELSE CASE WHEN (CAST(measurement.load1_start AS
    BINARY_DOUBLE) BETWEEN :param_105 AND :param_106) THEN CAST(measurement.load1_start AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.load1_start AS BINARY_DOUBLE) BETWEEN
    :param_105 AND :param_106) THEN CAST(measurement.load1_start AS BINARY_DOUBLE) END END),
    :coalesce_110) AS coalesce_109, '[]'
FROM measurement GROUP BY measurement.day, measurement.subject_id, coalesce(measurement.kind, '-'),
    coalesce(measurement.failure_class, CASE WHEN (measurement.plausible = 1) THEN 'good' ELSE
    'implausible' END)
;

SELECT measurement.day, measurement.subject_id, coalesce(measurement.kind, '-') AS coalesce_1,
    coalesce(measurement.failure_class, CASE WHEN (measurement.plausible = 1) THEN 'good' ELSE
    'implausible' END) AS coalesce_2, measurement.read_latency_hist
FROM measurement
WHERE measurement.read_latency_hist IS NOT NULL
;

UPDATE rollup_day SET read_latency_hist=:reads WHERE rollup_day.day = :key_day AND
    rollup_day.subject_id = :key_subject_id AND rollup_day.kind = :key_kind AND rollup_day.outcome =
    :key_outcome
; -- many rows

UPDATE alembic_version SET version_num='0007' WHERE alembic_version.version_num = '0006'
;

-- revision 0008

UPDATE alembic_version SET version_num='0008' WHERE alembic_version.version_num = '0007'
;

-- revision 0009

UPDATE alembic_version SET version_num='0009' WHERE alembic_version.version_num = '0008'
;
