"""Interface of all batch systems, and the placeholder for external ones.

A batch system owns its queue and identifies jobs by *batch id*.  It accepts rendered descriptions,
reports the state of each job, returns output sandboxes, and cancels.  It knows nothing about tests,
variants or databases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.operation_steps import LoadProgress
from treehammer.errors import BatchError, ConfigError
from treehammer.extensions import ExtensionGroup, load_extension
from treehammer.verticals import VERTICALS, has_vertical

if TYPE_CHECKING:
    from treehammer.config import Settings

#: Maps a job id and its earlier inputs (name in the sandbox -> file) to its new inputs.
InputReplacement = Callable[[str, Mapping[str, Path]], Mapping[str, Path]]


class UnknownBatchSystemError(ConfigError):
    """No configuration defines the batch system of a job."""


@dataclass(frozen=True)
class JobDescription:
    """One rendered job, ready to be submitted.

    Attributes:
        job_id: Treehammer's id of the job; submitting it twice is harmless.
        text: the rendered submit description.
        inputs: name in the job's sandbox -> local file or folder to copy there.
        together: number of jobs, with this one, that wait for each other and need as many slots at
            once; 0 for none.
        wall_s: wall limit, as in the text; 0 for none.
        cpus: number of CPUs, as in the text.
    """

    job_id: str
    text: str
    inputs: Mapping[str, Path]
    together: int = 0
    wall_s: float = 0.0
    cpus: int = 1


class BatchEvent(StrEnum):
    """What a batch system did to a job that did not end by itself; failures are classified above."""

    HELD = "held"
    EVICTED = "evicted"
    LOST = "lost"
    #: No machine took it, or it was never queued.
    SUBMISSION = "submission"


@dataclass(frozen=True)
class Hold:
    """A hold of a job, in the words and codes of its batch system; without codes, they are None."""

    reason: str
    code: int | None = None
    subcode: int | None = None


@dataclass(frozen=True)
class AttemptStatus:
    """One execution of a job.

    Attributes:
        number: number of the attempt; numbers grow but may have gaps.
        state: ``RUNNING`` or final.
        started_us: microseconds since 1970 UTC, 0 = not started.
        ended_us: microseconds since 1970 UTC, 0 = not ended.
        exit_code: negative for a signal, None if unknown.
        reason: explanation if the attempt did not end by itself.
        event: what the batch system did if it ended the attempt.
        host: machine or slot, '' if unknown.
        hold: the hold that ended the attempt, if one did.
    """

    number: int
    state: JobState
    started_us: int
    ended_us: int
    exit_code: int | None
    reason: str
    event: BatchEvent | None = None
    host: str = ""
    hold: Hold | None = None


@dataclass(frozen=True)
class JobStatus:
    """State of one job and its attempts, oldest first.

    ``QUEUED`` with attempts means that the last one was lost and another will follow.
    ``event``, ``reason`` and ``hold`` state why a job is held, or was lost without a failed attempt.
    """

    batch_id: str
    state: JobState
    attempts: tuple[AttemptStatus, ...] = ()
    event: BatchEvent | None = None
    reason: str = ""
    hold: Hold | None = None


class BatchSite(Protocol):
    """Keys of a site that batch systems probe."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def requirements(self) -> str:
        """Expression that selects its machines."""

    @property
    def grid_resource(self) -> str:
        """Resource of HTCondor's grid universe."""

    @property
    def submit(self) -> Mapping[str, str]:
        """Additional submit commands."""


@dataclass(frozen=True)
class ProbeResult:
    """Result of one probe.

    Attributes:
        site: name of the site, or of the batch system.
        check: probed component, e.g. ``door root``.
        result: ``ok``, ``failed`` or ``skipped``.
        finding: observation or problem.
        remedy: how to solve the problem.
        server: software and version that the server reports.
        rtt_s: shortest of several TCP connects in seconds; None if there was none.
    """

    site: str
    check: str
    result: str
    finding: str
    remedy: str = ""
    server: str = ""
    rtt_s: float | None = None


PROBE_OK, PROBE_FAILED, PROBE_SKIPPED = "ok", "failed", "skipped"


def run_probe(site: str, check: str, probe: Callable[[], str]) -> ProbeResult:
    """Return what a probe finds, in one line, or the problem that it meets."""
    try:
        return ProbeResult(site, check, PROBE_OK, ", ".join(probe().splitlines()))
    except BatchError as error:
        return ProbeResult(site, check, PROBE_FAILED, error.message, error.hint)


class BatchSystem(Protocol):
    """Operations that submission and tracking need; by default a batch system holds and removes nothing."""

    name: str

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Queue the jobs in this order and return job id -> batch id.

        Raises:
            treehammer.errors.BatchError: nothing was queued.
        """
        ...

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Return job id -> batch id of queued jobs, e.g. after the submitter was killed."""
        return {}

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """Return the status of each known job.

        Raises:
            treehammer.errors.BatchError: the batch system does not answer.
        """
        return {}

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Return attempt -> output folder (records/, logs/, attempt.json), as far as it has arrived."""
        return {}

    def list_campaigns(self) -> Collection[str]:
        """List the campaigns whose jobs have their files on this machine."""
        return ()

    def read_load_steps(self, batch_ids: Iterable[str]) -> Sequence[LoadProgress]:
        """Return the last time step of each of the jobs that loads now, as far as it is known here.

        Nothing is asked of a server: :meth:`query` has received what there is.
        """
        return ()

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Cancel jobs that are not final and return their number."""
        ...

    def release(self, batch_ids: Iterable[str]) -> int:
        """Release held jobs and return their number."""
        return 0

    def hold(self, batch_ids: Iterable[str], reason: str) -> None:
        """Hold those of the jobs that wait in the queue; without support nothing happens."""
        return

    def release_held(self, batch_ids: Iterable[str], reason: str) -> bool:
        """Release jobs held by :meth:`hold` for a reason with this text; return whether there were any."""
        return False

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Queue final jobs again with their description; a second call queues nothing.

        Args:
            earlier: batch id -> number of the job's last attempt; the next attempt continues from there.
            inputs: gives the new inputs of a job.

        Returns:
            Old batch id -> new one, of the jobs that this batch system can requeue.

        Raises:
            treehammer.errors.BatchError: not all were queued.
        """
        return {}

    def explain_waiting(self, batch_ids: Iterable[str]) -> Sequence[str]:
        """Explain why these jobs make no progress, beside holds, a line each; empty if nothing prevents it."""
        return ()

    def probe(self, sites: Sequence[BatchSite]) -> Iterable[ProbeResult]:
        """Probe its servers and credentials, and whether jobs of these sites would find a machine."""
        return ()

    def describe(self, campaign_id: str, jobs: Sequence[JobDescription]) -> str:
        """Return the text that it would receive for jobs with one description."""
        return jobs[0].text

    def stage(self, campaign_id: str, jobs: Sequence[JobDescription], folder: Path) -> None:
        """Write jobs with one description below a folder, from which they can be queued by hand.

        Raises:
            treehammer.errors.BatchError: it cannot.
        """
        raise BatchError(f"{self.name} cannot write jobs without queueing them")

    def purge(self, batch_ids: Iterable[str]) -> int:
        """Remove final jobs with their sandboxes and return the freed bytes.

        Submissions are removed only as a whole.

        Raises:
            treehammer.errors.BatchError: a folder cannot be removed.
        """
        return 0


#: Loads the tables [pools.NAME] of the sites file.
LoadPools = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class BatchDeclaration:
    """A batch system: ``BATCH`` of ``NAME_batch`` here, in a folder or vertical NAME, or an entry point.

    Attributes:
        open: opens it by the part of its name after '@'.
        template: renders a description, with the variables of ``local.job.j2``, and the ``site`` and
            ``limits``.
        filters: quoting filters of the template.
        is_per_cluster: whether one description, with the variables of ``htcondor.sub.j2``, serves
            all jobs of a cluster; otherwise each job has its own.
        script_name: file name of a job's description; that of the template by default.
        find_limits: returns its own ``limits`` for the template of jobs with a wall limit.
        check_text: checks a rendered description, named for messages.
        check_command: checks a key of a site's ``submit``, with its value and all keys.
    """

    open: Callable[[str, Settings, LoadPools], BatchSystem]
    template: Path
    filters: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    is_per_cluster: bool = False
    script_name: str = ""
    find_limits: Callable[[int], Mapping[str, Any]] = lambda wall_s: {}
    check_text: Callable[[str, str], None] = lambda text, where: None
    check_command: Callable[[str, str, Iterable[str]], None] = lambda name, value, names: None


@cache
def find_batch(name: str) -> BatchDeclaration:
    """Return the declaration of ``NAME@ARGUMENT``.

    Raises:
        UnknownBatchSystemError: neither a shipped module nor an installed package declares it.
        ConfigError: the package's module cannot be imported.
    """
    kind = name.partition("@")[0]
    package = __package__
    if kind.isidentifier() and (Path(__file__).with_name(kind) / "__init__.py").is_file():
        package = f"{__package__}.{kind}"
    elif kind in VERTICALS and has_vertical(kind):
        package = f"treehammer.{kind}"
    module = f"{package}.{kind}_batch"
    declaration: BatchDeclaration | None = (
        import_module(module).BATCH
        if kind.isidentifier() and find_spec(module)
        else load_extension(ExtensionGroup.BATCH_SYSTEMS, kind)
    )
    if declaration is None:
        verticals = filter(has_vertical, VERTICALS)
        shipped = [part for part in verticals if find_spec(f"treehammer.{part}.{part}_batch")]
        names = ", ".join(["local", "htcondor@POOL", *shipped])
        raise UnknownBatchSystemError(
            f"unknown batch system {name!r}",
            hint=f"Known: {names}, and those of installed packages.",
        )
    return declaration


class ExternalBatch(BatchSystem):
    """Placeholder for a batch system that this installation cannot reach; it refuses what has jobs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Refuse jobs; no site uses this batch system."""
        return self.requeue({job.job_id: 0 for job in jobs}, lambda _, inputs: inputs)

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Refuse unless ``batch_ids`` is empty."""
        if any(True for _ in batch_ids):
            raise ConfigError(
                "these jobs were submitted from another installation, which follows them",
                hint="Run the command there, with the former data_dir and submit_dir. If these are gone, "
                "remove the jobs by the batch system's own command.",
            )
        return 0

    release = cancel

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Refuse unless ``earlier`` is empty."""
        self.cancel(earlier)
        return {}
