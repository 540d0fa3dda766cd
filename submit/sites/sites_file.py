"""``sites.toml``: reads it, names every mistake in it at once, and writes it.

The shape stands here as models; their JSON Schema is published as ``sites.schema.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, Field, PlainValidator, StringConstraints, WithJsonSchema

from treehammer.collectors.batch_names import HTCONDOR_PREFIX, LOCAL_BATCH
from treehammer.collectors.shared_files import write_atomically
from treehammer.errors import ConfigError, SitesError
from treehammer.hctests.schema import document_problems, toml_positions
from treehammer.hctests.schema.document_problems import (
    NAME_PATTERN,
    DocumentProblem,
    DocumentTables,
    StrictModel,
    suggest_nearest,
)
from treehammer.submit.batch.htcondor.known_commands import check_site_commands
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.sites import field_validators as checks
from treehammer.submit.sites.site_model import Ceilings, Door, Site

#: Names that ``--sites`` takes for something else.
RESERVED_NAMES: Mapping[str, str] = {
    "local": "this machine, which is always a site",
    "all": "every site of this file",
}

_Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
_Line = Annotated[str, StringConstraints(max_length=1000), AfterValidator(checks.validate_line)]
_Path = Annotated[
    str, StringConstraints(min_length=1, max_length=1000), AfterValidator(checks.validate_line)
]
_NodePath = Annotated[_Path, AfterValidator(checks.validate_absolute_path)]
_Bytes = Annotated[
    int,
    PlainValidator(checks.parse_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]
_SubmitValue = Annotated[
    str,
    PlainValidator(checks.validate_submit_value),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]


class PoolTable(StrictModel):
    """An HTCondor pool that jobs are submitted to; an empty table is what HTCondor itself finds."""

    config: _Path | None = Field(None, description="Its configuration file (CONDOR_CONFIG).")
    collector: _Line = Field("", description="host:port, where it is not the configuration's.")
    schedd: _Line = Field("", description="Name of the schedd; empty for this machine's.")
    token_dir: _Path | None = Field(
        None, description="Folder with the IDTOKENS to authenticate with."
    )
    scitoken_file: _Path | None = Field(
        None, description="File with a SciToken to authenticate with instead."
    )
    spool: bool = Field(
        False,
        description="Whether inputs are sent to the schedd and outputs fetched from it, as a schedd "
        "on another machine needs.",
    )
    submit_dir: _Path | None = Field(
        None,
        description="Where inputs and outputs of jobs lie that are not spooled, readable and "
        "writable by the user that the schedd serves jobs as; below data_dir by default.",
    )


class CeilingsTable(StrictModel):
    """The most that a site wants of one campaign; 0 means no ceiling."""

    jobs: int = Field(0, ge=0, lt=2**63, description="Jobs in all.")
    in_flight: int = Field(0, ge=0, lt=2**63, description="Jobs queued or running at a time.")
    bytes_per_day: _Bytes = Field(
        0, description='Bytes read in a day; text such as "10 TB" is understood.'
    )
    mb_per_s: float = Field(
        0.0, ge=0, lt=1e12, description="Megabytes (10⁶ bytes) a second through its doors."
    )


class DoorTable(StrictModel):
    """A storage endpoint; a site's first is used by tests that name none."""

    name: _Name = Field(description='Its value of the door axis, e.g. "root".')
    protocol: Literal["file", "root", "https", "http"] = Field(description="How ROOT reads it.")
    prefix: _Path = Field(
        "",
        description="Without an rse, the files of a dataset lie at prefix/DATASET/FILE; with one, it "
        "stands in place of the prefix that Rucio knows. A URL as ROOT opens it, with two slashes "
        "after the host for root; a path for file.",
    )
    rse: _Line = Field("", description="Rucio's storage element, which tells where files lie.")
    middleware: _Line = Field("", description='e.g. "dCache" or "EOS"; information.')
    version: _Line = Field("", description="Of the middleware; information.")


class SiteTable(StrictModel):
    """A place where jobs run."""

    pool: _Name | None = Field(
        None, description="Which of [pools] takes its jobs; without one they run on this machine."
    )
    requirements: _Line = Field(
        "", description="ClassAd expression that selects its machines in the pool."
    )
    grid_resource: Annotated[_Line, AfterValidator(checks.validate_grid_resource)] = Field(
        "", description='Of the grid universe, e.g. "condor ce.example.org ce.example.org:9619".'
    )
    storage: _Line = Field("", description='Kind of storage, e.g. "EOS"; information.')
    cvmfs: _NodePath | None = Field(
        None, description="Where CVMFS is mounted on its nodes; /cvmfs by default."
    )
    python: _NodePath = Field(
        "/usr/bin/python3", description="Interpreter of its nodes that starts the worker."
    )
    labels: list[_Name] = Field(
        default_factory=list, description="Words to choose sites by: --sites label:WORD."
    )
    software: dict[_Line, Annotated[_Line, AfterValidator(checks.validate_software)]] = Field(
        default_factory=dict,
        description="ROOT release -> value of the root axis as this site has it, with {version} for "
        'the release; "*" stands for all others. Empty: as the test asks.',
    )
    submit: dict[str, _SubmitValue] = Field(
        default_factory=dict, description="Further submit commands, e.g. accounting_group."
    )
    templates: _Path | None = Field(
        None, description="Folder with templates of its own in place of the shipped ones."
    )
    ceilings: CeilingsTable = Field(
        default_factory=lambda: CeilingsTable.model_validate({}),
        description="The most that it wants of one campaign.",
    )
    doors: list[DoorTable] = Field(
        json_schema_extra={"minItems": 1}, description="Its storage endpoints, at least one."
    )


class SitesDocument(StrictModel):
    """All of sites.toml; relative paths are relative to the file."""

    pools: dict[_Name, PoolTable] = Field(
        default_factory=dict, description="The HTCondor pools that jobs are submitted to, by name."
    )
    sites: dict[_Name, SiteTable] = Field(default_factory=dict, description="The sites, by name.")


@dataclass(frozen=True)
class SitesFileContent:
    """What a sites file holds, by name."""

    sites: Mapping[str, Site]
    pools: Mapping[str, HTCondorPool]


def _table_name(path: toml_positions.KeyPath) -> str:
    names = [key for key in path if isinstance(key, str)]
    return {1: "", 2: "", 3: names[0]}.get(len(names), names[2] if len(names) > 2 else "")


_TABLES = DocumentTables(
    {
        "": tuple(SitesDocument.model_fields),
        "pools": tuple(PoolTable.model_fields),
        "sites": tuple(SiteTable.model_fields),
        "doors": tuple(DoorTable.model_fields),
        "ceilings": tuple(CeilingsTable.model_fields),
    },
    _table_name,
)


def build_json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of sites.toml, for editors."""
    return document_problems.build_document_schema(SitesDocument, "sites.toml")


def read_sites_file(path: Path) -> SitesFileContent:
    """The sites and pools of a file.

    Raises:
        SitesError: it cannot be read, or has mistakes; ``problems`` names every one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SitesError(f"is not UTF-8 text ({error.reason})", where=str(path)) from error
    except OSError as error:
        raise SitesError(
            f"cannot be read ({error.strerror})",
            where=str(path),
            hint="Check sites_file in treehammer.toml, TREEHAMMER_SITES_FILE or --sites-file.",
        ) from error
    return parse_sites_file(text, path)


def parse_sites_file(text: str, path: Path) -> SitesFileContent:
    """The sites and pools of a sites file that lies at ``path``.

    Raises:
        SitesError: the text has mistakes.
    """
    raw = document_problems.parse_document(text, str(path), SitesError)
    document, problems = document_problems.validate_document(
        SitesDocument, raw, _TABLES, _fill_missing_keys
    )
    across = list(_check_across_tables(document))
    problems += [
        o
        for o in across
        if not any(document_problems.problems_overlap(o, shape) for shape in problems)
    ]
    if problems:
        where = document_problems.make_key_locator(text, str(path))
        raise document_problems.combine_problems(problems, where, str(path), SitesError)
    base = path.resolve().parent
    return SitesFileContent(
        sites={name: _build_site(name, table, base) for name, table in document.sites.items()},
        pools={name: _build_pool(name, table, base) for name, table in document.pools.items()},
    )


def _fill_missing_keys(rest: dict[str, Any]) -> None:
    """Give sites the doors, and doors the keys, without which they are no such things."""
    for site in rest.get("sites", {}).values():
        for number, door in enumerate(site.setdefault("doors", [])):
            stand_in = {"name": f"door{number}", "protocol": "file"}
            door.update({key: value for key, value in stand_in.items() if key not in door})


def _check_across_tables(document: SitesDocument) -> Iterator[DocumentProblem]:
    for name, pool in document.pools.items():
        yield from _check_pool(pool, ("pools", name))
    for name, site in document.sites.items():
        path: toml_positions.KeyPath = ("sites", name)
        if name in RESERVED_NAMES:
            yield DocumentProblem(path, f"means {RESERVED_NAMES[name]} (expected another name)")
        if site.pool is not None and site.pool not in document.pools:
            known = ", ".join(document.pools) or "none"
            near = suggest_nearest(site.pool, document.pools)
            yield DocumentProblem(
                (*path, "pool"), f"no pool {site.pool!r} here (known: {known}){near}"
            )
        yield from _check_site(site, path)
        yield from _check_doors(site.doors, (*path, "doors"))


def _check_pool(pool: PoolTable, path: toml_positions.KeyPath) -> Iterator[DocumentProblem]:
    if pool.token_dir and pool.scitoken_file:
        yield DocumentProblem(
            (*path, "scitoken_file"), "goes without token_dir (expected one of them)"
        )
    if pool.spool and pool.submit_dir:
        yield DocumentProblem(
            (*path, "submit_dir"), "is for jobs that are not spooled (expected spool = false)"
        )


def _check_site(site: SiteTable, path: toml_positions.KeyPath) -> Iterator[DocumentProblem]:
    if site.pool is None:
        for key in ("requirements", "grid_resource", "submit"):
            if getattr(site, key):
                yield DocumentProblem(
                    (*path, key), "is for a pool, and this site names none (add pool)"
                )
    for key in site.submit:
        try:
            check_site_commands([key], "")
        except ConfigError as error:
            hint = f" ({error.hint.rstrip('.')})" if error.hint else ""
            yield DocumentProblem((*path, "submit", key), error.message + hint)
    for index, label in enumerate(site.labels):
        if label in site.labels[:index]:
            yield DocumentProblem((*path, "labels", index), f"{label!r} is given twice")


def _check_doors(doors: list[DoorTable], path: toml_positions.KeyPath) -> Iterator[DocumentProblem]:
    if not doors:
        yield DocumentProblem(path, "has no door (expected at least one [[sites.NAME.doors]])")
    for index, door in enumerate(doors):
        if door.name in [other.name for other in doors[:index]]:
            yield DocumentProblem((*path, index, "name"), f"{door.name!r} is given twice")
        if not (door.prefix or door.rse):
            yield DocumentProblem((*path, index, "prefix"), "is missing (expected prefix or rse)")
        why = checks.find_prefix_error(door.protocol, door.prefix) if door.prefix else ""
        if why:
            yield DocumentProblem((*path, index, "prefix"), f"{door.prefix!r} {why}")


def _build_pool(name: str, table: PoolTable, base: Path) -> HTCondorPool:
    return HTCondorPool(
        name=name,
        config=_resolve_path(table.config, base),
        collector=table.collector,
        schedd=table.schedd,
        token_dir=_resolve_path(table.token_dir, base),
        scitoken_file=_resolve_path(table.scitoken_file, base),
        spool=table.spool,
        submit_dir=_resolve_path(table.submit_dir, base),
    )


def _build_site(name: str, table: SiteTable, base: Path) -> Site:
    return Site(
        name=name,
        batch=f"{HTCONDOR_PREFIX}{table.pool}" if table.pool else LOCAL_BATCH,
        doors=tuple(_build_door(door, base) for door in table.doors),
        ceilings=Ceilings(**dict(table.ceilings)),
        storage=table.storage,
        requirements=table.requirements,
        grid_resource=table.grid_resource,
        software=table.software,
        cvmfs=table.cvmfs or "",
        python=table.python,
        templates=_resolve_path(table.templates, base),
        submit=table.submit,
        labels=tuple(table.labels),
    )


def _build_door(table: DoorTable, base: Path) -> Door:
    prefix = checks.normalize_prefix(table.protocol, table.prefix) if table.prefix else ""
    if prefix and table.protocol == "file":
        prefix = str(_resolve_path(prefix, base))
    return Door(table.name, table.protocol, prefix, table.middleware, table.version, table.rse)


def _resolve_path(text: str | None, base: Path) -> Path | None:
    if text is None:
        return None
    path = Path(text).expanduser()
    return path if path.is_absolute() else (base / path).resolve()


def write_sites_file(sites: Iterable[Site], pools: Iterable[HTCondorPool], path: Path) -> None:
    """Write a sites file; what has its default is left out.

    Raises:
        SitesError: the sites are none that could be read again; nothing was written.
        OSError: the file cannot be written.
    """
    write_atomically(path, format_sites_file(sites, pools, path))


def format_sites_file(sites: Iterable[Site], pools: Iterable[HTCondorPool], path: Path) -> str:
    """The text of a sites file that is to lie at ``path``.

    Raises:
        SitesError: the sites are none that could be read again.
    """
    document = {
        "pools": {pool.name: _nondefault_values(asdict(pool), PoolTable) for pool in pools},
        "sites": {site.name: _site_table(site) for site in sites},
    }
    text = tomli_w.dumps({key: tables for key, tables in document.items() if tables})
    parse_sites_file(text, path)
    return text


def _site_table(site: Site) -> dict[str, Any]:
    kind, _, pool = site.batch.partition("@")
    values = asdict(site) | {"pool": pool or None, "labels": list(site.labels)}
    values["ceilings"] = _nondefault_values(values["ceilings"], CeilingsTable)
    values["doors"] = [_nondefault_values(door, DoorTable) for door in values["doors"]]
    assert bool(pool) == (kind != LOCAL_BATCH)
    return _nondefault_values(values, SiteTable)


def _nondefault_values(values: Mapping[str, Any], table: type[StrictModel]) -> dict[str, Any]:
    """The keys of a table whose values say something, in its order and as TOML has them."""
    found = {}
    for key, field in table.model_fields.items():
        value = values[key]
        if (value is not None and value not in ("", {}, [], 0)) or field.is_required():
            found[key] = str(value) if isinstance(value, Path) else value
    return found


def is_valid_name(text: str) -> bool:
    """Whether a site or label can be called so."""
    return re.fullmatch(NAME_PATTERN, text) is not None and text not in RESERVED_NAMES
