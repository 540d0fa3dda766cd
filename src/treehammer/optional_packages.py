"""Packages of the optional extras, and the error that names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from treehammer.errors import MissingExtraError

#: Imported module -> extra of ``pip install 'treehammer[EXTRA]'`` that brings it.
EXTRA_OF_MODULE = {
    "htcondor2": "grid",
    "classad2": "grid",
    "rucio": "grid",
    "XRootD": "grid",
    "jwt": "grid",
    "icalendar": "grid",
    "uproot": "uproot",
    "awkward": "uproot",
    "nagiosplugin": "service",
    "prometheus_client": "service",
    "ruptures": "service",
    "starlette": "service",
    "uvicorn": "service",
    "httptools": "service",
    "psycopg": "service",
    "adbc_driver_postgresql": "service",
    "authlib": "oidc",
    "httpx2": "oidc",
    "itsdangerous": "oidc",
    "joserfc": "oidc",
    "oracledb": "oracle",
    "cryptography": "testbed",
}


@contextmanager
def explain_missing_extra() -> Iterator[None]:
    """Replace the ImportError of an optional package by the command that installs it.

    Raises:
        MissingExtraError: a package of an extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF_MODULE:
            raise
        raise MissingExtraError(package, EXTRA_OF_MODULE[package]) from error


def require_package(name: str) -> None:
    """Check that an optional package is installed, without importing it.

    Raises:
        MissingExtraError: it is not.
    """
    if find_spec(name) is None:
        raise MissingExtraError(name, EXTRA_OF_MODULE[name])
