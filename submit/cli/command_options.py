"""Options that commands share: credentials, submissions, and collection before an answer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treehammer.collectors.job_spec import DEFAULT_WAIT_S
from treehammer.collectors.s3_signing import CREDENTIALS_VARIABLE
from treehammer.collectors.worker.probes.credential_checks import (
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
)
from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.submit.campaigns.waiting_campaigns import report_waiting
from treehammer.submit.planning import INCLUDE_OPTION
from treehammer.terminal import DURATION, NAMES, PathType, on_interrupt, option_group, print_remarks
from treehammer.text_formatting import JobRamp

if TYPE_CHECKING:
    from treehammer.submit.planning.submission_options import (
        JobCredentials,
        Pace,
        SubmissionOptions,
    )

_CREDENTIAL_FILE = PathType(dir_okay=False, resolve_path=True)
#: Adds ``--no-service``; the command receives ``service``.
service_option = click.option(
    "--no-service",
    "service",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Jobs do not report to the results service.",
)


def include_option(help_text: str) -> Callable[..., Any]:
    """Make ``--include-excluded``; the command receives ``include``."""
    return click.option(
        INCLUDE_OPTION, "include", type=NAMES, default="", metavar="SITES", help=help_text
    )


def _make_credentials(
    proxy: Path | None, token_file: Path | None, s3_credentials: Path | None
) -> JobCredentials:
    from treehammer.submit.planning.submission_options import JobCredentials

    return JobCredentials(proxy, token_file, s3_credentials)


#: Adds options for the files of credentials; the command receives ``credentials``.
credential_options = option_group(
    "credentials",
    _make_credentials,
    click.option(
        "--proxy",
        type=_CREDENTIAL_FILE,
        envvar=PROXY_VARIABLE,
        help=f"x509 proxy for storage [{PROXY_VARIABLE}].",
    ),
    click.option(
        "--token-file",
        type=_CREDENTIAL_FILE,
        envvar=TOKEN_FILE_VARIABLE,
        help=f"Bearer token [{TOKEN_FILE_VARIABLE}].",
    ),
    click.option(
        "--s3-credentials",
        type=_CREDENTIAL_FILE,
        envvar=CREDENTIALS_VARIABLE,
        help=f"Keys of S3 doors [{CREDENTIALS_VARIABLE}].",
    ),
)


def _make_options(
    in_flight: int | None,
    spread: int,
    ramp: str | None,
    include: tuple[str, ...],
    authorities: Path | None,
    credentials: JobCredentials,
    replica_timeout: int,
    service: bool,
    service_timeout: float,
) -> SubmissionOptions:
    from treehammer.submit.planning.submission_options import SubmissionOptions

    return SubmissionOptions(
        _make_pace(in_flight, spread, ramp),
        include,
        replace(credentials, authorities=authorities),
        replica_timeout,
        service,
        service_timeout,
    )


def _make_pace(in_flight: int | None, spread_s: int, ramp: str | None) -> Pace:
    from treehammer.submit.planning.submission_options import Pace

    if in_flight is not None and in_flight < 1:
        raise ConfigError("must be at least 1", where=f"--in-flight {in_flight}")
    if ramp is not None and in_flight is None:
        raise ConfigError(
            "a ramp needs a final number of concurrent jobs",
            where=f"--ramp {ramp}",
            hint="Add --in-flight N.",
        )
    return Pace(in_flight or 1, spread_s, JobRamp.parse(ramp, "--ramp") if ramp else None)


#: Adds all submission options; the command receives ``options``.
submission_click_options = option_group(
    "options",
    _make_options,
    click.option("--in-flight", type=int, help="Concurrent jobs per door [default: 1]."),
    click.option(
        "--spread",
        type=DURATION,
        default=0,
        metavar="TIME",
        help="Spread the starts of jobs over this time, e.g. 24h.",
    ),
    click.option("--ramp", help="Raise the number of concurrent jobs in steps, e.g. 5/10m."),
    include_option("Use these sites although their state excludes them; or all."),
    click.option(
        "--replica-timeout",
        type=DURATION,
        default=0,
        metavar="TIME",
        help="Wait at most this long for good replicas, e.g. 6h; sites without are skipped "
        "[default: 0].",
    ),
    service_option,
    click.option(
        "--service-timeout",
        type=DURATION,
        default=DEFAULT_WAIT_S,
        metavar="TIME",
        help="How long each job waits for the results service [default: 60s].",
    ),
    click.option(
        "--authorities",
        type=PathType(exists=True, resolve_path=True),
        help="Certificate authorities to send with jobs through HTCondor: a PEM file, or a folder "
        "with hashed names [default: those of the nodes].",
    ),
    credential_options,
)


def collect_before(command: click.Command, *, names_waiting: bool = True) -> click.Command:
    """Return a copy of a command that collects first, and has ``--no-collect``.

    Campaigns with missing measurements are named on standard error, which programs do not read, and
    after the answer: some monitoring systems take the first line of both streams for the state.

    Args:
        command: the command.
        names_waiting: name those campaigns; else only problems of collecting.
    """
    answer: Callable[..., Any] = command.callback  # type: ignore[assignment]  # it has one

    def collect_and_answer(*arguments: Any, no_collect: bool, **values: Any) -> Any:
        settings = click.get_current_context().find_object(Settings)
        lines: list[str] = []
        # One that reads a results service does not answer from the database.
        reads_service = any("://" in str(values.get(name)) for name in ("url", "service"))
        if settings is not None and not reads_service:
            with on_interrupt("measurements stored so far are kept"):
                lines = report_waiting(
                    settings,
                    _find_references(values),
                    collect=not no_collect,
                    names_waiting=names_waiting,
                )
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


def _find_references(values: Mapping[str, Any]) -> Collection[str]:
    """Find the campaigns that a command's values name; none means all."""
    if values.get("campaign") not in (None, "all"):
        return (str(values["campaign"]),)
    if "site" in values and values.get("site") is None and values.get("job", "") is None:
        return ("last",)  # explain without a subject
    return tuple(values.get("campaigns") or ())
