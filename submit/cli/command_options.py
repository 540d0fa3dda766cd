"""Options that commands share: names of sites, credentials, and options of submissions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from treehammer.collectors.job_spec import DEFAULT_WAIT_S
from treehammer.collectors.worker.probes.credential_checks import (
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
)
from treehammer.config import Settings
from treehammer.errors import ConfigError, suggest_word
from treehammer.sql.read.overview_queries import list_sites
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch.state_history import STORAGE_SITE
from treehammer.submit.planning.submission_options import (
    INCLUDE_OPTION,
    JobCredentials,
    Pace,
    SubmissionOptions,
)
from treehammer.submit.sites.site_registry import load_sites
from treehammer.terminal import complete_names
from treehammer.text_formatting import JobRamp, parse_duration, split_list

_CREDENTIAL_FILE = click.Path(path_type=Path, dir_okay=False, resolve_path=True)
#: Adds ``--no-service``; the command receives ``service``.
service_option = click.option(
    "--no-service",
    "service",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Jobs do not report to the results service.",
)


def _list_sites(settings: Settings) -> Iterable[str]:
    return load_sites(settings)


complete_sites = complete_names(_list_sites)


def list_known_sites(store: ResultsReader, settings: Settings) -> set[str]:
    """List the sites that have measured anything, or are in the sites file."""
    return {*list_sites(store), *list_sites(store, STORAGE_SITE), *_list_sites(settings)}


def require_known_sites(names: Iterable[str], known_sites: Collection[str], where: str) -> None:
    """Refuse a site that has measured nothing and is not in the sites file.

    Raises:
        ConfigError: a site is unknown; names the nearest one.
    """
    for name in names:
        if name not in known_sites:
            hint = f"{suggest_word(name, known_sites)}Known: {', '.join(sorted(known_sites))}."
            raise ConfigError(f"unknown site {name!r}", where=where, hint=hint)


def credential_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--proxy`` and ``--token-file``; the command receives ``credentials``."""

    @click.option(
        "--proxy",
        type=_CREDENTIAL_FILE,
        envvar=PROXY_VARIABLE,
        help=f"x509 proxy for storage [{PROXY_VARIABLE}].",
    )
    @click.option(
        "--token-file",
        type=_CREDENTIAL_FILE,
        envvar=TOKEN_FILE_VARIABLE,
        help=f"Bearer token [{TOKEN_FILE_VARIABLE}].",
    )
    @functools.wraps(function)
    def wrapper(*args: Any, proxy: Path | None, token_file: Path | None, **kwargs: Any) -> Any:
        return function(*args, credentials=JobCredentials(proxy, token_file), **kwargs)

    return wrapper


def submission_click_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all submission options; the command receives ``options``."""

    @click.option("--in-flight", type=int, help="Concurrent jobs per door [default: 1].")
    @click.option(
        "--spread", metavar="TIME", help="Spread the starts of jobs over this time, e.g. 24h."
    )
    @click.option("--ramp", help="Raise the number of concurrent jobs in steps, e.g. 5/10m.")
    @click.option(
        INCLUDE_OPTION,
        "include",
        default="",
        metavar="SITES",
        help="Use these sites although their state excludes them; or all.",
    )
    @click.option(
        "--replica-timeout",
        metavar="TIME",
        help="Wait at most this long for good replicas, e.g. 6h; sites without are skipped "
        "[default: 0].",
    )
    @service_option
    @click.option(
        "--service-timeout",
        metavar="TIME",
        help="How long each job waits for the results service [default: 60s].",
    )
    @click.option(
        "--authorities",
        type=click.Path(path_type=Path, exists=True, resolve_path=True),
        help="Certificate authorities to send with jobs through HTCondor: a PEM file, or a folder "
        "with hashed names [default: those of the nodes].",
    )
    @credential_options
    @functools.wraps(function)
    def wrapper(
        *args: Any,
        in_flight: int | None,
        spread: str | None,
        ramp: str | None,
        include: str,
        replica_timeout: str | None,
        service: bool,
        service_timeout: str | None,
        authorities: Path | None,
        credentials: JobCredentials,
        **kwargs: Any,
    ) -> Any:
        wait_s = parse_duration(replica_timeout, "--replica-timeout") if replica_timeout else 0
        patience_s = (
            parse_duration(service_timeout, "--service-timeout")
            if service_timeout
            else DEFAULT_WAIT_S
        )
        pace = _parse_pace(in_flight, spread, ramp)
        credentials = replace(credentials, authorities=authorities)
        options = SubmissionOptions(
            pace, split_list(include), credentials, wait_s, service, patience_s
        )
        return function(*args, options=options, **kwargs)

    return wrapper


def _parse_pace(in_flight: int | None, spread: str | None, ramp: str | None) -> Pace:
    if in_flight is not None and in_flight < 1:
        raise ConfigError("must be at least 1", where=f"--in-flight {in_flight}")
    if ramp is not None and in_flight is None:
        raise ConfigError(
            "a ramp needs a final number of concurrent jobs",
            where=f"--ramp {ramp}",
            hint="Add --in-flight N.",
        )
    return Pace(
        1 if in_flight is None else in_flight,
        parse_duration(spread, "--spread") if spread is not None else 0,
        JobRamp.parse(ramp, "--ramp") if ramp is not None else None,
    )
