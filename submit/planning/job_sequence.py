"""The jobs of a plan in the order in which they should run, with tests that watch servers.

A test watches the servers of a storage while another test of the campaign loads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Any

from treehammer.collectors.job_spec import (
    SERVER_CACHE_AXIS,
    ExecutionSpec,
    PayloadSpec,
    SoftwareRequest,
)
from treehammer.collectors.software import providers
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.execution_order import group_variants
from treehammer.hctests.definition.model import DOOR_AXIS, Variant, VariantGroup, compute_series
from treehammer.hctests.definition.test_identity import PinnedTest, compute_test_hash
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.submit.planning.job_planner import (
    JobInputs,
    JobPlanner,
    LoadPosition,
    PlannedJob,
    hash_values,
)
from treehammer.submit.planning.site_selection import SiteSelection
from treehammer.submit.planning.submission_options import WATCH_PREFIX, CampaignRequest
from treehammer.submit.sites.site_model import DoorAccess, Site
from treehammer.submit.sites.site_registry import select_sites

#: Names of the storage site and of its door.
DoorKey = tuple[str, str]
#: Variants at a door.
GroupAccess = tuple[DoorAccess, VariantGroup]


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
        groups = self._variant_groups(*(access.door.name for access in accesses))
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

    def _variant_groups(self, *doors: str) -> tuple[VariantGroup, ...]:
        """Return the groups of variants at doors; only these are kept in memory."""
        groups = self._groups_by_doors.get(doors)
        if groups is None:
            groups = group_variants(self._definition, *doors)
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


@dataclass(frozen=True)
class ServerWatch:
    """A test whose jobs watch servers.

    Attributes:
        pinned: the test, with the load of the one that it accompanies.
        sites: sites whose jobs run on the servers.
    """

    pinned: PinnedTest
    sites: tuple[Site, ...]

    @property
    def folder(self) -> str:
        """Folder of the test's files beside job.json."""
        return f"watch-{self.pinned.definition.test.name}"

    @cached_property
    def software(self) -> SoftwareRequest:
        """Software of the test: it has a single release or none."""
        return providers.parse_software_request(str(self.pinned.definition.axes["root"][0]))

    def describe(self) -> dict[str, Any]:
        """Describe the part of the campaign's request."""
        definition = self.pinned.definition
        return {
            "test": definition.test.name,
            "hash": compute_test_hash(self.pinned),
            "settings": dict(definition.settings),
            "sites": [site.name for site in self.sites],
        }


def make_watch(pinned: PinnedTest, sites: Sequence[Site], loading: TestDefinition) -> ServerWatch:
    """Let a test watch servers while another one loads their storage.

    Raises:
        ConfigError: the jobs do not start together, or the test is not one that can watch.
    """
    name = pinned.definition.test.name
    if loading.load is None or not loading.load.together:
        raise ConfigError(
            "clients and servers count the same time steps only after a common start",
            where=f"--watch {name}",
            hint="Let the jobs start together: -S load.together=true"
            if loading.load
            else "Choose a load test, e.g. open-rate.",
        )
    if (
        pinned.definition.load is None
        or providers.parse_software_request(str(pinned.definition.axes["root"][0])).provider
        != "none"
    ):
        raise ConfigError(
            "cannot watch a server",
            where=f"--watch {name}",
            hint='A test that watches has a table [load] and root = ["none"], as server-watch and '
            "log-parse have.",
        )
    definition = pinned.definition.replace(load=loading.load)
    return ServerWatch(replace(pinned, definition=definition), tuple(sites))


def list_watched(
    watches: Sequence[ServerWatch], members: Sequence[GroupAccess]
) -> list[tuple[ServerWatch, Site, DoorAccess, VariantGroup]]:
    """List the jobs that watch servers during one load: each server for each door.

    Args:
        watches: the tests that watch.
        members: the jobs that load, one repeat of each.
    """
    doors = {(access.storage.name, access.door.name): (access, group) for access, group in members}
    return [
        (watch, server, access, group)
        for watch in watches
        for server in watch.sites
        for access, group in doors.values()
    ]


def plan_watch_job(
    planner: JobPlanner,
    watch: ServerWatch,
    server: Site,
    access: DoorAccess,
    group: VariantGroup,
    position: LoadPosition,
) -> PlannedJob:
    """Plan a job that watches a server during the executions of a group of variants.

    Args:
        planner: plans the jobs that load.
        watch: the test that watches.
        server: site whose job runs on the server.
        access: door that is loaded, as a job that loads it reads it.
        group: the variants.
        position: the job's place behind those that load.
    """
    # The same executions in the same order as those of the jobs that load.
    loading = planner.plan_timed_job(access, group, 1, position)
    access = replace(access, site=server)
    watch_planner = JobPlanner(
        watch.pinned, JobInputs({}), planner.campaign_id, planner.campaign_name
    )
    job_id = hash_values(planner.campaign_id, *access.key, watch.folder, group.key)[:24]
    values = watch_planner.campaign_values | {
        "job_id": job_id,
        "site": server.name,
        "dataset": None,
        "dataset_hash": None,
        "content_hash": None,
    }
    payload: PayloadSpec = replace(watch_planner.payload_spec, folder=watch.folder)
    executions = tuple(
        _watch_execution(execution, watch, access, values) for execution in loading.spec.executions
    )
    assert loading.spec.load is not None
    load = replace(loading.spec.load, level_start_s=0.0, writable="")
    spec = replace(
        loading.spec,
        job_id=job_id,
        site=server.name,
        payload=payload,
        executions=executions,
        load=load,
    )
    return replace(
        loading,
        spec=spec,
        access=access,
        label=f"{watch.pinned.definition.test.name} {loading.label}",
    )


def _watch_execution(
    execution: ExecutionSpec, watch: ServerWatch, access: DoorAccess, values: dict[str, Any]
) -> ExecutionSpec:
    series = compute_series(
        values["test_hash"],
        Variant(tuple(execution.variant.items())),
        "",
        access.site.name,
        access.door.name,
        access.storage.name,
    )
    return replace(
        execution,
        software=watch.software,
        files=(),
        tree="",
        unreadable_branches=(),
        missing_branches=(),
        identity={**execution.identity, **values, "series": series},
    )


def load_watches(
    request: CampaignRequest, loading: TestDefinition, config: Settings
) -> list[ServerWatch]:
    """Pin the tests that watch servers.

    Args:
        request: names the tests, the sites whose jobs run on the servers, and ``-S watch.KEY``, for
            the tests that have this key in [settings].
        loading: the test that loads the storage.
        config: all settings.

    Raises:
        ConfigError: an option is missing, given twice, or without effect.
        TreehammerError: a test cannot be fetched, or has mistakes.
    """
    specs, settings = request.watches, request.watch_settings
    sites = select_sites(request.watch_sites, config, option="--watch-at")
    _check_options(specs, sites, settings)
    watches = []
    unused = set(settings)
    for spec in specs:
        test_settings = load_pinned_test(spec, {}, {}, config).definition.settings
        applicable = {
            key: value for key, value in settings.items() if key.partition(".")[0] in test_settings
        }
        unused -= set(applicable)
        overrides = {f"settings.{key}": value for key, value in applicable.items()}
        watches.append(make_watch(load_pinned_test(spec, {}, overrides, config), sites, loading))
    if unused:
        raise ConfigError(
            "no test of --watch has this key in its [settings]",
            where=f"-S {WATCH_PREFIX}{min(unused)}",
        )
    names = [watch.pinned.definition.test.name for watch in watches]
    if len(set(names)) < len(names):
        raise ConfigError("two tests have the same name", where=f"--watch {', '.join(names)}")
    return watches


def _check_options(
    specs: Sequence[str], sites: Sequence[Site], settings: Mapping[str, str]
) -> None:
    if specs and not sites:
        raise ConfigError(
            "no server named",
            where="--watch",
            hint="Add --watch-at SITES: entries of the sites file whose jobs run on the servers.",
        )
    if (sites or settings) and not specs:
        raise ConfigError(
            "nothing watches",
            where="--watch-at" if sites else f"-S {WATCH_PREFIX}{min(settings)}",
            hint="Add --watch server-watch or --watch log-parse.",
        )


def select_jobs(jobs: JobSequence, selection: SiteSelection) -> tuple[JobSequence, list[str]]:
    """Select the jobs whose doors have good replicas, with a note for each reason against one.

    Raises:
        NothingToDoError: there is none.
    """
    definition = jobs.planner.pinned.definition
    jobs = replace(jobs, accesses=selection.accesses)
    notes = [*selection.notes, *_missing_replica_notes(jobs)]
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


def _missing_replica_notes(jobs: JobSequence) -> Iterator[str]:
    datasets = jobs.planner.pinned.definition.dataset_names
    for access, dataset in product(jobs.accesses, datasets):
        if reason := jobs.planner.inputs.placement.lacking.get((*access.key, dataset)):
            skipped = f" for {dataset}" if len(datasets) > 1 else ""
            yield (
                f"Door {access.door.name} of site {access.storage.name} is skipped{skipped}, no good "
                f"replica: {reason}."
            )


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
