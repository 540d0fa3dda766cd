"""Reads and writes ``sites.toml``, and reports all its mistakes at once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from treehammer.collectors.http_requests import mask_credentials
from treehammer.collectors.shared_files import write_atomically
from treehammer.collectors.storage_access import CERT_DIR_VARIABLE
from treehammer.errors import ConfigError, SitesError, suggest_nearest
from treehammer.hctests.definition import document_problems
from treehammer.hctests.definition.document_problems import NAME_PATTERN, DocumentProblem
from treehammer.program_output import read_document_text
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.batch.interface import UnknownBatchSystemError, find_batch
from treehammer.submit.sites.site_model import (
    RESERVED_NAMES,
    Door,
    Site,
    SitesDocument,
    find_prefix_error,
    find_variable_error,
)


def read_sites_file(path: Path) -> SitesDocument:
    """Read the sites and pools of a file.

    Raises:
        SitesError: the file cannot be read, or has mistakes; ``problems`` lists all of them.
    """
    hint = "Check sites_file in treehammer.toml, TREEHAMMER_SITES_FILE or --sites-file."
    text = read_document_text(path, SitesError, hint)
    return parse_sites_file(text, path)


# A patrol selects sites several times for each of its entries.
@functools.lru_cache(maxsize=4)
def parse_sites_file(text: str, path: Path) -> SitesDocument:
    """Parse the text of a sites file located at ``path``.

    Raises:
        SitesError: the text has mistakes.
    """
    return document_problems.load_document(
        SitesDocument,
        text,
        str(path),
        _fill_missing_keys,
        _check_across_tables,
        SitesError,
        context=path.resolve().parent,
    )


def _fill_missing_keys(tables: dict[str, Any]) -> None:
    """Add the keys that the model requires to sites and doors with mistakes."""
    for site in tables.get("sites", {}).values():
        for number, door in enumerate(site.setdefault("doors", [])):
            stand_in = {"name": f"door{number}", "protocol": "file"}
            door.update({key: value for key, value in stand_in.items() if key not in door})


def _check_across_tables(document: SitesDocument) -> Iterator[DocumentProblem]:
    for name, pool in document.pools.items():
        yield from _check_pool(pool, ("pools", name))
    for name, site in document.sites.items():
        path: document_problems.KeyPath = ("sites", name)
        if name in RESERVED_NAMES:
            yield DocumentProblem(
                path, f"is reserved for {RESERVED_NAMES[name]} (expected another name)"
            )
        if site.pool_name is not None and site.pool_name not in document.pools:
            pool_names = ", ".join(document.pools) or "none"
            near = suggest_nearest(site.pool_name, document.pools)
            yield DocumentProblem(
                (*path, "pool"), f"unknown pool {site.pool_name!r} (known: {pool_names}){near}"
            )
        yield from _check_site(site, path)
        yield from _check_doors(site.doors, (*path, "doors"))


def _check_pool(pool: HTCondorPool, path: document_problems.KeyPath) -> Iterator[DocumentProblem]:
    if pool.token_dir and pool.scitoken_file:
        yield DocumentProblem(
            (*path, "scitoken_file"), "cannot be combined with token_dir (expected one of them)"
        )
    if pool.spool and pool.submit_dir:
        yield DocumentProblem(
            (*path, "submit_dir"),
            "applies only to jobs that are not spooled (expected spool = false)",
        )


def _check_site(site: Site, path: document_problems.KeyPath) -> Iterator[DocumentProblem]:
    if site.pool_name is None:
        yield from _check_pool_keys(site, path)
    if "batch" in site.model_fields_set:
        yield from _check_batch(site, (*path, "batch"))
    yield from _check_submit_commands(site, (*path, "submit"))
    for name, value in site.environment.items():
        if reason := find_variable_error(name, value):
            yield DocumentProblem((*path, "environment", name), reason)
    if site.cert_dir and CERT_DIR_VARIABLE in site.environment:
        yield DocumentProblem(
            (*path, "environment", CERT_DIR_VARIABLE), "is set by cert_dir (expected one of them)"
        )
    for index, label in enumerate(site.labels):
        if label in site.labels[:index]:
            yield DocumentProblem((*path, "labels", index), f"{label!r} is given twice")


def _check_pool_keys(site: Site, path: document_problems.KeyPath) -> Iterator[DocumentProblem]:
    for key in ("requirements", "grid_resource", "submit"):
        if getattr(site, key) and (site.is_local or key != "submit"):
            yield DocumentProblem((*path, key), "applies only to sites with a pool (add pool)")


def _check_submit_commands(
    site: Site, path: document_problems.KeyPath
) -> Iterator[DocumentProblem]:
    for key, value in site.submit.items():
        try:
            find_batch(site.batch).check_command(key, value, site.submit)
        except UnknownBatchSystemError:
            break  # reported above
        except ConfigError as error:
            hint = f" ({error.hint.rstrip('.')})" if error.hint else ""
            yield DocumentProblem((*path, key), error.message + hint)


def _check_doors(
    doors: Sequence[Door], path: document_problems.KeyPath
) -> Iterator[DocumentProblem]:
    if not doors:
        yield DocumentProblem(path, "has no door (expected at least one [[sites.NAME.doors]])")
    for index, door in enumerate(doors):
        if door.name in [other.name for other in doors[:index]]:
            yield DocumentProblem((*path, index, "name"), f"{door.name!r} is given twice")
        yield from _check_address(door, (*path, index))


def _check_address(door: Door, path: document_problems.KeyPath) -> Iterator[DocumentProblem]:
    if door.prefix:
        if error := find_prefix_error(door.protocol, door.prefix):
            yield DocumentProblem((*path, "prefix"), f"{mask_credentials(door.prefix)!r} {error}")
    else:
        if not door.rse:
            yield DocumentProblem((*path, "prefix"), "is missing (expected prefix or rse)")
        if door.load and door.load.writable:
            yield DocumentProblem(
                (*path, "load", "writable"), "needs the server's address (add prefix)"
            )
    if door.token_pools and not (door.protocol == "https" and door.prefix):
        yield DocumentProblem(
            (*path, "token_pools"),
            "applies only to https doors with an address (expected protocol https and prefix)",
        )


def _check_batch(site: Site, path: document_problems.KeyPath) -> Iterator[DocumentProblem]:
    if site.pool_name is not None:
        yield DocumentProblem(path, "cannot be combined with pool (expected one of them)")
    try:
        find_batch(site.batch)
    except ConfigError as error:
        yield DocumentProblem(path, error.message)


def write_sites_file(sites: Iterable[Site], pools: Iterable[HTCondorPool], path: Path) -> None:
    """Write a sites file without default values.

    Raises:
        SitesError: the sites are invalid; nothing was written.
        OSError: the file cannot be written.
    """
    write_atomically(path, format_sites_file(sites, pools, path))


def format_sites_file(sites: Iterable[Site], pools: Iterable[HTCondorPool], path: Path) -> str:
    """Format the text of a sites file located at ``path``.

    Raises:
        SitesError: the sites are invalid.
    """
    import tomli_w

    document = {
        "pools": {pool.name: _list_values(pool.model_dump()) for pool in pools},
        "sites": {
            site.name: _list_values(
                {
                    "pool": site.pool,
                    **site.model_dump(exclude={"pool_name"}),
                    "batch": "" if site.is_local or site.pool else site.batch,
                }
            )
            for site in sites
        },
    }
    text = tomli_w.dumps({key: tables for key, tables in document.items() if tables})
    parse_sites_file(text, path)
    return text


def _list_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table that are not empty."""

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return _list_values(value)
        if isinstance(value, tuple):
            return [convert(item) for item in value]
        return value

    converted = {key: convert(value) for key, value in values.items()}
    return {key: value for key, value in converted.items() if value}


def is_valid_name(text: str) -> bool:
    """Return whether a text can be the name of a site or label."""
    return re.fullmatch(NAME_PATTERN, text) is not None and text not in RESERVED_NAMES
