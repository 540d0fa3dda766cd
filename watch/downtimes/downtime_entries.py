"""Entries of downtime documents: their names, hosts, services, and times in any known notation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

# Keys are compared without case and punctuation: START_DATE, StartDate and start-date are one.
START_KEYS = ("start", "starttime", "startdate", "formatedstartdate", "formattedstartdate")
END_KEYS = ("end", "endtime", "enddate", "formatedenddate", "formattedenddate")
_SITE_KEYS = ("site", "sitename", "hostedby", "rcsite", "resourcegroup", "resourcename", "resource")
_HOST_KEYS = ("hostname", "host", "fqdn", "resourcefqdn")
_SERVICE_KEYS = ("services", "affectedservices", "servicetype", "service")
_ID_KEYS = ("primarykey", "id", "providerid", "uid")
_URL_KEYS = ("url", "infourl", "gocdbportalurl")
#: Keys with the name of an object, the first that it has.
_NAME_KEYS = ("name", "groupname", "shortname", "servicetype", "text")
_MOMENT = re.compile(
    r"(?P<date>.*?\d)"
    r"(?:[T\s,]+(?P<clock>(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?|24:00(?::00)?)(?:\.\d+)?"
    r"\s*(?:(?P<half>[AP])\.?M\.?)?)?"
    r"\s*(?P<zone>UTC|GMT|Z|[+-]\d\d:?\d\d)?",
    re.IGNORECASE,
)
_DATE_FORMATS = ("%b %d %Y", "%B %d %Y", "%d %b %Y", "%d %B %Y", "%Y %m %d")
#: Seconds since 1970 above which a number counts milliseconds; the year 5138.
_MAX_SECONDS = 100_000_000_000


class DowntimeSkippedError(Exception):
    """An entry cannot be read; the text is the reason."""


@dataclass(frozen=True)
class DowntimeEntry:
    """Entry of a document.

    Attributes:
        id: its identity in the document; may be ''.
        names: names that may be those of its site, the best first.
        hosts: its hosts, in lower case.
        start: its first moment.
        end: the moment after its last.
        severity: words about its severity.
        services: names of the affected services.
        description: its reason.
        url: page about it.
    """

    id: str
    names: tuple[str, ...]
    hosts: tuple[str, ...]
    start: datetime
    end: datetime
    severity: str
    services: tuple[str, ...]
    description: str
    url: str


def find_host(address: str) -> str:
    """Return the host of a URL, ``HOST:PORT`` or ``HOST`` in lower case; '' without any."""
    try:
        host = urlsplit(address if "://" in address else f"//{address}").hostname
    except ValueError:
        return ""
    return (host or "").rstrip(".")


def normalize_key(key: str) -> str:
    """Return a key in lower case without punctuation."""
    return re.sub(r"[^a-z0-9]", "", key.lower())


def normalize_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not empty by their normalized keys."""
    return {normalize_key(key): value for key, value in values.items() if value not in (None, "")}


def is_container(value: Any) -> bool:
    """Return whether a value is an object or a list."""
    return isinstance(value, dict | list)


def split_services(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an entry for each service with a host or site of its own, as GOCDB nests them, or each site."""
    nested = _list_services(values.get("services"))
    located = [service for service in nested if service.keys() & {*_SITE_KEYS, *_HOST_KEYS}]
    if not located:
        lists = ((key, values[key]) for key in _SITE_KEYS if isinstance(values.get(key), list))
        key, sites = next(lists, ("", []))
        return [values | {key: site} for site in sites] or [values]
    shared_values = {key: value for key, value in values.items() if key != "services"}
    return [shared_values | service for service in located]


def _list_services(services: Any) -> list[dict[str, Any]]:
    """List the values that describe each of several services, or of one."""
    if isinstance(services, dict):
        services = normalize_keys(services).get("service")
    keys = {*_SITE_KEYS, *_HOST_KEYS, *_SERVICE_KEYS, "affectedendpoints"}
    return [
        {key: value for key, value in normalize_keys(service).items() if key in keys}
        for service in (services if isinstance(services, list) else [services])
        if isinstance(service, dict)
    ]


def read_entry(groups: tuple[str, ...], values: Any) -> DowntimeEntry:
    """Read an entry below the keys of its objects.

    Raises:
        DowntimeSkippedError: it is no object, or its start or end is missing or wrong.
    """
    if not isinstance(values, dict):
        raise DowntimeSkippedError("is no object")
    addresses = _collect_key_texts(values, _HOST_KEYS)
    addresses += _find_texts(values.get("affectedendpoints"), ("url",))
    services = _collect_key_texts(values, _SERVICE_KEYS)
    names = _collect_key_texts(values, _SITE_KEYS)
    return DowntimeEntry(
        id=_find_text(values, _ID_KEYS),
        names=tuple(dict.fromkeys((*names, *groups))),
        hosts=tuple(filter(None, dict.fromkeys(map(find_host, addresses)))),
        start=_read_moment(values, "start", START_KEYS),
        end=_read_moment(values, "end", END_KEYS),
        severity=_find_text(values, ("severity",)),
        services=tuple(
            word.strip() for text in services for word in re.split("[,;|]", text) if word.strip()
        ),
        description=_find_text(values, ("description",)),
        url=_find_text(values, _URL_KEYS),
    )


def _find_texts(value: Any, name_keys: Iterable[str] = _NAME_KEYS) -> list[str]:
    """Return the texts of a value: itself, the names of objects, or those of a list."""
    if isinstance(value, list):
        return [text for item in value for text in _find_texts(item, name_keys)]
    if isinstance(value, dict):
        values = normalize_keys(value)
        for key in name_keys:
            if key in values:
                return _find_texts(values[key])
        nested = [item for item in values.values() if is_container(item)]
        return _find_texts(nested or list(values.values()), name_keys)
    return list(filter(None, [_clean_text(value)]))


def _collect_key_texts(values: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """Collect the texts of several keys."""
    return [text for key in keys for text in _find_texts(values.get(key))]


def _clean_text(value: Any) -> str:
    """Return the text of a value as databases hold it: without NUL and single surrogates."""
    if value is None or isinstance(value, bool):
        return ""
    return str(value).replace("\0", "").encode("utf-8", "replace").decode().strip()


def _find_text(values: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return the first text of the first of several keys that has any; '' without."""
    return next((text for key in keys for text in _find_texts(values.get(key))), "")


def _read_moment(values: Mapping[str, Any], name: str, keys: Iterable[str]) -> datetime:
    text = _find_text(values, keys)
    if not text:
        raise DowntimeSkippedError(f"{name}: is missing")
    try:
        return _parse_moment(text[:100])
    except (ValueError, OverflowError, OSError) as error:
        raise DowntimeSkippedError(
            f"{name}: {text[:100]!r} is not a time (expected ISO 8601, seconds since 1970, "
            "or Nov 26, 2026 20:00 UTC)"
        ) from error


def _parse_moment(text: str) -> datetime:
    """Parse seconds since 1970, ISO 8601, or text with the name of a month; UTC without a zone."""
    if re.fullmatch(r"\d+(\.\d+)?", text) and not re.fullmatch(r"(19|20)\d{6}", text):
        seconds = float(text)
        return datetime.fromtimestamp(seconds / (1000 if seconds > _MAX_SECONDS else 1), UTC)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return _parse_dated_text(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _parse_dated_text(text: str) -> datetime:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError("no date")
    words = re.findall(r"[A-Za-z]+|\d+", match["date"])
    words = [word for word in words if word.lower() not in ("st", "nd", "rd", "th")]
    if len(words) > 3 and words[0].isalpha():
        words = words[1:]  # the day of the week
    day = None
    for form in _DATE_FORMATS:
        with suppress(ValueError):
            day = day or datetime.strptime(" ".join(words), form).date()
    if day is None:
        raise ValueError("no date")
    offset = _parse_offset(match["zone"] or "UTC")
    midnight = datetime.combine(day, time(), offset)
    return (midnight + _parse_clock(match["clock"], match["half"])).astimezone(UTC)


def _parse_offset(text: str) -> timezone:
    if text[0] not in "+-":
        return UTC
    ahead = timedelta(hours=int(text[1:3]), minutes=int(text[-2:]))
    return timezone(ahead if text[0] == "+" else -ahead)


def _parse_clock(text: str | None, half: str | None) -> timedelta:
    """Parse a time of day, up to 24:00; OSG writes hours up to 23 even before AM and PM."""
    hour, minute, second = map(int, [*(text or "0:00").split(":"), "0"][:3])
    if half:
        afternoon = half.upper() == "P"
        if 0 < hour <= 12:
            hour = hour % 12 + (12 if afternoon else 0)
        elif afternoon != (hour >= 12):
            raise ValueError("the hour contradicts AM or PM")
    return timedelta(hours=hour, minutes=minute, seconds=second)
