-- The shortest statement of each kind that Treehammer sends to Oracle 19c and 23ai.
-- Renew with: RENEW_GOLDEN=1 .venv/bin/pytest tests/integration/sql/oracle/test_sql_oracle.py

CREATE INDEX ix_campaign_created ON campaign (created_us)
;

CREATE INDEX ix_subject_series ON subject (series)
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

CREATE TABLE extra (
  measurement_id VARCHAR2(128 CHAR) NOT NULL,
  name VARCHAR2(64 CHAR) NOT NULL,
  value BINARY_DOUBLE NOT NULL,
  CONSTRAINT pk_extra PRIMARY KEY (measurement_id, name),
  CONSTRAINT fk_extra_measurement FOREIGN KEY(measurement_id) REFERENCES measurement
    (measurement_id)
)
;

CREATE TABLE subject (
  id NUMBER(19) NOT NULL,
  series VARCHAR2(128 CHAR) NOT NULL,
  test_name VARCHAR2(4000 BYTE),
  variant VARCHAR2(4000 BYTE),
  variant_label VARCHAR2(4000 BYTE),
  site VARCHAR2(4000 BYTE),
  storage_site VARCHAR2(4000 BYTE),
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
  run_mode VARCHAR2(64 CHAR),
  launch_order VARCHAR2(64 CHAR),
  CONSTRAINT pk_subject PRIMARY KEY (id)
)
;

DELETE FROM attempt WHERE attempt.job_id IN (SELECT job.id
FROM job
WHERE job.campaign_id = :campaign_id_1)
;

DELETE FROM campaign WHERE campaign.id = :id_1
;

DELETE FROM change_point WHERE change_point.day >= :day_1
;

DELETE FROM extra WHERE extra.measurement_id IN (:measurement_id_1_1)
;

DELETE FROM instruction_count WHERE instruction_count.count_id IN (:count_id_1_1)
;

DELETE FROM job WHERE job.campaign_id = :campaign_id_1
;

DELETE FROM measurement WHERE measurement.measurement_id IN (:measurement_id_1_1)
;

DELETE FROM operation WHERE operation.measurement_id IN (:measurement_id_1_1)
;

DELETE FROM pair WHERE pair.comparison_id = :comparison_id_1
;

DELETE FROM quality_flag WHERE quality_flag.measurement_id IN (:measurement_id_1_1)
;

DELETE FROM read_session WHERE read_session.key_id = :key_id_1
;

DELETE FROM replica WHERE replica.id IN (:id_1_1)
;

DELETE FROM rollup_day
;

DELETE FROM rollup_operation
;

DELETE FROM verdict WHERE verdict.comparison_id = :comparison_id_1
;

DELETE FROM watched_day WHERE watched_day.day BETWEEN :day_1 AND :day_2
;

INSERT INTO access_key (key_id, role, name, created_us, expires_us, revoked_us,
    master_key_fingerprint, owner) VALUES (:key_id, :role, :name, :created_us, :expires_us,
    :revoked_us, :master_key_fingerprint, :owner)
;

INSERT INTO access_revocation (scope, subject, revoked_us) VALUES (:scope, :subject, :revoked_us)
;

INSERT INTO alarm_message (id, event_id, kind, subject_kind, subject, state, severity, happened_us,
    recorded_us, title, text, evidence, channel, recipient, delivery, attempts, due_us, error)
    VALUES (:id, :event_id, :kind, :subject_kind, :subject, :state, :severity, :happened_us,
    :recorded_us, :title, :text, :evidence, :channel, :recipient, :delivery, :attempts, :due_us,
    :error)
;

INSERT INTO alembic_version (version_num) VALUES (:version_num)
;

INSERT INTO attempt (job_id, attempt, state, started_us, ended_us, exit_code, failure_class,
    message) VALUES (:job_id, :"number", :state, :started_us, :ended_us, :exit_code, :failure_class,
    :message)
;

INSERT INTO audit_entry (id, changed_us, action, actor, scope, reason, measurements) VALUES (:id,
    :changed_us, :action, :actor, :scope, :reason, :measurements)
;

INSERT INTO campaign (id, name, created_us, repository, ref, commit_id, dirty, test_name, test_path,
    plan, planned_jobs, planned_measurements) VALUES (:id, :name, :created_us, :repository, :ref,
    :commit_id, :dirty, :test_name, :test_path, :plan, :planned_jobs, :planned_measurements)
;

INSERT INTO campaign_owner (campaign_id, owner, claimed_us) VALUES (:campaign_id, :owner,
    :claimed_us)
; -- many rows

INSERT INTO change_point (id, found_us, updated_us, day, state, kind, metric, test_name, control,
    attribution, subject, effect, low, high, p_value, days_before, days_after, seconded, cause,
    evidence) VALUES (:id, :found_us, :updated_us, :day, :state, :kind, :metric, :test_name,
    :control, :attribution, :subject, :effect, :low, :high, :p_value, :days_before, :days_after,
    :seconded, :cause, :evidence)
;

INSERT INTO extra (measurement_id, name, value) VALUES (:measurement_id, :name, :value)
; -- many rows

INSERT INTO instruction_count (count_id, line, created_us, test_name, test_hash, variant, label,
    root_version, dataset, dataset_hash, events, host, valgrind, library, function_name,
    instructions) VALUES (:count_id, :line, :created_us, :test_name, :test_hash, :variant, :label,
    :root_version, :dataset, :dataset_hash, :events, :host, :valgrind, :library, :function,
    :instructions)
; -- many rows

INSERT INTO inventory (id, inventory) VALUES (:id, :inventory)
; -- many rows

INSERT INTO job (id, campaign_id, site, door, kind, repeat, label, batch_system, batch_id,
    planned_measurements, state) VALUES (:id, :campaign_id, :site, :door, :kind, :repeat, :label,
    :batch_system, :batch_id, :planned_measurements, :state)
; -- many rows

INSERT INTO measurement (measurement_id, campaign_id, job_id, attempt, kind, repeat, round,
    position, started_us, ended_us, day, setup_wall_s, setup_cpu_s, build_wall_s, build_cpu_s,
    stagein_wall_s, stagein_cpu_s, stagein_bytes, payload_wall_s, payload_user_s, payload_sys_s,
    payload_run_queue_s, eff_payload, eff_job, access_rate_hz, eff_access, pinned_core, segments,
    segment_entries, segment_cpu_log_ratio, segment_cpu_log_ratio_sd, segment_wall_log_ratio,
    segment_wall_log_ratio_sd, max_rss_bytes, tree_peak_rss_bytes, ctx_voluntary, ctx_involuntary,
    page_faults_minor, page_faults_major, io_read_chars, io_write_chars, io_read_bytes,
    io_write_bytes, processes, exit_code, exit_signal, retries, load_index, load_jobs, start_state,
    start_planned_us, start_present_jobs, start_offset_s, start_wait_ ...
; -- many rows

INSERT INTO node (id, host, machine, cpu_model, cores_online, cores_allowed, cgroup_cpu_limit,
    cgroup_memory_limit_bytes, mem_total_bytes, kernel, os_name, container, worker_python,
    hw_counters_missing) VALUES (:id, :host, :machine, :cpu_model, :cores_online, :cores_allowed,
    :cgroup_cpu_limit, :cgroup_memory_limit_bytes, :mem_total_bytes, :kernel, :os_name, :container,
    :worker_python, :hw_counters_missing)
; -- many rows

INSERT INTO operation (measurement_id, line, side, operation, server, step, step_start_us, step_s,
    clients, scheduled, done, failed, late, lateness_max_s, generator_cpu, generator_limited, bytes,
    failures, latency) VALUES (:measurement_id, :line, :side, :operation, :server, :step,
    :step_start_us, :step_s, :clients, :scheduled, :done, :failed, :late, :lateness_max_s,
    :generator_cpu, :generator_limited, :bytes, :failures, :latency)
; -- many rows

INSERT INTO origin (id, record_version, instrument_version, campaign_name, repository, ref,
    commit_id, dirty, test_path, test_hash, payload_hash, treehammer_version) VALUES (:id,
    :record_version, :instrument_version, :campaign_name, :repository, :ref, :commit_id, :dirty,
    :test_path, :test_hash, :payload_hash, :treehammer_version)
; -- many rows

INSERT INTO pair (comparison_id, job_id, campaign_id, site, host, comparison_key, label, metric,
    axis, a, b, rounds, a_value, b_value, log_ratio, line) VALUES (:comparison_id, :job_id,
    :campaign_id, :site, :host, :comparison_key, :label, :metric, :axis, :a, :b, :rounds, :a_value,
    :b_value, :log_ratio, :line)
;

INSERT INTO patrol_charge (campaign_id, site, day, reserved_cpu_s, reserved_bytes, used_cpu_s,
    used_bytes) VALUES (:campaign_id, :site, :day, :reserved_cpu_s, :reserved_bytes, :used_cpu_s,
    :used_bytes)
;

INSERT INTO patrol_entry (name, line, test, follows, sites, every_s, in_flight, next_us, note,
    checked_us) VALUES (:name, :line, :test, :follows, :sites, :every_s, :in_flight, :next_us,
    :note, :checked_us)
;

INSERT INTO patrol_lease (name, holder, epoch, acquired_us, expires_us) VALUES (:name, :holder,
    :epoch, :acquired_us, :expires_us)
;

INSERT INTO patrol_site (site, cpu_limit_s, bytes_limit) VALUES (:site, :cpu_limit_s, :bytes_limit)
;

INSERT INTO patrol_start (entry, occasion, campaign_id, state, due_us, claimed_us, finished_us,
    epoch, holder, request, message) VALUES (:entry, :occasion, :campaign_id, :state, :due_us,
    :claimed_us, :finished_us, :epoch, :holder, :request, :message)
; -- many rows

INSERT INTO quality_flag (measurement_id, kind, reason, set_by, set_us) VALUES (:measurement_id,
    :kind, :reason, :set_by, :set_us)
;

INSERT INTO read_session (token_hash, role, name, key_id, identity, address, created_us, expires_us)
    VALUES (:token_hash, :role, :name, :key_id, :identity, :address, :created_us, :expires_us)
;

INSERT INTO receipt (subject, kind, key_id, address, campaign_id, received_us) VALUES (:subject,
    :kind, :key_id, :address, :campaign_id, :received_us)
; -- many rows

INSERT INTO release_check (id, campaign_id, test_name, a, b, state, comparison_id, compared, slower,
    effect, text, reruns, rerun_id, checked_us, changed_us) VALUES (:id, :campaign_id, :test_name,
    :a, :b, :state, :comparison_id, :compared, :slower, :effect, :text, :reruns, :rerun_id,
    :checked_us, :changed_us)
;

INSERT INTO replica (id, found_us, dataset, dataset_hash, site, door, file_name, url, good, message,
    owner) VALUES (:id, :found_us, :dataset, :dataset_hash, :site, :door, :"file", :url, :good,
    :message, :owner)
;

INSERT INTO rollup_day (day, subject_id, kind, outcome, measurements, last_us, software_id, node_id,
    storage_id, n_eff_job, s_eff_job, q_eff_job, n_eff_payload, s_eff_payload, q_eff_payload,
    n_eff_loop, s_eff_loop, q_eff_loop, n_eff_access, s_eff_access, q_eff_access, n_cpu_per_event_s,
    s_cpu_per_event_s, q_cpu_per_event_s, n_wall_per_event_s, s_wall_per_event_s,
    q_wall_per_event_s, n_event_rate_hz, s_event_rate_hz, q_event_rate_hz, n_access_rate_hz,
    s_access_rate_hz, q_access_rate_hz, n_setup_wall_s, s_setup_wall_s, q_setup_wall_s,
    n_stagein_wall_s, s_stagein_wall_s, q_stagein_wall_s, n_payload_wall_s, s_payload_wall_s,
    q_payload_wall_s, n_payload_run_queue_s, s_payload_run_queue_s, q_payload_run_queue_s,
    n_loop_wall_s, s_loop_wall_s, q_loop_wall_s, n_loop_cpu_s, s_loop_cpu_s, q_loop_cpu_ ...
;

INSERT INTO rollup_operation (day, subject_id, outcome, side, operation, steps, limited_steps,
    scheduled, done, failed, late, bytes, latency) VALUES (:day, :subject_id, :outcome, :side,
    :operation, :steps, :limited_steps, :scheduled, :done, :failed, :late, :bytes, :latency)
;

INSERT INTO site_downtime (id, source, site, subject_kind, starts_us, ends_us, severity,
    description, url, imported_us, withdrawn_us) VALUES (:id, :source, :site, :subject_kind,
    :starts_us, :ends_us, :severity, :description, :url, :imported_us, :withdrawn_us)
;

INSERT INTO site_override (id, site, subject_kind, state, who, why, made_us, until_us, ended_us,
    ended_by) VALUES (:id, :site, :subject_kind, :state, :who, :why, :made_us, :until_us, :ended_us,
    :ended_by)
;

INSERT INTO software (id, root_provider, root_version, root_commit, root_platform, root_compiler,
    root_flags, root_cxx_standard, root_features, zlib_version, lzma_version, lz4_version,
    zstd_version, libcore_sha256, loop_compiler) VALUES (:id, :root_provider, :root_version,
    :root_commit, :root_platform, :root_compiler, :root_flags, :root_cxx_standard, :root_features,
    :zlib_version, :lzma_version, :lz4_version, :zstd_version, :libcore_sha256, :loop_compiler)
; -- many rows

INSERT INTO status_change (id, subject_kind, site, rule, state, previous, since_us, decided_us,
    cause, rule_version, reason, evidence, superseded_us) VALUES (:id, :subject_kind, :site, :rule,
    :state, :previous, :since_us, :decided_us, :cause, :rule_version, :reason, :evidence,
    :superseded_us)
;

INSERT INTO status_rule_set (version, document, started_us, evaluated_us) VALUES (:version,
    :document, :started_us, :evaluated_us)
;

INSERT INTO storage (id, file_name, file_url, file_size_bytes, file_class, data_server,
    address_family, server_version, client_cache_state, client_cache_method, server_cache_state,
    server_cache_method) VALUES (:id, :file_name, :file_url, :file_size_bytes, :file_class,
    :data_server, :address_family, :server_version, :client_cache_state, :client_cache_method,
    :server_cache_state, :server_cache_method)
; -- many rows

INSERT INTO subject (id, series, test_name, variant, variant_label, site, storage_site, door,
    door_protocol, dataset, dataset_hash, content_hash, axis_root, axis_branches, axis_cache_mb,
    axis_events, axis_access, axis_cache, passes_planned, run_mode, launch_order) VALUES (:id,
    :series, :test_name, :variant, :variant_label, :site, :storage_site, :door, :door_protocol,
    :dataset, :dataset_hash, :content_hash, :axis_root, :axis_branches, :axis_cache_mb,
    :axis_events, :axis_access, :axis_cache, :passes_planned, :run_mode, :launch_order)
; -- many rows

INSERT INTO verdict (comparison_id, created_us, rule_version, scope, site, comparison_key, label,
    metric, axis, a, b, verdict, effect, low, high, jobs, hosts, jobs_needed, evidence, line) VALUES
    (:comparison_id, :created_us, :rule_version, :scope, :site, :comparison_key, :label, :metric,
    :axis, :a, :b, :verdict, :effect, :low, :high, :jobs, :hosts, :jobs_needed, :evidence, :line)
;

INSERT INTO watched_day (series_id, day, value, squares, jobs, context) VALUES (:series_id, :day,
    :value, :squares, :jobs, :context)
;

INSERT INTO watched_series (id, kind, metric, test_name, work_key, variant_label, site,
    storage_site, door, root_release, control, host) VALUES (:id, :kind, :metric, :test_name, :work,
    :variant_label, :site, :storage_site, :door, :release, :control, :host)
;

INSERT INTO writer_lock (id) VALUES (1)
;

SELECT 1 FROM DUAL
;

SELECT count(*) AS count_1
FROM access_key
;

SELECT count(*) AS count_1
FROM access_revocation
;

SELECT count(*) AS count_1
FROM alarm_message
;

SELECT alembic_version.version_num
FROM alembic_version
;

SELECT count(*) AS count_1
FROM attempt
;

SELECT count(*) AS count_1
FROM audit_entry
;

SELECT count(*) AS count_1
FROM campaign
;

SELECT count(*) AS count_1
FROM campaign_owner
;

SELECT count(*) AS count_1
FROM change_point
;

SELECT count(*) AS count_1
FROM extra
;

SELECT count(*) AS count_1
FROM instruction_count
;

SELECT count(*) AS count_1
FROM inventory
;

SELECT count(*) AS count_1
FROM job
;

SELECT count(*) AS count_1
FROM measurement
;

SELECT value FROM nls_database_parameters WHERE parameter = 'NLS_CHARACTERSET'
;

SELECT count(*) AS count_1
FROM node
;

SELECT count(*) AS count_1
FROM operation
;

SELECT count(*) AS count_1
FROM origin
;

SELECT count(*) AS count_1
FROM pair
;

SELECT count(*) AS count_1
FROM patrol_charge
;

SELECT count(*) AS count_1
FROM patrol_entry
;

SELECT count(*) AS count_1
FROM patrol_lease
;

SELECT count(*) AS count_1
FROM patrol_site
;

SELECT count(*) AS count_1
FROM patrol_start
;

SELECT count(*) AS count_1
FROM quality_flag
;

SELECT count(*) AS count_1
FROM read_session
;

SELECT count(*) AS count_1
FROM receipt
;

SELECT count(*) AS count_1
FROM release_check
;

SELECT count(*) AS count_1
FROM replica
;

SELECT count(*) AS count_1
FROM rollup_day
;

SELECT count(*) AS count_1
FROM rollup_operation
;

SELECT count(*) AS count_1
FROM site_downtime
;

SELECT count(*) AS count_1
FROM site_override
;

SELECT count(*) AS count_1
FROM software
;

SELECT count(*) AS count_1
FROM status_change
;

SELECT count(*) AS count_1
FROM status_rule_set
;

SELECT count(*) AS count_1
FROM storage
;

SELECT count(*) AS count_1
FROM subject
;

SELECT table_name, constraint_name, column_name FROM user_cons_columns WHERE constraint_name IN
    (SELECT constraint_name FROM user_constraints WHERE constraint_type = 'P') ORDER BY table_name,
    constraint_name, position
;

SELECT table_name, index_name, column_name FROM user_ind_columns ORDER BY table_name, index_name,
    column_position
;

SELECT table_name, column_name FROM user_tab_columns
;

SELECT count(*) AS count_1
FROM verdict
;

SELECT count(*) AS count_1
FROM watched_day
;

SELECT count(*) AS count_1
FROM watched_series
;

SELECT id FROM writer_lock
;

UPDATE access_key SET revoked_us=:revoked_us WHERE access_key.key_id = :key_id_1 AND
    access_key.revoked_us IS NULL
;

UPDATE attempt SET job_id=:job_id, attempt=:"number", state=:state, started_us=:started_us,
    ended_us=:ended_us, exit_code=:exit_code, failure_class=:failure_class, message=:message WHERE
    attempt.job_id = :key_job_id AND attempt.attempt = :key_number
;

UPDATE job SET id=:id, campaign_id=:campaign_id, site=:site, door=:door, kind=:kind, repeat=:repeat,
    label=:label, batch_system=:batch_system, batch_id=:batch_id,
    planned_measurements=:planned_measurements, state=:state WHERE job.id = :key_id
;

UPDATE measurement SET passes=:passes WHERE measurement.day = :day_1 AND measurement.passes IS NOT
    NULL
;

UPDATE site_downtime SET id=:id, source=:source, site=:site, subject_kind=:subject_kind,
    starts_us=:starts_us, ends_us=:ends_us, severity=:severity, description=:description, url=:url,
    imported_us=:imported_us, withdrawn_us=:withdrawn_us WHERE site_downtime.id = :key_id
;

UPDATE site_override SET id=:id, site=:site, subject_kind=:subject_kind, state=:state, who=:who,
    why=:why, made_us=:made_us, until_us=:until_us, ended_us=:ended_us, ended_by=:ended_by WHERE
    site_override.id = :key_id
;

UPDATE status_change SET superseded_us=:superseded_us WHERE status_change.id IN (:id_1_1)
;

UPDATE status_rule_set SET started_us=:started_us, evaluated_us=:evaluated_us WHERE
    status_rule_set.version = :version_1
;
