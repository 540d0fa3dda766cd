"""What went wrong in a campaign, in the words of the worker, each kind of trouble once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from treehammer.collectors.failures import NOT_SUPPORTED
from treehammer.collectors.metrics import Value
from treehammer.sql.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store

_Row = Mapping[str, Value]

#: What measurements are counted under that came back whole but cannot be true.
IMPLAUSIBLE = "implausible"
#: What those are counted under that asked a release for what it cannot do: nobody's fault.
UNSUPPORTED = "not supported"

#: The columns that :func:`failure_of` looks at.
FAILURE_COLUMNS = ("failure_class", "failure_kind")
_COLUMNS = ("site", "failure_message", "implausible_why", "log_excerpt")
#: What a trouble's message ends with where another attempt of the job followed.
AGAIN = " (tried again)"


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble at one site.

    Attributes:
        failure: as :func:`failure_of` names it.
        message: what was said.
        count: how many measurements or attempts met it.
        log: end of the output of one of the payloads, '' where there is none.
    """

    site: str
    failure: str
    message: str
    count: int
    log: str


def troubles(store: Store, campaign: CampaignRow) -> list[Trouble]:
    """Every kind of trouble of a campaign, the most frequent first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    logs: dict[tuple[str, str, str], str] = {}
    for site, failure, message, log in [*_measured(store, campaign), *_lost(store, campaign)]:
        key = (site, failure, message)
        counts[key] += 1
        logs.setdefault(key, log)
    return [Trouble(*key, count, logs[key]) for key, count in counts.most_common()]


def failing(store: Store, campaign: CampaignRow, columns: Sequence[str]) -> Iterator[_Row]:
    """The measurements of a campaign that failed or cannot be true, as rows of the store."""
    for conditions in (("failure_class!=",), ("failure_class=", "plausible=false")):
        yield from store.measurements(Selection.of((campaign.id,), conditions), columns)


def failure_of(row: _Row) -> str:
    """The class of a failing measurement's failure, :data:`UNSUPPORTED` or :data:`IMPLAUSIBLE`."""
    if row["failure_kind"] == NOT_SUPPORTED:
        return UNSUPPORTED
    return str(row["failure_class"] or IMPLAUSIBLE)


def last_attempts(store: Store, jobs: Iterable[JobRow]) -> dict[str, AttemptRow]:
    """Job id -> its last attempt: the one that counts, as the others were made good by it."""
    # They come by job and number.
    return {attempt.job_id: attempt for attempt in store.attempts(job.id for job in jobs)}


def _measured(store: Store, campaign: CampaignRow) -> Iterator[tuple[str, str, str, str]]:
    last = last_attempts(store, store.jobs(campaign.id))
    for row in failing(store, campaign, (*_COLUMNS, *FAILURE_COLUMNS, "job_id", "attempt")):
        site, message, why, log = (str(row[name] or "") for name in _COLUMNS)
        failure, again = failure_of(row), "" if is_last(row, last) else AGAIN
        if failure == IMPLAUSIBLE:
            message, log = why, ""
        yield site, failure, message + again, log


def is_last(row: _Row, last: Mapping[str, AttemptRow]) -> bool:
    """Whether a measurement belongs to the last attempt of its job."""
    attempt = last.get(str(row["job_id"]))
    return attempt is None or attempt.number == row["attempt"]


def _lost(store: Store, campaign: CampaignRow) -> Iterator[tuple[str, str, str, str]]:
    jobs = store.jobs(campaign.id)
    sites = {job.id: job.site for job in jobs}
    last = last_attempts(store, jobs)
    for attempt in store.attempts(sites):
        if attempt.failure_class:
            again = "" if attempt == last[attempt.job_id] else AGAIN
            yield sites[attempt.job_id], attempt.failure_class, attempt.message + again, ""
