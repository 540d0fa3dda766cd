"""Commands ``treehammer sites list | check | schema``, and those that verticals add."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from treehammer.config import Settings
from treehammer.errors import ExitCode, NothingToDoError
from treehammer.tables import TableColumn, format_finding, hidden_columns
from treehammer.terminal import SITE, CommandOutput, prints_rows, progress_bar
from treehammer.text_formatting import parse_duration, pluralize, split_list
from treehammer.verticals import import_parts

if TYPE_CHECKING:
    from treehammer.datasets.doors import ProbeTarget
    from treehammer.submit.batch.interface import ProbeResult
    from treehammer.submit.sites.site_model import Site


def _describe_ceilings(values: Mapping[str, Any]) -> str:
    from treehammer.submit.sites.site_model import Ceilings

    return Ceilings(**values).describe()


def _describe_load(values: Mapping[str, Any]) -> str:
    from treehammer.submit.sites.site_model import LoadPermission

    return LoadPermission.model_construct(**values).describe()


_SITE_COLUMNS = (
    TableColumn("site", "site"),
    TableColumn("batch", "batch system"),
    TableColumn("door_name", "door"),
    TableColumn("door_prefix", "prefix"),
    TableColumn("door_rse", "RSE"),
    TableColumn("storage", "storage"),
    TableColumn("labels", "labels", ", ".join),
    TableColumn("ceilings", "at most", _describe_ceilings),
    TableColumn("door_load", "load tests", _describe_load),
    *hidden_columns("requirements", "grid_resource", "door_protocol", "door_middleware"),
    *hidden_columns("door_version", "door_settings", "door_cache", "door_token_pools"),
)
_CHECK_COLUMNS = (
    TableColumn("site", "site"),
    TableColumn("check", "check"),
    TableColumn("result", "result"),
    TableColumn("rtt_s", "round trip", lambda value: f"{1000 * value:.2f} ms", is_number=True),
    TableColumn("server", "server"),
    TableColumn("finding", "finding", format_row=format_finding),
    *hidden_columns("remedy"),
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
    from treehammer.submit.sites.site_registry import load_sites

    keys = {"batch", "requirements", "grid_resource", "storage", "labels", "ceilings"}
    return [
        {"site": site.name, **site.model_dump(include=keys, by_alias=False)}
        | {f"door_{key}": value for key, value in door.model_dump().items()}
        for site in load_sites(settings).values()
        for door in site.doors
    ]


@sites.command()
@click.argument("names", metavar="[SITES]", default="all", type=SITE)
@click.option(
    "--dataset",
    default="",
    help="Read the first file of this dataset through each door [default: any file].",
)
@click.option(
    "--wait",
    default="2m",
    show_default=True,
    metavar="TIME",
    help="How long a job that checks the node may take at each site, e.g. 1h; 0 sends none.",
)
@prints_rows(*_CHECK_COLUMNS)
@click.pass_obj
def check(settings: Settings, names: str, dataset: str, wait: str) -> CommandOutput:
    """Check each door and batch system by using it, and a node of each site by a job.

    Where load tests may write, a small file is written and removed. SITES are names, labels (label:WORD)
    or all, comma separated. The exit code is 1 if a check fails.

    Example: treehammer sites check label:near --dataset reference-750mb
    """
    from treehammer.submit.batch.interface import PROBE_FAILED
    from treehammer.submit.sites.site_probes import probe_credentials, probe_sites
    from treehammer.submit.sites.site_registry import select_sites
    from treehammer.submit.tools.node_probes import probe_nodes

    selection = select_sites(split_list(names), settings, option="SITES")
    if not selection:
        raise NothingToDoError("no site given", hint="Try: treehammer sites check all")
    wait_s = 0 if wait == "0" else parse_duration(wait, "--wait")
    trials = [
        *probe_credentials(selection, os.environ),
        *probe_sites(selection, _make_target(dataset, settings), settings, progress_bar),
    ]
    if wait_s:
        trials += probe_nodes(_select_reachable(selection, trials), settings, wait_s, progress_bar)
    failed = sum(trial.result == PROBE_FAILED for trial in trials)
    summary = [f"{failed} of {pluralize(len(trials), 'check')} failed"]
    if not all(site.is_local for site in selection):
        checked = f"{'' if wait_s else 'the interpreter, '}CVMFS and the software"
        summary.insert(0, f"Only the jobs of a test can check {checked} of the nodes.")
    code = ExitCode.REGRESSION if failed else ExitCode.DONE
    remarks = [*_list_restrictions(selection, settings)]
    return CommandOutput(trials, remarks=remarks, summary=summary, exit_code=code)


def _select_reachable(selection: Sequence[Site], trials: Sequence[ProbeResult]) -> list[Site]:
    """Select the sites whose pools did not fail."""
    from treehammer.submit.batch.interface import PROBE_FAILED

    silent = {trial.site for trial in trials if trial.result == PROBE_FAILED}
    return [site for site in selection if f"pool {site.pool}" not in silent]


def _list_restrictions(selection: Sequence[Site], settings: Settings) -> Iterator[str]:
    """Describe the sites and doors that may not be used by their states."""
    from treehammer.submit.planning.site_selection import load_uses

    uses = load_uses(settings)
    for site in selection:
        if reason := uses.describe_restrictions(site.name):
            yield f"Site {site.name}: {reason}."
        for use in uses.restricted_doors(site.name):
            yield f"Door {use.site}: {use.describe()}."


def _make_target(dataset: str, settings: Settings) -> ProbeTarget:
    from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
    from treehammer.datasets.doors import ProbeTarget

    if not dataset:
        return ProbeTarget()
    manifest = FolderCatalogue(settings.datasets_dir).manifest(dataset)
    first = manifest.files[0]
    return ProbeTarget(f"{manifest.name}/{first.name}", first.size)


@sites.command()
def schema() -> None:
    """Print the JSON Schema of sites.toml, for editors.

    Example: treehammer sites schema > sites.schema.json
    """
    from treehammer.submit.sites.site_model import build_json_schema

    click.echo(json.dumps(build_json_schema(), indent=1, sort_keys=True))


for part in import_parts("site_commands"):
    for command in part.COMMANDS:
        sites.add_command(command)
