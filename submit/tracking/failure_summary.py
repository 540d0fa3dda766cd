"""Failures of a campaign, grouped by site, class and message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.failures import INTERRUPTED_CLASSES
from treehammer.collectors.record.metric_catalogue import Value
from treehammer.collectors.record.outcome import OUTCOME_COLUMNS, Outcome, classify_outcome
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store

_MeasurementRow = Mapping[str, Value]
_Key = tuple[str, str, str]

_SUMMARY_COLUMNS = ("site", "failure_message", "implausible_reasons", "log_excerpt")
_PLACE_COLUMNS = ("job_id", "attempt", "round", "position", "ended_us")


@dataclass(frozen=True)
class FailedExecution:
    """Place of an execution's logs: its job, attempt and the name of its files."""

    job_id: str
    attempt: int
    name: str

    def find_log(self, sandboxes: Mapping[int, Path]) -> Path | None:
        """Find the log among the output folders of the job's attempts; None if it is not here."""
        folder = sandboxes.get(self.attempt)
        logs = (
            [folder / "logs" / f"{self.name}.{stream}" for stream in ("err", "out")]
            if folder
            else []
        )
        return next((path for path in logs if path.is_file() and path.stat().st_size), None)


@dataclass(frozen=True)
class FailureGroup:
    """Failures with the same message at one site.

    Attributes:
        site: name of the site.
        failure: class, see :func:`name_failure`.
        message: the worker's message.
        count: number of measurements or attempts.
        log: the telling part of one payload's output, '' if there is none.
        execution: one execution of the group, None if none was recorded.
        last_us: end of the last failure.
    """

    site: str
    failure: str
    message: str
    count: int
    log: str
    execution: FailedExecution | None = None
    last_us: int = 0


_Example = tuple[str, FailedExecution | None]


def summarize_failures(store: Store, campaign: CampaignRow) -> list[FailureGroup]:
    """Group the failures of a campaign that no later attempt made up for, most frequent first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str, str], _Example] = {}
    last_us: dict[tuple[str, str, str], int] = {}
    for key, example, ended_us in [
        *_measurement_failures(store, campaign),
        *_attempt_failures(store, campaign),
    ]:
        counts[key] += 1
        examples.setdefault(key, example)
        last_us[key] = max(last_us.get(key, 0), ended_us)
    return [
        FailureGroup(*key, count, *examples[key], last_us[key])
        for key, count in counts.most_common()
    ]


def select_failed_measurements(
    store: Store, campaign: CampaignRow, columns: Sequence[str]
) -> Iterator[_MeasurementRow]:
    """Yield the campaign's failed and implausible measurements as rows of the store."""
    for conditions in (("failure_class!=",), ("failure_class=", "plausible=false")):
        yield from store.measurements(Selection.parse((campaign.id,), conditions), columns)


def name_failure(row: _MeasurementRow) -> str:
    """Name a bad measurement's failure class, or its outcome if it did not fail."""
    outcome = classify_outcome(row)
    return str(row["failure_class"] if outcome is Outcome.FAILED else outcome)


def load_last_attempts(store: Store, jobs: Iterable[JobRow]) -> dict[str, AttemptRow]:
    """Return job id -> last attempt. Only the last attempt of a job counts."""
    # The store orders attempts by job and number.
    return {attempt.job_id: attempt for attempt in store.attempts(job.id for job in jobs)}


def _measurement_failures(
    store: Store, campaign: CampaignRow
) -> Iterator[tuple[_Key, _Example, int]]:
    jobs = {job.id: job for job in store.jobs(campaign.id)}
    last = load_last_attempts(store, jobs.values())
    # The end of the job explains interrupted measurements.
    ended = {job.id for job in jobs.values() if job.state == JobState.CANCELLED.value}
    ended |= {attempt.job_id for attempt in last.values() if attempt.failure_class}
    for row in select_failed_measurements(
        store, campaign, (*_SUMMARY_COLUMNS, *OUTCOME_COLUMNS, *_PLACE_COLUMNS)
    ):
        if not is_from_last_attempt(row, last):
            continue
        site, message, reasons, log = (str(row[name] or "") for name in _SUMMARY_COLUMNS)
        failure = name_failure(row)
        if failure in INTERRUPTED_CLASSES and row["job_id"] in ended:
            continue
        if failure == Outcome.IMPLAUSIBLE:
            message, log = reasons, ""
        name = f"{row['round']}-{row['position']}"
        execution = FailedExecution(str(row["job_id"]), int(str(row["attempt"])), name)
        yield (site, failure, message), (log, execution), int(str(row["ended_us"]))


def is_from_last_attempt(row: _MeasurementRow, last: Mapping[str, AttemptRow]) -> bool:
    """Return whether a measurement belongs to the last attempt of its job."""
    attempt = last.get(str(row["job_id"]))
    return attempt is None or attempt.number == row["attempt"]


def _attempt_failures(store: Store, campaign: CampaignRow) -> Iterator[tuple[_Key, _Example, int]]:
    jobs = store.jobs(campaign.id)
    sites = {job.id: job.site for job in jobs}
    last = load_last_attempts(store, jobs)
    for attempt in last.values():
        if attempt.failure_class:
            key = (sites[attempt.job_id], attempt.failure_class, attempt.message)
            yield key, ("", None), attempt.ended_us
