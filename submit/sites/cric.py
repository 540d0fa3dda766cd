"""Sites from the JSON that CRIC publishes, the experiments' catalogue of computing resources.

Four of its documents are understood, told apart by what their entries hold:

- ``api/atlas/ddmendpoint/query/?json``: storage areas and, by activity, the protocols of each;
- ``api/atlas/pandaqueue/query/?json``: queues and their compute elements;
- ``api/atlas/site/query/?json`` and the like of CMS and of ``api/core``: cloud, tier and state;
- ``api/core/service/query/?json&type=SE``: storage services, their protocols and versions.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from treehammer.collectors.batch_names import HTCONDOR_PREFIX
from treehammer.errors import ConfigError
from treehammer.submit.sites.site_model import Door, Site
from treehammer.submit.sites.sites_file import is_valid_name

ACTIVE_STATE = "ACTIVE"
#: CRIC's schemes -> protocol of a door and the scheme that ROOT knows.
PROTOCOL_AND_SCHEME: Mapping[str, tuple[str, str]] = {
    "root": ("root", "root"),
    "roots": ("root", "roots"),
    "xroot": ("root", "root"),
    "https": ("https", "https"),
    "davs": ("https", "https"),
    "http": ("http", "http"),
    "dav": ("http", "http"),
}
#: Activities whose protocols jobs read by, the best first.
READ_ACTIVITIES = ("read_lan", "read_wan", "r")
#: Kinds of compute element -> its grid_resource.
GRID_RESOURCE_BY_FLAVOUR: Mapping[str, str] = {
    "HTCONDOR-CE": "condor {host} {host}:{port}",
    "ARC-CE": "arc https://{host}:{port}/arex",
}
DEFAULT_PORTS: Mapping[str, int] = {"HTCONDOR-CE": 9619, "ARC-CE": 443}

_Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))]


class _CricEntry(BaseModel):
    """An entry of which only these keys are of interest; each may be missing or null."""

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
    """What to make of CRIC's documents.

    Attributes:
        pool: whose jobs the sites take.
        requirements: of each site, in which ``{site}`` stands for its name; '' for none.
        kind: type of storage area, e.g. ``DATADISK``; '' for any on disk.
        below: folder below each area in which datasets lie.
    """

    pool: str
    requirements: str = ""
    kind: str = "DATADISK"
    below: str = ""


@dataclass
class CricImport:
    """The sites, and what could not be taken and why, a line each."""

    sites: list[Site] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass
class _CricDocuments:
    """The entries of all documents by name."""

    storages: dict[str, _CricStorage] = field(default_factory=dict)
    queues: dict[str, _CricQueue] = field(default_factory=dict)
    services: dict[str, _CricService] = field(default_factory=dict)
    sites: dict[str, _CricSite] = field(default_factory=dict)


def import_sites(files: Sequence[Path], wanted: CricOptions) -> CricImport:
    """The sites in CRIC's documents; one that has no door that ROOT can open is left out.

    Raises:
        ConfigError: a file cannot be read, or is none of the documents.
    """
    found = CricImport()
    documents = _CricDocuments()
    for file in files:
        _add_document(documents, file, found)
    doors = _build_doors(documents, wanted, found)
    names = sorted({*doors, *documents.sites, *_compute_elements_by_site(documents)})
    for name in names:
        if not is_valid_name(name):
            found.skipped.append(f"{name}: no name for a site")
        elif name not in doors:
            found.skipped.append(f"{name}: no door that ROOT can open")
        else:
            found.sites.append(_build_site(name, doors[name], documents, wanted, found))
    return found


def _add_document(documents: _CricDocuments, file: Path, found: CricImport) -> None:
    for name, entry in _read_entries(file):
        kinds: tuple[tuple[str, type[_CricEntry], dict[str, Any]], ...] = (
            ("arprotocols", _CricStorage, documents.storages),
            ("queues", _CricQueue, documents.queues),
            ("rcsite", _CricService, documents.services),
            ("name", _CricSite, documents.sites),
        )
        for key, model, into in kinds:
            if key not in entry:
                continue
            try:
                into[name] = model.model_validate(entry)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, first["loc"]))
                found.skipped.append(f"{name}: {place}: {first['msg']}")
            break
        else:
            found.skipped.append(f"{name}: of a kind that is not known")


def _read_entries(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of each entry; CRIC writes an object of them, AGIS before it wrote a list."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", where=str(file)) from error
    except ValueError as error:
        raise ConfigError(f"is not JSON: {error}", where=str(file)) from error
    if isinstance(document, list):
        document = {str(e.get("name")): e for e in document if isinstance(e, dict)}
    entries = document if isinstance(document, dict) else {}
    if not entries or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ConfigError(
            "is no document of CRIC that is known",
            where=str(file),
            hint="Fetch ddmendpoint, pandaqueue, site or core/service with ?json.",
        )
    yield from entries.items()


def _build_doors(
    documents: _CricDocuments, wanted: CricOptions, found: CricImport
) -> Mapping[str, list[Door]]:
    """Doors of each site: of its storage areas, or without a document of these of its services."""
    doors: dict[str, list[Door]] = defaultdict(list)
    for name, storage in documents.storages.items():
        why = _unsuitable_reason(storage, wanted)
        if why:
            found.skipped.append(f"{name}: {why}")
            continue
        here = doors[storage.site or storage.rc_site]
        for protocol in _read_protocols(storage):
            _add_door(here, name, protocol, storage.se_flavour, wanted, found)
    for name, service in documents.services.items() if not documents.storages else ():
        for protocol in service.protocols.values():
            if service.state == ACTIVE_STATE and protocol.state == ACTIVE_STATE and service.rcsite:
                here = doors[service.rcsite]
                _add_door(here, name, protocol, service.impl or protocol.impl, wanted, found)
            else:
                found.skipped.append(f"{name}: {protocol.endpoint}: not in use, or of no site")
    return {
        name: [_with_server_version(door, documents) for door in listed]
        for name, listed in doors.items()
        if listed
    }


def _unsuitable_reason(storage: _CricStorage, wanted: CricOptions) -> str:
    if storage.state != ACTIVE_STATE:
        return f"is {storage.state}"
    if storage.is_tape:
        return "is on tape"
    if wanted.kind and storage.type != wanted.kind:
        return f"is a {storage.type or 'nameless type'}, not {wanted.kind}"
    return "" if storage.site or storage.rc_site else "names no site"


def _read_protocols(storage: _CricStorage) -> Iterable[_CricProtocol]:
    """Protocols by which it is read, those of jobs at the site first, each endpoint once."""
    listed = (p for activity in READ_ACTIVITIES for p in storage.arprotocols.get(activity, ()))
    return {(protocol.endpoint, protocol.path): protocol for protocol in listed}.values()


def _add_door(
    doors: list[Door],
    area: str,
    protocol: _CricProtocol,
    middleware: str,
    wanted: CricOptions,
    found: CricImport,
) -> None:
    parts = urlsplit(protocol.endpoint)
    if parts.scheme not in PROTOCOL_AND_SCHEME or not parts.hostname:
        found.skipped.append(f"{area}: {protocol.endpoint or 'an empty endpoint'}: not for ROOT")
        return
    kind, scheme = PROTOCOL_AND_SCHEME[parts.scheme]
    folders = (part.strip("/") for part in (parts.path, protocol.path, wanted.below))
    path = "/".join(filter(None, folders))
    slashes = "//" if kind == "root" else "/"
    prefix = f"{scheme}://{parts.netloc}{slashes}{path}"
    taken = [door.name for door in doors]
    name = next(n for n in (kind, *(f"{kind}-{i}" for i in range(2, 99))) if n not in taken)
    if all(door.prefix != prefix for door in doors):
        doors.append(Door(name, kind, prefix, middleware))


def _with_server_version(door: Door, documents: _CricDocuments) -> Door:
    """The door with its server's version, where a service document tells of that host."""
    host = urlsplit(door.prefix).hostname
    for service in documents.services.values():
        for protocol in service.protocols.values():
            version = protocol.version or service.version
            if version and urlsplit(protocol.endpoint).hostname == host:
                middleware = door.middleware or protocol.impl or service.impl
                return Door(door.name, door.protocol, door.prefix, middleware, version)
    return door


def _compute_elements_by_site(documents: _CricDocuments) -> Mapping[str, list[_CricComputeElement]]:
    """Compute elements of each site."""
    elements: dict[str, list[_CricComputeElement]] = defaultdict(list)
    for queue in documents.queues.values():
        if queue.state == ACTIVE_STATE and (queue.atlas_site or queue.site):
            elements[queue.atlas_site or queue.site] += queue.queues
    return elements


def _build_site(
    name: str,
    doors: Sequence[Door],
    documents: _CricDocuments,
    wanted: CricOptions,
    found: CricImport,
) -> Site:
    place = documents.sites.get(name, _CricSite(name=name))
    tier = f"tier-{place.tier_level}" if place.tier_level else ""
    cloud, state = place.cloud or place.country_code, place.state
    labels = (f"cloud-{cloud}" if cloud else "", tier, f"state-{state}" if state else "")
    grid_resource = "" if wanted.requirements else _find_grid_resource(name, documents, found)
    requirements = wanted.requirements.replace("{site}", name)
    if not requirements and not grid_resource:
        found.skipped.append(
            f"{name}: taken without a batch selector; add requirements or grid_resource"
        )
    return Site(
        name=name,
        batch=f"{HTCONDOR_PREFIX}{wanted.pool}",
        doors=tuple(doors),
        storage=next((door.middleware for door in doors if door.middleware), ""),
        requirements=requirements,
        grid_resource=grid_resource,
        labels=tuple(dict.fromkeys(label for label in labels if is_valid_name(label))),
    )


def _find_grid_resource(name: str, documents: _CricDocuments, found: CricImport) -> str:
    """Of the site's first compute element that is in use and of a known kind."""
    resources = []
    for element in _compute_elements_by_site(documents).get(name, ()):
        endpoint = element.ce_endpoint
        parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        flavour = element.ce_flavour.upper()
        if (
            element.ce_state != ACTIVE_STATE
            or flavour not in GRID_RESOURCE_BY_FLAVOUR
            or not parts.hostname
        ):
            what = f"{element.ce_flavour or 'compute element'} {endpoint}".strip()
            found.skipped.append(f"{name}: {what} ({element.ce_state})")
            continue
        port = parts.port or DEFAULT_PORTS[flavour]
        resources.append(GRID_RESOURCE_BY_FLAVOUR[flavour].format(host=parts.hostname, port=port))
    resources = list(dict.fromkeys(resources))
    found.skipped += [f"{name}: further compute element {text}" for text in resources[1:]]
    return resources[0] if resources else ""
