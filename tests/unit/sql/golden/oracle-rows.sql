-- What Treehammer sends to an Oracle server; the same for 19c and 23ai.
-- Renewed by: PYTHONPATH=tests/helpers .venv/bin/python -m oracle_golden

-- measurements come in

SELECT 1 FROM DUAL
;

SELECT id FROM writer_lock WHERE id = 1 FOR UPDATE WAIT 30
;

SELECT measurement.measurement_id
FROM measurement
WHERE measurement.measurement_id IN (:measurement_id_1_1, :measurement_id_1_2)
;

SELECT subject.id
FROM subject
WHERE subject.id IN (:id_1_1, :id_1_2)
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
WHERE origin.id IN (:id_1_1, :id_1_2)
;

INSERT INTO origin (id, record_version, instrument_version, campaign_name, repository, ref,
    commit_id, dirty, test_path, test_hash, payload_hash, treehammer_version) VALUES (:id,
    :record_version, :instrument_version, :campaign_name, :repository, :ref, :commit_id, :dirty,
    :test_path, :test_hash, :payload_hash, :treehammer_version)
; -- many rows

SELECT software.id
FROM software
WHERE software.id IN (:id_1_1, :id_1_2)
;

INSERT INTO software (id, root_provider, root_version, root_commit, root_platform, root_compiler,
    root_flags, root_cxx_standard, root_features, zlib_version, lzma_version, lz4_version,
    zstd_version, libcore_sha256) VALUES (:id, :root_provider, :root_version, :root_commit,
    :root_platform, :root_compiler, :root_flags, :root_cxx_standard, :root_features, :zlib_version,
    :lzma_version, :lz4_version, :zstd_version, :libcore_sha256)
; -- many rows

SELECT inventory.id
FROM inventory
WHERE inventory.id IN (:id_1_1, :id_1_2)
;

INSERT INTO inventory (id, inventory) VALUES (:id, :inventory)
; -- many rows

SELECT node.id
FROM node
WHERE node.id IN (:id_1_1, :id_1_2)
;

INSERT INTO node (id, host, cpu_model, cores_online, cores_allowed, cgroup_cpu_limit,
    cgroup_memory_limit_bytes, mem_total_bytes, kernel, os_name, container, worker_python) VALUES
    (:id, :host, :cpu_model, :cores_online, :cores_allowed, :cgroup_cpu_limit,
    :cgroup_memory_limit_bytes, :mem_total_bytes, :kernel, :os_name, :container, :worker_python)
; -- many rows

SELECT storage.id
FROM storage
WHERE storage.id IN (:id_1_1, :id_1_2)
;

INSERT INTO storage (id, file_name, file_url, file_size_bytes, file_class, data_server,
    address_family, server_version, client_cache_state, client_cache_method, server_cache_state,
    server_cache_method) VALUES (:id, :file_name, :file_url, :file_size_bytes, :file_class,
    :data_server, :address_family, :server_version, :client_cache_state, :client_cache_method,
    :server_cache_state, :server_cache_method)
; -- many rows

INSERT INTO measurement (measurement_id, campaign_id, job_id, attempt, kind, repeat, round,
    position, started_us, ended_us, day, setup_wall_s, setup_cpu_s, stagein_wall_s, stagein_cpu_s,
    stagein_bytes, payload_wall_s, payload_user_s, payload_sys_s, payload_run_queue_s, eff_payload,
    eff_job, access_rate_hz, eff_access, max_rss_bytes, tree_peak_rss_bytes, ctx_voluntary,
    ctx_involuntary, page_faults_minor, page_faults_major, io_read_chars, io_write_chars,
    io_read_bytes, io_write_bytes, processes, exit_code, exit_signal, cpu_mhz, cpu_steal_s,
    psi_cpu_some_s, psi_io_some_s, psi_memory_some_s, cgroup_throttled_s, load1_start, load1_end,
    mem_available_start_bytes, mem_available_end_bytes, calibration_before_s, calibration_after_s,
    slot, concurrent_door_jobs, door_rtt_s, client_cached_fraction, failure_class, failure_kind,
    failure_phase, failure_message, failure_transient, plausible, implausible_reasons, log_excerpt,
    import_wall_s, import_user_s, import_sys_s, compile_wall_s, passes_done, passes_counted,
    open_wall_s, open_user_s, open_sys_s, get_tree_wall_s, get_tree_user_s, get_tree_sys_s,
    prepare_wall_s, prepare_user_s, prepare_sys_s, loop_wall_s, loop_user_s, loop_sys_s,
    close_wall_s, close_user_s, close_sys_s, loop_cpu_s, loop_run_queue_s, cpu_per_event_s,
    wall_per_event_s, event_rate_hz, eff_loop, eff_loop_corrected, events_total, events_read,
    branches_total, branches_selected, selected_zip_bytes, loop_unzipped_bytes, bytes_read,
    bytes_read_extra, read_calls, read_calls_single, read_calls_vector, read_calls_prefetch,
    vector_chunks, read_fraction, cache_bytes, cache_efficiency, cache_efficiency_rel,
    cache_bytes_read, cache_read_calls, cache_missed_bytes, cache_missed_calls, perfstats_bytes_read,
    perfstats_read_calls, perfstats_read_s, perfstats_unzip_s, perfstats_wall_s, perfstats_cpu_s, ntuple_cluster_cache,
    ntuple_pages_read, ntuple_pages_unzipped, ntuple_clusters_loaded, ntuple_vector_reads,
    ntuple_ranges_read, ntuple_payload_bytes, ntuple_overhead_bytes, ntuple_unzipped_bytes,
    ntuple_read_wall_s, ntuple_read_cpu_s, ntuple_unzip_wall_s, ntuple_unzip_cpu_s,
    kernel_read_chars, kernel_read_bytes, kernel_read_calls, first_byte_s, read_latency_hist,
    read_latency_p50_s, read_latency_p95_s, read_latency_p99_s, read_latency_max_s, retries,
    value_checksum, checksum_version, checksum_leaves, checksum_skipped_leaves, passes, subject_id,
    origin_id, software_id, inventory_id, node_id, storage_id) VALUES (:measurement_id,
    :campaign_id, :job_id, :attempt, :kind, :repeat, :round, :position, :started_us, :ended_us,
    :day, :setup_wall_s, :setup_cpu_s, :stagein_wall_s, :stagein_cpu_s, :stagein_bytes,
    :payload_wall_s, :payload_user_s, :payload_sys_s, :payload_run_queue_s, :eff_payload, :eff_job,
    :access_rate_hz, :eff_access, :max_rss_bytes, :tree_peak_rss_bytes, :ctx_voluntary,
    :ctx_involuntary, :page_faults_minor, :page_faults_major, :io_read_chars, :io_write_chars,
    :io_read_bytes, :io_write_bytes, :processes, :exit_code, :exit_signal, :cpu_mhz, :cpu_steal_s,
    :psi_cpu_some_s, :psi_io_some_s, :psi_memory_some_s, :cgroup_throttled_s, :load1_start,
    :load1_end, :mem_available_start_bytes, :mem_available_end_bytes, :calibration_before_s,
    :calibration_after_s, :slot, :concurrent_door_jobs, :door_rtt_s, :client_cached_fraction,
    :failure_class, :failure_kind, :failure_phase, :failure_message, :failure_transient, :plausible,
    :implausible_reasons, :log_excerpt, :import_wall_s, :import_user_s, :import_sys_s, :compile_wall_s,
    :passes_done, :passes_counted, :open_wall_s, :open_user_s, :open_sys_s, :get_tree_wall_s,
    :get_tree_user_s, :get_tree_sys_s, :prepare_wall_s, :prepare_user_s, :prepare_sys_s,
    :loop_wall_s, :loop_user_s, :loop_sys_s, :close_wall_s, :close_user_s, :close_sys_s,
    :loop_cpu_s, :loop_run_queue_s, :cpu_per_event_s, :wall_per_event_s, :event_rate_hz, :eff_loop,
    :eff_loop_corrected, :events_total, :events_read, :branches_total, :branches_selected,
    :selected_zip_bytes, :loop_unzipped_bytes, :bytes_read, :bytes_read_extra, :read_calls,
    :read_calls_single, :read_calls_vector, :read_calls_prefetch, :vector_chunks, :read_fraction,
    :cache_bytes, :cache_efficiency, :cache_efficiency_rel, :cache_bytes_read, :cache_read_calls,
    :cache_missed_bytes, :cache_missed_calls, :perfstats_bytes_read, :perfstats_read_calls, :perfstats_read_s,
    :perfstats_unzip_s, :perfstats_wall_s, :perfstats_cpu_s, :ntuple_cluster_cache, :ntuple_pages_read,
    :ntuple_pages_unzipped, :ntuple_clusters_loaded, :ntuple_vector_reads, :ntuple_ranges_read,
    :ntuple_payload_bytes, :ntuple_overhead_bytes, :ntuple_unzipped_bytes, :ntuple_read_wall_s,
    :ntuple_read_cpu_s, :ntuple_unzip_wall_s, :ntuple_unzip_cpu_s, :kernel_read_chars,
    :kernel_read_bytes, :kernel_read_calls, :first_byte_s, :read_latency_hist, :read_latency_p50_s,
    :read_latency_p95_s, :read_latency_p99_s, :read_latency_max_s, :retries, :value_checksum,
    :checksum_version, :checksum_leaves, :checksum_skipped_leaves, :passes, :subject_id, :origin_id,
    :software_id, :inventory_id, :node_id, :storage_id)
; -- many rows

SELECT rollup_day.day, rollup_day.subject_id, rollup_day.kind, rollup_day.outcome,
    rollup_day.read_latency_hist
FROM rollup_day
WHERE rollup_day.day = :day_1 AND rollup_day.subject_id IN (:subject_id_1_1)
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
    q_load1_start, read_latency_hist) VALUES (:day, :subject_id, :kind, :outcome, :measurements,
    :n_eff_job, :s_eff_job, :q_eff_job, :n_eff_payload, :s_eff_payload, :q_eff_payload, :n_eff_loop,
    :s_eff_loop, :q_eff_loop, :n_eff_access, :s_eff_access, :q_eff_access, :n_cpu_per_event_s,
    :s_cpu_per_event_s, :q_cpu_per_event_s, :n_wall_per_event_s, :s_wall_per_event_s,
    :q_wall_per_event_s, :n_event_rate_hz, :s_event_rate_hz, :q_event_rate_hz, :n_access_rate_hz,
    :s_access_rate_hz, :q_access_rate_hz, :n_setup_wall_s, :s_setup_wall_s, :q_setup_wall_s,
    :n_stagein_wall_s, :s_stagein_wall_s, :q_stagein_wall_s, :n_payload_wall_s, :s_payload_wall_s,
    :q_payload_wall_s, :n_payload_run_queue_s, :s_payload_run_queue_s, :q_payload_run_queue_s,
    :n_loop_wall_s, :s_loop_wall_s, :q_loop_wall_s, :n_loop_cpu_s, :s_loop_cpu_s, :q_loop_cpu_s,
    :n_first_byte_s, :s_first_byte_s, :q_first_byte_s, :n_bytes_read, :s_bytes_read, :q_bytes_read,
    :n_bytes_read_extra, :s_bytes_read_extra, :q_bytes_read_extra, :n_read_calls, :s_read_calls,
    :q_read_calls, :n_read_fraction, :s_read_fraction, :q_read_fraction, :n_kernel_read_bytes,
    :s_kernel_read_bytes, :q_kernel_read_bytes, :n_cache_efficiency_rel, :s_cache_efficiency_rel,
    :q_cache_efficiency_rel, :n_perfstats_read_s, :s_perfstats_read_s, :q_perfstats_read_s, :n_perfstats_unzip_s,
    :s_perfstats_unzip_s, :q_perfstats_unzip_s, :n_tree_peak_rss_bytes, :s_tree_peak_rss_bytes,
    :q_tree_peak_rss_bytes, :n_retries, :s_retries, :q_retries, :n_door_rtt_s, :s_door_rtt_s,
    :q_door_rtt_s, :n_load1_start, :s_load1_start, :q_load1_start, :read_latency_hist)
; -- many rows

INSERT INTO extra (measurement_id, name, value) VALUES (:measurement_id, :name, :value)
; -- many rows

SELECT measurement.measurement_id
FROM measurement
WHERE measurement.measurement_id IN (:measurement_id_1_1, :measurement_id_1_2, :measurement_id_1_3)
;

SELECT extra.measurement_id, extra.name, extra.value
FROM extra
WHERE extra.measurement_id IN (:measurement_id_1_1, :measurement_id_1_2)
;

SELECT measurement.measurement_id, origin.record_version, origin.instrument_version,
    measurement.campaign_id, origin.campaign_name, measurement.job_id, measurement.attempt,
    measurement.kind, measurement.repeat, measurement.round, measurement.position,
    subject.test_name, origin.repository, origin.ref, origin.commit_id, origin.dirty,
    origin.test_path, origin.test_hash, origin.payload_hash, origin.treehammer_version,
    subject.series, subject.variant, subject.variant_label, subject.site, subject.door,
    subject.door_protocol, subject.dataset, subject.dataset_hash, subject.content_hash,
    subject.axis_root, subject.axis_branches, subject.axis_cache_mb, subject.axis_events,
    subject.axis_access, subject.axis_cache, subject.passes_planned, measurement.started_us,
    measurement.ended_us, measurement.day, measurement.setup_wall_s, measurement.setup_cpu_s,
    measurement.stagein_wall_s, measurement.stagein_cpu_s, measurement.stagein_bytes,
    measurement.payload_wall_s, measurement.payload_user_s, measurement.payload_sys_s,
    measurement.payload_run_queue_s, measurement.eff_payload, measurement.eff_job,
    measurement.access_rate_hz, measurement.eff_access, measurement.max_rss_bytes,
    measurement.tree_peak_rss_bytes, measurement.ctx_voluntary, measurement.ctx_involuntary,
    measurement.page_faults_minor, measurement.page_faults_major, measurement.io_read_chars,
    measurement.io_write_chars, measurement.io_read_bytes, measurement.io_write_bytes,
    measurement.processes, measurement.exit_code, measurement.exit_signal, software.root_provider,
    node.host, node.cpu_model, node.cores_online, node.cores_allowed, measurement.cpu_mhz,
    measurement.cpu_steal_s, measurement.psi_cpu_some_s, measurement.psi_io_some_s,
    measurement.psi_memory_some_s, node.cgroup_cpu_limit, node.cgroup_memory_limit_bytes,
    measurement.cgroup_throttled_s, measurement.load1_start, measurement.load1_end,
    node.mem_total_bytes, measurement.mem_available_start_bytes,
    measurement.mem_available_end_bytes, measurement.calibration_before_s,
    measurement.calibration_after_s, node.kernel, node.os_name, node.container, measurement.slot,
    node.worker_python, measurement.concurrent_door_jobs, storage.file_name, storage.file_url,
    storage.file_size_bytes, storage.data_server, storage.address_family, storage.server_version,
    measurement.door_rtt_s, storage.client_cache_state, storage.client_cache_method,
    measurement.client_cached_fraction, storage.server_cache_state, storage.server_cache_method,
    measurement.failure_class, measurement.failure_kind, measurement.failure_phase,
    measurement.failure_message, measurement.failure_transient, measurement.plausible,
    measurement.implausible_reasons, measurement.log_excerpt, software.root_version,
    software.root_commit, software.root_platform, software.root_compiler, software.root_flags,
    software.root_cxx_standard, software.root_features, software.zlib_version,
    software.lzma_version, software.lz4_version, software.zstd_version, software.libcore_sha256,
    storage.file_class, measurement.import_wall_s, measurement.import_user_s,
    measurement.import_sys_s, measurement.compile_wall_s, measurement.passes_done,
    measurement.passes_counted, measurement.open_wall_s, measurement.open_user_s,
    measurement.open_sys_s, measurement.get_tree_wall_s, measurement.get_tree_user_s,
    measurement.get_tree_sys_s, measurement.prepare_wall_s, measurement.prepare_user_s,
    measurement.prepare_sys_s, measurement.loop_wall_s, measurement.loop_user_s,
    measurement.loop_sys_s, measurement.close_wall_s, measurement.close_user_s,
    measurement.close_sys_s, measurement.loop_cpu_s, measurement.loop_run_queue_s,
    measurement.cpu_per_event_s, measurement.wall_per_event_s, measurement.event_rate_hz,
    measurement.eff_loop, measurement.eff_loop_corrected, measurement.events_total,
    measurement.events_read, measurement.branches_total, measurement.branches_selected,
    measurement.selected_zip_bytes, measurement.loop_unzipped_bytes, measurement.bytes_read,
    measurement.bytes_read_extra, measurement.read_calls, measurement.read_calls_single,
    measurement.read_calls_vector, measurement.read_calls_prefetch, measurement.vector_chunks,
    measurement.read_fraction, measurement.cache_bytes, measurement.cache_efficiency,
    measurement.cache_efficiency_rel, measurement.cache_bytes_read, measurement.cache_read_calls,
    measurement.cache_missed_bytes, measurement.cache_missed_calls, measurement.perfstats_bytes_read,
    measurement.perfstats_read_calls, measurement.perfstats_read_s, measurement.perfstats_unzip_s,
    measurement.perfstats_wall_s, measurement.perfstats_cpu_s, measurement.ntuple_cluster_cache,
    measurement.ntuple_pages_read, measurement.ntuple_pages_unzipped,
    measurement.ntuple_clusters_loaded, measurement.ntuple_vector_reads,
    measurement.ntuple_ranges_read, measurement.ntuple_payload_bytes,
    measurement.ntuple_overhead_bytes, measurement.ntuple_unzipped_bytes,
    measurement.ntuple_read_wall_s, measurement.ntuple_read_cpu_s, measurement.ntuple_unzip_wall_s,
    measurement.ntuple_unzip_cpu_s, measurement.kernel_read_chars, measurement.kernel_read_bytes,
    measurement.kernel_read_calls, measurement.first_byte_s, measurement.read_latency_hist,
    measurement.read_latency_p50_s, measurement.read_latency_p95_s, measurement.read_latency_p99_s,
    measurement.read_latency_max_s, measurement.retries, inventory.inventory,
    measurement.value_checksum, measurement.checksum_version, measurement.checksum_leaves,
    measurement.checksum_skipped_leaves, measurement.passes
FROM measurement JOIN subject ON subject.id = measurement.subject_id JOIN origin ON origin.id =
    measurement.origin_id JOIN software ON software.id = measurement.software_id JOIN inventory ON
    inventory.id = measurement.inventory_id JOIN node ON node.id = measurement.node_id JOIN storage
    ON storage.id = measurement.storage_id
WHERE measurement.measurement_id IN (:measurement_id_1_1, :measurement_id_1_2)
;

SELECT subject.id
FROM subject
WHERE subject.id IN (:id_1_1)
;

SELECT origin.id
FROM origin
WHERE origin.id IN (:id_1_1)
;

SELECT software.id
FROM software
WHERE software.id IN (:id_1_1)
;

SELECT inventory.id
FROM inventory
WHERE inventory.id IN (:id_1_1)
;

SELECT node.id
FROM node
WHERE node.id IN (:id_1_1)
;

SELECT storage.id
FROM storage
WHERE storage.id IN (:id_1_1)
;

UPDATE rollup_day SET measurements=(rollup_day.measurements + :more_measurements),
    n_eff_job=(rollup_day.n_eff_job + :more_n_eff_job), s_eff_job=(rollup_day.s_eff_job +
    :more_s_eff_job), q_eff_job=(rollup_day.q_eff_job + :more_q_eff_job),
    n_eff_payload=(rollup_day.n_eff_payload + :more_n_eff_payload),
    s_eff_payload=(rollup_day.s_eff_payload + :more_s_eff_payload),
    q_eff_payload=(rollup_day.q_eff_payload + :more_q_eff_payload),
    n_eff_loop=(rollup_day.n_eff_loop + :more_n_eff_loop), s_eff_loop=(rollup_day.s_eff_loop +
    :more_s_eff_loop), q_eff_loop=(rollup_day.q_eff_loop + :more_q_eff_loop),
    n_eff_access=(rollup_day.n_eff_access + :more_n_eff_access),
    s_eff_access=(rollup_day.s_eff_access + :more_s_eff_access),
    q_eff_access=(rollup_day.q_eff_access + :more_q_eff_access),
    n_cpu_per_event_s=(rollup_day.n_cpu_per_event_s + :more_n_cpu_per_event_s),
    s_cpu_per_event_s=(rollup_day.s_cpu_per_event_s + :more_s_cpu_per_event_s),
    q_cpu_per_event_s=(rollup_day.q_cpu_per_event_s + :more_q_cpu_per_event_s),
    n_wall_per_event_s=(rollup_day.n_wall_per_event_s + :more_n_wall_per_event_s),
    s_wall_per_event_s=(rollup_day.s_wall_per_event_s + :more_s_wall_per_event_s),
    q_wall_per_event_s=(rollup_day.q_wall_per_event_s + :more_q_wall_per_event_s),
    n_event_rate_hz=(rollup_day.n_event_rate_hz + :more_n_event_rate_hz),
    s_event_rate_hz=(rollup_day.s_event_rate_hz + :more_s_event_rate_hz),
    q_event_rate_hz=(rollup_day.q_event_rate_hz + :more_q_event_rate_hz),
    n_access_rate_hz=(rollup_day.n_access_rate_hz + :more_n_access_rate_hz),
    s_access_rate_hz=(rollup_day.s_access_rate_hz + :more_s_access_rate_hz),
    q_access_rate_hz=(rollup_day.q_access_rate_hz + :more_q_access_rate_hz),
    n_setup_wall_s=(rollup_day.n_setup_wall_s + :more_n_setup_wall_s),
    s_setup_wall_s=(rollup_day.s_setup_wall_s + :more_s_setup_wall_s),
    q_setup_wall_s=(rollup_day.q_setup_wall_s + :more_q_setup_wall_s),
    n_stagein_wall_s=(rollup_day.n_stagein_wall_s + :more_n_stagein_wall_s),
    s_stagein_wall_s=(rollup_day.s_stagein_wall_s + :more_s_stagein_wall_s),
    q_stagein_wall_s=(rollup_day.q_stagein_wall_s + :more_q_stagein_wall_s),
    n_payload_wall_s=(rollup_day.n_payload_wall_s + :more_n_payload_wall_s),
    s_payload_wall_s=(rollup_day.s_payload_wall_s + :more_s_payload_wall_s),
    q_payload_wall_s=(rollup_day.q_payload_wall_s + :more_q_payload_wall_s),
    n_payload_run_queue_s=(rollup_day.n_payload_run_queue_s + :more_n_payload_run_queue_s),
    s_payload_run_queue_s=(rollup_day.s_payload_run_queue_s + :more_s_payload_run_queue_s),
    q_payload_run_queue_s=(rollup_day.q_payload_run_queue_s + :more_q_payload_run_queue_s),
    n_loop_wall_s=(rollup_day.n_loop_wall_s + :more_n_loop_wall_s),
    s_loop_wall_s=(rollup_day.s_loop_wall_s + :more_s_loop_wall_s),
    q_loop_wall_s=(rollup_day.q_loop_wall_s + :more_q_loop_wall_s),
    n_loop_cpu_s=(rollup_day.n_loop_cpu_s + :more_n_loop_cpu_s),
    s_loop_cpu_s=(rollup_day.s_loop_cpu_s + :more_s_loop_cpu_s),
    q_loop_cpu_s=(rollup_day.q_loop_cpu_s + :more_q_loop_cpu_s),
    n_first_byte_s=(rollup_day.n_first_byte_s + :more_n_first_byte_s),
    s_first_byte_s=(rollup_day.s_first_byte_s + :more_s_first_byte_s),
    q_first_byte_s=(rollup_day.q_first_byte_s + :more_q_first_byte_s),
    n_bytes_read=(rollup_day.n_bytes_read + :more_n_bytes_read),
    s_bytes_read=(rollup_day.s_bytes_read + :more_s_bytes_read),
    q_bytes_read=(rollup_day.q_bytes_read + :more_q_bytes_read),
    n_bytes_read_extra=(rollup_day.n_bytes_read_extra + :more_n_bytes_read_extra),
    s_bytes_read_extra=(rollup_day.s_bytes_read_extra + :more_s_bytes_read_extra),
    q_bytes_read_extra=(rollup_day.q_bytes_read_extra + :more_q_bytes_read_extra),
    n_read_calls=(rollup_day.n_read_calls + :more_n_read_calls),
    s_read_calls=(rollup_day.s_read_calls + :more_s_read_calls),
    q_read_calls=(rollup_day.q_read_calls + :more_q_read_calls),
    n_read_fraction=(rollup_day.n_read_fraction + :more_n_read_fraction),
    s_read_fraction=(rollup_day.s_read_fraction + :more_s_read_fraction),
    q_read_fraction=(rollup_day.q_read_fraction + :more_q_read_fraction),
    n_kernel_read_bytes=(rollup_day.n_kernel_read_bytes + :more_n_kernel_read_bytes),
    s_kernel_read_bytes=(rollup_day.s_kernel_read_bytes + :more_s_kernel_read_bytes),
    q_kernel_read_bytes=(rollup_day.q_kernel_read_bytes + :more_q_kernel_read_bytes),
    n_cache_efficiency_rel=(rollup_day.n_cache_efficiency_rel + :more_n_cache_efficiency_rel),
    s_cache_efficiency_rel=(rollup_day.s_cache_efficiency_rel + :more_s_cache_efficiency_rel),
    q_cache_efficiency_rel=(rollup_day.q_cache_efficiency_rel + :more_q_cache_efficiency_rel),
    n_perfstats_read_s=(rollup_day.n_perfstats_read_s + :more_n_perf_disk_s),
    s_perfstats_read_s=(rollup_day.s_perfstats_read_s + :more_s_perf_disk_s),
    q_perfstats_read_s=(rollup_day.q_perfstats_read_s + :more_q_perf_disk_s),
    n_perfstats_unzip_s=(rollup_day.n_perfstats_unzip_s + :more_n_perf_unzip_s),
    s_perfstats_unzip_s=(rollup_day.s_perfstats_unzip_s + :more_s_perf_unzip_s),
    q_perfstats_unzip_s=(rollup_day.q_perfstats_unzip_s + :more_q_perf_unzip_s),
    n_tree_peak_rss_bytes=(rollup_day.n_tree_peak_rss_bytes + :more_n_tree_peak_rss_bytes),
    s_tree_peak_rss_bytes=(rollup_day.s_tree_peak_rss_bytes + :more_s_tree_peak_rss_bytes),
    q_tree_peak_rss_bytes=(rollup_day.q_tree_peak_rss_bytes + :more_q_tree_peak_rss_bytes),
    n_retries=(rollup_day.n_retries + :more_n_retries), s_retries=(rollup_day.s_retries +
    :more_s_retries), q_retries=(rollup_day.q_retries + :more_q_retries),
    n_door_rtt_s=(rollup_day.n_door_rtt_s + :more_n_door_rtt_s),
    s_door_rtt_s=(rollup_day.s_door_rtt_s + :more_s_door_rtt_s),
    q_door_rtt_s=(rollup_day.q_door_rtt_s + :more_q_door_rtt_s),
    n_load1_start=(rollup_day.n_load1_start + :more_n_load1_start),
    s_load1_start=(rollup_day.s_load1_start + :more_s_load1_start),
    q_load1_start=(rollup_day.q_load1_start + :more_q_load1_start), read_latency_hist=:reads WHERE
    rollup_day.day = :key_day AND rollup_day.subject_id = :key_subject_id AND rollup_day.kind =
    :key_kind AND rollup_day.outcome = :key_outcome
;

-- campaigns, jobs and attempts

SELECT campaign.id
FROM campaign
WHERE campaign.id IN (:id_1_1)
;

INSERT INTO campaign (id, name, created_us, repository, ref, commit_id, dirty, test_name, test_path,
    plan, planned_jobs, planned_measurements) VALUES (:id, :name, :created_us, :repository, :ref,
    :commit_id, :dirty, :test_name, :test_path, :plan, :planned_jobs, :planned_measurements)
;

SELECT job.id
FROM job
WHERE job.id IN (:id_1_1, :id_1_2)
;

INSERT INTO job (id, campaign_id, site, door, kind, repeat, label, batch_system, batch_id,
    planned_measurements, state) VALUES (:id, :campaign_id, :site, :door, :kind, :repeat, :label,
    :batch_system, :batch_id, :planned_measurements, :state)
; -- many rows

UPDATE job SET id=:id, campaign_id=:campaign_id, site=:site, door=:door, kind=:kind, repeat=:repeat,
    label=:label, batch_system=:batch_system, batch_id=:batch_id,
    planned_measurements=:planned_measurements, state=:state WHERE job.id = :key_id
;

SELECT attempt.job_id, attempt.attempt
FROM attempt
WHERE attempt.job_id IN (:job_id_1_1)
;

INSERT INTO attempt (job_id, attempt, state, started_us, ended_us, exit_code, failure_class,
    message) VALUES (:job_id, :"number", :state, :started_us, :ended_us, :exit_code, :failure_class,
    :message)
;

UPDATE attempt SET job_id=:job_id, attempt=:"number", state=:state, started_us=:started_us,
    ended_us=:ended_us, exit_code=:exit_code, failure_class=:failure_class, message=:message WHERE
    attempt.job_id = :key_job_id AND attempt.attempt = :key_number
;

SET TRANSACTION READ ONLY
;

SELECT campaign.id, campaign.name, campaign.created_us, campaign.repository, campaign.ref,
    campaign.commit_id, campaign.dirty, campaign.test_name, campaign.test_path, campaign.plan,
    campaign.planned_jobs, campaign.planned_measurements
FROM campaign ORDER BY campaign.created_us DESC, campaign.id
;

SELECT job.id, job.campaign_id, job.site, job.door, job.kind, job.repeat, job.label,
    job.batch_system, job.batch_id, job.planned_measurements, job.state
FROM job
WHERE job.campaign_id = :campaign_id_1 ORDER BY job.site, job.label, job.repeat, job.id
;

SELECT attempt.job_id, attempt.attempt, attempt.state, attempt.started_us, attempt.ended_us,
    attempt.exit_code, attempt.failure_class, attempt.message
FROM attempt
WHERE attempt.job_id IN (:job_id_1_1, :job_id_1_2) ORDER BY attempt.job_id, attempt.attempt
;

-- measurements are asked for

SELECT measurement.measurement_id, origin.record_version, origin.instrument_version,
    measurement.campaign_id, origin.campaign_name, measurement.job_id, measurement.attempt,
    measurement.kind, measurement.repeat, measurement.round, measurement.position,
    subject.test_name, origin.repository, origin.ref, origin.commit_id, origin.dirty,
    origin.test_path, origin.test_hash, origin.payload_hash, origin.treehammer_version,
    subject.series, subject.variant, subject.variant_label, subject.site, subject.door,
    subject.door_protocol, subject.dataset, subject.dataset_hash, subject.content_hash,
    subject.axis_root, subject.axis_branches, subject.axis_cache_mb, subject.axis_events,
    subject.axis_access, subject.axis_cache, subject.passes_planned, measurement.started_us,
    measurement.ended_us, measurement.day, measurement.setup_wall_s, measurement.setup_cpu_s,
    measurement.stagein_wall_s, measurement.stagein_cpu_s, measurement.stagein_bytes,
    measurement.payload_wall_s, measurement.payload_user_s, measurement.payload_sys_s,
    measurement.payload_run_queue_s, measurement.eff_payload, measurement.eff_job,
    measurement.access_rate_hz, measurement.eff_access, measurement.max_rss_bytes,
    measurement.tree_peak_rss_bytes, measurement.ctx_voluntary, measurement.ctx_involuntary,
    measurement.page_faults_minor, measurement.page_faults_major, measurement.io_read_chars,
    measurement.io_write_chars, measurement.io_read_bytes, measurement.io_write_bytes,
    measurement.processes, measurement.exit_code, measurement.exit_signal, software.root_provider,
    node.host, node.cpu_model, node.cores_online, node.cores_allowed, measurement.cpu_mhz,
    measurement.cpu_steal_s, measurement.psi_cpu_some_s, measurement.psi_io_some_s,
    measurement.psi_memory_some_s, node.cgroup_cpu_limit, node.cgroup_memory_limit_bytes,
    measurement.cgroup_throttled_s, measurement.load1_start, measurement.load1_end,
    node.mem_total_bytes, measurement.mem_available_start_bytes,
    measurement.mem_available_end_bytes, measurement.calibration_before_s,
    measurement.calibration_after_s, node.kernel, node.os_name, node.container, measurement.slot,
    node.worker_python, measurement.concurrent_door_jobs, storage.file_name, storage.file_url,
    storage.file_size_bytes, storage.data_server, storage.address_family, storage.server_version,
    measurement.door_rtt_s, storage.client_cache_state, storage.client_cache_method,
    measurement.client_cached_fraction, storage.server_cache_state, storage.server_cache_method,
    measurement.failure_class, measurement.failure_kind, measurement.failure_phase,
    measurement.failure_message, measurement.failure_transient, measurement.plausible,
    measurement.implausible_reasons, measurement.log_excerpt, software.root_version,
    software.root_commit, software.root_platform, software.root_compiler, software.root_flags,
    software.root_cxx_standard, software.root_features, software.zlib_version,
    software.lzma_version, software.lz4_version, software.zstd_version, software.libcore_sha256,
    storage.file_class, measurement.import_wall_s, measurement.import_user_s,
    measurement.import_sys_s, measurement.compile_wall_s, measurement.passes_done,
    measurement.passes_counted, measurement.open_wall_s, measurement.open_user_s,
    measurement.open_sys_s, measurement.get_tree_wall_s, measurement.get_tree_user_s,
    measurement.get_tree_sys_s, measurement.prepare_wall_s, measurement.prepare_user_s,
    measurement.prepare_sys_s, measurement.loop_wall_s, measurement.loop_user_s,
    measurement.loop_sys_s, measurement.close_wall_s, measurement.close_user_s,
    measurement.close_sys_s, measurement.loop_cpu_s, measurement.loop_run_queue_s,
    measurement.cpu_per_event_s, measurement.wall_per_event_s, measurement.event_rate_hz,
    measurement.eff_loop, measurement.eff_loop_corrected, measurement.events_total,
    measurement.events_read, measurement.branches_total, measurement.branches_selected,
    measurement.selected_zip_bytes, measurement.loop_unzipped_bytes, measurement.bytes_read,
    measurement.bytes_read_extra, measurement.read_calls, measurement.read_calls_single,
    measurement.read_calls_vector, measurement.read_calls_prefetch, measurement.vector_chunks,
    measurement.read_fraction, measurement.cache_bytes, measurement.cache_efficiency,
    measurement.cache_efficiency_rel, measurement.cache_bytes_read, measurement.cache_read_calls,
    measurement.cache_missed_bytes, measurement.cache_missed_calls, measurement.perfstats_bytes_read,
    measurement.perfstats_read_calls, measurement.perfstats_read_s, measurement.perfstats_unzip_s,
    measurement.perfstats_wall_s, measurement.perfstats_cpu_s, measurement.ntuple_cluster_cache,
    measurement.ntuple_pages_read, measurement.ntuple_pages_unzipped,
    measurement.ntuple_clusters_loaded, measurement.ntuple_vector_reads,
    measurement.ntuple_ranges_read, measurement.ntuple_payload_bytes,
    measurement.ntuple_overhead_bytes, measurement.ntuple_unzipped_bytes,
    measurement.ntuple_read_wall_s, measurement.ntuple_read_cpu_s, measurement.ntuple_unzip_wall_s,
    measurement.ntuple_unzip_cpu_s, measurement.kernel_read_chars, measurement.kernel_read_bytes,
    measurement.kernel_read_calls, measurement.first_byte_s, measurement.read_latency_hist,
    measurement.read_latency_p50_s, measurement.read_latency_p95_s, measurement.read_latency_p99_s,
    measurement.read_latency_max_s, measurement.retries, inventory.inventory,
    measurement.value_checksum, measurement.checksum_version, measurement.checksum_leaves,
    measurement.checksum_skipped_leaves, measurement.passes
FROM measurement JOIN subject ON subject.id = measurement.subject_id JOIN origin ON origin.id =
    measurement.origin_id JOIN software ON software.id = measurement.software_id JOIN inventory ON
    inventory.id = measurement.inventory_id JOIN node ON node.id = measurement.node_id JOIN storage
    ON storage.id = measurement.storage_id ORDER BY measurement.campaign_id, measurement.job_id,
    measurement.attempt, measurement.round, measurement.position, measurement.measurement_id
;

SELECT subject.site, measurement.eff_job
FROM measurement JOIN subject ON subject.id = measurement.subject_id ORDER BY
    measurement.campaign_id, measurement.job_id, measurement.attempt, measurement.round,
    measurement.position, measurement.measurement_id
;

SELECT extra.measurement_id, extra.name, extra.value
FROM extra JOIN measurement ON measurement.measurement_id = extra.measurement_id ORDER BY
    measurement.campaign_id, measurement.job_id, measurement.attempt, measurement.round,
    measurement.position, measurement.measurement_id, extra.name
;

SELECT measurement.job_id
FROM measurement
WHERE measurement.campaign_id IN (:campaign_id_1_1, :campaign_id_1_2) AND measurement.subject_id IN
    (SELECT subject.id
FROM subject
WHERE subject.site = :site_1) AND measurement.node_id IN (SELECT node.id
FROM node
WHERE node.host != :host_1 OR node.host IS NULL) AND measurement.software_id IN (SELECT software.id
FROM software
WHERE software.root_version LIKE :param_1 ESCAPE '\') AND measurement.subject_id IN (SELECT
    subject.id
FROM subject
WHERE subject.door IS NULL) ORDER BY measurement.campaign_id, measurement.job_id,
    measurement.attempt, measurement.round, measurement.position, measurement.measurement_id
;

SELECT measurement.job_id
FROM measurement
WHERE measurement.campaign_id IN (:campaign_id_1_1, :campaign_id_1_2) AND measurement.log_excerpt
    LIKE :param_1 ESCAPE '\' AND (measurement.failure_message NOT LIKE :param_2 ESCAPE '\' OR
    measurement.failure_message IS NULL) AND measurement.log_excerpt LIKE :param_3 ESCAPE '\' ORDER
    BY measurement.campaign_id, measurement.job_id, measurement.attempt, measurement.round,
    measurement.position, measurement.measurement_id
;

SELECT measurement.job_id
FROM measurement
WHERE measurement.campaign_id IN (:campaign_id_1_1, :campaign_id_1_2) AND (measurement.eff_job >
    :eff_job_1) AND (measurement.retries <= :retries_1) AND (measurement.plausible = :plausible_1)
    AND (measurement.failure_transient != 0 OR measurement.failure_transient IS NULL) AND
    measurement.origin_id IN (SELECT origin.id
FROM origin
WHERE origin.dirty IS NULL) ORDER BY measurement.campaign_id, measurement.job_id,
    measurement.attempt, measurement.round, measurement.position, measurement.measurement_id
;

SELECT subject.site, measurement.kind, measurement.failure_class, measurement.plausible, count(*) AS
    count_1
FROM measurement JOIN subject ON subject.id = measurement.subject_id
WHERE measurement.campaign_id = :campaign_id_1 GROUP BY subject.site, measurement.kind,
    measurement.failure_class, measurement.plausible ORDER BY subject.site NULLS FIRST,
    measurement.kind NULLS FIRST, measurement.failure_class NULLS FIRST, measurement.plausible NULLS
    FIRST
;

SELECT measurement.job_id, measurement.attempt, count(*) AS count_1
FROM measurement
WHERE measurement.campaign_id = :campaign_id_1 GROUP BY measurement.job_id, measurement.attempt
;

-- replicas and what was read from them

SELECT replica.id
FROM replica
WHERE replica.id IN (:id_1_1)
;

INSERT INTO replica (id, found_us, dataset, dataset_hash, site, door, file_name, url, good, message)
    VALUES (:id, :found_us, :dataset, :dataset_hash, :site, :door, :"file", :url, :good, :message)
;

SELECT measurement.measurement_id
FROM measurement
WHERE measurement.measurement_id IN (:measurement_id_1_1)
;

SELECT replica.id, replica.found_us, replica.dataset, replica.dataset_hash, replica.site,
    replica.door, replica.file_name, replica.url, replica.good, replica.message
FROM replica ORDER BY replica.found_us, replica.id
;

SELECT DISTINCT measurement.day, measurement.subject_id
FROM measurement
WHERE measurement.subject_id IN (SELECT subject.id
FROM subject
WHERE subject.dataset_hash = :dataset_hash_1 AND subject.site = :site_1 AND subject.door = :door_1)
    AND measurement.started_us > :started_us_1 AND measurement.started_us <= :started_us_2 AND
    (measurement.implausible_reasons IS NULL OR measurement.implausible_reasons NOT LIKE :param_1 ESCAPE
    '\')
;

UPDATE measurement SET plausible=:plausible, implausible_reasons=(substr(measurement.implausible_reasons,
    :substr_1, :substr_2) || :substr_3 || :param_1) WHERE measurement.subject_id IN (SELECT
    subject.id
FROM subject
WHERE subject.dataset_hash = :dataset_hash_1 AND subject.site = :site_1 AND subject.door = :door_1)
    AND measurement.started_us > :started_us_1 AND measurement.started_us <= :started_us_2 AND
    (measurement.implausible_reasons IS NULL OR measurement.implausible_reasons NOT LIKE :param_2 ESCAPE
    '\') AND measurement.implausible_reasons IS NOT NULL
;

UPDATE measurement SET plausible=:plausible, implausible_reasons=:implausible_reasons WHERE
    measurement.subject_id IN (SELECT subject.id
FROM subject
WHERE subject.dataset_hash = :dataset_hash_1 AND subject.site = :site_1 AND subject.door = :door_1)
    AND measurement.started_us > :started_us_1 AND measurement.started_us <= :started_us_2 AND
    (measurement.implausible_reasons IS NULL OR measurement.implausible_reasons NOT LIKE :param_1 ESCAPE
    '\') AND measurement.implausible_reasons IS NULL
;

DELETE FROM rollup_day WHERE rollup_day.day = :day_1 AND rollup_day.subject_id = :subject_id_1
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
    q_load1_start, read_latency_hist) SELECT measurement.day AS day, measurement.subject_id AS
    subject_id, coalesce(measurement.kind, '-') AS kind, CASE WHEN (measurement.failure_kind =
    'not-supported' AND measurement.failure_class = 'software setup') THEN 'software setup: not
    supported' WHEN (measurement.failure_kind = 'not-supported' AND measurement.failure_class =
    'stage-in') THEN 'stage-in: not supported' ELSE coalesce(measurement.failure_class, CASE WHEN
    (measurement.plausible = 1) THEN 'good' ELSE 'implausible' END) END AS outcome, count(*) AS
    measurements, count(CASE WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND
    :param_2) THEN CAST(measurement.eff_job AS BINARY_DOUBLE) END) AS n_eff_job, coalesce(sum(CASE
    WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
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
    :coalesce_54) AS q_load1_start, '[]'
FROM measurement
WHERE measurement.day = :day_1 AND measurement.subject_id = :subject_id_1 GROUP BY measurement.day,
    measurement.subject_id, coalesce(measurement.kind, '-'), CASE WHEN (measurement.failure_kind =
    'not-supported' AND measurement.failure_class = 'software setup') THEN 'software setup: not
    supported' WHEN (measurement.failure_kind = 'not-supported' AND measurement.failure_class =
    'stage-in') THEN 'stage-in: not supported' ELSE coalesce(measurement.failure_class, CASE WHEN
    (measurement.plausible = 1) THEN 'good' ELSE 'implausible' END) END
;

SELECT measurement.day, measurement.subject_id, coalesce(measurement.kind, '-') AS coalesce_1, CASE
    WHEN (measurement.failure_kind = 'not-supported' AND measurement.failure_class = 'software
    setup') THEN 'software setup: not supported' WHEN (measurement.failure_kind = 'not-supported'
    AND measurement.failure_class = 'stage-in') THEN 'stage-in: not supported' ELSE
    coalesce(measurement.failure_class, CASE WHEN (measurement.plausible = 1) THEN 'good' ELSE
    'implausible' END) END AS anon_1, measurement.read_latency_hist AS read_latency_hist
FROM measurement
WHERE measurement.day = :day_1 AND measurement.subject_id = :subject_id_1 AND
    measurement.read_latency_hist IS NOT NULL
;

-- comparisons

DELETE FROM pair WHERE pair.comparison_id = :comparison_id_1
;

INSERT INTO pair (comparison_id, line, site, comparison_key, label, metric, axis, a, b, job_id,
    campaign_id, host, rounds, a_value, b_value, d) VALUES (:comparison_id, :line, :site,
    :comparison_key, :label, :metric, :axis, :a, :b, :job_id, :campaign_id, :host, :rounds,
    :a_value, :b_value, :d)
;

DELETE FROM verdict WHERE verdict.comparison_id = :comparison_id_1
;

INSERT INTO verdict (comparison_id, line, site, comparison_key, label, metric, axis, a, b,
    created_us, rule_version, scope, verdict, effect, low, high, jobs, hosts, jobs_needed, evidence)
    VALUES (:comparison_id, :line, :site, :comparison_key, :label, :metric, :axis, :a, :b,
    :created_us, :rule_version, :scope, :verdict, :effect, :low, :high, :jobs, :hosts, :jobs_needed,
    :evidence)
;

SELECT pair.comparison_id, pair.line, pair.site, pair.comparison_key, pair.label, pair.metric,
    pair.axis, pair.a, pair.b, pair.job_id, pair.campaign_id, pair.host, pair.rounds, pair.a_value,
    pair.b_value, pair.d
FROM pair
WHERE pair.comparison_id = :comparison_id_1 ORDER BY pair.line
;

SELECT verdict.comparison_id, verdict.line, verdict.site, verdict.comparison_key, verdict.label,
    verdict.metric, verdict.axis, verdict.a, verdict.b, verdict.created_us, verdict.rule_version,
    verdict.scope, verdict.verdict, verdict.effect, verdict.low, verdict.high, verdict.jobs,
    verdict.hosts, verdict.jobs_needed, verdict.evidence
FROM verdict
WHERE verdict.comparison_id = :comparison_id_1 ORDER BY verdict.line
;

-- keys of the results service

INSERT INTO access_key (kid, role, name, created_us, expires_us, revoked_us, made_with) VALUES
    (:kid, :role, :name, :created_us, :expires_us, :revoked_us, :made_with)
;

SELECT access_key.kid, access_key.role, access_key.name, access_key.created_us,
    access_key.expires_us, access_key.revoked_us, access_key.made_with
FROM access_key ORDER BY access_key.created_us, access_key.kid
;

SELECT access_key.kid, access_key.role, access_key.name, access_key.created_us,
    access_key.expires_us, access_key.revoked_us, access_key.made_with
FROM access_key
;

SELECT access_revocation.scope, access_revocation.subject
FROM access_revocation
;

SELECT access_key.kid
FROM access_key
WHERE access_key.kid = :kid_1
;

UPDATE access_key SET revoked_us=:revoked_us WHERE access_key.kid = :kid_1 AND access_key.revoked_us
    IS NULL
;

SELECT access_revocation.subject
FROM access_revocation
WHERE access_revocation.scope = :scope_1 AND access_revocation.subject = :subject_1
;

INSERT INTO access_revocation (scope, subject, revoked_us) VALUES (:scope, :subject, :revoked_us)
;

SELECT access_revocation.scope, access_revocation.subject, access_revocation.revoked_us
FROM access_revocation ORDER BY access_revocation.revoked_us, access_revocation.scope,
    access_revocation.subject
;

SELECT min(campaign.id) AS min_1
FROM campaign
WHERE campaign.id = :id_1
;

SELECT min(measurement.campaign_id) AS min_1
FROM measurement
WHERE measurement.campaign_id = :campaign_id_1
;

SELECT min(job.id) AS min_1
FROM job
WHERE job.id = :id_1
;

SELECT min(measurement.job_id) AS min_1
FROM measurement
WHERE measurement.job_id = :job_id_1
;

-- figures, by roll-ups and by measurements

SELECT found.day, subject.site, found.outcome, sum(found.measurements) AS sum_1, sum(found.n0) AS
    sum_2, sum(found.s0) AS sum_3, sum(found.q0) AS sum_4
FROM (SELECT rollup_day.day AS day, rollup_day.subject_id AS subject_id, rollup_day.outcome AS
    outcome, rollup_day.measurements AS measurements, rollup_day.n_eff_job AS n0,
    rollup_day.s_eff_job AS s0, rollup_day.q_eff_job AS q0
FROM rollup_day
WHERE rollup_day.kind = :kind_1) found JOIN subject ON found.subject_id = subject.id GROUP BY
    found.day, subject.site, found.outcome
;

SELECT rollup_day.day, subject.site, rollup_day.read_latency_hist AS read_latency_hist
FROM rollup_day JOIN subject ON subject.id = rollup_day.subject_id
WHERE rollup_day.kind = :kind_1 AND rollup_day.outcome = :outcome_1
;

SELECT found.kind, found.failure_class, found.outcome, sum(found.measurements) AS sum_1
FROM (SELECT nullif(rollup_day.kind, :nullif_1) AS kind, CASE WHEN (rollup_day.outcome = 'software
    setup: not supported') THEN 'software setup' WHEN (rollup_day.outcome = 'stage-in: not
    supported') THEN 'stage-in' ELSE nullif(nullif(rollup_day.outcome, :nullif_2), :nullif_3) END AS
    failure_class, rollup_day.outcome AS outcome, sum(rollup_day.measurements) AS measurements
FROM rollup_day
WHERE rollup_day.day >= :day_1 AND ((CASE WHEN (rollup_day.outcome = 'software setup: not
    supported') THEN 'software setup' WHEN (rollup_day.outcome = 'stage-in: not supported') THEN
    'stage-in' ELSE nullif(nullif(rollup_day.outcome, :nullif_4), :nullif_5) END = :param_1) OR CASE
    WHEN (rollup_day.outcome = 'software setup: not supported') THEN 'software setup' WHEN
    (rollup_day.outcome = 'stage-in: not supported') THEN 'stage-in' ELSE
    nullif(nullif(rollup_day.outcome, :nullif_4), :nullif_5) END IS NULL) AND rollup_day.subject_id
    IN (SELECT subject.id
FROM subject
WHERE subject.site LIKE :param_2 ESCAPE '\') GROUP BY rollup_day.kind, rollup_day.outcome) found
    GROUP BY found.kind, found.failure_class, found.outcome
;

SELECT found.day, subject.site, found.outcome, sum(found.measurements) AS sum_1, sum(found.n0) AS
    sum_2, sum(found.s0) AS sum_3, sum(found.q0) AS sum_4, min(found.l0) AS min_1, max(found.h0) AS
    max_1
FROM (SELECT measurement.day AS day, measurement.subject_id AS subject_id,
    coalesce(measurement.failure_class, CASE WHEN (measurement.plausible = 1) THEN 'good' ELSE
    'implausible' END) AS outcome, count(*) AS measurements, count(CASE WHEN
    (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END) AS n0, coalesce(sum(CASE WHEN
    (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END), :coalesce_1) AS s0, coalesce(sum(CASE WHEN
    (CASE WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END BETWEEN :param_3 AND :param_4) THEN NULL ELSE
    CASE WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.eff_job AS
    BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN CAST(measurement.eff_job AS BINARY_DOUBLE)
    END END), :coalesce_2) AS q0, min(CASE WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN
    :param_1 AND :param_2) THEN CAST(measurement.eff_job AS BINARY_DOUBLE) END) AS l0, max(CASE WHEN
    (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(measurement.eff_job AS BINARY_DOUBLE) END) AS h0
FROM measurement
WHERE measurement.kind BETWEEN :kind_1 AND :kind_2 GROUP BY measurement.day, measurement.subject_id,
    measurement.kind, measurement.plausible, measurement.failure_class) found JOIN subject ON
    found.subject_id = subject.id GROUP BY found.day, subject.site, found.outcome
;

SELECT measurement.day, subject.site, measurement.read_latency_hist AS read_latency_hist
FROM measurement JOIN subject ON subject.id = measurement.subject_id
WHERE measurement.kind BETWEEN :kind_1 AND :kind_2 AND measurement.plausible = 1 AND
    measurement.failure_class IS NULL AND measurement.read_latency_hist IS NOT NULL
;

SELECT found.kind, found.failure_class, found.outcome, sum(found.measurements) AS sum_1
FROM (SELECT measurement.kind AS kind, measurement.failure_class AS failure_class,
    coalesce(measurement.failure_class, CASE WHEN (measurement.plausible = 1) THEN 'good' ELSE
    'implausible' END) AS outcome, count(*) AS measurements
FROM measurement
WHERE measurement.day >= :day_1 AND ((measurement.failure_class = :failure_class_1) OR
    measurement.failure_class IS NULL) AND measurement.subject_id IN (SELECT subject.id
FROM subject
WHERE subject.site LIKE :param_1 ESCAPE '\') GROUP BY measurement.day, measurement.subject_id,
    measurement.kind, measurement.plausible, measurement.failure_class) found GROUP BY found.kind,
    found.failure_class, found.outcome
;

SELECT node.host, found.plausible, found.day, found.outcome, sum(found.measurements) AS sum_1,
    sum(found.n0) AS sum_2, sum(found.s0) AS sum_3, sum(found.q0) AS sum_4, min(found.l0) AS min_1,
    max(found.h0) AS max_1, sum(found.n1) AS sum_5, sum(found.s1) AS sum_6, sum(found.q1) AS sum_7,
    min(found.l1) AS min_2, max(found.h1) AS max_2
FROM (SELECT measurement.node_id AS node_id, measurement.plausible AS plausible, measurement.day + 0
    AS day, CASE WHEN (measurement.failure_kind = 'not-supported' AND measurement.failure_class =
    'software setup') THEN 'software setup: not supported' WHEN (measurement.failure_kind =
    'not-supported' AND measurement.failure_class = 'stage-in') THEN 'stage-in: not supported' ELSE
    coalesce(measurement.failure_class, CASE WHEN (measurement.plausible = 1) THEN 'good' ELSE
    'implausible' END) END AS outcome, count(*) AS measurements, count(CASE WHEN (CAST(extra0.value
    AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN CAST(extra0.value AS BINARY_DOUBLE) END)
    AS n0, coalesce(sum(CASE WHEN (CAST(extra0.value AS BINARY_DOUBLE) BETWEEN :param_1 AND
    :param_2) THEN CAST(extra0.value AS BINARY_DOUBLE) END), :coalesce_1) AS s0, coalesce(sum(CASE
    WHEN (CASE WHEN (CAST(extra0.value AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
    CAST(extra0.value AS BINARY_DOUBLE) END BETWEEN :param_3 AND :param_4) THEN NULL ELSE CASE WHEN
    (CAST(extra0.value AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN CAST(extra0.value AS
    BINARY_DOUBLE) END * CASE WHEN (CAST(extra0.value AS BINARY_DOUBLE) BETWEEN :param_1 AND
    :param_2) THEN CAST(extra0.value AS BINARY_DOUBLE) END END), :coalesce_2) AS q0, min(CASE WHEN
    (CAST(extra0.value AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN CAST(extra0.value AS
    BINARY_DOUBLE) END) AS l0, max(CASE WHEN (CAST(extra0.value AS BINARY_DOUBLE) BETWEEN :param_1
    AND :param_2) THEN CAST(extra0.value AS BINARY_DOUBLE) END) AS h0, count(CASE WHEN
    (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN
    CAST(measurement.bytes_read AS BINARY_DOUBLE) END) AS n1, coalesce(sum(CASE WHEN
    (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN
    CAST(measurement.bytes_read AS BINARY_DOUBLE) END), :coalesce_3) AS s1, coalesce(sum(CASE WHEN
    (CASE WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN
    CAST(measurement.bytes_read AS BINARY_DOUBLE) END BETWEEN :param_7 AND :param_8) THEN NULL ELSE
    CASE WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN
    CAST(measurement.bytes_read AS BINARY_DOUBLE) END * CASE WHEN (CAST(measurement.bytes_read AS
    BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN CAST(measurement.bytes_read AS BINARY_DOUBLE)
    END END), :coalesce_4) AS q1, min(CASE WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE)
    BETWEEN :param_5 AND :param_6) THEN CAST(measurement.bytes_read AS BINARY_DOUBLE) END) AS l1,
    max(CASE WHEN (CAST(measurement.bytes_read AS BINARY_DOUBLE) BETWEEN :param_5 AND :param_6) THEN
    CAST(measurement.bytes_read AS BINARY_DOUBLE) END) AS h1
FROM measurement LEFT OUTER JOIN extra extra0 ON extra0.measurement_id = measurement.measurement_id
    AND extra0.name = :name_1
WHERE measurement.kind BETWEEN :kind_1 AND :kind_2 GROUP BY measurement.node_id,
    measurement.plausible, measurement.day + 0, CASE WHEN (measurement.failure_kind =
    'not-supported' AND measurement.failure_class = 'software setup') THEN 'software setup: not
    supported' WHEN (measurement.failure_kind = 'not-supported' AND measurement.failure_class =
    'stage-in') THEN 'stage-in: not supported' ELSE coalesce(measurement.failure_class, CASE WHEN
    (measurement.plausible = 1) THEN 'good' ELSE 'implausible' END) END) found JOIN node ON
    found.node_id = node.id GROUP BY node.host, found.plausible, found.day, found.outcome
;

-- results and exports

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

SELECT value FROM nls_database_parameters WHERE parameter = 'NLS_CHARACTERSET'
;

SELECT tables_and_views.table_name
FROM (SELECT a_tables.table_name AS table_name, a_tables.owner AS owner
FROM all_tables a_tables UNION ALL SELECT a_views.view_name AS table_name, a_views.owner AS owner
FROM all_views a_views) tables_and_views
WHERE tables_and_views.table_name IN (:table_names_1) AND tables_and_views.owner = :owner
;

SELECT alembic_version.version_num
FROM alembic_version
;

SELECT campaign.id, campaign.name, campaign.created_us, campaign.repository, campaign.ref,
    campaign.commit_id, campaign.dirty, campaign.test_name, campaign.test_path, campaign.plan,
    campaign.planned_jobs, campaign.planned_measurements
FROM campaign
WHERE campaign.id = :wanted
;

SELECT campaign.id, campaign.name
FROM campaign ORDER BY campaign.created_us DESC, campaign.id
;

SELECT extra.name
FROM extra
WHERE extra.name = :name_1
 FETCH FIRST 1 ROWS ONLY
;

SELECT count(*) AS count_1
FROM measurement
WHERE measurement.campaign_id IN (:campaign_id_1_1) AND (measurement.eff_job > :eff_job_1)
;

SELECT extra.measurement_id, extra.name, extra.value
FROM extra JOIN measurement ON measurement.measurement_id = extra.measurement_id
WHERE measurement.campaign_id IN (:campaign_id_1_1) AND (measurement.eff_job > :eff_job_1) ORDER BY
    measurement.campaign_id, measurement.job_id, measurement.attempt, measurement.round,
    measurement.position, measurement.measurement_id, extra.name
;

SELECT subject.site, measurement.eff_job, measurement.measurement_id
FROM measurement JOIN subject ON subject.id = measurement.subject_id
WHERE measurement.campaign_id IN (:campaign_id_1_1) AND (measurement.eff_job > :eff_job_1) ORDER BY
    measurement.campaign_id, measurement.job_id, measurement.attempt, measurement.round,
    measurement.position, measurement.measurement_id
;

SELECT DISTINCT extra.name
FROM extra JOIN measurement ON measurement.measurement_id = extra.measurement_id ORDER BY extra.name
;

SELECT count(*) AS count_1
FROM measurement
;

-- db check, db rebuild and pruning

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
FROM rollup_day
;

SELECT count(*) AS count_1
FROM attempt
;

SELECT count(*) AS count_1
FROM extra
;

DELETE FROM rollup_day WHERE 1 = 1
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
    q_load1_start, read_latency_hist) SELECT measurement.day AS day, measurement.subject_id AS
    subject_id, coalesce(measurement.kind, '-') AS kind, CASE WHEN (measurement.failure_kind =
    'not-supported' AND measurement.failure_class = 'software setup') THEN 'software setup: not
    supported' WHEN (measurement.failure_kind = 'not-supported' AND measurement.failure_class =
    'stage-in') THEN 'stage-in: not supported' ELSE coalesce(measurement.failure_class, CASE WHEN
    (measurement.plausible = 1) THEN 'good' ELSE 'implausible' END) END AS outcome, count(*) AS
    measurements, count(CASE WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND
    :param_2) THEN CAST(measurement.eff_job AS BINARY_DOUBLE) END) AS n_eff_job, coalesce(sum(CASE
    WHEN (CAST(measurement.eff_job AS BINARY_DOUBLE) BETWEEN :param_1 AND :param_2) THEN
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
    :coalesce_54) AS q_load1_start, '[]'
FROM measurement
WHERE 1 = 1 GROUP BY measurement.day, measurement.subject_id, coalesce(measurement.kind, '-'), CASE
    WHEN (measurement.failure_kind = 'not-supported' AND measurement.failure_class = 'software
    setup') THEN 'software setup: not supported' WHEN (measurement.failure_kind = 'not-supported'
    AND measurement.failure_class = 'stage-in') THEN 'stage-in: not supported' ELSE
    coalesce(measurement.failure_class, CASE WHEN (measurement.plausible = 1) THEN 'good' ELSE
    'implausible' END) END
;

UPDATE rollup_day SET read_latency_hist=:reads WHERE rollup_day.day = :key_day AND
    rollup_day.subject_id = :key_subject_id AND rollup_day.kind = :key_kind AND rollup_day.outcome =
    :key_outcome
;

SELECT count(*) AS count_1, coalesce(sum(DBMS_LOB.GETLENGTH(measurement.passes)), :coalesce_2) AS
    coalesce_1
FROM measurement
WHERE measurement.day < :day_1 AND measurement.passes IS NOT NULL
;

SELECT DISTINCT measurement.day
FROM measurement
WHERE measurement.day < :day_1 AND measurement.passes IS NOT NULL ORDER BY measurement.day
;

UPDATE measurement SET passes=:passes WHERE measurement.day = :day_1 AND measurement.passes IS NOT
    NULL
;

SELECT count(*) AS count_1, coalesce(sum(DBMS_LOB.GETLENGTH(measurement.log_excerpt)), :coalesce_2)
    AS coalesce_1
FROM measurement
WHERE measurement.day < :day_1 AND measurement.log_excerpt IS NOT NULL
;

SELECT DISTINCT measurement.day
FROM measurement
WHERE measurement.day < :day_1 AND measurement.log_excerpt IS NOT NULL ORDER BY measurement.day
;

UPDATE measurement SET log_excerpt=:log_excerpt WHERE measurement.day = :day_1 AND
    measurement.log_excerpt IS NOT NULL
;

-- db copy

SELECT access_key.kid, access_key.role, access_key.name, access_key.created_us,
    access_key.expires_us, access_key.revoked_us, access_key.made_with
FROM access_key ORDER BY access_key.kid
;

SELECT access_revocation.scope, access_revocation.subject, access_revocation.revoked_us
FROM access_revocation ORDER BY access_revocation.scope, access_revocation.subject
;

SELECT campaign.id, campaign.name, campaign.created_us, campaign.repository, campaign.ref,
    campaign.commit_id, campaign.dirty, campaign.test_name, campaign.test_path, campaign.plan,
    campaign.planned_jobs, campaign.planned_measurements
FROM campaign ORDER BY campaign.id
;

SELECT inventory.id, inventory.inventory
FROM inventory ORDER BY inventory.id
;

SELECT node.id, node.host, node.cpu_model, node.cores_online, node.cores_allowed,
    node.cgroup_cpu_limit, node.cgroup_memory_limit_bytes, node.mem_total_bytes, node.kernel,
    node.os_name, node.container, node.worker_python
FROM node ORDER BY node.id
;

SELECT origin.id, origin.record_version, origin.instrument_version, origin.campaign_name,
    origin.repository, origin.ref, origin.commit_id, origin.dirty, origin.test_path,
    origin.test_hash, origin.payload_hash, origin.treehammer_version
FROM origin ORDER BY origin.id
;

SELECT pair.comparison_id, pair.line, pair.site, pair.comparison_key, pair.label, pair.metric,
    pair.axis, pair.a, pair.b, pair.job_id, pair.campaign_id, pair.host, pair.rounds, pair.a_value,
    pair.b_value, pair.d
FROM pair ORDER BY pair.comparison_id, pair.line
;

SELECT replica.id, replica.found_us, replica.dataset, replica.dataset_hash, replica.site,
    replica.door, replica.file_name, replica.url, replica.good, replica.message
FROM replica ORDER BY replica.id
;

SELECT software.id, software.root_provider, software.root_version, software.root_commit,
    software.root_platform, software.root_compiler, software.root_flags, software.root_cxx_standard,
    software.root_features, software.zlib_version, software.lzma_version, software.lz4_version,
    software.zstd_version, software.libcore_sha256
FROM software ORDER BY software.id
;

SELECT storage.id, storage.file_name, storage.file_url, storage.file_size_bytes, storage.file_class,
    storage.data_server, storage.address_family, storage.server_version, storage.client_cache_state,
    storage.client_cache_method, storage.server_cache_state, storage.server_cache_method
FROM storage ORDER BY storage.id
;

SELECT subject.id, subject.series, subject.test_name, subject.variant, subject.variant_label,
    subject.site, subject.door, subject.door_protocol, subject.dataset, subject.dataset_hash,
    subject.content_hash, subject.axis_root, subject.axis_branches, subject.axis_cache_mb,
    subject.axis_events, subject.axis_access, subject.axis_cache, subject.passes_planned
FROM subject ORDER BY subject.id
;

SELECT verdict.comparison_id, verdict.line, verdict.site, verdict.comparison_key, verdict.label,
    verdict.metric, verdict.axis, verdict.a, verdict.b, verdict.created_us, verdict.rule_version,
    verdict.scope, verdict.verdict, verdict.effect, verdict.low, verdict.high, verdict.jobs,
    verdict.hosts, verdict.jobs_needed, verdict.evidence
FROM verdict ORDER BY verdict.comparison_id, verdict.line
;

SELECT job.id, job.campaign_id, job.site, job.door, job.kind, job.repeat, job.label,
    job.batch_system, job.batch_id, job.planned_measurements, job.state
FROM job ORDER BY job.id
;

SELECT measurement.measurement_id, measurement.campaign_id, measurement.job_id, measurement.attempt,
    measurement.kind, measurement.repeat, measurement.round, measurement.position,
    measurement.started_us, measurement.ended_us, measurement.day, measurement.setup_wall_s,
    measurement.setup_cpu_s, measurement.stagein_wall_s, measurement.stagein_cpu_s,
    measurement.stagein_bytes, measurement.payload_wall_s, measurement.payload_user_s,
    measurement.payload_sys_s, measurement.payload_run_queue_s, measurement.eff_payload,
    measurement.eff_job, measurement.access_rate_hz, measurement.eff_access,
    measurement.max_rss_bytes, measurement.tree_peak_rss_bytes, measurement.ctx_voluntary,
    measurement.ctx_involuntary, measurement.page_faults_minor, measurement.page_faults_major,
    measurement.io_read_chars, measurement.io_write_chars, measurement.io_read_bytes,
    measurement.io_write_bytes, measurement.processes, measurement.exit_code,
    measurement.exit_signal, measurement.cpu_mhz, measurement.cpu_steal_s, measurement.psi_cpu_some_s,
    measurement.psi_io_some_s, measurement.psi_memory_some_s, measurement.cgroup_throttled_s,
    measurement.load1_start, measurement.load1_end, measurement.mem_available_start_bytes,
    measurement.mem_available_end_bytes, measurement.calibration_before_s,
    measurement.calibration_after_s, measurement.slot, measurement.concurrent_door_jobs,
    measurement.door_rtt_s, measurement.client_cached_fraction, measurement.failure_class,
    measurement.failure_kind, measurement.failure_phase, measurement.failure_message,
    measurement.failure_transient, measurement.plausible, measurement.implausible_reasons,
    measurement.log_excerpt, measurement.import_wall_s, measurement.import_user_s,
    measurement.import_sys_s, measurement.compile_wall_s, measurement.passes_done,
    measurement.passes_counted, measurement.open_wall_s, measurement.open_user_s,
    measurement.open_sys_s, measurement.get_tree_wall_s, measurement.get_tree_user_s,
    measurement.get_tree_sys_s, measurement.prepare_wall_s, measurement.prepare_user_s,
    measurement.prepare_sys_s, measurement.loop_wall_s, measurement.loop_user_s,
    measurement.loop_sys_s, measurement.close_wall_s, measurement.close_user_s,
    measurement.close_sys_s, measurement.loop_cpu_s, measurement.loop_run_queue_s,
    measurement.cpu_per_event_s, measurement.wall_per_event_s, measurement.event_rate_hz,
    measurement.eff_loop, measurement.eff_loop_corrected, measurement.events_total,
    measurement.events_read, measurement.branches_total, measurement.branches_selected,
    measurement.selected_zip_bytes, measurement.loop_unzipped_bytes, measurement.bytes_read,
    measurement.bytes_read_extra, measurement.read_calls, measurement.read_calls_single,
    measurement.read_calls_vector, measurement.read_calls_prefetch, measurement.vector_chunks,
    measurement.read_fraction, measurement.cache_bytes, measurement.cache_efficiency,
    measurement.cache_efficiency_rel, measurement.cache_bytes_read, measurement.cache_read_calls,
    measurement.cache_missed_bytes, measurement.cache_missed_calls, measurement.perfstats_bytes_read,
    measurement.perfstats_read_calls, measurement.perfstats_read_s, measurement.perfstats_unzip_s,
    measurement.perfstats_wall_s, measurement.perfstats_cpu_s, measurement.ntuple_cluster_cache,
    measurement.ntuple_pages_read, measurement.ntuple_pages_unzipped,
    measurement.ntuple_clusters_loaded, measurement.ntuple_vector_reads,
    measurement.ntuple_ranges_read, measurement.ntuple_payload_bytes,
    measurement.ntuple_overhead_bytes, measurement.ntuple_unzipped_bytes,
    measurement.ntuple_read_wall_s, measurement.ntuple_read_cpu_s, measurement.ntuple_unzip_wall_s,
    measurement.ntuple_unzip_cpu_s, measurement.kernel_read_chars, measurement.kernel_read_bytes,
    measurement.kernel_read_calls, measurement.first_byte_s, measurement.read_latency_hist,
    measurement.read_latency_p50_s, measurement.read_latency_p95_s, measurement.read_latency_p99_s,
    measurement.read_latency_max_s, measurement.retries, measurement.value_checksum,
    measurement.checksum_version, measurement.checksum_leaves, measurement.checksum_skipped_leaves,
    measurement.passes, measurement.subject_id, measurement.origin_id, measurement.software_id,
    measurement.inventory_id, measurement.node_id, measurement.storage_id
FROM measurement ORDER BY measurement.measurement_id
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
    rollup_day.read_latency_hist
FROM rollup_day ORDER BY rollup_day.day, rollup_day.subject_id, rollup_day.kind, rollup_day.outcome
;

SELECT attempt.job_id, attempt.attempt, attempt.state, attempt.started_us, attempt.ended_us,
    attempt.exit_code, attempt.failure_class, attempt.message
FROM attempt ORDER BY attempt.job_id, attempt.attempt
;

SELECT extra.measurement_id, extra.name, extra.value
FROM extra ORDER BY extra.measurement_id, extra.name
;
