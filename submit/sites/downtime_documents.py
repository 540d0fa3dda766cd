"""Announced downtimes of sites from documents: iCalendar, and JSON like that of GOCDB and CRIC."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from treehammer.collectors.http_requests import Deadline, send_request
from treehammer.collectors.record.metric_catalogue import MAX_TEXT
from treehammer.errors import ConfigError, SourceUnreachableError, suggest_word
from treehammer.sql.core.watch_rows import DowntimeRow
from treehammer.sql.watch.site_exceptions import AT_RISK, OUTAGE
from treehammer.sql.watch.state_history import SITE, STORAGE_SITE
from treehammer.version import __version__

if TYPE_CHECKING:
    from icalendar import Event

MAX_DOCUMENT_BYTES = 50_000_000
_TIMEOUT_S = 60
#: Characters of a text, each of which may take several bytes.
_MAX_CHARS = MAX_TEXT // 8
_RISK = re.compile(r"at[ _-]?risk|warning|moderate", re.IGNORECASE)
_STORAGE = re.compile(
    r"srm|xroot|webdav|gridftp|gsiftp|storage|dcache|\beos\b|\bse\b", re.IGNORECASE
)
_COMPUTING = re.compile(r"\bce\b|-ce|computing|compute|arc|batch|worker", re.IGNORECASE)


@dataclass(frozen=True)
class DowntimeDocument:
    """Downtimes of a document, and the entries that could not be read or are of unknown sites."""

    downtimes: tuple[DowntimeRow, ...]
    skipped: tuple[str, ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class DowntimeOptions:
    """Interpretation of a document.

    Attributes:
        source: its name, by which a later import replaces it.
        site: the site of all entries; '' for the site that each entry names.
        sites_by_name: site by the name that the document has for it.
        known_sites: names of all sites; entries of others are refused.
    """

    source: str
    site: str
    sites_by_name: Mapping[str, str]
    known_sites: Collection[str]


class DowntimeSkippedError(Exception):
    """An entry cannot be read; the text is the reason."""


class UnknownDowntimeSiteError(DowntimeSkippedError):
    """An entry is of a site that nobody knows."""


def _parse_moment(value: Any) -> datetime:
    """Parse ISO 8601 text, or seconds since 1970; UTC without a zone."""
    if isinstance(value, int | float) or (isinstance(value, str) and value.strip().isdecimal()):
        return datetime.fromtimestamp(float(value), UTC)
    moment = datetime.fromisoformat(str(value).strip())
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _join_words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _names(*names: str) -> Any:
    return Field(validation_alias=AliasChoices(*names))


_Moment = Annotated[datetime, BeforeValidator(_parse_moment)]
_Words = Annotated[str, BeforeValidator(_join_words)]


class DowntimeEntry(BaseModel):
    """Entry of a JSON document; names of keys are in lower case."""

    model_config = ConfigDict(extra="ignore")

    id: _Words = Field("", validation_alias=AliasChoices("id", "primary_key", "provider_id"))
    site: _Words = Field("", validation_alias=AliasChoices("site", "sitename", "rcsite"))
    start: _Moment = _names("start", "start_time", "start_date")
    end: _Moment = _names("end", "end_time", "end_date")
    severity: _Words = ""
    services: _Words = Field(
        "", validation_alias=AliasChoices("services", "affected_services", "service_type")
    )
    description: _Words = ""
    url: _Words = Field("", validation_alias=AliasChoices("url", "info_url", "gocdb_portal_url"))


def fetch_document(address: str) -> bytes:
    """Read a file, or fetch a document from an http or https URL.

    Raises:
        ConfigError: the file cannot be read, or the document is too large.
        SourceUnreachableError: the server does not answer, or refuses.
    """
    if not address.startswith(("https://", "http://")):
        try:
            content = Path(address).read_bytes()
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
    """Parse a document in either format.

    Raises:
        ConfigError: it is neither iCalendar nor JSON.
    """
    parse = _parse_calendar if content.lstrip()[:15].upper() == b"BEGIN:VCALENDAR" else _parse_json
    found: dict[str, DowntimeRow] = {}
    skipped: list[str] = []
    unknown: list[str] = []
    for name, entry in parse(content, options.source):
        try:
            row = _build_row(entry(), options, now_us)
        except UnknownDowntimeSiteError as error:
            unknown.append(f"{name}: {error}")
        except DowntimeSkippedError as error:
            skipped.append(f"{name}: {error}")
        else:
            found[row.id] = row
    return DowntimeDocument(tuple(found.values()), tuple(skipped), tuple(unknown))


def _parse_json(content: bytes, shown: str) -> Iterator[tuple[str, Any]]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ConfigError(
            "is neither iCalendar nor JSON", where=shown, hint=f"JSON: {error}"
        ) from error
    for number, (site, values) in enumerate(_list_entries(document, shown), 1):
        yield f"entry {number}", partial(_validate_entry, site, values)


def _list_entries(document: Any, shown: str) -> Iterable[tuple[str, Any]]:
    """List the entries of a list, or of an object with a list for each site, as CRIC has."""
    if isinstance(document, list):
        return [("", values) for values in document]
    if isinstance(document, dict):
        return [
            (site, values)
            for site, some in document.items()
            for values in (some if isinstance(some, list) else [some])
        ]
    raise ConfigError("holds neither a list nor an object", where=shown)


def _validate_entry(site: str, values: Any) -> DowntimeEntry:
    if not isinstance(values, dict):
        raise DowntimeSkippedError("is no object")
    lowered = {"site": site} if site else {}
    lowered |= {key.lower(): value for key, value in values.items()}
    try:
        return DowntimeEntry.model_validate(lowered)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DowntimeSkippedError(f"{first['loc'][0]}: {first['msg']}") from error


def _parse_calendar(content: bytes, shown: str) -> Iterator[tuple[str, Any]]:
    from icalendar import Calendar

    try:
        calendar = Calendar.from_ical(content)
    except ValueError as error:
        raise ConfigError(f"is not valid iCalendar: {error}", where=shown) from error
    for number, event in enumerate(cast("list[Event]", calendar.walk("VEVENT")), 1):
        yield f"event {number}", partial(_convert_event, event)


def _convert_event(event: Event) -> DowntimeEntry:
    if "RRULE" in event or "RDATE" in event:
        raise DowntimeSkippedError("it recurs; announce each downtime by itself")
    if str(event.get("STATUS", "")).upper() == "CANCELLED":
        raise DowntimeSkippedError("it is cancelled")
    categories = event.get("CATEGORIES")
    words = " ".join(map(str, categories.cats)) if hasattr(categories, "cats") else ""
    summary = str(event.get("SUMMARY", ""))
    try:
        start, end = event.start, event.end
    except Exception as error:  # icalendar has several errors for wrong times.
        raise DowntimeSkippedError(str(error)) from error
    return DowntimeEntry.model_validate(
        {
            "id": str(event.get("UID", "")),
            "site": str(event.get("LOCATION", "")),
            "start": _to_datetime(start).isoformat(),
            "end": _to_datetime(end).isoformat(),
            "severity": f"{words} {summary}" if _RISK.search(f"{words} {summary}") else "",
            "services": words,
            "description": summary or str(event.get("DESCRIPTION", "")),
            "url": str(event.get("URL", "")),
        }
    )


def _to_datetime(moment: date) -> datetime:
    """Convert a whole day to its first moment; UTC without a zone."""
    if not isinstance(moment, datetime):
        moment = datetime.combine(moment, time())
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _build_row(entry: DowntimeEntry, options: DowntimeOptions, now_us: int) -> DowntimeRow:
    named = entry.site.strip()
    site = options.site or options.sites_by_name.get(named, named)
    if not site:
        raise DowntimeSkippedError("names no site (--site NAME)")
    if site not in options.known_sites:
        near = suggest_word(site, options.known_sites)
        raise UnknownDowntimeSiteError(f"unknown site {site!r}. {near}".rstrip())
    starts_us, ends_us = map(_to_microseconds, (entry.start, entry.end))
    if ends_us <= starts_us:
        raise DowntimeSkippedError("ends before it starts")
    key = entry.id or f"{starts_us} {ends_us} {entry.description}"
    kind = _find_kind(entry.services)
    identity = json.dumps([options.source, key, site, kind])
    return DowntimeRow(
        id=hashlib.sha256(identity.encode()).hexdigest()[:24],
        source=options.source[:_MAX_CHARS],
        site=site[:_MAX_CHARS],
        subject_kind=kind,
        starts_us=starts_us,
        ends_us=ends_us,
        severity=AT_RISK if _RISK.search(entry.severity) else OUTAGE,
        description=entry.description.strip()[:_MAX_CHARS],
        url=entry.url.strip()[:_MAX_CHARS],
        imported_us=now_us,
    )


def _to_microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _find_kind(services: str) -> str:
    """Return the kind of site that all services belong to; '' for several, unknown or none."""
    words = [word for word in re.split(r"[,;\s]+", services) if word]
    if words and all(_STORAGE.search(word) for word in words):
        return STORAGE_SITE
    if words and all(_COMPUTING.search(word) and not _STORAGE.search(word) for word in words):
        return SITE
    return ""
