"""Doors of a storage as seen from the node: reachability and concurrent jobs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import struct
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Callable, Mapping, Optional, Set, Tuple
from urllib.parse import SplitResult, urlsplit

from ...record.outcome import UNREACHABLE, ExecutionError, Failure
from ...shared_files import local_path, make_lock_folder, try_lock
from ...storage_access import SCHEMES, XROOTD_CLIENT
from .server_identity import ServerIdentity, query_server, query_xrootd_server

_HTTPS_PORT = 443
_CONNECT_TRIES = 3
_CONNECT_TIMEOUT_S = 3.0
#: Seconds in which a silent door may come back, and between two tries.
DOOR_WAIT_S = 20.0
_DOOR_PAUSE_S = 2.0
_FAMILIES = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


@dataclass(frozen=True)
class DoorReachability:
    """Address family (``IPv4``, ``IPv6`` or ``local``) and the shortest of a few connects.

    ``error`` is the reason why a door does not answer.
    """

    address_family: Optional[str]
    rtt_s: Optional[float]
    error: str = field(default="", compare=False)


def measure_reachability(url: str, tries: int = _CONNECT_TRIES) -> DoorReachability:
    """Connect to the door of ``url`` a few times; ``rtt_s`` is None for a door without answer."""
    if local_path(url) is not None:
        return DoorReachability("local", None)
    parts = urlsplit(url)
    family, times, reason = None, [], ""
    for _ in range(tries):
        start = time.monotonic()
        try:
            address = _parse_address(parts)
            with socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S) as connection:
                times.append(time.monotonic() - start)
                family = _FAMILIES.get(connection.family)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            break
    return DoorReachability(family, min(times, default=None), reason)


def find_silence(url: str) -> str:
    """Find why the door of ``url`` does not answer; '' if it does.

    An XRootD server answers a handshake at once, unlike a process that hangs or a port that leads
    nowhere.
    """
    parts = urlsplit(url)
    try:
        host, port = _parse_address(parts)
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S):
            pass
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None or scheme.client != XROOTD_CLIENT:
        return ""
    try:
        query_xrootd_server(parts.scheme, host, port, measures=False)
    except (TimeoutError, socket.timeout):  # two classes in Python 3.9
        return "it accepts connections, but answers none"
    except (OSError, ValueError, struct.error):
        pass
    return ""


class DoorWatch:
    """Doors through which a job reads; those that stay silent are not waited for again."""

    def __init__(self) -> None:
        self._silent: Set[str] = set()

    def require_answer(self, url: str, phase: str, pause: Callable[[float], object]) -> None:
        """Wait for the answer of a door, for the first execution that meets its silence only.

        Args:
            url: a file behind the door.
            phase: of the execution, ``open`` or ``stage-in``.
            pause: sleeps for some seconds; may raise.

        Raises:
            ExecutionError: the door does not answer.
        """
        server = urlsplit(url).netloc.rpartition("@")[2]
        end = time.monotonic() + (0.0 if server in self._silent else DOOR_WAIT_S)
        while reason := find_silence(url):
            if time.monotonic() > end:
                self._silent.add(server)
                message = (
                    f"The door {urlsplit(url).scheme}://{server} does not answer ({reason}): this "
                    "execution and the others of the job that read through it end without a try."
                )
                raise ExecutionError(Failure(phase, UNREACHABLE, phase, message, transient=True))
            pause(_DOOR_PAUSE_S)
        self._silent.discard(server)


def _parse_address(parts: SplitResult) -> Tuple[str, int]:
    """Split into host and port; raises ValueError for an invalid port."""
    scheme = SCHEMES.get(parts.scheme)
    return parts.hostname or "", parts.port or (scheme and scheme.port) or _HTTPS_PORT


def identify_server(url: str, *, measures: bool = True) -> ServerIdentity:
    """Ask the server of a URL for its identity, by :func:`query_server`; unknown for a local file."""
    parts = urlsplit(url)
    if local_path(url) is not None:
        return ServerIdentity()
    try:
        return query_server(parts.scheme, *_parse_address(parts), measures=measures)
    except ValueError:
        return ServerIdentity()


def identify_door_server(url: str) -> Mapping[str, Optional[str]]:
    """Ask a door's server for its identity, by catalogue name.

    ``data_server`` is known only where the door itself serves the data and does not redirect.
    """
    server = identify_server(url, measures=False)
    data_server = "{}:{}".format(*_parse_address(urlsplit(url))) if server.is_data_server else None
    return {"server_version": server.version, "data_server": data_server}


class DoorLock:
    """A lock that shows a user's other jobs on this node that this job uses a door.

    It is a file in a folder of the user's, locked for the lifetime of this process: the kernel
    releases it however the process ends.  The file gets its final name once it is locked, so an
    unlocked file belongs to a dead job and the next job removes it.
    """

    def __init__(self, site: str, door: str, base: str = "") -> None:
        key = hashlib.sha256(f"{site}/{door}".encode()).hexdigest()[:16]
        self._folder = make_lock_folder(key, base)
        self._path = ""
        self._fd = -1

    def __enter__(self) -> DoorLock:
        if self._folder is None:
            return self
        try:
            self._fd, temporary = tempfile.mkstemp(suffix=".new", dir=self._folder)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self._path = temporary[: -len(".new")] + ".lock"
            os.rename(temporary, self._path)
        except OSError:
            self._path = ""
        return self

    def __exit__(self, *_: object) -> None:
        if self._path:
            os.unlink(self._path)
        if self._fd >= 0:
            os.close(self._fd)

    def count_others(self) -> Optional[int]:
        """Count the other jobs that use the door now; None when unknown."""
        if not self._path or self._folder is None:
            return None
        names = (name for name in os.listdir(self._folder) if name.endswith(".lock"))
        paths = (os.path.join(self._folder, name) for name in names)
        return sum(path != self._path and _is_held(path) for path in paths)


def _is_held(path: str) -> bool:
    """Return whether a process holds the lock; an unlocked file is removed."""
    with suppress(OSError):
        fd = try_lock(path, os.O_RDWR)
        if fd is None:
            return True
        with os.fdopen(fd):
            os.unlink(path)
    return False
