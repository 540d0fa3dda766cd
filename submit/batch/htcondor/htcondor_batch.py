"""HTCondor batch system: submission, status, output, removal and diagnosis of jobs in one pool."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from treehammer.collectors.job_spec import HTCONDOR_PREFIX
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.operation_steps import LoadProgress
from treehammer.collectors.shared_files import is_locked
from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, suggest_word
from treehammer.submit.batch.htcondor.event_log import CONFIRM_AFTER_US, FIRST_EVENT, EventLog
from treehammer.submit.batch.htcondor.job_events import (
    CANCEL_REASON,
    COMPLETED_STATUS,
    HELD_STATUS,
    IDLE_STATUS,
    JOB_PROJECTION,
    SPOOLING,
    ClassAdValues,
)
from treehammer.submit.batch.htcondor.pool import (
    HTCondorPool,
    PoolConnection,
    PoolUnreachableError,
    configured_bindings,
    is_refusal,
)
from treehammer.submit.batch.htcondor.pool_probes import probe_pool
from treehammer.submit.batch.htcondor.submit_description import (
    HOLD_LIMIT_S,
    IDLE_LIMIT_S,
    MAX_GRID_ATTEMPTS,
    MAX_LEASE_S,
    RETRY_PAUSE_S,
    VACATE_GRACE_S,
    Submission,
)
from treehammer.submit.batch.htcondor.submit_language import (
    FILTERS,
    check_description,
    check_site_command,
)
from treehammer.submit.batch.interface import (
    BatchDeclaration,
    BatchSite,
    InputReplacement,
    JobDescription,
    JobStatus,
    LoadPools,
    ProbeResult,
    UnknownBatchSystemError,
)
from treehammer.submit.batch.submission_folder import INCOMING, FolderBatch
from treehammer.text_formatting import format_minute, pluralize

#: Jobs per cluster with spooled inputs: all of them are in the queue at once.
MAX_SPOOLED_JOBS = 1000
_SILENT_SINCE = "GridResourceUnavailableTime"
_QUEUE_PROJECTION = (
    *("ClusterId", "JobMaterializeNextProcId", "GridJobStatus", "StageOutFinish", _SILENT_SINCE),
    *JOB_PROJECTION,
)
_BATCH_ID = re.compile(r"(\d+)\.(\d+)@([A-Za-z0-9_-]+)\.([0-9a-f]+)")
#: The event log of a cluster, and the procs of some of its jobs.
ClusterJobs = tuple[EventLog, list[int]]
#: Limits of a schedd, by the number of a job that the bindings say they expected instead of it.
_LIMITS = {
    "-2": "the schedd's limit MAX_JOBS_SUBMITTED",
    "-3": "the schedd's limit MAX_JOBS_PER_OWNER",
    "-4": "the schedd's limit MAX_JOBS_PER_SUBMISSION",
}
_LEASE = re.compile(r"^\s*job_lease_duration\s*=\s*(\d+)", re.MULTILINE | re.IGNORECASE)


class HTCondorBatch(FolderBatch[Submission]):
    """Jobs of one HTCondor pool.

    Args:
        pool: the pool.
        folder: folder of submissions if the pool sets no ``submit_dir``; created when needed.
    """

    folder_type = Submission

    def __init__(self, pool: HTCondorPool, folder: Path) -> None:
        self.name = f"{HTCONDOR_PREFIX}{pool.name}"
        self.pool = pool
        self.root = (pool.submit_dir or folder).resolve()
        self.connection = PoolConnection(pool)
        self._find_log = cache(EventLog)

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Queue the jobs in this order; jobs already queued keep their batch id.

        Raises:
            BatchError: not all were queued; :meth:`find` returns those that were.
        """
        try:
            (self.root / INCOMING).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BatchError(
                f"cannot create the folder for submissions ({error.strerror})",
                where=str(self.root),
                hint=f"Correct pools.{self.pool.name}.submit_dir in the sites file.",
            ) from error
        with Submission.for_jobs(self.root, campaign_id, "", ()).locked():
            resolve = partial(self._resolve, holds_lock=True)
            batch_ids = self.find_submitted((job.job_id for job in jobs), resolve, campaign_id)
            size = MAX_SPOOLED_JOBS if self.pool.spool else len(jobs) or 1
            for group in self.group_jobs(jobs, batch_ids, size):
                batch_ids |= self._submit_cluster(campaign_id, group)
        return batch_ids

    def _submit_cluster(self, campaign: str, jobs: Sequence[JobDescription]) -> dict[str, str]:
        submission = Submission.for_group(self.root, campaign, jobs)
        if not submission.path.exists():
            submission.stage(jobs[0].text, jobs, spool=self.pool.spool)
        try:
            return submission.batch_ids(self._add_cluster(submission))
        except PoolUnreachableError:
            # A later find() or query() resolves whether it is queued.
            raise
        except BatchError:
            submission.remove()
            raise

    def _add_cluster(self, submission: Submission) -> int:
        """Submit a cluster exactly once.

        Raises:
            PoolUnreachableError: it is unknown whether the cluster is queued.
            BatchError: the cluster is not queued.
        """
        connection = self.connection
        for pause in (*connection.pauses_s, None):
            with configured_bindings(self.pool) as htcondor:
                try:
                    location = connection.call(connection.locate_schedd)
                except PoolUnreachableError as error:  # nothing was sent
                    raise BatchError(error.message, where=error.where, hint=error.hint) from error
                # Only this schedd can tell later whether it took the jobs.
                submission.record_cluster(0, location.get("Name", ""))
                try:
                    cluster = self._add_jobs(htcondor.Schedd(location), htcondor, submission)
                    return submission.record_cluster(cluster, submission.schedd)
                except htcondor.HTCondorException as error:
                    # The schedd did not confirm whether it accepted the jobs.
                    connection.forget_location()
                    if queued := self._find_cluster(submission):
                        return submission.record_cluster(queued, submission.schedd)
                    if is_refusal(error):
                        refused = connection.unreachable_error(error)
                        raise BatchError(
                            refused.message, where=refused.where, hint=refused.hint
                        ) from error
                    if pause is None:
                        text = " ".join(str(error).split())
                        reason = _LIMITS.get(text.rpartition(" Schedd says ")[2], text)
                        raise BatchError(
                            f"HTCondor does not accept the jobs ({reason})",
                            where=f"pools.{self.pool.name}",
                            hint="Nothing of this cluster was submitted. Add what the schedd requires "
                            "to the site's submit and submit again; at a limit, send fewer jobs.",
                        ) from error
            time.sleep(pause)
        raise AssertionError("the last pause is None")

    def _add_jobs(self, schedd: Any, htcondor: ModuleType, submission: Submission) -> int:
        """Send a cluster to the schedd and return its number.

        Raises:
            htcondor2.HTCondorException: it is unknown whether the cluster is queued.
            BatchError: HTCondor cannot read the description.
        """
        items = ({"job_id": job_id} for job_id in submission.job_ids)
        try:
            try:
                description = htcondor.Submit(submission.read_description())
            except htcondor.HTCondorException as error:
                raise ValueError(str(error)) from error
            result = schedd.submit(description, spool=self.pool.spool, itemdata=items)
        except ValueError as error:
            raise BatchError(
                f"HTCondor does not accept the jobs ({error})",
                where=str(submission.description_file),
                hint="Nothing of this cluster was submitted. Correct the template or the site.",
            ) from error
        if self.pool.spool:
            schedd.spool(result)
        return int(result.cluster())

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Return job id -> batch id of jobs that are or were in the queue.

        Raises:
            BatchError: a submission was interrupted and HTCondor does not answer.
        """
        return self.find_submitted(job_ids, partial(self._resolve, holds_lock=False))

    def _resolve(self, submission: Submission, *, holds_lock: bool) -> int | None:
        """Return the cluster of a submission; if none is recorded, find out whether it is queued.

        ``holds_lock`` if the caller holds the campaign's lock, so that no submitter is alive.
        """
        if recorded := submission.cluster:
            return recorded
        abandoned = holds_lock or not is_locked(submission.lock_file)
        cluster = self._find_cluster(submission)
        if cluster is None or not abandoned:
            return cluster
        spooling = f"{submission.constraint} && ProcId >= 0 && HoldReasonCode == {SPOOLING}"
        if self.pool.spool and self.connection.query_ads(spooling, ["ProcId"], limit=1):
            # Its inputs will never arrive.
            self.connection.act_on_jobs("Remove", submission.constraint, CANCEL_REASON)
            submission.remove()
            return None
        return submission.record_cluster(cluster, submission.schedd)

    def _find_cluster(self, submission: Submission) -> int | None:
        """Find a submission's cluster in its log, or in queue and history, which forgets.

        Raises:
            PoolUnreachableError: HTCondor does not answer, or its schedd is another.
        """
        with suppress(OSError):
            if first := FIRST_EVENT.match(submission.log_file.read_bytes()):
                return int(first[1])
        self._check_schedd(submission)
        query = submission.constraint, ["ClusterId"]
        ads = self.connection.query_ads(*query, limit=1)
        ads = ads or self.connection.query_history(*query, match=1)
        return int(ads[0]["ClusterId"]) if ads else None

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """Return the status of each known job.

        Raises:
            BatchError: HTCondor does not answer, and a log is missing or incomplete.
        """
        groups = self._read_logs(batch_ids)
        now_us = current_us()
        doubtful = [(log, procs) for log, procs in groups if log.needs_schedd(procs, now_us)]
        unknown: set[str] = set()
        try:
            if doubtful:
                unknown = self._ask_schedd(doubtful)
        except PoolUnreachableError:
            if not all(log.is_complete for log, _ in doubtful):
                raise
        return {
            status.batch_id: status
            for log, procs in groups
            for status in map(log.status, procs)
            if status.batch_id not in unknown
        }

    def _read_logs(self, batch_ids: Iterable[str]) -> list[ClusterJobs]:
        """Read what was added to the event logs of jobs; return each with the procs of its jobs."""
        groups: dict[EventLog, list[int]] = defaultdict(list)
        for _, submission, cluster, proc in self.locate_all(batch_ids):
            groups[self._find_log(submission, cluster)].append(proc)
        for log in groups:
            log.read()
        return [*groups.items()]

    def locate(self, batch_id: str) -> tuple[Submission, int, int] | None:
        """Return submission, cluster and proc of a batch id; None for another format."""
        if match := _BATCH_ID.fullmatch(batch_id):
            cluster, proc, campaign, tag = match.groups()
            log = self._find_log(Submission(self.root, campaign, tag), int(cluster))
            # The submission of a log has read its index already.
            return log.submission, log.cluster, int(proc)
        return None

    def _check_schedd(self, submission: Submission) -> None:
        """Check that the schedd that is asked about jobs, or acts on them, is theirs.

        Raises:
            PoolUnreachableError: it is another, and no schedd named in the place of one that is gone.
        """
        owner = submission.schedd
        name = owner and (self.pool.schedd or self.connection.find_schedd_name())
        if name.lower() == owner.lower():  # as HTCondor compares them
            return
        if not self.pool.schedd or self.connection.query_collector("Schedd", f'Name == "{owner}"'):
            raise PoolUnreachableError(
                f"the schedd {owner} has the jobs, and not {name}",
                where=f"pools.{self.pool.name}",
                hint="Name the schedd that has them as `schedd` of the pool in the sites file; "
                "if it is gone for ever, name another in its place.",
            )

    def _require_schedd(self, groups: Iterable[ClusterJobs]) -> Iterator[ClusterJobs]:
        """Yield clusters of whose jobs the schedd is that at the submission."""
        for log, procs in groups:
            self._check_schedd(log.submission)
            yield log, procs

    def _ask_schedd(self, groups: Sequence[ClusterJobs]) -> set[str]:
        """Add to the logs what queue and history say of open jobs; return ids that neither knows.

        Raises:
            PoolUnreachableError: HTCondor does not answer.
        """
        queue = self._fetch_queue(groups)
        vanished: dict[EventLog, list[int]] = {}
        for log, procs in self._require_schedd(groups):
            ads = queue[log.cluster]
            if self.pool.spool:
                self._fetch_output(log, procs, ads)
            log.read()  # after the queue: it says why a job has left it
            next_proc = ads.get(-1, {}).get("JobMaterializeNextProcId")
            for proc in procs:
                if proc in log.jobs and log.jobs[proc].is_final:
                    continue
                if proc in ads:
                    log.job(proc).apply_ad(ads[proc])
                elif not (isinstance(next_proc, int) and proc >= next_proc):
                    vanished.setdefault(log, []).append(proc)
        unknown = self._ask_history(vanished)
        for log, _ in groups:
            log.confirmed_us = current_us()
        return unknown

    def _fetch_queue(self, groups: Sequence[ClusterJobs]) -> dict[int, dict[int, ClassAdValues]]:
        """Fetch the ads of clusters in the queue by cluster and proc, -1 for the cluster's own."""
        constraint = " || ".join(sorted({log.submission.constraint for log, _ in groups}))
        queue: dict[int, dict[int, ClassAdValues]] = defaultdict(dict)
        retries = not all(log.is_complete for log, _ in groups)  # a complete log does without
        for ad in self.connection.query_ads(constraint, _QUEUE_PROJECTION, retries=retries):
            queue[int(ad["ClusterId"])][int(ad.get("ProcId", -1))] = ad
        return queue

    def _ask_history(self, vanished: Mapping[EventLog, Sequence[int]]) -> set[str]:
        """Add to the logs how jobs left the queue; return the ids that the history does not know.

        Raises:
            PoolUnreachableError: HTCondor does not answer.
        """
        if not vanished:
            return set()
        ads = self._fetch_history(vanished)
        unknown: set[str] = set()
        for log, procs in vanished.items():
            ads_by_proc = {p: ads[log.cluster, p] for p in procs if (log.cluster, p) in ads}
            is_removed = (
                ads_by_proc or log.is_cluster_removed or log.submission.cancellation_mark.exists()
            )
            for proc in procs:
                if proc in ads_by_proc:
                    log.job(proc).apply_ad(ads_by_proc[proc])
                elif is_removed:
                    log.remove_unstarted(proc)
                else:
                    unknown.add(log.batch_id(proc))
        return unknown

    def _fetch_history(self, logs: Collection[EventLog]) -> dict[tuple[int, int], ClassAdValues]:
        """Fetch the ads of jobs that left the queue by cluster and proc."""
        # One query for all clusters: the schedd reads its whole history for each.
        constraint = " || ".join(f"({log.constraint()})" for log in logs)
        staged_s = min(log.submission.staged_s for log in logs)
        # The clock of the schedd may be behind, by less than a day.
        since = f"CompletionDate > 0 && CompletionDate < {staged_s - 86_400}" if staged_s else None
        projection = ("ClusterId", *JOB_PROJECTION)
        ads = self.connection.query_history(constraint, projection, since=since)
        return {(int(ad["ClusterId"]), int(ad["ProcId"])): ad for ad in ads}

    def _fetch_output(
        self, log: EventLog, procs: Sequence[int], ads: Mapping[int, ClassAdValues]
    ) -> None:
        """Fetch output and events of completed jobs from the schedd, which then forgets them."""
        ended = [p for p in procs if ads.get(p, {}).get("JobStatus", 0) in (0, COMPLETED_STATUS)]
        unfetched = [p for p in ended if p in ads and not ads[p].get("StageOutFinish")]
        if unfetched:
            jobs = [f"{log.cluster}.{proc}" for proc in unfetched]
            self.connection.query_schedd(lambda schedd: schedd.retrieve(jobs))
        for proc in ended:
            log.read_returned(proc)

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Return attempt -> output folder, as far as the output has arrived."""
        with suppress(BatchError, IndexError):
            if location := self.locate(batch_id):
                return location[0].sandboxes(location[2])
        return {}

    def read_load_steps(self, batch_ids: Iterable[str]) -> list[LoadProgress]:
        """Return the last time step of each of the jobs that loads now.

        Workers set it as an attribute, which becomes an event.  The schedd's answers to :meth:`query`
        have it where its log is not here.
        """
        return [
            job.load
            for log, procs in self._read_logs(batch_ids)
            for proc in procs
            if (job := log.jobs.get(proc)) and job.load
        ]

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Cancel jobs that are not final and return their number.

        Jobs that are not materialized yet can only be cancelled together with their whole cluster.

        Raises:
            BatchError: HTCondor does not answer; some jobs may be cancelled.
        """
        open_ids = self.find_open(batch_ids)
        for log, procs in self._require_schedd(self._read_logs(open_ids)):
            ids = log.submission.batch_ids(log.cluster).values()
            is_whole = open_ids.issuperset(self.find_open(ids))
            if is_whole:
                log.submission.cancellation_mark.touch()
            removed_procs = () if is_whole else procs
            self.connection.act_on_jobs("Remove", log.constraint(removed_procs), CANCEL_REASON)
        return len(open_ids)

    def hold(self, batch_ids: Iterable[str], reason: str) -> None:
        """Hold those of the jobs that wait in the queue, with a reason.

        No further jobs of their clusters, each of which is for one door of a site, are materialized.

        Raises:
            BatchError: HTCondor does not answer.
        """
        for log, procs in self._require_schedd(self._read_logs(batch_ids)):
            factory = f"{log.constraint()} && isUndefined(ProcId)"
            idle = f"{log.constraint(procs)} && JobStatus == {IDLE_STATUS}"
            self.connection.act_on_jobs("Hold", f"{factory} || {idle}", reason)

    def release_held(self, batch_ids: Iterable[str], reason: str) -> bool:
        """Release jobs and clusters that are held for a reason with this text, which is without quotes.

        Raises:
            BatchError: HTCondor does not answer.
        """
        was_held = False
        groups = [group for group in self._read_logs(batch_ids) if group[0].may_hold(reason)]
        for log, _ in self._require_schedd(groups):
            held_jobs = (
                f"{log.constraint()} && "
                f'(JobStatus == {HELD_STATUS} && regexp("{reason}", HoldReason ?: "") || isUndefined(ProcId) '
                f'&& JobMaterializePaused =?= 1 && regexp("{reason}", JobMaterializePauseReason ?: ""))'
            )
            if self.connection.query_ads(held_jobs, ["ClusterId"], limit=1):
                was_held = True
                self.connection.act_on_jobs("Release", held_jobs, "usable again")
        return was_held

    def release(self, batch_ids: Iterable[str]) -> int:
        """Release held jobs and return their number.

        Raises:
            BatchError: HTCondor does not answer.
        """
        held_ids = self.find_held(batch_ids)
        for log, procs in self._require_schedd(self._read_logs(held_ids)):
            constraint = f"{log.constraint(procs)} && JobStatus == {HELD_STATUS}"
            self.connection.act_on_jobs("Release", constraint, "treehammer resume")
        return len(held_ids)

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Queue final jobs again; a second call queues nothing.

        Raises:
            BatchError: not all were queued; another call queues the others.
        """
        requeued_ids: dict[str, str] = {}
        for log, procs in self._read_logs(self.find_kept(earlier)):
            old = log.submission
            ids = {old.job_ids[proc]: log.batch_id(proc) for proc in procs}
            jobs = old.rebuild_jobs(ids, max(earlier[b] for b in ids.values()), inputs)
            new = Submission.for_group(self.root, old.campaign, jobs)
            with new.locked():
                queued = self._resolve(new, holds_lock=True) if new.path.exists() else None
                queued_ids = (
                    new.batch_ids(queued) if queued else self._submit_cluster(old.campaign, jobs)
                )
            requeued_ids |= {batch_id: queued_ids[job_id] for job_id, batch_id in ids.items()}
        return requeued_ids

    def describe(self, campaign_id: str, jobs: Sequence[JobDescription]) -> str:
        """Return the submit description of a cluster, with its ``queue`` statement."""
        submission = Submission.for_group(self.root, campaign_id, jobs)
        text = submission.full_description(jobs[0].text, jobs, spool=self.pool.spool)
        return text + _queue_statement(jobs)

    def stage(self, campaign_id: str, jobs: Sequence[JobDescription], folder: Path) -> None:
        """Write a submission below a folder, with a ``submit.txt`` for condor_submit."""
        root = folder.resolve() / self.pool.name
        submission = Submission.for_group(root, campaign_id, jobs)
        # condor_submit on the command line spools nothing.
        submission.stage(jobs[0].text, jobs, spool=False)
        with submission.description_file.open("a", encoding="utf-8") as stream:
            stream.write(_queue_statement(jobs))
        (root / INCOMING).rmdir()

    def probe(self, sites: Sequence[BatchSite]) -> Iterator[ProbeResult]:
        """Probe the pool's daemons and tokens, and whether its slots match the sites' jobs."""
        return probe_pool(self.connection, sites)

    def explain_waiting(self, batch_ids: Iterable[str]) -> list[str]:
        """Explain why these jobs do not start or have lost their node, a line each.

        Raises:
            BatchError: HTCondor does not answer.
        """
        ids = list(batch_ids)
        self.query(ids)
        return [*self._explain_clusters([*self._require_schedd(self._read_logs(ids))])]

    def _explain_clusters(self, groups: Sequence[ClusterJobs]) -> Iterator[str]:
        """Explain lost nodes, clusters without jobs in the queue, and idle jobs without a slot.

        Jobs of a cluster are alike, so one is checked.
        """
        queue = self._fetch_queue(groups) if groups else {}
        query_slots = cache(self.connection.query_slots)
        for log, _ in groups:
            ads = queue[log.cluster]
            idle = [proc for proc, ad in ads.items() if ad.get("JobStatus") == IDLE_STATUS]
            count = "1 job is" if len(idle) == 1 else f"{len(idle)} jobs are"
            yield from _describe_lost_nodes(log)
            last_ad = max(ads.values(), key=lambda ad: ad.get(_SILENT_SINCE, 0), default={})
            if since_us := last_ad.get(_SILENT_SINCE, 0) * 1_000_000:
                yield f"{last_ad['GridResource']} has not answered since {format_minute(since_us)} UTC"
            staged_us = log.submission.staged_s * 1_000_000
            last_us = max((job.last_us for job in log.jobs.values()), default=staged_us)
            if log.pause_reason:
                yield f"HTCondor adds no more jobs of cluster {log.cluster}: {log.pause_reason}"
            elif ads.keys() == {-1} and last_us < current_us() - CONFIRM_AFTER_US:
                yield f"no job of cluster {log.cluster} enters the queue: is MAX_JOBS_PER_OWNER reached?"
            if not idle or "RoutedToJobId" in ads[idle[0]]:  # it waits in another queue
                continue
            if resource := ads[idle[0]].get("GridResource"):
                if not ads[idle[0]].get("GridJobStatus"):
                    yield f"{count} not accepted yet by {resource}"
            elif not self.connection.is_matched(log.cluster, idle[0], query_slots()):
                yield (
                    f"{count} idle: no slot of {len(query_slots())} matches (condor_q -better-analyze "
                    f"{log.cluster}.{idle[0]})"
                )


def _queue_statement(jobs: Iterable[JobDescription]) -> str:
    return "\n".join(["queue job_id from (", *(job.job_id for job in jobs), ")", ""])


def _describe_lost_nodes(log: EventLog) -> Iterator[str]:
    """Describe each node without contact to its jobs, a line each.

    In the grid universe, whose jobs have no lease, the other pool watches the node.
    """
    lease = _LEASE.search(log.submission.read_description())
    if lease is None:
        return
    times_by_host: dict[str, list[int]] = defaultdict(list)
    for job in log.jobs.values():
        start = job.last_start
        if start and start.is_open and start.disconnected_us:
            host = start.lost_node or start.host or "its node"
            times_by_host[host].append(start.disconnected_us // 1_000_000)
    for host, times in times_by_host.items():
        moments = (min(times), max(times) + int(lease[1]))
        since, until = (time.strftime("%H:%M:%S %Z", time.localtime(moment)) for moment in moments)
        yield (
            f"no contact to {host}, where {pluralize(len(times), 'job')} ran, since {since}; "
            f"if it stays lost, HTCondor starts the jobs again after {until}"
        )


def _open_pool(name: str, settings: Settings, load_pools: LoadPools) -> HTCondorBatch:
    """Open the batch system of a pool.

    Raises:
        UnknownBatchSystemError: the sites file has no such pool.
        ConfigError: files named in the pool's table do not exist.
        SitesError: the sites file cannot be read or has mistakes.
    """
    pools, where = load_pools(), str(settings.sites_file or "")
    if name not in pools:
        raise UnknownBatchSystemError(
            f"unknown pool {name!r}" if where else f"no sites file defines pool {name!r}",
            where=where,
            hint=f"{suggest_word(name, pools)}Known pools: {', '.join(pools) or 'none'}. "
            f"Its jobs are left unchanged; name a sites file with [pools.{name}]: --sites-file FILE.",
        )
    pool = pools[name]
    is_usable_by_key = {
        "config": Path.is_file,
        "token_dir": Path.is_dir,
        "scitoken_file": Path.is_file,
    }
    for key, is_usable in is_usable_by_key.items():
        path = getattr(pool, key)
        # HTCondor would ignore silently that it is missing.
        if path is not None and not is_usable(path):
            raise ConfigError(
                f"pools.{name}.{key}: {path} does not exist",
                where=where,
                hint="Correct the path. A testbed's files exist only while the testbed is up.",
            )
    return HTCondorBatch(pool, settings.htcondor_dir / name)


BATCH = BatchDeclaration(
    _open_pool,
    Path(__file__).parents[1] / "htcondor.sub.j2",
    FILTERS,
    is_per_cluster=True,
    find_limits=lambda wall_s: {
        "attempts": MAX_GRID_ATTEMPTS,
        "idle_s": IDLE_LIMIT_S,
        "lease_s": min(wall_s, MAX_LEASE_S),
        "held_s": HOLD_LIMIT_S,
        "pause_s": RETRY_PAUSE_S,
        "vacate_s": VACATE_GRACE_S,
    },
    check_text=check_description,
    check_command=check_site_command,
)
