"""Command ``treehammer read``: one file, without a dataset and a test."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from treehammer.analysis.cli.compare_command import (
    ComparisonResult,
    print_conclusions,
    print_verdict_tables,
    rate_results,
)
from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.descriptive.time_breakdown import RATE_COLUMNS, ReadRates
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, DEFAULT_MAX_LAUNCHES
from treehammer.collectors.job_spec import PAIRED, SOLO, TIMED, SoftwareRequest
from treehammer.collectors.record.outcome import OUTCOME_COLUMNS, Outcome, classify_outcome
from treehammer.collectors.root_releases import check_unknown_wheels, prepare_root
from treehammer.collectors.software import providers
from treehammer.config import Settings, sqlite_url
from treehammer.datasets.manifest import RNTUPLE, Manifest, list_some
from treehammer.errors import BatchError, ExitCode, TreehammerError
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_polling import make_tracker, wait_for_campaign
from treehammer.submit.campaigns.submission import submit_plan
from treehammer.submit.cli.local_verdict import parse_sequential_plan, run_until_decided
from treehammer.submit.planning.plan import Plan
from treehammer.submit.tools.file_read import (
    MeasuredFiles,
    OpenedFiles,
    ReadRequest,
    choose_releases,
    describe_files,
    leave_out_unreadable,
    open_files,
    plan_read,
)
from treehammer.tables import TableColumn
from treehammer.terminal import (
    CSV,
    JSON,
    TABLE,
    on_interrupt,
    output_options,
    print_hint,
    print_rows,
    progress_bar,
)
from treehammer.text_formatting import (
    format_share,
    format_significant,
    format_size,
    pluralize,
    split_list,
)

#: Seconds that cancelled jobs get to end.
_END_TIMEOUT_S = 30.0

_COLUMNS = (
    TableColumn("root", "ROOT"),
    TableColumn("events_per_s", "events/s", "{:,.0f}".format, is_number=True),
    TableColumn("compressed_mb_per_s", "MB/s compressed", format_significant, is_number=True),
    TableColumn("uncompressed_mb_per_s", "MB/s uncompressed", format_significant, is_number=True),
    TableColumn("cpu_efficiency", "CPU efficiency", format_share, is_number=True),
    TableColumn("wall_s", "s/pass", format_significant, is_number=True),
    TableColumn("cpu_s", "CPU s/pass", format_significant, is_number=True),
    TableColumn("passes", "passes", is_number=True),
)


@click.command("read")
@click.argument("addresses", nargs=-1, required=True, metavar="FILE|URL...")
@click.option("--tree", default="", help="TTree or RNTuple to read [default: the largest].")
@click.option(
    "-b",
    "--branches",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Branches to read, e.g. 'Muon_*,!Muon_eta'; repeatable [default: all].",
)
@click.option(
    "--root",
    "releases",
    default="",
    metavar="A,B",
    help="ROOT releases, as on the axis root; several are compared with the first "
    "[default: the newest cached one].",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Threads; several fill histograms of the columns with RDataFrame.",
)
@click.option(
    "--cache-mb",
    type=click.FloatRange(0, 100_000),
    default=30.0,
    show_default=True,
    help="MB of TTreeCache; 0 for none.",
)
@click.option(
    "--cold", is_flag=True, help="Evict local files from the page cache before each read."
)
@click.option(
    "--keep",
    metavar="NAME",
    default="",
    help="Keep the measurements in the results database, as campaign NAME [default: keep nothing].",
)
@output_options
@click.pass_obj
def read_command(
    settings: Settings,
    addresses: tuple[str, ...],
    tree: str,
    patterns: tuple[str, ...],
    releases: str,
    threads: int,
    cache_mb: float,
    cold: bool,
    keep: str,
    form: str,
) -> ExitCode:
    """Measure how fast ROOT reads a file, and what limits it.

    Reads the main TTree or RNTuple of a local file, or of one behind root://, http:// or https://,
    event by event. With several releases, the exit code is 1 if one is slower than the first by more
    than 2 %.

    \b
    Example: treehammer read ntuple.root
             treehammer read root://server//store/ntuple.root --tree Events -b 'Muon_*'
             treehammer read ntuple.root --root 6.38.00,6.40.00
    """
    roots = choose_releases(split_list(releases), addresses, settings.software_dir)
    request = ReadRequest(roots, ",".join(patterns), cache_mb, cold, threads, keep)
    with (
        _stop_on_sigterm(),
        on_interrupt(f"campaign {keep} was cancelled" if keep else "nothing was kept"),
        tempfile.TemporaryDirectory(prefix="treehammer-") as name,
    ):
        folder = Path(name)
        software = _prepare_releases(roots, settings)
        files = open_files(addresses, folder, progress_bar)
        measured = describe_files(files, software[roots[0]], progress_bar, tree=tree)
        session = _ReadSession(
            request, files, software, settings if keep else _make_temporary(settings, folder)
        )
        result = session.measure(measured)
    _print_result(result, form)
    if keep and form == TABLE:
        print_hint(f"Kept: treehammer summary --campaign {result.campaign.name}")
    return result.exit_code


@contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C, so that no job outlives its folder."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _prepare_releases(roots: Sequence[str], settings: Settings) -> dict[str, SoftwareRequest]:
    requests = {root: providers.parse_software_request(root) for root in roots}
    check_unknown_wheels(requests.values(), settings.software_dir, where="--root")
    return {
        root: prepare_root(request, settings.software_dir, progress_bar)
        for root, request in requests.items()
    }


def _make_temporary(settings: Settings, folder: Path) -> Settings:
    """Return settings whose results and queue lie in a folder."""
    data_dir = folder / "data"
    return replace(settings, data_dir=data_dir, database=sqlite_url(data_dir))


@dataclass(frozen=True)
class _ReadResult:
    """Rates by release, comparisons with the first one, and the files that were read."""

    manifest: Manifest
    urls: Sequence[str]
    rates: Sequence[ReadRates]
    comparisons: Sequence[ComparisonResult]
    campaign: CampaignRow

    @property
    def is_not_compared(self) -> bool:
        """Whether several releases were read without a comparison."""
        return len(self.rates) > 1 and not self.comparisons

    @property
    def exit_code(self) -> ExitCode:
        """1 if a release is slower than the first, 3 if nothing could be compared."""
        return rate_results(self.comparisons, DEFAULT_DELTA) if self.comparisons else ExitCode.DONE


@dataclass(frozen=True)
class _ReadSession:
    """Campaigns of one read, in the results database of the settings."""

    request: ReadRequest
    files: OpenedFiles
    software: Mapping[str, SoftwareRequest]
    settings: Settings

    def measure(self, measured: MeasuredFiles) -> _ReadResult:
        """Read all branches; where that fails, those that ROOT can read.

        Raises:
            BatchError: a read failed.
        """
        request = self.request
        campaign, rows = self._run(measured)
        if _find_failure(rows) and not request.branches and request.threads == 1:
            software = self.software[request.releases[0]]
            probed = leave_out_unreadable(measured, self.files, software, progress_bar)
            if probed.manifest.unreadable_branches:
                measured = probed
                campaign, rows = self._run(measured)
        if failure := _find_failure(rows):
            if request.threads > 1:
                failure.hint = "Choose other columns with -b, or read with one thread."
            raise failure
        comparisons: Sequence[ComparisonResult] = ()
        if len(request.releases) > 1 and request.threads == 1:
            comparisons = self._compare(measured)
        rates = [ReadRates.from_row(row) for row in rows]
        rates.sort(key=lambda rate: request.releases.index(rate.root))
        return _ReadResult(measured.manifest, self.files.urls, rates, comparisons, campaign)

    def _plan(self, measured: MeasuredFiles, mode: str) -> Plan:
        return plan_read(
            self.request, self.files, measured, self.software, self.settings, mode=mode
        )

    def _run(self, measured: MeasuredFiles) -> tuple[CampaignRow, list[dict[str, Any]]]:
        """Read with each release alone; return the campaign with its timed measurements."""
        plan = self._plan(measured, SOLO)
        with _cancel_on_interrupt(self.settings, plan.campaign_id):
            campaign = submit_plan(plan, self.settings)
            wait_for_campaign(campaign, self.settings, progress_bar)
        columns = (*RATE_COLUMNS, *OUTCOME_COLUMNS, "failure_message")
        selection = Selection.parse((campaign.id,), [f"kind={TIMED}"])
        with Store.open(self.settings.database) as store:
            rows = list(store.measurements(selection, tuple(dict.fromkeys(columns))))
        return campaign, rows

    def _compare(self, measured: MeasuredFiles) -> Sequence[ComparisonResult]:
        """Compare the releases in turns with the first one, until that is decided."""
        plan = self._plan(measured, PAIRED)
        sequential = parse_sequential_plan(DEFAULT_MAX_LAUNCHES, DEFAULT_DELTA)
        with _cancel_on_interrupt(self.settings, plan.campaign_id):
            return run_until_decided(plan, sequential, self.settings, JSON).results


@contextmanager
def _cancel_on_interrupt(settings: Settings, campaign_id: str) -> Iterator[None]:
    """End the jobs of a campaign on Ctrl-C, before its folder goes."""
    try:
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
        return BatchError("the job ended without a measurement", hint="Try treehammer doctor.")
    for row in rows:
        outcome = classify_outcome(row)
        if outcome is not Outcome.GOOD:
            message = row["failure_message"] or f"the measurement is {outcome}"
            return BatchError(str(message), where=f"ROOT {row['axis_root']}")
    return None


def _print_result(result: _ReadResult, form: str) -> None:
    rows = [rates.flatten() for rates in result.rates]
    if form == JSON:
        verdicts = [row for compared in result.comparisons for row in compared.comparison.verdicts]
        document = {
            "files": list(result.urls),
            "tree": result.manifest.tree,
            "format": result.manifest.files[0].layout.format,
            "unreadable_branches": dict(result.manifest.unreadable_branches),
            "reads": rows,
            "verdicts": [verdict_text.flatten_verdict(row) for row in verdicts],
        }
        click.echo(json.dumps(document, indent=1, default=str))
        return
    if form == CSV:
        print_rows(rows, (), form=form)
    else:
        for line in _describe_content(result):
            click.echo(line)
        print_rows(rows, _COLUMNS)
        for rates in result.rates:
            click.echo(f"{rates.root}: {rates.describe_bottleneck()}.")
    if result.is_not_compared and form == TABLE:
        click.echo("No verdict: with several threads, releases cannot take turns.")
    if form == TABLE:
        print_verdict_tables(result.comparisons)
    print_conclusions([compared.comparison for compared in result.comparisons], {}, form=form)


def _describe_content(result: _ReadResult) -> Iterator[str]:
    manifest, rates = result.manifest, result.rates[0]
    kind = "RNTuple" if manifest.files[0].layout.format == RNTUPLE else "TTree"
    other_trees = [name for name in manifest.trees if name != manifest.tree]
    total = pluralize(manifest.files[0].layout.branches, "branch", "branches")
    sizes = [f"{format_size(rates.zipped_bytes)} compressed"]
    if rates.unzipped_bytes is not None:
        sizes.append(f"{format_size(rates.unzipped_bytes)} uncompressed")
    yield (
        f"{', '.join(file.name for file in manifest.files)}: {kind} {manifest.tree!r}, "
        f"{rates.events:,} events, {rates.branches} of {total}, {', '.join(sizes)}"
    )
    if other_trees:
        yield f"Other trees: {list_some(other_trees)}; choose one with --tree."
    if embedded := sum(file.layout.embedded_bytes for file in manifest.files):
        yield (
            f"{format_size(embedded)} more compressed bytes lie inside the tree's own record: they are read "
            "when the file is opened, and count in no rate of compressed bytes."
        )
    if unreadable := manifest.unreadable_branches:
        yield (
            f"ROOT cannot read {pluralize(len(unreadable), 'branch', 'branches')}, which "
            f"{'is' if len(unreadable) == 1 else 'are'} left out: {list_some([*unreadable])}."
        )
