"""Nodes that stopped answering while HTCondor still counts their jobs as running."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from treehammer.submit.batch.htcondor.job_events import JobEventState
from treehammer.submit.batch.htcondor.job_status import RUNNING, ClassAdValues
from treehammer.text_formatting import pluralize

#: Attributes that show a lost node; the lease is that of all jobs of a submission.
LOST_NODE_PROJECTION = (
    "ProcId",
    "JobStatus",
    "RemoteHost",
    "JobDisconnectedDate",
    "LastJobLeaseRenewal",
    "JobLeaseDuration",
)


@dataclass(frozen=True)
class Disconnection:
    """Loss of contact to a node; ``since_s`` is in seconds since 1970, 0 if unknown."""

    host: str
    since_s: int


def find_disconnections(
    ads: Iterable[ClassAdValues], events: Mapping[int, JobEventState]
) -> Iterator[Disconnection]:
    """Find running jobs without contact to their node.

    The event log also knows those of a restarted schedd; a spooled job has only the ad.

    Args:
        ads: of one cluster, see :data:`LOST_NODE_PROJECTION`.
        events: states from the event log, by proc.
    """
    for ad in ads:
        if ad.get("JobStatus") != RUNNING:
            continue
        host, since_s = str(ad.get("RemoteHost") or "its node"), 0
        job = events.get(int(ad.get("ProcId", -1)))
        last = job.starts[max(job.starts)] if job and job.starts else None
        if last is not None:
            since_s = last.disconnected_us // 1_000_000 if last.is_open else 0
        elif int(ad.get("JobDisconnectedDate", 0)) >= int(ad.get("LastJobLeaseRenewal", 0)):
            since_s = int(ad.get("JobDisconnectedDate", 0))
        if since_s:
            yield Disconnection(host, since_s)


def describe_disconnections(disconnections: Iterable[Disconnection], lease_s: int) -> Iterator[str]:
    """Describe each lost node in a line.

    Args:
        disconnections: the disconnections.
        lease_s: seconds after which HTCondor gives up a job.
    """
    by_host: dict[str, list[Disconnection]] = defaultdict(list)
    for item in disconnections:
        by_host[item.host].append(item)
    for host, items in by_host.items():
        since_s, until_s = min(i.since_s for i in items), max(i.since_s for i in items) + lease_s
        clocks = [time.strftime("%H:%M:%S", time.localtime(when)) for when in (since_s, until_s)]
        yield (
            f"no contact to {host}, where {pluralize(len(items), 'job')} ran, since {clocks[0]}; "
            f"if it stays lost, HTCondor starts the jobs again after {clocks[1]}"
        )
