"""The jobs of a plan in the order in which they should run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, product

from treehammer.collectors.job_spec import SERVER_CACHE_AXIS, SoftwareRequest
from treehammer.errors import NothingToDoError
from treehammer.hctests.definition.execution_order import group_variants
from treehammer.hctests.definition.model import DOOR_AXIS, Variant, VariantGroup
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.submit.planning.job_planner import JobPlanner, LoadPosition, PlannedJob
from treehammer.submit.planning.server_watch import (
    GroupAccess,
    ServerWatch,
    list_watched,
    plan_watch_job,
)
from treehammer.submit.planning.site_selection import SiteSelection
from treehammer.submit.sites.site_model import DoorAccess, Site

#: Names of the storage site and of its door.
DoorKey = tuple[str, str]


@dataclass(frozen=True)
class JobSequence:
    """The jobs of a plan, in the order in which they should run.

    Jobs are created on iteration and not kept, so memory does not grow with their number.
    ``repeats`` are those of a campaign that ends when it is decided, between two looks; () for
    those of the test.  Without ``has_checksums``, an earlier campaign proved the values that are read.
    """

    planner: JobPlanner
    accesses: tuple[DoorAccess, ...]
    watches: tuple[ServerWatch, ...] = ()
    max_jobs: int = 0
    repeats: range | tuple[()] = ()
    has_checksums: bool = True

    def __iter__(self) -> Iterator[PlannedJob]:
        if self._definition.load is not None:
            jobs = self._load_jobs()
        else:
            # Each repeat covers all variants before the next begins, so that a drift of the site affects
            # them alike.  Checksum jobs are last: they must not warm a cache that a timed job needs cold.
            timed = chain.from_iterable(map(self._timed_jobs, self._repeats))
            jobs = chain(timed, self._checksum_jobs())
        yield from islice(jobs, self.max_jobs or None)

    def __len__(self) -> int:
        timed = sum(1 for _ in self._timed_groups())
        watching = sum(
            len(list_watched(self.watches, members)) for members in self.load_groups.values()
        )
        checksum = sum(1 for _ in self._checksum_jobs())
        count = timed * len(self._repeats) + (watching if self.watches else 0) + checksum
        return min(count, self.max_jobs) if self.max_jobs else count

    def iterate_kinds(self) -> Iterator[tuple[PlannedJob, int]]:
        """Yield one job of each kind with its number of repeats, which all cost the same."""
        if self._definition.load is not None:
            # The last repeat waits for the last level of a ramp.
            last = self._definition.test.repeats
            for job in self._load_jobs(first_repeat=last):
                yield job, 1 if job.is_watch else last
            return
        if self.max_jobs:
            yield from ((job, 1) for job in self)
            return
        for job in self._timed_jobs(self._repeats[0]):
            yield job, len(self._repeats)
        for job in self._checksum_jobs():
            yield job, 1

    def groups_at(self, *accesses: DoorAccess) -> tuple[VariantGroup, ...]:
        """Return the groups of variants with good replicas at a door, or at bundled doors."""
        doors = tuple(access.door.name for access in accesses)
        if doors not in self._groups_by_doors:
            self._groups_by_doors[doors] = group_variants(self._definition, *doors)
        groups = self._groups_by_doors[doors]
        lacking = self.planner.inputs.placement.lacking
        if not lacking:
            return groups
        dataset_for = self._definition.dataset_for
        keys = {access.door.name: access.key for access in accesses}
        return tuple(
            group
            for group in groups
            if all(
                (*keys.get(variant.door, accesses[0].key), dataset_for(variant)) not in lacking
                for variant in group.variants
            )
        )

    def variants_at(self, access: DoorAccess) -> Iterator[Variant]:
        """Yield the variants with good replicas at a door."""
        return (variant for group in self.groups_at(access) for variant in group.variants)

    def list_reads(self) -> Iterator[tuple[DoorAccess, Variant, SoftwareRequest]]:
        """Yield each door with each of its variants, and the software that reads."""
        for access in self.accesses:
            for variant in self.variants_at(access):
                yield access, variant, self.planner.software_for(access.site, str(variant["root"]))

    @cached_property
    def doors(self) -> Mapping[DoorKey, DoorAccess]:
        """Each door once, by storage and name: several sites may read it."""
        return {(access.storage.name, access.door.name): access for access in self.accesses}

    @cached_property
    def _groups_by_doors(self) -> dict[tuple[str, ...], tuple[VariantGroup, ...]]:
        """The groups of variants at doors: only these are kept in memory."""
        return {}

    @cached_property
    def shared_accesses(self) -> tuple[tuple[DoorAccess, ...], ...]:
        """Doors by the jobs that read through them: each alone, or bundled doors of one storage."""
        if not self._definition.bundles_doors:
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
    def _definition(self) -> TestDefinition:
        return self.planner.pinned.definition

    @property
    def _repeats(self) -> range:
        return self.repeats or range(1, self._definition.test.repeats + 1)

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
            jobs = len(members) * self._definition.test.repeats
            watched = list_watched(self.watches, members)
            place = LoadPosition(key, 0, jobs, folder, key != first_key, len(watched))
            for repeat in range(first_repeat, self._definition.test.repeats + 1):
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
        names_doors = DOOR_AXIS in self._definition.axes
        for accesses in self.shared_accesses:
            for group in self.groups_at(*accesses):
                key = f"{accesses[0].door.name if names_doors else ''}|{group.key}"
                groups.setdefault(key, []).append((accesses[0], group))
        return groups

    def doors_beside(self, access: DoorAccess) -> tuple[DoorAccess, ...]:
        """Return the doors of the jobs whose first door this is."""
        return next(shared for shared in self.shared_accesses if shared[0].key == access.key)

    def count_together(self, site: Site, doors: Collection[str]) -> int:
        """Return the most jobs at a site that start together; 0 if none do.

        Args:
            site: site that runs the jobs.
            doors: labels of the doors that they read.
        """
        load = self._definition.load
        if load is None or not load.together:
            return 0

        def count(accesses: Iterable[DoorAccess]) -> int:
            return sum(
                door_access.site.name == site.name and door_access.door_label in doors
                for door_access in accesses
            )

        return max(
            self._definition.test.repeats * count(access for access, _ in members)
            + count(replace(a, site=s) for _, s, a, _ in list_watched(self.watches, members))
            for members in self.load_groups.values()
        )

    def _checksum_jobs(self) -> Iterator[PlannedJob]:
        if not self.has_checksums or self._repeats[0] > 1:
            return
        for access in self.accesses:
            if groups := self.groups_at(access):
                yield from self.planner.plan_checksum_job(access, groups)


def select_jobs(jobs: JobSequence, selection: SiteSelection) -> tuple[JobSequence, list[str]]:
    """Select the jobs whose doors have good replicas, with a note for each reason against one.

    Raises:
        NothingToDoError: there is none.
    """
    definition = jobs.planner.pinned.definition
    jobs = replace(jobs, accesses=selection.accesses)
    notes = [*selection.notes]
    datasets = definition.dataset_names
    for access, dataset in product(jobs.accesses, datasets):
        if reason := jobs.planner.inputs.placement.lacking.get((*access.key, dataset)):
            skipped = f" for {dataset}" if len(datasets) > 1 else ""
            notes.append(
                f"Door {access.door.name} of site {access.storage.name} is skipped{skipped}, no good "
                f"replica: {reason}."
            )
    jobs = replace(jobs, accesses=tuple(filter(jobs.groups_at, jobs.accesses)))
    jobs, lone_door_notes = _drop_lone_doors(jobs)
    notes += lone_door_notes
    notes += _cache_notes(definition, jobs.accesses)
    if not jobs.accesses:
        raise NothingToDoError(
            "no variant of this test can run at these sites",
            where=definition.test.name,
            hint=" ".join(notes) or "See `treehammer tests show`.",
        )
    return jobs, notes


def _drop_lone_doors(jobs: JobSequence) -> tuple[JobSequence, list[str]]:
    """Drop bundled doors that are alone at their site, with a note for each."""
    if not jobs.planner.pinned.definition.bundles_doors:
        return jobs, []
    comparable: list[DoorAccess] = []
    notes = []
    for accesses in jobs.shared_accesses:
        if any(len(group.variants) > 1 for group in jobs.groups_at(*accesses)):
            comparable += accesses
        else:
            notes.append(
                f"Site {accesses[0].storage.name} is skipped: door {accesses[0].door.name} has no "
                "other one to be compared with."
            )
    return replace(jobs, accesses=tuple(comparable)), notes


def _cache_notes(definition: TestDefinition, accesses: Iterable[DoorAccess]) -> list[str]:
    """Name the sites at which a test's axis for the state of a cache changes nothing."""
    if SERVER_CACHE_AXIS not in definition.axes:
        return []
    caches: dict[str, bool] = {}
    for access in accesses:
        name = access.storage.name
        caches[name] = caches.get(name, False) or access.door.cache is not None
    return [
        f"Site {name}: none of these doors has the key cache in the sites file; {SERVER_CACHE_AXIS} empties "
        "no cache there."
        for name, has_cache in caches.items()
        if not has_cache
    ]
