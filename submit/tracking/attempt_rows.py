"""From what a batch system says of a job's attempts to the rows that the store keeps of them.

What counts is whether the measurements are there, in the store or in a sandbox: an attempt that the
batch system lost, but whose measurements all came by the results service, has not failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from treehammer.collectors.job_spec import RETRY_EXIT_CODE
from treehammer.collectors.job_state import JobState
from treehammer.sql.core.rows import AttemptRow, JobRow
from treehammer.submit.batch.interface import AttemptStatus, BatchSystem, JobStatus
from treehammer.submit.tracking.record_files import list_record_files

#: Characters of the worker's error output that a lost attempt is explained with.
MESSAGE_TAIL_CHARS = 500

#: What the message of an attempt begins with where a file among its records is none.
INVALID_RECORD = "not a record"
#: What it begins with where the attempt went wrong and its measurements came all the same.
ALL_MEASUREMENTS_STORED = "all its measurements came all the same"

#: (Job id, number of the attempt) -> how many of its measurements the store has.
RecordedCounts = Mapping[tuple[str, int], int]


def make_lost_job(job: JobRow, failure_class: str, message: str) -> tuple[JobRow, AttemptRow]:
    """A job that no batch system has, and the attempt that says why."""
    lost = JobState.LOST.value
    attempt = AttemptRow(job.id, 1, lost, 0, 0, None, failure_class, message)
    return replace(job, state=lost), attempt


def mark_job_gone(job: JobRow, last: AttemptRow | None) -> tuple[JobRow, AttemptRow]:
    """A job that disappeared, or never arrived, and its last attempt."""
    if not job.batch_id:
        return make_lost_job(job, "submission", "the submission ended before this job was queued")
    lost, attempt = make_lost_job(
        job, "lost", f"{job.batch_system} does not know {job.batch_id} any more"
    )
    if last is not None:
        attempt = replace(attempt, number=last.number, started_us=last.started_us)
    return lost, attempt


def clear_recovered_failures(
    job: JobRow, attempts: Sequence[AttemptRow], recorded: RecordedCounts
) -> tuple[JobRow, list[AttemptRow]]:
    """A job and its attempts, without the failures of attempts of which the store has everything.

    By whatever way the measurements came: nothing of such an attempt is lost.  A job whose last one
    it is, is done.

    Args:
        job: as its batch system left it.
        attempts: all of it, by number.
        recorded: what the store has.
    """
    found, whole = [], False
    for attempt in attempts:
        here = recorded.get((job.id, attempt.number), 0) >= job.planned_measurements
        # One that never began says nothing of those before it.
        whole = here or (whole and not attempt.started_us)
        if whole and attempt.failure_class and not attempt.message.startswith(INVALID_RECORD):
            message = f"{ALL_MEASUREMENTS_STORED}: {attempt.message}"
            found.append(replace(attempt, failure_class="", message=message))
        else:
            found.append(attempt)
    lost = job.state == JobState.LOST.value
    return (replace(job, state=JobState.DONE.value) if lost and whole else job), found


def last_attempt_of(stored: Mapping[tuple[str, int], AttemptRow], job_id: str) -> AttemptRow | None:
    """The last attempt of a job; None where none is stored."""
    mine = [attempt for (owner, _), attempt in stored.items() if owner == job_id]
    return max(mine, key=lambda attempt: attempt.number, default=None)


def build_attempt_rows(
    job: JobRow,
    status: JobStatus,
    batch: BatchSystem,
    stored: Mapping[tuple[str, int], AttemptRow],
) -> list[AttemptRow]:
    """The attempts of a job as the store keeps them; what it has of one without news stays."""
    known = [stored.get((job.id, item.number)) for item in status.attempts]
    if not status.state.is_final and all(map(_is_unchanged, status.attempts, known)):
        return [row for row in known if row is not None]
    sandboxes = batch.sandboxes(job.batch_id) if status.attempts else {}
    rows = [_build_attempt_row(job, item, sandboxes.get(item.number)) for item in status.attempts]
    if not rows and status.state is JobState.LOST:
        _, row = make_lost_job(job, status.failure_class or "lost", status.reason)
        rows.append(row)
    return rows


def _is_unchanged(attempt: AttemptStatus, row: AttemptRow | None) -> bool:
    """Whether a batch system says nothing new of an attempt."""
    return row is not None and (row.state, row.started_us, row.ended_us, row.exit_code) == (
        attempt.state.value,
        attempt.started_us,
        attempt.ended_us,
        attempt.exit_code,
    )


def _build_attempt_row(job: JobRow, attempt: AttemptStatus, sandbox: Path | None) -> AttemptRow:
    """An attempt as the store keeps it, with a failure where records alone do not tell of one."""
    kind = message = ""
    if attempt.state is JobState.CANCELLED:
        message = attempt.reason
    elif attempt.state.is_final:
        came = len(list_record_files(sandbox)) if sandbox else 0
        if attempt.state is JobState.LOST or came < job.planned_measurements:
            stopped_by = _stop_signal(sandbox) if sandbox else ""
            kind = "evicted" if stopped_by and attempt.state is JobState.DONE else "lost"
            kind = "upload" if attempt.exit_code == RETRY_EXIT_CODE else kind
            kind = attempt.failure_class or kind
            why = attempt.reason or (
                f"stopped by {stopped_by}" if stopped_by else _describe_exit(attempt, sandbox)
            )
            host = f" at {attempt.host}" if attempt.host and attempt.host not in why else ""
            message = f"{came} of {job.planned_measurements} measurements came back{host}: {why}"
    return AttemptRow(
        job_id=job.id,
        number=attempt.number,
        state=attempt.state.value,
        started_us=attempt.started_us,
        ended_us=attempt.ended_us,
        exit_code=attempt.exit_code,
        failure_class=kind,
        message=message,
    )


def _stop_signal(sandbox: Path) -> str:
    """The signal on which the worker stopped, as it says itself; '' for none."""
    try:
        account = json.loads((sandbox / "attempt.json").read_text(encoding="utf-8"))
        return str(account["stopped_by"] or "")
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _describe_exit(attempt: AttemptStatus, sandbox: Path | None) -> str:
    code = "an unknown exit code" if attempt.exit_code is None else f"exit code {attempt.exit_code}"
    try:
        said = (sandbox / "worker.err").read_text("utf-8", "replace").strip() if sandbox else ""
    except OSError:
        said = ""
    said = said[-MESSAGE_TAIL_CHARS:].replace("\x00", "?")
    return f"the worker left with {code}" + (f" and said: {said}" if said else "")
