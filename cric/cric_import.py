"""Import of sites from CRIC, the experiments' catalogue of computing resources.

Four of its JSON documents are supported, distinguished by the keys of their entries:

- ``api/atlas/ddmendpoint/query/?json``: storage areas and, by activity, the protocols of each;
- ``api/atlas/pandaqueue/query/?json``: queues and their compute elements;
- ``api/atlas/site/query/?json`` and its counterparts of CMS and ``api/core``: cloud, tier, state;
- ``api/core/service/query/?json&type=SE``: storage services, their protocols and versions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, ValidationError

from treehammer.collectors.http_requests import mask_credentials
from treehammer.collectors.job_spec import HTCONDOR_PREFIX
from treehammer.collectors.json_documents import load_json
from treehammer.collectors.storage_access import FILE_CLIENT, S3_CLIENT, find_scheme
from treehammer.errors import ConfigError
from treehammer.hctests.definition.document_problems import list_problems
from treehammer.program_output import read_document_text
from treehammer.submit.sites.site_model import Door, Site, find_prefix_error
from treehammer.submit.sites.sites_file import is_valid_name

ACTIVE_STATE = "ACTIVE"
#: Activities whose protocols jobs use for reading, the best first.
READ_ACTIVITIES = ("read_lan", "read_wan", "r")
#: Kind of compute element -> its default port, and the format of its grid_resource.
_COMPUTE_ELEMENTS: Mapping[str, tuple[int, str]] = {
    "HTCONDOR-CE": (9619, "condor {host} {host}:{port}"),
    "ARC-CE": (443, "arc https://{host}:{port}/arex/rest/1.0"),
}
#: Keys that identify a kind of entry: of ddmendpoint, pandaqueue, service and site.
_STORAGE, _QUEUE, _SERVICE, _SITE = _KINDS = ("arprotocols", "queues", "rcsite", "name")

#: A text on one line.
_Text = Annotated[
    str, BeforeValidator(lambda value: " ".join(str(value).split()) if value is not None else "")
]

#: A state in any case; null is as good as none.
_State = Annotated[str, BeforeValidator(lambda value: str(value or ACTIVE_STATE).strip().upper())]


class _Protocol(BaseModel):
    """A protocol of a storage area or service; other keys are ignored."""

    endpoint: _Text = ""
    path: _Text = Field("", validation_alias=AliasChoices("path", "basepath"))
    state: _State = ACTIVE_STATE
    impl: _Text = ""
    version: _Text = ""


class _ComputeElement(BaseModel):
    """A compute element of a queue."""

    ce_endpoint: _Text = ""
    ce_flavour: _Text = ""
    ce_state: _State = ACTIVE_STATE

    @property
    def grid_resource(self) -> str:
        """Its grid resource, '' if it is inactive or of an unknown kind."""
        endpoint, flavour = self.ce_endpoint, self.ce_flavour.upper()
        address = _split_endpoint(endpoint if "://" in endpoint else f"//{endpoint}")
        is_usable = self.ce_state == ACTIVE_STATE and flavour in _COMPUTE_ELEMENTS
        if not is_usable or not address.hostname:
            return ""
        port, resource = _COMPUTE_ELEMENTS[flavour]
        return resource.format(host=address.hostname, port=address.port or port)


class _Entry(BaseModel):
    """An entry of any document, with the keys of all."""

    site: _Text = Field("", validation_alias=AliasChoices("atlas_site", "site", "rcsite"))
    rc_site: _Text = ""
    state: _State = ACTIVE_STATE
    type: _Text = ""
    is_tape: bool | None = False
    middleware: _Text = Field("", validation_alias=AliasChoices("se_flavour", "impl"))
    version: _Text = ""
    cloud: _Text = ""
    country_code: _Text = ""
    tier_level: _Text = ""
    arprotocols: dict[str, list[_Protocol]] = {}
    protocols: dict[str, _Protocol] = {}
    queues: list[_ComputeElement] = []


@dataclass(frozen=True)
class CricOptions:
    """Options of an import.

    Attributes:
        pool: HTCondor pool of the sites.
        requirements: requirements of each site, with ``{site}`` for its name; '' for none.
        storage_type: type of storage area, e.g. ``DATADISK``; '' for any on disk.
        path_prefix: folder of datasets within each storage area.
    """

    pool: str
    requirements: str = ""
    storage_type: str = "DATADISK"
    path_prefix: str = ""


class CricImport:
    """Import of the sites of CRIC documents, except those without a door that ROOT can open.

    Raises:
        ConfigError: a file cannot be read or is not one of the supported documents, or an option is wrong.
    """

    def __init__(self, files: Iterable[Path], options: CricOptions) -> None:
        self.sites: list[Site] = []
        #: A line for each entry that is left out.
        self.skipped: list[str] = []
        self._options = options
        texts = {"pool": options.pool, "requirements": options.requirements}
        for problem in list_problems(Site, texts):
            if problem.path[0] in texts:
                raise ConfigError(problem.text, where=f"--{problem.path[0]}")
        self._entries: dict[str, dict[str, _Entry]] = {kind: {} for kind in _KINDS}
        for file in files:
            for name, entry in _read_entries(file).items():
                self._add_entry(name, entry, file)
        self._doors: dict[str, list[Door]] = defaultdict(list)
        # Services have doors of all storage areas, of which some are for reading.
        if self._entries[_STORAGE]:
            self._add_storage_doors()
        else:
            self._add_service_doors()
        self._add_sites()

    def _add_sites(self) -> None:
        elements = self._list_elements()
        doors = {name for name, site_doors in self._doors.items() if site_doors}
        for name in sorted({*doors, *self._entries[_SITE], *elements}):
            if not is_valid_name(name):
                self._skip(name, "not a valid site name")
            elif name not in doors:
                self._skip(name, "no door that ROOT can open")
            else:
                self._add_site(name, elements[name])

    def _list_elements(self) -> Mapping[str, list[_ComputeElement]]:
        """List the compute elements of the active queues of each site."""
        elements: dict[str, list[_ComputeElement]] = defaultdict(list)
        for queue in self._entries[_QUEUE].values():
            if queue.state == ACTIVE_STATE and queue.site:
                elements[queue.site] += queue.queues
        return elements

    def _skip(self, subject: str, reason: str) -> None:
        self.skipped.append(mask_credentials(f"{subject}: {reason}"))

    def _add_entry(self, name: str, content: Mapping[str, Any], file: Path) -> None:
        kind = next((kind for kind in _KINDS if kind in content), None)
        if kind is None:
            self._skip(name, "unknown kind of entry")
            return
        details = "protocols" if kind == _SERVICE else kind
        values = {
            key: value
            for key, value in content.items()
            if key == details or isinstance(value, str | int | float)
        }
        try:
            self._entries[kind][name] = _Entry.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key, value = ".".join(map(str, first["loc"])), mask_credentials(repr(first["input"]))
            self._skip(name, f"invalid value of {key}: {value[:60]}; correct it in {file}")

    def _add_storage_doors(self) -> None:
        for name, area in self._entries[_STORAGE].items():
            if reason := self._find_exclusion(area):
                self._skip(name, reason)
                continue
            # Without duplicate endpoints, local access first.
            protocols = {
                (protocol.endpoint, protocol.path): protocol
                for activity in READ_ACTIVITIES
                for protocol in area.arprotocols.get(activity, ())
            }
            if not protocols:
                self._skip(name, "has no protocol for reading")
            for protocol in protocols.values():
                self._add_door(area.site or area.rc_site, name, protocol, area.middleware)

    def _find_exclusion(self, area: _Entry) -> str:
        """Explain why jobs do not read from a storage area; '' if they do."""
        if area.state != ACTIVE_STATE:
            return f"is {area.state}"
        if area.is_tape:
            return "is on tape"
        if self._options.storage_type.upper() not in ("", area.type.upper()):
            return f"has type {area.type or '(none)'}, not {self._options.storage_type}"
        return "" if area.site or area.rc_site else "has no site"

    def _add_service_doors(self) -> None:
        for name, service in self._entries[_SERVICE].items():
            for protocol in service.protocols.values():
                if service.state == protocol.state == ACTIVE_STATE and service.site:
                    middleware = service.middleware or protocol.impl
                    self._add_door(service.site, name, protocol, middleware)
                else:
                    self._skip(name, f"{protocol.endpoint}: not active, or without a site")

    def _add_door(self, site: str, area: str, protocol: _Protocol, middleware: str) -> None:
        address = _split_endpoint(protocol.endpoint)
        scheme = find_scheme(protocol.endpoint)
        # Endpoints of object stores do not state whether they use TLS.
        if scheme is None or scheme.client in (FILE_CLIENT, S3_CLIENT) or not address.hostname:
            self._skip(area, f"{protocol.endpoint or 'empty endpoint'}: not supported by ROOT")
            return
        kind, doors = scheme.protocol, self._doors[site]
        folders = (address.path, protocol.path, self._options.path_prefix)
        path = "/".join(filter(None, (folder.strip("/") for folder in folders)))
        prefix = f"{scheme.name}://{address.netloc}/{'/' if kind == 'root' else ''}{path}"
        if prefix not in {door.prefix for door in doors}:
            number = sum(door.protocol == kind for door in doors) + 1
            name = kind if number == 1 else f"{kind}-{number}"
            server, version = self._find_server(address.hostname)
            door = Door.model_construct(
                name=name,
                protocol=kind,
                prefix=prefix,
                middleware=middleware or server,
                version=version,
            )
            if problem := _find_door_problem(door):
                self._skip(area, f"door at {address.hostname}: {problem}")
            else:
                doors.append(door)

    def _find_server(self, host: str) -> tuple[str, str]:
        """Return middleware and version of a host's server; '' if no service states its version."""
        for service in self._entries[_SERVICE].values():
            for protocol in service.protocols.values():
                version = protocol.version or service.version
                if version and _split_endpoint(protocol.endpoint).hostname == host:
                    return protocol.impl or service.middleware, version
        return "", ""

    def _add_site(self, name: str, elements: Sequence[_ComputeElement]) -> None:
        requirements = self._options.requirements.replace("{site}", name)
        doors = tuple(self._doors[name])
        labels = []
        if entry := self._entries[_SITE].get(name):
            cloud = entry.cloud or entry.country_code
            values = {"cloud": cloud, "tier": entry.tier_level, "state": entry.state}
            labels = [f"{kind}-{value}" for kind, value in values.items() if value]
        # Mistakes are listed where the sites file is written.
        self.sites.append(
            Site.model_construct(
                name=name,
                pool_name=self._options.pool,
                batch=f"{HTCONDOR_PREFIX}{self._options.pool}",
                doors=doors,
                storage=next((door.middleware for door in doors if door.middleware), ""),
                requirements=requirements,
                grid_resource="" if requirements else self._choose_resource(name, elements),
                labels=tuple(filter(is_valid_name, labels)),
            )
        )

    def _choose_resource(self, name: str, elements: Sequence[_ComputeElement]) -> str:
        """Choose the first compute element that jobs can use, and skip the others."""
        resources = dict.fromkeys(filter(None, (element.grid_resource for element in elements)))
        for element in elements:
            if not element.grid_resource:
                kind = element.ce_flavour or "compute element"
                reason = f"{kind} {element.ce_endpoint}".strip() + f" ({element.ce_state})"
                self._skip(name, reason)
        for resource in [*resources][1:]:
            self._skip(name, f"further compute element {resource}")
        if not resources:
            self._skip(name, "imported without a batch selector; add requirements or grid_resource")
        return next(iter(resources), "")


def _find_door_problem(door: Door) -> str:
    """Describe why a sites file would refuse a door, without its password; '' if it would not."""
    if error := find_prefix_error(door.protocol, door.prefix):
        return f"prefix {error}"
    problems = list_problems(Door, door.model_dump(exclude_unset=True))
    return next((f"{problem.path[0]} {problem.text}" for problem in problems), "")


def _split_endpoint(endpoint: str) -> SplitResult:
    """Split an address; one that is malformed, such as by its port, has no host."""
    try:
        return urlsplit(endpoint) if urlsplit(endpoint).port != 0 else urlsplit("")
    except ValueError:
        return urlsplit("")


def _read_entries(file: Path) -> Mapping[str, Any]:
    text = read_document_text(file, ConfigError)
    try:
        document = load_json(text)
    except ValueError as error:
        raise ConfigError(f"is not JSON: {error}", where=str(file)) from error
    entries = document if isinstance(document, dict) else {}
    if not entries or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ConfigError(
            "not a supported CRIC document",
            where=str(file),
            hint="Fetch ddmendpoint, pandaqueue, site or core/service with ?json.",
        )
    return entries
