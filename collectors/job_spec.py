"""Jobs: the description that a job receives, the results service it reports to, and its states.

The batch system passes these files to the worker::

    job.json          the executions of a job
    service.json      URL for measurements, and how long a job waits for an answer
    service-ca.pem    certificate authorities that sign the service's, unless the node knows them
    service-token     accepted for measurements of this job only

``submit`` builds a :class:`JobSpec` and writes it; the worker reads it on the node.
All files but ``job.json`` are optional: the batch system returns a job's measurements in any case.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from .json_documents import format_json, load_json, parse_document

#: Version of the layout of ``job.json``; the worker refuses others.
JOB_FORMAT = 1
#: Version of the layout of the payload's own ``job.json``, which the worker writes.
PAYLOAD_JOB_FORMAT = 1

#: Value of ``loop_compiler`` where ROOT's interpreter compiled the loop, as the kit writes it.
CLING = "cling"
#: Start of the value of the axis ``root`` of software that has uproot and no ROOT.
UPROOT_SOFTWARE = "pypi:uproot"
#: Kinds of executions: a measured one, an untimed one that hashes the values read, and either half
#: of an A/A launch, which measures the method alone.
EXECUTION_KINDS = TIMED, CHECKSUM, CONTROL = "timed", "checksum", "control"
#: Kind of a trial that ends before the payload opens a file. Nothing is recorded.
COMPILE = "compile"
#: Kind of the reads before an execution with the axis ``server_cache``. Nothing is recorded.
PRIME = "prime"
#: Metric by which a payload confirms these: the share of the entries that it read.
PRIMED_SHARE = "primed_share"

#: Modes of executions: undisturbed, taking turns with another one, and meant to take turns but run
#: alone, since the payload does not support turns.  A plan requests one of the first two.
RUN_MODES = SOLO, PAIRED, SEQUENTIAL = "solo", "paired", "sequential"

#: Sides of a launch; the first is the base.
SIDES = BASE_SIDE, OTHER_SIDE = "A", "B"

#: How a job's load began: at the common start, after it, or without one.
START_STATES = TOGETHER, LATE, ALONE = "together", "late", "alone"

#: Seconds within which all jobs should really start, as in study S4; a later job is late.
MAX_START_SPREAD_S = 0.25

#: CPU seconds of the loops on either side of a job in solo mode, at least: verdicts on times demand
#: them.  Below, the steps of the clocks and the start of each loop weigh too much; the spread of A/A
#: jobs with 1 s of CPU on a side is 1.7 % and falls to 0.6 % at 4 s.
MIN_CPU_S = 2.0

#: The same of a launch, which reads until each side has collected them.  Turns leave the start out, and
#: differences between two starts of a process outweigh the gain of a longer launch: launches of
#: 0.8 and 1.6 s of CPU on a side scatter by 0.82 and 0.67 %, but five of the former take less time
#: than three of the latter and have an interval half as wide.
MIN_LAUNCH_CPU_S = 0.75

#: Variable that every process of a job inherits; the batch system finds the processes by its value.
JOB_MARK_VARIABLE = "TREEHAMMER_BATCH_JOB"
#: Folder of the libraries of compiled loops, beside the environments of releases or in the job's output,
#: and a variable of jobs on this machine that names one for all of them.
LOOPS_FOLDER, SHARED_LOOPS_VARIABLE = "loops", "TREEHAMMER_SHARED_LOOPS"

#: Exit code of a worker that the node stopped, for example by a full disk: another attempt may
#: succeed.  (EX_TEMPFAIL of sysexits.h.)
RETRY_EXIT_CODE = 75

#: Exit code of a worker that cannot run on the node, for a reason in its last line: it lacks Python, or
#: a folder to write to.  (EX_CONFIG of sysexits.h.)
NODE_EXIT_CODE = 78

Scalar = Union[str, int, float, bool]


@dataclass(frozen=True)
class InputFile:
    """One file of a dataset as seen through one door.

    ``url`` is the address that ROOT opens; ``size`` in bytes and ``adler32`` (8 hex digits) come
    from the dataset's manifest.
    """

    name: str
    url: str
    size: int
    adler32: str


@dataclass(frozen=True)
class SoftwareRequest:
    """The requested ROOT.

    ``provider`` is ``wheel``, ``path``, ``cvmfs``, ``wrap``, ``xrootd``, ``current`` or ``none``.  ``version``
    is the version that gROOT must report, '' for any.  ``location`` is the provider's starting
    point: the cached environment of a wheel (filled in at planning), the build tree or folder of
    thisroot.sh of a path, the folder below the mount of CVMFS, the command prefix of a wrap.
    """

    request: str
    provider: str
    version: str
    location: str


def total_cpu_s(pass_cpu_s: float, passes: int) -> float:
    """Compute the CPU seconds that count against the least ones, to the nanosecond.

    They are those of the median pass times the number of counted passes, which every record holds:
    a single disturbed pass adds nothing.
    """
    return round(pass_cpu_s * passes, 9)


#: The axis whose values are numbers of threads.
THREADS_AXIS = "threads"


#: Axes of the distance to the data's origin: round trip in ms, and rate in Mbit/s (0: no limit).
LATENCY_AXIS, BANDWIDTH_AXIS = "latency_ms", "bandwidth_mbit"
#: The largest values of these axes; links and proxies accept no more.
MAX_LATENCY_MS, MAX_BANDWIDTH_MBIT = 10_000, 100_000


def count_threads(kind: str, variant: Mapping[str, Scalar]) -> int:
    """Count the threads of an execution, and the CPUs that it needs; a checksum has one."""
    return 1 if kind == CHECKSUM else int(variant.get(THREADS_AXIS, 1))


@dataclass(frozen=True)
class ServerCommand:
    """A command that applies settings of a server before each execution.

    ``command`` is a file of the test.  ``settings`` maps the axes that it applies to the values that
    it leaves behind at the end of the job.
    """

    command: str
    settings: Mapping[str, Scalar]
    timeout_s: float


#: Axis with the state of the cache behind a door before an execution, and its values.
SERVER_CACHE_AXIS = "server_cache"
SERVER_CACHE_STATES = COLD, HALF, WARM = "cold", "half", "warm"


@dataclass(frozen=True)
class ServerCache:
    """The cache behind a door, as far as jobs can empty it and read its counts.

    ``evict`` is a command that removes one file from it, run on the node with ``{server}``, ``{path}``
    and ``{url}`` filled in.  ``files`` is its folder as jobs see it, with a ``.cinfo`` beside each file;
    '' if they cannot.  ``monitor`` is the HOST:PORT on the node to which it sends its ``pfc`` stream;
    '' for none.
    """

    evict: str
    files: str = ""
    monitor: str = ""


@dataclass(frozen=True)
class BuildCommand:
    """A command that builds libraries of the test on the node, once for each ROOT of a job.

    ``command`` is a file of the test, run in a copy of the test's folder, where it leaves the files
    ``outputs``.  Those in ``preload`` are loaded into the payload before all others.
    """

    command: str
    outputs: Tuple[str, ...]
    preload: Tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True)
class PayloadSpec:
    """The test's own files: ``kind`` is ``python``, ``macro``, ``executable`` or ``command``.

    ``folder`` is relative to job.json; ``entry`` is relative to ``folder``.  ``settings`` is the
    test's ``[settings]`` table, passed on unchanged.  ``metrics`` declares metrics that the payload
    may report beyond the catalogue: name -> {"unit", "better", "description"}.  ``environment``
    holds further variables; ``{axis}`` in a value stands for the variant's value.  ``record`` asks
    for a recording of the XRootD client.  ``before`` applies settings of a server, None for none.
    ``libraries`` are loaded and ``imports`` imported before a file is opened.  ``build`` builds
    libraries on the node, None for none.
    """

    kind: str
    entry: str
    folder: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    record: bool = False
    before: Optional[ServerCommand] = None
    libraries: Tuple[str, ...] = ()
    imports: Tuple[str, ...] = ()
    build: Optional[BuildCommand] = None


@dataclass(frozen=True)
class ExecutionSpec:
    """One execution of one variant, as requested of the payload.

    ``identity`` holds the plan-owned catalogue values of the measurement except
    ``measurement_id`` and ``attempt``, which only the worker knows.

    Two executions of one round with ``mode`` ``paired`` form a launch.  The one at position 1 begins;
    ``side`` is ``A`` for the base and ``B`` for the other.

    ``unreadable_branches`` are those that ROOT cannot read, as the dataset's manifest lists them;
    ``missing_branches`` are those that not all files have, which no test reads.
    ``door_url`` is the address of its door where a job reads through several, '' for the job's own.
    ``payload`` is its payload where a job compares commits of the test, None for the job's own.
    ``server_cache`` is the cache behind its door, None for none.
    ``origin`` is the address of the server behind a cache, and ``link`` the control of the link before
    the data's origin, '' for none.
    ``netem`` permits the job to delay its node's traffic with the door instead of using a proxy.
    """

    round: int
    position: int
    kind: str
    variant: Mapping[str, Scalar]
    software: SoftwareRequest
    files: Tuple[InputFile, ...]
    tree: str
    passes: int
    seed: int
    identity: Mapping[str, Any]
    mode: str = SOLO
    side: str = ""
    unreadable_branches: Tuple[str, ...] = ()
    missing_branches: Tuple[str, ...] = ()
    door_url: str = ""
    payload: Optional[PayloadSpec] = None
    server_cache: Optional[ServerCache] = None
    origin: str = ""
    link: str = ""
    netem: bool = False

    @property
    def threads(self) -> int:
        """Number of threads, and of CPUs that the execution needs."""
        return count_threads(self.kind, self.variant)


@dataclass(frozen=True)
class ExecutionLimits:
    """Bounds of one execution; 0 means none."""

    wall_s: float
    memory_bytes: int


#: Seconds beyond the waiting limit for which a job without an answer waits for the start of its load.
START_PATIENCE_S = 60.0


@dataclass(frozen=True)
class LoadSpec:
    """The part of a job in the load that several jobs bring about together.

    ``index`` counts the ``jobs`` jobs from 0.  ``barrier`` names the start that they share, '' if
    each starts at once.  They meet in ``folder``, relative to job.json, or at the results service
    if it is ''.  ``wait_s`` bounds the wait for jobs that are missing.  The payload is launched
    ``lead_s`` before its start, which is ``level_start_s`` after the common one.  Operations count
    in steps of ``step_s`` from the common start; the load ends ``duration_s`` after it.
    ``writable`` is the URL of an area for writing, '' for none.  Beside these jobs ``watchers`` others
    watch the servers; their indices follow.  This job may send at most ``max_opens_per_s`` opens and
    ``max_mb_per_s`` 10^6 bytes per second by ``max_clients`` clients: its share of the load that the
    door permits; 0 for no bound.
    """

    index: int
    jobs: int
    barrier: str
    folder: str
    wait_s: float
    lead_s: float
    level_start_s: float
    step_s: float
    duration_s: float
    writable: str = ""
    watchers: int = 0
    max_opens_per_s: float = 0.0
    max_clients: int = 0
    max_mb_per_s: float = 0.0

    @property
    def participants(self) -> int:
        """Number of the jobs that start together, those that watch included."""
        return self.jobs + self.watchers

    @property
    def is_watch(self) -> bool:
        """Whether this job watches a server instead of loading it."""
        return self.index >= self.jobs

    @property
    def first_step(self) -> int:
        """Step at which this job's level of the ramp begins."""
        return round(self.level_start_s / self.step_s)

    def longest_wait_s(self, executions: int) -> float:
        """Return the longest time that a job spends before its loads; 0 without a barrier."""
        if not self.barrier:
            return 0.0
        each_s = self.wait_s + START_PATIENCE_S + self.level_start_s + self.lead_s
        return executions * each_s + (executions - 1) * self.duration_s


@dataclass(frozen=True)
class JobSpec:
    """One job: executions that run one after the other on the same slot.

    The door belongs to ``storage_site``, '' for ``site`` itself.  ``door_url`` is the door's own
    address, '' if only those of files are known.
    """

    campaign_id: str
    job_id: str
    site: str
    door: str
    payload: PayloadSpec
    limits: ExecutionLimits
    executions: Tuple[ExecutionSpec, ...]
    load: Optional[LoadSpec] = None
    format: int = JOB_FORMAT
    storage_site: str = ""
    door_url: str = ""

    def door_of(self, execution: ExecutionSpec) -> str:
        """Return the name of the door through which an execution reads."""
        return str(execution.identity.get("door", self.door))

    def door_url_of(self, execution: ExecutionSpec) -> str:
        """Return the address of the door through which an execution reads."""
        return execution.door_url or self.door_url

    def payload_of(self, execution: ExecutionSpec) -> PayloadSpec:
        """Return the payload of an execution."""
        return execution.payload or self.payload

    def to_json(self) -> str:
        """Serialize to the text of ``job.json``."""
        return format_json(self, indent=1, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Read ``job.json``.

        Raises:
            ValueError: not JSON, or another format.
            DocumentError: a value has another type, or a key is missing or unknown.
        """
        document = load_json(text)
        if not isinstance(document, dict) or document.get("format") != JOB_FORMAT:
            raise ValueError(f"job.json: format {JOB_FORMAT} expected")
        return parse_document(cls, document)

    def view_for_payload(self, execution: ExecutionSpec) -> Dict[str, Any]:
        """Return the document of the payload's own ``job.json``, as far as the job determines it."""
        payload = self.payload_of(execution)
        return {
            "format": PAYLOAD_JOB_FORMAT,
            "execution": asdict(replace(execution, payload=None)),
            "settings": dict(payload.settings),
            "metrics": list(payload.metrics),
            "libraries": list(payload.libraries),
            "imports": list(payload.imports),
            "door_url": self.door_url_of(execution),
        }


#: Version of the layout of ``service.json``; the worker refuses others.
SERVICE_FORMAT = 1

#: Names of the files beside ``job.json``.
SERVICE_FILE, CA_FILE, TOKEN_FILE = "service.json", "service-ca.pem", "service-token"

#: Environment variable with a key or token, in place of a file.
TOKEN_VARIABLE = "TREEHAMMER_SERVICE_TOKEN"  # noqa: S105 - the name of a variable

#: Path of the API below a service's URL.
API_PREFIX = "/api/v1"
#: Path that accepts measurements.
MEASUREMENTS_PATH = f"{API_PREFIX}/measurements"
#: Path at which jobs that start together agree on the instant.
STARTS_PATH = f"{API_PREFIX}/starts"
#: Members of its answer: the service's clock, the instant (null while jobs are missing), the jobs
#: that were present when it was set, and the seconds until the next request.
START_ANSWER_KEYS = ("time_us", "start_us", "present", "poll_s")
#: Path at which submitting clients register a campaign.
CAMPAIGNS_PATH = f"{API_PREFIX}/campaigns"

#: Seconds in total that a job spends on an unresponsive service.
DEFAULT_WAIT_S = 60.0

#: Content of the token's file when nothing is submitted, as in ``treehammer render``.
TOKEN_PLACEHOLDER = "(a token is minted for each job when it is submitted)\n"  # noqa: S105 - a text, no secret

#: Usual proxy variables -> variables that only the worker reads.  A payload that reads over HTTP
#: must not use a proxy that exists for the service alone.
PROXY_VARIABLES = {"https_proxy": "TREEHAMMER_HTTPS_PROXY", "no_proxy": "TREEHAMMER_NO_PROXY"}

#: State of the records beside it, see :mod:`treehammer.collectors.worker.outbox`.
OUTBOX_FILE = "outbox.json"


@dataclass(frozen=True)
class ServiceSpec:
    """A results service: its URL, and the seconds that a job spends on it without an answer."""

    url: str
    wait_s: float = DEFAULT_WAIT_S
    format: int = SERVICE_FORMAT

    def to_json(self) -> str:
        """Serialize to the text of ``service.json``."""
        return format_json(self, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ServiceSpec:
        """Read ``service.json``.

        Raises:
            ValueError: not JSON, another format, or a value is wrong.
        """
        document = load_json(text)
        if not isinstance(document, dict) or document.get("format") != SERVICE_FORMAT:
            raise ValueError(f"unknown format; expected {SERVICE_FORMAT}")
        spec = parse_document(cls, document)
        if not spec.url.startswith(("https://", "http://")):
            raise ValueError("url: must begin with https://")
        if not spec.wait_s >= 1:
            raise ValueError("wait_s: must be a number of seconds, at least 1")
        return spec


class JobState(Enum):
    """State of a job, the same for all batch systems."""

    QUEUED = "queued"
    RUNNING = "running"
    HELD = "held"
    DONE = "done"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended for good."""
        return self in (JobState.DONE, JobState.CANCELLED, JobState.LOST)


#: Values of the final states and of the others, as they are stored and sent.
FINAL_JOB_STATES = frozenset(state.value for state in JobState if state.is_final)
OPEN_JOB_STATES = tuple(state.value for state in JobState if not state.is_final)


#: The batch system of the submitting machine, and the name of its site.
LOCAL_BATCH = "local"
#: Prefix of an HTCondor pool's name.
HTCONDOR_PREFIX = "htcondor@"
#: Prefix of a batch system whose jobs another installation submitted and tracks.
EXTERNAL_PREFIX = "external@"
