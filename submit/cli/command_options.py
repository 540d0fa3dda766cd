"""Options that commands share: names of sites, credentials, and options of submissions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Mapping
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
from treehammer.errors import ConfigError
from treehammer.sql.read.overview_queries import list_sites
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch.state_history import STORAGE_SITE
from treehammer.submit.campaigns.waiting_campaigns import report_waiting
from treehammer.submit.planning.submission_options import (
    INCLUDE_OPTION,
    JobCredentials,
    Pace,
    SubmissionOptions,
)
from treehammer.submit.sites.site_registry import load_sites
from treehammer.terminal import DURATION, on_interrupt, print_remarks
from treehammer.text_formatting import (
    JobRamp,
    split_list,
)

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


def list_known_sites(store: ResultsReader, settings: Settings) -> set[str]:
    """List the sites that have measured anything, or are in the sites file."""
    return {*list_sites(store), *list_sites(store, STORAGE_SITE), *load_sites(settings)}


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
        "--spread",
        type=DURATION,
        default=0,
        metavar="TIME",
        help="Spread the starts of jobs over this time, e.g. 24h.",
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
        type=DURATION,
        default=0,
        metavar="TIME",
        help="Wait at most this long for good replicas, e.g. 6h; sites without are skipped "
        "[default: 0].",
    )
    @service_option
    @click.option(
        "--service-timeout",
        type=DURATION,
        default=DEFAULT_WAIT_S,
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
        spread: int,
        ramp: str | None,
        include: str,
        authorities: Path | None,
        credentials: JobCredentials,
        replica_timeout: int,
        service: bool,
        service_timeout: float,
        **kwargs: Any,
    ) -> Any:
        options = SubmissionOptions(
            _make_pace(in_flight, spread, ramp),
            split_list(include),
            replace(credentials, authorities=authorities),
            replica_timeout,
            service,
            service_timeout,
        )
        return function(*args, options=options, **kwargs)

    return wrapper


def _make_pace(in_flight: int | None, spread_s: int, ramp: str | None) -> Pace:
    if in_flight is not None and in_flight < 1:
        raise ConfigError("must be at least 1", where=f"--in-flight {in_flight}")
    if ramp is not None and in_flight is None:
        raise ConfigError(
            "a ramp needs a final number of concurrent jobs",
            where=f"--ramp {ramp}",
            hint="Add --in-flight N.",
        )
    return Pace(in_flight or 1, spread_s, JobRamp.parse(ramp, "--ramp") if ramp else None)


def collect_before(command: click.Command) -> click.Command:
    """Return a copy of a command that collects first, and has ``--no-collect``.

    Campaigns with missing measurements are named on standard error, which programs do not read, and
    after the answer: some monitoring systems take the first line of both streams for the state.
    """
    answer: Callable[..., Any] = command.callback  # type: ignore[assignment]  # it has one

    def collect_and_answer(*arguments: Any, no_collect: bool, **values: Any) -> Any:
        settings = click.get_current_context().find_object(Settings)
        lines: list[str] = []
        if settings is not None and _reads_database(values):
            with on_interrupt("measurements stored so far are kept"):
                lines = report_waiting(settings, _find_references(values), collect=not no_collect)
        try:
            return answer(*arguments, **values)
        finally:
            print_remarks(lines)

    option = click.Option(
        ["--no-collect"], is_flag=True, help="Only say what waits; collect nothing first."
    )
    collecting = copy.copy(command)
    collecting.params = [*command.params, option]
    collecting.callback = collect_and_answer
    return collecting


def _reads_database(values: Mapping[str, Any]) -> bool:
    """Return whether a command answers from the database, not from a results service."""
    return not any("://" in str(values.get(name)) for name in ("url", "service"))


def _find_references(values: Mapping[str, Any]) -> Collection[str]:
    """Find the campaigns that a command's values name; none means all."""
    if values.get("campaign") not in (None, "all"):
        return (str(values["campaign"]),)
    if "site" in values and values.get("site") is None and values.get("job", "") is None:
        return ("last",)  # explain without a subject
    return tuple(values.get("campaigns") or ())
