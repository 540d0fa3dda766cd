"""Addresses of objects in Pelican federations, such as the OSDF, as their director names them.

A federation publishes the address of its director, which redirects each request for an object to
a cache.  From then on the object is read as any file over https.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import urllib.error
from functools import lru_cache
from typing import Any, Mapping, Tuple
from urllib.parse import urljoin, urlsplit

from .http_requests import REDIRECTS, Deadline, HttpAnswerError, send_request
from .json_documents import decode_json
from .storage_access import make_tls_context

_DISCOVERY_PATH = "/.well-known/pelican-configuration"
_OBJECT_PATH = "/api/v1.0/director/object"
#: Seconds for the answer of a federation or a director, and bytes of it.
_TIMEOUT_S, _MAX_BYTES = 20.0, 100_000


def find_object_url(url: str, env: Mapping[str, str]) -> str:
    """Return the director's address of an object.

    Args:
        url: ``pelican://FEDERATION/PATH``.
        env: environment with the authorities of servers.

    Raises:
        urllib.error.HTTPError: the federation refuses to name its director.
        HttpAnswerError: what it answers is not its configuration.
        OSError: it does not answer.
    """
    parts = urlsplit(url)
    authorities = tuple(sorted((k, v) for k, v in env.items() if "CERT" in k))
    return f"{_find_director(parts.netloc, authorities)}{_OBJECT_PATH}{parts.path}"


def locate_object(url: str, env: Mapping[str, str]) -> str:
    """Return the https address of an object at the cache that the director names.

    Raises:
        urllib.error.HTTPError: no server has the object, or the director fails.
        HttpAnswerError: the answer of the federation or its director breaks the rules.
        OSError: one of them does not answer.
    """
    address = find_object_url(url, env)
    try:
        answer = _get(address, env)
    except urllib.error.HTTPError as error:
        location = error.headers.get("Location")
        if error.code not in REDIRECTS or not location:
            raise
        error.close()
        cache = urljoin(address, location)
        if urlsplit(cache).scheme != "https":
            raise HttpAnswerError(
                f"its director redirects to {cache!r}, which is no https URL"
            ) from None
        return cache
    with answer:
        raise HttpAnswerError(f"its director answers with status {answer.status}, not a redirect")


@lru_cache(maxsize=64)
def _find_director(federation: str, authorities: Tuple[Tuple[str, str], ...]) -> str:
    with _get(f"https://{federation}{_DISCOVERY_PATH}", dict(authorities)) as answer:
        content = answer.read(_MAX_BYTES)
    try:
        endpoint = str(decode_json(content)["director_endpoint"])
    except (ValueError, KeyError, TypeError):
        endpoint = ""
    if not endpoint.startswith("https://"):
        raise HttpAnswerError(f"it names no director_endpoint in {_DISCOVERY_PATH}")
    return endpoint.rstrip("/")


def _get(url: str, env: Mapping[str, str]) -> Any:
    deadline = Deadline(_TIMEOUT_S)
    return send_request("GET", url, deadline, context=make_tls_context(env), follows=False)
