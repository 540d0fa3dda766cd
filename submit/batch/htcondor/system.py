"""The batch system itself: submission, state, output and end of jobs in one pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from treehammer.errors import BatchError
from treehammer.submit.batch.base import Description, Inputs, JobState, JobStatus
from treehammer.submit.batch.htcondor import again as anew
from treehammer.submit.batch.htcondor import matching
from treehammer.submit.batch.htcondor.connection import Connection, Unreachable, plain
from treehammer.submit.batch.htcondor.events import Guessed, Seen
from treehammer.submit.batch.htcondor.keys import SUBMISSION_ATTRIBUTE
from treehammer.submit.batch.htcondor.layout import Submission, parse, submissions
from treehammer.submit.batch.htcondor.queue import Queue
from treehammer.submit.batch.htcondor.status import (
    CANCEL_REASON,
    CANCELLED,
    COMPLETED,
    FACTORY_PROJECTION,
    HELD,
    PROJECTION,
    Ad,
    status_of,
)
from treehammer.submit.site import Pool

#: Jobs of one cluster where inputs are spooled, since all of these are in the queue at once.
SPOOLED_JOBS = 1000
#: More jobs than these are asked of the history all at once.
_NAMED = 50


class HTCondorBatch:
    """The jobs of one HTCondor pool.

    Args:
        pool: which.
        folder: where jobs are kept if the pool names no ``submit_dir``; made when needed.
    """

    def __init__(self, pool: Pool, folder: Path) -> None:
        self.name = f"htcondor@{pool.name}"
        self.pool = pool
        self.root = (pool.submit_dir or folder).resolve()
        self.connection = Connection(pool)
        self.queue = Queue(self.connection)

    # -- submission

    def submit(self, campaign_id: str, jobs: Sequence[Description]) -> Mapping[str, str]:
        """Queue the jobs in this order; those already queued keep their batch id.

        Raises:
            BatchError: not all were queued; :meth:`find` tells which.
        """
        self._make_root()
        unique = {job.job_id: job for job in jobs}
        anyone = Submission.of(self.root, campaign_id, "", ())
        with anyone.locked():
            found = self._find(unique, campaign_id, mine=True)
            groups: dict[str, list[Description]] = defaultdict(list)
            for job_id, job in unique.items():
                if job_id not in found:
                    groups[job.text].append(job)
            for text, group in groups.items():
                step = SPOOLED_JOBS if self.pool.spool else len(group)
                for first in range(0, len(group), step):
                    found |= self._submit(campaign_id, text, group[first : first + step])
        return found

    def _make_root(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / ".incoming").mkdir(exist_ok=True)
        except OSError as error:
            raise BatchError(
                f"cannot make the folder that jobs are submitted from ({error.strerror})",
                where=str(self.root),
                hint=f"Correct pools.{self.pool.name}.submit_dir in the sites file.",
            ) from error

    def _submit(
        self, campaign_id: str, text: str, jobs: Sequence[Description]
    ) -> Mapping[str, str]:
        submission = Submission.of(self.root, campaign_id, text, [job.job_id for job in jobs])
        if not submission.path.exists():
            submission.stage(text, jobs, spool=self.pool.spool)
        try:
            cluster = self.queue.add(submission)
        except Unreachable:
            # Whether it is queued will be found out when somebody asks for it.
            raise
        except BatchError:
            submission.remove()
            raise
        return submission.batch_ids(cluster)

    # -- finding again

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Job id -> batch id of the jobs that are in the queue, or were.

        Raises:
            BatchError: a submission ended half-way and HTCondor does not tell what became of it.
        """
        return self._find(job_ids, "*", mine=False)

    def _find(self, job_ids: Iterable[str], campaign: str, *, mine: bool) -> dict[str, str]:
        """As :meth:`find`; ``mine`` where the caller holds the campaign."""
        wanted = set(job_ids)
        found: dict[str, str] = {}
        for submission in submissions(self.root, campaign):
            if len(found) == len(wanted):
                break
            here = wanted.intersection(submission.job_ids)
            if not here:
                continue
            cluster = submission.cluster or self.queue.unconfirmed(submission, mine=mine)
            if cluster is not None:
                ids = submission.batch_ids(cluster)
                # A job that was queued anew stands in older submissions too.
                found |= {job_id: ids[job_id] for job_id in here if job_id not in found}
        return found

    # -- state

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """State of each known job; unknown ids are absent.

        Raises:
            BatchError: HTCondor does not answer; nothing is known then.
        """
        groups: dict[tuple[Submission, int], list[int]] = defaultdict(list)
        for batch_id in batch_ids:
            known = parse(batch_id, self.root)
            if known is not None:
                groups[known[:2]].append(known[2])
        if not groups:
            return {}
        queue = self._queue_of([submission for submission, _ in groups])
        found: dict[str, JobStatus] = {}
        for (submission, cluster), procs in groups.items():
            ads = queue.get((submission.name, cluster), {})
            found |= self._states(submission, cluster, procs, ads)
        return found

    def _queue_of(self, wanted: Sequence[Submission]) -> Mapping[tuple[str, int], Mapping[int, Ad]]:
        """(Submission, cluster) -> proc -> ad; that of the cluster itself is proc -1."""
        clauses = {submission.constraint for submission in wanted}
        ads = self.queue.ads(" || ".join(sorted(clauses)), (*PROJECTION, *FACTORY_PROJECTION))
        queue: dict[tuple[str, int], dict[int, Ad]] = defaultdict(dict)
        for ad in ads:
            key = (str(ad.get(SUBMISSION_ATTRIBUTE)), int(ad["ClusterId"]))
            queue[key][int(ad.get("ProcId", -1))] = ad
        return queue

    def _states(
        self, submission: Submission, cluster: int, procs: Sequence[int], ads: Mapping[int, Ad]
    ) -> Mapping[str, JobStatus]:
        """The states of some jobs of one cluster."""
        fetched: Sequence[int] = ()
        if self.pool.spool:
            self._fetch(cluster, [proc for proc in procs if _is_ready(ads.get(proc))])
            fetched = [proc for proc in procs if _is_over(ads.get(proc))]
        # Read after the queue: who is not there any more has told why.
        seen = Seen.read(submission, fetched)
        cancelled = submission.cancelled
        factory = ads.get(-1, {})
        next_proc = factory.get("JobMaterializeNextProcId")
        found: dict[str, JobStatus] = {}
        vanished: list[int] = []
        for proc in procs:
            batch_id = f"{cluster}.{proc}@{submission.name}"
            waiting = isinstance(next_proc, int) and proc >= next_proc
            ad = ads.get(proc)
            status = status_of(batch_id, seen.job(proc), ad, cancelled)
            if status is None and waiting:
                status = JobStatus(batch_id, JobState.QUEUED)
            if status is None:
                vanished.append(proc)
            else:
                found[batch_id] = _numbered(status, submission, proc)
        if vanished:
            found |= self._from_history(submission, cluster, vanished, seen)
        return found

    def _from_history(
        self, submission: Submission, cluster: int, procs: Sequence[int], seen: Seen
    ) -> Mapping[str, JobStatus]:
        """States of jobs that are in the queue no more and whose events do not tell why."""
        constraint = submission.jobs_where(cluster, procs if len(procs) <= _NAMED else ())
        known = submission.cluster
        since = f"CompletionDate > 0 && CompletionDate < {known.queued_s - 60}" if known else None
        ads = self.connection.ask(
            lambda schedd: plain(schedd.history(constraint, list(PROJECTION), since=since))
        )
        left = {int(ad["ProcId"]): ad for ad in ads}
        found: dict[str, JobStatus] = {}
        for proc in procs:
            batch_id = f"{cluster}.{proc}@{submission.name}"
            ad = left.get(proc)
            status = status_of(batch_id, seen.job(proc), ad, submission.cancelled)
            if status is None:
                status = self._never_made(batch_id, submission, seen, known_jobs=bool(left))
            if status is not None:
                found[batch_id] = _numbered(status, submission, proc)
        return found

    @staticmethod
    def _never_made(
        batch_id: str, submission: Submission, seen: Seen, *, known_jobs: bool
    ) -> JobStatus | None:
        """Of a job that left no trace though its cluster did: that was removed before its turn."""
        if submission.cancelled:
            return JobStatus(batch_id, JobState.CANCELLED, (), "", CANCELLED)
        if seen.cluster_removed or known_jobs:
            reason = "its cluster was removed from the queue before the job's turn came"
            others = {job.removed for job in seen.jobs.values() if job.removed}
            if others:
                reason += f": {sorted(others)[0]}"
            return JobStatus(batch_id, JobState.LOST, (), "lost", reason)
        return None

    def _fetch(self, cluster: int, procs: Sequence[int]) -> None:
        """Fetch the output of jobs that are over from the schedd, which then forgets them."""
        if procs:
            ids = [f"{cluster}.{proc}" for proc in procs]
            self.connection.ask(lambda schedd: schedd.retrieve(ids))

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Attempt -> folder with its output, as far as it came."""
        known = parse(batch_id, self.root)
        if known is None:
            return {}
        submission = self._remembered(known[0])
        try:
            return submission.sandboxes(known[2])
        except (BatchError, IndexError):
            return {}

    def _remembered(self, submission: Submission) -> Submission:
        """The same submission as the last time, which has read its index already."""
        if submission != getattr(self, "_last", None):
            self._last = submission
        return self._last

    # -- ends

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Cancel what is not final and return how many were.

        Of a cluster whose jobs are not all in the queue yet, those that are not can only be
        cancelled with all the others.

        Raises:
            BatchError: HTCondor does not answer; some may be cancelled.
        """
        statuses = self.query(batch_ids)
        open_ids = [batch_id for batch_id, status in statuses.items() if not status.state.final]
        for submission, cluster, procs in self._groups(open_ids):
            everyone = self.query(
                f"{cluster}.{proc}@{submission.name}" for proc in range(len(submission.job_ids))
            )
            others = [
                status
                for batch_id, status in everyone.items()
                if not status.state.final and batch_id not in open_ids
            ]
            if others:
                self.queue.act("Remove", submission.jobs_where(cluster, procs), CANCEL_REASON)
            else:
                submission.mark_cancelled()
                self.queue.act("Remove", submission.jobs_where(cluster), CANCEL_REASON)
        return len(open_ids)

    def release(self, batch_ids: Iterable[str]) -> int:
        """Let held jobs go on and return how many were held.

        Raises:
            BatchError: HTCondor does not answer.
        """
        held = [b for b, status in self.query(batch_ids).items() if status.state is JobState.HELD]
        for submission, cluster, procs in self._groups(held):
            mine = submission.jobs_where(cluster, procs)
            self.queue.act("Release", f"{mine} && JobStatus == {HELD}", "treehammer resume")
        return len(held)

    def again(self, earlier: Mapping[str, int], inputs: Inputs) -> Mapping[str, str]:
        """Queue jobs anew that are final; asking twice queues them once.

        Raises:
            BatchError: not all were queued; asking again queues the others.
        """
        found: dict[str, str] = {}
        for old, cluster, procs in self._groups(earlier):
            ids = {old.job_ids[proc]: f"{cluster}.{proc}@{old.name}" for proc in procs}
            last = max(earlier[batch_id] for batch_id in ids.values())
            jobs = anew.descriptions(old, ids, last, inputs)
            text = jobs[0].text
            new = Submission.of(self.root, old.campaign, text, [job.job_id for job in jobs])
            with new.locked():
                there = new.path.exists()
                queued = (new.cluster or self.queue.unconfirmed(new, mine=True)) if there else None
                queued_ids = (
                    new.batch_ids(queued) if queued else self._submit(old.campaign, text, jobs)
                )
            found |= {batch_id: queued_ids[job_id] for job_id, batch_id in ids.items()}
        return found

    def _groups(self, batch_ids: Iterable[str]) -> list[tuple[Submission, int, list[int]]]:
        groups: dict[tuple[Submission, int], list[int]] = defaultdict(list)
        for batch_id in batch_ids:
            known = parse(batch_id, self.root)
            if known is not None:
                groups[known[:2]].append(known[2])
        return [(submission, cluster, procs) for (submission, cluster), procs in groups.items()]

    def purge(self, batch_ids: Iterable[str]) -> int:
        """Remove the submissions all of whose jobs are named and final; how many bytes that freed.

        A job that was queued anew is named by its last batch id.

        Raises:
            BatchError: HTCondor does not answer, or one cannot be removed.
        """
        over: dict[str, set[str]] = defaultdict(set)
        for submission, cluster, procs in self._groups(batch_ids):
            if submission.path.is_dir():
                ids = {f"{cluster}.{proc}@{submission.name}": proc for proc in procs}
                going = {i for i, status in self.query(ids).items() if not status.state.final}
                left = [proc for batch_id, proc in ids.items() if batch_id not in going]
                over[submission.campaign].update(submission.job_ids[proc] for proc in left)
        return sum(
            submission.remove()
            for campaign, job_ids in over.items()
            for submission in [*submissions(self.root, campaign)]
            if job_ids.issuperset(submission.job_ids)
        )

    # -- what users are told

    def notes(self, batch_ids: Iterable[str]) -> list[str]:
        """What keeps these jobs from starting: a line each.

        Raises:
            BatchError: HTCondor does not answer.
        """
        known = [found for batch_id in batch_ids if (found := parse(batch_id, self.root))]
        mine = sorted({submission.constraint for submission, _, _ in known})
        return matching.notes(self.connection, " || ".join(mine)) if mine else []

    def matching_slots(self, requirements: str) -> tuple[int, int]:
        """How many slots of the pool a requirements expression matches, and how many there are.

        Raises:
            BatchError: HTCondor does not answer, or the expression is none.
        """
        return matching.matching_slots(self.connection, requirements)

    def check(self) -> matching.Reached:
        """Reach the pool's collector and schedd, and see that we may submit.

        Raises:
            BatchError: one does not answer or does not let us in.
        """
        return matching.check(self.connection)


def _numbered(status: JobStatus, submission: Submission, proc: int) -> JobStatus:
    """The status, with the number that the output of its last attempt has where that was guessed."""
    if not status.state.final or not status.attempts:
        return status
    *earlier, last = status.attempts
    if not isinstance(last, Guessed):
        return status
    number = max(submission.sandboxes(proc), default=last.number)
    if number > last.number:
        why = "the other pool started it again"
        lost = replace(last, state=JobState.LOST, exit_code=None, reason=why, failure_class="lost")
        earlier.append(lost)
    return replace(status, attempts=(*earlier, replace(last, number=number)))


def _is_over(ad: Ad | None) -> bool:
    """Whether a job left the queue, or has only its output there."""
    return ad is None or ad.get("JobStatus") == COMPLETED


def _is_ready(ad: Ad | None) -> bool:
    """Whether a job's output waits at the schedd."""
    return ad is not None and ad.get("JobStatus") == COMPLETED and not ad.get("StageOutFinish")
