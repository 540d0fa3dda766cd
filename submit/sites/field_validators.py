"""Validators for single values of ``sites.toml``."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from treehammer.collectors import storage_schemes
from treehammer.hctests.matrix.axes import AXES_BY_NAME
from treehammer.hctests.schema.document_fields import invalid_value, validate_line

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


def validate_submit_value(value: str) -> str:
    """Accept the value of a submit command, a line that is not empty.

    Raises:
        PydanticCustomError: the value is empty or no line.
    """
    if not validate_line(value):
        raise invalid_value("is empty (expected a value)")
    return value


def validate_absolute_path(value: str) -> str:
    """Accept an absolute path on a site's nodes.

    Raises:
        PydanticCustomError: the path is not absolute.
    """
    if not PurePosixPath(value).is_absolute():
        raise invalid_value(f"{value!r} is not an absolute path on the site's nodes")
    return value


def validate_writable_path(value: str) -> str:
    """Accept an absolute path at the storage other than its root.

    Raises:
        PydanticCustomError: the path cannot be a folder for files of load tests.
    """
    validate_line(value)
    path = PurePosixPath(value)
    if not path.is_absolute() or not path.name or ".." in path.parts or re.search(r"[?#]", value):
        raise invalid_value(f"{value!r} is not an absolute path of a folder at the storage")
    return str(path)


def validate_software(value: str) -> str:
    """Accept a value of the root axis, in which ``{version}`` stands for the release.

    Raises:
        PydanticCustomError: the value is not valid for the root axis.
    """
    text = value.replace("{version}", "6.40.00")
    if "{" in text or "}" in text:
        raise invalid_value(f"{value!r} contains braces other than {{version}}")
    try:
        AXES_BY_NAME["root"].normalize(text)
    except ValueError as error:
        raise invalid_value(f"{error} (expected {AXES_BY_NAME['root'].expected})") from None
    return value


def validate_grid_resource(value: str) -> str:
    """Accept a grid resource of a known kind in HTCondor's format.

    Raises:
        PydanticCustomError: the kind is unknown, or the number of words is wrong.
    """
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


def validate_token_pool(pool: str) -> str:
    """Accept a host, with ``*`` for any characters and a port if it has one.

    Raises:
        PydanticCustomError: the text is something else.
    """
    if re.fullmatch(r"(?=.*[A-Za-z0-9])([A-Za-z0-9.*_-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?", pool):
        return pool
    raise invalid_value(f"{pool!r} is no HOST or HOST:PORT, such as pool*.example.org")


def find_prefix_error(protocol: str, prefix: str) -> str:
    """Describe why ROOT could not read through a door with this prefix; '' if it can."""
    if any(character in prefix for character in "?#"):
        return "contains '?' or '#', which ROOT interprets as options"
    if protocol == "file":
        return "is a URL (expected a path)" if "://" in prefix else ""
    try:
        parts = urlsplit(prefix)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        return f"is not a URL: {error}"
    schemes = storage_schemes.list_aliases(protocol)
    rules = (
        (
            f"is invalid (expected {schemes[0]}://HOST:PORT/…)",
            parts.scheme not in schemes or not host,
        ),
        (
            "contains a password, which every measurement would show (expected none)",
            parts.password is not None,
        ),
        ("contains a space (expected %20)", re.search(r"\s", prefix)),
        (
            f"needs two slashes after the host: {parts.scheme}://{parts.netloc}/{parts.path}",
            protocol == "root" and re.match("/[^/]", parts.path),
        ),
    )
    return next((error for error, applies in rules if applies), "")


def normalize_prefix(protocol: str, prefix: str) -> str:
    """Replace aliases of the scheme, and let ``/DATASET/FILE`` be appended."""
    prefix = storage_schemes.normalize_url(prefix)
    if protocol != "root":
        return prefix.rstrip("/") or "/"
    head, path = re.fullmatch(r"(\w+://[^/]+)(.*)", prefix).groups()  # type: ignore[union-attr]  # checked
    path = path.strip("/")
    return f"{head}//{path}" if path else f"{head}/"
