"""Command ``serve``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from treehammer import config
from treehammer.config import Settings
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
