"""Loading of ``job.json``, and the state shared by all executions of the job.

All errors of ``job.json`` are found before anything runs.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ...job_spec import (
    EXECUTION_KINDS,
    JOB_MARK_VARIABLE,
    PAIRED,
    SIDES,
    SOLO,
    ExecutionSpec,
    JobSpec,
    PayloadSpec,
)
from ...json_documents import DocumentError
from ...record import node_needs
from ...record.measurement_record import describe_value_error, find_extra_problems
from ...record.metric_catalogue import (
    INSTRUMENT_VERSION,
    METRICS_BY_NAME,
    RECORD_VERSION,
    metrics_owned_by,
)
from ...record.outcome import Failure
from ...software.providers import RUNNABLE_PAYLOAD_KINDS
from ..child_processes import StopSignals
from ..distance import JobDistance
from ..probes import credential_checks, node_state
from ..probes.node_check import check_node
from ..probes.process_stats import Cgroup
from ..probes.storage_door import DoorWatch
from .load_phases import LoadPhases

#: Plan-owned values that the worker fills in.
_WORKER_FIELDS = ("measurement_id", "attempt")
#: Plan-owned values that every execution must have.
_REQUIRED_IDENTITY = tuple(
    metric.name
    for metric in metrics_owned_by("plan")
    if metric.required and metric.name not in _WORKER_FIELDS
)


class JobFileError(Exception):
    """Invalid ``job.json``; the message names file, key and remedy."""


def load_job(path: str) -> JobSpec:
    """Read and check ``job.json``.

    Raises:
        JobFileError: the file cannot be read, or has errors.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            job = JobSpec.from_json(stream.read())
        problems: Sequence[str] = _find_value_errors(job)
    except OSError as error:
        raise JobFileError(f"{path}: cannot be read ({error.strerror})") from error
    except DocumentError as error:
        problems = error.problems
    except ValueError as error:
        raise JobFileError(
            f"{path}: {error}\n  Plan the job again with this Treehammer."
        ) from error
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise JobFileError(
            f"{path}: cannot be run; plan the job again with this Treehammer\n{lines}"
        )
    return job


def _find_value_errors(job: JobSpec) -> List[str]:
    problems = _find_payload_errors(job.payload, "payload")
    if not job.executions:
        problems.append("executions: must not be empty")
    if job.load and not (0 <= job.load.index < job.load.participants and job.load.step_s > 0):
        problems.append("load: index must be below jobs, and step_s above 0")
    positions = set()
    for index, spec in enumerate(job.executions):
        key = f"executions[{index}]"
        if (spec.round, spec.position) in positions:
            problems.append(f"{key}: round {spec.round}, position {spec.position} occurs twice")
        positions.add((spec.round, spec.position))
        if spec.payload:
            problems += _find_payload_errors(spec.payload, f"{key}.payload")
        wrong = (
            _find_spec_errors(spec)
            + _find_identity_errors(spec.identity)
            + _find_contradictions(spec)
        )
        problems += [f"{key}.{text}" for text in wrong]
    problems += _find_launch_errors(job.executions)
    return problems


def _find_payload_errors(payload: PayloadSpec, key: str) -> List[str]:
    problems = []
    if payload.kind not in RUNNABLE_PAYLOAD_KINDS:
        problems.append(
            f"{key}.kind: unknown value {payload.kind!r}; "
            f"expected one of {', '.join(RUNNABLE_PAYLOAD_KINDS)}"
        )
    names = dict.fromkeys(payload.metrics, 0.0)
    return problems + [f"{key}.metrics: {text}" for text in find_extra_problems(names)]


def _find_launch_errors(specs: Sequence[ExecutionSpec]) -> List[str]:
    sides: Dict[int, List[str]] = {}
    for spec in specs:
        if spec.mode == PAIRED:
            sides.setdefault(spec.round, []).append(spec.side)
    return [
        f"executions: round {round_} is a launch and must hold the sides A and B alone"
        for round_, launch_sides in sides.items()
        if sorted(launch_sides) != list(SIDES)
    ]


def _find_spec_errors(spec: ExecutionSpec) -> List[str]:
    problems = []
    for name in ("round", "position", "passes"):
        value = getattr(spec, name)
        if value < 1:
            problems.append(f"{name}: must be at least 1, not {value}")
    if spec.kind not in EXECUTION_KINDS:
        problems.append(
            f"kind: unknown value {spec.kind!r}; expected one of {', '.join(EXECUTION_KINDS)}"
        )
    if spec.mode not in (SOLO, PAIRED):
        problems.append(f"mode: unknown value {spec.mode!r}; expected one of {SOLO}, {PAIRED}")
    return problems


def _find_identity_errors(identity: Mapping[str, Any]) -> List[str]:
    problems = []
    for name, value in identity.items():
        metric = METRICS_BY_NAME.get(name)
        if metric is None or metric.owner != "plan" or name in _WORKER_FIELDS:
            problems.append(f"identity.{name}: must not be set by the plan")
        elif value is not None and describe_value_error(metric, value):
            problems.append(f"identity.{name}: {describe_value_error(metric, value)}")
    missing = (name for name in _REQUIRED_IDENTITY if identity.get(name) is None)
    return problems + [f"identity.{name}: is missing" for name in missing]


def _find_contradictions(spec: ExecutionSpec) -> List[str]:
    """Find identity values that contradict the execution or this worker."""
    expected = {
        "record_version": RECORD_VERSION,
        "instrument_version": INSTRUMENT_VERSION,
        "round": spec.round,
        "position": spec.position,
        "kind": spec.kind,
        "passes_planned": spec.passes,
    }
    return [
        f"identity.{name}: is {spec.identity[name]!r}; this worker requires {value!r}"
        for name, value in expected.items()
        if spec.identity.get(name, value) != value
    ]


# --- State of the job


def _find_address(job: JobSpec, spec: ExecutionSpec) -> str:
    """Find the URL of an execution's first file, or of its door; '' without any."""
    return spec.files[0].url if spec.files else job.door_url_of(spec)


class InstructionCount(NamedTuple):
    """How a program counts the instructions of the payload's last pass.

    Attributes:
        command: the program with its options, before the payload's command.
        environment: variables that make two runs alike.
        request: what the payload's job file says of it.
    """

    command: List[str]
    environment: Dict[str, str]
    request: Dict[str, Any]


class CompiledLoop(NamedTuple):
    """The libraries of a loop that a job tried to build before its payload starts.

    Attributes:
        folder: folder of the libraries, '' for none.
        loop_hash: hash of what the loop does, '' if unknown.
        fallback: reason for having none, '' where the test requires that.
    """

    folder: str = ""
    loop_hash: str = ""
    fallback: str = ""


class JobContext:
    """State shared by all executions of a job.

    Attributes:
        job: the whole job.
        job_folder: absolute folder of ``job.json``; the payload's folder is relative to it.
        output: absolute folder for ``logs/``, ``records/`` and, after failures, ``failed/``.
        work: absolute folder for temporary files, which is removed at the end of the job.
        kit: absolute folder of the payload kit.
        attempt: number of the attempt, from 1.
        signals: the worker's signals.
        doors: doors through which executions read.
        distance: brings about the distance of executions to their data.
        load: phases of a load test, whose executions start together; None for other tests.
        node: what the node has and lacks.
        builds: failures of the builds in folders, None for success.
        loops: compiled loops.
        count: count of instructions; None for a measurement.
    """

    def __init__(
        self,
        job: JobSpec,
        job_folder: str,
        output: str,
        kit: str,
        attempt: int,
        signals: StopSignals,
        load: Optional[LoadPhases] = None,
        count: Optional[InstructionCount] = None,
        work: str = "",
        service_url: str = "",
    ) -> None:
        self.load = load
        self.count = count
        self.work = os.path.abspath(work or os.path.join(output, "work"))
        self.distance = JobDistance(self.work)
        self.builds: Dict[str, Optional[Failure]] = {}
        self.loops: Dict[str, CompiledLoop] = {}
        self.job = job
        self.job_folder = job_folder
        self.output = output
        self.kit = kit
        self.attempt = attempt
        self.signals = signals
        self.doors = DoorWatch()
        self.cgroup = Cgroup()
        self.facts = node_state.collect_node_facts(self.cgroup)
        # Payloads must not see the worker's own settings, such as a database's password.
        self.base_env = {
            name: value
            for name, value in os.environ.items()
            if name == JOB_MARK_VARIABLE or not name.startswith("TREEHAMMER_")
        }
        credential_checks.resolve_credentials(self.base_env, os.path.abspath(job_folder))
        credential_checks.unpack_authorities(
            self.base_env,
            os.path.abspath(job_folder),
            os.path.join(self.work, "authorities"),
        )
        for folder in (self.work, *(os.path.join(output, name) for name in ("logs", "records"))):
            os.makedirs(folder, exist_ok=True)
        doors = dict.fromkeys(_find_address(job, spec) for spec in job.executions)
        self.node = check_node(job.site, self.work, self.base_env, self.cgroup, doors, service_url)
        self.facts["node_lacks"] = self.node.lack_names
        if node_needs.HOME in self.node.lacks:
            # Without one ROOT 6.40 crashes at its start.
            self.base_env["HOME"] = os.path.join(self.work, "home")
            os.makedirs(self.base_env["HOME"], exist_ok=True)

    def locate_payload(self, spec: Optional[ExecutionSpec] = None) -> str:
        """Return the folder with the test's files for an execution, by default those of the job."""
        payload = self.job.payload_of(spec) if spec else self.job.payload
        return os.path.join(self.job_folder, payload.folder)
