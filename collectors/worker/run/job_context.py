"""State shared by all executions of a job."""

from __future__ import annotations

import os
from typing import Any, ContextManager, Dict, List, NamedTuple, Optional, Protocol

from ....verticals import import_parts
from ...job_spec import JOB_MARK_VARIABLE, ExecutionSpec, JobSpec, LoadSpec
from ...process_stats import Cgroup
from ...record import node_needs
from ...record.outcome import Failure
from ..child_processes import StopSignals
from ..distance import JobDistance
from ..probes import credential_checks, node_state
from ..probes.node_check import check_node
from ..probes.storage_door import DoorWatch
from ..service_client import ServiceEndpoint

# A vertical brings the phases of an execution that is part of the load of many jobs.


class LoadStart(Protocol):
    """The start of an execution's load."""

    def require_rest_of_load(self) -> None:
        """Refuse to begin when the load of the other jobs is over.

        Raises:
            ExecutionError: the load is over.
        """

    def describe_for_payload(self) -> Dict[str, Any]:
        """Return the object ``load`` of the payload's job.json."""

    def values(self, began_us: Optional[int] = None) -> Dict[str, Any]:
        """Return the worker-owned values; ``began_us`` is the payload's own time of its start."""


class LoadReport(Protocol):
    """Reports of a running load to the batch system."""

    @property
    def is_possible(self) -> bool:
        """Whether the batch system takes reports of this execution."""

    def send_if_due(self) -> None:
        """Report the last step if it is a new one and the last report was long enough ago."""

    def end(self) -> None:
        """Withdraw the last report."""


class LoadPhases(Protocol):
    """A job's part in the load."""

    @property
    def is_watch(self) -> bool:
        """Whether this job watches a server instead of loading it."""

    def wait(self, execution: str, *, is_first: bool = True) -> LoadStart:
        """Wait until the payload of an execution is to be launched.

        Raises:
            ExecutionError: a stop signal arrived.
        """

    def withdraw(self, execution: str) -> None:
        """Announce that an execution failed before its start, so that no job waits for it."""

    def announce_end(self, execution: str) -> None:
        """Announce that a job which loads has ended an execution, to those that watch."""

    def watching_end(self, execution: str, path: str) -> ContextManager[None]:
        """Let a file appear as soon as all jobs that load have ended, while the block runs."""

    def open_report(self, folder: str, attempt: int) -> LoadReport:
        """Open the reports of an execution, whose payload runs in a folder."""


def open_phases(
    load: Optional[LoadSpec],
    job_folder: str,
    endpoint: Optional[ServiceEndpoint],
    signals: StopSignals,
) -> Optional[LoadPhases]:
    """Open the phases of a job; None for one that is no part of a load."""
    if load is None:
        return None
    for part in import_parts("worker"):
        phases: LoadPhases = part.open_phases(load, job_folder, endpoint, signals)
        return phases
    return None


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
            self.base_env, os.path.abspath(job_folder), os.path.join(self.work, "authorities")
        )
        for folder in (self.work, *(os.path.join(output, name) for name in ("logs", "records"))):
            os.makedirs(folder, exist_ok=True)
        doors = dict.fromkeys(
            spec.files[0].url if spec.files else job.door_url_of(spec) for spec in job.executions
        )
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
