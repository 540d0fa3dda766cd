"""Schema of ``sites.toml``, published as ``sites.schema.json``, and validators of values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from treehammer.collectors import storage_access
from treehammer.extensions import ExtensionGroup, load_extension
from treehammer.hctests.definition import document_problems
from treehammer.hctests.definition.document_problems import (
    Bytes,
    DocumentTables,
    FilledLine,
    Line,
    Name,
    ScalarText,
    StrictModel,
    invalid_value,
    validate_line,
)
from treehammer.hctests.definition.matrix import AXES_BY_NAME, AXIS_NAME_PATTERN

#: Kind of grid resource -> its format.
GRID_RESOURCE_FORMS = {
    "condor": "condor SCHEDD COLLECTOR",
    "arc": "arc HOST, or arc https://HOST:PORT/arex/rest/1.0",
    "batch": "batch SYSTEM [USER@HOST]",
}
#: Kind of grid resource -> allowed numbers of words after it.
_GRID_RESOURCE_WORDS = {"condor": (2,), "arc": (1,), "batch": (1, 2)}

#: URL with a path that is not ARC's REST interface, to which HTCondor would post in vain.
_ARC_PATH_WITHOUT_REST = re.compile(r"(https?://)?[^/]+/(?!.*\brest/\d)[^/].*")
#: Site names that ``--sites`` interprets itself, with their meaning.
RESERVED_NAMES: Mapping[str, str] = {
    "local": "this machine, which is always a site",
    "all": "every site of this file",
}


def validate_submit_value(value: str) -> str:
    """Accept the value of a submit command, a line that is not empty.

    Raises:
        PydanticCustomError: the value is empty or no line.
    """
    if not validate_line(value):
        raise invalid_value("is empty (expected a value)")
    return value


def validate_absolute_path(value: str) -> str:
    """Accept an absolute path on a site's nodes.

    Raises:
        PydanticCustomError: the path is not absolute.
    """
    if not PurePosixPath(value).is_absolute():
        raise invalid_value(f"{value!r} is not an absolute path on the site's nodes")
    return value


def validate_writable_path(value: str) -> str:
    """Accept an absolute path at the storage other than its root.

    Raises:
        PydanticCustomError: the path cannot be a folder for files of load tests.
    """
    validate_line(value)
    path = PurePosixPath(value)
    if not path.is_absolute() or not path.name or ".." in path.parts or re.search(r"[?#]", value):
        raise invalid_value(f"{value!r} is not an absolute path of a folder at the storage")
    return str(path)


def validate_software(value: str) -> str:
    """Accept a value of the root axis, in which ``{version}`` stands for the release.

    Raises:
        PydanticCustomError: the value is not valid for the root axis.
    """
    text = value.replace("{version}", "6.40.00")
    if "{" in text or "}" in text:
        raise invalid_value(f"{value!r} contains braces other than {{version}}")
    try:
        AXES_BY_NAME["root"].normalize(text)
    except ValueError as error:
        raise invalid_value(f"{error} (expected {AXES_BY_NAME['root'].expected})") from None
    return value


def validate_grid_resource(value: str) -> str:
    """Accept a grid resource of a known kind in HTCondor's format.

    Raises:
        PydanticCustomError: the kind is unknown, or the number of words is wrong.
    """
    if not value:
        return value
    kind, *words = value.split()
    if kind not in GRID_RESOURCE_FORMS:
        raise invalid_value(
            f"unknown kind of grid resource {kind!r} (known: {', '.join(GRID_RESOURCE_FORMS)})"
        )
    if len(words) not in _GRID_RESOURCE_WORDS[kind]:
        raise invalid_value(f"{value!r} is invalid (expected {GRID_RESOURCE_FORMS[kind]})")
    if kind == "arc" and _ARC_PATH_WITHOUT_REST.fullmatch(words[0]):
        raise invalid_value(
            f"{value!r} lacks the version of ARC's REST interface "
            f"(expected {GRID_RESOURCE_FORMS[kind]})"
        )
    return value


def validate_token_pool(pool: str) -> str:
    """Accept a host, with ``*`` for any characters and a port if it has one.

    Raises:
        PydanticCustomError: the text is something else.
    """
    if re.fullmatch(r"(?=.*[A-Za-z0-9])([A-Za-z0-9.*_-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?", pool):
        return pool
    raise invalid_value(f"{pool!r} is no HOST or HOST:PORT, such as pool*.example.org")


def validate_protocol(protocol: str) -> str:
    """Accept the protocols of doors, shipped or of another package."""
    if protocol in storage_access.PROTOCOLS or load_extension(
        ExtensionGroup.DOOR_PROTOCOLS, protocol
    ):
        return protocol
    *most, last = map(repr, storage_access.PROTOCOLS)
    raise invalid_value(f"{protocol!r} is wrong (expected {', '.join(most)} or {last})")


def find_prefix_error(protocol: str, prefix: str) -> str:
    """Describe why ROOT could not read through a door with this prefix; '' if it can."""
    if any(character in prefix for character in "?#"):
        return "contains '?' or '#', which ROOT interprets as options"
    if protocol == "file":
        return "is a URL (expected a path)" if "://" in prefix else ""
    try:
        parts = urlsplit(prefix)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        return f"is not a URL: {error}"
    schemes = storage_access.list_aliases(protocol) or (protocol,)
    rules = (
        (
            f"is invalid (expected {schemes[0]}://HOST:PORT/…)",
            parts.scheme not in schemes or not host,
        ),
        (
            "contains a password, which every measurement would show (expected none)",
            parts.password is not None,
        ),
        ("contains a space (expected %20)", re.search(r"\s", prefix)),
        (
            f"needs two slashes after the host: {parts.scheme}://{parts.netloc}/{parts.path}",
            protocol == "root" and re.match("/[^/]", parts.path),
        ),
    )
    return next((error for error, applies in rules if applies), "")


def normalize_prefix(protocol: str, prefix: str) -> str:
    """Replace aliases of the scheme, and let ``/DATASET/FILE`` be appended."""
    prefix = storage_access.normalize_url(prefix)
    if protocol != "root":
        return prefix.rstrip("/") or "/"
    head, path = re.fullmatch(r"(\w+://[^/]+)(.*)", prefix).groups()  # type: ignore[union-attr]  # checked
    path = path.strip("/")
    return f"{head}//{path}" if path else f"{head}/"


_NodePath = Annotated[FilledLine, AfterValidator(validate_absolute_path)]
_SubmitValue = Annotated[ScalarText, AfterValidator(validate_submit_value)]


class PoolTable(StrictModel):
    """An HTCondor pool; an empty table means HTCondor's default configuration."""

    config: FilledLine | None = Field(None, description="Configuration file (CONDOR_CONFIG).")
    collector: Line = Field("", description="host:port; taken from the configuration by default.")
    schedd: Line = Field("", description="Name of the schedd; the one on this machine by default.")
    token_dir: FilledLine | None = Field(
        None, description="Folder with the IDTOKENS to authenticate with."
    )
    scitoken_file: FilledLine | None = Field(
        None, description="File with a SciToken to authenticate with instead."
    )
    spool: bool = Field(
        False,
        description="Send inputs to the schedd and fetch outputs from it, as a remote schedd requires.",
    )
    submit_dir: FilledLine | None = Field(
        None,
        description="Folder for the inputs and outputs of jobs that are not spooled, readable and "
        "writable by the user under whom the schedd runs shadows; below data_dir by default.",
    )


class CeilingsTable(StrictModel):
    """Limits of a site for one campaign; 0 means unlimited."""

    jobs: int = Field(0, ge=0, lt=2**63, description="Number of jobs.")
    in_flight: int = Field(0, ge=0, lt=2**63, description="Jobs queued or running at a time.")
    bytes_per_day: Bytes = Field(
        0, description='Bytes read per day, as a number or text such as "10 TB".'
    )
    mb_per_s: float = Field(
        0.0, ge=0, lt=1e12, description="Megabytes (10⁶ bytes) per second through its doors."
    )


class LoadPermissionTable(StrictModel):
    """Load that a door permits at a time; a missing kind is not permitted."""

    opens_per_s: float = Field(0.0, ge=0, lt=1e9, description="Files opened per second.")
    clients: int = Field(0, ge=0, lt=2**31, description="Clients connected.")
    mb_per_s: float = Field(
        0.0, ge=0, lt=1e12, description="Traffic in megabytes (10⁶ bytes) per second."
    )
    writable: Annotated[str, AfterValidator(validate_writable_path)] = Field(
        "", description="Absolute path at the storage for files that load tests write and remove."
    )


class DoorTable(StrictModel):
    """A storage endpoint; tests that name no door use the first."""

    name: Name = Field(description='Value of the door axis, e.g. "root".')
    protocol: Annotated[str, AfterValidator(validate_protocol)] = Field(
        description="Protocol by which ROOT reads.",
        json_schema_extra={"enum": list(storage_access.PROTOCOLS)},
    )
    prefix: FilledLine = Field(
        "",
        description="Without an rse, files are located at prefix/DATASET/FILE; with one, it replaces the "
        "prefix that Rucio knows. A URL as ROOT opens it, with two slashes after the host for root; "
        "a path for file.",
    )
    rse: Line = Field(
        "", description="Rucio storage element, from which Rucio derives the location of files."
    )
    middleware: Line = Field("", description='Middleware, e.g. "dCache" or "EOS"; informative.')
    version: Line = Field("", description="Version of the middleware; informative.")
    load: LoadPermissionTable | None = Field(
        None, description="Load that load tests may put on it; none without this table."
    )
    settings: list[Annotated[str, StringConstraints(pattern=AXIS_NAME_PATTERN)]] = Field(
        default_factory=list,
        description="Settings of its server that tests may change with the command of [before]: names of axes.",
    )
    token_pools: list[Annotated[FilledLine, AfterValidator(validate_token_pool)]] = Field(
        default_factory=list,
        description="Hosts to which a token for this https door may follow its redirects, over https only: "
        'HOST or HOST:PORT, with * for any characters, e.g. "pool*.example.org". Without it, the token stays '
        "at the door's own host and port.",
    )


class SiteTable(StrictModel):
    """A place where jobs run."""

    pool: Name | None = Field(
        None,
        description="Name of the pool in [pools] that runs its jobs; without one, jobs run on this machine.",
    )
    batch: FilledLine | None = Field(
        None,
        description="Batch system of another installed package that runs its jobs, as NAME or NAME@ARGUMENT.",
    )
    requirements: Line = Field(
        "", description="ClassAd expression that selects its machines in the pool."
    )
    grid_resource: Annotated[Line, AfterValidator(validate_grid_resource)] = Field(
        "",
        description='Resource of the grid universe, e.g. "condor ce.example.org ce.example.org:9619".',
    )
    storage: Line = Field("", description='Kind of storage, e.g. "EOS"; informative.')
    cvmfs: _NodePath | None = Field(
        None, description="Mount point of CVMFS on its nodes; /cvmfs by default."
    )
    cert_dir: _NodePath | None = Field(
        None,
        description="Folder of certificate authorities on its nodes, with hashed names (X509_CERT_DIR); "
        "by default what clients use by themselves, mostly /etc/grid-security/certificates.",
    )
    python: _NodePath = Field(
        "/usr/bin/python3", description="Python interpreter that starts the worker on its nodes."
    )
    labels: list[Name] = Field(
        default_factory=list, description="Words that select the site: --sites label:WORD."
    )
    software: dict[Line, Annotated[Line, AfterValidator(validate_software)]] = Field(
        default_factory=dict,
        description="ROOT release -> value of the root axis at this site, with {version} for the release; "
        '"*" stands for all other releases. Empty: the values of the test.',
    )
    submit: dict[str, _SubmitValue] = Field(
        default_factory=dict, description="Additional submit commands, e.g. accounting_group."
    )
    templates: FilledLine | None = Field(
        None, description="Folder with templates that replace the shipped ones."
    )
    ceilings: CeilingsTable = Field(
        default_factory=lambda: CeilingsTable.model_validate({}),
        description="Limits for one campaign.",
    )
    doors: list[DoorTable] = Field(
        json_schema_extra={"minItems": 1}, description="Storage endpoints, at least one."
    )


class SitesDocument(StrictModel):
    """The document sites.toml; relative paths are relative to the file."""

    pools: dict[Name, PoolTable] = Field(
        default_factory=dict, description="HTCondor pools by name."
    )
    sites: dict[Name, SiteTable] = Field(default_factory=dict, description="Sites by name.")


def _table_name(path: document_problems.KeyPath) -> str:
    """Name the kind of table that contains a key."""
    match [key for key in path if isinstance(key, str)]:
        case [_, _, "doors", kind, _]:
            return kind
        case [kind, _, _] | [_, _, kind, _, *_]:
            return kind
    return ""


#: Keys of each table, for hints on misplaced keys.
SITES_TABLES = DocumentTables(
    {
        "": SitesDocument,
        "pools": PoolTable,
        "sites": SiteTable,
        "doors": DoorTable,
        "ceilings": CeilingsTable,
        "load": LoadPermissionTable,
    },
    _table_name,
)


def build_json_schema() -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of sites.toml, for editors."""
    return document_problems.build_document_schema(SitesDocument, "sites.toml")
