"""Import of sites from CRIC, the experiments' catalogue of computing resources.

Four of its JSON documents are supported, distinguished by the keys of their entries:

- ``api/atlas/ddmendpoint/query/?json``: storage areas and, by activity, the protocols of each;
- ``api/atlas/pandaqueue/query/?json``: queues and their compute elements;
- ``api/atlas/site/query/?json`` and its counterparts of CMS and ``api/core``: cloud, tier, state;
- ``api/core/service/query/?json&type=SE``: storage services, their protocols and versions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from treehammer.collectors.job_spec import HTCONDOR_PREFIX
from treehammer.collectors.json_documents import load_json
from treehammer.collectors.storage_access import FILE_CLIENT, S3_CLIENT, find_scheme
from treehammer.errors import ConfigError
from treehammer.submit.sites.site_model import Door, Site
from treehammer.submit.sites.sites_file import is_valid_name

ACTIVE_STATE = "ACTIVE"
#: Activities whose protocols jobs use for reading, the best first.
READ_ACTIVITIES = ("read_lan", "read_wan", "r")
#: Kind of compute element -> format of its grid_resource.
GRID_RESOURCE_BY_FLAVOUR: Mapping[str, str] = {
    "HTCONDOR-CE": "condor {host} {host}:{port}",
    "ARC-CE": "arc https://{host}:{port}/arex/rest/1.0",
}
DEFAULT_PORTS: Mapping[str, int] = {"HTCONDOR-CE": 9619, "ARC-CE": 443}

_Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))]


class _CricEntry(BaseModel):
    """Base of entries: other keys are ignored, and values may be null."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _CricProtocol(_CricEntry):
    endpoint: _Text = ""
    path: _Text = Field("", validation_alias=AliasChoices("path", "basepath"))
    state: _Text = ACTIVE_STATE
    impl: _Text = ""
    version: _Text = ""


class _CricStorage(_CricEntry):
    """An entry of ddmendpoint."""

    site: _Text = ""
    rc_site: _Text = ""
    state: _Text = ACTIVE_STATE
    type: _Text = ""
    is_tape: bool | None = False
    se_flavour: _Text = ""
    arprotocols: dict[str, list[_CricProtocol]]


class _CricComputeElement(_CricEntry):
    ce_endpoint: _Text = ""
    ce_flavour: _Text = ""
    ce_state: _Text = ACTIVE_STATE


class _CricQueue(_CricEntry):
    """An entry of pandaqueue."""

    atlas_site: _Text = ""
    site: _Text = ""
    state: _Text = ACTIVE_STATE
    queues: list[_CricComputeElement]


class _CricService(_CricEntry):
    """An entry of service, type SE."""

    rcsite: _Text
    impl: _Text = ""
    version: _Text = ""
    state: _Text = ACTIVE_STATE
    protocols: dict[str, _CricProtocol]


class _CricSite(_CricEntry):
    """An entry of site."""

    name: _Text
    cloud: _Text = ""
    country_code: _Text = ""
    tier_level: _Text = ""
    state: _Text = ""


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


@dataclass
class CricImport:
    """Imported sites, and a line for each entry that was skipped."""

    sites: list[Site] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass
class _CricDocuments:
    """Entries of all documents by name."""

    storages: dict[str, _CricStorage] = field(default_factory=dict)
    queues: dict[str, _CricQueue] = field(default_factory=dict)
    services: dict[str, _CricService] = field(default_factory=dict)
    sites: dict[str, _CricSite] = field(default_factory=dict)


#: Key that identifies a kind of entry -> its model and its place in :class:`_CricDocuments`.
_ENTRY_KINDS: Mapping[str, tuple[type[_CricEntry], str]] = {
    "arprotocols": (_CricStorage, "storages"),
    "queues": (_CricQueue, "queues"),
    "rcsite": (_CricService, "services"),
    "name": (_CricSite, "sites"),
}


def import_sites(files: Sequence[Path], options: CricOptions) -> CricImport:
    """Import the sites of CRIC documents, except those without a door that ROOT can open.

    Raises:
        ConfigError: a file cannot be read, or is not one of the supported documents.
    """
    return _CricImporter(options).import_sites(files)


class _CricImporter:
    """Collects entries of documents and converts them to sites."""

    def __init__(self, options: CricOptions) -> None:
        self._options = options
        self._documents = _CricDocuments()
        self._result = CricImport()

    def import_sites(self, files: Iterable[Path]) -> CricImport:
        for file in files:
            for name, entry in _read_entries(file):
                self._add_entry(name, entry)
        doors = {
            name: site_doors for name, site_doors in self._collect_doors().items() if site_doors
        }
        elements = self._compute_elements_by_site()
        for name in sorted({*doors, *self._documents.sites, *elements}):
            if not is_valid_name(name):
                self._skip(name, "not a valid site name")
            elif name not in doors:
                self._skip(name, "no door that ROOT can open")
            else:
                self._result.sites.append(self._build_site(name, doors[name], elements[name]))
        return self._result

    def _skip(self, subject: str, reason: str) -> None:
        self._result.skipped.append(f"{subject}: {reason}")

    def _add_entry(self, name: str, entry: Mapping[str, Any]) -> None:
        key = next((key for key in _ENTRY_KINDS if key in entry), None)
        if key is None:
            self._skip(name, "unknown kind of entry")
            return
        model, collection = _ENTRY_KINDS[key]
        try:
            getattr(self._documents, collection)[name] = model.model_validate(entry)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            self._skip(name, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")

    # Doors

    def _collect_doors(self) -> Mapping[str, list[Door]]:
        """Collect the doors of each site from storage areas, or from services if there are none."""
        doors: dict[str, list[Door]] = defaultdict(list)
        if self._documents.storages:
            self._add_storage_doors(doors)
        else:
            self._add_service_doors(doors)
        return {
            name: [_with_server_version(door, self._documents) for door in site_doors]
            for name, site_doors in doors.items()
        }

    def _add_storage_doors(self, doors: Mapping[str, list[Door]]) -> None:
        for name, storage in self._documents.storages.items():
            if reason := _unsuitable_reason(storage, self._options):
                self._skip(name, reason)
                continue
            site_doors = doors[storage.site or storage.rc_site]
            for protocol in _read_protocols(storage):
                self._add_door(site_doors, name, protocol, storage.se_flavour)

    def _add_service_doors(self, doors: Mapping[str, list[Door]]) -> None:
        for name, service in self._documents.services.items():
            for protocol in service.protocols.values():
                is_active = service.state == protocol.state == ACTIVE_STATE
                if is_active and service.rcsite:
                    implementation = service.impl or protocol.impl
                    self._add_door(doors[service.rcsite], name, protocol, implementation)
                else:
                    self._skip(name, f"{protocol.endpoint}: not active, or without a site")

    def _add_door(
        self, doors: list[Door], area: str, protocol: _CricProtocol, middleware: str
    ) -> None:
        parts = urlsplit(protocol.endpoint)
        scheme = find_scheme(protocol.endpoint)
        # Endpoints of object stores do not state whether they use TLS.
        unsupported = (FILE_CLIENT, S3_CLIENT)
        if scheme is None or scheme.client in unsupported or not parts.hostname:
            self._skip(area, f"{protocol.endpoint or 'empty endpoint'}: not supported by ROOT")
            return
        folders = (parts.path, protocol.path, self._options.path_prefix)
        path = "/".join(filter(None, (folder.strip("/") for folder in folders)))
        kind = scheme.protocol
        prefix = f"{scheme.name}://{parts.netloc}{'//' if kind == 'root' else '/'}{path}"
        if prefix not in (door.prefix for door in doors):
            number = sum(door.protocol == kind for door in doors) + 1
            doors.append(
                Door.model_construct(
                    name=kind if number == 1 else f"{kind}-{number}",
                    protocol=kind,
                    prefix=prefix,
                    middleware=middleware,
                )
            )

    # Batch selectors

    def _compute_elements_by_site(self) -> defaultdict[str, list[_CricComputeElement]]:
        elements = defaultdict[str, list[_CricComputeElement]](list)
        for queue in self._documents.queues.values():
            if queue.state == ACTIVE_STATE and (queue.atlas_site or queue.site):
                elements[queue.atlas_site or queue.site] += queue.queues
        return elements

    def _build_site(
        self, name: str, doors: Sequence[Door], elements: Iterable[_CricComputeElement]
    ) -> Site:
        requirements = self._options.requirements.replace("{site}", name)
        grid_resource = "" if requirements else self._find_grid_resource(name, elements)
        if not requirements and not grid_resource:
            self._skip(name, "imported without a batch selector; add requirements or grid_resource")
        # Mistakes are listed where the sites file is written.
        return Site.model_construct(
            name=name,
            pool_name=self._options.pool,
            batch=f"{HTCONDOR_PREFIX}{self._options.pool}",
            doors=tuple(doors),
            storage=next((door.middleware for door in doors if door.middleware), ""),
            requirements=requirements,
            grid_resource=grid_resource,
            labels=_site_labels(self._documents.sites.get(name, _CricSite(name=name))),
        )

    def _find_grid_resource(self, name: str, elements: Iterable[_CricComputeElement]) -> str:
        """Return the resource of the site's first active compute element of a known kind."""
        resources: dict[str, None] = {}
        for element in elements:
            if resource := _grid_resource(element):
                resources[resource] = None
            else:
                kind = element.ce_flavour or "compute element"
                self._skip(name, f"{kind} {element.ce_endpoint}".strip() + f" ({element.ce_state})")
        first, *further = resources or [""]
        for resource in further:
            self._skip(name, f"further compute element {resource}")
        return first


def _read_entries(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and content of each entry.

    CRIC publishes an object of entries; its predecessor AGIS published a list.
    """
    try:
        document = load_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", where=str(file)) from error
    except ValueError as error:
        raise ConfigError(f"is not JSON: {error}", where=str(file)) from error
    if isinstance(document, list):
        document = {str(e.get("name")): e for e in document if isinstance(e, dict)}
    entries = document if isinstance(document, dict) else {}
    if not entries or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ConfigError(
            "not a supported CRIC document",
            where=str(file),
            hint="Fetch ddmendpoint, pandaqueue, site or core/service with ?json.",
        )
    yield from entries.items()


def _unsuitable_reason(storage: _CricStorage, options: CricOptions) -> str:
    if storage.state != ACTIVE_STATE:
        return f"is {storage.state}"
    if storage.is_tape:
        return "is on tape"
    if options.storage_type and storage.type != options.storage_type:
        return f"has type {storage.type or '(none)'}, not {options.storage_type}"
    return "" if storage.site or storage.rc_site else "has no site"


def _read_protocols(storage: _CricStorage) -> Iterable[_CricProtocol]:
    """Return the protocols for reading without duplicate endpoints, local access first."""
    protocols = (p for activity in READ_ACTIVITIES for p in storage.arprotocols.get(activity, ()))
    return {(protocol.endpoint, protocol.path): protocol for protocol in protocols}.values()


def _with_server_version(door: Door, documents: _CricDocuments) -> Door:
    """Add the version of the door's server, if a service document has that host."""
    host = urlsplit(door.prefix).hostname
    for service in documents.services.values():
        for protocol in service.protocols.values():
            version = protocol.version or service.version
            if version and urlsplit(protocol.endpoint).hostname == host:
                middleware = door.middleware or protocol.impl or service.impl
                return door.replace(middleware=middleware, version=version)
    return door


def _site_labels(site: _CricSite) -> tuple[str, ...]:
    values = {
        "cloud": site.cloud or site.country_code,
        "tier": site.tier_level,
        "state": site.state,
    }
    labels = (f"{kind}-{value}" for kind, value in values.items() if value)
    return tuple(dict.fromkeys(label for label in labels if is_valid_name(label)))


def _grid_resource(element: _CricComputeElement) -> str:
    """Return the grid resource of a compute element, '' if it is inactive or of another kind."""
    endpoint = element.ce_endpoint
    parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
    flavour = element.ce_flavour.upper()
    is_supported = flavour in GRID_RESOURCE_BY_FLAVOUR
    if element.ce_state != ACTIVE_STATE or not is_supported or not parts.hostname:
        return ""
    port = parts.port or DEFAULT_PORTS[flavour]
    return GRID_RESOURCE_BY_FLAVOUR[flavour].format(host=parts.hostname, port=port)
