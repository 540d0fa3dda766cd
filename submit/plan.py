"""The plan: matrix times sites times doors times repeats, multiplied out to jobs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from treehammer.collectors.job import (
    CHECKSUM,
    TIMED,
    ExecutionSpec,
    InputFile,
    JobSpec,
    Limits,
    PayloadSpec,
    SoftwareRequest,
)
from treehammer.collectors.metrics import INSTRUMENT_VERSION, KNOWN_AXES
from treehammer.collectors.record import RECORD_VERSION
from treehammer.datasets.manifest import Manifest
from treehammer.errors import NothingToDo
from treehammer.hctests import axes, identity, matrix
from treehammer.hctests.definition import PinnedTest, Scalar, TestDefinition, Variant
from treehammer.sql.rows import CampaignRow, JobRow
from treehammer.submit.batch.base import JobState
from treehammer.submit.sites import Door, Site
from treehammer.version import __version__

#: Folder of the test's files beside job.json.
PAYLOAD_FOLDER = "payload"
#: Seconds for each execution beyond its own wall limit: setting up, stage-in, calibration.
OVERHEAD_S = 120.0


@dataclass(frozen=True)
class PlannedJob:
    """One job: a group of variants at one door, for one of the repeats."""

    spec: JobSpec
    site: Site
    kind: str
    repeat: int
    label: str

    @property
    def wall_limit_s(self) -> float:
        """Seconds after which the batch system ends the job; 0 means never."""
        limit = self.spec.limits.wall_s
        return len(self.spec.executions) * (limit + OVERHEAD_S) if limit else 0.0


@dataclass(frozen=True)
class Plan:
    """A campaign, ready to be rendered and submitted.

    ``jobs`` are in the order in which they should run; ``notes`` say what of the request cannot be
    had at which site.
    """

    campaign_id: str
    campaign_name: str
    created_us: int
    pinned: PinnedTest
    manifest: Manifest | None
    sites: tuple[Site, ...]
    jobs: tuple[PlannedJob, ...]
    notes: tuple[str, ...]

    @property
    def executions(self) -> int:
        """Measurements that are planned, timed and checksum."""
        return sum(len(job.spec.executions) for job in self.jobs)

    def campaign_row(self) -> CampaignRow:
        """What the store remembers of the campaign."""
        pinned = self.pinned
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
            plan=_request(pinned, self.sites),
            planned_jobs=len(self.jobs),
            planned_measurements=self.executions,
        )

    def job_rows(self) -> tuple[JobRow, ...]:
        """What the store remembers of the jobs before they are submitted."""
        return tuple(
            JobRow(
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
            for job in self.jobs
        )


def make_plan(
    pinned: PinnedTest,
    sites: Sequence[Site],
    manifest: Manifest | None,
    software: Mapping[str, SoftwareRequest],
    *,
    created_us: int,
    name: str = "",
) -> Plan:
    """Multiply a test out to jobs.

    Args:
        pinned: the test.
        sites: where it runs.
        manifest: of its dataset; None for a test without one.
        software: value of the ``root`` axis -> what sets it up.
        created_us: time of the request, microseconds since 1970 UTC; part of the identity.
        name: display name; by default made of test, commit and time.

    Raises:
        NothingToDo: no variant can run at these sites.
    """
    request = _request(pinned, sites)
    campaign_id = _hash(created_us, pinned.repository, pinned.commit, pinned.hashes, request)[:16]
    name = name or _display_name(pinned, created_us)
    planner = _Planner(pinned, manifest, software, campaign_id, name)
    notes: list[str] = []
    jobs: list[PlannedJob] = []
    checksums: list[PlannedJob] = []
    for site in sites:
        for door in _doors(pinned.definition, site, notes):
            jobs += planner.timed(site, door)
            checksums += planner.checksum(site, door)
    if not jobs:
        raise NothingToDo(
            "no variant of this test can run at these sites",
            where=pinned.definition.name,
            hint=" ".join(notes) or "See `treehammer tests show`.",
        )
    # All variants once before any a second time, so that a drift of the site meets them alike.
    # The checksums come last: they must not warm a cache that a measurement wants to find cold.
    jobs.sort(key=lambda job: job.repeat)
    ordered = (*jobs, *checksums)
    return Plan(
        campaign_id, name, created_us, pinned, manifest, tuple(sites), ordered, tuple(notes)
    )


@dataclass(frozen=True)
class _Planner:
    """What all jobs of a plan share."""

    pinned: PinnedTest
    manifest: Manifest | None
    software: Mapping[str, SoftwareRequest]
    campaign_id: str
    campaign_name: str

    def timed(self, site: Site, door: Door) -> Iterator[PlannedJob]:
        """One job for each group of variants and repeat."""
        definition = self.pinned.definition
        shown = tuple(
            axis for axis in matrix.label_axes(definition) if axis not in definition.bundle
        )
        for group in matrix.groups(definition, door.name):
            first = group.variants[0]
            key = "|".join(variant.canonical for variant in group.variants)
            for repeat in range(1, definition.repeats + 1):
                seed = matrix.job_seed(definition.seed, site.name, door.name, key, repeat)
                order = matrix.order(group, definition.rounds, seed)
                yield self._job(site, door, TIMED, repeat, first.label(shown), key, order)

    def checksum(self, site: Site, door: Door) -> Iterator[PlannedJob]:
        """The job that proves that every release reads the same values; none without ROOT."""
        definition = self.pinned.definition
        if self.manifest is None or definition.payload_kind == "executable":
            return
        releases = dict.fromkeys(
            str(variant["root"]) for variant in matrix.variants(definition, door.name)
        )
        order = tuple(
            (1, position, _checksum_variant(definition, release))
            for position, release in enumerate(
                (r for r in releases if self.software[r].provider != "none"), start=1
            )
        )
        if order:
            yield self._job(site, door, CHECKSUM, 1, CHECKSUM, CHECKSUM, order)

    def _job(
        self,
        site: Site,
        door: Door,
        kind: str,
        repeat: int,
        label: str,
        key: str,
        order: Sequence[tuple[int, int, Variant]],
    ) -> PlannedJob:
        job_id = _hash(self.campaign_id, site.name, door.name, kind, key, repeat)[:24]
        definition = self.pinned.definition
        spec = JobSpec(
            campaign_id=self.campaign_id,
            job_id=job_id,
            site=site.name,
            door=door.name,
            payload=PayloadSpec(
                kind=definition.payload_kind,
                entry=definition.payload,
                folder=PAYLOAD_FOLDER,
                settings=definition.settings,
                metrics={name: asdict(metric) for name, metric in definition.metrics.items()},
            ),
            limits=Limits(definition.wall_limit_s, definition.memory_limit_mb * 1_000_000),
            executions=(),
        )
        executions = tuple(
            self._execution(spec, site, door, kind, repeat, *place) for place in order
        )
        return PlannedJob(replace(spec, executions=executions), site, kind, repeat, label)

    def _execution(
        self,
        spec: JobSpec,
        site: Site,
        door: Door,
        kind: str,
        repeat: int,
        round_: int,
        position: int,
        variant: Variant,
    ) -> ExecutionSpec:
        definition, manifest = self.pinned.definition, self.manifest
        once = kind == CHECKSUM or variant["cache"] == "cold"
        passes = 1 if once else definition.passes
        files = (
            tuple(
                InputFile(file.name, door.url(manifest.name, file.name), file.size, file.adler32)
                for file in manifest.files
            )
            if manifest
            else ()
        )
        values = self._shared | {
            "job_id": spec.job_id,
            "kind": kind,
            "repeat": repeat,
            "round": round_,
            "position": position,
            "series": identity.series(
                self.pinned, variant, manifest.hash if manifest else "", site.name, door.name
            ),
            "variant": variant.canonical,
            "variant_label": variant.label(matrix.label_axes(definition)),
            "site": site.name,
            "door": door.name,
            "door_protocol": door.protocol,
            "passes_planned": passes,
            **_axis_values(variant, door),
        }
        return ExecutionSpec(
            round=round_,
            position=position,
            kind=kind,
            variant=dict(variant.values),
            software=self.software[str(variant["root"])],
            files=files,
            tree=definition.tree or (manifest.tree if manifest else ""),
            passes=passes,
            seed=definition.seed,
            identity=values,
        )

    @property
    def _shared(self) -> dict[str, Any]:
        """The plan-owned values that all measurements of the campaign have in common."""
        pinned, manifest = self.pinned, self.manifest
        return {
            "record_version": RECORD_VERSION,
            "instrument_version": INSTRUMENT_VERSION,
            "campaign_id": self.campaign_id,
            "campaign_name": self.campaign_name,
            "test_name": pinned.definition.name,
            "repository": pinned.repository,
            "ref": pinned.ref or None,
            "commit_id": pinned.commit or None,
            "dirty": pinned.dirty,
            "test_path": pinned.path or ".",
            "test_hash": identity.test_hash(pinned),
            "payload_hash": identity.payload_hash(pinned),
            "treehammer_version": __version__,
            "dataset": manifest.name if manifest else None,
            "dataset_hash": manifest.hash if manifest else None,
        }


def _axis_values(variant: Variant, door: Door) -> dict[str, Scalar]:
    """The columns of the known axes; the door has its own beside them."""
    values: dict[str, Scalar] = {
        f"axis_{axis}": variant[axis] for axis in KNOWN_AXES if axis != "door"
    }
    return values | {
        "axis_branches": str(variant["branches"]),
        "axis_cache_mb": float(variant["cache_mb"]),
        "axis_events": float(variant["events"]),
    }


def _checksum_variant(definition: TestDefinition, release: str) -> Variant:
    """All branches and events in the plainest way; a test's own axes at their first value."""
    own = {
        name: values[0]
        for name, values in definition.axes.items()
        if name not in KNOWN_AXES and values
    }
    plain = {name: axis.default[0] for name, axis in axes.KNOWN.items() if name != "door"}
    return Variant(tuple((plain | {"root": release} | own).items()))


def _doors(definition: TestDefinition, site: Site, notes: list[str]) -> Iterator[Door]:
    """The doors of a site that the test names, or its first; adds a note for each it lacks."""
    if "door" not in definition.axes:
        yield site.doors[0]
        return
    included = (rule["door"] for rule in definition.include if "door" in rule)
    for name in dict.fromkeys(str(value) for value in (*definition.axes["door"], *included)):
        door = site.door(name)
        if door:
            yield door
        else:
            offered = ", ".join(door.name for door in site.doors)
            notes.append(f"Site {site.name} has no door {name!r} (it has: {offered}).")


def _request(pinned: PinnedTest, sites: Sequence[Site]) -> str:
    """Canonical JSON of what was asked for."""
    document = {"definition": asdict(pinned.definition), "sites": [site.name for site in sites]}
    return json.dumps(document, sort_keys=True, default=str)


def _display_name(pinned: PinnedTest, created_us: int) -> str:
    commit = pinned.commit[:7] or "no-commit"
    dirty = "+dirty" if pinned.dirty else ""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created_us // 1_000_000))
    return f"{pinned.definition.name}@{commit}{dirty} {when}"


def _hash(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()
