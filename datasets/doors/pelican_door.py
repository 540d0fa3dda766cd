"""Doors of Pelican federations: HTTP doors at the cache that the director names, for reading."""

from __future__ import annotations

import os
from pathlib import Path

from treehammer.collectors.pelican_director import locate_object
from treehammer.datasets.doors import http_door
from treehammer.datasets.doors.http_door import HttpSession
from treehammer.datasets.doors.observations import (
    FAILED,
    FileObservation,
    ProbeResult,
    ProbeTarget,
)
from treehammer.text_formatting import ByteCallback

_READ_ONLY = FileObservation(
    failure=FAILED, message="federations are only read: write to the origin's own door"
)


class PelicanSession(HttpSession):
    """HTTP session that asks the director for the cache of each object."""

    def find_address(self, _method: str, url: str) -> str:
        """Return the address of an object's cache, which gets the token of the federation."""
        address = locate_object(url, os.environ)
        self.token = self.token.at_door(address)
        return address


def probe_server(prefix: str, target: ProbeTarget) -> ProbeResult:
    """Read a file by a range request at its cache."""
    return http_door.probe_server(prefix, target, PelicanSession)


def stat_file(url: str) -> FileObservation:
    """Request an object's size and checksum from its cache."""
    return http_door.stat_file(url, PelicanSession)


def read_file(
    url: str, size: int, advance: ByteCallback | None = None, copy_to: Path | None = None
) -> FileObservation:
    """Read an object of ``size`` bytes and its checksums, and copy it to a new file if one is given."""
    return http_door.read_file(url, size, advance, copy_to, PelicanSession)


def write_file(_source: Path, _url: str, _advance: ByteCallback | None = None) -> FileObservation:
    """Refuse to write."""
    return _READ_ONLY


def remove_file(_url: str) -> FileObservation:
    """Refuse to remove."""
    return _READ_ONLY
