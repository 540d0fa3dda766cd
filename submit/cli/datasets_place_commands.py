"""``treehammer datasets place | remove``: replicas through Rucio, as an ordinary account."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue, ensure_dataset
from treehammer.datasets.model.manifest import Manifest
from treehammer.datasets.rucio import rucio_upload
from treehammer.datasets.rucio.rucio_catalogue import RucioCatalogue
from treehammer.datasets.rucio.rucio_conversions import (
    AccountQuota,
    ReplicationRule,
    Rse,
    RucioDeniedError,
)
from treehammer.datasets.rucio.rucio_upload import (
    COMPLETE,
    DENIED,
    STUCK,
    ReplicationStatus,
    RuleOptions,
)
from treehammer.durations import parse_duration
from treehammer.errors import ExitCode, NothingToDoError
from treehammer.submit.replicas.replica_selection import select_rses
from treehammer.terminal import (
    TABLE,
    OutputColumn,
    make_console,
    on_interrupt,
    output_options,
    print_rows,
    progress_bar,
)

#: What ``--lifetime`` takes for no end.
UNLIMITED_LIFETIME = "forever"

_RULE_COLUMNS = (
    OutputColumn("site", "site"),
    OutputColumn("rse", "storage"),
    OutputColumn("state", "state"),
    OutputColumn("progress", "files", align_right=True),
    OutputColumn("reason", ""),
)


@click.command()
@click.argument("name")
@click.option(
    "--sites",
    required=True,
    help="Names, labels or all, comma separated; or an RSE expression, e.g. 'tier=2&country=UK'.",
)
@click.option(
    "--lifetime",
    default="30d",
    show_default=True,
    help="How long the replicas are wanted, e.g. 90d; or forever. Counts anew when repeated.",
)
@click.option("--comment", default="treehammer", show_default=True, help="Of the rules.")
@click.option("--activity", default="Functional Test", show_default=True, help="Of the rules.")
@click.option(
    "--upload-to",
    default="",
    metavar="RSE",
    help="Where the files are written first [default: the first wanted storage that takes them].",
)
@click.option(
    "--timeout",
    default="10m",
    show_default=True,
    help="Time to wait for stuck replicas when no others make progress.",
)
@click.option("--no-wait", is_flag=True, help="Ask for the replicas, and do not wait for them.")
@output_options
@click.pass_obj
def place(
    settings: Settings,
    /,
    name: str,
    sites: str,
    lifetime: str,
    upload_to: str,
    timeout: str,
    no_wait: bool,
    form: str,
    **of_rules: str,
) -> ExitCode:
    """Have a dataset at sites: write its files once, and let Rucio bring them to each.

    What is there already stays; after an interruption the same command goes on. Leaves with 4 when
    a replica is refused or stays stuck; the others are there nevertheless.

    Example: treehammer datasets place reference-750mb --sites all --lifetime 90d
    """
    lifetime_s = None if lifetime == UNLIMITED_LIFETIME else parse_duration(lifetime, "--lifetime")
    timeout_s = parse_duration(timeout, "--timeout")
    catalogue = RucioCatalogue(settings)
    rses = select_rses(sites, settings, catalogue.rucio)
    manifest = ensure_dataset(name, settings, progress_bar)
    _print_quotas(manifest, rses, catalogue.rucio.list_quotas(), form)
    wish = RuleOptions(lifetime_s, **of_rules)
    with on_interrupt("what Rucio was asked for goes on; the same command follows it again"):
        asked = standings = _create_rules(manifest, rses, wish, upload_to, catalogue, settings)
        if not no_wait:
            with _live_rules(name) as show:
                for latest in rucio_upload.poll_replication(asked, catalogue.rucio, timeout_s):
                    standings = latest
                    show(standings)
    rows = [_rule_row(standing) for standing in standings]
    print_rows(rows, _RULE_COLUMNS, form=form)
    if form == TABLE and any(standing.state == COMPLETE for standing in standings):
        click.echo(f"Rucio says so; see for yourself: treehammer datasets verify {name} --sites …")
    bad = any(standing.state in (STUCK, DENIED) for standing in standings)
    return ExitCode.INFRASTRUCTURE if bad else ExitCode.DONE


def _create_rules(
    manifest: Manifest,
    rses: Sequence[Rse],
    wish: RuleOptions,
    upload_to: str,
    catalogue: RucioCatalogue,
    settings: Settings,
) -> list[ReplicationStatus]:
    rucio = catalogue.rucio
    folder = FolderCatalogue(settings.datasets_dir).folder(manifest.name)
    through = [rucio.fetch_rse(upload_to)] if upload_to else rses
    used = rucio_upload.upload_dataset(manifest, folder, catalogue, through, progress_bar)
    if used and used not in [rse.name for rse in rses]:
        rucio_upload.keep_source_replica(manifest, used, wish, rucio)
    return rucio_upload.request_replicas(manifest, rses, wish, rucio)


# --- what is shown


def _print_quotas(
    manifest: Manifest, rses: Sequence[Rse], quotas: Mapping[str, AccountQuota], form: str
) -> None:
    """What each replica needs and what we may still add, before anything is asked for."""
    if form != TABLE:
        return
    rows = []
    for rse in rses:
        quota = quotas.get(rse.name, AccountQuota(0, 0))
        rows.append(
            {
                "site": rse.site,
                "rse": rse.name,
                "needed": manifest.size,
                "used": quota.used,
                "free": quota.free,
                "writable": rse.writable,
            }
        )
    columns = (
        OutputColumn("site", "site"),
        OutputColumn("rse", "storage"),
        OutputColumn("needed", "needed", decimal, align_right=True),
        OutputColumn("used", "ours there", decimal, align_right=True),
        OutputColumn("free", "we may add", _format_free_space, align_right=True),
        OutputColumn("writable", "takes files", lambda value: "yes" if value else "not now"),
    )
    print_rows(rows, columns, form=form)
    click.echo()


def _format_free_space(free: float) -> str:
    return "any" if math.isinf(free) else decimal(max(0, int(free)))


def _rule_row(standing: ReplicationStatus) -> dict[str, Any]:
    return asdict(standing) | {"progress": f"{standing.files_complete} of {standing.files_total}"}


@contextmanager
def _live_rules(name: str) -> Iterator[Callable[[Sequence[ReplicationStatus]], None]]:
    """Show standings: on a terminal a table that changes in its place, otherwise what changes."""
    screen = make_console()
    if not screen.is_terminal:
        told: dict[str, ReplicationStatus] = {}

        def tell(standings: Sequence[ReplicationStatus]) -> None:
            for now in standings:
                before = told.get(now.rse)
                if before is None or (before.state, before.reason) != (now.state, now.reason):
                    reason = f": {now.reason}" if now.reason else ""
                    click.echo(f"{now.site} {now.rse}: {now.state}{reason}", err=True)
                told[now.rse] = now

        yield tell
        return
    with Live(Text(name), console=screen, transient=True, auto_refresh=False) as live:
        yield lambda standings: live.update(_rule_table(standings), refresh=True)


def _rule_table(standings: Sequence[ReplicationStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _RULE_COLUMNS:
        table.add_column(
            column.title, justify="right" if column.align_right else "left", overflow="fold"
        )
    for standing in standings:
        row = _rule_row(standing)
        table.add_row(*(Text(str(row[column.key])) for column in _RULE_COLUMNS))
    return table


# --- taking back


@click.command()
@click.argument("name")
@click.option(
    "--sites",
    default="",
    help="Only there: names, labels or all, comma separated; or an RSE expression.",
)
@output_options
@click.pass_obj
def remove(settings: Settings, /, name: str, sites: str, form: str) -> ExitCode:
    """Withdraw our own rules for a dataset; Rucio removes what no other rule holds.

    The dataset here, and what others have asked for, stay. Leaves with 4 when a rule may not be
    withdrawn.

    Example: treehammer datasets remove reference-750mb --sites EXAMPLE-T2
    """
    rucio = RucioCatalogue(settings).rucio
    rules = rucio.list_rules(name)
    if sites:
        wanted = {rse.name for rse in select_rses(sites, settings, rucio)}
        rules = tuple(rule for rule in rules if rule.expression in wanted)
    if not rules:
        raise NothingToDoError(f"{rucio.account} has no rule for {rucio.scope}:{name} there")
    rows = []
    for rule in rules:
        kept = _withdraw_rule(rule, rucio.delete_rule)
        state = "kept" if kept else "withdrawn"
        rows.append({"rse": rule.expression, "rule": rule.id, "state": state, "reason": kept})
    columns = (
        OutputColumn("rse", "storage"),
        OutputColumn("state", "rule"),
        OutputColumn("reason", ""),
    )
    print_rows(rows, columns, form=form)
    return ExitCode.INFRASTRUCTURE if any(row["reason"] for row in rows) else ExitCode.DONE


def _withdraw_rule(rule: ReplicationRule, withdraw: Callable[[ReplicationRule], None]) -> str:
    """Withdraw a rule; why it stays, '' when it does not."""
    try:
        withdraw(rule)
    except RucioDeniedError as error:
        ends = "never" if rule.expires_at is None else "by itself"
        return f"{error.message}; it ends {ends}, or an administrator removes it"
    return ""


COMMANDS = (place, remove)
