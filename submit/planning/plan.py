"""The plan: matrix times sites times doors times repeats, multiplied out to jobs."""

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

    ``notes`` say what of the request cannot be had at which site.
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
        """The site of that name."""
        return next(site for site in self.sites if site.name == name)

    @property
    def execution_count(self) -> int:
        """Measurements that are planned, timed and checksum."""
        return sum(len(job.spec.executions) * times for job, times in self.jobs.iterate_kinds())

    def make_campaign_row(self) -> CampaignRow:
        """What the store remembers of the campaign."""
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
        """What the store remembers of the jobs before they are submitted."""
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
    elsewhere: Mapping[tuple[str, str], SoftwareRequest] | None = None,
    terms: SubmissionOptions = DEFAULT_OPTIONS,
    twins: Mapping[str, Manifest] | None = None,
    placement: RucioPlacement = NO_RUCIO_PLACEMENT,
) -> Plan:
    """Multiply a test out to jobs.

    Args:
        pinned: the test.
        sites: where it runs.
        manifest: of its dataset; None for a test without one.
        software: value of the ``root`` axis -> what sets it up.
        created_us: time of the request, microseconds since 1970 UTC; part of the identity.
        name: display name; by default made of test, commit and time.
        elsewhere: (site, value of the ``root`` axis) -> what sets it up there, where that differs.
        terms: of the submission to sites with HTCondor.
        twins: name -> manifest of the datasets that hold the same content in other formats.
        placement: of the dataset, for doors that leave it to Rucio where files lie.

    Raises:
        NothingToDo: no variant can run at these sites.
    """
    request = _canonical_request(pinned, sites, terms.breaker)
    campaign_id = hash_values(created_us, pinned.repository, pinned.commit, pinned.hashes, request)[
        :16
    ]
    name = name or _default_display_name(pinned, created_us)
    planner = JobPlanner(
        pinned, manifest, software, campaign_id, name, elsewhere or {}, twins or {}, placement
    )
    wanted, notes = select_doors(pinned.definition, sites)
    places = tuple(pair for pair in wanted if _door_key(*pair) not in placement.lacking)
    notes += _missing_replica_notes(wanted, placement)
    jobs = JobSequence(planner, places)
    if not any(jobs.variant_groups(door) for _, door in places):
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
        terms,
    )


@dataclass(frozen=True)
class JobSequence(Sequence[PlannedJob]):
    """The jobs of a plan, in the order in which they should run.

    They are made one by one while one goes through them, and made again the next time: a plan of a
    million jobs is no larger than one of ten thousand.
    """

    planner: JobPlanner
    door_pairs: tuple[tuple[Site, Door], ...]

    def __iter__(self) -> Iterator[PlannedJob]:
        # All variants once before any a second time, so that a drift of the site meets them alike.
        # The checksums come last: they must not warm a cache that a measurement wants to find cold.
        for repeat in range(1, self._repeat_count + 1):
            yield from self._timed_jobs(repeat)
        yield from self._checksum_jobs()

    def __len__(self) -> int:
        timed = sum(len(self.variant_groups(door)) for _, door in self.door_pairs)
        return timed * self._repeat_count + sum(1 for _ in self._checksum_jobs())

    @overload
    def __getitem__(self, place: int) -> PlannedJob: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[PlannedJob, ...]: ...

    def __getitem__(self, place: int | slice) -> PlannedJob | tuple[PlannedJob, ...]:
        if isinstance(place, slice):
            return tuple(self)[place]
        try:
            return next(islice(self, place + len(self) if place < 0 else place, None))
        except (StopIteration, ValueError):
            raise IndexError(place) from None

    def iterate_kinds(self) -> Iterator[tuple[PlannedJob, int]]:
        """One job of each kind and how many there are of it: repeats differ in nothing that costs."""
        for job in self._timed_jobs(1):
            yield job, self._repeat_count
        for job in self._checksum_jobs():
            yield job, 1

    def variant_groups(self, door: Door) -> tuple[VariantGroup, ...]:
        """The groups of variants at a door: all that is held in memory, however many the repeats."""
        known = self._groups_by_door.get(door.name)
        if known is None:
            known = variant_expansion.group_variants(self.planner.pinned.definition, door.name)
            self._groups_by_door[door.name] = known
        return known

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
    """The doors that a test reads through at each site, and a note for each that a site lacks."""
    notes: list[str] = []
    wanted = tuple(
        (site, door) for site in sites for door in _select_site_doors(definition, site, notes)
    )
    return wanted, notes


def _door_key(site: Site, door: Door) -> tuple[str, str]:
    return site.name, door.name


def _missing_replica_notes(
    wanted: Iterable[tuple[Site, Door]], placement: RucioPlacement
) -> Iterator[str]:
    for site, door in wanted:
        if why := placement.lacking.get(_door_key(site, door)):
            yield f"Site {site.name} is skipped at door {door.name}, no good replica: {why}."


def _select_site_doors(definition: TestDefinition, site: Site, notes: list[str]) -> Iterator[Door]:
    """The doors of a site that the test names, or its first; adds a note for each it lacks."""
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
            notes.append(f"Site {site.name} has no door {name!r} (it has: {offered}).")


def _canonical_request(
    pinned: PinnedTest, sites: Sequence[Site], breaker: BreakerThreshold | None
) -> str:
    """Canonical JSON of what was asked for."""
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
