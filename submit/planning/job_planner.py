"""Job planner: the executions of each job, in order, with their specifications."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from typing import Any

from treehammer.analysis.statistics.verdict import SEQUENTIAL_JOBS, SEQUENTIAL_LAUNCHES
from treehammer.collectors.job_spec import (
    BASE_SIDE,
    CHECKSUM,
    PAIRED,
    SERVER_CACHE_AXIS,
    SIDES,
    TIMED,
    UPROOT_SOFTWARE,
    ExecutionLimits,
    ExecutionSpec,
    InputFile,
    JobSpec,
    LoadSpec,
    PayloadSpec,
    ServerCache,
    SoftwareRequest,
)
from treehammer.collectors.record.metric_catalogue import (
    CATALOGUE_AXES,
    INSTRUMENT_VERSION,
    RECORD_VERSION,
)
from treehammer.collectors.software import providers
from treehammer.datasets.manifest import Manifest
from treehammer.hctests.definition.execution_order import (
    LaunchDesign,
    OrderedExecution,
    derive_job_seed,
    order_job,
)
from treehammer.hctests.definition.matrix import AXES_BY_NAME
from treehammer.hctests.definition.model import (
    ANY_COMMAND,
    COMMIT_AXIS,
    DATASET_AXIS,
    FORMAT_AXIS,
    Scalar,
    Variant,
    VariantGroup,
    compute_series,
    format_commit,
)
from treehammer.hctests.definition.test_identity import (
    PinnedTest,
    compute_test_hash,
    get_payload_hash,
)
from treehammer.hctests.definition.toml_models import LoadTable, TestDefinition
from treehammer.submit.sites.replicas import NO_RUCIO_PLACEMENT, RucioPlacement
from treehammer.submit.sites.site_model import Door, DoorAccess, Site
from treehammer.version import __version__

#: Folder of the test's files beside job.json.
PAYLOAD_FOLDER = "payload"
#: Seconds added to the wall limit of each execution for setup, stage-in and calibration.
WALL_LIMIT_OVERHEAD_S = 120.0

#: Call of the kit that reads with uproot where the software has it, and no ROOT.
_EITHER_CALL = re.compile(r"\brun_dataframe\(\s*\)")

#: Label of a door, and CPUs of a job that reads through it.
Lane = tuple[str, int]


@dataclass(frozen=True)
class PlannedJob:
    """A job: one repeat of a group of variants at one door, the first one of bundled doors."""

    spec: JobSpec
    access: DoorAccess
    kind: str
    repeat: int
    label: str

    @property
    def site(self) -> Site:
        """Site that runs the job."""
        return self.access.site

    @property
    def cpus(self) -> int:
        """CPUs that the job needs: those of its execution with the most threads."""
        return max((execution.threads for execution in self.spec.executions), default=1)

    @property
    def lane(self) -> Lane:
        """Door and CPUs: jobs of a site that differ in neither share a description."""
        return self.access.door_label, self.cpus

    @property
    def is_watch(self) -> bool:
        """Whether the job watches a server during a load."""
        return self.spec.load is not None and self.spec.load.is_watch

    @property
    def wall_limit_s(self) -> float:
        """Seconds after which the batch system ends the job; 0 for no limit."""
        limit, load = self.spec.limits.wall_s, self.spec.load
        count = len(self.spec.executions)
        wait_s = load.longest_wait_s(count) if load else 0.0
        before = self.spec.payload.before
        # The last command restores the settings.
        wait_s += (count + 1) * before.timeout_s if before else 0.0
        payload = self.spec.payload
        build = payload.build
        builds = {
            (execution.software, (execution.payload or payload).folder)
            for execution in self.spec.executions
        }
        wait_s += len(builds) * build.timeout_s if build else 0.0
        return count * (limit + WALL_LIMIT_OVERHEAD_S) + wait_s if limit else 0.0


@dataclass(frozen=True)
class LoadPosition:
    """A job's place among those that load together.

    Attributes:
        key: identifies these jobs within the campaign.
        index: number of the job, from 0.
        jobs: number of them all.
        folder: where they meet, relative to job.json; '' for the results service.
        earlier_load: whether another load of the campaign comes before theirs.
        watchers: number of jobs beside them that watch the servers.
    """

    key: str
    index: int
    jobs: int
    folder: str
    earlier_load: bool
    watchers: int = 0


@dataclass(frozen=True)
class JobInputs:
    """Software and datasets of a campaign's jobs.

    Attributes:
        software: value of the ``root`` axis -> software request.
        site_software: (site, value of the ``root`` axis) -> the site's own software request.
        manifests: manifests of the test's datasets, the main one first; none for a test without one.
        placement: files at doors that do not hold them at ``prefix/DATASET/FILE``.
        notes: releases that are not installed, and peculiarities of datasets.
    """

    software: Mapping[str, SoftwareRequest]
    site_software: Mapping[tuple[str, str], SoftwareRequest] = field(default_factory=dict)
    manifests: Sequence[Manifest] = ()
    placement: RucioPlacement = NO_RUCIO_PLACEMENT
    notes: Sequence[str] = ()

    def find_manifest(self, dataset: str) -> Manifest | None:
        """Find the manifest of a dataset; the main one for another name."""
        manifests = (manifest for manifest in self.manifests if manifest.name == dataset)
        return next(manifests, self.manifests[0] if self.manifests else None)


@dataclass(frozen=True)
class JobPlanner:
    """Creates the jobs of a plan from its shared properties.

    ``is_sequential`` says that the campaign ends when it is decided: its jobs then hold two launches
    each, of which every fourth is a control.
    """

    pinned: PinnedTest
    inputs: JobInputs
    campaign_id: str
    campaign_name: str
    is_sequential: bool = False

    def manifest_for(self, variant: Variant) -> Manifest | None:
        """Return the manifest of the dataset that a variant reads."""
        return self.inputs.find_manifest(self.pinned.definition.dataset_for(variant))

    def plan_timed_job(
        self,
        access: DoorAccess,
        group: VariantGroup,
        repeat: int,
        position: LoadPosition | None = None,
    ) -> PlannedJob:
        """Plan one repeat of a group of variants, at its position in a load if it belongs to one."""
        definition = self.pinned.definition
        key = group.key
        # Jobs that load together run the same variant at the same time.
        place = () if position else access.key
        number = 1 if position else repeat
        # Each campaign of a paired test has its own order: with equal orders, the mean over campaigns
        # would keep the effect of the order.
        campaign = (self.campaign_id,) if definition.test.mode == PAIRED else ()
        seed, common_seed = (
            derive_job_seed(definition.test.seed, *campaign, *place, key, *numbers)
            for numbers in ((number,), ())
        )
        design = self._design_launches(repeat, common_seed)
        order = order_job(definition, group, seed, design)
        label = group.variants[0].label(self._axes_between_jobs)
        planned = self._plan_job(access, TIMED, repeat, label, key, order)
        if position is None or definition.load is None:
            return planned
        load = self._describe_load(definition.load, position, access.door)
        return replace(planned, spec=replace(planned.spec, load=load))

    def _design_launches(self, repeat: int, seed: int) -> LaunchDesign:
        if not self.is_sequential:
            return LaunchDesign.of_repeat(self.pinned.definition.test.rounds, repeat, seed)
        pairs, is_second = divmod(repeat - 1, SEQUENTIAL_JOBS)
        before = pairs * SEQUENTIAL_LAUNCHES
        if is_second:
            return LaunchDesign(3, 0, before + 2, pairs + 1, seed)
        return LaunchDesign(2, 1, before, pairs, seed)

    def _describe_load(self, load: LoadTable, position: LoadPosition, door: Door) -> LoadSpec:
        name = hash_values(self.campaign_id, position.key)[:24] if load.together else ""
        return LoadSpec(
            index=position.index,
            jobs=position.jobs,
            barrier=name,
            folder=position.folder,
            # A job whose predecessor failed comes early, while others still load.
            wait_s=load.wait_s + (load.duration_s if position.earlier_load else 0.0),
            lead_s=load.lead_s if load.together else 0.0,
            level_start_s=float(load.level_start_s(position.index)),
            step_s=load.step_s,
            duration_s=load.duration_s,
            writable=door.writable_url if load.writes else "",
            watchers=position.watchers,
        )

    def plan_checksum_job(
        self, access: DoorAccess, groups: Iterable[VariantGroup]
    ) -> Iterator[PlannedJob]:
        """Plan the job that proves that every release reads the same values.

        uproot proves its values beside ROOT or in two formats: it needs about a minute for 50 MB.
        There is none for other software, none for a load test, and none where a job compares commits,
        which read with the same ROOT.
        """
        definition = self.pinned.definition
        is_read = bool(self.inputs.manifests) and definition.payload_kind != "executable"
        if not is_read or definition.load or COMMIT_AXIS in definition.matrix.bundle:
            return
        variants = self._list_compared_variants(access.site, groups)
        order = [
            OrderedExecution(1, position, variant, CHECKSUM)
            for position, variant in enumerate(variants, start=1)
        ]
        if order:
            yield self._plan_job(access, CHECKSUM, 1, CHECKSUM, CHECKSUM, order)

    def _list_compared_variants(
        self, site: Site, groups: Iterable[VariantGroup]
    ) -> Iterator[Variant]:
        """Yield the variants whose values are compared; uproot's need ROOT or a second format."""
        readers = [
            (variant, self.software_for(site, str(variant["root"])).provider)
            for variant in _checksum_variants(self.pinned.definition, groups)
        ]
        with_root = [provider not in providers.WITHOUT_ROOT for _, provider in readers]
        formats = {dict(variant.values).get(FORMAT_AXIS) for variant, _ in readers}
        is_compared = any(with_root) or len(formats) > 1
        for (variant, _), has_root in zip(readers, with_root, strict=True):
            if has_root or (is_compared and reads_with_uproot(self.pinned, str(variant["root"]))):
                yield variant

    def _plan_job(
        self,
        access: DoorAccess,
        kind: str,
        repeat: int,
        label: str,
        key: str,
        order: Sequence[OrderedExecution],
    ) -> PlannedJob:
        job_id = hash_values(self.campaign_id, *access.key, kind, key, repeat)[:24]
        definition = self.pinned.definition
        memory_mb = find_payload_memory_mb(definition, access.site)
        spec = JobSpec(
            campaign_id=self.campaign_id,
            job_id=job_id,
            site=access.site.name,
            storage_site=access.storage.name,
            door=access.door.name,
            door_url=access.door.prefix,
            payload=self.payload_spec,
            limits=ExecutionLimits(definition.test.wall_limit_s, memory_mb * 1_000_000),
            executions=(),
        )
        executions = tuple(
            self._plan_execution(spec, _select_door(access, entry.variant), repeat, entry)
            for entry in order
        )
        return PlannedJob(replace(spec, executions=executions), access, kind, repeat, label)

    def _plan_execution(
        self,
        spec: JobSpec,
        access: DoorAccess,
        repeat: int,
        entry: OrderedExecution,
    ) -> ExecutionSpec:
        variant, kind = entry.variant, entry.kind
        site, door = access.site, access.door
        definition, manifest = self.pinned.definition, self.manifest_for(variant)
        content = self.inputs.find_manifest(variant.dataset)
        passes = 1 if _is_read_once(entry) else definition.test.passes
        shared = self._values_by_commit.get(variant.commit, self.campaign_values)
        values = shared | {
            "job_id": spec.job_id,
            "kind": kind,
            "repeat": repeat,
            "round": entry.round,
            "position": entry.position,
            "launch_order": _launch_order(entry),
            "series": compute_series(
                shared["test_hash"],
                variant,
                manifest.hash if manifest else "",
                site.name,
                door.name,
                access.storage.name,
            ),
            "variant": variant.canonical_json,
            "variant_label": variant.label(self._axes_in_labels),
            "dataset": manifest.name if manifest else None,
            "dataset_hash": manifest.hash if manifest else None,
            # Formats share the content of the first one.
            "content_hash": content.hash if content else None,
            "site": site.name,
            "storage_site": access.storage.name,
            "door": door.name,
            "door_protocol": door.protocol,
            "passes_planned": passes,
            **_make_axis_columns(variant),
        }
        return ExecutionSpec(
            round=entry.round,
            position=entry.position,
            kind=kind,
            variant=dict(variant.values),
            software=self.software_for(site, str(variant["root"])),
            files=self._input_files(access, manifest),
            tree=definition.test.tree or (manifest.tree if manifest else ""),
            passes=passes,
            seed=definition.test.seed,
            identity=values,
            mode=entry.mode,
            side=entry.side,
            door_url=door.prefix if variant.door else "",
            server_cache=ServerCache(**door.cache.model_dump()) if door.cache else None,
            payload=self._payload_by_commit.get(variant.commit),
            origin=door.origin,
            link=door.link,
            netem=door.netem,
            **_list_left_out(manifest, definition.test.tree),
        )

    def software_for(self, site: Site, value: str) -> SoftwareRequest:
        """Return the software that a site uses for a value of the ``root`` axis."""
        return self.inputs.site_software.get((site.name, value)) or self.inputs.software[value]

    def _input_files(self, access: DoorAccess, manifest: Manifest | None) -> tuple[InputFile, ...]:
        door = access.door
        if manifest is None:
            return ()
        key = (*access.key, manifest.name)
        placed = self.inputs.placement.files
        if door.rse or key in placed:
            return placed[key]
        return tuple(
            InputFile(file.name, door.file_url(manifest.name, file.name), file.size, file.adler32)
            for file in manifest.files
        )

    # Computed once and shared by all jobs, of which a plan may have a million.

    @cached_property
    def _axes_in_labels(self) -> tuple[str, ...]:
        return self.pinned.definition.label_axes

    @cached_property
    def _axes_between_jobs(self) -> tuple[str, ...]:
        """The axes by which jobs differ."""
        bundled = self.pinned.definition.matrix.bundle
        return tuple(axis for axis in self._axes_in_labels if axis not in bundled)

    @cached_property
    def payload_spec(self) -> PayloadSpec:
        """The payload of all jobs."""
        return make_payload_spec(self.pinned.definition)

    @cached_property
    def _payload_by_commit(self) -> dict[str, PayloadSpec]:
        """Payloads by the value of the axis ``commit``; empty without this axis."""
        return {
            commit: make_payload_spec(test.definition, locate_payload(commit))
            for commit, test in self.pinned.commits.items()
        }

    @cached_property
    def campaign_values(self) -> dict[str, Any]:
        """The values owned by the plan that all measurements of the campaign share."""
        return self._describe_test(self.pinned)

    @cached_property
    def _values_by_commit(self) -> dict[str, dict[str, Any]]:
        """The same by the value of the axis ``commit``; empty without this axis."""
        return {commit: self._describe_test(test) for commit, test in self.pinned.commits.items()}

    def _describe_test(self, pinned: PinnedTest) -> dict[str, Any]:
        return {
            "record_version": RECORD_VERSION,
            "instrument_version": INSTRUMENT_VERSION,
            "campaign_id": self.campaign_id,
            "campaign_name": self.campaign_name,
            "test_name": pinned.definition.test.name,
            "repository": pinned.repository,
            "ref": pinned.ref or None,
            "commit_id": pinned.commit or None,
            "dirty": pinned.dirty,
            "test_path": pinned.path or ".",
            "test_hash": compute_test_hash(pinned),
            "payload_hash": get_payload_hash(pinned),
            "treehammer_version": __version__,
        }


def locate_payload(commit: str) -> str:
    """Return the folder beside job.json with the test's files at a value of the axis ``commit``."""
    return f"{PAYLOAD_FOLDER}-{format_commit(commit).replace('+', '-')}"


def find_job_memory_mb(definition: TestDefinition, site: Site) -> int:
    """Return the memory in MB that a job requests: that of all payloads that live at once.

    A batch system counts in units of 2²⁰ bytes, the limits of payloads in 10⁶: 5 % are left for the
    worker, which ends a payload before the kernel does.
    """
    return _count_payloads(definition) * find_payload_memory_mb(definition, site)


def find_payload_memory_mb(definition: TestDefinition, site: Site) -> int:
    """Return the memory limit in MB of each payload of a test at a site."""
    limit, ceiling = definition.test.memory_limit_mb, site.ceilings.memory_mb
    return min(limit, max(1, ceiling // _count_payloads(definition))) if ceiling else limit


def _count_payloads(definition: TestDefinition) -> int:
    return len(SIDES) if definition.test.mode == PAIRED else 1


def _select_door(access: DoorAccess, variant: Variant) -> DoorAccess:
    """Return the variant's own door where doors are bundled, otherwise the job's."""
    door = access.storage.find_door(variant.door)
    return replace(access, door=door) if door else access


def _launch_order(entry: OrderedExecution) -> str | None:
    """Return the sides of an execution's launch in order of their positions; None without one."""
    if not entry.side:
        return None
    return "AB" if (entry.side == BASE_SIDE) == (entry.position == 1) else "BA"


def _is_read_once(entry: OrderedExecution) -> bool:
    """Return whether a second pass would read what the first left in a cache."""
    variant = entry.variant
    is_cold = variant["cache"] == "cold" or SERVER_CACHE_AXIS in dict(variant.values)
    return is_cold or entry.kind == CHECKSUM


def _make_axis_columns(variant: Variant) -> dict[str, Scalar]:
    """Return the columns of the known axes, except the door, which has its own columns."""
    columns = {f"axis_{axis}": variant[axis] for axis in CATALOGUE_AXES if axis != "door"}
    return columns | {
        "axis_branches": str(variant["branches"]),
        "axis_cache_mb": float(variant["cache_mb"]),
        "axis_events": float(variant["events"]),
    }


def _list_left_out(manifest: Manifest | None, tree: str) -> dict[str, tuple[str, ...]]:
    """List branches that a test cannot read, which are known of the dataset's main tree alone."""
    if manifest is None or tree not in ("", manifest.tree):
        return {}
    return {
        "unreadable_branches": tuple(manifest.unreadable_branches),
        "missing_branches": tuple(manifest.missing_branches),
    }


def read_payload(pinned: PinnedTest) -> str:
    """Read a Python payload; '' for another one."""
    definition = pinned.definition
    if definition.payload_kind != "python":
        return ""
    return (pinned.folder / definition.test.payload).read_text("utf-8", "replace")


def reads_with_uproot(pinned: PinnedTest, root: str) -> bool:
    """Return whether a payload reads with uproot if the axis ``root`` has a value without ROOT."""
    text = read_payload(pinned)
    has_uproot = root.startswith(UPROOT_SOFTWARE) and _EITHER_CALL.search(text)
    return "run_uproot(" in text or bool(has_uproot)


def _reader_key(variant: Variant) -> tuple[str, str, str]:
    """Return release, format and dataset, which identify a reader whose values are verified."""
    values = dict(variant.values)
    return str(values["root"]), str(values.get(FORMAT_AXIS, "")), variant.dataset


def _list_accesses(groups: Iterable[VariantGroup]) -> dict[tuple[str, str, str], set[Scalar]]:
    """List how each reader of the groups gets its files."""
    accesses: dict[tuple[str, str, str], set[Scalar]] = {}
    for variant in chain.from_iterable(group.variants for group in groups):
        accesses.setdefault(_reader_key(variant), set()).add(variant["access"])
    return accesses


def _checksum_variants(
    definition: TestDefinition, groups: Iterable[VariantGroup]
) -> Iterator[Variant]:
    """Yield variants that read all branches and events, for each reader of the groups.

    Other known axes take their default value, a test's own axes their first value.
    """
    accesses = _list_accesses(groups)
    own_values = {
        name: values[0]
        for name, values in definition.axes.items()
        if name not in CATALOGUE_AXES and values
    }
    defaults = {name: axis.default[0] for name, axis in AXES_BY_NAME.items() if name != "door"}
    formats = _list_choices(FORMAT_AXIS, definition.axes.get(FORMAT_AXIS, ()))
    names = definition.dataset_names if DATASET_AXIS in definition.axes else ()
    datasets = _list_choices(DATASET_AXIS, names)
    for dataset, release, format_ in product(datasets, definition.axis_values("root"), formats):
        values = defaults | {"root": release} | own_values | format_ | dataset
        variant = Variant(tuple(values.items()))
        if key_accesses := accesses.get(_reader_key(variant)):
            # A release may be able to read only staged copies of what is behind a door.
            yield variant.with_access("direct" if "direct" in key_accesses else "staged")


def _list_choices(axis: str, values: Iterable[Scalar]) -> Sequence[dict[str, Scalar]]:
    """List the values of an axis as parts of variants; an empty part for an axis without values."""
    return [{axis: value} for value in values] or [{}]


def hash_values(*parts: object) -> str:
    """Return the SHA-256 (hex) of values, as an identity."""
    text = json.dumps(parts, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()


def make_payload_spec(definition: TestDefinition, folder: str = PAYLOAD_FOLDER) -> PayloadSpec:
    """Describe a test's payload to the worker."""
    return PayloadSpec(
        kind=providers.COMMAND
        if definition.test.payload == ANY_COMMAND
        else definition.payload_kind,
        entry=definition.test.payload,
        folder=folder,
        settings=definition.settings,
        metrics={name: metric.model_dump() for name, metric in definition.metrics.items()},
        environment=definition.environment,
        record=definition.test.record,
        before=definition.server_command,
        libraries=definition.test.load,
        imports=definition.test.imports,
        build=definition.build_command,
    )
