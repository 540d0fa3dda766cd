"""Measurement of opened files: campaigns of a read, comparison of releases, and its result."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from treehammer.analysis.comparison.comparison_result import ComparisonResult, rate_results
from treehammer.analysis.comparison.verdict_text import flatten_verdict
from treehammer.analysis.descriptive.time_breakdown import RATE_COLUMNS, ReadRates
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, DEFAULT_MAX_LAUNCHES
from treehammer.collectors.job_spec import PAIRED, SOLO, TIMED, SoftwareRequest
from treehammer.collectors.record.outcome import OUTCOME_COLUMNS, Outcome, classify_outcome
from treehammer.collectors.root_releases import check_unknown_wheels, prepare_root
from treehammer.collectors.shared_files import hold_lock, is_locked
from treehammer.collectors.software import providers
from treehammer.config import Settings, sqlite_url
from treehammer.datasets.manifest import RNTUPLE, Manifest, format_some
from treehammer.errors import BatchError, ExitCode, TreehammerError
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.batch.local_batch import LocalBatch
from treehammer.submit.campaigns.campaign_polling import (
    CampaignDisplay,
    make_tracker,
    wait_for_campaign,
)
from treehammer.submit.campaigns.submission import submit_plan
from treehammer.submit.planning.plan import Plan
from treehammer.submit.tools.file_read import (
    MeasuredFiles,
    OpenedFiles,
    ReadRequest,
    describe_fetches,
    describe_files,
    leave_out_unreadable,
    open_files,
    plan_read,
)
from treehammer.submit.tools.local_comparison import parse_sequential_plan, run_until_decided
from treehammer.text_formatting import ProgressFactory, format_size, pluralize
from treehammer.verticals import has_vertical

#: Seconds that cancelled jobs get to end.
_END_TIMEOUT_S = 30.0
_PREFIX = "treehammer-read-"


def measure_files(
    addresses: Sequence[str],
    request: ReadRequest,
    settings: Settings,
    bars: ProgressFactory,
    display: CampaignDisplay,
) -> ReadResult:
    """Read files with each requested release, and compare the releases with the first one.

    Raises:
        BatchError: a read failed.
        ConfigError: a release or a file cannot be used.
    """
    with open_folder() as folder:
        files = open_files(addresses, folder, bars)
        requests = {root: providers.parse_software_request(root) for root in request.releases}
        check_unknown_wheels(requests.values(), settings.software_dir, where="--root")
        for line in describe_fetches(requests.values(), settings.software_dir):
            display.notify(line)
        software = {
            root: prepare_root(software_request, settings.software_dir, bars)
            for root, software_request in requests.items()
        }
        measured = describe_files(files, software[request.releases[0]], bars, tree=request.tree)
        if not request.name:
            data_dir = folder / "data"
            settings = replace(settings, data_dir=data_dir, database=sqlite_url(data_dir))
        session = _ReadSession(request, files, software, settings, bars, display)
        try:
            return session.measure(measured)
        finally:
            if not request.name:
                LocalBatch(settings.spool_dir).abandon()


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a temporary folder, and remove those of reads that were killed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/lock"):
        with suppress(OSError):  # another read removes it, too
            if time.time() - lock.stat().st_mtime > 2 * _END_TIMEOUT_S and not is_locked(lock):
                shutil.rmtree(lock.parent)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, hold_lock(f"{name}/lock"):
        yield Path(name)


@dataclass(frozen=True)
class ReadResult:
    """Rates by release, comparisons with the first one, and the files that were read."""

    manifest: Manifest
    urls: Sequence[str]
    rates: Sequence[ReadRates]
    comparisons: Sequence[ComparisonResult]
    campaign: CampaignRow

    @property
    def exit_code(self) -> ExitCode:
        """1 if a release is slower than the first, 3 if nothing could be compared."""
        return rate_results(self.comparisons, DEFAULT_DELTA) if self.comparisons else ExitCode.DONE

    def to_document(self) -> dict[str, Any]:
        """Return the result for programs."""
        comparisons = [result.comparison for result in self.comparisons]
        return {
            "files": list(self.urls),
            "tree": self.manifest.tree,
            "format": self.manifest.files[0].layout.format,
            "unreadable_branches": dict(self.manifest.unreadable_branches),
            "reads": [rates.flatten() for rates in self.rates],
            "verdicts": [
                flatten_verdict(row) for comparison in comparisons for row in comparison.verdicts
            ],
        }


@dataclass(frozen=True)
class _ReadSession:
    """Campaigns of one read, in the results database of the settings."""

    request: ReadRequest
    files: OpenedFiles
    software: Mapping[str, SoftwareRequest]
    settings: Settings
    bars: ProgressFactory
    display: CampaignDisplay

    def measure(self, measured: MeasuredFiles) -> ReadResult:
        """Read all branches; where that fails, those that ROOT can read.

        Raises:
            BatchError: a read failed.
        """
        request = self.request
        campaign, rows = self._run(measured)
        if _find_failure(rows) and not request.branches and request.threads == 1:
            software = self.software[request.releases[0]]
            probed = leave_out_unreadable(measured, self.files, software, self.bars)
            if probed.manifest.unreadable_branches:
                campaign, rows = self._run(measured := probed)
        if failure := _find_failure(rows):
            if request.threads > 1:
                failure.hint = "Choose other columns with -b, or read with one thread."
            raise failure
        comparisons: Sequence[ComparisonResult] = ()
        if request.compares_releases:
            plan = self._plan(measured, PAIRED)
            sequential = parse_sequential_plan(DEFAULT_MAX_LAUNCHES, DEFAULT_DELTA)
            with cancel_on_interrupt(self.settings, plan.campaign_id):
                verdict = run_until_decided(plan, sequential, self.settings, self.display)
            comparisons = verdict.results
        rates = [ReadRates.from_row(row) for row in rows]
        rates.sort(key=lambda rate: request.releases.index(rate.root))
        return ReadResult(measured.manifest, self.files.urls, rates, comparisons, campaign)

    def _plan(self, measured: MeasuredFiles, mode: str) -> Plan:
        return plan_read(
            self.request, self.files, measured, self.software, self.settings, mode=mode
        )

    def _run(self, measured: MeasuredFiles) -> tuple[CampaignRow, list[dict[str, Any]]]:
        """Read with each release alone; return the campaign with its timed measurements."""
        plan = self._plan(measured, SOLO)
        with cancel_on_interrupt(self.settings, plan.campaign_id):
            campaign = submit_plan(plan, self.settings)
            wait_for_campaign(campaign, self.settings, self.bars)
        columns = (*RATE_COLUMNS, *OUTCOME_COLUMNS, "failure_message", "implausible_reasons")
        selection = Selection.parse((campaign.id,), [f"kind={TIMED}"])
        with Store.open(self.settings.database) as store:
            rows = list(store.measurements(selection, tuple(dict.fromkeys(columns))))
        return campaign, rows


@contextmanager
def cancel_on_interrupt(settings: Settings, campaign_id: str) -> Iterator[None]:
    """End the jobs of a campaign with this process, and on Ctrl-C before its folder goes."""
    try:
        with LocalBatch(settings.spool_dir).owned(campaign_id):
            yield
    except KeyboardInterrupt:
        # Nothing is to be cancelled if the campaign was not stored yet.
        with suppress(TreehammerError), Store.open(settings.database, create=False) as store:
            tracker = make_tracker(store, settings)
            campaign = store.campaign(campaign_id)
            tracker.cancel(campaign)
            end = time.monotonic() + _END_TIMEOUT_S
            while not tracker.update(campaign).is_finished and time.monotonic() < end:
                time.sleep(0.2)
        raise


def _find_failure(rows: Sequence[Mapping[str, Any]]) -> BatchError | None:
    """Build the error of the first measurement that failed; None if all are good."""
    if not rows:
        hint = "Try treehammer doctor." if has_vertical("doctor") else ""
        return BatchError("the job ended without a measurement", hint=hint)
    for row in rows:
        outcome = classify_outcome(row)
        if outcome is not Outcome.GOOD:
            problem = f"the measurement is {outcome}: {row['implausible_reasons']}"
            message = row["failure_message"] or problem
            return BatchError(str(message), where=f"ROOT {row['axis_root']}")
    return None


def describe_content(result: ReadResult) -> Iterator[str]:
    """Describe the files that were read, a sentence each."""
    manifest, rates = result.manifest, result.rates[0]
    kind = "RNTuple" if manifest.files[0].layout.format == RNTUPLE else "TTree"
    total = pluralize(manifest.files[0].layout.branches, "branch", "branches")
    sizes = [f"{format_size(rates.zipped_bytes)} compressed"]
    if rates.unzipped_bytes is not None:
        sizes.append(f"{format_size(rates.unzipped_bytes)} uncompressed")
    names = (url.rpartition("/")[2] for url in result.urls)
    yield (
        f"{', '.join(names)}: {kind} {manifest.tree!r}, "
        f"{pluralize(rates.events, 'event')}, {rates.branches:,} of {total}, {', '.join(sizes)}"
    )
    yield from manifest.describe_other_trees()
    if embedded := sum(file.layout.embedded_bytes for file in manifest.files):
        yield (
            f"{format_size(embedded)} more compressed bytes lie inside the tree's own record: they are read "
            "when the file is opened, and count in no rate of compressed bytes."
        )
    if unreadable := manifest.unreadable_branches:
        yield (
            f"ROOT cannot read {pluralize(len(unreadable), 'branch', 'branches')}, which "
            f"{'is' if len(unreadable) == 1 else 'are'} left out: {format_some([*unreadable])}."
        )
