"""What single values of ``sites.toml`` must be like."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from pydantic import ByteSize, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from treehammer.hctests.matrix.axes import AXES_BY_NAME

#: URL schemes of each protocol.
SCHEMES_BY_PROTOCOL = {
    "root": ("root", "roots", "xroot", "xroots"),
    "https": ("https",),
    "http": ("http",),
}
#: Kinds of grid resource -> how one is written.
GRID_RESOURCE_FORMS = {
    "condor": "condor SCHEDD COLLECTOR",
    "arc": "arc HOST-OR-URL",
    "batch": "batch SYSTEM [USER@HOST]",
}

_BYTES = TypeAdapter(ByteSize)


def _validation_error(why: str) -> PydanticCustomError:
    return PydanticCustomError("wrong", "{why}", {"why": why})


def validate_line(value: str) -> str:
    """A line of text without control characters.

    Raises:
        PydanticCustomError: it is not.
    """
    if not value.isprintable() or value != value.strip():
        raise _validation_error(
            f"{value[:40]!r} has a line break, control characters or spaces around it"
        )
    return value


def parse_bytes(value: object) -> int:
    """A number of bytes, which may be text with a unit.

    Raises:
        PydanticCustomError: it is not.
    """
    try:
        count = _BYTES.validate_python(value) if isinstance(value, int | str) else -1
    except ValidationError:
        count = -1
    if isinstance(value, bool) or not 0 <= count < 2**63:
        raise _validation_error(
            f'{value!r} is wrong (expected bytes from 0, or text such as "10 TB")'
        )
    return int(count)


def validate_submit_value(value: object) -> str:
    """The value of a submit command as text.

    Raises:
        PydanticCustomError: it cannot be one.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise _validation_error("is wrong (expected text, a number, true or false)")
    text = validate_line(str(value))
    if not text:
        raise _validation_error("is empty (expected a value)")
    return text


def validate_absolute_path(value: str) -> str:
    """A path on a site's nodes.

    Raises:
        PydanticCustomError: it is not absolute.
    """
    if not PurePosixPath(value).is_absolute():
        raise _validation_error(
            f"{value!r} is wrong (expected an absolute path on the site's nodes)"
        )
    return value


def validate_software(value: str) -> str:
    """A value of the root axis, in which ``{version}`` stands for the release.

    Raises:
        PydanticCustomError: it is not.
    """
    text = value.replace("{version}", "6.40.00")
    if "{" in text or "}" in text:
        raise _validation_error(f"{value!r} holds a brace other than {{version}}")
    try:
        AXES_BY_NAME["root"].normalize(text)
    except ValueError as error:
        raise _validation_error(f"{error} (expected {AXES_BY_NAME['root'].expected})") from None
    return value


def validate_grid_resource(value: str) -> str:
    """A grid resource of a kind and with as many words as HTCondor wants.

    Raises:
        PydanticCustomError: it is not.
    """
    if not value:
        return value
    kind, *words = value.split()
    if kind not in GRID_RESOURCE_FORMS:
        raise _validation_error(
            f"{kind!r} is no kind of grid resource (known: {', '.join(GRID_RESOURCE_FORMS)})"
        )
    counts = {"condor": (2,), "arc": (1,), "batch": (1, 2)}[kind]
    if len(words) not in counts:
        raise _validation_error(f"{value!r} is wrong (expected {GRID_RESOURCE_FORMS[kind]})")
    return value


def find_prefix_error(protocol: str, prefix: str) -> str:
    """Why ROOT could not read through a door of that prefix; '' when it could."""
    if any(character in prefix for character in "?#"):
        return "holds '?' or '#', which ROOT takes for options"
    if protocol == "file":
        return "is a URL (expected a path)" if "://" in prefix else ""
    try:
        parts = urlsplit(prefix)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in SCHEMES_BY_PROTOCOL[protocol] or not host:
        return f"is wrong (expected {SCHEMES_BY_PROTOCOL[protocol][0]}://HOST:PORT/…)"
    if parts.password is not None:
        return "holds a password, which every measurement would show (expected none)"
    if any(character.isspace() for character in prefix):
        return "holds a space (expected %20)"
    if protocol == "root" and parts.path not in ("", "/") and not parts.path.startswith("//"):
        return f"wants two slashes after the host: {parts.scheme}://{parts.netloc}/{parts.path}"
    return ""


def normalize_prefix(protocol: str, prefix: str) -> str:
    """The prefix to which ``/DATASET/FILE`` can be added."""
    if protocol != "root":
        return prefix.rstrip("/") or "/"
    head, path = re.fullmatch(r"(\w+://[^/]+)(.*)", prefix).groups()  # type: ignore[union-attr]  # checked
    path = path.strip("/")
    return f"{head}//{path}" if path else f"{head}/"
