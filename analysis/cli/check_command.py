"""The verb ``check``: a plugin for Nagios and its relatives, documents for WLCG's monitoring, limits."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.alarms import alarm_overview
from treehammer.analysis.alarms.remote_states import RemoteService
from treehammer.analysis.status.subject_state import (
    SERVICE_NAME,
    AlarmKind,
    AlarmLevel,
    SubjectState,
    worst_level,
)
from treehammer.config import Settings
from treehammer.errors import NothingToDoError, StoreError, TreehammerError, require_package
from treehammer.setting_parsers import is_allowed_address
from treehammer.sql.auth.access_keys import load_user_key
from treehammer.sql.cli.transfer_commands import complete_campaigns
from treehammer.sql.write.store import Store
from treehammer.terminal import TABLE, print_hint, print_rows
from treehammer.text_formatting import make_single_line

if TYPE_CHECKING:
    from treehammer.analysis.comparison.limit_outcomes import LimitReport


MARKDOWN, JSON = "markdown", "json"


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


PLUGIN, MONIT = "plugin", "monit"
#: Value of --service without an address.
_DATABASE = "-"


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
    default=alarm_overview.PRODUCER,
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
        # Imported here, as it needs a package of an extra.
        from treehammer.analysis.alarms.plugin_output import format_plugin_output

        for state in states:
            print_hint(format_plugin_output(state, verbose))
        return
    if form == MONIT:
        now_us = time.time_ns() // 1000
        document: Any = alarm_overview.build_monit_documents(
            states, now_us=now_us, producer=producer
        )
    else:
        document = [state_.to_document() for state_ in states]
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
