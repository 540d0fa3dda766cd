"""``treehammer read``: measure files with jobs of their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import click

from treehammer.config import Settings
from treehammer.tables import TableColumn
from treehammer.terminal import (
    NAMES,
    TABLE,
    TEXT,
    CommandOutput,
    NumberRange,
    on_interrupt,
    output_form,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import format_share, format_significant

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
@click.argument("addresses", nargs=-1, required=True, type=TEXT, metavar="FILE|URL...")
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
    type=NAMES,
    default="",
    metavar="A,B",
    help="ROOT releases, as on the axis root; several are compared with the first "
    "[default: the newest cached one, else that of this environment].",
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
    type=NumberRange(0, 100_000),
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
@prints_rows(*_COLUMNS)
@click.pass_obj
def read_command(
    settings: Settings,
    addresses: tuple[str, ...],
    tree: str,
    patterns: tuple[str, ...],
    releases: tuple[str, ...],
    threads: int,
    cache_mb: float,
    cold: bool,
    keep: str,
) -> CommandOutput:
    """Measure how fast ROOT reads a file, and what limits it.

    Reads the main TTree or RNTuple of a local file, or of one behind root://, http:// or https://,
    event by event. With several releases, the exit code is 1 if one is slower than the first by more
    than 2 %.

    \b
    Example: treehammer read ntuple.root
             treehammer read root://server//store/ntuple.root --tree Events -b 'Muon_*'
             treehammer read ntuple.root --root 6.38.00,6.40.00
    """
    from treehammer.analysis.cli import comparison_output
    from treehammer.submit.cli.campaign_output import make_display
    from treehammer.submit.tools.file_read import ReadRequest, choose_releases
    from treehammer.submit.tools.read_session import describe_content, measure_files

    roots = choose_releases(releases, addresses, settings.software_dir)
    request = ReadRequest(roots, ",".join(patterns), cache_mb, cold, threads, keep, tree)
    with (
        _stop_on_sigterm(),
        on_interrupt(f"campaign {keep} was cancelled" if keep else "nothing was kept"),
    ):
        result = measure_files(
            addresses, request, settings, progress_bar, make_display(to_stderr=True)
        )
    below = [f"{rates.root}: {rates.describe_bottleneck()}." for rates in result.rates]
    if len(roots) > 1 and not request.compares_releases:
        below.append("No verdict: with several threads, releases cannot take turns.")
    document = result.to_document()
    remarks = [f"Kept: treehammer summary --campaign {result.campaign.id}"]
    if result.comparisons:
        (campaign,) = result.comparisons[0].comparison.query.selection.campaigns
        remarks.append(f"The comparison as a page: treehammer report --campaign {campaign}")
    return CommandOutput(
        document["reads"],
        above=[*describe_content(result)],
        below=[*below, "", *comparison_output.describe_comparisons(result.comparisons)],
        notes=remarks if keep and output_form() == TABLE else [],
        document=document,
        exit_code=result.exit_code,
    )


@contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C, so that no job outlives its folder."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
