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

from treehammer.errors import ConfigError
from treehammer.submit.site import Door, Site
from treehammer.submit.sites_file import proper_name

ACTIVE = "ACTIVE"
#: CRIC's schemes -> protocol of a door and the scheme that ROOT knows.
PROTOCOLS: Mapping[str, tuple[str, str]] = {
    "root": ("root", "root"),
    "roots": ("root", "roots"),
    "xroot": ("root", "root"),
    "https": ("https", "https"),
    "davs": ("https", "https"),
    "http": ("http", "http"),
    "dav": ("http", "http"),
}
#: Activities whose protocols jobs read by, the best first.
READING = ("read_lan", "read_wan", "r")
#: Kinds of compute element -> its grid_resource.
ELEMENTS: Mapping[str, str] = {
    "HTCONDOR-CE": "condor {host} {host}:{port}",
    "ARC-CE": "arc https://{host}:{port}/arex",
}
PORTS: Mapping[str, int] = {"HTCONDOR-CE": 9619, "ARC-CE": 443}

_Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))]


class _Entry(BaseModel):
    """An entry of which only these keys are of interest; each may be missing or null."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Protocol(_Entry):
    endpoint: _Text = ""
    path: _Text = Field("", validation_alias=AliasChoices("path", "basepath"))
    state: _Text = ACTIVE
    impl: _Text = ""
    version: _Text = ""


class _Storage(_Entry):
    """An entry of ddmendpoint."""

    site: _Text = ""
    rc_site: _Text = ""
    state: _Text = ACTIVE
    type: _Text = ""
    is_tape: bool | None = False
    se_flavour: _Text = ""
    arprotocols: dict[str, list[_Protocol]]


class _Element(_Entry):
    ce_endpoint: _Text = ""
    ce_flavour: _Text = ""
    ce_state: _Text = ACTIVE


class _Queue(_Entry):
    """An entry of pandaqueue."""

    atlas_site: _Text = ""
    site: _Text = ""
    state: _Text = ACTIVE
    queues: list[_Element]


class _Service(_Entry):
    """An entry of service, type SE."""

    rcsite: _Text
    impl: _Text = ""
    version: _Text = ""
    state: _Text = ACTIVE
    protocols: dict[str, _Protocol]


class _Place(_Entry):
    """An entry of site."""

    name: _Text
    cloud: _Text = ""
    country_code: _Text = ""
    tier_level: _Text = ""
    state: _Text = ""


@dataclass(frozen=True)
class Wanted:
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
class Found:
    """The sites, and what could not be taken and why, a line each."""

    sites: list[Site] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass
class _Documents:
    """The entries of all documents by name."""

    storages: dict[str, _Storage] = field(default_factory=dict)
    queues: dict[str, _Queue] = field(default_factory=dict)
    services: dict[str, _Service] = field(default_factory=dict)
    places: dict[str, _Place] = field(default_factory=dict)


def sites_of(files: Sequence[Path], wanted: Wanted) -> Found:
    """The sites in CRIC's documents; one that has no door that ROOT can open is left out.

    Raises:
        ConfigError: a file cannot be read, or is none of the documents.
    """
    found = Found()
    documents = _Documents()
    for file in files:
        _add(documents, file, found)
    doors = _doors(documents, wanted, found)
    names = sorted({*doors, *documents.places, *_sites_of_queues(documents)})
    for name in names:
        if not proper_name(name):
            found.left_out.append(f"{name}: no name for a site")
        elif name not in doors:
            found.left_out.append(f"{name}: no door that ROOT can open")
        else:
            found.sites.append(_site(name, doors[name], documents, wanted, found))
    return found


def _add(documents: _Documents, file: Path, found: Found) -> None:
    for name, entry in _entries(file):
        kinds: tuple[tuple[str, type[_Entry], dict[str, Any]], ...] = (
            ("arprotocols", _Storage, documents.storages),
            ("queues", _Queue, documents.queues),
            ("rcsite", _Service, documents.services),
            ("name", _Place, documents.places),
        )
        for key, model, into in kinds:
            if key not in entry:
                continue
            try:
                into[name] = model.model_validate(entry)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, first["loc"]))
                found.left_out.append(f"{name}: {place}: {first['msg']}")
            break
        else:
            found.left_out.append(f"{name}: of a kind that is not known")


def _entries(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
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


def _doors(documents: _Documents, wanted: Wanted, found: Found) -> Mapping[str, list[Door]]:
    """Doors of each site: of its storage areas, or without a document of these of its services."""
    doors: dict[str, list[Door]] = defaultdict(list)
    for name, storage in documents.storages.items():
        why = _unfit(storage, wanted)
        if why:
            found.left_out.append(f"{name}: {why}")
            continue
        here = doors[storage.site or storage.rc_site]
        for protocol in _reading(storage):
            _add_door(here, name, protocol, storage.se_flavour, wanted, found)
    for name, service in documents.services.items() if not documents.storages else ():
        for protocol in service.protocols.values():
            if service.state == ACTIVE and protocol.state == ACTIVE and service.rcsite:
                here = doors[service.rcsite]
                _add_door(here, name, protocol, service.impl or protocol.impl, wanted, found)
            else:
                found.left_out.append(f"{name}: {protocol.endpoint}: not in use, or of no site")
    return {
        name: [_versioned(door, documents) for door in listed]
        for name, listed in doors.items()
        if listed
    }


def _unfit(storage: _Storage, wanted: Wanted) -> str:
    if storage.state != ACTIVE:
        return f"is {storage.state}"
    if storage.is_tape:
        return "is on tape"
    if wanted.kind and storage.type != wanted.kind:
        return f"is a {storage.type or 'nameless type'}, not {wanted.kind}"
    return "" if storage.site or storage.rc_site else "names no site"


def _reading(storage: _Storage) -> Iterable[_Protocol]:
    """Protocols by which it is read, those of jobs at the site first, each endpoint once."""
    listed = (p for activity in READING for p in storage.arprotocols.get(activity, ()))
    return {(protocol.endpoint, protocol.path): protocol for protocol in listed}.values()


def _add_door(
    doors: list[Door],
    area: str,
    protocol: _Protocol,
    middleware: str,
    wanted: Wanted,
    found: Found,
) -> None:
    parts = urlsplit(protocol.endpoint)
    if parts.scheme not in PROTOCOLS or not parts.hostname:
        found.left_out.append(f"{area}: {protocol.endpoint or 'an empty endpoint'}: not for ROOT")
        return
    kind, scheme = PROTOCOLS[parts.scheme]
    folders = (part.strip("/") for part in (parts.path, protocol.path, wanted.below))
    path = "/".join(filter(None, folders))
    slashes = "//" if kind == "root" else "/"
    prefix = f"{scheme}://{parts.netloc}{slashes}{path}"
    taken = [door.name for door in doors]
    name = next(n for n in (kind, *(f"{kind}-{i}" for i in range(2, 99))) if n not in taken)
    if all(door.prefix != prefix for door in doors):
        doors.append(Door(name, kind, prefix, middleware))


def _versioned(door: Door, documents: _Documents) -> Door:
    """The door with its server's version, where a service document tells of that host."""
    host = urlsplit(door.prefix).hostname
    for service in documents.services.values():
        for protocol in service.protocols.values():
            version = protocol.version or service.version
            if version and urlsplit(protocol.endpoint).hostname == host:
                middleware = door.middleware or protocol.impl or service.impl
                return Door(door.name, door.protocol, door.prefix, middleware, version)
    return door


def _sites_of_queues(documents: _Documents) -> Mapping[str, list[_Element]]:
    """Compute elements of each site."""
    elements: dict[str, list[_Element]] = defaultdict(list)
    for queue in documents.queues.values():
        if queue.state == ACTIVE and (queue.atlas_site or queue.site):
            elements[queue.atlas_site or queue.site] += queue.queues
    return elements


def _site(
    name: str, doors: Sequence[Door], documents: _Documents, wanted: Wanted, found: Found
) -> Site:
    place = documents.places.get(name, _Place(name=name))
    tier = f"tier-{place.tier_level}" if place.tier_level else ""
    cloud, state = place.cloud or place.country_code, place.state
    labels = (f"cloud-{cloud}" if cloud else "", tier, f"state-{state}" if state else "")
    grid_resource = "" if wanted.requirements else _grid_resource(name, documents, found)
    requirements = wanted.requirements.replace("{site}", name)
    if not requirements and not grid_resource:
        found.left_out.append(
            f"{name}: taken without a batch selector; add requirements or grid_resource"
        )
    return Site(
        name=name,
        batch=f"htcondor@{wanted.pool}",
        doors=tuple(doors),
        storage=next((door.middleware for door in doors if door.middleware), ""),
        requirements=requirements,
        grid_resource=grid_resource,
        labels=tuple(dict.fromkeys(label for label in labels if proper_name(label))),
    )


def _grid_resource(name: str, documents: _Documents, found: Found) -> str:
    """Of the site's first compute element that is in use and of a known kind."""
    resources = []
    for element in _sites_of_queues(documents).get(name, ()):
        endpoint = element.ce_endpoint
        parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        flavour = element.ce_flavour.upper()
        if element.ce_state != ACTIVE or flavour not in ELEMENTS or not parts.hostname:
            what = f"{element.ce_flavour or 'compute element'} {endpoint}".strip()
            found.left_out.append(f"{name}: {what} ({element.ce_state})")
            continue
        port = parts.port or PORTS[flavour]
        resources.append(ELEMENTS[flavour].format(host=parts.hostname, port=port))
    resources = list(dict.fromkeys(resources))
    found.left_out += [f"{name}: further compute element {text}" for text in resources[1:]]
    return resources[0] if resources else ""
