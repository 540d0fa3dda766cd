"""Commands of continuous operation: ``changes``, ``digest``, ``notify`` and ``check``.

``check`` is a plugin for Nagios and its relatives, and judges limits. States come from the database or, for monitoring on another machine, from a results service.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import Settings
from treehammer.errors import ConfigError, StoreError, TreehammerError, require_packages
from treehammer.sql.cli import open_store, pass_store
from treehammer.tables import TableColumn, hidden_columns, titled_columns
from treehammer.terminal import (
    CAMPAIGN,
    JSON,
    SITE,
    CommandOutput,
    on_interrupt,
    print_hint,
    print_remarks,
    prints_rows,
)
from treehammer.text_formatting import format_minute, make_single_line, pluralize
from treehammer.watch.alarms.subject_state import (
    SERVICE_NAME,
    AlarmKind,
    AlarmLevel,
    SubjectState,
    format_plugin_output,
    worst_level,
)
from treehammer.watch.changes import WINDOW_DAYS

if TYPE_CHECKING:
    from treehammer.sql.write.store import Store

_CHANGE_COLUMNS = (
    TableColumn(
        "since",
        "since",
        format_row=lambda row: " to ".join(filter(None, (row["since"], row["until"]))),
    ),
    TableColumn("state", "state"),
    TableColumn("points_at", "points at"),
    TableColumn("quantity", "quantity"),
    TableColumn("test", "test"),
    TableColumn("change", "change", is_number=True),
    TableColumn("interval", "95 % interval"),
    TableColumn("cause", "changed on that day"),
    TableColumn("id", "change id"),
    *hidden_columns("attribution", "subject", "kind", "metric", "control", "effect", "low", "high"),
    *hidden_columns("p", "days_before", "days_after", "seconded", "sites", "until"),
)
_EVENT_COLUMNS = (
    *titled_columns(happened="time, UTC", title="event", severity="severity"),
    *hidden_columns("id", "kind", "subject_kind", "subject", "state", "text", "evidence"),
)
#: Formats of ``check``; that of limits in a pull request beside those of the terminal.
PLUGIN = "plugin"
#: As :data:`.comparison_output.MARKDOWN`, whose module loads SciPy.
MARKDOWN = "markdown"
#: Value of --service without an address.
_DATABASE = "-"


@click.command("changes")
@click.option(
    "--site", default="", type=SITE, help="Changes of a site, as site of the jobs or storage."
)
@click.option("--release", default="", help="Changes of a ROOT release.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    help=f"First day of the changes [default: {WINDOW_DAYS} days ago].",
)
@click.option("--update", is_flag=True, help="Search the newest results first.")
@click.option("--rebuild", is_flag=True, help="Update from all results of the last 90 days.")
@prints_rows(*_CHANGE_COLUMNS, empty="No changes found.")
@pass_store
def changes_command(
    settings: Settings,
    store: Store,
    /,
    site: str,
    release: str,
    since: datetime | None,
    update: bool,
    rebuild: bool,
) -> list[dict[str, Any]]:
    """List what became slower or faster, since when, and what it points at.

    Changes are steps in daily series: each release relative to a pinned control release in the same
    jobs, and the control itself. Run with --update once a day, such as from cron.

    \b
    Example: treehammer changes --update
             treehammer changes --site SITE_A --since 2026-03-01
    """
    from treehammer.collectors.record.day_numbers import day_to_number
    from treehammer.watch.changes import change_points
    from treehammer.watch.store.alarms import load_change_points

    now = datetime.now(UTC)
    first_day = since.date() if since else now.date() - timedelta(days=WINDOW_DAYS - 1)
    if update or rebuild:
        control = settings.control_release
        result = change_points.update_changes(store, now, control=control, rebuild=rebuild)
        click.echo(
            f"Read {result.days} days again; {result.series} series; {result.changes} changes, "
            f"{result.new} of them new.",
            err=True,
        )
        for identity, sites in result.nodes_by.items():
            places = ", ".join(sorted(sites))
            print_hint(f"Host names change at {places}: nodes by {identity}.", err=True)
    changes = load_change_points(store, day_to_number(first_day))
    selection = change_points.select_changes(changes, site, release)
    if not selection:
        _require_known(store, site, release)
    return [change_points.make_change_record(change) for change in selection]


def _require_known(store: Store, site: str, release: str) -> None:
    """Check that the names of a site and a release are not mistyped; '' is none."""
    from treehammer.sql.read import overview_queries
    from treehammer.watch.alarms.alarm_overview import require_measured_release

    kinds = overview_queries.JOB_SITE, overview_queries.STORAGE_SITE
    if site and not any(site in overview_queries.list_sites(store, kind) for kind in kinds):
        raise overview_queries.build_unknown_site_error(store, site)
    if release:
        require_measured_release(store, release)


@click.command("digest")
@click.option(
    "--week",
    default="",
    help="A week, such as 2026-W46 [default: that of yesterday].",
)
@click.option("--html", is_flag=True, help="Print HTML instead of Markdown.")
@prints_rows(*hidden_columns("section", "text", "evidence"))
@click.pass_obj
def digest_command(settings: Settings, week: str, html: bool) -> CommandOutput:
    """Print the week: failed sites, new failures, changes, comparisons, campaigns and cost.

    Each line has a link to its evidence.

    Links need serve_url.

    \b
    Example: treehammer digest --week 2026-W46
             treehammer digest --html | mail -a 'Content-Type: text/html; charset=utf-8' -s Week me@example.org
    """
    from treehammer.watch.changes.weekly_digest import default_week, load_digest, parse_week

    try:
        first_day = parse_week(week) if week else default_week(datetime.now(UTC).date())
    except ValueError:
        raise ConfigError(f"{week!r} is not a week; write 2026-W46", where="--week") from None
    with open_store(settings) as store:
        digest = load_digest(store, first_day)
    rows = [
        {"section": section.title, "text": line.text, "evidence": settings.serve_url + line.path}
        for section in digest.sections
        for line in section.lines
    ]
    write = digest.to_html if html else digest.to_markdown
    return CommandOutput(rows, (), above=[write(settings.serve_url).removesuffix("\n")])


@click.command("notify")
@prints_rows(*_EVENT_COLUMNS)
@click.pass_obj
@on_interrupt("recorded events are kept")
def notify_command(settings: Settings) -> CommandOutput:
    """Record changed states, confirmed regressions and change points as events.

    The states of sites are evaluated first. Each event is recorded once; patrol does the same all the
    time, and both may run together. Alertmanager sends messages, by the rules in web/deployment.

    \b
    Example: treehammer notify
    """
    # Comparisons load scipy, which takes a third of a second.
    from treehammer.watch.alarms.alarm_watch import record_events
    from treehammer.watch.states.status_rules import load_status_rules

    with open_store(settings) as store:
        rules = load_status_rules(settings.status_rules)
        events = record_events(store, rules, current_us())
    rows = [
        {"happened": format_minute(event.happened_us), **event.to_event_document()}
        for event in events
    ]
    return CommandOutput(rows, remarks=[pluralize(len(rows), "new event")])


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
            return _print_error(None, "", error)
        except UnicodeEncodeError as error:  # as in cli.main: a name that no database holds
            return _print_failure("", f"{error.object[:100]!r} is not UTF-8 text")
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
    type=CAMPAIGN,
)
@click.option(
    "--all", "everything", is_flag=True, help="States of all sites, releases, the service."
)
@click.option("--url", metavar="URL", help="Ask this results service instead of the database.")
@click.option(
    "--format",
    "form",
    type=click.Choice((PLUGIN, JSON, MARKDOWN)),
    default=PLUGIN,
    show_default=True,
    help="Lines of a plugin, or JSON; of --campaign a table, JSON or Markdown.",
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
    verbose: int,
    timeout: int,
) -> int:
    """Print the state of a site, a ROOT release or the service, for monitoring, or a campaign's limits.

    The exit code is that of a plugin for Nagios: 0 OK or downtime, 1 WARNING, 2 CRITICAL, 3 UNKNOWN,
    which other commands use differently. Wrong usage is UNKNOWN. JSON of states exits with 0.

    With --campaign it is 1 if a limit is missed for certain, 3 if one could not be judged or
    measurements are not there, and else 0: all are kept, or undecided for noise.

    \b
    Example: treehammer check --site SITE_A
             treehammer check --release 6.40.00 -v
             treehammer check --service https://results.example.org
             treehammer check --campaign last --format markdown
    """
    subjects: list[tuple[AlarmKind | None, str | None]] = [
        (AlarmKind.SITE, site),
        (AlarmKind.RELEASE, release),
        (AlarmKind.SERVICE, service and SERVICE_NAME),
    ]
    selection = [(kind, name) for kind, name in subjects if name is not None]
    selection += [(None, "")] if everything else []
    if len(selection) + (campaign is not None) != 1:
        options = "--site, --release, --service, --campaign and --all"
        return _print_failure("", f"give one of {options}")
    if campaign is not None:
        return _check_limits(settings, campaign, url, form)
    if form == MARKDOWN:
        return _print_failure("", "--format markdown is for --campaign")
    require_packages("nagiosplugin")
    if service not in (None, _DATABASE):
        url = service
    ((kind, name),) = selection
    try:
        states = _load_states(settings, url, timeout, kind, name)
    except TreehammerError as error:
        return _print_error(kind, name, error)
    return _print_states(states, form, verbose)


def _check_limits(settings: Settings, campaign: str, url: str | None, form: str) -> int:
    """Judge and print the limits of a campaign; return the exit code."""
    if url is not None:
        return _print_failure("", "--url and --campaign are mutually exclusive")
    # scipy takes a third of a second to load, which checks of states should not pay for.
    from treehammer.analysis.cli import comparison_output
    from treehammer.analysis.comparison.limit_outcomes import judge_limits

    with open_store(settings) as store:
        row = store.campaign(campaign)
        report = judge_limits(store, row, current_us())
    if not report.outcomes and form != JSON:
        return _print_failure("", f"the test of {row.name} states no limit; add [[expect]] to it")
    comparison_output.print_limits(report, form)
    return report.exit_code


def _load_states(
    settings: Settings, url: str | None, timeout: int, kind: AlarmKind | None, name: str
) -> list[SubjectState]:
    """Load the states from the service at ``url``, or from the database."""
    if url is not None:
        from treehammer.watch.alarms.remote_states import RemoteService

        remote = RemoteService.open(settings, url, timeout)
        if kind is AlarmKind.SERVICE:
            return [remote.assess_service()]
        return remote.fetch_states(kind, name)
    from treehammer.watch.alarms import alarm_overview

    now_us = current_us()
    with open_store(settings) as store:
        if kind is None:
            return alarm_overview.assess_all(store, now_us)
        return [alarm_overview.assess_subject(store, kind, name, now_us)]


def _print_states(states: Sequence[SubjectState], form: str, verbose: int) -> int:
    """Print states; return the exit code."""
    if form == PLUGIN:
        for state in states:
            print_hint(format_plugin_output(state, verbose))
        return worst_level(*(state.level for state in states)).code
    click.echo(json.dumps([state.to_document() for state in states], indent=1))
    return 0


def _print_error(kind: AlarmKind | None, name: str, error: TreehammerError) -> int:
    """Print that a state is unknown, and the remedy; a service without its database is critical."""
    if kind is AlarmKind.SERVICE and isinstance(error, StoreError):
        state = SubjectState(kind, SERVICE_NAME, AlarmLevel.CRITICAL, error.message)
        return _print_states([state], PLUGIN, 0)
    subject = f"{kind.upper()} {name} " if kind and kind is not AlarmKind.SERVICE else ""
    place = f"{error.where}: " if error.where and not subject else ""
    code = _print_failure(subject, place + error.message)
    print_remarks(filter(None, [error.hint]))
    return code


def _print_failure(subject: str, message: str) -> int:
    """Print the state UNKNOWN; return its code."""
    line = make_single_line(f"{subject or 'TREEHAMMER '}UNKNOWN - {message}")
    click.echo(line.replace("|", "/"))
    return AlarmLevel.UNKNOWN.code
