"""Commands ``treehammer sites downtimes list | import``."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict

import click

from treehammer.analysis.status.status_rules import load_status_rules
from treehammer.analysis.status.status_update import update_states
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.watch import site_exceptions
from treehammer.sql.watch.state_history import KIND_WORDS
from treehammer.sql.write.store import Store
from treehammer.submit.cli.site_names import (
    complete_sites,
    list_known_sites,
    require_known_sites,
)
from treehammer.submit.cli.sites.sites_commands import sites
from treehammer.submit.sites.downtime_documents import (
    DowntimeDocument,
    DowntimeOptions,
    fetch_document,
    map_hosts,
    parse_downtimes,
)
from treehammer.submit.sites.site_registry import load_sites
from treehammer.tables import TableColumn
from treehammer.terminal import output_options, print_rows
from treehammer.text_formatting import format_time, pluralize

__all__ = ["sites"]

#: Refused entries that are listed.
_MAX_REFUSED_LINES = 10


@sites.group("downtimes")
def downtimes() -> None:
    """Import and list announced downtimes of sites."""


@downtimes.command("list")
@click.option("--all", "show_all", is_flag=True, help="Also downtimes that have ended.")
@output_options
@click.pass_obj
def list_downtimes(settings: Settings, show_all: bool, form: str) -> None:
    """List current and future downtimes.

    Example: treehammer sites downtimes list
    """
    ends_after_us = 0 if show_all else time.time_ns() // 1000
    with Store.open(settings.database, create=False) as store:
        downtime_rows = site_exceptions.list_downtimes(store, ends_after_us=ends_after_us)
    rows = [
        {
            **asdict(row),
            "from": format_time(row.starts_us),
            "until": format_time(row.ends_us),
            "of": KIND_WORDS.get(row.subject_kind, "jobs and storage"),
        }
        for row in downtime_rows
    ]
    columns = (
        TableColumn("site", "site"),
        TableColumn("of", "of"),
        TableColumn("from", "from (UTC)"),
        TableColumn("until", "until"),
        TableColumn("severity", "severity"),
        TableColumn("description", "description"),
    )
    print_rows(rows, columns, form=form)


@downtimes.command("import")
@click.argument("address", metavar="FILE|URL")
@click.option(
    "--site", default="", shell_complete=complete_sites, help="Site of all entries of the document."
)
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
    """Import downtimes from an iCalendar, JSON or XML document, in place of its earlier content.

    GOCDB, OSG Topology and CRIC provide such documents. Downtimes that the document no longer holds
    are withdrawn, unless they have ended. Entries of sites that are neither in the sites file nor
    measured are refused, unless they name a host of a site's doors.

    Example: treehammer sites downtimes import downtimes.json --map T2_XX_SITE=SITE_A
    """
    now_us = time.time_ns() // 1000
    sites_by_name = _parse_map(mapped)
    content = fetch_document(address)
    with Store.open(settings.database) as store:
        known_sites = list_known_sites(store, settings)
        require_known_sites([site] if site else [], known_sites, "--site")
        require_known_sites(sites_by_name.values(), known_sites, "--map")
        hosts = map_hosts(load_sites(settings).values())
        options = DowntimeOptions(source or address, site, sites_by_name, known_sites, hosts)
        document = parse_downtimes(content, options, now_us)
        _print_refused(document, address, known_sites)
        done = site_exceptions.replace_downtimes(store, options.source, document.downtimes, now_us)
        # Everything shows the change at once.
        update_states(store, time.time_ns() // 1000, load_status_rules(settings.status_rules))
    click.echo(
        f"{done.new} new, {done.changed} changed, {done.unchanged} unchanged, "
        f"{done.withdrawn} withdrawn"
    )


def _print_refused(document: DowntimeDocument, address: str, known_sites: Collection[str]) -> None:
    """Print the entries that are not imported.

    Raises:
        ConfigError: nothing is left, since the sites are unknown.
        NothingToDoError: nothing is left, since no entry can be read.
    """
    for line in document.skipped:
        click.echo(f"skipped: {line}", err=True)
    # Typing errors first: a worldwide document lists many sites that are not measured.
    refused = sorted(document.unknown, key=lambda line: "Did you mean" not in line)
    # A service of GOCDB is an entry: each site is named once.
    lines = list({line.partition(": ")[2]: line for line in reversed(refused)}.values())[::-1]
    for line in lines[:_MAX_REFUSED_LINES]:
        click.echo(f"refused: {line}", err=True)
    if len(lines) > _MAX_REFUSED_LINES:
        count = pluralize(len(document.unknown), "entry", "entries")
        click.echo(f"refused: {count} of unknown sites in all", err=True)
    if document.downtimes:
        return
    if document.unknown:
        raise ConfigError(
            f"no site of this document is known; the first is {document.unknown[0]}",
            where=address,
            hint="Name the site of an entry with --map NAME=SITE, or of all with --site SITE. "
            f"Known: {', '.join(sorted(known_sites))}.",
        )
    if document.skipped:
        raise NothingToDoError("no downtime in this document can be read", where=address)


def _parse_map(mapped: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in mapped]
    for name, equals, site in pairs:
        if not (name and equals and site):
            raise click.UsageError("--map expects NAME=SITE.")
    return {name: site for name, _, site in pairs}
