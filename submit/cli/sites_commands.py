"""Commands ``treehammer sites list | check | import | schema | downtimes``."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from treehammer.analysis.status.site_status import update_states
from treehammer.analysis.status.status_rules import load_status_rules
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.doors import ProbeTarget
from treehammer.errors import ConfigError, ExitCode, NothingToDoError
from treehammer.sql.watch import state_history
from treehammer.sql.watch.state_history import KIND_WORDS
from treehammer.sql.write.store import Store
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.cli.command_options import list_known_sites
from treehammer.submit.planning.site_selection import load_uses
from treehammer.submit.sites import cric, site_model, sites_file
from treehammer.submit.sites.downtime_documents import (
    DowntimeOptions,
    fetch_document,
    map_hosts,
    parse_downtimes,
)
from treehammer.submit.sites.site_model import Ceilings, LoadPermission, Site
from treehammer.submit.sites.site_probes import (
    PROBE_FAILED,
    probe_credentials,
    probe_sites,
)
from treehammer.submit.sites.site_registry import ALL_SITES, load_sites, select_sites
from treehammer.tables import Row, TableColumn, hidden_columns
from treehammer.terminal import (
    SITE,
    TABLE,
    CommandOutput,
    output_form,
    print_remarks,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import format_time, pluralize, split_list


def _format_finding(trial: Row) -> str:
    finding, remedy = trial["finding"], trial["remedy"]
    return f"{finding.rstrip('.')}. {remedy}" if remedy else str(finding)


_SITE_COLUMNS = (
    TableColumn("site", "site"),
    TableColumn("batch", "batch system"),
    TableColumn("door_name", "door"),
    TableColumn("door_prefix", "prefix"),
    TableColumn("door_rse", "RSE"),
    TableColumn("storage", "storage"),
    TableColumn("labels", "labels", ", ".join),
    TableColumn("ceilings", "at most", lambda values: Ceilings(**values).describe()),
    TableColumn("door_load", "load tests", lambda values: LoadPermission(**values).describe()),
    *hidden_columns("requirements", "grid_resource", "door_protocol", "door_middleware"),
    *hidden_columns("door_version", "door_settings", "door_token_pools"),
)
_CHECK_COLUMNS = (
    TableColumn("site", "site"),
    TableColumn("check", "check"),
    TableColumn("result", "result"),
    TableColumn("rtt_s", "round trip", lambda value: f"{1000 * value:.2f} ms", is_number=True),
    TableColumn("server", "server"),
    TableColumn("finding", "finding", format_row=_format_finding),
    *hidden_columns("remedy"),
)
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


@click.group()
def sites() -> None:
    """Show and check the sites where jobs run."""


@sites.command("list")
@prints_rows(*_SITE_COLUMNS)
@click.pass_obj
def list_sites(settings: Settings) -> list[dict[str, Any]]:
    """List sites with their doors, batch systems, labels and ceilings.

    Example: treehammer sites list
    """
    return [row for site in load_sites(settings).values() for row in _door_rows(site)]


def _door_rows(site: Site) -> list[dict[str, Any]]:
    shared = {
        "site": site.name,
        "batch": site.batch,
        "requirements": site.requirements,
        "grid_resource": site.grid_resource,
        "storage": site.storage,
        "labels": list(site.labels),
        "ceilings": site.ceilings.model_dump(),
    }
    return [
        shared | {f"door_{key}": value for key, value in door.model_dump().items()}
        for door in site.doors
    ]


@sites.command()
@click.argument("names", metavar="[SITES]", default=ALL_SITES, type=SITE)
@click.option(
    "--dataset",
    default="",
    help="Read the first file of this dataset through each door [default: any file].",
)
@prints_rows(*_CHECK_COLUMNS)
@click.pass_obj
def check(settings: Settings, names: str, dataset: str) -> CommandOutput:
    """Check each door and batch system by using it, and write a small file where load tests may.

    SITES are names, labels (label:WORD) or all, comma separated. The exit code is 1 if a check fails.

    Example: treehammer sites check label:near --dataset reference-750mb
    """
    chosen = select_sites(split_list(names), settings, option="SITES")
    if not chosen:
        raise NothingToDoError("no site given", hint="Try: treehammer sites check all")
    trials = [
        *probe_credentials(chosen, os.environ),
        *probe_sites(chosen, _make_target(dataset, settings), settings, progress_bar),
    ]
    uses = load_uses(settings)
    remarks = []
    for site in chosen:
        if reason := uses.describe_restrictions(site.name):
            remarks.append(f"Site {site.name}: {reason}.")
        remarks += [
            f"Door {use.site}: {use.describe()}." for use in uses.restricted_doors(site.name)
        ]
    failed = sum(trial.result == PROBE_FAILED for trial in trials)
    if output_form() == TABLE:
        if any(not site.is_local for site in chosen):
            remarks.append("Only a job can check the interpreter, CVMFS and software of the nodes.")
        remarks.append(f"{failed} of {pluralize(len(trials), 'check')} failed")
    code = ExitCode.REGRESSION if failed else ExitCode.DONE
    return CommandOutput(trials, remarks=remarks, exit_code=code)


def _make_target(dataset: str, settings: Settings) -> ProbeTarget:
    if not dataset:
        return ProbeTarget()
    manifest = FolderCatalogue(settings.datasets_dir).manifest(dataset)
    first = manifest.files[0]
    return ProbeTarget(f"{manifest.name}/{first.name}", first.size)


@sites.group("import")
def import_sites() -> None:
    """Create a sites file from public catalogs."""


@import_sites.command("cric")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--pool", default="grid", show_default=True, help="HTCondor pool for the jobs.")
@click.option(
    "--requirements",
    default="",
    metavar="CLASSAD",
    help="Selects a site's machines in the pool; {site} stands for its name. By default compute "
    "elements from a pandaqueue document become grid resources.",
)
@click.option(
    "--storage-type",
    default="DATADISK",
    show_default=True,
    help="Type of the storage areas that become doors; '' for any on disk.",
)
@click.option("--path-prefix", default="", help="Folder of datasets within each storage area.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a new sites file.")
def import_cric(
    files: tuple[Path, ...],
    pool: str,
    requirements: str,
    storage_type: str,
    path_prefix: str,
    output: Path | None,
) -> None:
    """Create sites from JSON documents of CRIC, the experiments' site catalog.

    FILES are the JSON documents of ddmendpoint, pandaqueue, site and core/service (?json). Entries that
    cannot be imported are listed.

    Example: treehammer sites import cric ddmendpoint.json site.json -o sites.toml
    """
    if output is not None and output.exists():
        raise ConfigError("exists already", where=str(output), hint="Name a new file.")
    options = cric.CricOptions(pool, requirements, storage_type, path_prefix)
    imported = cric.import_sites(files, options)
    print_remarks(f"skipped: {line}" for line in imported.skipped)
    if not imported.sites:
        raise NothingToDoError("no site in these documents has a door that ROOT can open")
    pools = [HTCondorPool(pool)]
    if output is None:
        click.echo(
            sites_file.format_sites_file(imported.sites, pools, Path("sites.toml")), nl=False
        )
        return
    try:
        sites_file.write_sites_file(imported.sites, pools, output)
    except OSError as error:
        raise ConfigError(f"cannot be written ({error.strerror})", where=str(output)) from error
    click.echo(f"{pluralize(len(imported.sites), 'site')} in {output}")


@sites.command()
def schema() -> None:
    """Print the JSON Schema of sites.toml, for editors.

    Example: treehammer sites schema > sites.schema.json
    """
    click.echo(json.dumps(site_model.build_json_schema(), indent=1, sort_keys=True))


@sites.group("downtimes")
def downtimes() -> None:
    """Import and list announced downtimes of sites."""


@downtimes.command("list")
@click.option("--all", "show_all", is_flag=True, help="Also downtimes that have ended.")
@prints_rows(*_DOWNTIME_COLUMNS)
@click.pass_obj
def list_downtimes(settings: Settings, show_all: bool) -> list[dict[str, Any]]:
    """List current and future downtimes.

    Example: treehammer sites downtimes list
    """
    ends_after_us = 0 if show_all else time.time_ns() // 1000
    with Store.open(settings.database, create=False) as store:
        rows = state_history.list_downtimes(store, ends_after_us=ends_after_us)
    return [
        {
            **asdict(row),
            "from": format_time(row.starts_us),
            "until": format_time(row.ends_us),
            "of": KIND_WORDS.get(row.subject_kind, "jobs and storage"),
        }
        for row in rows
    ]


@downtimes.command("import")
@click.argument("address", metavar="FILE|URL")
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
        SITE.require([site] if site else [], known_sites, "--site")
        SITE.require(sites_by_name.values(), known_sites, "--map")
        hosts = map_hosts(load_sites(settings).values())
        options = DowntimeOptions(source or address, site, sites_by_name, known_sites, hosts)
        document = parse_downtimes(content, options, now_us)
        print_remarks(document.list_refused())
        document.require_downtimes(address, known_sites)
        done = state_history.replace_downtimes(store, options.source, document.downtimes, now_us)
        # Everything shows the change at once.
        update_states(store, time.time_ns() // 1000, load_status_rules(settings.status_rules))
    click.echo(
        f"{done.new} new, {done.changed} changed, {done.unchanged} unchanged, "
        f"{done.withdrawn} withdrawn"
    )


def _parse_map(mapped: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in mapped]
    for name, equals, site in pairs:
        if not (name and equals and site):
            raise click.UsageError("--map expects NAME=SITE.")
    return {name: site for name, _, site in pairs}
