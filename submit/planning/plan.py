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
from typing import Any

from treehammer.analysis.statistics.verdict import SEQUENTIAL_JOBS, SEQUENTIAL_LAUNCHES
from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.day_numbers import current_us
from treehammer.errors import ConfigError
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.sql.core.campaign_plan import (
    SCHEMA_VERSION,
    CampaignPlan,
    PlannedTest,
    SequentialPlan,
)
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.submit.batch.interface import find_batch
from treehammer.submit.planning import job_templates
from treehammer.submit.planning.job_planner import (
    JobInputs,
    JobPlanner,
    Lane,
    PlannedJob,
    hash_values,
)
from treehammer.submit.planning.job_sequence import JobSequence, select_jobs
from treehammer.submit.planning.reading_checks import check_readers
from treehammer.submit.planning.server_watch import ServerWatch
from treehammer.submit.planning.site_selection import SitePair, SiteSelection
from treehammer.submit.planning.submission_options import (
    DEFAULT_OPTIONS,
    CampaignRequest,
    SubmissionOptions,
)
from treehammer.submit.sites.site_model import Site

#: Bytes of a job's sandbox without staged files: worker, payload, logs and records.
SANDBOX_OVERHEAD_BYTES = 250_000_000


@dataclass(frozen=True)
class SiteCost:
    """Cost of a plan's jobs at one site that read the storage of one site.

    Times are for a single slot, with as many CPUs as its jobs need: ``reserved_s`` is the wall time
    times these CPUs. Times and bytes are None if unknown.
    """

    site: str
    storage_site: str
    jobs: int
    measurements: int
    read_bytes: int | None
    wall_s: float | None
    cpu_s: float | None
    basis: str
    reserved_s: float | None = None


def sum_costs(costs: Sequence[SiteCost]) -> dict[str, Any]:
    """Return the row of the total over all sites; None where a cost of one of them is unknown."""
    names = ("jobs", "measurements", "read_bytes", "wall_s", "cpu_s", "reserved_s")
    values = {name: [getattr(cost, name) for cost in costs] for name in names}
    total = {name: None if None in column else sum(column) for name, column in values.items()}
    return {"site": "total", "storage_site": "", **total, "basis": ""}


@dataclass(frozen=True)
class BrokenRule:
    """A rule that a plan breaks: a line with a remedy for each reason, and general advice."""

    title: str
    lines: tuple[str, ...]
    advice: str = ""


@dataclass(frozen=True)
class PlanReview:
    """Costs of a plan at each site, the rules that it breaks, and notes on its pace."""

    costs: tuple[SiteCost, ...]
    broken_rules: tuple[BrokenRule, ...]
    notes: tuple[str, ...]

    def refuse_broken_rules(self, where: str) -> None:
        """Refuse a plan that breaks a rule.

        Raises:
            ConfigError: it does; ``where`` names the campaign.
        """
        broken = [rule for rule in self.broken_rules if rule.lines]
        if broken:
            hint = " ".join(" ".join(rule.lines) + rule.advice for rule in broken)
            raise ConfigError(", ".join(rule.title for rule in broken), where=where, hint=hint)


@dataclass(frozen=True)
class Plan:
    """A campaign, ready to be rendered and submitted.

    Attributes:
        site_pairs: each site that runs jobs, with a site whose storage they read.
        notes: the parts of the request that a site cannot serve.
        request: the plan as the database stores it, before its cost is estimated.
        review: its costs and the rules that it breaks; None until it is reviewed.
    """

    campaign_id: str
    campaign_name: str
    created_us: int
    pinned_test: PinnedTest
    site_pairs: tuple[SitePair, ...]
    jobs: JobSequence
    notes: tuple[str, ...]
    request: CampaignPlan
    options: SubmissionOptions = DEFAULT_OPTIONS
    review: PlanReview | None = None

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites that run the jobs."""
        return tuple({site.name: site for site, _ in self.site_pairs}.values())

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
            for group in (
                [(*site_jobs,)]
                if 0 < self.site(site).ceilings.in_flight < len(site_jobs)
                else [(lane,) for lane in site_jobs]
            )
        )

    def until_decided(self, sequential: SequentialPlan, checksums: str = "") -> Plan:
        """Return the plan of the same campaign up to the last look of a sequential plan.

        Args:
            sequential: the looks.
            checksums: earlier campaign whose checksum executions need not be repeated; '' for none.
        """
        if checksums:
            sequential = sequential.replace(checksums=checksums)
        planner = replace(self.jobs.planner, is_sequential=True)
        plan = replace(
            self,
            jobs=replace(self.jobs, planner=planner, has_checksums=not checksums),
            request=self.request.replace(until_decided=sequential),
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
    request: CampaignRequest,
    pinned: PinnedTest,
    sites: SiteSelection,
    inputs: JobInputs,
    watches: Sequence[ServerWatch] = (),
) -> Plan:
    """Expand a test into the jobs of a campaign.

    Args:
        request: the request; its time is part of the campaign's identity.
        pinned: the test.
        sites: selected sites and doors.
        inputs: software and datasets of the jobs.
        watches: tests that watch the servers during the load.

    Raises:
        NothingToDoError: no variant can run at these sites.
        DefinitionError: the payload needs software that no node has by itself.
    """
    document = _describe_request(pinned, sites, watches)
    created_us = request.created_us or current_us()
    identity = hash_values(
        created_us, pinned.repository, pinned.commit, pinned.hashes, document.to_json()
    )
    campaign_id = request.campaign_id or identity[:16]
    name = request.name or _make_campaign_name(pinned, created_us)
    planner = JobPlanner(pinned, inputs, campaign_id, name)
    # The jobs of a load test wait for each other.
    max_jobs = 0 if pinned.definition.load else request.max_jobs
    jobs, notes = select_jobs(JobSequence(planner, (), tuple(watches), max_jobs), sites)
    notes += check_readers(jobs, has_credential=bool(request.options.credentials))
    watching = [
        (server, storage)
        for watch in watches
        for server in watch.sites
        for storage in sites.storage
    ]
    by_names = {
        (site.name, storage.name): (site, storage) for site, storage in (*sites.pairs, *watching)
    }
    test = PlannedTest(
        repository=pinned.repository,
        ref=pinned.ref,
        commit=pinned.commit,
        dirty=pinned.dirty,
        path=pinned.path,
        files=dict(pinned.hashes),
    )
    return Plan(
        campaign_id=campaign_id,
        campaign_name=name,
        created_us=created_us,
        pinned_test=pinned,
        site_pairs=tuple(by_names.values()),
        jobs=jobs,
        notes=(*sites.list_notes(), *notes, *sites.passed_over, *inputs.notes),
        request=document.replace(schema_version=SCHEMA_VERSION, test=test),
        options=request.options,
    )


def _describe_request(
    pinned: PinnedTest,
    sites: SiteSelection,
    watches: Sequence[ServerWatch],
) -> CampaignPlan:
    """Describe the request, whose text is part of the campaign's identity, without a schema version."""
    document: dict[str, Any] = {
        "definition": pinned.definition.describe(),
        "submitter": find_user(),
        "sites": [site.name for site in sites.storage],
        "templates": {
            site.name: job_templates.fingerprint_template(site)
            for site in sites.runners or sites.storage
        },
    }
    optional: dict[str, Any] = {
        "from": [site.name for site in sites.runners],
        "excluded": {**sites.excluded},
        "included": {**sites.included},
        "watch": [watch.describe() for watch in watches],
    }
    document |= {key: value for key, value in optional.items() if value}
    return CampaignPlan.from_json(json.dumps(document, default=str))


def find_user() -> str:
    """Find the name of the user; '' in a container without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _make_campaign_name(pinned: PinnedTest, created_us: int) -> str:
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


def _count_staged_bytes(job: PlannedJob) -> int:
    """Count the bytes of the most files that a job stages at once."""
    executions = [e for e in job.spec.executions if e.variant.get("access") == "staged"]
    return max((sum(file.size for file in e.files) for e in executions), default=0)


def _plan_cluster(
    plan: Plan,
    lanes: tuple[Lane, ...],
    site_jobs: Mapping[Lane, Sequence[tuple[PlannedJob, int]]],
) -> JobCluster:
    jobs = [item for lane in lanes for item in site_jobs[lane]]
    site, doors = jobs[0][0].site, {door for door, _ in lanes}
    in_flight, ceiling = plan.options.pace.in_flight, site.ceilings.in_flight
    if ceiling:
        in_flight = min(in_flight, max(1, ceiling * len(lanes) // len(site_jobs)))
    return JobCluster(
        site=site,
        lanes=lanes,
        jobs=sum(count for _, count in jobs),
        wall_s=max(job.wall_limit_s for job, _ in jobs),
        disk_bytes=SANDBOX_OVERHEAD_BYTES + max(_count_staged_bytes(job) for job, _ in jobs),
        in_flight=plan.jobs.count_together(site, doors) or in_flight,
    )
