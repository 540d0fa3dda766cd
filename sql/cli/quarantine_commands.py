"""Commands ``db quarantine``, ``restore`` and ``delete``, for the results of a key or campaign."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.cli.audit_command import audit_command, parse_time
from treehammer.sql.write import quarantine
from treehammer.sql.write.audit_trail import local_actor
from treehammer.sql.write.quarantine import ChangeScope, DatabaseChange, ScopeCount
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import output_options, print_rows
from treehammer.text_formatting import format_time, pluralize

_COUNT_COLUMNS = [
    TableColumn("campaign_id", "campaign"),
    TableColumn("site", "site"),
    TableColumn("measurements", "measurements", is_number=True),
]


def scope_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select measurements."""
    options = (
        click.option("--campaign", default="", help="Measurements of this campaign."),
        click.option("--key", default="", metavar="ID", help="Measurements sent with this key."),
        click.option(
            "--since", metavar="TIME", help="Measurements that began at TIME (UTC) or later."
        ),
        click.option("--until", metavar="TIME", help="Measurements that began before TIME (UTC)."),
        click.option("--dry-run", is_flag=True, help="Only count the measurements."),
        output_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


def add_quarantine_commands(group: click.Group) -> None:
    """Add the commands to the group ``db``."""
    for command in (quarantine_command, restore_command, delete_command, audit_command):
        group.add_command(command)


@click.command("quarantine")
@click.option("--reason", required=True, help="Shown with each measurement and in the audit trail.")
@scope_options
@click.pass_obj
def quarantine_command(settings: Settings, /, reason: str, **selected: Any) -> None:
    """Mark measurements as implausible, so that they enter no figure, until they are restored.

    All given conditions must hold. TIME is a date, or a date and a time: 2026-03-01T12:00.

    Example: treehammer db quarantine --key 4bc07c79b8b1 --reason "wrong clock" --dry-run
    """
    if not reason.strip() or not reason.isprintable():
        raise ConfigError("must be printable text", where="--reason")
    _change(settings, quarantine.QUARANTINE, "put into quarantine", reason.strip(), selected)


@click.command("restore")
@scope_options
@click.pass_obj
def restore_command(settings: Settings, /, **selected: Any) -> None:
    """Take measurements out of quarantine.

    Example: treehammer db restore --key 4bc07c79b8b1
    """
    _change(settings, quarantine.RESTORE, "restored", "", selected)


@click.command("delete")
@click.option(
    "--checks",
    is_flag=True,
    help="Delete the checks of replicas that --key sent, and take back their marks; measurements stay.",
)
@scope_options
@click.pass_obj
def delete_command(settings: Settings, /, checks: bool, **selected: Any) -> None:
    """Delete measurements; with --campaign alone also the campaign and its jobs.

    Deleted measurements that arrive again are stored again: revoke the key or the campaign's tokens
    first. Stored verdicts stay. Back up the database before.

    Example: treehammer db delete --campaign 3f2a90c1d4e85b76 --dry-run
    """
    if not checks:
        _change(settings, quarantine.DELETE, "deleted", "", selected)
        return
    options = [name for name in ("campaign", "since", "until") if selected[name]]
    if not selected["key"] or options or selected["dry_run"]:
        raise click.UsageError("--checks needs --key, and no other option.")
    _change(settings, quarantine.DELETE_CHECKS, "no longer marked", "", selected)


def _change(
    settings: Settings, action: str, outcome: str, reason: str, selected: dict[str, Any]
) -> None:
    with Store.open(settings.database, create=False) as store:
        scope, title = _parse_scope(store, selected)
        counts = store.count_scope(scope)
        if not counts and action != quarantine.DELETE_CHECKS:
            raise NothingToDoError(f"no measurements of {title}")
        _print_counts(counts, selected["form"])
        if selected["dry_run"]:
            click.echo("dry run: nothing was changed", err=True)
            return
        actor = local_actor()
        now_us = time.time_ns() // 1000
        changed = store.apply_change(DatabaseChange(action, scope, actor, now_us, reason, title))
    click.echo(f"{pluralize(changed, 'measurement')} {outcome}", err=True)


def _print_counts(counts: Sequence[ScopeCount], form: str) -> None:
    print_rows([asdict(count) for count in counts], _COUNT_COLUMNS, form=form)


def _parse_scope(store: Store, selected: dict[str, Any]) -> tuple[ChangeScope, str]:
    """Return the scope, and its description."""
    campaign_id = _find_campaign(store, selected["campaign"]) if selected["campaign"] else ""
    since_us, until_us = (
        parse_time(selected[name], f"--{name}") if selected[name] else None
        for name in ("since", "until")
    )
    scope = ChangeScope(campaign_id, selected["key"], since_us, until_us)
    words = [
        f"campaign {campaign_id}" if campaign_id else "",
        f"key {scope.key_id}" if scope.key_id else "",
        f"since {format_time(since_us)}" if since_us is not None else "",
        f"until {format_time(until_us)}" if until_us is not None else "",
    ]
    title = ", ".join(filter(None, words))
    if not title:
        raise click.UsageError("Give --campaign, --key, --since or --until.")
    return scope, title


def _find_campaign(store: Store, reference: str) -> str:
    """Return a campaign's identity; measurements may be there without their campaign."""
    try:
        return store.campaign(reference).id
    except (ConfigError, NothingToDoError):
        if store.count_measurements(reference):
            return reference
        raise
