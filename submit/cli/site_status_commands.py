"""Commands ``treehammer sites status | evaluate | rules | override | end-override``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click

from treehammer.analysis.status.site_status import flatten_change, update_states
from treehammer.analysis.status.status_rules import load_status_rules
from treehammer.analysis.status.subject_state import WORST_FIRST, SiteState
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.sql.core.watch_rows import OverrideRow, StatusChangeRow
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch import state_history
from treehammer.sql.watch.state_history import (
    DOOR,
    KIND_WORDS,
    STORAGE_SITE,
    label_door,
)
from treehammer.sql.write.audit_trail import local_actor
from treehammer.sql.write.store import Store
from treehammer.submit.cli.command_options import collect_before, list_known_sites
from treehammer.submit.cli.sites_commands import sites
from treehammer.submit.sites.site_registry import load_sites
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import JSON, SITE, TABLE, TIME, CommandOutput, output_form, prints_rows
from treehammer.text_formatting import (
    SECOND_US,
    format_duration,
    format_time,
    parse_duration,
    parse_time,
    pluralize,
)

__all__ = ["sites"]

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
_RULES_OPTION = click.option(
    "--rules",
    "rules_file",
    type=click.Path(path_type=Path),
    help="Rules file [default: status_rules in the configuration, or the shipped rules].",
)
_JOBS_OPTION = click.option("--jobs", "kind", flag_value=state_history.SITE, help="Only its jobs.")
_STORAGE_OPTION = click.option(
    "--storage", "kind", flag_value=STORAGE_SITE, help="Only its storage."
)
_DOOR_OPTION = click.option(
    "--door", default="", metavar="NAME", help="Only this door of its storage."
)
_BY_OPTION = click.option("--by", "who", default="", help="Your name [default: user@host].")


@sites.command("status")
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
    "--superseded", is_flag=True, help="With --history: also changes that late results contradict."
)
@prints_rows(*_STATE_COLUMNS)
@click.pass_obj
def status(
    settings: Settings, site: str | None, history: bool, since: int, superseded: bool
) -> CommandOutput:
    """Show the states of sites, storages and doors, worst first, with reason and evidence.

    States are those of the last evaluation (treehammer sites evaluate). JSON and CSV hold the
    evidence: counts, and identities of campaigns, jobs and measurements.

    Example: treehammer sites status --site SITE_A --history
    """
    with Store.open(settings.database, create=False) as store:
        evaluation = state_history.find_latest_rule_set(store)
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
    age_s = (time.time_ns() // 1000 - evaluation.evaluated_us) / SECOND_US
    old = f" ({format_duration(age_s)} ago)" if age_s > OLD_S else ""
    time_text = format_time(evaluation.evaluated_us)
    remark = f"evaluated {time_text} UTC{old} by rules {evaluation.version}"
    return replace(
        _describe_changes(changes, history=history),
        remarks=[remark] if output_form() == TABLE else [],
    )


def _find_changes(
    store: ResultsReader, site: str | None, history: bool, since_us: int, superseded: bool
) -> list[StatusChangeRow]:
    if history:
        return state_history.list_state_changes(
            store, site=site, since_us=since_us, superseded=superseded, doors=True
        )
    rows = state_history.list_standing_states(store, site, doors=True)
    return sorted(rows, key=lambda row: (WORST_FIRST.index(SiteState(row.state)), row.site))


def _describe_changes(rows: Iterable[StatusChangeRow], *, history: bool) -> CommandOutput:
    ordered = sorted(rows, key=lambda row: (row.since_us, row.site)) if history else rows
    columns = _CHANGE_COLUMNS if history else _STATE_COLUMNS
    return CommandOutput([flatten_change(row) for row in ordered], columns)


@click.command("evaluate")
@_RULES_OPTION
@prints_rows(*_CHANGE_COLUMNS)
@click.pass_obj
def evaluate(settings: Settings, rules_file: Path | None) -> CommandOutput:
    """Evaluate the states of all sites now, and print their changes; for cron.

    Example: treehammer sites evaluate
    """
    rules = load_status_rules(rules_file or settings.status_rules)
    with Store.open(settings.database, create=False) as store:
        update = update_states(store, time.time_ns() // 1000, rules)
    remarks = [] if update.recorded else ["another evaluation was recorded at the same time"]
    output = _describe_changes(update.changes, history=True)
    if output_form() == TABLE:
        gone = f", {len(update.superseded)} superseded" if update.superseded else ""
        remarks.append(f"{pluralize(len(update.changes), 'change')}{gone}")
        output = output if update.changes else CommandOutput(columns=())
    return replace(output, remarks=remarks)


sites.add_command(collect_before(evaluate))


@sites.command("rules")
@click.argument("file", required=False, type=click.Path(path_type=Path))
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
    rules = load_status_rules(file or settings.status_rules)
    form = output_form()
    rows = [
        {
            "rule": name,
            "version": rule.version,
            "kind": rule.kind,
            "sites": [KIND_WORDS[kind] for kind in rule.sites],
            "about": rule.describe(),
            **({"values": rule.model_dump()} if form == JSON else {}),
        }
        for name, rule in rules.rules.items()
    ]
    return CommandOutput(rows, remarks=[rules.describe_central()] if form == TABLE else [])


@sites.command("override")
@click.argument("site", type=SITE)
@click.argument("state", type=click.Choice([state.value for state in SiteState]))
@click.option("--why", required=True, help="Reason, which pages show.")
@click.option(
    "--until",
    required=True,
    metavar="TIME",
    help="End: a time (UTC) such as 2026-03-01T12:00, or a duration such as 24h.",
)
@_JOBS_OPTION
@_STORAGE_OPTION
@_DOOR_OPTION
@_BY_OPTION
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
    now_us = time.time_ns() // 1000
    until_us = _parse_end(until, now_us)
    subject, kind = _name_overridden(site, kind, door)
    row = OverrideRow("", subject, kind, state, who or local_actor(), why, now_us, until_us)
    with Store.open(settings.database, create=False) as store:
        SITE.require([site], list_known_sites(store, settings), "SITE")
        if door:
            _require_known_door(site, door, settings)
        state_history.add_override(store, row)
        _evaluate_again(store, settings)
    click.echo(f"{subject} is {state} until {format_time(until_us)} UTC")


def _name_overridden(site: str, kind: str | None, door: str) -> tuple[str, str]:
    """Return the name and the kind of the subject of an override.

    Raises:
        ConfigError: a door is named together with jobs or storage.
    """
    if not door:
        return site, kind or ""
    if kind:
        raise ConfigError(
            "cannot be combined with --jobs or --storage",
            where=f"--door {door}",
            hint="Set the door and the site by two commands.",
        )
    return label_door(site, door), DOOR


def _require_known_door(site: str, name: str, settings: Settings) -> None:
    """Refuse a door that the sites file does not have.

    Raises:
        ConfigError: the door is unknown; names the nearest one.
    """
    sites_by_name = load_sites(settings)
    door_names = [door.name for door in sites_by_name[site].doors] if site in sites_by_name else []
    if name not in door_names:
        doors = ", ".join(door_names) or "none in the sites file"
        raise ConfigError(
            f"site {site} has no door {name!r}",
            where="--door",
            hint=f"{suggest_word(name, door_names)}Known: {doors}.",
        )


def _parse_end(text: str, now_us: int) -> int:
    if text.strip()[-1:] in ("s", "m", "h", "d"):
        return now_us + parse_duration(text, "--until") * SECOND_US
    until_us = parse_time(text, "--until")
    if until_us <= now_us:
        raise ConfigError("is in the past", where=f"--until {text}")
    return until_us


@sites.command("end-override")
@click.argument("site", type=SITE)
@_JOBS_OPTION
@_STORAGE_OPTION
@_DOOR_OPTION
@_BY_OPTION
@click.pass_obj
def end_override(settings: Settings, site: str, kind: str | None, door: str, who: str) -> None:
    """End the override of a site or of one of its doors, whose state follows the rules again.

    Example: treehammer sites end-override SITE_A
    """
    now_us = time.time_ns() // 1000
    subject, kind = _name_overridden(site, kind, door)
    with Store.open(settings.database, create=False) as store:
        ended = state_history.end_overrides(
            store, subject, kind, now_us=now_us, who=who or local_actor()
        )
        if not ended:
            SITE.require([site], list_known_sites(store, settings), "SITE")
            if door:
                _require_known_door(site, door, settings)
            raise NothingToDoError(f"{subject} has no override")
        _evaluate_again(store, settings)
    click.echo(f"{subject} follows the rules again")


def _evaluate_again(store: Store, settings: Settings) -> None:
    """Evaluate states now, so that everything shows the change at once."""
    update_states(store, time.time_ns() // 1000, load_status_rules(settings.status_rules))
