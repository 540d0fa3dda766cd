"""Parsers of settings: each converts a value as given, or raises ConfigError.

Only some addresses of web servers may receive secrets.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from treehammer.errors import ConfigError
from treehammer.toml_documents import write_value

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def is_loopback(host: str) -> bool:
    """Return whether an address or name belongs to this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_http_url(value: Any) -> SplitResult | None:
    """Split an HTTP URL; None where it is none, has white space, or names no host or port 0."""
    try:
        parts = urlsplit(value if isinstance(value, str) and not re.search(r"\s", value) else "")
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port out of range
        return None
    return parts if is_valid else None


@dataclass(frozen=True)
class RawValue:
    """A setting's value as given, with the place to name in errors.

    Attributes:
        name: of the setting.
        value: as it was read.
        where: the file and key, the variable or the flag.
        base: the folder that relative paths start from.
    """

    name: str
    value: Any
    where: str
    base: Path

    def error(self, expected: str, hint: str = "") -> ConfigError:
        """Build the error for a value that is not ``expected``; it repeats the value."""
        return self.secret_error(f"must be {expected}, not {write_value(self.value)}", hint)

    def secret_error(self, message: str, hint: str = "") -> ConfigError:
        """Build an error that does not repeat the value, which may hold a password."""
        return ConfigError(f"{self.name} {message}", where=self.where, hint=hint)


SettingParser = Callable[[RawValue], Any]


def parse_path(raw: RawValue) -> Path:
    """Parse a path; that of a folder need not exist, but cannot lead through a file."""
    if not isinstance(raw.value, str | Path) or not str(raw.value):
        raise raw.error("a path")
    path = (raw.base / Path(raw.value).expanduser()).resolve()
    file = next(filter(os.path.isfile, (path, *path.parents)), None)
    if file and raw.name.endswith("_dir"):
        raise raw.secret_error(f"must be a folder, and {file} is a file")
    return path


def integer_parser(maximum: int | None = None) -> SettingParser:
    """Return a parser for whole numbers from 1."""
    limit = f"from 1 to {maximum}" if maximum else "of at least 1"

    def parse(raw: RawValue) -> int:
        text = str(raw.value).strip()
        number = int(text) if re.fullmatch(r"[1-9][0-9]{,18}", text) else 0
        if not number or (maximum and number > maximum):
            raise raw.error(f"a whole number {limit}")
        return number

    return parse


def parse_boolean(raw: RawValue) -> bool:
    """Parse true or false."""
    parsed = _BOOLEANS.get(str(raw.value).strip().lower())
    if parsed is None or not isinstance(raw.value, bool | str):
        raise raw.error("true or false")
    return parsed


def text_parser(characters: str, expected: str) -> SettingParser:
    """Return a parser for text of certain characters, written as in a regular expression."""

    def parse(raw: RawValue) -> str:
        if not isinstance(raw.value, str) or not re.fullmatch(f"[{characters}]*", raw.value):
            raise raw.error(expected)
        return raw.value

    return parse


def template_parser(*placeholders: str) -> SettingParser:
    """Return a parser for a template in which each of some ``{placeholders}`` occurs."""
    expected = " and ".join(f"{{{name}}}" for name in placeholders)

    def parse(raw: RawValue) -> str:
        text = raw.value
        fields = re.findall(r"\{(.*?)\}", text) if isinstance(text, str) else []
        plain = re.sub(r"\{(.*?)\}", "", str(text))
        if set(fields) != {*placeholders} or re.search(r"[{}\s]", plain) or not plain.isprintable():
            raise raw.error(f"a name without spaces that contains {expected} and no other braces")
        return str(text)

    return parse


def choice_parser(*words: str) -> SettingParser:
    """Return a parser for one of several words."""

    def parse(raw: RawValue) -> str:
        if raw.value not in words:
            raise raw.error(f"one of {', '.join(words)}")
        return str(raw.value)

    return parse


#: Headers that have another meaning for the service or its proxy.
_RESERVED_HEADER = re.compile(
    r"authorization|connection|cookie|host|origin|content-.*|sec-.*|transfer-.*|x-treehammer-.*"
    r"|x-forwarded-(?:for|proto|host)",
    re.IGNORECASE,
)


def parse_user_header(raw: RawValue) -> str:
    """Parse the name of a header in which a proxy names users, or ''."""
    name: str = text_parser("A-Za-z0-9-", "letters, digits and '-'")(raw)
    if _RESERVED_HEADER.fullmatch(name):
        raise raw.error("a header without another meaning, such as X-Remote-User")
    return name


def parse_service_url(raw: RawValue) -> str:
    """Parse the address of a web service without a user and a query, or ''."""
    if raw.value == "":
        return ""
    parts = split_http_url(raw.value)
    if parts is None or parts.username is not None or parts.query or parts.fragment:
        raise raw.secret_error("must be https://HOST:PORT, without a user and without '?'")
    if parts.scheme == "http" and not is_loopback(str(parts.hostname)):
        raise raw.secret_error(
            f"must begin with https:// (tokens would travel to {parts.hostname} unencrypted)"
        )
    return str(raw.value).rstrip("/")


def parse_public_url(raw: RawValue) -> str:
    """Parse the address of a web service without a path, or ''."""
    url = parse_service_url(raw)
    if url and urlsplit(url).path:
        raise raw.error("https://HOST:PORT without a path")
    return url


def parse_database_url(raw: RawValue) -> str:
    """Parse a URL of SQLAlchemy."""
    import sqlalchemy as sa

    try:
        if "@" in (sa.make_url(raw.value).host or ""):
            raise ValueError("an @ of the password ends it")
    except (sa.exc.ArgumentError, ValueError) as error:
        raise raw.secret_error(
            "is not a URL that SQLAlchemy understands",
            "Write it like sqlite:////folder/results.db or postgresql://user@host/name, and an @ in "
            "a password as %40.",
        ) from error
    return str(raw.value)
