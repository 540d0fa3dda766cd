"""Doors of Pelican federations: HTTP doors at the cache that the director names, for reading."""

from __future__ import annotations

import os

from treehammer.collectors.pelican_director import locate_object
from treehammer.datasets.doors.http_door import HttpDoor, HttpSession
from treehammer.datasets.doors.observations import FAILED, FileObservation


class PelicanSession(HttpSession):
    """HTTP session that asks the director for the cache of each object."""

    def find_address(self, _method: str, url: str) -> str:
        """Return the address of an object's cache, which gets the token of the federation."""
        address = locate_object(url, os.environ)
        self.token = self.token.at_door(address)
        return address


_DOOR = HttpDoor(PelicanSession)
probe_server, stat_file, read_file = _DOOR.probe_server, _DOOR.stat_file, _DOOR.read_file


def write_file(*_: object) -> FileObservation:
    """Refuse to change a file."""
    message = "federations are only read: write to the origin's own door"
    return FileObservation(failure=FAILED, message=message)


remove_file = write_file
