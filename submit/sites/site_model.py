"""Sites: places where jobs run, with the doors through which they read.

The frozen models are those of ``sites.toml``, published as ``sites.schema.json``.  Validated in the
context of a folder, they resolve relative paths.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from treehammer.collectors import storage_access
from treehammer.collectors.http_requests import TOKEN_POOLS_VARIABLE, format_token_pools
from treehammer.collectors.job_spec import HTCONDOR_PREFIX, LOCAL_BATCH
from treehammer.collectors.software.setup_commands import CVMFS, parse_cvmfs
from treehammer.extensions import ExtensionGroup, load_extension
from treehammer.hctests.definition import document_problems
from treehammer.hctests.definition.document_problems import (
    Bytes,
    FilledLine,
    Items,
    Line,
    Name,
    ScalarText,
    StrictModel,
    invalid_value,
    validate_line,
)
from treehammer.hctests.definition.matrix import AXES_BY_NAME, AXIS_NAME_PATTERN
from treehammer.sql.core.subjects import label_door
from treehammer.submit.batch.htcondor.pool import HomePath, HTCondorPool, NamedTable, resolve_path
from treehammer.text_formatting import format_size

T = TypeVar("T", bound=NamedTable)
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

#: Variables that a site cannot set for its jobs, and why.
_REFUSED_VARIABLES = {
    r"TREEHAMMER_\w*": "is set by Treehammer for worker and payload",
    r"_CONDOR_\w*": "is set by HTCondor",
    r"X509_USER_PROXY|BEARER_TOKEN(_FILE)?"
    r"|AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|SHARED_CREDENTIALS_FILE)": "is a credential of "
    "a user, not of a site (use --proxy, --token-file or --s3-credentials of submit)",
    r"LD_(PRELOAD|LIBRARY_PATH|AUDIT)|PYTHON(PATH|HOME)|ROOTSYS": "changes the software that is measured "
    "under an unchanged name (use software, with a set-up script or wrap:)",
}


def matching(pattern: str, problem: str) -> AfterValidator:
    """Accept text that matches a pattern; ``problem`` follows other text in its message."""

    def validate(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise invalid_value(f"{text!r} {problem}")
        return text

    return AfterValidator(validate)


def _validate_view(value: str) -> str:
    """Accept a view on CVMFS, or the absolute path of one on a site's nodes."""
    if not PurePosixPath(value).is_absolute():
        try:
            parse_cvmfs(value, value, "")
        except ValueError:
            raise invalid_value(
                f"{value!r} names no view (expected VIEW/PLATFORM on CVMFS, or an absolute path)"
            ) from None
    return value


def _validate_writable_path(value: str) -> str:
    """Accept an absolute path at the storage other than its root."""
    validate_line(value)
    path = PurePosixPath(value)
    if not path.is_absolute() or not path.name or ".." in path.parts or re.search(r"[?#]", value):
        raise invalid_value(f"{value!r} is not an absolute path of a folder at the storage")
    return str(path)


def _validate_software(value: str) -> str:
    """Accept a value of the root axis, in which ``{version}`` stands for the release."""
    text = value.replace("{version}", "6.40.00")
    if "{" in text or "}" in text:
        raise invalid_value(f"{value!r} contains braces other than {{version}}")
    try:
        AXES_BY_NAME["root"].normalize(text)
    except ValueError as error:
        raise invalid_value(f"{error} (expected {AXES_BY_NAME['root'].expected})") from None
    return value


def _validate_grid_resource(value: str) -> str:
    """Accept a grid resource of a known kind in HTCondor's format."""
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


def _validate_eviction(command: str) -> str:
    """Accept a command in which ``{server}``, ``{path}`` and ``{url}`` stand for a file's address."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise invalid_value(f"{command!r}: {error}") from None
    places = re.findall(r"\{(.*?)\}", command)
    if unknown := {*places} - {"server", "path", "url"}:
        raise invalid_value(
            f"{command!r} contains {{{min(unknown)}}} (expected {{server}}, {{path}} or {{url}})"
        )
    if not words or not {"path", "url"} & set(places):
        raise invalid_value(f"{command!r} names no file (expected {{path}} or {{url}})")
    return command


def _validate_address(address: str) -> str:
    """Accept HOST:PORT, or nothing."""
    host, _, port = address.rpartition(":")
    if not address:
        return address
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise invalid_value(f"{address!r} is not HOST:PORT")
    return address


def _validate_protocol(protocol: str) -> str:
    """Accept the protocols of doors, shipped or of another package."""
    if protocol in storage_access.PROTOCOLS or load_extension(
        ExtensionGroup.DOOR_PROTOCOLS, protocol
    ):
        return protocol
    *most, last = map(repr, storage_access.PROTOCOLS)
    raise invalid_value(f"{protocol!r} is wrong (expected {', '.join(most)} or {last})")


def find_prefix_error(protocol: str, prefix: str) -> str:
    """Describe why ROOT could not read through a door with this prefix; '' if it can."""
    if {"?", "#"} & {*prefix}:
        return "contains '?' or '#', which ROOT interprets as options"
    if protocol == "file":
        return "is a URL (expected a path)" if "://" in prefix else ""
    try:
        parts = urlsplit(storage_access.normalize_url(prefix))
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        return f"is not a URL: {error}"
    if user_error := find_user_error(prefix):
        return user_error
    schemes = storage_access.list_aliases(protocol) or (protocol,)
    rules = (
        (
            f"is invalid (expected {schemes[0]}://HOST:PORT/…)",
            parts.scheme not in schemes or not host,
        ),
        ("contains a space (expected %20)", re.search(r"\s", prefix)),
        (
            f"needs two slashes after the host: {parts.scheme}://{parts.netloc}/{parts.path}",
            protocol == "root" and re.match("/[^/]", parts.path),
        ),
    )
    return next((error for error, applies in rules if applies), "")


def find_user_error(url: str) -> str:
    """Describe why a URL may not contain its password or user; '' if it may."""
    match = re.match(r"(\w+)://([^/\s]*)@", url)
    if match and ":" in match[2]:
        return "contains a password, which every measurement would show (expected none)"
    if match and match[1].lower() not in storage_access.list_aliases("root"):
        return "contains a user, whom only XRootD knows (expected none)"
    return ""


def find_variable_error(name: str, value: str) -> str:
    """Describe why a site cannot set this environment variable for its jobs; '' if it can."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return f"{name!r} is no name of an environment variable"
    if re.search(r"://[^/@\s]*:[^/@\s]*@", value):
        return "contains a password, which the pool shows to everyone (expected none)"
    reasons = (why for pattern, why in _REFUSED_VARIABLES.items() if re.fullmatch(pattern, name))
    return next(reasons, "")


def normalize_prefix(protocol: str, prefix: str) -> str:
    """Replace aliases of the scheme, and let ``/DATASET/FILE`` be appended."""
    prefix = storage_access.normalize_url(prefix)
    if protocol != "root":
        return prefix.rstrip("/") or "/"
    head, path = re.fullmatch(r"(\w+://[^/]+)(.*)", prefix).groups()  # type: ignore[union-attr]  # checked
    path = path.strip("/")
    return f"{head}//{path}" if path else f"{head}/"


_ABSOLUTE_PATH = matching("/.*", "is not an absolute path on the site's nodes")
_NodePath = Annotated[FilledLine, _ABSOLUTE_PATH]
_TokenPool = Annotated[
    FilledLine,
    matching(
        r"(?=.*[A-Za-z0-9])([A-Za-z0-9.*_-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?",
        "is no HOST or HOST:PORT, such as pool*.example.org",
    ),
]
_Origin = Annotated[
    str,
    matching(
        r"|(roots?|https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}",
        "is no address of a server, such as root://origin.example:1094",
    ),
]
_SubmitValue = Annotated[
    ScalarText, AfterValidator(validate_line), matching(".+", "is empty (expected a value)")
]


class Ceilings(StrictModel):
    """Limits of a site for one campaign; 0 means unlimited."""

    jobs: int = Field(0, ge=0, lt=2**63, description="Number of jobs.")
    in_flight: int = Field(0, ge=0, lt=2**63, description="Jobs queued or running at a time.")
    bytes_per_day: Bytes = Field(
        0, description='Bytes read per day, as a number or text such as "10 TB".'
    )
    mb_per_s: float = Field(
        0.0, ge=0, lt=1e12, description="Megabytes (10⁶ bytes) per second through its doors."
    )
    memory_mb: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="Memory of one job in MB; jobs that need more are given so much, and their payloads are "
        "ended earlier.",
    )

    def describe(self) -> str:
        """Describe the limits in words."""
        parts = (
            f"{self.jobs:,} jobs" if self.jobs else "",
            f"{self.in_flight:,} in flight" if self.in_flight else "",
            f"{format_size(self.bytes_per_day)} a day" if self.bytes_per_day else "",
            f"{self.mb_per_s:g} MB/s" if self.mb_per_s else "",
            f"{self.memory_mb:,} MB of memory" if self.memory_mb else "",
        )
        return ", ".join(filter(None, parts)) or "–"


class LoadPermission(StrictModel):
    """Load that a door permits at a time; a missing kind is not permitted."""

    opens_per_s: float = Field(0.0, ge=0, lt=1e9, description="Files opened per second.")
    clients: int = Field(0, ge=0, lt=2**31, description="Clients connected.")
    mb_per_s: float = Field(
        0.0, ge=0, lt=1e12, description="Traffic in megabytes (10⁶ bytes) per second."
    )
    writable: Annotated[str, AfterValidator(_validate_writable_path)] = Field(
        "", description="Absolute path at the storage for files that load tests write and remove."
    )

    def describe(self) -> str:
        """Describe the permitted load in words."""
        parts = (
            f"{self.opens_per_s:,.15g} opens/s" if self.opens_per_s else "",
            f"{self.clients:,} clients" if self.clients else "",
            f"{self.mb_per_s:,.15g} MB/s" if self.mb_per_s else "",
            f"writes in {self.writable}" if self.writable else "",
        )
        return ", ".join(filter(None, parts)) or "–"


class DoorCache(StrictModel):
    """A cache behind a door, which tests with the axis server_cache empty and whose counts they read."""

    evict: Annotated[FilledLine, AfterValidator(_validate_eviction)] = Field(
        "xrdfs {server} cache evict {path}",
        description="Command that removes one file from the cache, run on the job's node; {server} is "
        "HOST:PORT of the door, {path} the file's path there, {url} its whole URL.",
    )
    files: Annotated[Line, _ABSOLUTE_PATH] = Field(
        "",
        description="Folder of the cache as jobs see it, with a .cinfo beside each file; empty if they cannot.",
    )
    monitor: Annotated[Line, AfterValidator(_validate_address)] = Field(
        "",
        description="HOST:PORT on the job's node to which the cache sends its pfc stream (xrootd.mongstream).",
    )


class Door(StrictModel):
    """A storage endpoint; tests that name no door use the first."""

    name: Name = Field(description='Value of the door axis, e.g. "root".')
    protocol: Annotated[str, AfterValidator(_validate_protocol)] = Field(
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
    origin: _Origin = Field(
        "",
        description="Server from which a cache fetches files, as root://HOST:PORT: measurements record its "
        "version and the round trip to it.",
    )
    link: Annotated[str, AfterValidator(_validate_address)] = Field(
        "",
        description="HOST:PORT of the control of a link before the data's origin, which the axes latency_ms "
        "and bandwidth_mbit set; without one, jobs start a proxy on their node.",
    )
    netem: bool = Field(
        False,
        description="Whether jobs may set these axes by the kernel's netem, as root or with CAP_NET_ADMIN: "
        "everything on the node that talks with the door is delayed meanwhile. Others start the proxy.",
    )
    load: LoadPermission | None = Field(
        None, description="Load that load tests may put on it; none without this table."
    )
    settings: Items[Annotated[str, StringConstraints(pattern=AXIS_NAME_PATTERN)]] = Field(
        default_factory=tuple,
        description="Settings of its server that tests may change with the command of [before]: names of axes.",
    )
    cache: DoorCache | None = Field(
        None, description="The cache behind it, such as an XCache; none without this table."
    )
    token_pools: Items[_TokenPool] = Field(
        default_factory=tuple,
        description="Hosts to which a token for this https door may follow its redirects, over https only: "
        'HOST or HOST:PORT, with * for any characters, e.g. "pool*.example.org". Without it, the token stays '
        "at the door's own host and port.",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _normalize(
        cls, raw: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Normalize the prefix; checks across tables report an invalid one."""
        door = handler(raw)
        if door.prefix and not find_prefix_error(door.protocol, door.prefix):
            prefix = normalize_prefix(door.protocol, door.prefix)
            door.__dict__["prefix"] = str(resolve_path(prefix, info)) if door.is_path else prefix
        return door

    @property
    def writable_url(self) -> str:
        """URL or path of the area for files of load tests; '' without any."""
        path = self.load.writable if self.load else ""
        if not path or self.is_path:
            return path
        parts = urlsplit(self.prefix)
        slash = "/" if self.protocol == "root" else ""  # two after the host
        return f"{parts.scheme}://{parts.netloc}{slash}{quote(path)}"

    @property
    def is_path(self) -> bool:
        """Whether jobs read it as a path of their node."""
        return self.protocol == "file"

    def file_url(self, dataset: str, file: str) -> str:
        """Return the URL or path that ROOT opens for a file, for a door without RSE."""
        path = f"{dataset}/{file}"
        return f"{self.prefix}/{path if self.protocol == 'file' else quote(path)}"


def token_pool_environment(doors: Iterable[Door]) -> dict[str, str]:
    """Return the variable that names the pools of doors to all HTTP clients; empty without pools."""
    text = format_token_pools({door.prefix: door.token_pools for door in doors})
    return {TOKEN_POOLS_VARIABLE: text} if text else {}


class Site(NamedTable):
    """A place where jobs run."""

    pool_name: Name | None = Field(
        None,
        alias="pool",
        description="Name of the pool in [pools] that runs its jobs; without one, jobs run on this machine.",
    )
    batch: FilledLine = Field(
        LOCAL_BATCH,
        description="Batch system without a pool that runs its jobs: local, or another shipped or installed one, as "
        "NAME or NAME@ARGUMENT.",
    )
    requirements: Annotated[
        Line, matching(r"(.*[^\\])?", "ends with a backslash, which would continue its line")
    ] = Field("", description="ClassAd expression that selects its machines in the pool.")
    grid_resource: Annotated[Line, AfterValidator(_validate_grid_resource)] = Field(
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
        "/usr/bin/python3",
        description="Python interpreter that starts the worker on its nodes. Where it is missing or older than "
        "3.9, others on the node are looked for.",
    )
    python_views: Items[Annotated[FilledLine, AfterValidator(_validate_view)]] = Field(
        default_factory=tuple,
        description="Views whose Python starts the worker where the nodes have none of their own, e.g. "
        '"LCG_106/x86_64-el9-gcc13-opt" on CVMFS, or absolute paths.',
    )
    labels: Items[Name] = Field(
        default_factory=tuple, description="Words that select the site: --sites label:WORD."
    )
    software: dict[Line, Annotated[Line, AfterValidator(_validate_software)]] = Field(
        default_factory=dict,
        description="ROOT release -> value of the root axis at this site, with {version} for the release; "
        '"*" stands for all other releases. Empty: the values of the test.',
    )
    environment: dict[str, Line] = Field(
        default_factory=dict,
        description="Environment variables of its jobs, e.g. https_proxy. Refused are those that Treehammer "
        "and HTCondor set, credentials, and those that change the measured software, such as LD_PRELOAD.",
    )
    submit: dict[str, _SubmitValue] = Field(
        default_factory=dict,
        description="Additional submit commands, e.g. accounting_group, or options of the batch system, e.g. account and partition.",
    )
    templates: HomePath | None = Field(
        None, description="Folder with templates that replace the shipped ones."
    )
    ceilings: Ceilings = Field(default_factory=Ceilings, description="Limits for one campaign.")
    doors: Items[Door] = Field(
        json_schema_extra={"minItems": 1}, description="Storage endpoints, at least one."
    )

    @model_validator(mode="wrap")
    @classmethod
    def _complete(
        cls, raw: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Derive the batch system from the pool."""
        site = handler(raw)
        if site.pool_name and "batch" not in site.model_fields_set:
            site.__dict__["batch"] = f"{HTCONDOR_PREFIX}{site.pool_name}"
        elif not info.context:
            site.__dict__["pool_name"] = site.pool or None
        return site

    @property
    def is_local(self) -> bool:
        """Whether its jobs run on this machine."""
        return self.batch == LOCAL_BATCH

    @property
    def pool(self) -> str:
        """Name of its HTCondor pool; '' for another batch system."""
        is_htcondor = self.batch.startswith(HTCONDOR_PREFIX)
        return self.batch.removeprefix(HTCONDOR_PREFIX) if is_htcondor else ""

    @property
    def pythons(self) -> tuple[str, ...]:
        """Interpreters, and folders of views with one, in which the worker is tried first."""
        mount = self.cvmfs or CVMFS
        folders = (
            view if view.startswith("/") else f"{mount}/{parse_cvmfs(view, view, '').location}"
            for view in self.python_views
        )
        return self.python, *folders

    def find_door(self, name: str) -> Door | None:
        """Return the door with this name, or None."""
        return next((door for door in self.doors if door.name == name), None)


@dataclass(frozen=True)
class DoorAccess:
    """A door of a storage site, as jobs of a site read it; the two are mostly the same site."""

    site: Site
    storage: Site
    door: Door

    @property
    def is_remote(self) -> bool:
        """Whether jobs read the storage of another site."""
        return self.storage.name != self.site.name

    @property
    def door_label(self) -> str:
        """Name of the door, unique among all doors that jobs of the site read."""
        door = self.door.name
        return label_door(self.storage.name, door) if self.is_remote else door

    @property
    def key(self) -> tuple[str, str]:
        """Names of the site and of the door as its jobs read it."""
        return self.site.name, self.door_label


class SitesDocument(StrictModel):
    """The document sites.toml; relative paths are relative to the file."""

    pools: dict[Name, HTCondorPool] = Field(
        default_factory=dict, description="HTCondor pools by name."
    )
    sites: dict[Name, Site] = Field(default_factory=dict, description="Sites by name.")

    @field_validator("pools", "sites")
    @classmethod
    def _name_tables(cls, tables: dict[str, T]) -> dict[str, T]:
        return {name: table.replace(name=name) for name, table in tables.items()}


def build_json_schema() -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of sites.toml, for editors."""
    return document_problems.build_document_schema(SitesDocument, "sites.toml")
