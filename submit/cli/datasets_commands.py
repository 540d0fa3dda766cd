"""Commands ``treehammer datasets place | remove | verify``.

Replicas are placed through an ordinary Rucio account.  Verified replicas are recorded; measurements
that read bad ones are flagged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from treehammer.config import Settings
from treehammer.datasets.cli import datasets
from treehammer.errors import DatasetError, ExitCode, NothingToDoError
from treehammer.submit.cli.command_options import include_option
from treehammer.submit.planning import INCLUDE_OPTION
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import (
    DATASET,
    DURATION,
    SITE,
    CommandOutput,
    TextTable,
    on_interrupt,
    print_early,
    print_remarks,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import format_size, parse_duration, pluralize

if TYPE_CHECKING:
    from treehammer.datasets.manifest import Manifest
    from treehammer.datasets.rucio.rucio_client import RucioClient
    from treehammer.datasets.rucio.rucio_conversions import ReplicationRule, Rse, RuleOptions
    from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue
    from treehammer.datasets.rucio.rucio_replication import ReplicationStatus
    from treehammer.submit.sites.replicas import ReplicaCheck

_RULE_COLUMNS = (
    TableColumn("site", "site"),
    TableColumn("rse", "storage"),
    TableColumn("state", "state"),
    TableColumn("progress", "files", is_number=True),
    TableColumn("reason", ""),
    *hidden_columns("files_complete", "files_total"),
)
_QUOTA_COLUMNS = (
    TableColumn("site", "site"),
    TableColumn("rse", "storage"),
    TableColumn("needed", "needed", format_size, is_number=True),
    TableColumn("used", "used", format_size, is_number=True),
    TableColumn(
        "free",
        "quota left",
        lambda free: "any" if math.isinf(free) else format_size(max(0, free)),
        is_number=True,
    ),
    TableColumn("writable", "writable", lambda value: "yes" if value else "not now"),
)
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


@datasets.command()
@click.argument("name", type=DATASET)
@click.option(
    "--sites",
    type=SITE,
    required=True,
    help="Names, labels or all, comma separated; or an RSE expression, e.g. 'tier=2&country=UK'.",
)
@click.option(
    "--lifetime",
    default="30d",
    show_default=True,
    help="Lifetime of the replicas from now, e.g. 90d; or forever.",
)
@click.option(
    "--comment", default="treehammer", show_default=True, help="Rucio attribute of the rules."
)
@click.option(
    "--activity", default="Functional Test", show_default=True, help="Rucio attribute of the rules."
)
@click.option(
    "--upload-to",
    default="",
    metavar="RSE",
    help="RSE of the first upload [default: the first requested one that accepts files].",
)
@click.option(
    "--timeout",
    type=DURATION,
    default="10m",
    show_default=True,
    help="Time to wait for stuck replicas when no others make progress.",
)
@include_option("Use these sites although their state excludes them; or all.")
@click.option("--no-wait", is_flag=True, help="Request the replicas without waiting for them.")
@prints_rows(*_RULE_COLUMNS)
@click.pass_obj
def place(
    settings: Settings,
    /,
    name: str,
    sites: str,
    lifetime: str,
    upload_to: str,
    timeout: int,
    include: tuple[str, ...],
    no_wait: bool,
    **rule_attributes: str,
) -> CommandOutput:
    """Place a dataset at sites: upload its files once and let Rucio replicate them.

    Existing replicas are kept; after an interruption the same command continues. The exit code is 4 if a
    replica is denied or stays stuck; the others are placed nevertheless.

    Example: treehammer datasets place reference-750mb --sites all --lifetime 90d
    """
    from treehammer.datasets.catalogues.folder_catalogue import ensure_dataset
    from treehammer.datasets.rucio import rucio_client, rucio_datasets, rucio_replication
    from treehammer.datasets.rucio.rucio_conversions import RuleOptions
    from treehammer.submit.sites.replica_selection import select_rses

    lifetime_s = None if lifetime == "forever" else parse_duration(lifetime, "--lifetime")
    rucio = rucio_client.RucioClient(settings, progress_bar)
    catalogue = rucio_datasets.RucioCatalogue(settings, rucio)
    rses = _drop_excluded(select_rses(sites, settings, rucio), settings, include)
    manifest = ensure_dataset(name, settings, progress_bar)
    print_early(TextTable(_list_quotas(manifest, rses, catalogue), _QUOTA_COLUMNS), "")
    options = RuleOptions(lifetime_s, **rule_attributes)
    with on_interrupt("the same command continues, and rules go on without it"):
        requested = _create_rules(manifest, rses, options, upload_to, catalogue, settings)
        statuses: list[ReplicationStatus] = []
        for latest in rucio_replication.poll_replication(requested, rucio, timeout):
            earlier, statuses = statuses, latest
            if no_wait:
                break
            _print_changes(earlier, latest)
    states = {status.state for status in statuses}
    is_bad = bool(states & {rucio_replication.STUCK, rucio_replication.DENIED})
    advice = f"As reported by Rucio; check with: treehammer datasets verify {name} --sites …"
    return CommandOutput(
        [
            asdict(status) | {"progress": f"{status.files_complete} of {status.files_total}"}
            for status in statuses
        ],
        below=[advice] if rucio_replication.COMPLETE in states else [],
        exit_code=ExitCode.INFRASTRUCTURE if is_bad else ExitCode.DONE,
    )


def _print_changes(
    earlier: Sequence[ReplicationStatus], latest: Sequence[ReplicationStatus]
) -> None:
    """Print a line for each rule whose state or reason changed."""
    before = {(status.rse, status.state, status.reason) for status in earlier}
    for status in latest:
        if (status.rse, status.state, status.reason) not in before:
            reason = f": {status.reason}" if status.reason else ""
            print_remarks([f"{status.site} {status.rse}: {status.state}{reason}".lstrip()])


def _create_rules(
    manifest: Manifest,
    rses: Sequence[Rse],
    options: RuleOptions,
    upload_to: str,
    catalogue: RucioCatalogue,
    settings: Settings,
) -> list[ReplicationStatus]:
    from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
    from treehammer.datasets.rucio import rucio_replication, rucio_upload

    rucio = catalogue.rucio
    folder = FolderCatalogue(settings.datasets_dir).folder(manifest.name)
    through = [rucio.fetch_rse(upload_to)] if upload_to else rses
    used = rucio_upload.upload_dataset(manifest, folder, catalogue, through, progress_bar)
    if used and used not in [rse.name for rse in rses]:
        rucio_replication.keep_source_replica(manifest, used, options, rucio)
    return rucio_replication.request_replicas(manifest, rses, options, rucio)


def _list_quotas(
    manifest: Manifest, rses: Sequence[Rse], catalogue: RucioCatalogue
) -> list[dict[str, Any]]:
    """List the size of each replica and the free quota, before anything is requested."""
    from treehammer.datasets.rucio.rucio_conversions import AccountQuota

    quotas = catalogue.rucio.list_quotas()
    return [
        {
            "site": rse.site,
            "rse": rse.name,
            "needed": manifest.size,
            "used": quota.used,
            "free": quota.free,
            "writable": rse.writable,
        }
        for rse in rses
        for quota in (quotas.get(rse.name, AccountQuota(0, 0)),)
    ]


def _drop_excluded(
    rses: Sequence[Rse], settings: Settings, include: Sequence[str]
) -> tuple[Rse, ...]:
    """Drop the storage of sites that may not be used, and say so.

    Raises:
        NothingToDoError: nothing is left.
    """
    reasons = _find_restrictions(rses, settings, include)
    print_remarks(f"{name} is left out: {reason}." for name, reason in reasons.items())
    usable = tuple(rse for rse in rses if rse.name not in reasons)
    if reasons and not usable:
        raise NothingToDoError(
            "no storage of this request may be used",
            hint=f"To place replicas nevertheless: {INCLUDE_OPTION} all",
        )
    return usable


def _find_restrictions(
    rses: Sequence[Rse], settings: Settings, include: Sequence[str]
) -> dict[str, str]:
    """Find the storage that may not be used, each with the reason."""
    from treehammer.analysis.status.site_uses import EVERY_SITE
    from treehammer.sql.core.subjects import STORAGE_SITE
    from treehammer.submit.planning.site_selection import load_uses
    from treehammer.submit.sites.site_registry import load_sites

    uses = load_uses(settings)
    site_of = {door.rse: site.name for site in load_sites(settings).values() for door in site.doors}
    reasons = {}
    for rse in rses:
        site = site_of.get(rse.name, rse.site)
        reason = uses.describe_restrictions(site, (STORAGE_SITE,))
        if reason and not {EVERY_SITE, site} & {*include}:
            reasons[rse.name] = reason
    return reasons


@datasets.command()
@click.argument("name", type=DATASET)
@click.option(
    "--sites",
    type=SITE,
    default="",
    help="Only at these sites: names, labels or all, comma separated; or an RSE expression.",
)
@prints_rows(
    TableColumn("rse", "storage"),
    TableColumn("state", "rule"),
    TableColumn("reason", ""),
    *hidden_columns("rule"),
)
@click.pass_obj
def remove(settings: Settings, /, name: str, sites: str) -> CommandOutput:
    """Remove your own rules for a dataset; Rucio deletes replicas without other rules.

    The local dataset and other users' rules are kept. The exit code is 4 if a rule cannot be removed.

    Example: treehammer datasets remove reference-750mb --sites EXAMPLE-T2
    """
    from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue
    from treehammer.submit.sites.replica_selection import select_rses

    rucio = RucioCatalogue(settings).rucio
    rules = rucio.list_rules(rucio.names.dataset(name))
    if sites:
        names = {rse.name for rse in select_rses(sites, settings, rucio)}
        rules = tuple(rule for rule in rules if rule.expression in names)
    if not rules:
        raise NothingToDoError(
            f"{rucio.account} has no rule for {rucio.scope}:{name} at these sites"
        )
    rows = []
    for rule in rules:
        reason = _delete_rule(rule, rucio)
        state = "kept" if reason else "withdrawn"
        rows.append({"rse": rule.expression, "rule": rule.id, "state": state, "reason": reason})
    is_kept = any(row["reason"] for row in rows)
    return CommandOutput(rows, exit_code=ExitCode.INFRASTRUCTURE if is_kept else ExitCode.DONE)


def _delete_rule(rule: ReplicationRule, rucio: RucioClient) -> str:
    """Delete a rule; return the reason if it is kept, '' otherwise."""
    from treehammer.datasets.rucio.rucio_conversions import RucioDeniedError

    try:
        rucio.delete_rule(rule)
    except RucioDeniedError as error:
        ends = "never" if rule.expires_at is None else "by itself"
        return f"{error.message}; it ends {ends}, or an administrator removes it"
    return ""


@datasets.command("verify")
@click.argument("names", nargs=-1, metavar="NAME...", type=DATASET)
@click.option(
    "--sites",
    type=SITE,
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
@prints_rows(
    keys="name, state, message; with --sites dataset, hash, site, door, rse, file, url, state, message, "
    "reads, wrong_reads, declared"
)
@click.pass_obj
def verify(
    settings: Settings,
    names: tuple[str, ...],
    sites: str,
    doors: tuple[str, ...],
    full: bool,
    declare: bool,
) -> CommandOutput:
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
        return _verify_local(names, settings)
    return _verify_replicas(names, sites, doors, settings, full=full, declare=declare)


def _verify_replicas(
    names: Sequence[str],
    sites: str,
    doors: Sequence[str],
    settings: Settings,
    *,
    full: bool,
    declare: bool,
) -> CommandOutput:
    from treehammer.submit.sites import replica_selection, replicas

    catalogue = replica_selection.open_rucio_catalogue(settings, progress_bar)
    storage = replica_selection.select_storage(
        sites, settings, catalogue.rucio if catalogue else None
    )
    declaring_catalogue = catalogue if declare else None
    rows, files, marked = [], [], 0
    for name in names:
        manifest = replica_selection.find_manifest(name, settings, catalogue)
        expected = replica_selection.list_expected_replicas(manifest, storage, doors, catalogue)
        checks = replicas.check_replicas(manifest, expected, full=full, bars=progress_bar)
        marked += replicas.record_findings(manifest, checks, settings)
        declared = replicas.declare_bad_replicas(manifest, checks, declaring_catalogue)
        by_door = groupby(checks, lambda check: (check.expected.site, check.expected.door))
        rows += [_door_row(manifest, [*group], declared) for _, group in by_door]
        files += [_file_row(manifest, check, declared) for check in checks]
    is_good = all(file["state"] == "good" for file in files)
    return CommandOutput(
        files,
        columns=(),
        above=[TextTable(rows, _SITE_COLUMNS)],
        remarks=[f"{pluralize(marked, 'measurement')} of bad replicas marked."] if marked else [],
        exit_code=ExitCode.DONE if is_good else ExitCode.REGRESSION,
    )


def _verify_local(names: Sequence[str], settings: Settings) -> CommandOutput:
    from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue

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
    is_refused = any(row["state"] == "refused" for row in rows)
    code = ExitCode.REGRESSION if is_refused else ExitCode.DONE
    return CommandOutput(rows, _LOCAL_COLUMNS, exit_code=code)


def _door_row(
    manifest: Manifest, checks: Sequence[ReplicaCheck], declared: dict[ReplicaCheck, str]
) -> dict[str, Any]:
    """Summarize the checks at one door in a table row."""
    from treehammer.submit.sites.replicas import WORST_FIRST

    worst = min(checks, key=lambda check: WORST_FIRST.index(check.state))
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
