"""Conversion of batch system statuses to the store's attempt rows.

An attempt counts as complete if its measurements are in the store or in a sandbox, even if the batch
system lost it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from treehammer.collectors.job_spec import RETRY_EXIT_CODE
from treehammer.collectors.job_state import JobState
from treehammer.collectors.shared_files import read_file_end, read_regular_file
from treehammer.sql.core.rows import AttemptRow, JobRow
from treehammer.submit.batch.interface import AttemptStatus, BatchSystem, JobStatus
from treehammer.submit.tracking.record_files import MAX_RECORD_BYTES, list_record_files

#: Characters of the worker's error output in the message of a lost attempt.
MESSAGE_TAIL_CHARS = 500
_MAX_ERROR_BYTES = 10_000

#: Start of the message of an attempt with an invalid record file.
INVALID_RECORD = "not a record"
#: Start of the message of a failed attempt whose measurements are all stored.
ALL_MEASUREMENTS_STORED = "all its measurements arrived"

#: (Job id, number of the attempt) -> number of its measurements in the store.
RecordedCounts = Mapping[tuple[str, int], int]


def make_lost_job(job: JobRow, failure_class: str, message: str) -> tuple[JobRow, AttemptRow]:
    """Return a lost job and the attempt that holds the reason."""
    lost = JobState.LOST.value
    attempt = AttemptRow(job.id, 1, lost, 0, 0, None, failure_class, message)
    return replace(job, state=lost), attempt


def mark_job_gone(job: JobRow, last: AttemptRow | None) -> tuple[JobRow, AttemptRow]:
    """Return a job that the batch system does not know as lost, with its last attempt."""
    if not job.batch_id:
        return make_lost_job(job, "submission", "the submission ended before this job was queued")
    lost, attempt = make_lost_job(job, "lost", f"{job.batch_system} no longer knows {job.batch_id}")
    if last is not None:
        attempt = replace(attempt, number=last.number, started_us=last.started_us)
    return lost, attempt


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
        # An attempt that never started leaves the job as complete as the one before.
        whole = is_complete or (whole and not attempt.started_us)
        if whole and attempt.failure_class and not attempt.message.startswith(INVALID_RECORD):
            message = f"{ALL_MEASUREMENTS_STORED}: {attempt.message}"
            cleared.append(replace(attempt, failure_class="", message=message))
        else:
            cleared.append(attempt)
    lost = job.state == JobState.LOST.value
    return (replace(job, state=JobState.DONE.value) if lost and whole else job), cleared


def last_attempt_of(stored: Mapping[tuple[str, int], AttemptRow], job_id: str) -> AttemptRow | None:
    """Return the last stored attempt of a job, None if there is none."""
    attempts = [attempt for (owner, _), attempt in stored.items() if owner == job_id]
    return max(attempts, key=lambda attempt: attempt.number, default=None)


def build_attempt_rows(
    job: JobRow,
    status: JobStatus,
    batch: BatchSystem,
    stored: Mapping[tuple[str, int], AttemptRow],
) -> list[AttemptRow]:
    """Build the attempt rows of a job; stored rows without changes are reused."""
    stored_rows = [stored.get((job.id, item.number)) for item in status.attempts]
    if not status.state.is_final and all(map(_is_unchanged, status.attempts, stored_rows)):
        return list(filter(None, stored_rows))
    sandboxes = batch.sandboxes(job.batch_id) if status.attempts else {}
    rows = [_build_attempt_row(job, item, sandboxes.get(item.number)) for item in status.attempts]
    if not rows and status.state is JobState.LOST:
        _, row = make_lost_job(job, status.failure_class or "lost", status.reason)
        rows.append(row)
    return rows


def _is_unchanged(attempt: AttemptStatus, row: AttemptRow | None) -> bool:
    """Return whether the stored row still agrees with the batch system."""
    return row is not None and (row.state, row.started_us, row.ended_us, row.exit_code) == (
        attempt.state.value,
        attempt.started_us,
        attempt.ended_us,
        attempt.exit_code,
    )


def _build_attempt_row(job: JobRow, attempt: AttemptStatus, sandbox: Path | None) -> AttemptRow:
    """Build the row of one attempt, with a failure if measurements are missing."""
    failure_class = message = ""
    if attempt.state is JobState.CANCELLED:
        message = attempt.reason
    elif attempt.state.is_final:
        returned = len(list_record_files(sandbox)) if sandbox else 0
        is_whole = returned >= job.planned_measurements and not _stop_signal(sandbox)
        if attempt.state is JobState.LOST or not is_whole:
            failure_class, reason = _classify_loss(attempt, sandbox)
            host = f" at {attempt.host}" if attempt.host and attempt.host not in reason else ""
            message = (
                f"{returned} of {job.planned_measurements} measurements arrived{host}: {reason}"
            )
    return AttemptRow(
        job_id=job.id,
        number=attempt.number,
        state=attempt.state.value,
        started_us=attempt.started_us,
        ended_us=attempt.ended_us,
        exit_code=attempt.exit_code,
        failure_class=failure_class,
        message=message,
    )


def _classify_loss(attempt: AttemptStatus, sandbox: Path | None) -> tuple[str, str]:
    """Return failure class and reason of an attempt that did not bring all its measurements."""
    stopped_by = _stop_signal(sandbox)
    if attempt.exit_code == RETRY_EXIT_CODE:
        default_class = "upload"
    elif stopped_by and attempt.state is JobState.DONE:
        default_class = "evicted"
    else:
        default_class = "lost"
    default_reason = f"stopped by {stopped_by}" if stopped_by else _describe_exit(attempt, sandbox)
    return attempt.failure_class or default_class, attempt.reason or default_reason


def _stop_signal(sandbox: Path | None) -> str:
    """Return the signal that stopped the worker according to its attempt.json; '' for none."""
    if sandbox is None:
        return ""
    try:
        account = json.loads(read_regular_file(sandbox / "attempt.json", MAX_RECORD_BYTES))
        return str(account["stopped_by"] or "")
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _describe_exit(attempt: AttemptStatus, sandbox: Path | None) -> str:
    code = "an unknown exit code" if attempt.exit_code is None else f"exit code {attempt.exit_code}"
    try:
        output = read_file_end(sandbox / "worker.err", _MAX_ERROR_BYTES) if sandbox else ""
    except OSError:
        output = ""
    output = output.strip()[-MESSAGE_TAIL_CHARS:].replace("\x00", "?")
    return f"the worker ended with {code}" + (f": {output}" if output else "")
