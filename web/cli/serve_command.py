"""The verb ``serve``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from treehammer import config
from treehammer.config import Settings
from treehammer.terminal import on_interrupt


@click.command("serve")
@click.option("--host", help="Address to listen at; 0.0.0.0 for every one [setting serve_host].")
@click.option("--port", type=int, help="Port to listen at [setting serve_port].")
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
    help="Speak plain HTTP, as a proxy in front speaks TLS [setting serve_behind_proxy].",
)
@click.option(
    "--read-access",
    type=click.Choice([config.PUBLIC, config.KEYS]),
    help="Who may read results: everybody, or keys that may [setting serve_read_access].",
)
@click.option("--quiet", is_flag=True, help="Log troubles only, not every request.")
@click.pass_obj
@on_interrupt("what was acknowledged is in the database")
def serve_command(settings: Settings, /, quiet: bool, **flags: Any) -> None:
    """Take in the measurements of jobs everywhere, over HTTPS, until stopped.

    Jobs need a token: make a key for whoever submits with 'treehammer token create'.

    Example: treehammer serve --host 0.0.0.0 --certificate chain.pem --certificate-key key.pem
    """
    # uvicorn and SQLAlchemy take half a second to load, which 'serve --help' need not wait for.
    from treehammer.web.service.service_process import log_to_stderr, serve

    log_to_stderr(logging.WARNING if quiet else logging.INFO)
    serve(config.apply_flags(settings, {f"serve_{name}": value for name, value in flags.items()}))
