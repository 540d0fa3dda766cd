"""What revisions 0006 and 0007 share.  It is history, and never changes."""

from __future__ import annotations

#: The figures that are rolled up by day.
FIGURES = (
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
