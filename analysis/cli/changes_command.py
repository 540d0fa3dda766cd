"""The verb ``changes``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from treehammer.analysis.alarms.alarm_overview import require_measured_release
from treehammer.analysis.changes import change_text
from treehammer.analysis.changes.change_terms import WINDOW_DAYS
from treehammer.analysis.changes.change_update import update_changes
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.config import Settings
from treehammer.sql.read.overview_queries import (
    JOB_SITE,
    STORAGE_SITE,
    build_unknown_site_error,
    list_sites,
)
from treehammer.sql.watch.change_points import fetch_change_points
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import output_options, print_rows

_COLUMNS = (
    TableColumn("since", "since"),
    TableColumn("state", "state"),
    TableColumn("points_at", "points at"),
    TableColumn("quantity", "quantity"),
    TableColumn("test", "test"),
    TableColumn("change", "change", is_number=True),
    TableColumn("interval", "95 % interval"),
    TableColumn("cause", "changed on that day"),
    TableColumn("id", "change id"),
)


@click.command("changes")
@click.option("--site", default="", help="Changes of a site, as site of the jobs or storage.")
@click.option("--release", default="", help="Changes of a ROOT release.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    help=f"First day of the changes [default: {WINDOW_DAYS} days ago].",
)
@click.option("--update", is_flag=True, help="Search the newest results first.")
@click.option("--rebuild", is_flag=True, help="Update from all results of the last 90 days.")
@output_options
@click.pass_obj
def changes_command(
    settings: Settings,
    site: str,
    release: str,
    since: datetime | None,
    update: bool,
    rebuild: bool,
    form: str,
) -> None:
    """List what became slower or faster, since when, and what it points at.

    Changes are steps in daily series: each release relative to a pinned control release in the same
    jobs, and the control itself. Run with --update once a day, such as from cron.

    \b
    Example: treehammer changes --update
             treehammer changes --site SITE_A --since 2026-03-01
    """
    now = datetime.now(UTC)
    first_day = since.date() if since else now.date() - timedelta(days=WINDOW_DAYS - 1)
    with Store.open(settings.database, create=False) as store:
        if update or rebuild:
            control = settings.control_release
            result = update_changes(store, now, control=control, rebuild=rebuild)
            click.echo(
                f"Read {result.days} days again; {result.series} series; {result.changes} changes, "
                f"{result.new} of them new.",
                err=True,
            )
            for identity, sites in result.nodes_by.items():
                click.echo(
                    f"Host names change at {', '.join(sorted(sites))}: nodes by {identity}.",
                    err=True,
                )
        changes = fetch_change_points(store, day_to_number(first_day))
        chosen = change_text.select_changes(changes, site, release)
        if not chosen:
            _require_known(store, site, release)
    print_rows([change_text.make_change_record(change) for change in chosen], _COLUMNS, form=form)
    if not chosen:
        click.echo("No changes found.", err=True)


def _require_known(store: Store, site: str, release: str) -> None:
    """Check that the names of a site and a release are not mistyped; '' is none."""
    if site and not any(site in list_sites(store, by) for by in (JOB_SITE, STORAGE_SITE)):
        raise build_unknown_site_error(store, site)
    if release:
        require_measured_release(store, release)
