"""Rucio's REST application behind TLS: passes the subjects of client certificates to Rucio.

Apache does so in production, with ``SSLOptions +StdEnvVars``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rucio.web.rest.main import application as rucio

_SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
}


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a request."""
    certificate = environ["gunicorn.socket"].getpeercert()
    if certificate:
        environ["SSL_CLIENT_S_DN"] = format_subject(certificate["subject"])
    answer: Iterable[bytes] = rucio(environ, start_response)
    return answer


def format_subject(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Format a subject as Apache does, the most specific name first."""
    names = [pair for group in subject for pair in group]
    return ",".join(f"{_SHORT_NAMES.get(name, name)}={value}" for name, value in reversed(names))
