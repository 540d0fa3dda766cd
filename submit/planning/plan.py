"""Plans: the matrix expanded over sites, doors and repeats into jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice, product
from types import MappingProxyType
from typing import overload

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.job_state import JobState
from treehammer.collectors.storage_schemes import READ, find_limit
from treehammer.datasets.model.manifest import Manifest
from treehammer.errors import NothingToDoError
from treehammer.hctests.matrix import variant_expansion
from treehammer.hctests.matrix.definition import (
    DOOR_AXIS,
    PinnedTest,
    TestDefinition,
    VariantGroup,
)
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.submit.planning.job_planner import (
    JobPlanner,
    LoadPosition,
    PlannedJob,
    hash_values,
)
from treehammer.submit.planning.pacing import BreakerThreshold
from treehammer.submit.planning.server_watch import (
    GroupAccess,
    ServerWatch,
    list_watched,
    plan_watch_job,
)
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS, SubmissionOptions
from treehammer.submit.replicas.rucio_placement import NO_RUCIO_PLACEMENT, RucioPlacement
from treehammer.submit.sites.site_model import Door, DoorAccess, Site
from treehammer.submit.templates import template_engine

#: A site that runs jobs, and a site whose storage they read.
SitePair = tuple[Site, Site]


@dataclass(frozen=True)
class Plan:
    """A campaign, ready to be rendered and submitted.

    Attributes:
        site_pairs: each site that runs jobs, with a site whose storage they read.
        notes: the parts of the request that a site cannot serve.
        request: the request as canonical JSON.
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
    sites: Sequence[Site],
    manifest: Manifest | None,
    software: Mapping[str, SoftwareRequest],
    *,
    created_us: int,
    name: str = "",
    from_sites: Sequence[Site] = (),
    site_software: Mapping[tuple[str, str], SoftwareRequest] = MappingProxyType({}),
    options: SubmissionOptions = DEFAULT_OPTIONS,
    others: Mapping[str, Manifest] = MappingProxyType({}),
    placement: RucioPlacement = NO_RUCIO_PLACEMENT,
    watches: Sequence[ServerWatch] = (),
    campaign_id: str = "",
    max_jobs: int = 0,
) -> Plan:
    """Expand a test into the jobs of a campaign.

    Args:
        pinned: the test.
        sites: sites whose storage is read.
        manifest: manifest of the test's dataset; None for a test without one.
        software: value of the ``root`` axis -> software request.
        created_us: time of the request, microseconds since 1970 UTC; part of the identity.
        name: display name; by default made of test, commit and time.
        from_sites: sites that run the jobs; by default each site reads its own storage.
        site_software: (site, value of the ``root`` axis) -> the site's own software request.
        options: options of the submission.
        others: name -> manifest of the further datasets of its axis, or in other formats.
        placement: files of the dataset at doors with an RSE.
        watches: tests that watch the servers during the load.
        campaign_id: identity fixed by an earlier plan of the same campaign; '' to derive it.
        max_jobs: number of jobs after which the plan ends; 0 for all, and for load tests, whose
            jobs wait for each other.

    Raises:
        NothingToDoError: no variant can run at these sites.
    """
    request = _canonical_request(pinned, sites, options.breaker, from_sites, watches)
    identity = hash_values(created_us, pinned.repository, pinned.commit, pinned.hashes, request)
    campaign_id = campaign_id or identity[:16]
    name = name or _default_display_name(pinned, created_us)
    planner = JobPlanner(
        pinned, manifest, software, campaign_id, name, site_software, others, placement
    )
    pairs = pair_sites(sites, from_sites)
    jobs, notes = _select_jobs(
        JobSequence(planner, (), tuple(watches), 0 if pinned.definition.load else max_jobs),
        pairs,
        has_credential=bool(options.credentials),
    )
    watching = [(server, site) for watch in watches for server in watch.sites for site in sites]
    by_names = {(site.name, storage.name): (site, storage) for site, storage in [*pairs, *watching]}
    return Plan(
        campaign_id=campaign_id,
        campaign_name=name,
        created_us=created_us,
        pinned_test=pinned,
        manifest=manifest,
        site_pairs=tuple(by_names.values()),
        jobs=jobs,
        notes=tuple(notes),
        request=request,
        options=options,
    )


def _select_jobs(
    jobs: JobSequence, pairs: Iterable[SitePair], *, has_credential: bool
) -> tuple[JobSequence, list[str]]:
    """Select the doors that jobs can read through, with a note for each reason against one.

    Raises:
        NothingToDoError: there is none.
    """
    definition, placement = jobs.planner.pinned.definition, jobs.planner.placement
    accesses, notes = select_doors(definition, pairs)
    notes += _missing_replica_notes(accesses, definition.dataset_names, placement)
    jobs = jobs.read_through(access for access in accesses if jobs.groups_at(access))
    jobs, lone_door_notes = _drop_lone_doors(jobs)
    notes += lone_door_notes
    notes += _reading_limit_notes(jobs, has_credential=has_credential)
    if not jobs.accesses:
        raise NothingToDoError(
            "no variant of this test can run at these sites",
            where=definition.name,
            hint=" ".join(notes) or "See `treehammer tests show`.",
        )
    return jobs, notes


@dataclass(frozen=True)
class JobSequence(Sequence[PlannedJob]):
    """The jobs of a plan, in the order in which they should run.

    Jobs are created on iteration and not kept, so memory does not grow with their number.
    """

    planner: JobPlanner
    accesses: tuple[DoorAccess, ...]
    watches: tuple[ServerWatch, ...] = ()
    max_jobs: int = 0

    def read_through(self, accesses: Iterable[DoorAccess]) -> JobSequence:
        """Return the same jobs through these doors alone."""
        return replace(self, accesses=tuple(accesses))

    def __iter__(self) -> Iterator[PlannedJob]:
        yield from islice(self._all_jobs(), self.max_jobs or None)

    def _all_jobs(self) -> Iterator[PlannedJob]:
        if self.planner.pinned.definition.load is not None:
            yield from self._load_jobs()
            return
        # Each repeat covers all variants before the next begins, so that a drift of the site affects
        # them alike.  Checksum jobs come last: they must not warm a cache that a timed job needs cold.
        for repeat in range(1, self._repeat_count + 1):
            yield from self._timed_jobs(repeat)
        yield from self._checksum_jobs()

    def __len__(self) -> int:
        timed = sum(1 for _ in self._timed_groups())
        watching = sum(
            len(list_watched(self.watches, members)) for members in self.load_groups.values()
        )
        checksum = sum(1 for _ in self._checksum_jobs())
        count = timed * self._repeat_count + (watching if self.watches else 0) + checksum
        return min(count, self.max_jobs) if self.max_jobs else count

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
        if self.planner.pinned.definition.load is not None:
            # The last repeat waits for the last level of a ramp.
            last = self._repeat_count
            for job in self._load_jobs(first_repeat=last):
                yield job, 1 if job.is_watch else last
            return
        if self.max_jobs:
            yield from ((job, 1) for job in self)
            return
        for job in self._timed_jobs(1):
            yield job, self._repeat_count
        for job in self._checksum_jobs():
            yield job, 1

    def groups_at(self, *accesses: DoorAccess) -> tuple[VariantGroup, ...]:
        """Return the groups of variants with good replicas at a door, or at bundled doors."""
        groups = self._variant_groups(*(access.door.name for access in accesses))
        lacking = self.planner.placement.lacking
        if not lacking:
            return groups
        dataset_for = self.planner.pinned.definition.dataset_for
        keys = {access.door.name: access.key for access in accesses}
        return tuple(
            group
            for group in groups
            if all(
                (*keys.get(one.door, accesses[0].key), dataset_for(one)) not in lacking
                for one in group.variants
            )
        )

    def _variant_groups(self, *doors: str) -> tuple[VariantGroup, ...]:
        """Return the groups of variants at doors; only these are kept in memory."""
        groups = self._groups_by_doors.get(doors)
        if groups is None:
            groups = variant_expansion.group_variants(self.planner.pinned.definition, *doors)
            self._groups_by_doors[doors] = groups
        return groups

    @cached_property
    def _groups_by_doors(self) -> dict[tuple[str, ...], tuple[VariantGroup, ...]]:
        return {}

    @cached_property
    def shared_accesses(self) -> tuple[tuple[DoorAccess, ...], ...]:
        """Doors by the jobs that read through them: each alone, or bundled doors of one storage."""
        if not self.planner.pinned.definition.bundles_doors:
            return tuple((access,) for access in self.accesses)
        shared: dict[tuple[str, str], list[DoorAccess]] = {}
        for access in self.accesses:
            shared.setdefault((access.site.name, access.storage.name), []).append(access)
        return tuple(map(tuple, shared.values()))

    def _timed_groups(self) -> Iterator[GroupAccess]:
        """Yield each group of variants of timed jobs, with the first door of these jobs."""
        for accesses in self.shared_accesses:
            for group in self.groups_at(*accesses):
                yield accesses[0], group

    @property
    def _repeat_count(self) -> int:
        return self.planner.pinned.definition.repeats

    def _timed_jobs(self, repeat: int) -> Iterator[PlannedJob]:
        for access, group in self._timed_groups():
            yield self.planner.plan_timed_job(access, group, repeat)

    def _load_jobs(self, first_repeat: int = 1) -> Iterator[PlannedJob]:
        """Yield the jobs of a load test: those that load together follow each other."""
        # Local jobs meet in a folder of their submission, beside the folder of each job.
        servers = [server for watch in self.watches for server in watch.sites]
        all_local = all(site.is_local for site in (*(a.site for a in self.accesses), *servers))
        folder = "../../starts" if all_local else ""
        first_key = next(iter(self.load_groups), "")
        for key, members in self.load_groups.items():
            jobs = len(members) * self._repeat_count
            watched = list_watched(self.watches, members)
            place = LoadPosition(key, 0, jobs, folder, key != first_key, len(watched))
            for repeat in range(first_repeat, self._repeat_count + 1):
                for number, (access, group) in enumerate(members):
                    index = (repeat - 1) * len(members) + number
                    position = replace(place, index=index)
                    yield self.planner.plan_timed_job(access, group, repeat, position)
            for index, watching in enumerate(watched, start=jobs):
                yield plan_watch_job(self.planner, *watching, replace(place, index=index))

    @cached_property
    def load_groups(self) -> dict[str, list[GroupAccess]]:
        """Jobs of a load test that load together, by key, one repeat of each.

        These are all jobs with the same variants, at doors of the same name if the test names doors.
        """
        groups: dict[str, list[GroupAccess]] = {}
        named = DOOR_AXIS in self.planner.pinned.definition.axes
        for access in self.accesses:
            for group in self.groups_at(access):
                key = f"{access.door.name if named else ''}|{group.key}"
                groups.setdefault(key, []).append((access, group))
        return groups

    def count_together(self, site: Site, doors: Collection[str]) -> int:
        """Return the most jobs at a site that start together; 0 if none do.

        Args:
            site: site that runs the jobs.
            doors: labels of the doors that they read.
        """
        load = self.planner.pinned.definition.load
        if load is None or not load.together:
            return 0

        def count(accesses: Iterable[DoorAccess]) -> int:
            return sum(one.site.name == site.name and one.door_label in doors for one in accesses)

        return max(
            self._repeat_count * count(access for access, _ in members)
            + count(replace(a, site=s) for _, s, a, _ in list_watched(self.watches, members))
            for members in self.load_groups.values()
        )

    def _checksum_jobs(self) -> Iterator[PlannedJob]:
        for access in self.accesses:
            if groups := self.groups_at(access):
                yield from self.planner.plan_checksum_job(access, groups)


def pair_sites(sites: Iterable[Site], from_sites: Sequence[Site] = ()) -> tuple[SitePair, ...]:
    """Pair each site that runs jobs with the sites whose storage they read.

    Args:
        sites: sites whose storage is read.
        from_sites: sites that run the jobs, each of which reads every storage site; by default
            each site reads its own storage.
    """
    return tuple((site, storage) for storage in sites for site in from_sites or [storage])


def select_doors(
    definition: TestDefinition, site_pairs: Iterable[SitePair]
) -> tuple[tuple[DoorAccess, ...], list[str]]:
    """Select the doors that a test reads, with a note for each missing one."""
    notes: dict[str, None] = {}
    accesses = tuple(
        DoorAccess(site, storage, door)
        for site, storage in site_pairs
        for door in _select_site_doors(definition, storage, site, notes)
    )
    for access in accesses:
        if access.is_remote and access.door.is_path:
            notes[
                f"Door {access.door.name} of site {access.storage.name} is a path, which the nodes of "
                f"site {access.site.name} may not have."
            ] = None
    return accesses, [*notes]


def _drop_lone_doors(jobs: JobSequence) -> tuple[JobSequence, list[str]]:
    """Drop bundled doors that are alone at their site, with a note for each."""
    if not jobs.planner.pinned.definition.bundles_doors:
        return jobs, []
    kept: list[DoorAccess] = []
    notes = []
    for accesses in jobs.shared_accesses:
        if any(len(group.variants) > 1 for group in jobs.groups_at(*accesses)):
            kept += accesses
        else:
            notes.append(
                f"Site {accesses[0].storage.name} is skipped: door {accesses[0].door.name} has no "
                "other one to be compared with."
            )
    return jobs.read_through(kept), notes


def _missing_replica_notes(
    accesses: Iterable[DoorAccess], datasets: Sequence[str], placement: RucioPlacement
) -> Iterator[str]:
    for access, dataset in product(accesses, datasets):
        if reason := placement.lacking.get((*access.key, dataset)):
            skipped = f" for {dataset}" if len(datasets) > 1 else ""
            yield (
                f"Door {access.door.name} of site {access.storage.name} is skipped{skipped}, no good "
                f"replica: {reason}."
            )


def _reading_limit_notes(jobs: JobSequence, *, has_credential: bool) -> Iterable[str]:
    """Note each door that a ROOT is known not to read: its measurements end as not supported."""
    notes: dict[str, None] = {}
    for access, software in _list_direct_readers(jobs):
        reason = find_limit(READ, access.door.prefix, software, has_credential=has_credential)
        if reason:
            notes[f"Door {access.door.name} of site {access.storage.name}: {reason}"] = None
    return notes


def _list_direct_readers(jobs: JobSequence) -> Iterator[tuple[DoorAccess, SoftwareRequest]]:
    """Yield each door with the software that reads it directly; none for a test with uproot."""
    planner = jobs.planner
    if "uproot" in planner.pinned.definition.imports:
        return
    for access in jobs.accesses:
        for group in jobs.groups_at(access):
            for variant in group.variants:
                if variant["access"] == "direct":
                    yield access, planner.software_for(access.site, str(variant["root"]))


def _select_site_doors(
    definition: TestDefinition, site: Site, reader: Site, notes: dict[str, None]
) -> Iterator[Door]:
    """Yield the site's doors that the test names, or a default; add a note for each missing one.

    The default is the first door, for jobs of another site the first that is not a path.
    """
    if DOOR_AXIS not in definition.axes:
        doors = site.doors if site == reader else sorted(site.doors, key=lambda door: door.is_path)
        yield doors[0]
        return
    for name in definition.axis_values(DOOR_AXIS):
        door = site.find_door(name)
        if door:
            yield door
        else:
            offered = ", ".join(door.name for door in site.doors)
            notes[f"Site {site.name} has no door {name!r} (known: {offered})."] = None


def _canonical_request(
    pinned: PinnedTest,
    sites: Sequence[Site],
    breaker: BreakerThreshold | None,
    from_sites: Sequence[Site] = (),
    watches: Sequence[ServerWatch] = (),
) -> str:
    """Return the request as canonical JSON."""
    document = {
        "definition": asdict(pinned.definition),
        "sites": [site.name for site in sites],
        **({"from": [site.name for site in from_sites]} if from_sites else {}),
        **({"watch": [one.describe() for one in watches]} if watches else {}),
        "breaker": str(breaker or "off"),
        "templates": {
            site.name: template_engine.fingerprint_template(site) for site in from_sites or sites
        },
    }
    return json.dumps(document, sort_keys=True, default=str)


def _default_display_name(pinned: PinnedTest, created_us: int) -> str:
    commit = pinned.commit[:7] or "no-commit"
    dirty = "+dirty" if pinned.dirty else ""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created_us // 1_000_000))
    return f"{pinned.definition.name}@{commit}{dirty} {when}"
