"""``treehammer datasets verify``: checks local datasets, or replicas at sites.

Verified replicas are recorded; measurements that read bad ones are flagged.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import click

from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.cli.commands import complete_datasets, datasets
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import RucioDeniedError
from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue
from treehammer.errors import CatalogueError, DatasetError, ExitCode
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.write.store import Store
from treehammer.submit.cli import datasets_place_commands
from treehammer.submit.cli.command_options import complete_sites
from treehammer.submit.sites.replica_selection import (
    find_manifest,
    list_expected_replicas,
    open_rucio_catalogue,
    select_storage,
)
from treehammer.submit.sites.replicas import ReplicaCheck, check_replicas, worst_check
from treehammer.tables import TableColumn
from treehammer.terminal import TABLE, output_options, print_rows, progress_bar
from treehammer.text_formatting import pluralize

__all__ = ["datasets"]

_LOCAL_COLUMNS = (
    TableColumn("name", "dataset"),
    TableColumn("state", "state"),
    TableColumn("message", ""),
)
_SITE_COLUMNS = (
    TableColumn("dataset", "dataset"),
    TableColumn("site", "site"),
    TableColumn("door", "door"),
    TableColumn("state", "state"),
    TableColumn("good", "files", is_number=True),
    TableColumn("message", ""),
)


@datasets.command("verify")
@click.argument("names", nargs=-1, metavar="NAME...", shell_complete=complete_datasets)
@click.option(
    "--sites",
    shell_complete=complete_sites,
    default="",
    help="Check the replicas of these sites through their doors: names, labels or all, comma "
    "separated; or an RSE expression.",
)
@click.option("--door", "doors", multiple=True, help="Only doors with this name; may be repeated.")
@click.option(
    "--full", is_flag=True, help="Read every byte instead of trusting the door's size and checksum."
)
@click.option(
    "--declare",
    is_flag=True,
    help="With --full: declare replicas that failed twice bad in Rucio, so that they are replaced.",
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
    """Compare datasets with their manifests: local files, or replicas at sites.

    Without NAME all local datasets are checked, every byte of them. At a site, the door reports size and
    adler32; with --full the files are read. The exit code is 1 if a file differs or cannot be checked.

    \b
    Example: treehammer datasets verify reference-small
             treehammer datasets verify reference-750mb --sites all --full
    """
    for is_wrong, message in (
        (declare and not full, "--declare needs --full: a door's own report is not enough."),
        (not sites and (full or doors), "--full and --door need --sites."),
        (sites and not names, "--sites needs the NAME of a dataset."),
    ):
        if is_wrong:
            raise click.UsageError(message)
    if not sites:
        return _verify_local(names, settings, form)
    return _verify_replicas(names, sites, doors, settings, form, full=full, declare=declare)


def _verify_replicas(
    names: Sequence[str],
    sites: str,
    doors: Sequence[str],
    settings: Settings,
    form: str,
    *,
    full: bool,
    declare: bool,
) -> ExitCode:
    catalogue = open_rucio_catalogue(settings)
    storage = select_storage(sites, settings, catalogue.rucio if catalogue else None)
    declaring_catalogue = catalogue if declare else None
    rows, files, marked = [], [], 0
    for name in names:
        manifest = find_manifest(name, settings, catalogue)
        expected = list_expected_replicas(manifest, storage, doors, catalogue)
        checks = check_replicas(manifest, expected, full=full, bars=progress_bar)
        marked += record_findings(manifest, checks, settings)
        declared = _declare_bad_replicas(manifest, checks, declaring_catalogue)
        rows += [_door_row(manifest, [*g], declared) for _, g in groupby(checks, _door_key)]
        files += [_file_row(manifest, check, declared) for check in checks]
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


def _door_key(check: ReplicaCheck) -> tuple[str, str]:
    return check.expected.site, check.expected.door


def _door_row(
    manifest: Manifest, checks: Sequence[ReplicaCheck], declared: dict[ReplicaCheck, str]
) -> dict[str, Any]:
    """Summarize the checks at one door in a table row."""
    worst = worst_check(checks)
    other_bad = sum(not check.is_good for check in checks) - 1
    message = f"{worst.expected.file.name}: {worst.message}" if not worst.is_good else ""
    if other_bad > 0:
        message += f"; and {pluralize(other_bad, 'other file')}"
    declarations = dict.fromkeys(declared[check] for check in checks if check in declared)
    return {
        "dataset": manifest.name,
        "site": worst.expected.site,
        "door": worst.expected.door,
        "state": worst.state,
        "good": f"{sum(check.is_good for check in checks)} of {len(checks)}",
        "message": "; ".join([message, *declarations]) if declarations else message,
    }


def _file_row(
    manifest: Manifest, check: ReplicaCheck, declared: dict[ReplicaCheck, str]
) -> dict[str, Any]:
    """Return the row of one file for JSON and CSV output."""
    return {
        "dataset": manifest.name,
        "hash": manifest.hash,
        "site": check.expected.site,
        "door": check.expected.door,
        "rse": check.expected.rse,
        "file": check.expected.file.name,
        "url": check.expected.url,
        "state": check.state,
        "message": check.message,
        "reads": check.reads,
        "wrong_reads": check.wrong_reads,
        "declared": declared.get(check, ""),
    }


def _declare_bad_replicas(
    manifest: Manifest, checks: Sequence[ReplicaCheck], catalogue: RucioCatalogue | None
) -> dict[ReplicaCheck, str]:
    """Declare replicas that failed twice bad in Rucio; return the result of each declaration."""
    declared: dict[ReplicaCheck, str] = {}
    if catalogue is None:
        return declared
    for check in checks:
        if check.expected.rse and check.is_proof and not check.is_good:
            did = catalogue.rucio.names.file(manifest.name, check.expected.file.name)
            declared[check] = _declare_bad_replica(check, did, catalogue.rucio)
    return declared


def _declare_bad_replica(check: ReplicaCheck, did: str, rucio: RucioClient) -> str:
    reason = f"read in full twice by treehammer: {check.message}"
    try:
        try:
            rucio.declare_bad_replica(check.expected.rse, did, reason)
            return "declared bad: Rucio replaces it"
        except RucioDeniedError:
            rucio.declare_suspicious_replica(check.expected.rse, did, reason)
            return "declared suspicious: only an administrator can have it replaced"
    except (CatalogueError, DatasetError) as error:
        return f"not declared: {error.message}"


for _command in datasets_place_commands.COMMANDS:
    datasets.add_command(_command)


def record_findings(manifest: Manifest, checks: Iterable[ReplicaCheck], settings: Settings) -> int:
    """Store the results of full reads, good and bad, and flag affected measurements.

    Args:
        manifest: manifest of the dataset.
        checks: results of the verification.
        settings: settings with the results database.

    Returns:
        Number of newly flagged measurements.
    """
    now_us = int(time.time() * 1e6)
    rows = [
        ReplicaRow(
            id=str(uuid.uuid4()),
            found_us=now_us,
            dataset=manifest.name,
            dataset_hash=manifest.hash,
            site=check.expected.site,
            door=check.expected.door,
            file=check.expected.file.name,
            url=check.expected.url,
            good=check.is_good,
            message=check.message,
        )
        for check in checks
        if check.is_proof
    ]
    if not rows:
        return 0
    with Store.open(settings.database) as store:
        store.add_replicas(rows)
        return store.mark_bad_replicas()
