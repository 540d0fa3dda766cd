"""Commands ``treehammer sites status | evaluate | rules | override | end-override | downtimes``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.status.site_uses import WORST_FIRST, SiteState
from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.sql.cli import open_store, pass_store
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import (
    JSON,
    SITE,
    TABLE,
    TEXT,
    TIME,
    CommandOutput,
    PathType,
    add_options,
    output_form,
    print_remarks,
    prints_rows,
)
from treehammer.text_formatting import (
    SECOND_US,
    format_duration,
    format_time,
    parse_duration,
    parse_time,
    pluralize,
)

if TYPE_CHECKING:
    from treehammer.sql.core.watch_rows import StatusChangeRow
    from treehammer.sql.read.reader import ResultsReader
    from treehammer.sql.write.store import Store


#: Seconds after which an evaluation is called old.
OLD_S = 3600

_HIDDEN = hidden_columns("who", "rule_version", "decided", "superseded", "evidence", "id")
_STATE_COLUMNS = (
    TableColumn("since", "since (UTC)"),
    TableColumn("site", "site"),
    TableColumn("of", "of"),
    TableColumn("state", "state"),
    TableColumn("use", "use"),
    TableColumn("until", "until"),
    TableColumn("cause", "by"),
    TableColumn("reason", "reason"),
    *hidden_columns("previous"),
    *_HIDDEN,
)
_CHANGE_COLUMNS = (
    *_STATE_COLUMNS[:3],
    TableColumn("previous", "from"),
    TableColumn("state", "to"),
    *_STATE_COLUMNS[6:8],
    *hidden_columns("use", "until"),
    *_HIDDEN,
)


def subject_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the subject of an override, and who sets it, to a command."""
    return add_options(
        command,
        # The kinds of :mod:`.state_history`.
        click.option("--jobs", "kind", flag_value="site", help="Only its jobs."),
        click.option("--storage", "kind", flag_value="storage_site", help="Only its storage."),
        click.option("--door", default="", metavar="NAME", help="Only this door of its storage."),
        click.option("--by", "who", default="", help="Your name [default: user@host]."),
    )


@click.command("status")
@click.option("--site", default=None, type=SITE, help="Only this site.")
@click.option("--history", is_flag=True, help="All changes instead of the current states.")
@click.option(
    "--since",
    type=TIME,
    default=0,
    metavar="TIME",
    help="With --history: only changes at TIME (UTC) or later.",
)
@click.option(
    "--superseded", is_flag=True, help="With --history: also changes that no longer hold."
)
@prints_rows(*_STATE_COLUMNS)
@pass_store
def status(
    settings: Settings,
    store: Store,
    /,
    site: str | None,
    history: bool,
    since: int,
    superseded: bool,
) -> CommandOutput:
    """Show the states of sites, storages and doors, worst first, with reason and evidence.

    States are those of the last evaluation (treehammer sites evaluate). JSON and CSV hold the
    evidence: counts, and identities of campaigns, jobs and measurements.

    Example: treehammer sites status --site SITE_A --history
    """
    from treehammer.submit.planning.site_selection import list_known_sites
    from treehammer.watch.store.state_history import find_latest_rule_set

    evaluation = find_latest_rule_set(store)
    if evaluation is None:
        raise NothingToDoError(
            "no states have been evaluated yet", hint="Evaluate them: treehammer sites evaluate"
        )
    changes = _find_changes(store, site, history, since, superseded)
    if site and not changes:
        SITE.require([site], list_known_sites(store, settings), "--site")
    if not changes:
        raise NothingToDoError(
            f"no state of {site!r}" if site else "no site has a state yet",
            hint="Runs count from the end of the step in which they end (step of the rules, "
            "5 minutes). Then evaluate again: treehammer sites evaluate",
        )
    age_s = (current_us() - evaluation.evaluated_us) / SECOND_US
    old = f" ({format_duration(age_s)} ago)" if age_s > OLD_S else ""
    time_text = format_time(evaluation.evaluated_us)
    summary = f"evaluated {time_text} UTC{old} by rules {evaluation.version}"
    return _describe_changes(changes, history=history, summary=[summary])


def _find_changes(
    store: ResultsReader, site: str | None, history: bool, since_us: int, superseded: bool
) -> list[StatusChangeRow]:
    from treehammer.watch.store import state_history

    if history:
        return state_history.list_state_changes(
            store, site=site, since_us=since_us, superseded=superseded, doors=True
        )
    rows = state_history.list_standing_states(store, site, doors=True)
    return sorted(rows, key=lambda row: (WORST_FIRST.index(SiteState(row.state)), row.site))


def _describe_changes(
    rows: Iterable[StatusChangeRow], *, history: bool, **output: Any
) -> CommandOutput:
    from treehammer.watch.states.site_status import flatten_change

    ordered = sorted(rows, key=lambda row: (row.since_us, row.site)) if history else rows
    columns = _CHANGE_COLUMNS if history else _STATE_COLUMNS
    return CommandOutput([flatten_change(row) for row in ordered], columns, **output)


@click.command("evaluate")
@click.option(
    "--rules",
    "rules_file",
    type=PathType(),
    help="Rules file [default: status_rules in the configuration, or the shipped rules].",
)
@prints_rows(*_CHANGE_COLUMNS)
@click.pass_obj
def evaluate(settings: Settings, rules_file: Path | None) -> CommandOutput:
    """Evaluate the states of all sites now, and print their changes; for cron.

    Example: treehammer sites evaluate
    """
    from treehammer.watch.states.site_status import update_states
    from treehammer.watch.states.status_rules import load_status_rules

    rules = load_status_rules(rules_file or settings.status_rules)
    with open_store(settings) as store:
        update = update_states(store, current_us(), rules)
    gone = f", {len(update.superseded)} superseded" if update.superseded else ""
    output = _describe_changes(
        update.changes,
        history=True,
        remarks=[] if update.recorded else ["another evaluation was recorded at the same time"],
        summary=[f"{pluralize(len(update.changes), 'change')}{gone}"],
    )
    return output if update.changes or output_form() != TABLE else replace(output, columns=())


@click.command("rules")
@click.argument("file", required=False, type=PathType())
@prints_rows(
    TableColumn("rule", "rule"),
    TableColumn("version", "version"),
    TableColumn("sites", "of", ", ".join),
    TableColumn("about", "states"),
    *hidden_columns("kind", "values"),
)
@click.pass_obj
def show_rules(settings: Settings, file: Path | None) -> CommandOutput:
    """List the rules for states with their versions, and check a file of them.

    Example: treehammer sites rules my_rules.toml
    """
    from treehammer.sql.core.subjects import KIND_WORDS
    from treehammer.watch.states.status_rules import load_status_rules

    rules = load_status_rules(file or settings.status_rules)
    rows = [
        {
            "rule": name,
            "version": rule.version,
            "kind": rule.kind,
            "sites": [KIND_WORDS[kind] for kind in rule.sites],
            "about": rule.describe(),
            **({"values": rule.model_dump()} if output_form() == JSON else {}),
        }
        for name, rule in rules.rules.items()
    ]
    return CommandOutput(rows, summary=[rules.describe_central()])


@click.command("override")
@click.argument("site", type=SITE)
@click.argument("state", type=click.Choice([state.value for state in SiteState]))
@click.option("--why", required=True, help="Reason, which pages show.")
@click.option(
    "--until",
    required=True,
    metavar="TIME",
    help="End: a time (UTC) such as 2026-03-01T12:00, or a duration such as 24h.",
)
@subject_options
@click.pass_obj
def override(
    settings: Settings,
    site: str,
    state: str,
    why: str,
    until: str,
    kind: str | None,
    door: str,
    who: str,
) -> None:
    """Set the state of a site, or of one of its doors, until a time, regardless of the rules.

    It replaces an earlier override of the same. Who set it, why and until when are kept.

    Example: treehammer sites override SITE_A critical --why "disk server burns" --until 24h
    """
    from treehammer.sql.core.watch_rows import OverrideRow
    from treehammer.sql.write.audit_trail import local_actor
    from treehammer.watch.store.state_history import add_override

    now_us = current_us()
    until_us = parse_end(until, now_us)
    subject, kind = _name_overridden(site, kind, door)
    row = OverrideRow("", subject, kind, state, who or local_actor(), why, now_us, until_us)
    with open_store(settings) as store:
        _require_known(store, site, door, settings)
        add_override(store, row)
        evaluate_again(store, settings)
    click.echo(f"{subject} is {state} until {format_time(until_us)} UTC")


def _name_overridden(site: str, kind: str | None, door: str) -> tuple[str, str]:
    """Return the name and the kind of the subject of an override.

    Raises:
        ConfigError: a door is named together with jobs or storage.
    """
    from treehammer.sql.core.subjects import DOOR, label_door

    if not door:
        return site, kind or ""
    if kind:
        raise ConfigError(
            "cannot be combined with --jobs or --storage",
            where=f"--door {door}",
            hint="Set the door and the site by two commands.",
        )
    return label_door(site, door), DOOR


def _require_known(store: Store, site: str, door: str, settings: Settings) -> None:
    """Refuse a site that is unknown, or a door that the sites file does not have; '' is none.

    Raises:
        ConfigError: names the nearest one.
    """
    from treehammer.submit.planning.site_selection import list_known_sites
    from treehammer.submit.sites.site_registry import load_sites

    SITE.require([site], list_known_sites(store, settings), "SITE")
    sites_by_name = load_sites(settings)
    doors = [item.name for item in sites_by_name[site].doors] if site in sites_by_name else []
    if door and door not in doors:
        raise ConfigError(
            f"site {site} has no door {door!r}",
            where="--door",
            hint=f"{suggest_word(door, doors)}"
            f"Known: {', '.join(doors) or 'none in the sites file'}.",
        )


def parse_end(text: str, now_us: int) -> int:
    """Parse a duration from now, or a moment that is not in the past, into microseconds since 1970."""
    if text.strip()[-1:] in ("s", "m", "h", "d"):
        return now_us + parse_duration(text, "--until") * SECOND_US
    until_us = parse_time(text, "--until")
    if until_us <= now_us:
        raise ConfigError("is in the past", where=f"--until {text}")
    return until_us


@click.command("end-override")
@click.argument("site", type=SITE)
@subject_options
@click.pass_obj
def end_override(settings: Settings, site: str, kind: str | None, door: str, who: str) -> None:
    """End the override of a site or of one of its doors, whose state follows the rules again.

    Example: treehammer sites end-override SITE_A
    """
    from treehammer.sql.write.audit_trail import local_actor
    from treehammer.watch.store.state_history import end_overrides

    now_us = current_us()
    subject, kind = _name_overridden(site, kind, door)
    with open_store(settings) as store:
        if not end_overrides(store, subject, kind, now_us=now_us, who=who or local_actor()):
            _require_known(store, site, door, settings)
            raise NothingToDoError(f"{subject} has no override")
        evaluate_again(store, settings)
    click.echo(f"{subject} follows the rules again")


def evaluate_again(store: Store, settings: Settings) -> None:
    """Evaluate states now, so that everything shows the change at once."""
    from treehammer.watch.states.site_status import update_states
    from treehammer.watch.states.status_rules import load_status_rules

    update_states(store, current_us(), load_status_rules(settings.status_rules))


_DOWNTIME_COLUMNS = (
    TableColumn("site", "site"),
    TableColumn("of", "of"),
    TableColumn("from", "from (UTC)"),
    TableColumn("until", "until"),
    TableColumn("severity", "severity"),
    TableColumn("description", "description"),
    *hidden_columns("id", "source", "subject_kind", "starts_us", "ends_us"),
    *hidden_columns("url", "imported_us", "withdrawn_us"),
)


@click.group("downtimes")
def downtimes() -> None:
    """Import and list announced downtimes of sites."""


@downtimes.command("list")
@click.option("--all", "show_all", is_flag=True, help="Also downtimes that have ended.")
@prints_rows(*_DOWNTIME_COLUMNS)
@pass_store
def list_downtimes(_settings: Settings, store: Store, /, show_all: bool) -> list[dict[str, Any]]:
    """List current and future downtimes.

    Example: treehammer sites downtimes list
    """
    from treehammer.sql.core import subjects
    from treehammer.watch.store import state_history

    ends_after_us = 0 if show_all else current_us()
    return [
        {
            **asdict(row),
            "from": format_time(row.starts_us),
            "until": format_time(row.ends_us),
            "of": subjects.KIND_WORDS.get(row.subject_kind, "jobs and storage"),
        }
        for row in state_history.list_downtimes(store, ends_after_us=ends_after_us)
    ]


@downtimes.command("import")
@click.argument("address", type=TEXT, metavar="FILE|URL")
@click.option("--site", default="", type=SITE, help="Site of all entries of the document.")
@click.option(
    "--map",
    "mapped",
    multiple=True,
    metavar="NAME=SITE",
    help="A site by the document's name for it or for one of its hosts; may be repeated.",
)
@click.option("--source", default="", help="Name of the document [default: its address].")
@click.pass_obj
def import_downtimes(
    settings: Settings, address: str, site: str, mapped: tuple[str, ...], source: str
) -> None:
    """Import downtimes from a JSON or XML document, in place of its earlier content.

    GOCDB, OSG Topology and CRIC provide such documents. Downtimes that the document no longer holds
    are withdrawn, and end if they have begun. Entries of sites that are neither in the sites file nor
    measured are refused, unless they name a host of a site's doors.

    Example: treehammer sites downtimes import downtimes.json --map T2_XX_SITE=SITE_A
    """
    from treehammer.submit.planning.site_selection import list_known_sites
    from treehammer.submit.sites.site_registry import load_sites
    from treehammer.watch.downtimes import downtime_documents
    from treehammer.watch.store.state_history import replace_downtimes

    now_us = current_us()
    pairs = [text.partition("=") for text in mapped]
    if not all(name and site for name, _, site in pairs):
        raise click.UsageError("--map expects NAME=SITE.")
    sites_by_name = {name: site for name, _, site in pairs}
    content = downtime_documents.fetch_document(address)
    with open_store(settings, create=True) as store:
        known_sites = list_known_sites(store, settings)
        SITE.require([site] if site else [], known_sites, "--site")
        SITE.require(sites_by_name.values(), known_sites, "--map")
        hosts = downtime_documents.map_hosts(load_sites(settings).values())
        options = downtime_documents.DowntimeOptions(
            source or address, site, sites_by_name, known_sites, hosts
        )
        document = downtime_documents.parse_downtimes(content, options, now_us)
        print_remarks(document.list_refused())
        document.require_downtimes(address, known_sites)
        result = replace_downtimes(store, options.source, document.downtimes, now_us)
        evaluate_again(store, settings)
    click.echo(
        f"{result.new} new, {result.changed} changed, {result.unchanged} unchanged, "
        f"{result.withdrawn} withdrawn"
    )
