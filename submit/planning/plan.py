"""Plans: the matrix expanded over sites, doors and repeats into jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from typing import overload

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.job_state import JobState
from treehammer.datasets.model.manifest import Manifest
from treehammer.errors import NothingToDoError
from treehammer.hctests.matrix import variant_expansion
from treehammer.hctests.matrix.definition import PinnedTest, TestDefinition, VariantGroup
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.submit.planning.job_planner import JobPlanner, PlannedJob, hash_values
from treehammer.submit.planning.pacing import BreakerThreshold
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS, SubmissionOptions
from treehammer.submit.replicas.rucio_placement import NO_RUCIO_PLACEMENT, RucioPlacement
from treehammer.submit.sites.site_model import Door, Site
from treehammer.submit.templates import template_engine


@dataclass(frozen=True)
class Plan:
    """A campaign, ready to be rendered and submitted.

    ``notes`` name the parts of the request that a site cannot serve.
    """

    campaign_id: str
    campaign_name: str
    created_us: int
    pinned_test: PinnedTest
    manifest: Manifest | None
    sites: tuple[Site, ...]
    jobs: JobSequence
    notes: tuple[str, ...]
    options: SubmissionOptions = DEFAULT_OPTIONS

    def site(self, name: str) -> Site:
        """Return the site with this name."""
        return next(site for site in self.sites if site.name == name)

    @property
    def execution_count(self) -> int:
        """Number of planned measurements, timed and checksum."""
        return sum(len(job.spec.executions) * times for job, times in self.jobs.iterate_kinds())

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
            test_name=pinned.definition.name,
            test_path=pinned.path,
            plan=_canonical_request(pinned, self.sites, self.options.breaker),
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
                door=job.spec.door,
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
    sites: Sequence[Site],
    manifest: Manifest | None,
    software: Mapping[str, SoftwareRequest],
    *,
    created_us: int,
    name: str = "",
    site_software: Mapping[tuple[str, str], SoftwareRequest] | None = None,
    options: SubmissionOptions = DEFAULT_OPTIONS,
    twins: Mapping[str, Manifest] | None = None,
    placement: RucioPlacement = NO_RUCIO_PLACEMENT,
) -> Plan:
    """Expand a test into the jobs of a campaign.

    Args:
        pinned: the test.
        sites: sites of the campaign.
        manifest: manifest of the test's dataset; None for a test without one.
        software: value of the ``root`` axis -> software request.
        created_us: time of the request, microseconds since 1970 UTC; part of the identity.
        name: display name; by default made of test, commit and time.
        site_software: (site, value of the ``root`` axis) -> the site's own software request.
        options: options of the submission.
        twins: name -> manifest of the datasets that hold the same content in other formats.
        placement: files of the dataset at doors with an RSE.

    Raises:
        NothingToDoError: no variant can run at these sites.
    """
    request = _canonical_request(pinned, sites, options.breaker)
    identity = hash_values(created_us, pinned.repository, pinned.commit, pinned.hashes, request)
    campaign_id = identity[:16]
    name = name or _default_display_name(pinned, created_us)
    planner = JobPlanner(
        pinned, manifest, software, campaign_id, name, site_software or {}, twins or {}, placement
    )
    door_pairs, notes = select_doors(pinned.definition, sites)
    usable = tuple(pair for pair in door_pairs if _door_key(*pair) not in placement.lacking)
    notes += _missing_replica_notes(door_pairs, placement)
    jobs = JobSequence(planner, usable)
    if not any(jobs.variant_groups(door) for _, door in usable):
        raise NothingToDoError(
            "no variant of this test can run at these sites",
            where=pinned.definition.name,
            hint=" ".join(notes) or "See `treehammer tests show`.",
        )
    return Plan(
        campaign_id,
        name,
        created_us,
        pinned,
        manifest,
        tuple(sites),
        jobs,
        tuple(notes),
        options,
    )


@dataclass(frozen=True)
class JobSequence(Sequence[PlannedJob]):
    """The jobs of a plan, in the order in which they should run.

    Jobs are created on iteration and not kept, so memory does not grow with their number.
    """

    planner: JobPlanner
    door_pairs: tuple[tuple[Site, Door], ...]

    def __iter__(self) -> Iterator[PlannedJob]:
        # Each repeat covers all variants before the next begins, so that a drift of the site affects
        # them alike.  Checksum jobs come last: they must not warm a cache that a timed job needs cold.
        for repeat in range(1, self._repeat_count + 1):
            yield from self._timed_jobs(repeat)
        yield from self._checksum_jobs()

    def __len__(self) -> int:
        timed = sum(len(self.variant_groups(door)) for _, door in self.door_pairs)
        return timed * self._repeat_count + sum(1 for _ in self._checksum_jobs())

    @overload
    def __getitem__(self, index: int) -> PlannedJob: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PlannedJob, ...]: ...

    def __getitem__(self, index: int | slice) -> PlannedJob | tuple[PlannedJob, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        try:
            return next(islice(self, index + len(self) if index < 0 else index, None))
        except (StopIteration, ValueError):
            raise IndexError(index) from None

    def iterate_kinds(self) -> Iterator[tuple[PlannedJob, int]]:
        """Yield one job of each kind with its number of repeats, which all cost the same."""
        for job in self._timed_jobs(1):
            yield job, self._repeat_count
        for job in self._checksum_jobs():
            yield job, 1

    def variant_groups(self, door: Door) -> tuple[VariantGroup, ...]:
        """Return the groups of variants at a door; only these are kept in memory."""
        groups = self._groups_by_door.get(door.name)
        if groups is None:
            groups = variant_expansion.group_variants(self.planner.pinned.definition, door.name)
            self._groups_by_door[door.name] = groups
        return groups

    @cached_property
    def _groups_by_door(self) -> dict[str, tuple[VariantGroup, ...]]:
        return {}

    @property
    def _repeat_count(self) -> int:
        return self.planner.pinned.definition.repeats

    def _timed_jobs(self, repeat: int) -> Iterator[PlannedJob]:
        for site, door in self.door_pairs:
            for group in self.variant_groups(door):
                yield self.planner.plan_timed_job(site, door, group, repeat)

    def _checksum_jobs(self) -> Iterator[PlannedJob]:
        for site, door in self.door_pairs:
            if self.variant_groups(door):
                yield from self.planner.plan_checksum_job(site, door, self.variant_groups(door))


def select_doors(
    definition: TestDefinition, sites: Iterable[Site]
) -> tuple[tuple[tuple[Site, Door], ...], list[str]]:
    """Select the doors that a test reads at each site, with a note for each missing one."""
    notes: list[str] = []
    door_pairs = tuple(
        (site, door) for site in sites for door in _select_site_doors(definition, site, notes)
    )
    return door_pairs, notes


def _door_key(site: Site, door: Door) -> tuple[str, str]:
    return site.name, door.name


def _missing_replica_notes(
    door_pairs: Iterable[tuple[Site, Door]], placement: RucioPlacement
) -> Iterator[str]:
    for site, door in door_pairs:
        if reason := placement.lacking.get(_door_key(site, door)):
            yield f"Door {door.name} of site {site.name} is skipped, no good replica: {reason}."


def _select_site_doors(definition: TestDefinition, site: Site, notes: list[str]) -> Iterator[Door]:
    """Yield the site's doors that the test names, or its first; add a note for each missing one."""
    if "door" not in definition.axes:
        yield site.doors[0]
        return
    included = (rule["door"] for rule in definition.include if "door" in rule)
    for name in dict.fromkeys(str(value) for value in (*definition.axes["door"], *included)):
        door = site.find_door(name)
        if door:
            yield door
        else:
            offered = ", ".join(door.name for door in site.doors)
            notes.append(f"Site {site.name} has no door {name!r} (known: {offered}).")


def _canonical_request(
    pinned: PinnedTest, sites: Sequence[Site], breaker: BreakerThreshold | None
) -> str:
    """Return the request as canonical JSON."""
    document = {
        "definition": asdict(pinned.definition),
        "sites": [site.name for site in sites],
        "breaker": str(breaker or "off"),
        "templates": {site.name: template_engine.fingerprint_template(site) for site in sites},
    }
    return json.dumps(document, sort_keys=True, default=str)


def _default_display_name(pinned: PinnedTest, created_us: int) -> str:
    commit = pinned.commit[:7] or "no-commit"
    dirty = "+dirty" if pinned.dirty else ""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created_us // 1_000_000))
    return f"{pinned.definition.name}@{commit}{dirty} {when}"
