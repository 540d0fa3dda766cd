"""Pinned tests, manifests, sites and plans, and a campaign with a fake batch system and a tracker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from measurement_factory import make_measurement

from treehammer import config
from treehammer.collectors.job_spec import JobState, SoftwareRequest
from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.collectors.record.operation_steps import LoadProgress
from treehammer.collectors.software import providers
from treehammer.config import Settings
from treehammer.datasets.manifest import Distribution, Manifest, ManifestFile, TreeLayout
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.sql.core.rows import AttemptRow, CampaignRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import (
    AttemptStatus,
    BatchSystem,
    Hold,
    InputReplacement,
    JobDescription,
    JobStatus,
)
from treehammer.submit.campaigns.attempt_rows import CollectResult
from treehammer.submit.campaigns.tracker import CampaignTracker
from treehammer.submit.planning.job_planner import JobInputs
from treehammer.submit.planning.plan import Plan, make_plan
from treehammer.submit.planning.site_selection import SiteSelection, select_doors
from treehammer.submit.planning.submission_options import (
    DEFAULT_OPTIONS,
    CampaignRequest,
    SubmissionOptions,
)
from treehammer.submit.sites.site_model import Door, Site
from treehammer.submit.sites.site_software import resolve_site_software

CREATED_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z

READING_TEST = """
[test]
name = "reads"
payload = "read.py"
dataset = "tiny"
repeats = 2
rounds = 2
passes = 3
[matrix]
root = ["6.38.00", "6.40.00"]
cache_mb = [0, 30]
bundle = ["root"]
"""

SHELL_TEST = """
[test]
name = "shell"
payload = "run.sh"
[matrix]
style = ["a", "b"]
"""


def make_settings(folder: Path) -> Settings:
    flags = {"cache_dir": folder / "cache", "data_dir": folder / "data"}
    return config.load_settings(flags, environ={}, folder=folder)


def make_pinned_test(folder: Path, text: str = READING_TEST) -> PinnedTest:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test.toml").write_text(text)
    (folder / "read.py").write_text("print('read')\n")
    (folder / "run.sh").write_text("#!/bin/sh\nexit 0\n")
    (folder / "run.sh").chmod(0o755)
    return load_pinned_test(str(folder), {}, {}, make_settings(folder))


def make_manifest(entries: int = 1000, clusters: int = 10) -> Manifest:
    constant = Distribution(1, 1.0, 1.0, 1.0, 1.0, 1.0)
    layout: dict[str, Any] = {
        "tree": "events",
        "format": "TTree",
        "entries": entries,
        "branches": 100,
        "unzipped_bytes": 400_000_000,
        "zipped_bytes": 100_000_000,
        "top2_share": 0.4,
        "clusters": clusters,
        "cluster_zipped_bytes": constant,
        "basket_zipped_bytes": constant,
        "branch_ratio": constant,
    }
    values = dict(layout.items())
    for name in TreeLayout.__dataclass_fields__:
        values.setdefault(name, 0)
    file = ManifestFile("tiny.root", 100_000_000, "0" * 8, "0" * 64, TreeLayout(**values))
    return Manifest("tiny", (file,), {})


def make_site(*doors: str, name: str = "local") -> Site:
    paths = tuple(
        Door(name=door, protocol="file", prefix=f"/{door}/data") for door in doors or ("file",)
    )
    return Site(name=name, batch="local", doors=paths)


def make_grid_site(*doors: str, name: str = "SITE_A", **changes: Any) -> Site:
    """Make a site with an HTCondor pool that has every release of ROOT on CVMFS."""
    urls = tuple(
        Door(name=door, protocol="root", prefix=f"root://{name.lower()}.example:1094//{door}")
        for door in doors or ("root",)
    )
    defaults: dict[str, Any] = {
        "requirements": f'TARGET.GLIDEIN_Site == "{name}"',
        "software": {"*": "cvmfs:ROOT/{version}/x86_64-debian12-gcc12-opt"},
    }
    return Site(name=name, batch="htcondor@pool", doors=urls, **(defaults | changes))


def make_local_plan(
    folder: Path,
    text: str = READING_TEST,
    *sites: Site,
    created_us: int = CREATED_US,
    options: SubmissionOptions = DEFAULT_OPTIONS,
    from_sites: tuple[Site, ...] = (),
) -> Plan:
    pinned = make_pinned_test(folder, text)
    releases = make_software_requests(pinned)
    sites = sites or (make_site(),)
    manifests = (make_manifest(),) if pinned.definition.dataset else ()
    inputs = JobInputs(releases, resolve_site_software(sites, releases), manifests)
    request = CampaignRequest(str(folder), created_us=created_us, options=options)
    selection = select_doors(SiteSelection(sites, from_sites), pinned.definition)
    return make_plan(request, pinned, selection, inputs)


def make_grid_plan(folder: Path, text: str, *sites: Site, **options: Any) -> Plan:
    return make_local_plan(folder, text, *(sites or (make_grid_site(),)), **options)


def make_software_requests(pinned: PinnedTest) -> dict[str, SoftwareRequest]:
    """Parse the values of a test's root axis."""
    values = map(str, pinned.definition.axes["root"])
    return {value: providers.parse_software_request(value) for value in values}


def plan_inputs(pinned: PinnedTest, inputs: JobInputs, *sites: Site) -> Plan:
    """Plan a test at sites, a local one by default, with inputs of the caller."""
    request = CampaignRequest("test", created_us=CREATED_US)
    selection = select_doors(SiteSelection(sites or (make_site(),)), pinned.definition)
    return make_plan(request, pinned, selection, inputs)


TWO_ROUNDS = SHELL_TEST.replace("[matrix]", "rounds = 2\n[matrix]")
NOW_US = CREATED_US + 10_000_000


class FakeBatch(BatchSystem):
    """Batch system whose jobs are ended by the test; ``jobs`` maps their ids to batch ids."""

    def __init__(self, folder: Path, jobs: Mapping[str, str], name: str = "local") -> None:
        self.name = name
        self.folder = folder
        self.jobs = dict(jobs)
        self.campaigns: Sequence[str] = ()
        self.statuses = {b: JobStatus(b, JobState.QUEUED) for b in jobs.values()}
        self.requeued: dict[str, int] = {}

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        raise NotImplementedError

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        return {job_id: self.jobs[job_id] for job_id in job_ids if job_id in self.jobs}

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        return {b: self.statuses[b] for b in batch_ids if b in self.statuses}

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        attempts = self.statuses[batch_id].attempts if batch_id in self.statuses else ()
        folders = {a.number: self.folder / f"{batch_id}-{a.number}" for a in attempts}
        return {number: path for number, path in folders.items() if path.exists()}

    def read_load_steps(self, batch_ids: Iterable[str]) -> Sequence[LoadProgress]:
        return [LoadProgress(1, 10, 100, 0, 0) for _ in batch_ids]

    def cancel(self, batch_ids: Iterable[str]) -> int:
        chosen = list(batch_ids)
        for batch_id in chosen:
            self.statuses[batch_id] = replace(self.statuses[batch_id], state=JobState.CANCELLED)
        return len(chosen)

    def hold(self, batch_ids: Iterable[str], reason: str) -> None:
        for batch_id in batch_ids:
            held = replace(self.statuses[batch_id], state=JobState.HELD, hold=Hold(reason))
            self.statuses[batch_id] = held

    def release(self, batch_ids: Iterable[str]) -> int:
        chosen = list(batch_ids)
        for batch_id in chosen:
            self.statuses[batch_id] = JobStatus(batch_id, JobState.QUEUED)
        return len(chosen)

    def list_campaigns(self) -> Sequence[str]:
        return self.campaigns

    def release_held(self, batch_ids: Iterable[str], reason: str) -> bool:
        held = [
            batch_id
            for batch_id in batch_ids
            if self.statuses[batch_id].state is JobState.HELD
            and (hold := self.statuses[batch_id].hold)
            and reason in hold.reason
        ]
        return bool(self.release(held))

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        self.requeued |= earlier
        new = {batch_id: f"again.{batch_id}" for batch_id in earlier}
        self.statuses |= {b: JobStatus(b, JobState.QUEUED) for b in new.values()}
        return new

    def set_status(self, batch_id: str, state: JobState, *attempts: AttemptStatus) -> None:
        self.statuses[batch_id] = JobStatus(batch_id, state, attempts)


class TrackingHarness:
    """Campaign of two jobs with two measurements each, its fake batch system and its tracker."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.plan: Plan = make_local_plan(folder / "test", TWO_ROUNDS)
        self.store = store
        self.now_us = NOW_US
        self.campaign: CampaignRow = self.plan.make_campaign_row()
        store.add_campaign(self.campaign, self.plan.make_job_rows())
        self.ids = [job.spec.job_id for job in self.plan.jobs]
        jobs = {job_id: f"b.{n}" for n, job_id in enumerate(self.ids, start=1)}
        self.batch = FakeBatch(folder / "batch", jobs)
        self.batch.campaigns = [self.campaign.id]

    @property
    def tracker(self) -> CampaignTracker:
        return CampaignTracker(self.store, lambda _name: self.batch, lambda: self.now_us)

    def make_sandbox(self, job: int = 0, attempt: int = 1) -> Path:
        folder = self.batch.folder / f"b.{job + 1}-{attempt}"
        (folder / "records").mkdir(parents=True, exist_ok=True)
        return folder

    def start_job(self, job: int = 0) -> None:
        """Run a job and copy its state."""
        attempt = make_attempt_status(JobState.RUNNING, code=None)
        self.batch.set_status(f"b.{job + 1}", JobState.RUNNING, attempt)
        self.refresh()

    def end_job(self, state: JobState, *attempts: AttemptStatus, job: int = 0) -> None:
        """End a job, by default with one attempt of that state, and copy its state."""
        self.batch.set_status(f"b.{job + 1}", state, *(attempts or (make_attempt_status(state),)))
        self.refresh()

    def refresh(self) -> list[str]:
        """Copy the states of the jobs and return them."""
        jobs = {job.id: job.state for job in self.tracker.refresh_jobs(self.campaign)}
        return [jobs[id_] for id_ in self.ids]

    def collect(self) -> CollectResult:
        """Collect the records of the jobs."""
        return self.tracker.collect_records(self.campaign)

    def write_record(self, job: int, position: int, attempt: int = 1, **changes: Any) -> Path:
        values = {"campaign_id": self.campaign.id, "started_us": CREATED_US, **changes}
        day = epoch_day_to_number(values["started_us"] // DAY_US)
        job_id = values.pop("job_id", self.ids[job])
        record = make_measurement(job_id, 1, position, **{"attempt": attempt, "day": day, **values})
        path = self.make_sandbox(job, attempt) / "records" / f"{record.id}.json"
        path.write_text(json.dumps({"values": record.values, "extras": {}}))
        return path

    def read_attempts(self, job: int = 0) -> list[AttemptRow]:
        return self.store.attempts([self.ids[job]])

    def read_failures(self, job: int = 0) -> list[str]:
        """Return the failure class of each attempt of a job."""
        return [row.failure_class for row in self.read_attempts(job)]


def make_attempt_status(
    state: JobState, number: int = 1, code: int | None = 0, reason: str = ""
) -> AttemptStatus:
    ended = NOW_US if state.is_final else 0
    return AttemptStatus(number, state, CREATED_US + 1, ended, code, reason)
