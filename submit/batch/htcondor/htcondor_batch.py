"""HTCondor batch system: submission, status, output and removal of jobs in one pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from treehammer.collectors.job_spec import HTCONDOR_PREFIX, JobState
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.event_log import EventLogState, GuessedAttemptStatus
from treehammer.submit.batch.htcondor.job_status import (
    CANCEL_REASON,
    CANCELLED_REASON,
    COMPLETED,
    FACTORY_PROJECTION,
    HELD,
    IDLE,
    JOB_PROJECTION,
    LOST_NODE_PROJECTION,
    RUNNING,
    ClassAdValues,
    derive_status,
    describe_disconnections,
    find_disconnections,
)
from treehammer.submit.batch.htcondor.pool import (
    HTCondorPool,
    PoolConnection,
    PoolUnreachableError,
    known_values,
)
from treehammer.submit.batch.htcondor.schedd_queue import (
    ScheddIdentity,
    ScheddQueue,
    check_pool,
    count_matching_slots,
    explain_idle_jobs,
)
from treehammer.submit.batch.htcondor.submission_folder import (
    Submission,
    find_submissions,
    parse_batch_id,
    rebuild_descriptions,
)
from treehammer.submit.batch.htcondor.submit_description import SUBMISSION_ATTRIBUTE
from treehammer.submit.batch.interface import (
    BatchSystem,
    InputReplacement,
    JobDescription,
    JobStatus,
)

#: Jobs per cluster with spooled inputs: all of them are in the queue at once.
MAX_SPOOLED_JOBS = 1000
#: Limit of jobs named in a history query; more are queried by their cluster.
_MAX_NAMED_JOBS = 50


class HTCondorBatch(BatchSystem):
    """Jobs of one HTCondor pool.

    Args:
        pool: the pool.
        folder: folder of submissions if the pool sets no ``submit_dir``; created when needed.
    """

    def __init__(self, pool: HTCondorPool, folder: Path) -> None:
        self.name = f"{HTCONDOR_PREFIX}{pool.name}"
        self.pool = pool
        self.root = (pool.submit_dir or folder).resolve()
        self.connection = PoolConnection(pool)
        self.queue = ScheddQueue(self.connection)

    # -- submission

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Queue the jobs in this order; jobs already queued keep their batch id.

        Raises:
            BatchError: not all were queued; :meth:`find` returns those that were.
        """
        self._make_root()
        unique = {job.job_id: job for job in jobs}
        placeholder = Submission.for_jobs(self.root, campaign_id, "", ())
        with placeholder.locked():
            batch_ids = self._find_in_campaign(unique, campaign_id, holds_lock=True)
            groups: dict[str, list[JobDescription]] = defaultdict(list)
            for job_id, job in unique.items():
                if job_id not in batch_ids:
                    groups[job.text].append(job)
            for text, group in groups.items():
                step = MAX_SPOOLED_JOBS if self.pool.spool else len(group)
                for first in range(0, len(group), step):
                    batch_ids |= self._submit_cluster(
                        campaign_id, text, group[first : first + step]
                    )
        return batch_ids

    def _make_root(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / ".incoming").mkdir(exist_ok=True)
        except OSError as error:
            raise BatchError(
                f"cannot create the folder for submissions ({error.strerror})",
                where=str(self.root),
                hint=f"Correct pools.{self.pool.name}.submit_dir in the sites file.",
            ) from error

    def _submit_cluster(
        self, campaign_id: str, text: str, jobs: Sequence[JobDescription]
    ) -> Mapping[str, str]:
        submission = Submission.for_jobs(self.root, campaign_id, text, [job.job_id for job in jobs])
        if not submission.path.exists():
            submission.stage(text, jobs, spool=self.pool.spool)
        try:
            cluster = self.queue.add(submission)
        except PoolUnreachableError:
            # A later find() or query() resolves whether it is queued.
            raise
        except BatchError:
            submission.remove()
            raise
        return submission.batch_ids(cluster)

    # -- finding again

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Return job id -> batch id of jobs that are or were in the queue.

        Raises:
            BatchError: a submission was interrupted and HTCondor does not answer.
        """
        return self._find_in_campaign(job_ids, "*", holds_lock=False)

    def _find_in_campaign(
        self, job_ids: Iterable[str], campaign: str, *, holds_lock: bool
    ) -> dict[str, str]:
        """Find jobs like :meth:`find`; ``holds_lock`` if the caller holds the campaign's lock."""
        requested_ids = set(job_ids)
        batch_ids: dict[str, str] = {}
        for submission in find_submissions(self.root, campaign):
            if len(batch_ids) == len(requested_ids):
                break
            contained_ids = requested_ids.intersection(submission.job_ids)
            if not contained_ids:
                continue
            cluster = submission.cluster or self.queue.resolve_unconfirmed(
                submission, holds_lock=holds_lock
            )
            if cluster is not None:
                ids = submission.batch_ids(cluster)
                # Older submissions contain a requeued job too.
                batch_ids |= {
                    job_id: ids[job_id] for job_id in contained_ids if job_id not in batch_ids
                }
        return batch_ids

    # -- state

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """Return the status of each known job.

        Raises:
            BatchError: HTCondor does not answer.
        """
        groups = self._group_by_cluster(batch_ids)
        if not groups:
            return {}
        queue = self._query_queue([submission for submission, _, _ in groups])
        statuses: dict[str, JobStatus] = {}
        for submission, cluster, procs in groups:
            ads = queue.get((submission.name, cluster), {})
            statuses |= self._derive_statuses(submission, cluster, procs, ads)
        return statuses

    def _query_queue(
        self, submissions: Sequence[Submission]
    ) -> Mapping[tuple[str, int], Mapping[int, ClassAdValues]]:
        """Return (submission, cluster) -> proc -> ad; the cluster's own ad is proc -1."""
        clauses = {submission.constraint for submission in submissions}
        ads = self.queue.query_ads(
            " || ".join(sorted(clauses)), (*JOB_PROJECTION, *FACTORY_PROJECTION)
        )
        queue: dict[tuple[str, int], dict[int, ClassAdValues]] = defaultdict(dict)
        for ad in ads:
            key = (str(ad.get(SUBMISSION_ATTRIBUTE)), int(ad["ClusterId"]))
            queue[key][int(ad.get("ProcId", -1))] = ad
        return queue

    def _derive_statuses(
        self,
        submission: Submission,
        cluster: int,
        procs: Sequence[int],
        ads: Mapping[int, ClassAdValues],
    ) -> Mapping[str, JobStatus]:
        """Derive the statuses of some jobs of one cluster."""
        fetched = self._fetch_output(cluster, procs, ads) if self.pool.spool else ()
        # Read after the queue: the log explains why a job has left it.
        events = EventLogState.read(submission, fetched)
        cancelled = submission.is_cancelled
        factory = ads.get(-1, {})
        next_proc = factory.get("JobMaterializeNextProcId")
        statuses: dict[str, JobStatus] = {}
        vanished: list[int] = []
        for proc in procs:
            batch_id = f"{cluster}.{proc}@{submission.name}"
            is_unmaterialized = isinstance(next_proc, int) and proc >= next_proc
            ad = ads.get(proc)
            status = derive_status(batch_id, events.job_state(proc), ad, cancelled)
            if status is None and is_unmaterialized:
                status = JobStatus(batch_id, JobState.QUEUED)
            if status is None:
                vanished.append(proc)
            else:
                statuses[batch_id] = _correct_attempt_number(status, submission, proc)
        if vanished:
            statuses |= self._statuses_from_history(submission, cluster, vanished, events)
        return statuses

    def _statuses_from_history(
        self, submission: Submission, cluster: int, procs: Sequence[int], events: EventLogState
    ) -> Mapping[str, JobStatus]:
        """Derive the statuses of jobs that left the queue without an event."""
        constraint = submission.cluster_constraint(
            cluster, procs if len(procs) <= _MAX_NAMED_JOBS else ()
        )
        queued_cluster = submission.cluster
        since = (
            f"CompletionDate > 0 && CompletionDate < {queued_cluster.queued_s - 60}"
            if queued_cluster
            else None
        )
        ads = self.connection.query_schedd(
            lambda schedd: known_values(
                schedd.history(constraint, list(JOB_PROJECTION), since=since)
            )
        )
        ads_by_proc = {int(ad["ProcId"]): ad for ad in ads}
        statuses: dict[str, JobStatus] = {}
        for proc in procs:
            batch_id = f"{cluster}.{proc}@{submission.name}"
            ad = ads_by_proc.get(proc)
            status = derive_status(batch_id, events.job_state(proc), ad, submission.is_cancelled)
            if status is None:
                status = self._status_if_never_materialized(
                    batch_id, submission, events, known_jobs=bool(ads_by_proc)
                )
            if status is not None:
                statuses[batch_id] = _correct_attempt_number(status, submission, proc)
        return statuses

    @staticmethod
    def _status_if_never_materialized(
        batch_id: str, submission: Submission, events: EventLogState, *, known_jobs: bool
    ) -> JobStatus | None:
        """Derive the status of an unknown job in a known cluster: it was removed before its turn."""
        if submission.is_cancelled:
            return JobStatus(batch_id, JobState.CANCELLED, (), "", CANCELLED_REASON)
        if events.cluster_removed or known_jobs:
            reason = "its cluster was removed from the queue before the job's turn came"
            removal_reasons = {
                job.removal_reason for job in events.jobs.values() if job.removal_reason
            }
            if removal_reasons:
                reason += f": {sorted(removal_reasons)[0]}"
            return JobStatus(batch_id, JobState.LOST, (), "lost", reason)
        return None

    def _fetch_output(
        self, cluster: int, procs: Sequence[int], ads: Mapping[int, ClassAdValues]
    ) -> Sequence[int]:
        """Fetch output of completed jobs from the schedd, which then forgets them.

        Returns:
            Procs whose output and event log have arrived.
        """
        completed = [f"{cluster}.{proc}" for proc in procs if _has_output_waiting(ads.get(proc))]
        if completed:
            self.connection.query_schedd(lambda schedd: schedd.retrieve(completed))
        return [proc for proc in procs if _has_left_queue(ads.get(proc))]

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Return attempt -> output folder, as far as the output has arrived."""
        parsed_id = parse_batch_id(batch_id, self.root)
        if parsed_id is None:
            return {}
        submission = self._cached_submission(parsed_id[0])
        try:
            return submission.sandboxes(parsed_id[2])
        except (BatchError, IndexError):
            return {}

    def _cached_submission(self, submission: Submission) -> Submission:
        """Return the last submission if it is the same; its index has been read already."""
        if submission != getattr(self, "_last", None):
            self._last = submission
        return self._last

    # -- ends

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Cancel jobs that are not final and return their number.

        Jobs that are not materialized yet can only be cancelled together with their whole cluster.

        Raises:
            BatchError: HTCondor does not answer; some jobs may be cancelled.
        """
        statuses = self.query(batch_ids)
        open_ids = [batch_id for batch_id, status in statuses.items() if not status.state.is_final]
        for submission, cluster, procs in self._group_by_cluster(open_ids):
            cluster_statuses = self.query(
                f"{cluster}.{proc}@{submission.name}" for proc in range(len(submission.job_ids))
            )
            remaining = [
                status
                for batch_id, status in cluster_statuses.items()
                if not status.state.is_final and batch_id not in open_ids
            ]
            if remaining:
                self.queue.act_on_jobs(
                    "Remove", submission.cluster_constraint(cluster, procs), CANCEL_REASON
                )
            else:
                submission.mark_cancelled()
                self.queue.act_on_jobs(
                    "Remove", submission.cluster_constraint(cluster), CANCEL_REASON
                )
        return len(open_ids)

    def hold(self, batch_ids: Iterable[str], reason: str) -> None:
        """Hold those of the jobs that wait in the queue, with a reason.

        No further jobs of their clusters, each of which is for one door of a site, are materialized.

        Raises:
            BatchError: HTCondor does not answer.
        """
        for submission, cluster, procs in self._group_by_cluster(batch_ids):
            factory = f"{submission.cluster_constraint(cluster)} && isUndefined(ProcId)"
            self.queue.act_on_jobs("Hold", factory, reason)
            idle = f"{submission.cluster_constraint(cluster, procs)} && JobStatus == {IDLE}"
            self.queue.act_on_jobs("Hold", idle, reason)

    def release_held(self, batch_ids: Iterable[str], reason: str) -> bool:
        """Release jobs and clusters that are held for a reason with this text, which is without quotes.

        Raises:
            BatchError: HTCondor does not answer.
        """
        was_held = False
        for submission, cluster, _ in self._group_by_cluster(batch_ids):
            held = (
                f"{submission.cluster_constraint(cluster)} && "
                f'(JobStatus == {HELD} && regexp("{reason}", HoldReason ?: "") || isUndefined(ProcId) '
                f'&& JobMaterializePaused =?= 1 && regexp("{reason}", JobMaterializePauseReason ?: ""))'
            )
            if self.queue.query_ads(held, ["ClusterId"], limit=1):
                was_held = True
                self.queue.act_on_jobs("Release", held, "usable again")
        return was_held

    def release(self, batch_ids: Iterable[str]) -> int:
        """Release held jobs and return their number.

        Raises:
            BatchError: HTCondor does not answer.
        """
        held = [b for b, status in self.query(batch_ids).items() if status.state is JobState.HELD]
        for submission, cluster, procs in self._group_by_cluster(held):
            constraint = submission.cluster_constraint(cluster, procs)
            self.queue.act_on_jobs(
                "Release", f"{constraint} && JobStatus == {HELD}", "treehammer resume"
            )
        return len(held)

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Queue final jobs again; a second call queues nothing.

        Raises:
            BatchError: not all were queued; another call queues the others.
        """
        requeued_ids: dict[str, str] = {}
        for old, cluster, procs in self._group_by_cluster(earlier):
            ids = {old.job_ids[proc]: f"{cluster}.{proc}@{old.name}" for proc in procs}
            last = max(earlier[batch_id] for batch_id in ids.values())
            jobs = rebuild_descriptions(old, ids, last, inputs)
            text = jobs[0].text
            new = Submission.for_jobs(self.root, old.campaign, text, [job.job_id for job in jobs])
            with new.locked():
                queued = None
                if new.path.exists():
                    queued = new.cluster or self.queue.resolve_unconfirmed(new, holds_lock=True)
                queued_ids = (
                    new.batch_ids(queued)
                    if queued
                    else self._submit_cluster(old.campaign, text, jobs)
                )
            requeued_ids |= {batch_id: queued_ids[job_id] for job_id, batch_id in ids.items()}
        return requeued_ids

    def _group_by_cluster(
        self, batch_ids: Iterable[str]
    ) -> list[tuple[Submission, int, list[int]]]:
        groups: dict[tuple[Submission, int], list[int]] = defaultdict(list)
        for batch_id in batch_ids:
            parsed_id = parse_batch_id(batch_id, self.root)
            if parsed_id is not None:
                groups[parsed_id[:2]].append(parsed_id[2])
        return [(submission, cluster, procs) for (submission, cluster), procs in groups.items()]

    def purge(self, batch_ids: Iterable[str]) -> int:
        """Remove submissions whose jobs are all listed and final; return the freed bytes.

        A requeued job is listed by its last batch id.

        Raises:
            BatchError: HTCondor does not answer, or a folder cannot be removed.
        """
        ended: dict[str, set[str]] = defaultdict(set)
        for submission, cluster, procs in self._group_by_cluster(batch_ids):
            if submission.path.is_dir():
                ended[submission.campaign] |= self._ended_job_ids(submission, cluster, procs)
        return sum(
            submission.remove()
            for campaign, job_ids in ended.items()
            for submission in [*find_submissions(self.root, campaign)]
            if job_ids.issuperset(submission.job_ids)
        )

    def _ended_job_ids(
        self, submission: Submission, cluster: int, procs: Sequence[int]
    ) -> set[str]:
        """Return the ids of jobs that are final or unknown to HTCondor."""
        ids = {f"{cluster}.{proc}@{submission.name}": proc for proc in procs}
        open_ids = {i for i, status in self.query(ids).items() if not status.state.is_final}
        return {submission.job_ids[proc] for i, proc in ids.items() if i not in open_ids}

    # -- diagnosis

    def explain_waiting(self, batch_ids: Iterable[str]) -> list[str]:
        """Explain why these jobs do not start or have lost their node, a line each.

        Raises:
            BatchError: HTCondor does not answer.
        """
        groups = self._group_by_cluster(batch_ids)
        constraints = sorted({submission.constraint for submission, _, _ in groups})
        if not constraints:
            return []
        lost = [line for group in groups for line in self._describe_lost_nodes(*group[:2])]
        return [
            *lost,
            *explain_idle_jobs(self.connection, " || ".join(constraints)),
        ]

    def _describe_lost_nodes(self, submission: Submission, cluster: int) -> Iterator[str]:
        ads = self.queue.query_ads(
            f"{submission.cluster_constraint(cluster)} && JobStatus == {RUNNING}",
            LOST_NODE_PROJECTION,
        )
        lease_s = max((int(ad.get("JobLeaseDuration", 0)) for ad in ads), default=0)
        if lease_s:  # in the grid universe, the other pool watches the node
            disconnections = find_disconnections(ads, EventLogState.read(submission).jobs)
            yield from describe_disconnections(disconnections, lease_s)

    def matching_slots(self, requirements: str) -> tuple[int, int]:
        """Count the slots that a requirements expression matches, and all slots of the pool.

        Raises:
            BatchError: HTCondor does not answer, or the expression is invalid.
        """
        return count_matching_slots(self.connection, requirements)

    def check(self) -> ScheddIdentity:
        """Check that the pool's collector and schedd answer and accept submissions.

        Raises:
            BatchError: one does not answer or denies access.
        """
        return check_pool(self.connection)


def _correct_attempt_number(status: JobStatus, submission: Submission, proc: int) -> JobStatus:
    """Replace the guessed numbers of attempts.

    They continue those before a requeue, as the start script counts. Output shows the last number.
    """
    if not status.attempts:
        return status
    previous = submission.previous_attempts
    if status.attempts[0].number <= previous:  # no event and no ad gave the numbers
        counted = (
            replace(guessed, number=guessed.number + previous) for guessed in status.attempts
        )
        status = replace(status, attempts=tuple(counted))
    if not status.state.is_final:
        return status
    *earlier, last = status.attempts
    if not isinstance(last, GuessedAttemptStatus):
        return status
    number = max(submission.sandboxes(proc), default=last.number)
    earlier = [attempt for attempt in earlier if attempt.number < number]
    if number > last.number:
        reason = "the other pool restarted it"
        earlier.append(
            replace(last, state=JobState.LOST, exit_code=None, reason=reason, failure_class="lost")
        )
    return replace(status, attempts=(*earlier, replace(last, number=number)))


def _has_left_queue(ad: ClassAdValues | None) -> bool:
    """Return whether a job left the queue, except possibly for its output."""
    return ad is None or ad.get("JobStatus") == COMPLETED


def _has_output_waiting(ad: ClassAdValues | None) -> bool:
    """Return whether the schedd holds a job's output."""
    return ad is not None and ad.get("JobStatus") == COMPLETED and not ad.get("StageOutFinish")
