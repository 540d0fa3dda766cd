"""Attempts of jobs: record files in their sandboxes, causes of their ends, and rows for the store.

An attempt counts as complete if its measurements are in the store or in a sandbox, even if the batch
system lost it.  Invalid record files are set aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from treehammer.analysis.status import failure_causes
from treehammer.analysis.status.failure_causes import FailureCause
from treehammer.collectors.job_spec import NODE_EXIT_CODE, JobState
from treehammer.collectors.record.measurement_record import MAX_RECORD_BYTES, Measurement
from treehammer.collectors.shared_files import IrregularFileError, read_file_end, read_regular_file
from treehammer.sql.core.rows import AttemptRow, JobRow
from treehammer.sql.write.quality_flags import require_unflagged
from treehammer.submit.batch.interface import (
    AttemptStatus,
    BatchEvent,
    BatchSystem,
    Hold,
    JobStatus,
)
from treehammer.submit.batch.job_folders import read_report

#: Folder of an attempt for invalid files from its records folder.
REJECTED_FOLDER = "rejected-records"
#: Exit codes of a worker that cannot run on its node; a shell ends with the latter two where it cannot
#: start the program of a site's own template.
_NODE_EXIT_CODES = (NODE_EXIT_CODE, 126, 127)
#: Characters of the worker's error output in the message of a lost attempt.
MESSAGE_TAIL_CHARS = 500
_MAX_ERROR_BYTES = 10_000
#: Start of the message of an attempt with an invalid record file.
INVALID_RECORD = "not a record"
#: Start of the message of a failed attempt whose measurements are all stored.
ALL_MEASUREMENTS_STORED = "all its measurements arrived"
#: (Job id, number of the attempt) -> number of its measurements in the store.
RecordedCounts = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class RejectedFile:
    """An invalid file among the records of an attempt, moved to ``path``."""

    job_id: str
    attempt: int
    path: Path
    reason: str


@dataclass(frozen=True)
class CollectResult:
    """Result of a collection: numbers of new and already known measurements.

    ``conflicting`` are ids of records whose content differs from the stored one, which is kept.
    """

    new: int
    existing: int
    conflicting: tuple[str, ...]
    rejected: tuple[RejectedFile, ...]

    def describe_rejections(self) -> list[str]:
        """Return a line for each rejected file or record."""
        conflict = "differs from the stored measurement, which is kept"
        return [
            *(f"not a record ({file.reason}): {file.path}" for file in self.rejected),
            *(f"{identity} {conflict}" for identity in self.conflicting),
        ]


def list_record_files(sandbox: Path) -> list[Path]:
    """List the complete records in a sandbox; none behind a link, which could lead anywhere."""
    folder = sandbox / "records"
    return [] if folder.is_symlink() else sorted(folder.glob("*.json"))


def read_record(
    path: Path, job: JobRow, attempt: int, rejected: list[RejectedFile]
) -> Measurement | None:
    """Read a record that the service would accept as well; set any other file aside.

    While the job may still run, an invalid file stays: HTCondor writes outputs in place, so the file
    may be incomplete.

    Args:
        path: the file.
        job: the job that must own the record.
        attempt: number of its attempt.
        rejected: receives an invalid file.

    Returns:
        The record; None for an invalid, incomplete or vanished file.
    """
    try:
        measurement = Measurement.from_json(read_regular_file(path, MAX_RECORD_BYTES))
        owner = (measurement.values["campaign_id"], measurement.values["job_id"])
        if owner != (job.campaign_id, job.id):
            raise ValueError(f"belongs to campaign {owner[0]}, job {owner[1]}")
        require_unflagged(measurement)
        return measurement
    except FileNotFoundError:
        pass  # another collection has just moved it
    except (IrregularFileError, ValueError) as error:
        if JobState(job.state).is_final:
            reason = getattr(error, "strerror", "") or str(error)
            folder = path.parent.parent / REJECTED_FOLDER
            with suppress(OSError):  # it stays where a job has barred its way
                folder.mkdir(exist_ok=True)
                path = path.rename(folder / path.name)
            rejected.append(RejectedFile(job.id, attempt, path, reason))
    return None


def make_lost_job(job: JobRow, failure_class: str, message: str) -> tuple[JobRow, AttemptRow]:
    """Return a lost job and the attempt that holds the reason."""
    lost = JobState.LOST.value
    attempt = AttemptRow(job.id, 1, lost, 0, 0, None, failure_class, message)
    return replace(job, state=lost), attempt


def update_unknown_job(
    job: JobRow, attempts: Mapping[tuple[str, int], AttemptRow], *, may_be_queued: bool
) -> tuple[JobRow, list[AttemptRow]]:
    """Return a job that its batch system does not know as lost, unless it may still be queued."""
    if JobState(job.state).is_final or (may_be_queued and not job.batch_id):
        return job, []
    failure_class, message = "lost", f"{job.batch_system} no longer knows {job.batch_id}"
    if not job.batch_id:
        failure_class, message = "submission", "the submission ended before this job was queued"
    lost, attempt = make_lost_job(job, failure_class, message)
    numbers = [number for owner, number in attempts if owner == job.id and job.batch_id]
    if numbers:
        last = attempts[job.id, max(numbers)]
        attempt = replace(attempt, number=last.number, started_us=last.started_us)
    return lost, [attempt]


def clear_recovered_failures(
    job: JobRow, attempts: Sequence[AttemptRow], recorded: RecordedCounts
) -> tuple[JobRow, list[AttemptRow]]:
    """Clear the failures of attempts that completed all measurements, according to the store.

    A lost job becomes done if its last attempt is one of them.

    Args:
        job: as reported by its batch system.
        attempts: all its attempts, by number.
        recorded: numbers of stored measurements that were not interrupted.
    """
    cleared, whole = [], False
    for attempt in attempts:
        is_complete = recorded.get((job.id, attempt.number), 0) >= job.planned_measurements
        # An attempt that never started, or had nothing left to do as HTCondor starts a job again whose
        # end it could not log, leaves the job as complete as the one before.
        is_idle = not attempt.started_us or attempt.exit_code == 0
        whole = is_complete or (whole and is_idle)
        if whole and attempt.failure_class and not attempt.message.startswith(INVALID_RECORD):
            message = f"{ALL_MEASUREMENTS_STORED}: {attempt.message}"
            cleared.append(replace(attempt, failure_class="", message=message))
        else:
            cleared.append(attempt)
    lost = job.state == JobState.LOST.value
    return (replace(job, state=JobState.DONE.value) if lost and whole else job), cleared


def build_attempt_rows(
    job: JobRow,
    status: JobStatus,
    batch: BatchSystem,
    attempts: Mapping[tuple[str, int], AttemptRow],
) -> list[AttemptRow]:
    """Build the attempt rows of a job; stored rows without changes are reused."""
    stored_rows = [attempts.get((job.id, item.number)) for item in status.attempts]
    if not status.state.is_final and all(map(_is_unchanged, status.attempts, stored_rows)):
        return list(filter(None, stored_rows))
    sandboxes = batch.sandboxes(job.batch_id) if status.attempts else {}
    rows = []
    for item in status.attempts:
        explanation = _explain_attempt(job, item, sandboxes.get(item.number))
        end = (item.started_us, item.ended_us, item.exit_code)
        rows.append(AttemptRow(job.id, item.number, item.state.value, *end, *explanation))
    if not rows and status.state is JobState.LOST:
        failure_class, reason = explain_end(status)
        _, row = make_lost_job(job, failure_class or BatchEvent.LOST, reason)
        rows.append(row)
    return rows


def _is_unchanged(attempt: AttemptStatus, row: AttemptRow | None) -> bool:
    """Return whether the stored row still agrees with the batch system."""
    if row is None or explain_end(attempt)[1] not in row.message:
        return False  # a later hold may explain an end
    return (row.state, row.started_us, row.ended_us, row.exit_code) == (
        attempt.state.value,
        attempt.started_us,
        attempt.ended_us,
        attempt.exit_code,
    )


def _explain_attempt(job: JobRow, attempt: AttemptStatus, sandbox: Path | None) -> tuple[str, str]:
    """Return failure class and message of an attempt; a class only if measurements are missing."""
    if attempt.state is JobState.CANCELLED:
        return "", attempt.reason
    if not attempt.state.is_final:
        return "", ""
    returned = len(list_record_files(sandbox)) if sandbox else 0
    if attempt.state is JobState.DONE:
        repeated = read_report(sandbox).get("repeats") if sandbox else None
        if isinstance(repeated, int):
            return "", f"attempt {repeated} had ended, so that nothing was measured again"
        if returned >= job.planned_measurements and not _stop_signal(sandbox):
            return "", ""
    failure_class, reason = _classify_loss(attempt, sandbox)
    arrivals = f"{returned} of {job.planned_measurements} measurements arrived"
    host = f" at {attempt.host}" if attempt.host not in reason else ""
    return failure_class, f"{arrivals}{host}: {reason}"


def _classify_loss(attempt: AttemptStatus, sandbox: Path | None) -> tuple[str, str]:
    """Return failure class and reason of an attempt that did not bring all its measurements."""
    stopped_by = _stop_signal(sandbox)
    default_class = "evicted" if stopped_by and attempt.state is JobState.DONE else "lost"
    if attempt.exit_code in _NODE_EXIT_CODES:
        default_class = "software-setup"
    default_reason = f"stopped by {stopped_by}" if stopped_by else _describe_exit(attempt, sandbox)
    failure_class, reason = explain_end(attempt)
    return failure_class or default_class, reason or default_reason


def _stop_signal(sandbox: Path | None) -> str:
    """Return the signal that stopped the worker according to its attempt.json; '' for none."""
    name = str((sandbox and read_report(sandbox).get("stopped_by")) or "")
    return name[:20] if name.isprintable() else ""


def _describe_exit(attempt: AttemptStatus, sandbox: Path | None) -> str:
    if attempt.exit_code == 0:
        return "the worker ended well, but records are missing: were they removed, or not returned?"
    code = "an unknown exit code" if attempt.exit_code is None else f"exit code {attempt.exit_code}"
    try:
        output = read_file_end(sandbox / "worker.err", _MAX_ERROR_BYTES) if sandbox else ""
    except OSError:
        output = ""
    output = output.strip()[-MESSAGE_TAIL_CHARS:].replace("\x00", "?")
    return f"the worker ended with {code}" + (f": {output}" if output else "")


class HoldCause(NamedTuple):
    """Cause of a hold: class of the failure, cause in a word or two, and remedy."""

    failure_class: str
    cause: str
    remedy: str

    @classmethod
    def by_limit(cls, cause: FailureCause) -> HoldCause:
        """Return the hold of a job that exceeded a limit, or whose credential is invalid."""
        is_credential = cause is failure_causes.CREDENTIALS
        return cls("credential" if is_credential else BatchEvent.EVICTED, cause.name, cause.action)


def _held(cause: str, remedy: str) -> HoldCause:
    return HoldCause(BatchEvent.HELD, cause, remedy)


#: HTCondor's codes (``condor_holdcodes.h`` of version 25), some with a subcode -> cause.
_HOLD_CAUSES: Mapping[tuple[object, ...], HoldCause] = {
    (1, 15): _held("a person", "Ask who held it; treehammer resume releases it."),
    (2, 17, 23, 24, 28, 29, 30, 31, 36, 49): _held(
        "node or pool", "Tell the pool's administrator; treehammer resume releases the job."
    ),
    (3, 5, 21, 25, 26, 27): _held(
        "policy", "Ask the pool's administrator for the limit, or adapt the site's submit."
    ),
    ((21, 101), (34, 101)): HoldCause.by_limit(failure_causes.CPUS),
    ((21, 102), (34, 102), 34): HoldCause.by_limit(failure_causes.MEMORY),
    # Nodes meet a full disk as ENOSPC or EDQUOT; outputs (12) meet that of the submit folder.
    ((21, 104), (34, 104), *product((7, 9, 13), (28, 122))): HoldCause.by_limit(
        failure_causes.DISK
    ),
    (4,): HoldCause.by_limit(failure_causes.CREDENTIALS),
    (6, 19, 35, 43, 44, 45, 48): _held(
        "start of the job", "Check the site's python, and the node's container software."
    ),
    (7, 9, 12, 22): _held(
        "transfer of outputs",
        "Check space and permissions of the submit folder, and the network of the node.",
    ),
    (8, 10, 13, 16): _held(
        "transfer of inputs",
        "Check that the inputs still exist and that the node has space for them.",
    ),
    (14,): _held("submit folder", "Name a submit_dir of the pool that the schedd's user can use."),
    (11, 18): _held(
        "file transfer", "Release the job (treehammer resume); tell the pool's administrator."
    ),
    (20, 46, 47): HoldCause.by_limit(failure_causes.TIME),
    (32, 33): _held(
        "size of a transfer",
        "Ask for a larger MAX_TRANSFER_INPUT_MB or MAX_TRANSFER_OUTPUT_MB, or send less.",
    ),
    (37, 38, 39, 40, 41, 42): _held(
        "cloud", "Check the account and limits at the cloud's provider."
    ),
}
_CAUSES_BY_CODE = {code: cause for codes, cause in _HOLD_CAUSES.items() for code in codes}
_UNKNOWN_CAUSE = _held("", "Release the job (treehammer resume), or ask the pool's administrator.")
#: Codes whose reason may name the limit: policies of the job, the pool and the machine, resources in
#: general, and unknown ones.
_GENERAL_CODES = (None, 0, 2, 3, 21, 26, 34)


def find_hold_cause(hold: Hold) -> HoldCause:
    """Find the cause by code and subcode, and for policies by the words of the reason."""
    by_subcode = _CAUSES_BY_CODE.get((hold.code, hold.subcode))
    cause = by_subcode or _CAUSES_BY_CODE.get(hold.code, _UNKNOWN_CAUSE)
    if by_subcode or (cause is not _UNKNOWN_CAUSE and hold.code not in _GENERAL_CODES):
        return cause
    limit = failure_causes.find_cause_by_words(hold.reason)
    return HoldCause.by_limit(limit) if limit else cause


def describe_hold(hold: Hold) -> str:
    """Format the words and codes of a hold, its cause, and the remedy."""
    cause = find_hold_cause(hold)
    codes = "" if hold.code is None else f"hold code {hold.code}, subcode {hold.subcode}"
    details = ": ".join(filter(None, (codes, cause.cause)))
    text = hold.reason.strip().rstrip(".") or "no reason given"
    return f"{text}{f' ({details})' if details else ''}. {cause.remedy}"


def explain_end(status: AttemptStatus | JobStatus) -> tuple[str, str]:
    """Return failure class and reason of a job that its batch system ended or holds; '' without any."""
    if status.hold is None:
        return status.event or "", status.reason
    parts = (describe_hold(status.hold), status.reason)
    return find_hold_cause(status.hold).failure_class, "; ".join(filter(None, parts))


def describe_holds(statuses: Iterable[JobStatus]) -> Iterator[str]:
    """Describe the holds of jobs, a line for each kind, the most frequent first."""
    holds = [s.hold for s in statuses if s.hold and not s.state.is_final]
    examples: dict[tuple[object, ...], Hold] = {}
    keys = [(h.code, h.subcode, "" if h.code is not None else h.reason) for h in holds]
    for key, hold in zip(keys, holds, strict=True):
        examples.setdefault(key, hold)
    for key, count in Counter(keys).most_common():
        jobs = "1 job is" if count == 1 else f"{count} jobs are"
        yield f"{jobs} held, e.g.: {describe_hold(examples[key])}"
