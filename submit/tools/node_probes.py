"""Probe jobs of ``sites check``: the worker's check of a node of each site.

The jobs take the way of any other job, in a campaign of their own, whose database and files are
removed afterwards: nothing of them enters the results.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treehammer.collectors.job_spec import LOCAL_BATCH, JobState
from treehammer.collectors.record.node_needs import NODE_NEEDS, parse_lack
from treehammer.config import KEEP_JOBS, Settings
from treehammer.errors import ConfigError, TreehammerError
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import PROBE_FAILED, PROBE_OK, PROBE_SKIPPED, ProbeResult
from treehammer.submit.batch.job_folders import read_report
from treehammer.submit.campaigns.campaign_polling import make_tracker
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.campaigns.submission import submit_plan
from treehammer.submit.campaigns.tracker import CampaignTracker, group_by_batch_system
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS, CampaignRequest
from treehammer.text_formatting import ProgressFactory, pluralize

if TYPE_CHECKING:
    from treehammer.submit.sites.site_model import Site

#: Shipped test that does nothing but let the worker check its node.
NODE_TEST = "node-check"
NODE = "node"
#: Folder in data_dir for the files of probe jobs.
_PROBES_FOLDER = "probes"
_POLL_S = 1.0
#: Facts of a node that the check names in one line, and the words before them.
_SHOWN_FACTS = {
    "python": "Python ",
    "C library": "",
    "architecture": "",
    "compiler": "",
    "memory": "memory ",
    "disk": "disk ",
}
#: Path at the end of a fact, of no interest in that line.
_PATH = re.compile(r"(, | in )/[^\s,]*")


@dataclass
class _SubmittedProbes:
    """Probe jobs in one batch system."""

    tracker: CampaignTracker
    campaign: CampaignRow

    def refresh(self) -> list[JobRow]:
        """Return the jobs as their batch system knows them."""
        with suppress(TreehammerError):  # it may answer the next time
            return self.tracker.refresh_jobs(self.campaign)
        return self.tracker.store.jobs(self.campaign.id)

    def remove(self) -> None:
        """Cancel jobs that have not ended, and remove what they left."""
        with suppress(TreehammerError):
            self.tracker.cancel(self.campaign)
        for name, group in group_by_batch_system(self.refresh()):
            if name != LOCAL_BATCH:
                with suppress(TreehammerError):
                    self.tracker.batch_system(name).purge([job.batch_id for job in group])


def probe_nodes(
    sites: Sequence[Site],
    settings: Settings,
    wait_s: float,
    bars: ProgressFactory,
) -> list[ProbeResult]:
    """Send a job to each site that checks its node; return results site by site.

    Args:
        sites: sites to probe.
        settings: all settings.
        wait_s: seconds that the jobs may take, with their time in the queue.
        bars: opens a progress bar.
    """
    results: list[ProbeResult] = []
    with ExitStack() as stack:
        probes: list[_SubmittedProbes] = []
        for batch in dict.fromkeys(site.batch for site in sites):
            names = [site.name for site in sites if site.batch == batch]
            try:
                probes.append(stack.enter_context(_submit_probes(names, settings)))
            except TreehammerError as error:
                results += [
                    ProbeResult(name, NODE, PROBE_FAILED, error.message, error.hint)
                    for name in names
                ]
        jobs = _await_jobs(probes, time.monotonic() + wait_s, bars)
        for probe, job in jobs:
            results += _describe_job(probe.tracker, job, wait_s)
    order = {site.name: number for number, site in enumerate(sites)}
    return sorted(results, key=lambda result: order[result.site])


@contextmanager
def _submit_probes(names: Collection[str], settings: Settings) -> Iterator[_SubmittedProbes]:
    """Submit the probe jobs of sites with one batch system; remove all of them at the end."""
    parent = settings.data_dir / _PROBES_FOLDER
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=parent))
        folder.chmod(0o755)  # the pool's shadows may run as another user
    except OSError as error:
        raise ConfigError(
            f"the folder for probe jobs cannot be written ({error.strerror})",
            where=str(parent),
            hint="Choose another --data-dir, or send no job with --wait 0.",
        ) from error
    try:
        own_probe = replace(
            settings,
            data_dir=folder,
            database=f"sqlite:///{folder / 'results.db'}",
            service_url="",
            excluded_jobs=KEEP_JOBS,
        )
        request = CampaignRequest(
            NODE_TEST, sites=tuple(names), options=replace(DEFAULT_OPTIONS, use_service=False)
        )
        campaign = submit_plan(plan_request(request, own_probe), own_probe)
        with Store.open(own_probe.database) as store:
            probes = _SubmittedProbes(make_tracker(store, own_probe), campaign)
            try:
                yield probes
            finally:
                probes.remove()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _await_jobs(
    probes: Sequence[_SubmittedProbes], deadline: float, bars: ProgressFactory
) -> list[tuple[_SubmittedProbes, JobRow]]:
    """Wait until all jobs have ended, or for the deadline; return them."""
    total = sum(len(probe.tracker.store.jobs(probe.campaign.id)) for probe in probes)
    with bars("Probing nodes", total) as step:
        while True:
            jobs = [(probe, job) for probe in probes for job in probe.refresh()]
            ended = sum(JobState(job.state).is_final for _, job in jobs)
            step(ended, f"{pluralize(total - ended, 'job')} left")
            if ended == total or time.monotonic() >= deadline:
                return jobs
            time.sleep(_POLL_S)


def _describe_job(tracker: CampaignTracker, job: JobRow, wait_s: float) -> Iterator[ProbeResult]:
    """Describe the node on which a job ran, each lack apart, or why it did not run."""
    reports = map(read_report, tracker.sandboxes(job).values())
    if report := next((report for report in reports if "node" in report), None):
        yield from _describe_node(job.site, report)
        return
    if not JobState(job.state).is_final:
        finding = f"the probe job is {job.state} after {wait_s:.0f} s"
        remedy = "Repeat with a longer --wait."
        yield ProbeResult(job.site, NODE, PROBE_SKIPPED, finding, remedy)
        return
    message = "; ".join(attempt.message for attempt in tracker.store.attempts([job.id]))
    _, remedy = parse_lack(message) or ("", "")
    finding = message.replace(f": {remedy}.", "") if remedy else message
    yield ProbeResult(job.site, NODE, PROBE_FAILED, finding, _begin_sentence(remedy))


def _describe_node(site: str, report: Mapping[str, Any]) -> Iterator[ProbeResult]:
    """Describe a node by the report of a job that ran on it."""
    node = report["node"]
    facts = (
        f"{words}{_PATH.sub('', node['has'][name])}"
        for name, words in _SHOWN_FACTS.items()
        if name in node["has"]
    )
    yield ProbeResult(site, NODE, PROBE_OK, f"{report['host']}: {', '.join(facts)}")
    for name, finding in node["lacks"].items():
        need = NODE_NEEDS[name]
        result = PROBE_FAILED if need.is_required else PROBE_OK
        remedy = _begin_sentence(need.remedy.format(site=site))
        text = f"lacks {need.title} ({finding})"
        yield ProbeResult(site, f"{NODE} {name}", result, text, remedy)


def _begin_sentence(remedy: str) -> str:
    return f"{remedy[:1].upper()}{remedy[1:]}." if remedy else ""
