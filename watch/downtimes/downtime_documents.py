"""Announced downtimes of sites from documents: JSON or XML of GOCDB, OSG and CRIC."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from itertools import filterfalse
from typing import TYPE_CHECKING, Any

from treehammer.collectors.http_requests import Deadline, mask_credentials, send_request
from treehammer.collectors.json_documents import RepeatedKeyError, load_json
from treehammer.collectors.shared_files import open_document
from treehammer.collectors.xml_documents import XmlError, local_name, parse_xml
from treehammer.errors import ConfigError, NothingToDoError, SourceUnreachableError, suggest_word
from treehammer.sql.core.column_types import MAX_TEXT_CHARS
from treehammer.sql.core.subjects import SITE, STORAGE_SITE
from treehammer.sql.core.watch_rows import DowntimeRow
from treehammer.submit.sites.site_model import Site
from treehammer.text_formatting import pluralize
from treehammer.version import __version__
from treehammer.watch.downtimes.downtime_entries import (
    END_KEYS,
    START_KEYS,
    DowntimeEntry,
    DowntimeSkippedError,
    find_host,
    is_container,
    normalize_key,
    normalize_keys,
    read_entry,
    split_services,
)
from treehammer.watch.store.state_history import AT_RISK, OUTAGE

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_DOCUMENT_BYTES = 50_000_000
#: Entries of unknown sites that are listed.
MAX_REFUSED_LINES = 10
_TIMEOUT_S = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RISK = re.compile(
    r"at[ _-]?risk|warning|moderate|transparent|degraded|intermittent"
    r"|(?<![a-z])no[ _-]+(significant[ _-]+)?(outage|impact|interruption|downtime)",
    re.IGNORECASE,
)
_STORAGE = re.compile(
    r"srm|xroot|webdav|\bdavs?\b|\bhttps?\b|\bs3\b|gridftp|gsiftp|storage|dcache|pelican|osdf"
    r"|\beos\b|\bse\b|\bceph|lustre|gpfs|\bnfs\b|hdfs|\bdpm\b|\bstorm\b|object.?store|\bdisk\b",
    re.IGNORECASE,
)
_COMPUTING = re.compile(r"(?i)\bce\b|condor|cream|arex|\barc(?!h)|comput|execut|batch|worker|slurm")
#: Services without which jobs run and storage answers, although their names may be similar.
_AUXILIARY = re.compile(
    r"perfsonar|bdii|apel|argus|voms|squid|accounting|monitoring|cloud|openstack", re.IGNORECASE
)
#: Words, in place of services, for all of a site.
_EVERYTHING = re.compile(
    r"(all|whole|entire|site|services?|cent(er|re)|infrastructure|network|power|cooling|planned"
    r"|(un)?scheduled|maintenance|downtime|outage|intervention|\W)+",
    re.IGNORECASE,
)
_KINDS = frozenset((SITE, STORAGE_SITE))

#: Keys that only a downtime has, not a list of them.
_ENTRY_KEYS = frozenset((*START_KEYS, *END_KEYS, "severity", "sitename", "hostedby", "hostname"))
#: Keys around the downtimes that name no site, and those that hold none.
_CONTAINER_KEY = re.compile(r"results|root|data|(past|current|future)?downtimes?")
_METADATA_KEYS = frozenset(("meta", "metadata", "link", "links"))
#: Keys of the objects around an entry, and its values.
_Entry = tuple[tuple[str, ...], Any]


@dataclass(frozen=True)
class DowntimeDocument:
    """Downtimes of a document, and the entries that could not be read or are of unknown sites."""

    downtimes: tuple[DowntimeRow, ...]
    skipped: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    def list_refused(self) -> Iterator[str]:
        """List the entries that are not imported, at most :data:`MAX_REFUSED_LINES` of unknown sites."""
        yield from (f"skipped: {line}" for line in self.skipped)
        # Typing errors first: a worldwide document lists many sites that are not measured.
        refused = sorted(self.unknown, key=lambda line: "Did you mean" not in line)
        # A service of GOCDB is an entry: each site is named once.
        lines = list({line.partition(": ")[2]: line for line in reversed(refused)}.values())[::-1]
        yield from (f"refused: {line}" for line in lines[:MAX_REFUSED_LINES])
        if len(lines) > MAX_REFUSED_LINES:
            yield f"refused: {pluralize(len(self.unknown), 'entry', 'entries')} of unknown sites in all"

    def require_downtimes(self, address: str, known_sites: Collection[str]) -> None:
        """Check that a downtime can be imported, or that the document announces none.

        Raises:
            ConfigError: nothing is left, since the sites are unknown.
            NothingToDoError: nothing is left, since no entry can be read.
        """
        if self.downtimes:
            return
        if self.unknown:
            raise ConfigError(
                f"no site of this document is known; the first is {self.unknown[0]}",
                where=address,
                hint="Name the site of an entry with --map NAME=SITE, or of all with --site SITE. "
                f"Known: {', '.join(sorted(known_sites))}.",
            )
        if self.skipped:
            raise NothingToDoError("no downtime in this document can be read", where=address)


@dataclass(frozen=True)
class SiteHosts:
    """Hosts that sites use: of their doors, and of their compute elements.

    Attributes:
        kinds_by_host: kinds that a host serves, by host and site.
        named_kinds: kinds of a site all of whose hosts are in the sites file.
    """

    kinds_by_host: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    named_kinds: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def find_served(self, site: str, hosts: Iterable[str]) -> frozenset[str]:
        """Find the kinds of a site that some of these hosts serve."""
        kinds = (self.kinds_by_host.get(host, {}).get(site, frozenset()) for host in hosts)
        return frozenset[str]().union(*kinds)


@dataclass(frozen=True)
class DowntimeOptions:
    """Interpretation of a document.

    Attributes:
        source: its name, by which a later import replaces it.
        site: the site of all entries; '' for the site that each entry names.
        sites_by_name: site by the name that the document has for it or one of its hosts.
        known_sites: names of all sites; entries of others are refused.
        hosts: hosts that the sites use, see :func:`map_hosts`.
    """

    source: str
    site: str
    sites_by_name: Mapping[str, str]
    known_sites: Collection[str]
    hosts: SiteHosts = field(default_factory=SiteHosts)


class UnknownDowntimeSiteError(DowntimeSkippedError):
    """The site of an entry is unknown."""


def map_hosts(sites: Iterable[Site]) -> SiteHosts:
    """Map the hosts of doors and compute elements that the sites file names."""
    kinds_by_host: defaultdict[str, dict[str, frozenset[str]]] = defaultdict(dict)
    named_kinds: dict[str, frozenset[str]] = {}
    for site in sites:
        doors = {find_host(door.prefix) for door in site.doors if not door.is_path}
        elements = {find_host(word) for word in site.grid_resource.split()[1:]} - {""}
        hosts_by_kind = {STORAGE_SITE: doors, SITE: elements}
        for kind, hosts in hosts_by_kind.items():
            for host in hosts - {""}:
                kinds = kinds_by_host[host].get(site.name, frozenset())
                kinds_by_host[host][site.name] = kinds | {kind}
        # Doors of a Rucio storage have no host until a test is planned.
        named_kinds[site.name] = frozenset(
            kind for kind, hosts in hosts_by_kind.items() if hosts and "" not in hosts
        )
    return SiteHosts(kinds_by_host, named_kinds)


def fetch_document(address: str) -> bytes:
    """Read a file, or fetch a document from an http or https URL.

    Raises:
        ConfigError: the file cannot be read, the URL has a user, or the document is too large.
        SourceUnreachableError: the server does not answer, or refuses.
    """
    if (masked := mask_credentials(address)) != address:
        raise ConfigError("contains a user or password (expected none)", where=masked)
    if not address.startswith(("https://", "http://")):
        try:
            with open_document(address) as stream:
                content = stream.read(MAX_DOCUMENT_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"cannot be read ({error.strerror})", where=address) from error
    else:
        headers = {"User-Agent": f"treehammer/{__version__}"}
        try:
            with send_request("GET", address, Deadline(_TIMEOUT_S), headers) as answer:
                content = answer.read(MAX_DOCUMENT_BYTES + 1)
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise SourceUnreachableError(
                f"cannot be fetched ({reason})", where=address, hint="Downtimes stay as they were."
            ) from error
    if len(content) > MAX_DOCUMENT_BYTES:
        raise ConfigError("is larger than 50 MB", where=address)
    return content


def parse_downtimes(content: bytes, options: DowntimeOptions, now_us: int) -> DowntimeDocument:
    """Parse a document, whose format is recognized by its content.

    Raises:
        ConfigError: it is no JSON or XML document of downtimes.
    """
    rows: dict[str, DowntimeRow] = {}
    skipped: list[str] = []
    unknown: list[str] = []
    try:
        # XML begins so in any encoding.
        beginning = content[:200].translate(None, b"\0\xef\xbb\xbf\xff\xfe").lstrip()
        parse = _parse_xml if beginning.startswith(b"<") else _parse_json
        for number, (groups, values) in enumerate(parse(content, options.source), 1):
            name = f"entry {number}"
            try:
                entry_rows = _build_rows(read_entry(groups, values), options, now_us)
            except UnknownDowntimeSiteError as error:
                unknown.append(f"{name}: {error}")
            except DowntimeSkippedError as error:
                skipped.append(f"{name}: {error}")
            else:
                for row in entry_rows:
                    # GOCDB repeats a downtime for each service: the worst severity counts.
                    if row.id not in rows or row.severity == OUTAGE:
                        rows[row.id] = row
    except RecursionError as error:
        raise ConfigError("is nested too deeply", where=options.source) from error
    return DowntimeDocument(tuple(rows.values()), tuple(skipped), tuple(unknown))


def _parse_json(content: bytes, source: str) -> Iterator[_Entry]:
    try:
        document = load_json(content)
    except RepeatedKeyError as error:
        raise ConfigError(str(error), where=source) from error
    except ValueError as error:
        raise ConfigError("is neither JSON nor XML", where=source, hint=f"JSON: {error}") from error
    if not isinstance(document, dict | list):
        raise ConfigError("holds neither a list nor an object", where=source)
    return _list_entries(document, ())


def _parse_xml(content: bytes, source: str) -> Iterator[_Entry]:
    try:
        element = parse_xml(content)
    except XmlError as error:
        raise ConfigError(
            str(error),
            where=source,
            hint="Expected the document of a service, without <!DOCTYPE …>.",
        ) from error
    root = local_name(element)
    document = {root: _read_element(element)}
    entries = list(_list_entries(document, ()))
    has_downtimes = any(
        isinstance(values, dict) and values.keys() & _ENTRY_KEYS for _, values in entries
    )
    if not has_downtimes and not _CONTAINER_KEY.fullmatch(normalize_key(root)):
        raise ConfigError(
            f"is XML, but not of downtimes (root element {root!r})",
            where=source,
            hint="Expected the answer of GOCDB's get_downtime, or of OSG's rgdowntime/xml.",
        )
    return iter(entries)


def _read_element(element: Element) -> Any:
    """Convert an element to the values that JSON has for it."""
    # Declarations of schemas are no values.
    items: dict[str, list[Any]] = defaultdict(list)
    for key, text in element.items():
        if "}" not in key:
            items[key].append(text)
    for child in element:
        items[local_name(child)].append(_read_element(child))
    texts = filter(None, (element.text, *(child.tail for child in element)))
    if text := "".join(texts).strip():
        items["#text"].append(text)
    if items.keys() <= {"#text"}:
        return text or None
    return {key: values[0] if len(values) == 1 else values for key, values in items.items()}


def _list_entries(value: Any, groups: tuple[str, ...]) -> Iterator[_Entry]:
    """List the entries of lists, and of objects around them, whose keys may be sites as in CRIC."""
    if isinstance(value, list):
        for item in value:
            yield from _list_entries(item, groups)
        return
    if not isinstance(value, dict):
        yield groups, value
        return
    values = normalize_keys(value)
    if not values:
        return
    if values.keys() & _ENTRY_KEYS or not any(map(is_container, values.values())):
        yield from ((groups, entry) for entry in split_services(values))
    else:
        yield from _list_inner_entries(value, groups)


def _list_inner_entries(value: dict[str, Any], groups: tuple[str, ...]) -> Iterator[_Entry]:
    for key, item in value.items():
        name = normalize_key(key)
        if is_container(item) and name not in _METADATA_KEYS:
            inner = groups if _CONTAINER_KEY.fullmatch(name) else (*groups, key)
            yield from _list_entries(item, inner)


def _build_rows(entry: DowntimeEntry, options: DowntimeOptions, now_us: int) -> list[DowntimeRow]:
    """Build a downtime for each site of an entry, mostly one."""
    sites = _find_sites(entry, options)
    starts_us, ends_us = (
        (moment - _EPOCH) // timedelta(microseconds=1) for moment in (entry.start, entry.end)
    )
    if ends_us <= starts_us:
        raise DowntimeSkippedError("ends before it starts")
    key = entry.id or f"{starts_us} {ends_us} {entry.description}"
    rows = []
    for site in sites:
        kinds, is_used = _find_kinds(entry, site, options)
        kind = next(iter(kinds)) if len(kinds) == 1 else ""
        identity = json.dumps([options.source, key, site, kind])
        rows.append(
            DowntimeRow(
                id=hashlib.sha256(identity.encode()).hexdigest()[:24],
                source=options.source[:MAX_TEXT_CHARS],
                site=site[:MAX_TEXT_CHARS],
                subject_kind=kind,
                starts_us=starts_us,
                ends_us=ends_us,
                severity=OUTAGE if is_used and not _RISK.search(entry.severity) else AT_RISK,
                description=entry.description[:MAX_TEXT_CHARS],
                url=entry.url[:MAX_TEXT_CHARS],
                imported_us=now_us,
            )
        )
    return rows


def _find_sites(entry: DowntimeEntry, options: DowntimeOptions) -> list[str]:
    """Find the sites of an entry.

    Names are tried first, then hosts, because another catalogue may name a site differently.

    Raises:
        UnknownDowntimeSiteError: its site is unknown.
        DowntimeSkippedError: it names neither a site nor a host.
    """
    mapped = [
        options.sites_by_name[name]
        for name in (*entry.names, *entry.hosts)
        if name in options.sites_by_name
    ]
    site_names = [name for name in entry.names if name in options.known_sites]
    for site in (options.site, *mapped, *site_names):
        if site:
            return [site]
    hosts = (*entry.hosts, *map(find_host, entry.names))
    sites = [site for host in hosts for site in options.hosts.kinds_by_host.get(host, ())]
    if sites:
        return [*dict.fromkeys(sites)]
    raise _explain_unknown_site(entry, options)


def _explain_unknown_site(entry: DowntimeEntry, options: DowntimeOptions) -> DowntimeSkippedError:
    words = [*entry.names, *entry.hosts]
    if not words:
        return DowntimeSkippedError("names neither a site nor a host (--site NAME)")
    near = next(filter(None, (suggest_word(word, options.known_sites) for word in entry.names)), "")
    if entry.names:
        subject = f"unknown site {entry.names[0][:100]!r}"
    else:
        near = suggest_word(words[0], options.hosts.kinds_by_host)
        subject = f"host {words[0][:100]!r} belongs to no known site"
    return UnknownDowntimeSiteError(f"{subject}. {near}".rstrip())


def _find_kinds(
    entry: DowntimeEntry, site: str, options: DowntimeOptions
) -> tuple[frozenset[str], bool]:
    """Find the kinds of a site that an entry is about, and whether tests use what fails.

    Tests use storage and jobs, at the hosts that the sites file names; where it does not name those
    of a kind, or the entry names no host, the services alone decide.
    """
    services = list(filterfalse(_AUXILIARY.search, entry.services))
    kinds = frozenset[str]().union(*map(_find_service_kinds, services))
    served = options.hosts.find_served(site, (*entry.hosts, *map(find_host, entry.names)))
    possible = served | (_KINDS - options.hosts.named_kinds.get(site, frozenset()))
    if not entry.hosts or site in map(options.sites_by_name.get, entry.hosts):
        possible = _KINDS
    if kinds:
        affected = kinds & possible
    elif services:
        affected = served
    else:
        affected = frozenset() if entry.services else served or possible
    return affected or kinds or served, bool(affected)


def _find_service_kinds(service: str) -> frozenset[str]:
    """Return the kinds of site that a service belongs to; none for one that tests do not use."""
    if _EVERYTHING.fullmatch(service):
        return _KINDS
    kinds = {STORAGE_SITE: _STORAGE, SITE: _COMPUTING}
    return frozenset(kind for kind, words in kinds.items() if words.search(service))
