"""What went wrong in a campaign, in the words of the worker, each kind of trouble once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from treehammer.sql.rows import CampaignRow
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store

#: What measurements are counted under that came back whole but cannot be true.
IMPLAUSIBLE = "implausible"

_COLUMNS = ("site", "failure_class", "failure_message", "implausible_why", "log_excerpt")


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble at one site.

    Attributes:
        failure: class of the failure, or :data:`IMPLAUSIBLE`.
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


def _measured(store: Store, campaign: CampaignRow) -> Iterator[tuple[str, str, str, str]]:
    for conditions in (("failure_class!=",), ("failure_class=", "plausible=false")):
        selection = Selection.of((campaign.id,), conditions)
        for row in store.measurements(selection, _COLUMNS):
            site, failure, message, why, log = (str(row[name] or "") for name in _COLUMNS)
            if failure:
                yield site, failure, message, log
            else:
                yield site, IMPLAUSIBLE, why, ""


def _lost(store: Store, campaign: CampaignRow) -> Iterator[tuple[str, str, str, str]]:
    sites = {job.id: job.site for job in store.jobs(campaign.id)}
    for attempt in store.attempts(sites):
        if attempt.failure_class:
            yield sites[attempt.job_id], attempt.failure_class, attempt.message, ""
