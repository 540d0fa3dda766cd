"""XRootD client through the official Python bindings, and failure classes of all protocols.

Operations are asynchronous.  The bindings and ROOT bring their own copies of the XRootD client, which
crash in one process.  Failures are classified by statuses of XRootD and HTTP, and by messages of copy
programs.
"""

from __future__ import annotations

import os
import re
from threading import Event, Lock
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

from .....collectors.record import operation_steps as steps
from ..operation import Flight, LoadFile, StorageClient
from .xrootd_files import XrootdHandles, XrootdTransfer, find_server

#: Limits of the client, unless the environment sets them: a dead server must fail within seconds,
#: and be tried again by the next operation.
CLIENT_SETTINGS: Mapping[str, str] = {
    "XRD_CONNECTIONWINDOW": "5",
    "XRD_CONNECTIONRETRY": "1",
    "XRD_STREAMERRORWINDOW": "0",
    "XRD_TIMEOUTRESOLUTION": "1",
    "XRD_APPNAME": "treehammer",
}

_WARM_UP_S, _REFRESH_S = 2.0, 10.0
_DOOR_OPERATIONS = frozenset(
    {steps.CONNECT, steps.LOCATE, steps.STAT, steps.DELETE, steps.MKDIR, steps.RMDIR}
)

# Codes of the client (XrdCl/XrdClStatus.hh) and of servers (XProtocol/XProtocol.hh).
_SERVER_RESPONSE = 400
_FAILURES_BY_CODE: Mapping[int, str] = {
    13: "not-supported",
    14: "wrong-data",
    15: "not-supported",
    16: "not-found",
    101: "refused",  # no address of the host
    102: "reset",
    103: "timeout",
    104: "reset",
    105: "reset",
    107: "reset",
    108: "refused",
    109: "reset",
    110: "credential",
    202: "server-error",
    203: "server-error",
    204: "credential",
    205: "not-supported",
    206: "timeout",
    207: "reset",
    302: "server-error",
    303: "server-error",
    304: "not-found",
    305: "wrong-data",
    306: "redirect-limit",
}
FAILURES_BY_RESPONSE: Mapping[int, str] = {
    3005: "server-error",
    3007: "server-error",
    3008: "server-error",
    3009: "no-space",
    3010: "not-permitted",
    3011: "not-found",
    3012: "server-error",
    3013: "not-supported",
    3014: "server-error",
    3019: "wrong-data",
    3021: "no-space",
    3024: "server-error",
    3025: "not-permitted",
    3028: "not-supported",
    3029: "not-found",
    3030: "credential",
    3033: "server-error",
    3034: "timeout",
    3035: "timeout",
}


def classify_status(code: int, response: int) -> str:
    """Return the failure class of a status: the client's code, and the server's number."""
    if code == _SERVER_RESPONSE:
        return FAILURES_BY_RESPONSE.get(response, "other")
    return _FAILURES_BY_CODE.get(code, "other")


FAILURES_BY_STATUS: Mapping[int, str] = {
    401: "credential",
    403: "not-permitted",
    404: "not-found",
    405: "not-supported",
    408: "timeout",
    410: "not-found",
    416: "wrong-data",
    429: "server-error",
    495: "credential",
    496: "credential",
    501: "not-supported",
    504: "timeout",
    507: "no-space",
}
#: Number of a server's error in messages of XRootD's clients, and of a response in those of curl.
_XROOTD_ERROR = re.compile(r"\[(30\d\d)\]")
_HTTP_STATUS = re.compile(r"(?:returned error:|ClientResponseError:|\bHTTP(?: Error)?) (\d{3})\b")
#: Messages of xrdcp, curl, ROOT, uproot and the operating system; the first that occurs decides.
_MESSAGES: Sequence[Tuple[str, str]] = (
    ("credential", r"(?:auth|login) failed|certificate|unable to .*credential"),
    ("timeout", r"timed? ?out|operation expired"),
    ("redirect-limit", r"redirect limit|too ?many ?redirects"),
    (
        "reset",
        r"reset by peer|broken pipe|stream error|socket error|empty reply|partial file|disconnect|transfer closed|closed connection|incompleteread|interrupted",
    ),
    (
        "refused",
        r"resolve host|invalid address|name resolution|name or service|refused|(?:couldn't|could not|failed to|cannot) connect|connection error|no route|unreachable",
    ),
    ("not-found", r"no such file|FileNotFoundError"),
    ("not-permitted", r"permission denied|not permitted|read-only file system"),
    ("no-space", r"no space left|quota exceeded"),
    ("wrong-data", r"checksum|corrupted data"),
)


def classify_http_status(status: int) -> str:
    """Return the failure class of an HTTP status that is an error."""
    return FAILURES_BY_STATUS.get(status, "server-error" if status >= 500 else "other")


def classify_exit(text: str) -> str:
    """Return the failure class of a program that failed, by its output."""
    numbered = _XROOTD_ERROR.search(text)
    if numbered:
        return FAILURES_BY_RESPONSE.get(int(numbered[1]), "other")
    status = _HTTP_STATUS.search(text)
    if status:
        return classify_http_status(int(status[1]))
    for failure, pattern in _MESSAGES:
        if re.search(pattern, text, re.IGNORECASE):
            return failure
    return "other"


def limit_client(timeout_s: float) -> int:
    """Set the limits of XRootD's client in the environment, before its library is loaded.

    Returns:
        the time limit of a request; the bindings take whole seconds.
    """
    timeout = max(1, round(timeout_s))
    limits = {"XRD_REQUESTTIMEOUT": str(timeout), "XRD_STREAMTIMEOUT": str(timeout)}
    for name, value in {**CLIENT_SETTINGS, **limits}.items():
        os.environ.setdefault(name, value)
    return timeout


class XrootdClient(StorageClient):
    """Client of ``root://`` and ``roots://``; each client's user name gives it its own connection.

    Raises:
        ImportError: the bindings are not installed.
    """

    cores = len(os.sched_getaffinity(0))

    def __init__(self, clients: int, timeout_s: float, url: str) -> None:
        super().__init__(clients, timeout_s)
        self._timeout = limit_client(timeout_s)
        from XRootD import client  # type: ignore[import-untyped,unused-ignore]
        from XRootD.client.flags import AccessMode, MkDirFlags, OpenFlags

        self._new_file: Callable[[], Any] = client.File
        self._new_door: Callable[[str], Any] = client.FileSystem
        self._doors: Dict[int, Any] = {}
        self._no_flag, self._refresh_flag = OpenFlags.NONE, OpenFlags.REFRESH
        # A redirector may send files of one folder to servers that do not have it yet.
        self._read_flag, self._write_flags = OpenFlags.READ, OpenFlags.NEW | OpenFlags.MAKEPATH
        self._write_mode = AccessMode.UR | AccessMode.UW | AccessMode.GR | AccessMode.OR
        self._make_path = MkDirFlags.MAKEPATH
        self._lock = Lock()
        # A file must not be collected before its last callback.
        self._closing: Dict[int, Any] = {}
        self._handles = XrootdHandles(self._new_file, self._open_file, _end_flight, self._timeout)
        # The first request starts threads and loads plug-ins, which delays it.
        answered, door = Event(), client.FileSystem(url)
        if door.ping(timeout=round(_WARM_UP_S), callback=lambda *_: answered.set()).ok:
            answered.wait(_WARM_UP_S)

    def start(self, flight: Flight) -> None:
        """Send an operation."""
        operation = flight.operation
        if operation.handle < 0 and operation.name in _DOOR_OPERATIONS:
            self._ask_door(flight)
        elif operation.name in (steps.WRITE_FILE, steps.CREATE, steps.READ_FILE):
            self._transfer(flight)
        elif operation.name == steps.OPEN and operation.handle < 0 and not operation.keep:
            self._handles.open_once(flight)
        else:
            self._handles.start(flight)

    def has_copy(self, url: str) -> bool:
        """Return whether a redirector that asks its servers again finds a removed path."""
        door_url, path = split_url(url)
        door = self._new_door(door_url)
        status, _ = door.locate(path, self._refresh_flag, timeout=round(_REFRESH_S))
        return bool(status.ok)

    # -- namespace

    def _ask_door(self, flight: Flight) -> None:
        operation, timeout = flight.operation, self._timeout
        door_url, path = split_url(operation.file.url)
        with self._lock:
            door = self._doors.get(operation.client)
            if door is None:
                door = self._new_door(add_user(door_url, operation.client))
                self._doors[operation.client] = door

        def answered(status: Any, _response: Any, hosts: Any) -> None:
            servers = [host.url for host in hosts or ()]
            server = f"{servers[-1].hostname}:{servers[-1].port}" if servers else ""
            failure = "" if status.ok else classify_status(status.code, status.errno)
            flight.end(server, failure)

        flight.send()
        send, *arguments = {
            steps.CONNECT: (door.ping,),  # the first request of a client makes its connection
            steps.LOCATE: (door.locate, path, self._no_flag),
            steps.STAT: (door.stat, path),
            steps.DELETE: (door.rm, path),
            steps.MKDIR: (door.mkdir, path, self._make_path),
            steps.RMDIR: (door.rmdir, path),
        }[operation.name]
        status = send(*arguments, timeout=timeout, callback=answered)
        if not status.ok:
            answered(status, None, None)

    # -- whole files

    def _transfer(self, flight: Flight) -> None:
        file, operation = self._new_file(), flight.operation
        self._closing[id(file)] = file

        def end(flight: Flight, status: Any, file: Any, failure: str) -> None:
            _end_flight(flight, status, file, failure=failure)
            self._closing.pop(id(file), None)

        reads = operation.name == steps.READ_FILE
        flight.send()
        XrootdTransfer(file, flight, self._timeout, end).start(
            add_user(operation.file.url, operation.client),
            self._read_flag if reads else self._write_flags,
            0 if reads else self._write_mode,
        )

    def _open_file(
        self, file: Any, source: LoadFile, client: int, callback: Callable[..., None]
    ) -> Any:
        url = add_user(source.url, client)
        return file.open(url, self._read_flag, timeout=self._timeout, callback=callback)


def add_user(url: str, client: int) -> str:
    """Put a user name that is unique to a client into a URL, unless it has one."""
    scheme, _, address = url.partition("://")
    host = address.partition("/")[0]
    return url if "@" in host else f"{scheme}://th{client}@{address}"


def split_url(url: str) -> Tuple[str, str]:
    """Split a URL into that of its door and the path at the door."""
    scheme, _, address = url.partition("://")
    host, _, path = address.partition("/")
    return f"{scheme}://{host}/", "/" + path.lstrip("/")


def _end_flight(
    flight: Flight, status: Any, file: Any, response: Any = None, failure: str = ""
) -> None:
    """End an operation on a file; reads of parts compare their length."""
    operation, server = flight.operation, find_server(file)
    if not status.ok:
        failure = classify_status(status.code, status.errno)
    elif operation.chunks:
        read = 0
        if response is not None:
            read = response.size if operation.name == steps.VECTOR_READ else len(response)
        failure = "" if read == operation.bytes else "wrong-data"
    flight.end(server, failure)
