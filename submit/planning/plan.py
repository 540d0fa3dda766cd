"""Plans: the matrix expanded over sites, doors and repeats into jobs, and their clusters.

A cluster contains the jobs of a site that a batch system such as HTCondor receives together, with one submit description.
Each door of a site has its own cluster, so that concurrency can be limited by door, and so has each
number of CPUs.  If a site allows fewer concurrent jobs than it would have clusters, all jobs share one.
"""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from treehammer.analysis.statistics.verdict import (
    PLAN_KEY,
    SEQUENTIAL_JOBS,
    SEQUENTIAL_LAUNCHES,
    SequentialPlan,
)
from treehammer.collectors.job_spec import JobState, SoftwareRequest
from treehammer.datasets.manifest import Manifest
from treehammer.hctests.definition.model import PinnedTest
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.submit.batch.interface import find_batch
from treehammer.submit.planning import job_templates
from treehammer.submit.planning.job_planner import (
    JobPlanner,
    Lane,
    PlannedJob,
    hash_values,
)
from treehammer.submit.planning.job_sequence import JobSequence, ServerWatch
from treehammer.submit.planning.reading_checks import list_limit_notes, refuse_missing_software
from treehammer.submit.planning.site_selection import (
    SitePair,
    SiteSelection,
    pair_sites,
    select_jobs,
)
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS, SubmissionOptions
from treehammer.submit.sites.replicas import NO_RUCIO_PLACEMENT, RucioPlacement
from treehammer.submit.sites.site_model import Site

if TYPE_CHECKING:
    from treehammer.submit.planning.cost_estimate import PlanReview

#: Bytes of a job's sandbox without staged files: worker, payload, logs and records.
SANDBOX_OVERHEAD_BYTES = 250_000_000


@dataclass(frozen=True)
class Plan:
    """A campaign, ready to be rendered and submitted.

    Attributes:
        site_pairs: each site that runs jobs, with a site whose storage they read.
        notes: the parts of the request that a site cannot serve.
        request: the request as canonical JSON.
        review: its costs and the rules that it breaks; None until it is reviewed.
    """

    campaign_id: str
    campaign_name: str
    created_us: int
    pinned_test: PinnedTest
    manifest: Manifest | None
    site_pairs: tuple[SitePair, ...]
    jobs: JobSequence
    notes: tuple[str, ...]
    request: str
    options: SubmissionOptions = DEFAULT_OPTIONS
    review: PlanReview | None = None

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites that run the jobs."""
        return tuple({site.name: site for site, _ in self.site_pairs}.values())

    @property
    def storage_sites(self) -> tuple[Site, ...]:
        """The sites whose storage is read."""
        return tuple({storage.name: storage for _, storage in self.site_pairs}.values())

    def site(self, name: str) -> Site:
        """Return the site with this name that runs jobs."""
        return next(site for site in self.sites if site.name == name)

    @property
    def execution_count(self) -> int:
        """Number of planned measurements, timed and checksum."""
        return sum(len(job.spec.executions) * times for job, times in self.job_kinds)

    @cached_property
    def job_kinds(self) -> tuple[tuple[PlannedJob, int], ...]:
        """One job of each kind with its number of repeats, which all cost the same."""
        return tuple(self.jobs.iterate_kinds())

    @cached_property
    def clusters(self) -> tuple[JobCluster, ...]:
        """The jobs at sites whose batch system takes clusters, grouped into them."""
        jobs_by_lane: dict[str, dict[Lane, list[tuple[PlannedJob, int]]]] = {}
        for job, count in self.job_kinds:
            if find_batch(job.site.batch).is_per_cluster:
                site_jobs = jobs_by_lane.setdefault(job.site.name, {})
                site_jobs.setdefault(job.lane, []).append((job, count))
        return tuple(
            _plan_cluster(self, group, site_jobs)
            for site, site_jobs in jobs_by_lane.items()
            for group in _group_lanes(tuple(site_jobs), self.site(site).ceilings.in_flight)
        )

    def until_decided(self, sequential: SequentialPlan, checksums: str = "") -> Plan:
        """Return the plan of the same campaign up to the last look of a sequential plan.

        Args:
            sequential: the looks.
            checksums: earlier campaign whose checksum executions need not be repeated; '' for none.
        """
        document = sequential.describe() | ({"checksums": checksums} if checksums else {})
        request = json.loads(self.request) | {PLAN_KEY: document}
        planner = replace(self.jobs.planner, is_sequential=True)
        plan = replace(
            self,
            jobs=replace(self.jobs, planner=planner, has_checksums=not checksums),
            request=json.dumps(request, sort_keys=True),
            review=None,
        )
        return plan.between_looks(0, sequential.looks[-1])

    def between_looks(self, before: int, after: int) -> Plan:
        """Return the part of a sequential plan between two numbers of launches of each series."""
        first, last = (
            launches * SEQUENTIAL_JOBS // SEQUENTIAL_LAUNCHES for launches in (before, after)
        )
        jobs = replace(self.jobs, repeats=range(first + 1, last + 1))
        return replace(self, jobs=jobs, review=None)

    def make_campaign_row(self) -> CampaignRow:
        """Return the campaign as a database row."""
        pinned = self.pinned_test
        return CampaignRow(
            id=self.campaign_id,
            name=self.campaign_name,
            created_us=self.created_us,
            repository=pinned.repository,
            ref=pinned.ref,
            commit_id=pinned.commit,
            dirty=pinned.dirty,
            test_name=pinned.definition.test.name,
            test_path=pinned.path,
            plan=self.request,
            planned_jobs=len(self.jobs),
            planned_measurements=self.execution_count,
        )

    def make_job_rows(self) -> Iterator[JobRow]:
        """Yield the jobs as database rows, before submission."""
        for job in self.jobs:
            yield JobRow(
                id=job.spec.job_id,
                campaign_id=self.campaign_id,
                site=job.site.name,
                door=job.access.door_label,
                kind=job.kind,
                repeat=job.repeat,
                label=job.label,
                batch_system=job.site.batch,
                batch_id="",
                planned_measurements=len(job.spec.executions),
                state=JobState.QUEUED.value,
            )


def make_plan(
    pinned: PinnedTest,
    sites: SiteSelection,
    manifest: Manifest | None,
    software: Mapping[str, SoftwareRequest],
    *,
    created_us: int,
    name: str = "",
    site_software: Mapping[tuple[str, str], SoftwareRequest] = MappingProxyType({}),
    options: SubmissionOptions = DEFAULT_OPTIONS,
    other_manifests: Mapping[str, Manifest] = MappingProxyType({}),
    placement: RucioPlacement = NO_RUCIO_PLACEMENT,
    watches: Sequence[ServerWatch] = (),
    campaign_id: str = "",
    max_jobs: int = 0,
) -> Plan:
    """Expand a test into the jobs of a campaign.

    Args:
        pinned: the test.
        sites: sites whose storage is read, and sites that run the jobs.
        manifest: manifest of the test's dataset; None for a test without one.
        software: value of the ``root`` axis -> software request.
        created_us: time of the request, microseconds since 1970 UTC; part of the identity.
        name: display name; by default made of test, commit and time.
        site_software: (site, value of the ``root`` axis) -> the site's own software request.
        options: options of the submission.
        other_manifests: name -> manifest of the further datasets of its axis, or in other formats.
        placement: files of the dataset at doors with an RSE.
        watches: tests that watch the servers during the load.
        campaign_id: identity fixed by an earlier plan of the same campaign; '' to derive it.
        max_jobs: number of jobs after which the plan ends; 0 for all, and for load tests, whose
            jobs wait for each other.

    Raises:
        NothingToDoError: no variant can run at these sites.
    """
    request = _canonical_request(pinned, sites, watches)
    identity = hash_values(created_us, pinned.repository, pinned.commit, pinned.hashes, request)
    campaign_id = campaign_id or identity[:16]
    name = name or _default_display_name(pinned, created_us)
    planner = JobPlanner(
        pinned, manifest, software, campaign_id, name, site_software, other_manifests, placement
    )
    pairs = pair_sites(sites.storage, sites.runners)
    jobs, notes = select_jobs(
        JobSequence(planner, (), tuple(watches), 0 if pinned.definition.load else max_jobs),
        pairs,
        excluded=sites.excluded,
    )
    refuse_missing_software(jobs)
    notes += list_limit_notes(jobs, has_credential=bool(options.credentials))
    watching = [
        (server, site) for watch in watches for server in watch.sites for site in sites.storage
    ]
    by_names = {(site.name, storage.name): (site, storage) for site, storage in [*pairs, *watching]}
    return Plan(
        campaign_id=campaign_id,
        campaign_name=name,
        created_us=created_us,
        pinned_test=pinned,
        manifest=manifest,
        site_pairs=tuple(by_names.values()),
        jobs=jobs,
        notes=(*sites.list_notes(), *notes),
        request=request,
        options=options,
    )


def _canonical_request(
    pinned: PinnedTest,
    sites: SiteSelection,
    watches: Sequence[ServerWatch],
) -> str:
    """Return the request as canonical JSON."""
    document = {
        "definition": pinned.definition.describe(),
        "submitter": _find_user(),
        "sites": [site.name for site in sites.storage],
        **({"from": [site.name for site in sites.runners]} if sites.runners else {}),
        **sites.describe(),
        **({"watch": [watch.describe() for watch in watches]} if watches else {}),
        "templates": {
            site.name: job_templates.fingerprint_template(site)
            for site in sites.runners or sites.storage
        },
    }
    return json.dumps(document, sort_keys=True, default=str)


def _find_user() -> str:
    """Find the name of the user; '' in a container without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _default_display_name(pinned: PinnedTest, created_us: int) -> str:
    commit = pinned.commit[:7] or "no-commit"
    dirty = "+dirty" if pinned.dirty else ""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created_us // 1_000_000))
    return f"{pinned.definition.test.name}@{commit}{dirty} {when}"


@dataclass(frozen=True)
class JobCluster:
    """Jobs of a site that share a submit description.

    Attributes:
        site: site of the jobs.
        lanes: doors that they read through, and the CPUs that they need.
        jobs: number of jobs.
        wall_s: wall limit of each job in seconds.
        disk_bytes: disk space that each job needs on its node.
        in_flight: number of jobs queued or running at a time.
    """

    site: Site
    lanes: tuple[Lane, ...]
    jobs: int
    wall_s: float
    disk_bytes: int
    in_flight: int

    @property
    def doors(self) -> tuple[str, ...]:
        """Labels of the doors."""
        return tuple(dict.fromkeys(door for door, _ in self.lanes))

    @property
    def cpus(self) -> int:
        """CPUs that each job requests."""
        return max(cpus for _, cpus in self.lanes)


def _group_lanes(lanes: tuple[Lane, ...], ceiling: int) -> list[tuple[Lane, ...]]:
    return [lanes] if 0 < ceiling < len(lanes) else [(lane,) for lane in lanes]


def _plan_cluster(
    plan: Plan,
    lanes: tuple[Lane, ...],
    site_jobs: Mapping[Lane, Sequence[tuple[PlannedJob, int]]],
) -> JobCluster:
    jobs = [item for lane in lanes for item in site_jobs[lane]]
    site, doors = jobs[0][0].site, {door for door, _ in lanes}
    staged_bytes = [
        sum(file.size for file in execution.files)
        for job, _ in jobs
        for execution in job.spec.executions
        if execution.variant.get("access") == "staged"
    ]
    return JobCluster(
        site=site,
        lanes=lanes,
        jobs=sum(count for _, count in jobs),
        wall_s=max(job.wall_limit_s for job, _ in jobs),
        disk_bytes=SANDBOX_OVERHEAD_BYTES + max(staged_bytes, default=0),
        in_flight=plan.jobs.count_together(site, doors)
        or _concurrency_limit(plan, site, len(lanes) / len(site_jobs)),
    )


def _concurrency_limit(plan: Plan, site: Site, share: float) -> int:
    """Return how many jobs of a cluster may be in the queue at a time.

    Args:
        plan: the plan.
        site: site of the cluster.
        share: of the site's lanes that are the cluster's.
    """
    requested, ceiling = plan.options.pace.in_flight, site.ceilings.in_flight
    return min(requested, max(1, int(ceiling * share))) if ceiling else requested
