"""Doors that use the XRootD protocol, accessed with XRootD's own client.

The client (:mod:`.xrootd_process`) runs in a separate process: it conflicts with ROOT's copy of the
library, and a process can be killed when a server does not respond.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from treehammer.datasets.doors import xrootd_process
from treehammer.datasets.doors.observations import (
    FAILED,
    MISSING,
    NO_RESPONSE,
    FileObservation,
    ProbeResult,
    ProbeTarget,
)
from treehammer.errors import require_packages
from treehammer.text_formatting import ByteCallback

#: Client settings that report a dead server in seconds instead of minutes.
CLIENT_TIMEOUTS = {
    "XRD_CONNECTIONWINDOW": "3",
    "XRD_CONNECTIONRETRY": "1",
    "XRD_REQUESTTIMEOUT": "10",
    "XRD_STREAMTIMEOUT": "10",
    "XRD_TIMEOUTRESOLUTION": "1",
    "XRD_REDIRECTLIMIT": "8",
    "XRD_APPNAME": "treehammer",
}
#: Start of the client's lines that report progress.
_PROGRESS_START = b'{"done"'
#: Seconds without output after which the client is killed.
SILENCE_TIMEOUT_S = 30.0
#: Seconds that the client may take to exit once it has closed its output.
EXIT_TIMEOUT_S = 10.0
NO_ANSWER_MESSAGE = "the server accepts connections and does not answer within {:.0f} s"


def probe_server(prefix: str, target: ProbeTarget) -> ProbeResult:
    """Request the server's version and read a file."""
    try:
        return ProbeResult(**_run_client("probe", prefix, target.path, str(target.size)))
    except TimeoutError:
        return ProbeResult(NO_ANSWER_MESSAGE.format(SILENCE_TIMEOUT_S), "Look into its log.")
    except (ValueError, TypeError) as error:
        return ProbeResult(str(error), "")


def stat_file(url: str) -> FileObservation:
    """Request a file's size and adler32 from the server."""
    return _observe_file("stat", url, limit_s=SILENCE_TIMEOUT_S + xrootd_process.CHECKSUM_TIMEOUT_S)


def read_file(
    url: str, size: int, advance: ByteCallback | None = None, copy_to: Path | None = None
) -> FileObservation:
    """Read a file of ``size`` bytes and its checksums, and copy it to a new file if one is given."""
    return _observe_file("read", url, str(size), str(copy_to or ""), advance=advance)


def write_file(path: Path, url: str, advance: ByteCallback | None = None) -> FileObservation:
    """Copy a local file to the server, replacing any file there."""
    return _observe_file("write", str(path), url, advance=advance)


def remove_file(url: str) -> FileObservation:
    """Remove a file."""
    return _observe_file("remove", url)


def _observe_file(
    verb: str, *words: str, advance: ByteCallback | None = None, limit_s: float = 0.0
) -> FileObservation:
    try:
        return FileObservation(**_run_client(verb, *words, advance=advance, limit_s=limit_s))
    except TimeoutError:
        return FileObservation(
            failure=NO_RESPONSE, message=NO_ANSWER_MESSAGE.format(limit_s or SILENCE_TIMEOUT_S)
        )
    except (ValueError, TypeError) as error:
        return FileObservation(failure=FAILED, message=str(error))


def _run_client(
    *words: str, advance: ByteCallback | None = None, limit_s: float = 0.0
) -> Mapping[str, Any]:
    """Perform a request; returns its result.

    Raises:
        TimeoutError: The client printed nothing for ``limit_s`` seconds and was killed.
        ValueError: The client exited without a result.
        MissingExtraError: the XRootD client is not installed.
    """
    require_packages("XRootD")
    limit_s = limit_s or SILENCE_TIMEOUT_S
    environment = os.environ | CLIENT_TIMEOUTS
    idle = _idle_clients[sys.executable, *environment.items()]
    with suppress(IndexError, ValueError):  # there is none, or it has ended
        client = idle.pop()
        result = client.request(words, advance, limit_s)
        if result.get("failure", result.get("problem")) in ("", MISSING):
            idle.append(client)
            return result
        client.end()  # its connection may be broken, or its credential old: a new one decides
    client = _Client(environment)
    result = client.request(words, advance, limit_s)
    idle.append(client)
    return result


class _Client:
    """Process with XRootD's client, for one request after the other: it takes long to start."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        atexit.register(self.end)
        self._socket, inner = socket.socketpair()
        self._lines = self._socket.makefile("rb")
        command = [sys.executable, "-P", "-m", xrootd_process.__name__]
        with inner:
            self._process = subprocess.Popen(
                command,
                stdin=inner.fileno(),
                stdout=inner.fileno(),
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def request(
        self, words: Sequence[str], advance: ByteCallback | None, limit_s: float
    ) -> Mapping[str, Any]:
        """Send a request, wait for its result, and end the client without one; failures undo progress."""
        message = b""
        sizes: list[int] = []
        self._socket.settimeout(limit_s)
        try:
            with suppress(BrokenPipeError):
                self._socket.sendall(f"{json.dumps(words)}\n".encode())
            with suppress(ConnectionResetError):
                for line in self._lines:
                    if not line.startswith(b"{"):
                        message += line
                    elif not line.startswith(_PROGRESS_START):
                        result: Mapping[str, Any] = json.loads(line)
                        sizes = sizes if result.get("failure") else []
                        return result
                    elif advance:
                        sizes.append(json.loads(line)["done"])
                        advance(sizes[-1])
        except BaseException:
            self.end()
            raise
        finally:
            if advance and sizes:
                advance(-sum(sizes))
        code, text = self.end(EXIT_TIMEOUT_S), message.decode("utf-8", "replace").strip()
        raise ValueError(f"XRootD's client ended with {code}: {text[-300:]}")

    def end(self, timeout_s: float = 0.0) -> int:
        """End the process, which may take so many seconds by itself; return its exit code."""
        atexit.unregister(self.end)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self._process.kill()
        self._lines.close()
        self._socket.close()
        return self._process.wait()


#: Clients without a request, by their environment.
_idle_clients: dict[tuple[object, ...], list[_Client]] = defaultdict(list)
