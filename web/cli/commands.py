"""Commands ``serve`` and ``report``."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import click

from treehammer import config
from treehammer.collectors.shared_files import write_atomically
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.terminal import on_interrupt


@click.command("serve")
@click.option("--host", help="Address to listen on; 0.0.0.0 for all [setting serve_host].")
@click.option("--port", type=int, help="Port to listen on [setting serve_port].")
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    help="Certificate with its chain, PEM [setting serve_certificate].",
)
@click.option(
    "--certificate-key",
    type=click.Path(path_type=Path),
    help="Its private key, PEM [setting serve_certificate_key].",
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    default=None,
    help="Serve plain HTTP behind a proxy that terminates TLS [setting serve_behind_proxy].",
)
@click.option(
    "--read-access",
    type=click.Choice([config.PUBLIC, config.KEYS]),
    help="Readers of results: the public, or holders of keys [setting serve_read_access].",
)
@click.option("--quiet", is_flag=True, help="Log only warnings and errors, not every request.")
@click.pass_obj
@on_interrupt("all acknowledged measurements are in the database")
def serve_command(settings: Settings, /, quiet: bool, **flags: Any) -> None:
    """Run the results service: receive measurements over HTTPS and show results.

    Submitters need a key: create it with 'treehammer token create'.

    Example: treehammer serve --host 0.0.0.0 --certificate chain.pem --certificate-key key.pem
    """
    # Imported here because uvicorn and SQLAlchemy take half a second to load.
    from treehammer.web.service.service_process import log_to_stderr, serve

    log_to_stderr(logging.WARNING if quiet else logging.INFO, settings.log_format)
    serve(config.apply_flags(settings, {f"serve_{name}": value for name, value in flags.items()}))


def _complete_campaigns(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[str]:
    # Imported here because SQLAlchemy takes a third of a second to load.
    from treehammer.sql.cli.transfer_commands import complete_campaigns

    return complete_campaigns(context, parameter, typed)


@click.command("report")
@click.option(
    "--campaign",
    default="last",
    show_default=True,
    metavar="ID|last",
    help="Campaign to report.",
    shell_complete=_complete_campaigns,
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
@click.pass_obj
@on_interrupt("no report was written")
def report_command(settings: Settings, campaign: str, output: Path) -> None:
    """Write one campaign as one self-contained HTML page.

    Example: treehammer report --campaign last -o report.html
    """
    write_report(settings.database, campaign, output)
    click.echo(f"{output}: report written ({output.stat().st_size / 1000:.0f} kB)")


def write_report(database: str, campaign: str, output: Path) -> None:
    """Write the report of a campaign (identity, name or ``last``) to ``output``.

    Raises:
        NothingToDoError: the campaign has no measurements yet.
        ConfigError: the campaign is unknown or ambiguous, or the file cannot be written.
    """
    # Imported here because SQLAlchemy and scipy take almost a second to load.
    from treehammer.analysis.comparison.limit_outcomes import judge_limits
    from treehammer.analysis.statistics.headline_rows import load_headline_rows
    from treehammer.sql.read.query_model import Selection
    from treehammer.sql.write.store import Store
    from treehammer.web.campaign_report import (
        REPORT_COLUMNS,
        build_report,
        list_limited_loads,
        render_report,
    )

    with Store.open(database, create=False) as store:
        row = store.campaign(campaign)
        selection = Selection(campaigns=(row.id,))
        measurements = load_headline_rows(store, selection, REPORT_COLUMNS)
        made_us = time.time_ns() // 1000
        limits = judge_limits(store, row, made_us)
        with store.snapshot() as snapshot:
            limited = list_limited_loads(snapshot, selection)
    if not measurements:
        raise NothingToDoError(
            "this campaign has no measurements yet",
            where=row.name,
            hint="Wait for its jobs (treehammer status) and collect them (treehammer collect).",
        )
    report = build_report(row, measurements, made_us=made_us, limited_loads=limited, limits=limits)
    page = render_report(report)
    try:
        write_atomically(output, page)
    except OSError as error:
        raise ConfigError(f"cannot be written ({error.strerror})", where=str(output)) from error
