"""The verb ``check``: a plugin for Nagios and its relatives, documents for WLCG's monitoring, limits.

States come from the database or, for monitoring on another machine, from a results service.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlencode

import click
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treehammer.analysis.alarms import alarm_overview
from treehammer.analysis.alarms.monitoring_output import (
    PRODUCER,
    build_monit_documents,
    format_plugin_output,
)
from treehammer.analysis.status.subject_state import (
    SERVICE_NAME,
    AlarmFigure,
    AlarmKind,
    AlarmLevel,
    SubjectState,
    judge_figure,
    worst_level,
)
from treehammer.collectors.http_requests import Deadline, send_request
from treehammer.collectors.job_spec import API_PREFIX
from treehammer.collectors.storage_access import make_tls_context
from treehammer.config import Settings
from treehammer.errors import (
    ConfigError,
    InvalidAnswerError,
    NothingToDoError,
    StoreError,
    TreehammerError,
    require_package,
)
from treehammer.setting_parsers import is_allowed_address
from treehammer.sql.auth.access_keys import load_user_key
from treehammer.sql.cli.transfer_commands import complete_campaigns
from treehammer.sql.write.store import Store
from treehammer.terminal import TABLE, print_hint, print_rows
from treehammer.text_formatting import make_single_line

if TYPE_CHECKING:
    from treehammer.analysis.comparison.limit_outcomes import LimitReport

#: Formats of the output.
PLUGIN, MONIT, MARKDOWN, JSON = "plugin", "monit", "markdown", "json"
#: Value of --service without an address.
_DATABASE = "-"
#: Seconds that the service may take for its state.
ANSWER_WARNING_S, ANSWER_CRITICAL_S = 5.0, 20.0
#: Bytes of a response that are read.
_MAX_RESPONSE_BYTES = 50_000_000

_Text = Annotated[str, Field(max_length=10_000)]
_Number = Annotated[float, Field(ge=-1e18, le=1e18)]


class _FigureDocument(BaseModel):
    """Figure of a state as another service sends it."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9_]{1,64}$")
    value: _Number | None
    unit: str = Field(pattern=r"^[A-Za-z%]{0,8}$")
    warning: _Number | None = None
    critical: _Number | None = None
    maximum: _Number | None = None


class _StateDocument(BaseModel):
    """State of a subject as another service sends it."""

    model_config = ConfigDict(strict=True)

    kind: AlarmKind = Field(strict=False)
    name: _Text
    state: AlarmLevel = Field(strict=False)
    summary: _Text
    details: tuple[_Text, ...] = Field(max_length=1000, strict=False)
    figures: list[_FigureDocument] = Field(max_length=1000)
    since_us: Annotated[int, Field(ge=0, le=2**62)] | None
    evidence: _Text
    rule: _Text

    def to_state(self) -> SubjectState:
        """Return the state."""
        values = self.model_dump(exclude={"state", "figures"})
        figures = tuple(AlarmFigure(**figure.model_dump()) for figure in self.figures)
        return SubjectState(level=self.state, figures=figures, **values)


@dataclass(frozen=True)
class RemoteService:
    """A results service.

    Attributes:
        url: its base address.
        timeout_s: bounds each request.
        token: key with the role read; '' if reading is public.
        ca_file: certificate authorities; '' for the system's.
    """

    url: str
    timeout_s: float
    token: str = ""
    ca_file: str = ""

    def __repr__(self) -> str:
        return f"RemoteService({self.url!r})"

    def fetch_states(self, kind: AlarmKind | None = None, name: str = "") -> list[SubjectState]:
        """Fetch the states of all subjects, or the one of a kind and name.

        Raises:
            StoreError: the service does not answer.
            InvalidAnswerError: it answers, but not with these states.
            NothingToDoError: it does not know the subject.
        """
        query = {"kind": kind.value, "name": name} if kind else {}
        document = self._get(f"/alarms?{urlencode({**query, 'table': 'states'})}")
        tables = document.get("tables")
        rows = tables.get("states") if isinstance(tables, dict) else None
        if not isinstance(rows, list):
            raise InvalidAnswerError("the response holds no states", where=self.url)
        try:
            states = [_StateDocument.model_validate(row).to_state() for row in rows]
        except (ValidationError, OverflowError) as error:
            raise InvalidAnswerError(
                "the response holds an invalid state", where=self.url
            ) from error
        if not states or (
            kind and [(state.kind, state.name) for state in states] != [(kind, name)]
        ):
            raise InvalidAnswerError(
                "the response holds other states than asked for", where=self.url
            )
        return states

    def assess_service(self) -> SubjectState:
        """Assess the service by its own state and by the time that it takes to answer.

        Raises:
            InvalidAnswerError: it answers, but not with its state.
        """
        start = time.monotonic()
        try:
            (state,) = self.fetch_states(AlarmKind.SERVICE, SERVICE_NAME)
        except StoreError as error:
            return SubjectState(
                AlarmKind.SERVICE, SERVICE_NAME, AlarmLevel.CRITICAL, error.message, rule="answer/1"
            )
        taken_s = time.monotonic() - start
        answer = AlarmFigure("answer", taken_s, "s", ANSWER_WARNING_S, ANSWER_CRITICAL_S)
        level = judge_figure(answer)
        slow = f"answered after {taken_s:.1f} s" if level is not AlarmLevel.OK else ""
        return replace(
            state,
            level=worst_level(state.level, level),
            summary=", ".join(filter(None, (slow, state.summary))),
            figures=(answer, *state.figures),
        )

    def _get(self, path: str) -> Mapping[str, Any]:
        url = self.url.rstrip("/") + API_PREFIX + path
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            context = make_tls_context({"SSL_CERT_FILE": self.ca_file} if self.ca_file else {})
            # A service does not redirect its API; the token stays with the configured address.
            with send_request(
                "GET", url, Deadline(self.timeout_s), headers, context=context, follows=False
            ) as response:
                body = response.read(_MAX_RESPONSE_BYTES)
        except urllib.error.HTTPError as error:
            raise _explain_status(error, self.url) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise StoreError(f"the service does not answer: {reason}", where=self.url) from error
        try:
            document = json.loads(body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidAnswerError("the response is not JSON", where=self.url) from error
        if not isinstance(document, dict):
            raise InvalidAnswerError("the response is not a JSON object", where=self.url)
        return document


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _explain_status(error: urllib.error.HTTPError, url: str) -> Exception:
    with error:
        if error.code in (401, 403):
            return ConfigError(
                "the service requires a key with the role read",
                where=url,
                hint="Name its file as service_token_file.",
            )
        if error.code == 404:
            return NothingToDoError("the service does not know this site or release", where=url)
    return StoreError(f"the service answered with status {error.code}", where=url)


def print_limits(report: LimitReport, form: str = TABLE) -> None:
    """Print the outcomes as a table with notes, as Markdown or as JSON."""
    # scipy takes a third of a second to load, which commands without limits should not pay for.
    from treehammer.analysis.comparison import limit_text

    if form == MARKDOWN:
        click.echo(limit_text.format_markdown(report))
        return
    if form == JSON:
        click.echo(json.dumps(limit_text.build_document(report), indent=1))
        return
    click.echo(f"Limits: {limit_text.describe_limits(report)}")
    print_rows(limit_text.flatten_outcomes(report), limit_text.limit_columns(report))
    for note in limit_text.list_limit_notes(report):
        print_hint(note)


class _PluginCommand(click.Command):
    """A command whose errors of any kind are the state UNKNOWN, as plugins have to answer.

    A traceback would leave with the exit code of a warning.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments.

        Raises:
            Exit: with the code of UNKNOWN.
        """
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise click.exceptions.Exit(_print_failure("", error.format_message())) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except TreehammerError as error:
            return _print_failure("", error.message)
        except Exception as error:  # Monitoring always needs a state.
            return _print_failure("", f"internal error: {type(error).__name__}: {error}")


@click.command("check", cls=_PluginCommand)
@click.option("--site", metavar="NAME", help="State of a site.")
@click.option("--release", metavar="ROOT", help="State of a ROOT release.")
@click.option(
    "--service",
    metavar="[URL]",
    is_flag=False,
    flag_value=_DATABASE,
    help="State of the results service; with an address, also whether it answers.",
)
@click.option(
    "--campaign",
    metavar="ID|last",
    help="Limits that the campaign's test states in [[expect]].",
    shell_complete=complete_campaigns,
)
@click.option(
    "--all", "everything", is_flag=True, help="States of all sites, releases, the service."
)
@click.option("--url", metavar="URL", help="Ask this results service instead of the database.")
@click.option(
    "--format",
    "form",
    type=click.Choice((PLUGIN, JSON, MONIT, MARKDOWN)),
    default=PLUGIN,
    show_default=True,
    help="Lines of a plugin, JSON, JSON for WLCG's monitoring; of --campaign a table, JSON or Markdown.",
)
@click.option(
    "--producer",
    default=PRODUCER,
    show_default=True,
    help="Producer's name for --format monit.",
)
@click.option("-v", "--verbose", count=True, help="Details; twice also rule and thresholds.")
@click.option(
    "-t",
    "--timeout",
    type=click.IntRange(1, 3600),
    default=30,
    show_default=True,
    help="Seconds to wait for --url.",
)
@click.pass_obj
def check_command(
    settings: Settings,
    site: str | None,
    release: str | None,
    service: str | None,
    campaign: str | None,
    everything: bool,
    url: str | None,
    form: str,
    producer: str,
    verbose: int,
    timeout: int,
) -> int:
    """Print the state of a site, a ROOT release or the service, for monitoring, or a campaign's limits.

    The exit code is that of a plugin for Nagios: 0 OK or downtime, 1 WARNING, 2 CRITICAL, 3 UNKNOWN,
    which other commands use differently. Wrong usage is UNKNOWN. JSON of states leaves with 0.

    With --campaign it is 1 if a limit is missed for certain, 3 if one could not be judged or
    measurements are not there, and else 0: all are kept, or undecided for noise.

    \b
    Example: treehammer check --site SITE_A
             treehammer check --release 6.40.00 -v
             treehammer check --service https://results.example.org
             treehammer check --all --format monit
             treehammer check --campaign last --format markdown
    """
    subjects = [
        (AlarmKind.SITE, site),
        (AlarmKind.RELEASE, release),
        (AlarmKind.SERVICE, service and SERVICE_NAME),
    ]
    chosen = [(kind, name) for kind, name in subjects if name is not None]
    if len(chosen) + everything + (campaign is not None) != 1:
        options = "--site, --release, --service, --campaign and --all"
        return _print_failure("", f"give one of {options}")
    if campaign is not None:
        return _check_limits(settings, campaign, url, form)
    if form == MARKDOWN:
        return _print_failure("", "--format markdown is for --campaign")
    require_package("nagiosplugin")
    if service not in (None, _DATABASE):
        url = service
    kind, name = chosen[0] if chosen else (None, "")
    try:
        states = _load_states(settings, url, timeout, kind, name)
    except TreehammerError as error:
        return _print_error(kind, name, error)
    _print_states(states, form, producer, verbose)
    return worst_level(*(state.level for state in states)).code if form == PLUGIN else 0


def _check_limits(settings: Settings, campaign: str, url: str | None, form: str) -> int:
    """Judge and print the limits of a campaign; return the exit code."""
    # scipy takes a third of a second to load, which checks of states should not pay for.
    from treehammer.analysis.comparison.limit_outcomes import judge_limits

    if url is not None or form == MONIT:
        option = "--format monit" if form == MONIT else "--url"
        return _print_failure("", f"{option} and --campaign are mutually exclusive")
    with Store.open(settings.database, create=False) as store:
        row = store.campaign(campaign)
        report = judge_limits(store, row, time.time_ns() // 1000)
    if not report.outcomes:
        return _print_failure("", f"the test of {row.name} states no limit; add [[expect]] to it")
    print_limits(report, form)
    return report.exit_code


def _load_states(
    settings: Settings, url: str | None, timeout: int, kind: AlarmKind | None, name: str
) -> list[SubjectState]:
    """Load the states from the service at ``url``, or from the database."""
    if url is not None:
        remote = _open_remote(settings, url, timeout)
        if kind is AlarmKind.SERVICE:
            return [remote.assess_service()]
        return remote.fetch_states(kind, name)
    now_us = time.time_ns() // 1000
    with Store.open(settings.database, create=False) as store:
        if kind is None:
            return alarm_overview.assess_all(store, now_us)
        return [alarm_overview.assess_subject(store, kind, name, now_us)]


def _open_remote(settings: Settings, url: str, timeout: int) -> RemoteService:
    if not is_allowed_address(url):
        raise NothingToDoError(
            "must begin with https://, or be an address of this machine", where=url
        )
    key = load_user_key(settings)
    ca = settings.service_ca_file
    return RemoteService(url, timeout, key.text if key else "", str(ca) if ca else "")


def _print_states(states: Sequence[SubjectState], form: str, producer: str, verbose: int) -> None:
    if form == PLUGIN:
        for state in states:
            print_hint(format_plugin_output(state, verbose))
        return
    if form == MONIT:
        now_us = time.time_ns() // 1000
        document: Any = build_monit_documents(states, now_us=now_us, producer=producer)
    else:
        document = [state.to_document() for state in states]
    click.echo(json.dumps(document, indent=1))


def _print_error(kind: AlarmKind | None, name: str, error: TreehammerError) -> int:
    """Print that a state is unknown; a service without its database is critical."""
    subject = f"{kind.upper()} {name} " if kind and kind is not AlarmKind.SERVICE else ""
    if kind is AlarmKind.SERVICE and isinstance(error, StoreError):
        state = SubjectState(kind, SERVICE_NAME, AlarmLevel.CRITICAL, error.message)
        _print_states([state], PLUGIN, "", 0)
        return state.level.code
    return _print_failure(subject, error.message)


def _print_failure(subject: str, message: str) -> int:
    """Print the state UNKNOWN; return its code."""
    line = make_single_line(f"{subject or 'TREEHAMMER '}UNKNOWN - {message}")
    click.echo(line.replace("|", "/"))
    return AlarmLevel.UNKNOWN.code
