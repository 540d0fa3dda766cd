"""``treehammer datasets verify``: of the datasets here, or of their replicas at sites."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click

from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.cli.commands import datasets
from treehammer.datasets.model.manifest import Manifest
from treehammer.datasets.rucio.rucio_catalogue import RucioCatalogue, file_did
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import RucioDeniedError
from treehammer.errors import CatalogueError, DatasetError, ExitCode
from treehammer.submit.cli import datasets_place_commands
from treehammer.submit.replicas import replica_findings
from treehammer.submit.replicas.replica_selection import (
    find_manifest,
    list_expected_replicas,
    open_rucio_catalogue,
    select_storage,
)
from treehammer.submit.replicas.replica_verification import (
    ReplicaCheck,
    check_replicas,
    worst_check,
)
from treehammer.terminal import TABLE, OutputColumn, output_options, print_rows, progress_bar
from treehammer.text_formatting import pluralize

__all__ = ["datasets"]

_LOCAL_COLUMNS = (
    OutputColumn("name", "dataset"),
    OutputColumn("state", "state"),
    OutputColumn("message", ""),
)
_SITE_COLUMNS = (
    OutputColumn("dataset", "dataset"),
    OutputColumn("site", "site"),
    OutputColumn("door", "door"),
    OutputColumn("state", "state"),
    OutputColumn("good", "files", align_right=True),
    OutputColumn("message", ""),
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
        return _verify_local(names, settings, form)
    if not names:
        raise click.UsageError("--sites needs the NAME of a dataset.")
    catalogue = open_rucio_catalogue(settings)
    where = select_storage(sites, settings, catalogue.rucio if catalogue else None)
    rows, files, marked = [], [], 0
    for name in names:
        manifest = find_manifest(name, settings, catalogue)
        wanted = list_expected_replicas(manifest, where, doors, catalogue)
        found = check_replicas(manifest, wanted, full=full, bars=progress_bar)
        marked += replica_findings.record_findings(manifest, found, settings)
        told = _declare_bad_replicas(manifest, found, catalogue) if declare and catalogue else {}
        rows += [_door_row(manifest, [*of_door], told) for _, of_door in groupby(found, _door_key)]
        files += [_file_row(manifest, one, told) for one in found]
    print_rows(rows if form == TABLE else files, _SITE_COLUMNS, form=form)
    if marked:
        click.echo(f"{pluralize(marked, 'measurement')} of bad replicas marked.", err=True)
    return ExitCode.DONE if all(file["state"] == "good" for file in files) else ExitCode.REGRESSION


def _verify_local(names: Sequence[str], settings: Settings, form: str) -> ExitCode:
    catalogue = FolderCatalogue(settings.datasets_dir)
    unknown = [name for name in names if not catalogue.has(name)]
    if unknown:
        raise catalogue.unknown_dataset_error(unknown[0])
    rows = []
    for name in names or catalogue.names():
        try:
            catalogue.verify(name, bars=progress_bar)
            rows.append({"name": name, "state": "unchanged", "message": ""})
        except DatasetError as error:
            rows.append({"name": name, "state": "refused", "message": str(error)})
    print_rows(rows, _LOCAL_COLUMNS, form=form)
    refused = any(row["state"] == "refused" for row in rows)
    return ExitCode.REGRESSION if refused else ExitCode.DONE


def _door_key(one: ReplicaCheck) -> tuple[str, str]:
    return one.expected.site, one.expected.door


def _door_row(
    manifest: Manifest, found: Sequence[ReplicaCheck], told: dict[ReplicaCheck, str]
) -> dict[str, Any]:
    """A row for people: what is to be said of all the files at a door."""
    most = worst_check(found)
    others = sum(not one.is_good for one in found) - 1
    message = f"{most.expected.file.name}: {most.message}" if not most.is_good else ""
    if others > 0:
        message += f"; and {pluralize(others, 'other file')}"
    declared = dict.fromkeys(told[one] for one in found if one in told)
    return {
        "dataset": manifest.name,
        "site": most.expected.site,
        "door": most.expected.door,
        "state": most.state,
        "good": f"{sum(one.is_good for one in found)} of {len(found)}",
        "message": "; ".join([message, *declared]) if declared else message,
    }


def _file_row(
    manifest: Manifest, one: ReplicaCheck, told: dict[ReplicaCheck, str]
) -> dict[str, Any]:
    """A row for programs."""
    return {
        "dataset": manifest.name,
        "hash": manifest.hash,
        "site": one.expected.site,
        "door": one.expected.door,
        "rse": one.expected.rse,
        "file": one.expected.file.name,
        "url": one.expected.url,
        "state": one.state,
        "message": one.message,
        "reads": one.reads,
        "wrong_reads": one.wrong_reads,
        "declared": told.get(one, ""),
    }


def _declare_bad_replicas(
    manifest: Manifest, found: Sequence[ReplicaCheck], catalogue: RucioCatalogue
) -> dict[ReplicaCheck, str]:
    """Tell Rucio of the replicas that were wrong twice; what came of each."""
    told: dict[ReplicaCheck, str] = {}
    for one in found:
        if one.expected.rse and one.is_proof and not one.is_good:
            did = file_did(manifest.name, one.expected.file.name)
            told[one] = _declare_bad_replica(one, did, catalogue.rucio)
    return told


def _declare_bad_replica(one: ReplicaCheck, did: str, rucio: RucioClient) -> str:
    reason = f"treehammer read it in full twice: {one.message}"
    try:
        try:
            rucio.declare_bad_replica(one.expected.rse, did, reason)
            return "declared bad: Rucio replaces it"
        except RucioDeniedError:
            rucio.declare_suspicious_replica(one.expected.rse, did, reason)
            return "declared suspicious: only an administrator may have it replaced"
    except (CatalogueError, DatasetError) as error:
        return f"not declared: {error.message}"


for _command in datasets_place_commands.COMMANDS:
    datasets.add_command(_command)
