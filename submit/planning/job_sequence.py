"""The jobs of a plan in the order in which they should run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import overload

from treehammer.hctests.matrix import variant_expansion
from treehammer.hctests.matrix.definition import DOOR_AXIS, TestDefinition, VariantGroup
from treehammer.submit.planning.job_planner import JobPlanner, LoadPosition, PlannedJob
from treehammer.submit.planning.server_watch import (
    GroupAccess,
    ServerWatch,
    list_watched,
    plan_watch_job,
)
from treehammer.submit.sites.site_model import DoorAccess, Site


@dataclass(frozen=True)
class JobSequence(Sequence[PlannedJob]):
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

    def read_through(self, accesses: Iterable[DoorAccess]) -> JobSequence:
        """Return the same jobs through these doors alone."""
        return replace(self, accesses=tuple(accesses))

    def __iter__(self) -> Iterator[PlannedJob]:
        yield from islice(self._all_jobs(), self.max_jobs or None)

    def _all_jobs(self) -> Iterator[PlannedJob]:
        if self._definition.load is not None:
            yield from self._load_jobs()
            return
        # Each repeat covers all variants before the next begins, so that a drift of the site affects
        # them alike.  Checksum jobs come last: they must not warm a cache that a timed job needs cold.
        for repeat in self._repeats:
            yield from self._timed_jobs(repeat)
        yield from self._checksum_jobs()

    def __len__(self) -> int:
        timed = sum(1 for _ in self._timed_groups())
        watching = sum(
            len(list_watched(self.watches, members)) for members in self.load_groups.values()
        )
        checksum = sum(1 for _ in self._checksum_jobs())
        count = timed * len(self._repeats) + (watching if self.watches else 0) + checksum
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
        if self._definition.load is not None:
            # The last repeat waits for the last level of a ramp.
            last = self._definition.repeats
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
        groups = self._variant_groups(*(access.door.name for access in accesses))
        lacking = self.planner.placement.lacking
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

    def _variant_groups(self, *doors: str) -> tuple[VariantGroup, ...]:
        """Return the groups of variants at doors; only these are kept in memory."""
        groups = self._groups_by_doors.get(doors)
        if groups is None:
            groups = variant_expansion.group_variants(self._definition, *doors)
            self._groups_by_doors[doors] = groups
        return groups

    @cached_property
    def _groups_by_doors(self) -> dict[tuple[str, ...], tuple[VariantGroup, ...]]:
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
        return self.repeats or range(1, self._definition.repeats + 1)

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
            jobs = len(members) * self._definition.repeats
            watched = list_watched(self.watches, members)
            place = LoadPosition(key, 0, jobs, folder, key != first_key, len(watched))
            for repeat in range(first_repeat, self._definition.repeats + 1):
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
        named = DOOR_AXIS in self._definition.axes
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
        load = self._definition.load
        if load is None or not load.together:
            return 0

        def count(accesses: Iterable[DoorAccess]) -> int:
            return sum(
                door_access.site.name == site.name and door_access.door_label in doors
                for door_access in accesses
            )

        return max(
            self._definition.repeats * count(access for access, _ in members)
            + count(replace(a, site=s) for _, s, a, _ in list_watched(self.watches, members))
            for members in self.load_groups.values()
        )

    def _checksum_jobs(self) -> Iterator[PlannedJob]:
        if not self.has_checksums or self._repeats[0] > 1:
            return
        for access in self.accesses:
            if groups := self.groups_at(access):
                yield from self.planner.plan_checksum_job(access, groups)
