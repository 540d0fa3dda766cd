"""The metric catalogue: every column a measurement can have, declared once.

Record validation, database columns, TTree branches, page labels, the record's JSON Schema and the
reference page are generated from :data:`CATALOGUE`.  Standard library only, Python 3.9 and later: this
module is packed into the worker.

Each metric has exactly one *owner*, the part that writes it:

``plan``
    known when the job is planned (identity, axes); copied by the worker from the job.
``worker``
    measured outside the payload's process (kernel accounting, node facts, failures).
``payload``
    measured inside the payload's process (ROOT's own counters, phases of the loop).

Some counters are *exact*: equal reads give equal values, so that one job decides.  Whether a counter
is exact depends on how the data is accessed.  A pair is declared only where recorded A/A jobs show no
difference (``python -m benchmarks counters``); everything else is noisy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from ..job_spec import EXECUTION_KINDS, RUN_MODES, START_STATES
from .day_numbers import CALENDAR_DAYS, DAY_US
from .outcome import FAILURE_CLASSES

#: Version of the record's layout, in every record.
RECORD_VERSION = 1
#: Version of Treehammer's timing code; part of every series' fingerprint.
INSTRUMENT_VERSION = 1

Value = Union[int, float, str, bool, List[int], List[float], None]

METRIC_OWNERS = ("plan", "worker", "payload")

#: The phases of one pass, in order, each timed as wall, user and system seconds.
PASS_PHASES = ("open", "get_tree", "prepare", "loop", "close")

#: Bins of the read-latency histogram: bin i counts reads of [2**i, 2**(i+1)) microseconds, the
#: first also faster ones and the last also slower ones.
LATENCY_BINS = 32

#: Longest texts in characters: of identities, of words from a small vocabulary (databases index
#: both), of other texts (Oracle's VARCHAR2), and of large objects.
MAX_IDENTITY = 128
MAX_WORD = 64
MAX_TEXT = 4000
MAX_LONG_TEXT = 1_000_000
INT64_LIMIT = 2**63

#: Built-in axes; a test may add others, kept in ``variant``.
CATALOGUE_AXES = ("root", "branches", "cache_mb", "events", "door", "access", "cache")


#: Access modes of a TTree: protocol of the door ('file' for a staged copy), with or without a cache.
ACCESS_MODES = FILE, FILE_CACHED, ROOT, ROOT_CACHED = (
    "file",
    "file, cached",
    "root",
    "root, cached",
)

_LOOP = (
    "bytes_read",
    "bytes_read_extra",
    "read_calls",
    "read_calls_single",
    "read_calls_vector",
    "loop_unzipped_bytes",
    "baskets_read",
)
_CACHE = (
    "vector_chunks",
    "cache_bytes_read",
    "cache_read_calls",
    "cache_missed_bytes",
    "cache_missed_calls",
)
_KERNEL = ("kernel_read_chars", "kernel_read_calls")

#: Access mode -> its exact counters.  Kernel counters of a socket depend on how bytes arrive, and
#: bytes fetched from a device on the page cache.
EXACT_COUNTERS: Mapping[str, Tuple[str, ...]] = {
    FILE: (*_LOOP, *_KERNEL),
    FILE_CACHED: (*_LOOP, *_CACHE, *_KERNEL),
    ROOT: _LOOP,
    ROOT_CACHED: (*_LOOP, *_CACHE),
}
#: All counters that are exact in some mode.
COUNTER_NAMES: Tuple[str, ...] = tuple(
    dict.fromkeys(name for names in EXACT_COUNTERS.values() for name in names)
)


def find_access_mode(variant: Mapping[str, Any], door_protocol: str) -> Optional[str]:
    """Find the access mode of a variant at a door; None where nothing is known to be exact.

    Args:
        variant: axes with their values.
        door_protocol: protocol of the door.
    """
    if variant.get("format", "ttree") != "ttree":
        return None
    if variant.get("threads", 1) != 1 or variant.get("prefetch"):  # other threads read as well
        return None
    staged = variant.get("access") == "staged"
    protocol = FILE if staged or door_protocol == "file" else door_protocol
    cached = float(variant.get("cache_mb", 0)) > 0
    mode = f"{protocol}, cached" if cached else protocol
    return mode if mode in ACCESS_MODES else None


@dataclass(frozen=True)
class Metric:
    """Catalogue column with its unit, source and constraints.

    Attributes:
        name: lower-case identifier, at most 30 characters (Oracle's old limit).
        type: ``int``, ``float``, ``text``, ``bool``, ``ints`` or ``floats``.
        unit: SI unit, ``1`` for counts and ratios, empty for text.
        better: ``lower``, ``higher`` or empty when neither is better.
        meaning: one sentence for people.
        source: origin of the number.
        owner: one of :data:`METRIC_OWNERS`.
        required: True if a record without it is invalid.
        is_identity: True if it identifies rows: short and never empty.
        max_length: longest text, in characters.
        minimum: smallest whole number, also of a list's items.
        maximum: largest whole number.
        choices: allowed values; empty when any value is.
        plausible_range: smallest and largest value that can be true, also of a list's items; others
            are kept and marked. None for text and for values of the plan.
        exact_in: access modes in which equal reads give equal values; elsewhere it is noisy.
    """

    name: str
    type: str
    unit: str
    better: str
    meaning: str
    source: str
    owner: str
    required: bool = False
    is_identity: bool = False
    max_length: int = MAX_TEXT
    minimum: int = -INT64_LIMIT
    maximum: int = INT64_LIMIT - 1
    choices: Tuple[Union[int, str], ...] = ()
    plausible_range: Optional[Tuple[float, float]] = None
    exact_in: Tuple[str, ...] = ()


# One line per metric, as a table; the formatter would use five lines for each.
# fmt: off
def _plan_metrics() -> List[Metric]:
    def text(name: str, meaning: str, required: bool = True) -> Metric:
        return Metric(name, "text", "", "", meaning, "plan", "plan", required)

    def count(name: str, meaning: str, required: bool = True) -> Metric:
        return Metric(name, "int", "1", "", meaning, "plan", "plan", required)

    return [
        text("measurement_id", "Identity of this measurement: hash of job, attempt, round, position."),
        count("record_version", "Version of the record's layout."),
        count("instrument_version", "Version of our timing; raised when it changes."),
        text("campaign_id", "Identity of the campaign."),
        text("campaign_name", "Display name of the campaign."),
        text("job_id", "Identity of the job."),
        count("attempt", "Which execution of the job this was, from 1."),
        text("kind", "'timed'; 'control' for either half of an A/A launch; 'checksum' for the untimed execution that hashes values."),
        count("repeat", "Which repeat of the job, from 1."),
        count("round", "Which AB/BA order inside the job, from 1."),
        count("position", "Position within the round, from 1."),
        text("test_name", "Name of the test."),
        text("repository", "Repository the test came from, without credentials."),
        text("ref", "Requested ref; empty text is stored as NULL.", False),
        text("commit_id", "Commit the test was pinned to.", False),
        Metric("dirty", "bool", "1", "", "The working tree differed from the commit.", "git", "plan", True),
        text("test_path", "Path of the test inside its repository."),
        text("test_hash", "Hash of the files that the test names and of its definition without matrix, counts and names."),
        text("payload_hash", "Hash of the payload file alone."),
        text("treehammer_version", "Version of Treehammer that planned the job."),
        text("series", "Fingerprint of the series."),
        text("variant", "The variant as canonical JSON: every axis and its value."),
        text("variant_label", "The variant for people."),
        text("site", "Site the job was sent to."),
        text("storage_site", "Site whose storage was read; the job's own, unless it was sent elsewhere.", False),
        text("door", "Name of the door the data were read through."),
        text("door_protocol", "Protocol of that door (file, root, https)."),
        text("dataset", "Name of the dataset.", False),
        text("dataset_hash", "Hash of the dataset's manifest.", False),
        text("content_hash", "Hash of the dataset that the test names first: twins in other formats have its content, and it is theirs too.", False),
        text("axis_root", "Requested ROOT release or build."),
        text("axis_branches", "Requested branches: a fraction, a pattern or a list file."),
        Metric("axis_cache_mb", "float", "MB", "", "Requested TTreeCache size (10^6 bytes); 0 is off.", "plan", "plan"),
        Metric("axis_events", "float", "1", "", "Requested fraction of events.", "plan", "plan"),
        text("axis_access", "'direct' or 'staged'."),
        text("axis_cache", "Requested page-cache state: 'warm' or 'cold'."),
        count("passes_planned", "Requested passes of the loop."),
        text("launch_order", "Sides of a launch in order of their positions, the first of which begins: 'AB' or 'BA'; A is the base.", False),
    ]


_worker = partial(Metric, owner="worker")
_TREE = "wait4 of every process of the tree"
_NODE = "node"
_WORKER_METRICS = [
    Metric("started_us", "int", "us", "", "Start of the execution, microseconds since 1970 UTC.", "clock", "worker", True),
    Metric("ended_us", "int", "us", "", "End of the execution, microseconds since 1970 UTC.", "clock", "worker", True),
    Metric("day", "int", "1", "", "UTC day of the start as YYYYMMDD.", "clock", "worker", True),
    _worker("setup_wall_s", "float", "s", "lower", "Setting up the software, also loading that which copies.", "monotonic clock"),
    _worker("setup_cpu_s", "float", "s", "lower", "CPU of setting up the software.", _TREE),
    _worker("build_wall_s", "float", "s", "lower", "Building the test's own libraries and its loop, in the execution that did it; no part of the efficiencies.", "monotonic clock"),
    _worker("build_cpu_s", "float", "s", "lower", "CPU of that build.", "getrusage"),
    _worker("stagein_wall_s", "float", "s", "lower", "Copying the files to the node before the payload, and verifying the copies; without loading the software that copies.", "monotonic clock"),
    _worker("stagein_cpu_s", "float", "s", "lower", "CPU of that copy.", "getrusage"),
    _worker("stagein_bytes", "int", "B", "", "Bytes copied to the node before the payload, as verified.", "copy"),
    _worker("payload_wall_s", "float", "s", "lower", "Payload from process start to exit.", "monotonic clock"),
    _worker("payload_user_s", "float", "s", "lower", "User CPU of the payload's process tree.", _TREE),
    _worker("payload_sys_s", "float", "s", "lower", "System CPU of the payload's process tree.", _TREE),
    _worker("payload_run_queue_s", "float", "s", "lower", "Time the tree was runnable but not running; misses what threads and grandchildren waited after their last sample (every 0.2 s).", "/proc/PID/schedstat, sampled"),
    _worker("eff_payload", "float", "1", "higher", "CPU efficiency from process start to exit, of all cores that the axis threads reserves.", "payload CPU / (wall x threads)"),
    _worker("eff_job", "float", "1", "higher", "CPU efficiency with set-up and stage-in, of all cores that the axis threads reserves.", "(payload + setup + stage-in CPU) / (wall x threads)"),
    _worker("access_rate_hz", "float", "Hz", "higher", "Events per second of getting at the data as asked and reading them once: stage-in, if any, and one whole pass from open to close, the median of each phase over counted passes.", "events_read / (stage-in + phases of one pass)"),
    _worker("eff_access", "float", "1", "higher", "CPU efficiency of the same: stage-in, if any, and one whole pass.", "CPU / wall of stage-in and phases of one pass"),
    _worker("run_mode", "text", "", "", "'solo' for an execution that ran undisturbed, 'paired' for one that took turns with another, 'sequential' for one that was to take turns but does not support it and ran alone.", "worker"),
    _worker("pinned_core", "int", "1", "", "Core on which both processes of a launch ran; absent where the node refused to pin them.", "sched_setaffinity"),
    _worker("own_text_bytes", "int", "B", "", "Program text of the process in physical pages that no other launch shares; 0 where the node refuses it.", "worker"),
    _worker("huge_page_bytes", "int", "B", "", "Memory, and content of files, that the processes of the payload had in huge pages after their last turn.", "/proc/PID/smaps_rollup"),
    _worker("segments", "int", "1", "", "Turns of this process in the launch that were counted.", "worker"),
    _worker("segment_entries", "int", "1", "", "Entries of one turn, so that a turn of the base takes about 5 ms of CPU.", "worker"),
    _worker("segment_cpu_log_ratio", "float", "1", "", "ln(B/A) of the CPU time of all segments, each the mean over its passes, 20 % trimmed from three passes on. On side B alone.", "segment_cpu_ns"),
    _worker("segment_cpu_log_ratio_sd", "float", "1", "lower", "Standard deviation of these ratios, with the same weights.", "segment_cpu_ns"),
    _worker("segment_wall_log_ratio", "float", "1", "", "ln(B/A) of the wall time of all segments, each the 20 % trimmed mean over its passes, of two passes the mean or the undisturbed one; with a single pass the trimmed mean of the turns' ratios. On side B alone.", "segment_wall_ns"),
    _worker("segment_wall_log_ratio_sd", "float", "1", "lower", "Standard deviation of these ratios, with the same weights.", "segment_wall_ns"),
    _worker("segment_cpu_ns", "floats", "ns", "lower", "CPU time of each turn, in order.", "process and thread CPU clocks of the payload"),
    _worker("segment_wall_ns", "floats", "ns", "lower", "Wall time of each turn, in order.", "monotonic clock of the payload"),
    _worker("max_rss_bytes", "int", "B", "lower", "Largest resident size of one process; never below the worker's own (20 MB), which the kernel passes on.", "wait4 ru_maxrss"),
    _worker("tree_peak_rss_bytes", "int", "B", "lower", "Peak of the resident size of the tree; pages that several of its processes share count once.", "/proc, sampled"),
    _worker("ctx_voluntary", "int", "1", "lower", "Voluntary context switches.", _TREE),
    _worker("ctx_involuntary", "int", "1", "lower", "Involuntary context switches.", _TREE),
    _worker("page_faults_minor", "int", "1", "lower", "Page faults without I/O.", _TREE),
    _worker("page_faults_major", "int", "1", "lower", "Page faults with I/O.", _TREE),
    _worker("io_read_chars", "int", "B", "", "Bytes that the tree requested by read().", "/proc/PID/io of every process of the tree at its end"),
    _worker("io_write_chars", "int", "B", "", "Bytes the tree gave to write().", "/proc/PID/io of every process of the tree at its end"),
    _worker("io_read_bytes", "int", "B", "", "Bytes the tree had fetched from block devices.", "/proc/PID/io of every process of the tree at its end"),
    _worker("io_write_bytes", "int", "B", "", "Bytes the tree caused to be written to block devices.", "/proc/PID/io of every process of the tree at its end"),
    _worker("processes", "int", "1", "", "Processes of the tree that were seen.", "/proc, sampled"),
    _worker("exit_code", "int", "1", "", "Exit code of the payload.", "wait4"),
    _worker("exit_signal", "int", "1", "", "Signal that ended the payload, if any.", "wait4"),
    _worker("retries", "int", "1", "lower", "Reads at root:// and roots:// doors whose answer was lost, so that XRootD's client tried them again; empty where XRD_LOGFILE or XRD_LOGLEVEL is set.", "log of XRootD's client"),
    _worker("load_index", "int", "1", "", "Number of this job among those that load together, from 0.", "job"),
    _worker("load_jobs", "int", "1", "", "Jobs planned to load together.", "job"),
    _worker("start_state", "text", "", "", "'together' for a load that began at the common start, 'late' for one that began more than 0.25 s after it, 'alone' for one without a common start.", "worker"),
    _worker("start_planned_us", "int", "us", "", "Common start of the jobs, microseconds since 1970 UTC, by the clock of the results service or of the machine that ran all jobs.", "results service or shared folder"),
    _worker("start_present_jobs", "int", "1", "higher", "Jobs that had arrived when the common start was set.", "results service or shared folder"),
    _worker("start_offset_s", "float", "s", "", "Real start of the load minus the common start, or minus the start of its level of a ramp, by the node's clock.", "load_started_us, or the launch of a payload that began at once"),
    _worker("start_wait_s", "float", "s", "lower", "Wait for the other jobs and for the level of a ramp, before the payload.", "monotonic clock"),
    _worker("clock_offset_s", "float", "s", "", "The node's clock minus that of the results service.", "shortest round trip to the service"),
    _worker("clock_error_s", "float", "s", "lower", "Bound of the error of that offset, half of the round trip.", "shortest round trip to the service"),
    _worker("root_provider", "text", "", "", "Provider that set up ROOT.", "software provider"),
    _worker("host", "text", "", "", "Name of the node.", _NODE),
    _worker("machine", "text", "", "", "Identity of the machine below pods, pilots and containers, whose host names change: its name in the pool, or a hash of its machine-id or of the kernel's boot.", "HTCondor's machine ad, /etc/machine-id, boot_id"),
    _worker("cpu_model", "text", "", "", "CPU model.", "/proc/cpuinfo"),
    _worker("architecture", "text", "", "", "Instruction set of the machine as its kernel names it, such as x86_64 or aarch64.", "uname"),
    _worker("cores_online", "int", "1", "", "Cores of the node.", _NODE),
    _worker("cores_allowed", "int", "1", "", "Cores this job may run on.", "sched_getaffinity"),
    _worker("cpu_mhz", "float", "MHz", "", "Mean core frequency where readable.", "/proc/cpuinfo"),
    _worker("raw_clock_ratio", "float", "1", "", "Time of the machine's own clock, its TSC where the kernel trusts that, in units of the clock that NTP steers, meanwhile.", "CLOCK_MONOTONIC_RAW / CLOCK_MONOTONIC"),
    _worker("cpu_steal_s", "float", "s", "lower", "CPU time stolen by the hypervisor meanwhile, all cores.", "/proc/stat"),
    _worker("psi_cpu_some_s", "float", "s", "lower", "Time some task waited for CPU meanwhile.", "/proc/pressure/cpu"),
    _worker("psi_io_some_s", "float", "s", "lower", "Time some task waited for I/O meanwhile.", "/proc/pressure/io"),
    _worker("psi_memory_some_s", "float", "s", "lower", "Time some task waited for memory meanwhile.", "/proc/pressure/memory"),
    _worker("cgroup_cpu_limit", "float", "1", "", "CPUs the cgroup allows.", "cgroup"),
    _worker("cgroup_memory_limit_bytes", "int", "B", "", "Memory the cgroup allows.", "cgroup"),
    _worker("cgroup_throttled_s", "float", "s", "lower", "Time the cgroup was throttled meanwhile.", "cgroup"),
    _worker("load1_start", "float", "1", "", "One-minute load at the start.", "/proc/loadavg"),
    _worker("load1_end", "float", "1", "", "One-minute load at the end.", "/proc/loadavg"),
    _worker("mem_total_bytes", "int", "B", "", "Memory of the node.", "/proc/meminfo"),
    _worker("mem_available_start_bytes", "int", "B", "", "Available memory at the start.", "/proc/meminfo"),
    _worker("mem_available_end_bytes", "int", "B", "", "Available memory at the end.", "/proc/meminfo"),
    _worker("calibration_before_s", "float", "s", "lower", "CPU time of a fixed loop before the execution.", "thread CPU clock"),
    _worker("calibration_after_s", "float", "s", "lower", "CPU time of the same loop after the execution.", "thread CPU clock"),
    _worker("energy_j", "float", "J", "lower", "Energy of the node's processor packages from start to exit of the payload; everything else that ran on the node is part of it.", "powercap"),
    _worker("energy_idle_w", "float", "W", "", "Power of the same packages in the quarter of a second before the payload started.", "powercap"),
    _worker("energy_idle_fraction", "float", "1", "", "Share of that power, taken over the time of the payload, in its energy.", "energy_idle_w, energy_j"),
    _worker("energy_per_event_j", "float", "J", "lower", "Energy of the payload, its start included, for each event of all its passes.", "energy_j / (events_read x passes_done)"),
    _worker("energy_missing", "text", "", "", "Reason for no energy: packages without counters, or counters that only root may read.", "powercap"),
    _worker("kernel", "text", "", "", "Kernel release.", "uname"),
    _worker("os_name", "text", "", "", "Operating system.", "/etc/os-release"),
    _worker("container", "text", "", "", "Container or virtual machine, where recognised.", _NODE),
    _worker("slot", "text", "", "", "Batch slot.", "batch system"),
    _worker("node_lacks", "text", "", "", "What the node lacks of that which jobs need, by the names of docs/what-nodes-need.md: compiler, headers, exec, home, …; with the compiler of this ROOT.", _NODE),
    _worker("worker_python", "text", "", "", "Python that ran the worker.", "sys.version"),
    _worker("loop_fallback", "text", "", "", "Reason why ROOT's interpreter compiled the kit's loop instead of a compiler of the node; none where the test requires that.", "build of the loop"),
    _worker("concurrent_door_jobs", "int", "1", "", "Other jobs of Treehammer at the same door on this node at the start.", "lock files of the worker"),
    _worker("file_name", "text", "", "", "Logical name of the first file read.", "job"),
    _worker("file_url", "text", "", "", "URL the payload was given for it.", "job"),
    _worker("file_size_bytes", "int", "B", "", "Size of all files read, from the manifest.", "manifest"),
    Metric("data_server", "text", "", "", "Server that the data of the first file came from, also behind a redirector; without the kit or ROOT's XRootD client, only where the door itself serves the data.", "XrdCl::File, kXR_protocol", "payload"),
    _worker("address_family", "text", "", "", "'IPv4', 'IPv6' or 'local'.", "client"),
    _worker("server_version", "text", "", "", "Version the door's server reports.", "client"),
    _worker("door_rtt_s", "float", "s", "lower", "Round-trip time to the door.", "TCP connect"),
    _worker("origin_version", "text", "", "", "Version that the server behind a cache reports, the door's origin.", "client"),
    _worker("origin_rtt_s", "float", "s", "lower", "Round-trip time to the origin of the data: behind a cache, or of the door itself with the axes latency_ms and bandwidth_mbit, through the proxy or link that they set.", "shortest answer of the server"),
    _worker("distance_method", "text", "", "", "How these axes were brought about: 'link' before the origin, 'netem' or 'proxy' between client and door; NULL without a distance.", "worker"),
    _worker("client_cache_state", "text", "", "", "Client page cache before the first pass: first touch, evicted, warmed, unknown.", "worker"),
    _worker("client_cache_method", "text", "", "", "How that state was reached.", "worker"),
    _worker("client_cached_fraction", "float", "1", "", "Share of the file's pages in the node's page cache before the payload.", "mincore"),
    _worker("server_cache_state", "text", "", "", "Server's cache before the measurement: cold, half or warm (axis server_cache), unknown.", "worker"),
    _worker("server_cache_method", "text", "", "", "How that state was reached.", "worker"),
    _worker("server_cache_stored_bytes", "int", "B", "", "Bytes of the files that the cache behind the door had stored before the payload.", ".cinfo"),
    _worker("server_cache_asked_bytes", "int", "B", "", "Bytes that this cache delivered to the payload.", ".cinfo"),
    _worker("server_cache_fetched_bytes", "int", "B", "lower", "Bytes that it fetched from the origin meanwhile: blocks that it stored, and bytes that it passed on.", ".cinfo"),
    Metric("cache_block_kib", "int", "KiB", "", "Size of its blocks, pfc.blocksize, when the files were stored; NULL if the job can read neither .cinfo files nor its pfc stream.", ".cinfo, pfc stream", "payload"),
    _worker("failure_class", "text", "", "", "Class of the failure; NULL when there was none.", "worker"),
    _worker("failure_kind", "text", "", "", "Finer: exit, signal, timeout, memory, no-result, bad-result, version, …", "worker"),
    _worker("failure_phase", "text", "", "", "Phase it happened in.", "worker"),
    _worker("failure_message", "text", "", "", "Message of the failure.", "worker"),
    _worker("failure_transient", "bool", "1", "", "Whether trying again can help.", "worker"),
    Metric("plausible", "bool", "1", "", "False when the numbers cannot be true; such rows are never averaged.", "plausibility rules", "worker", True),
    _worker("implausible_reasons", "text", "", "", "Which rules were broken.", "plausibility rules"),
    _worker("log_excerpt", "text", "", "", "End of the payload's output.", "worker"),
]


def _payload_metrics() -> List[Metric]:
    m = partial(Metric, owner="payload")
    rows = [
        m("root_version", "text", "", "", "Version ROOT reports.", "gROOT.GetVersion"),
        m("root_commit", "text", "", "", "Commit ROOT was built from.", "gROOT.GetGitCommit"),
        m("root_platform", "text", "", "", "Architecture ROOT was built for.", "gSystem.GetBuildArch"),
        m("root_compiler", "text", "", "", "Compiler ROOT was built with.", "gSystem.GetBuildCompilerVersion"),
        m("root_flags", "text", "", "", "Optimisation flags ROOT was built with.", "gSystem.GetFlagsOpt"),
        m("root_cxx_standard", "text", "", "", "C++ standard ROOT was built with.", "gROOT.GetConfigFeatures"),
        m("root_features", "text", "", "", "Features ROOT was built with.", "gROOT.GetConfigFeatures"),
        m("zlib_version", "text", "", "", "zlib in that build.", "library"),
        m("lzma_version", "text", "", "", "liblzma in that build.", "library"),
        m("lz4_version", "text", "", "", "LZ4 in that build.", "library"),
        m("zstd_version", "text", "", "", "Zstandard in that build.", "library"),
        m("libcore_sha256", "text", "", "", "Hash of libCore.", "file"),
        m("file_class", "text", "", "", "TFile class that opened the file.", "TFile::ClassName"),
        m("loop_compiler", "text", "", "", "Compiler of the kit's loop with its version, or 'cling' where ROOT's interpreter compiled it.", "payload kit"),
        m("import_wall_s", "float", "s", "lower", "Loading ROOT.", "monotonic clock"),
        m("import_user_s", "float", "s", "lower", "User CPU of loading ROOT.", "getrusage"),
        m("import_sys_s", "float", "s", "lower", "System CPU of loading ROOT.", "getrusage"),
        m("compile_wall_s", "float", "s", "lower", "Compiling the loop with ROOT's interpreter, or loading it, and warming up (outside every timed phase).", "monotonic clock"),
        m("passes_done", "int", "1", "", "Passes that completed.", "payload"),
        m("passes_counted", "int", "1", "", "Passes the medians below are taken over.", "payload"),
    ]
    for phase in PASS_PHASES:
        for clock, word in (("wall", "Wall time"), ("user", "User CPU"), ("sys", "System CPU")):
            source = "monotonic clock" if clock == "wall" else "getrusage"
            rows.append(m(f"{phase}_{clock}_s", "float", "s", "lower", f"{word} of the phase '{phase}', median over counted passes.", source))
            rows.append(m(f"pass_{phase}_{clock}_s", "floats", "s", "lower", f"{word} of the phase '{phase}', every pass in order.", source))
    rows += [
        m("loop_cpu_s", "float", "s", "lower", "User and system CPU of the loop, median over counted passes.", "getrusage"),
        m("loop_run_queue_s", "float", "s", "lower", "Time the loop's thread was runnable but not running, median over counted passes; with the axis threads the sum of all threads.", "/proc/thread-self/schedstat"),
        m("pass_loop_run_queue_s", "floats", "s", "lower", "The same, every pass in order.", "/proc/thread-self/schedstat"),
        m("cpu_per_event_s", "float", "s", "lower", "CPU of the loop per event, median over counted passes.", "getrusage"),
        m("wall_per_event_s", "float", "s", "lower", "Wall time of the loop per event, median over counted passes.", "monotonic clock"),
        m("event_rate_hz", "float", "Hz", "higher", "Events per second of the loop.", "1 / wall_per_event_s"),
        m("eff_loop", "float", "1", "higher", "CPU efficiency of the loop: CPU / (wall x threads), median over counted passes.", "getrusage"),
        m("eff_loop_corrected", "float", "1", "higher", "CPU / (wall x threads - run-queue wait of the loop's threads); shown beside eff_loop, never in its place.", "getrusage, schedstat"),
        m("events_total", "int", "1", "", "Entries of the tree.", "TTree::GetEntries"),
        m("events_read", "int", "1", "", "Entries read in one pass.", "loop"),
        m("branches_total", "int", "1", "", "Top-level branches of the tree.", "TTree"),
        m("branches_selected", "int", "1", "", "Top-level branches read.", "TTree"),
        m("content_notes", "text", "", "", "Peculiarities of the files that the numbers do not show: friend trees, which are not read, branches that a data frame cannot read, and selected branches with fewer or more entries than their tree.", "TTree"),
        m("selected_zip_bytes", "int", "B", "", "Compressed bytes of the selected branches in the file; of fields of an RNTuple, their pages with checksums, each once.", "TBranch::GetZipBytes, RNTupleDescriptor"),
        m("loop_unzipped_bytes", "int", "B", "", "Sum of the bytes that GetEntry returned in one pass; unknown for an RNTuple.", "TTree::GetEntry"),
        m("bytes_read", "int", "B", "lower", "Wanted bytes read from the file in the loop, median over counted passes; gaps that one read spans are in bytes_read_extra.", "TFile::GetBytesRead, RNTupleMetrics; recorder of a command's reads"),
        m("bytes_read_extra", "int", "B", "lower", "Bytes read in the loop in gaps between the wanted ones.", "TFile::GetBytesReadExtra, RNTupleMetrics"),
        m("read_calls", "int", "1", "lower", "Read calls on the file in the loop.", "TFile::GetReadCalls, RNTupleMetrics; recorder of a command's reads"),
        m("read_calls_single", "int", "1", "lower", "Of these, reads of one block; unknown with a TTreeCache over HTTP.", "read events"),
        m("read_calls_vector", "int", "1", "lower", "Of these, vector reads; unknown with a TTreeCache over HTTP.", "read events"),
        m("read_calls_prefetch", "int", "1", "", "Of these, reads by the prefetching thread (TFile.AsyncPrefetching) of a remote file; single and vector reads are then unknown.", "TFile::GetReadCalls, read events"),
        m("vector_chunks", "float", "1", "", "Mean number of blocks that ROOT requests in a vector read; the client may send a large one as several chunks.", "TFileCacheRead, RNTupleMetrics"),
        m("files_read", "int", "1", "lower", "Files and connections from which a command read data: all but programs, libraries and the system's own files, whose sums are in file_reads.", "recorder of reads"),
        m("bytes_touched", "int", "B", "", "Distinct bytes of files that a command read; bytes_read above it were read again.", "recorder of reads"),
        m("read_calls_sequential", "int", "1", "", "Reads of files that began where the process' last read of the same file ended; in the loop, those of an RNTuple (ROOT 6.38 and 6.40) and of a TTree in a local file or over root://.", "recorder of reads, read events"),
        m("skipped_forward_bytes", "int", "B", "lower", "Sum of the distances from the end of a read to the start of the next one of the same file, where that lies behind; counted as read_calls_sequential.", "recorder of reads, read events"),
        m("skipped_backward_bytes", "int", "B", "lower", "The same, where the next one lies before: a read that goes back.", "recorder of reads, read events"),
        m("read_wait_s", "float", "s", "lower", "Time in read calls of a command, summed over its threads.", "recorder of reads"),
        m("mapped_bytes", "int", "B", "", "Bytes of files that a command mapped to memory, whose reads are page faults.", "recorder of reads"),
        m("threads_mean", "float", "1", "", "Mean number of threads of a command and its processes.", "/proc, sampled"),
        m("threads_idle", "float", "1", "lower", "Mean number of these that did not run.", "threads_mean - CPU / wall"),
        m("file_reads", "text", "", "", "JSON: reads of a command by file, with branches of ROOT files, and its programs.", "recorder of reads"),
        m("file_reads_missing", "text", "", "", "Reads of a command that are not recorded, and why.", "recorder of reads"),
        m("read_fraction", "float", "1", "lower", "Bytes fetched in the loop / file size; above 1 where bytes are fetched twice.", "(bytes_read + bytes_read_extra) / size"),
        m("cache_bytes", "int", "B", "", "TTreeCache size in force.", "TTree::GetCacheSize"),
        m("cache_efficiency", "float", "1", "higher", "Share of cached blocks that were used.", "TTreeCache::GetEfficiency"),
        m("cache_efficiency_rel", "float", "1", "higher", "Share of used blocks that came from the cache.", "TTreeCache::GetEfficiencyRel"),
        m("cache_bytes_read", "int", "B", "", "Bytes the cache read.", "TTreeCache"),
        m("cache_read_calls", "int", "1", "", "Calls the cache made.", "TTreeCache"),
        m("cache_missed_bytes", "int", "B", "lower", "Bytes read past the cache.", "TTreeCache::GetNoCacheBytesRead"),
        m("cache_missed_calls", "int", "1", "lower", "Reads past the cache.", "TTreeCache::GetNoCacheReadCalls"),
        m("perfstats_bytes_read", "int", "B", "", "Bytes of the read events that reached TTreePerfStats in the loop; counted apart from bytes_read + bytes_read_extra.", "TTreePerfStats::FileReadEvent"),
        m("perfstats_read_calls", "int", "1", "", "Read events that reached TTreePerfStats in the loop; counted apart from read_calls.", "TTreePerfStats::FileReadEvent"),
        m("baskets_read", "int", "1", "lower", "Baskets of a TTree that its branches read in the loop, from the file or from the cache; those inside the tree's own header are not among them.", "TTreePerfStats::SetUsed"),
        m("perfstats_read_s", "float", "s", "lower", "Time in reads.", "TTreePerfStats::GetDiskTime"),
        m("perfstats_unzip_s", "float", "s", "lower", "Time in decompression.", "TTreePerfStats::GetUnzipTime"),
        m("perfstats_wall_s", "float", "s", "", "Wall time of preparing and loop, as TTreePerfStats saw it.", "TTreePerfStats"),
        m("perfstats_cpu_s", "float", "s", "", "CPU time of preparing and loop, as TTreePerfStats saw it, in steps of 10 ms.", "TTreePerfStats"),
        m("ntuple_cluster_cache", "bool", "1", "", "The cluster cache of the RNTuple's reader was on (cache_mb above 0): it fetches all chosen pages of a cluster at once, ahead of the loop.", "RNTupleReadOptions"),
        m("ntuple_pages_read", "int", "1", "lower", "Pages of an RNTuple read in the loop.", "RNTupleMetrics: nPageRead"),
        m("ntuple_pages_unzipped", "int", "1", "lower", "Pages decompressed in the loop.", "RNTupleMetrics: nPageUnsealed"),
        m("ntuple_clusters_loaded", "int", "1", "", "Clusters that the cluster cache fetched in the loop.", "RNTupleMetrics: nClusterLoaded"),
        m("ntuple_vector_reads", "int", "1", "lower", "Vector reads in the loop; each fetches clusters.", "RNTupleMetrics: nReadV"),
        m("ntuple_ranges_read", "int", "1", "lower", "Ranges of bytes read in the loop; pages that lie near each other share one.", "RNTupleMetrics: nRead"),
        m("ntuple_payload_bytes", "int", "B", "lower", "Bytes of wanted pages read in the loop, with their checksums; bytes_read is the same.", "RNTupleMetrics: szReadPayload"),
        m("ntuple_overhead_bytes", "int", "B", "lower", "Bytes read in gaps that a range spans; bytes_read_extra is the same.", "RNTupleMetrics: szReadOverhead"),
        m("ntuple_unzipped_bytes", "int", "B", "", "Bytes of the decompressed pages.", "RNTupleMetrics: szUnzip"),
        m("ntuple_read_wall_s", "float", "s", "lower", "Wall time of reads, most of it in a thread ahead of the loop.", "RNTupleMetrics: timeWallRead"),
        m("ntuple_read_cpu_s", "float", "s", "lower", "CPU time of the whole process during reads, including that of the loop.", "RNTupleMetrics: timeCpuRead"),
        m("ntuple_unzip_wall_s", "float", "s", "lower", "Wall time of decompressing pages.", "RNTupleMetrics: timeWallUnzip"),
        m("ntuple_unzip_cpu_s", "float", "s", "lower", "CPU time of the whole process during that.", "RNTupleMetrics: timeCpuUnzip"),
        m("kernel_read_chars", "int", "B", "", "Bytes read() returned in the loop; empty over HTTP, whose clients receive in other ways.", "/proc/self/io"),
        m("kernel_read_bytes", "int", "B", "", "Bytes fetched from block devices in the loop.", "/proc/self/io"),
        m("kernel_read_calls", "int", "1", "", "read() calls in the loop; empty over HTTP.", "/proc/self/io"),
        m("hw_instructions", "int", "1", "lower", "Instructions that the loop's thread and the threads it started executed in user mode; empty where the processor's counters are not offered or are shared.", "perf_event_open"),
        m("hw_cycles", "int", "1", "lower", "Processor cycles of the same.", "perf_event_open"),
        m("hw_cache_misses", "int", "1", "lower", "Misses of the last-level cache of the same.", "perf_event_open"),
        m("hw_counters_missing", "text", "", "", "Reasons of the kernel for refusing counters of the processor.", "perf_event_open"),
        m("first_byte_s", "float", "s", "lower", "Start of the open to the end of the first read of the pass.", "read events"),
        m("read_latency_hist", "ints", "1", "", "Reads by latency, bin i = [2^i, 2^(i+1)) microseconds (bin 0 from 0), counted passes summed.", "read events"),
        m("read_latency_p50_s", "float", "s", "lower", "Median read latency over all counted passes, to within 6 %.", "read events"),
        m("read_latency_p95_s", "float", "s", "lower", "95th percentile of read latency, to within 6 %.", "read events"),
        m("read_latency_p99_s", "float", "s", "lower", "99th percentile of read latency, to within 6 %.", "read events"),
        m("read_latency_max_s", "float", "s", "lower", "Longest read of all counted passes.", "read events"),
        m("load_started_us", "int", "us", "", "Start of the load by the node's clock, microseconds since 1970 UTC.", "payload"),
        m("inventory", "text", "", "", "JSON: loaded libraries, relevant environment, packages; to diff two runs by cause.", "/proc/self/maps, environment"),
        m("value_checksum", "text", "", "", "SHA-256 of all covered values, branch by branch (checksum executions only); equal for a TTree and an RNTuple of the same values.", "payload"),
        m("checksum_version", "int", "1", "", "Version of the checksum's definition; checksums of two versions are not compared.", "payload"),
        m("checksum_leaves", "int", "1", "", "Leaves the checksum covers.", "payload"),
        m("checksum_skipped_leaves", "text", "", "", "JSON list of leaves it cannot cover.", "payload"),
    ]
    return rows

# fmt: on


_IDENTITY: Dict[str, Any] = {"is_identity": True, "max_length": MAX_IDENTITY}
_LONG_TEXT: Dict[str, Any] = {"max_length": MAX_LONG_TEXT}
_COUNTED_FROM_1: Dict[str, Any] = {"minimum": 1}
#: Constraints of single metrics beyond their type.
_CONSTRAINTS: Dict[str, Dict[str, Any]] = {
    **dict.fromkeys(("measurement_id", "campaign_id", "job_id", "series"), _IDENTITY),
    **dict.fromkeys(("attempt", "repeat", "round", "position"), _COUNTED_FROM_1),
    # Large objects in the database, so never indexed.
    "failure_message": _LONG_TEXT,
    "implausible_reasons": _LONG_TEXT,
    "log_excerpt": _LONG_TEXT,
    "root_features": _LONG_TEXT,
    "inventory": _LONG_TEXT,
    "checksum_skipped_leaves": _LONG_TEXT,
    "file_reads": _LONG_TEXT,
    "content_notes": _LONG_TEXT,
    "record_version": {"choices": (RECORD_VERSION,)},
    "kind": {"max_length": MAX_WORD, "choices": EXECUTION_KINDS},
    "run_mode": {"max_length": MAX_WORD, "choices": ("", *RUN_MODES)},
    "launch_order": {"max_length": MAX_WORD, "choices": ("", "AB", "BA")},
    "start_state": {"max_length": MAX_WORD, "choices": ("", *START_STATES)},
    "failure_class": {"max_length": MAX_WORD, "choices": ("", *FAILURE_CLASSES)},
    "started_us": {"minimum": 0, "maximum": CALENDAR_DAYS * DAY_US - 1},
    "day": {"minimum": 19700101, "maximum": 99991231},
    "read_latency_hist": {"minimum": 0},
}

#: Plausible values by unit, wide enough for any machine: seconds of three years, an exabyte.
_RANGE_BY_UNIT: Dict[str, Tuple[float, float]] = {
    "s": (0, 1e8),
    "ns": (0, 1e17),
    "us": (0, 2**62),
    "B": (0, 1e18),
    "KiB": (0, 1e15),
    "Hz": (0, 1e12),
    "MHz": (0, 1e6),
    "J": (0, 1e12),
    "W": (0, 1e6),
    "1": (0, 1e18),
}
#: Narrower ranges, and those of values that may be negative.
_RANGES: Dict[str, Tuple[float, float]] = {
    **dict.fromkeys(("cpu_per_event_s", "wall_per_event_s"), (0, 1e6)),
    **dict.fromkeys(("start_offset_s", "clock_offset_s"), (-1e10, 1e10)),
    **dict.fromkeys(("segment_cpu_log_ratio", "segment_wall_log_ratio"), (-50, 50)),
    # Threads beside those that an execution reserves may add to the first ones.
    **dict.fromkeys(("eff_payload", "eff_job", "eff_access", "eff_loop"), (0, 1e4)),
    "client_cached_fraction": (0, 1),
    "exit_code": (0, 255),
    "exit_signal": (0, 64),
}


def _find_plausible_range(metric: Metric) -> Optional[Tuple[float, float]]:
    is_stated = metric.owner == "plan" or metric.type in ("text", "bool")
    return None if is_stated else _RANGES.get(metric.name, _RANGE_BY_UNIT.get(metric.unit))


CATALOGUE: Tuple[Metric, ...] = tuple(
    replace(
        metric,
        exact_in=tuple(mode for mode in ACCESS_MODES if metric.name in EXACT_COUNTERS[mode]),
        plausible_range=_find_plausible_range(metric),
        **_CONSTRAINTS.get(metric.name, {}),
    )
    for metric in _plan_metrics() + _WORKER_METRICS + _payload_metrics()
)
METRICS_BY_NAME: Dict[str, Metric] = {metric.name: metric for metric in CATALOGUE}

LONG_TEXT_METRICS = tuple(metric.name for metric in CATALOGUE if metric.max_length == MAX_LONG_TEXT)


def metrics_owned_by(owner: str) -> Tuple[Metric, ...]:
    """List the metrics that ``owner`` (one of :data:`METRIC_OWNERS`) writes, in catalogue order."""
    return tuple(metric for metric in CATALOGUE if metric.owner == owner)
