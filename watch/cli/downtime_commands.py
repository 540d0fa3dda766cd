"""Commands ``treehammer sites downtimes list | import``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import Settings
from treehammer.sql.cli import open_store, pass_store
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import SITE, TEXT, print_remarks, prints_rows
from treehammer.text_formatting import format_time
from treehammer.watch.cli.site_status_commands import evaluate_again

if TYPE_CHECKING:
    from treehammer.sql.write.store import Store

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
