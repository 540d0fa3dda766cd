"""Doors of a storage as seen from the node: reachability, server version, concurrent jobs.

A version query takes a few small messages on one connection, without file access.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import socket
import ssl
import struct
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Callable, Iterable, Mapping, Optional, Set, Tuple
from urllib.parse import SplitResult, urlsplit

from ...http_requests import Deadline, TimedConnection, TimedTlsConnection
from ...record.outcome import UNREACHABLE, ExecutionError, Failure
from ...shared_files import local_path, make_lock_folder, try_lock
from ...storage_access import HTTP_CLIENT, S3_CLIENT, SCHEMES, XROOTD_CLIENT

#: Total time of a query.
_QUERY_TIMEOUT_S = 3.0
_MAX_RESPONSE_BYTES = 4096
#: Queries of which the fastest counts as the round trip.
_MEASURED_QUERIES = 3

# Version 5.2 of the xroot protocol: the first messages of a session, and their codes.
_HANDSHAKE = struct.pack(">iiiii", 0, 0, 0, 4, 2012)
_LOGIN_REQUEST, _QUERY_REQUEST, _QUERY_CONFIG, _STATUS_OK = 3007, 3001, 7, 0
_DATA_SERVER = 1
_STREAM_ID = b"th"


@dataclass(frozen=True)
class ServerIdentity:
    """Identity reported by a server; unreported fields are None.

    ``rtt_s`` is the shortest time from a request to its answer on an open connection: it sees a proxy's
    delay, which a connect does not.
    """

    version: Optional[str] = None
    is_data_server: Optional[bool] = None
    rtt_s: Optional[float] = field(default=None, compare=False)


def query_server(scheme: str, host: str, port: int, *, measures: bool = False) -> ServerIdentity:
    """Ask a server for its identity; failures and refusals leave fields None.

    Each execution repeats the request: a server may be upgraded while a job runs.

    Args:
        scheme: of its URLs.
        host: of the server.
        port: of the server.
        measures: send as many requests as the round trip takes.
    """
    try:
        query = _QUERIES.get(SCHEMES[scheme].client) if scheme in SCHEMES else None
        return query(scheme, host, port, measures) if query else ServerIdentity()
    except (OSError, ValueError, struct.error, http.client.HTTPException):
        return ServerIdentity()


def _query_http_server(
    scheme: str, host: str, port: int, measures: bool, method: str = "HEAD"
) -> ServerIdentity:
    connection = (
        TimedTlsConnection(host, Deadline(_QUERY_TIMEOUT_S), port, context=_make_open_context())
        if SCHEMES[scheme].tls
        else TimedConnection(host, Deadline(_QUERY_TIMEOUT_S), port)
    )
    try:
        version, rtt_s = _time_request(connection, method)
        if measures:
            # A proxy with delay makes the first answer wait for the connect, too; this one does not.
            connection.close()
            connection.connect()
            time.sleep(min(rtt_s, _QUERY_TIMEOUT_S / 4))
            rtt_s = min(rtt_s, _time_request(connection, method)[1])
        return ServerIdentity(version, None, rtt_s)
    finally:
        connection.close()


def _make_open_context() -> ssl.SSLContext:
    """Make a context that accepts any certificate: nothing secret is sent, and payloads verify."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _time_request(connection: TimedConnection, method: str) -> Tuple[Optional[str], float]:
    """Send a request; return the server's version and the time to its answer."""
    if connection.sock is None:
        connection.connect()
    start = time.monotonic()
    connection.request(method, "/")
    response = connection.getresponse()
    return response.getheader("Server"), time.monotonic() - start


def _query_s3_server(scheme: str, host: str, port: int, measures: bool) -> ServerIdentity:
    """Ask without keys: a refusal names the server, too; HEAD of / is no request of S3."""
    return _query_http_server(scheme, host, port, measures, "GET")


def _query_xrootd_server(_scheme: str, host: str, port: int, measures: bool) -> ServerIdentity:
    deadline = Deadline(_QUERY_TIMEOUT_S)
    with socket.create_connection((host, port), timeout=_QUERY_TIMEOUT_S) as connection:
        connection.sendall(_HANDSHAKE)
        _, answer = _read_response(connection, deadline)
        _, kind = struct.unpack(">ii", answer[:8])
        server = ServerIdentity(None, kind == _DATA_SERVER)
        try:
            # Anonymous: a server that requires authentication does not report its version.
            user = b"treehamm"
            start = time.monotonic()
            connection.sendall(struct.pack(">2sHi8sBBBBi", _STREAM_ID, _LOGIN_REQUEST, os.getpid(), user, 0, 0, 5, 0, 0))  # fmt: skip
            if _read_response(connection, deadline)[0] != _STATUS_OK:
                return server
            server = replace(server, rtt_s=time.monotonic() - start)
            words = b"version"
            query = struct.pack(">2sHH2s4s8si", _STREAM_ID, _QUERY_REQUEST, _QUERY_CONFIG, b"", b"", b"", len(words))  # fmt: skip
            for _ in range(_MEASURED_QUERIES if measures else 1):
                start = time.monotonic()
                connection.sendall(query + words)
                status, answer = _read_response(connection, deadline)
                server = replace(server, rtt_s=min(server.rtt_s or 0.0, time.monotonic() - start))
        except (OSError, ValueError, struct.error):
            return server
        text = answer.decode("ascii", "replace").strip("\0\n ") if status == _STATUS_OK else ""
        return replace(server, version=f"XRootD {text}" if text else None)


#: Client of a scheme -> query of its servers.
_QUERIES: Mapping[str, Callable[[str, str, int, bool], ServerIdentity]] = {
    HTTP_CLIENT: _query_http_server,
    S3_CLIENT: _query_s3_server,
    XROOTD_CLIENT: _query_xrootd_server,
}


def _read_response(connection: socket.socket, deadline: Deadline) -> Tuple[int, bytes]:
    """Read status and content of the next response."""
    _, status, size = struct.unpack(">2sHi", _read_exactly(connection, 8, deadline))
    if not 0 <= size <= _MAX_RESPONSE_BYTES:
        raise ValueError("not a response of the xroot protocol")
    return status, _read_exactly(connection, size, deadline)


def _read_exactly(connection: socket.socket, size: int, deadline: Deadline) -> bytes:
    data = b""
    while len(data) < size:
        with deadline.bound(connection):
            received = connection.recv(size - len(data))
        if not received:
            raise ValueError("the server closed the connection")
        data += received
    return data


# --- Reachability and concurrent jobs

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


def measure_reachability(url: str) -> DoorReachability:
    """Connect to the door of ``url`` a few times; ``rtt_s`` is None for a door without answer."""
    if local_path(url) is not None:
        return DoorReachability("local", None)
    parts = urlsplit(url)
    family, times, reason = None, [], ""
    for _ in range(_CONNECT_TRIES):
        start = time.monotonic()
        try:
            with socket.create_connection(
                _parse_address(parts), timeout=_CONNECT_TIMEOUT_S
            ) as connection:
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
        _query_xrootd_server(parts.scheme, host, port, measures=False)
    except (TimeoutError, socket.timeout):  # two classes in Python 3.9
        return "it accepts connections, but answers none"
    except (OSError, ValueError, struct.error):
        return ""
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


def identify_server(url: str) -> ServerIdentity:
    """Ask the server of a URL for its identity and measure the round trip; unknown for a local file."""
    parts = urlsplit(url)
    if local_path(url) is not None:
        return ServerIdentity()
    try:
        return query_server(parts.scheme, *_parse_address(parts), measures=True)
    except ValueError:
        return ServerIdentity()


def identify_door_server(url: str) -> Mapping[str, Optional[str]]:
    """Ask a remote door's server for its identity, by catalogue name; empty for a local file.

    ``data_server`` is known only where the door itself serves the data and does not redirect.
    """
    parts = urlsplit(url)
    try:
        host, port = _parse_address(parts)
    except ValueError:
        return {}
    if local_path(url) is not None:
        return {}
    server = query_server(parts.scheme, host, port)
    data_server = f"{host}:{port}" if server.is_data_server else None
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


class DoorLocks:
    """The locks of all doors through which a job reads."""

    def __init__(self, site: str, doors: Iterable[str]) -> None:
        self._locks = {door: DoorLock(site, door) for door in dict.fromkeys(doors)}
        self._exit_stack = ExitStack()

    def __enter__(self) -> DoorLocks:
        for lock in self._locks.values():
            self._exit_stack.enter_context(lock)
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def count_others(self) -> Mapping[str, Optional[int]]:
        """Count the other jobs that use each door now; None when unknown."""
        return {door: lock.count_others() for door, lock in self._locks.items()}


def _is_held(path: str) -> bool:
    """Return whether a process holds the lock; an unlocked file is removed."""
    try:
        fd = try_lock(path, os.O_RDWR)
        if fd is None:
            return True
        with os.fdopen(fd):
            os.unlink(path)
    except OSError:
        pass
    return False
