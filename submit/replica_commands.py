"""``treehammer datasets verify``: of the datasets here, or of their replicas at sites."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click

from treehammer.config import Settings
from treehammer.datasets.catalogue import FolderCatalogue
from treehammer.datasets.commands import datasets
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.rucio import Rucio
from treehammer.datasets.rucio_answers import Denied
from treehammer.datasets.rucio_catalogue import RucioCatalogue, did_of
from treehammer.errors import CatalogueError, DatasetError, ExitCode
from treehammer.submit import placing_commands, replica_findings
from treehammer.submit.replica_checks import Checked, check, worst
from treehammer.submit.replica_places import chosen, manifest_of, places, rucio_catalogue
from treehammer.terminal import TABLE, Column, counted, output_options, print_rows, progress_bar

__all__ = ["datasets"]

_HERE = (Column("name", "dataset"), Column("state", "state"), Column("message", ""))
_AT_SITES = (
    Column("dataset", "dataset"),
    Column("site", "site"),
    Column("door", "door"),
    Column("state", "state"),
    Column("good", "files", right=True),
    Column("message", ""),
)


@datasets.command("verify")
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option(
    "--sites",
    default="",
    help="Compare the replicas of these sites, at their doors: names, labels or all, comma "
    "separated; or an RSE expression.",
)
@click.option("--door", "doors", multiple=True, help="Only doors of this name; may be repeated.")
@click.option("--full", is_flag=True, help="Read every byte, and do not believe the door.")
@click.option(
    "--declare",
    is_flag=True,
    help="With --full: tell Rucio of replicas that were wrong twice, so that they are replaced.",
)
@output_options
@click.pass_obj
def verify(
    settings: Settings,
    names: tuple[str, ...],
    sites: str,
    doors: tuple[str, ...],
    full: bool,
    declare: bool,
    form: str,
) -> ExitCode:
    """Compare datasets with their manifests: every byte of those here, or replicas at sites.

    Without NAME all that are here are compared. A door is asked for size and adler32; with --full
    all is read through it. Leaves with 1 when something is not what its manifest says, or cannot be
    seen.

    \b
    Example: treehammer datasets verify reference-small
             treehammer datasets verify reference-750mb --sites all --full
    """
    if declare and not full:
        raise click.UsageError("--declare needs --full: what doors tell is not proof enough.")
    if not sites:
        if full or doors:
            raise click.UsageError("--full and --door are for replicas at sites: --sites.")
        return _verify_here(names, settings, form)
    if not names:
        raise click.UsageError("--sites needs the NAME of a dataset.")
    catalogue = rucio_catalogue(settings)
    where = chosen(sites, settings, catalogue.rucio if catalogue else None)
    rows, files, marked = [], [], 0
    for name in names:
        manifest = manifest_of(name, settings, catalogue)
        wanted = places(manifest, where, doors, catalogue)
        found = check(manifest, wanted, full=full, bars=progress_bar)
        marked += replica_findings.record(manifest, found, settings)
        told = _declare(manifest, found, catalogue) if declare and catalogue else {}
        rows += [_at_door(manifest, [*of_door], told) for _, of_door in groupby(found, _door)]
        files += [_file(manifest, one, told) for one in found]
    print_rows(rows if form == TABLE else files, _AT_SITES, form=form)
    if marked:
        click.echo(f"{counted(marked, 'measurement')} of bad replicas marked.", err=True)
    return ExitCode.DONE if all(file["state"] == "good" for file in files) else ExitCode.REGRESSION


def _verify_here(names: Sequence[str], settings: Settings, form: str) -> ExitCode:
    catalogue = FolderCatalogue(settings.datasets_dir)
    unknown = [name for name in names if not catalogue.has(name)]
    if unknown:
        raise catalogue.unknown(unknown[0])
    rows = []
    for name in names or catalogue.names():
        try:
            catalogue.verify(name, bars=progress_bar)
            rows.append({"name": name, "state": "unchanged", "message": ""})
        except DatasetError as error:
            rows.append({"name": name, "state": "refused", "message": str(error)})
    print_rows(rows, _HERE, form=form)
    refused = any(row["state"] == "refused" for row in rows)
    return ExitCode.REGRESSION if refused else ExitCode.DONE


def _door(one: Checked) -> tuple[str, str]:
    return one.place.site, one.place.door


def _at_door(
    manifest: Manifest, found: Sequence[Checked], told: dict[Checked, str]
) -> dict[str, Any]:
    """A row for people: what is to be said of all the files at a door."""
    most = worst(found)
    others = sum(not one.good for one in found) - 1
    message = f"{most.place.file.name}: {most.message}" if not most.good else ""
    if others > 0:
        message += f"; and {counted(others, 'other file')}"
    declared = dict.fromkeys(told[one] for one in found if one in told)
    return {
        "dataset": manifest.name,
        "site": most.place.site,
        "door": most.place.door,
        "state": most.state,
        "good": f"{sum(one.good for one in found)} of {len(found)}",
        "message": "; ".join([message, *declared]) if declared else message,
    }


def _file(manifest: Manifest, one: Checked, told: dict[Checked, str]) -> dict[str, Any]:
    """A row for programs."""
    return {
        "dataset": manifest.name,
        "hash": manifest.hash,
        "site": one.place.site,
        "door": one.place.door,
        "rse": one.place.rse,
        "file": one.place.file.name,
        "url": one.place.url,
        "state": one.state,
        "message": one.message,
        "reads": one.reads,
        "wrong_reads": one.wrong_reads,
        "declared": told.get(one, ""),
    }


def _declare(
    manifest: Manifest, found: Sequence[Checked], catalogue: RucioCatalogue
) -> dict[Checked, str]:
    """Tell Rucio of the replicas that were wrong twice; what came of each."""
    told: dict[Checked, str] = {}
    for one in found:
        if one.place.rse and one.is_proof and not one.good:
            did = did_of(manifest.name, one.place.file.name)
            told[one] = _declared(one, did, catalogue.rucio)
    return told


def _declared(one: Checked, did: str, rucio: Rucio) -> str:
    reason = f"treehammer read it in full twice: {one.message}"
    try:
        try:
            rucio.declare_bad(one.place.rse, did, reason)
            return "declared bad: Rucio replaces it"
        except Denied:
            rucio.declare_suspicious(one.place.rse, did, reason)
            return "declared suspicious: only an administrator may have it replaced"
    except (CatalogueError, DatasetError) as error:
        return f"not declared: {error.message}"


for _command in placing_commands.COMMANDS:
    datasets.add_command(_command)
