"""Doors that use the XRootD protocol, accessed with XRootD's own client.

The client (:mod:`.xrootd_process`) runs in a separate process: it conflicts with ROOT's copy of the
library, and a process can be killed when a server does not respond.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

from treehammer.datasets.doors import xrootd_process
from treehammer.datasets.doors.observations import (
    FAILED,
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
_PROGRESS_START = '{"done"'
#: Seconds without output after which the client is killed.
SILENCE_TIMEOUT_S = 30.0
#: Seconds that the client may take to exit after its last line.
EXIT_TIMEOUT_S = 10.0
NO_ANSWER_MESSAGE = "the server accepts connections and does not answer within {:.0f} s"


def probe_server(prefix: str, target: ProbeTarget) -> ProbeResult:
    """Request the server's version and read a file."""
    try:
        return ProbeResult(**_run_client("probe", prefix, target.path, str(target.size)))
    except TimeoutError:
        return ProbeResult(
            NO_ANSWER_MESSAGE.format(SILENCE_TIMEOUT_S), "Look into the server's log."
        )
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
    """Run the client; returns its final result.

    Raises:
        TimeoutError: The client printed nothing for ``limit_s`` seconds and was killed.
        ValueError: The client exited without a result.
        MissingExtraError: the XRootD client is not installed.
    """
    require_packages("XRootD")
    command = [sys.executable, "-P", "-m", xrootd_process.__name__, *words]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | CLIENT_TIMEOUTS,
        ) as process,
    ):
        last_line = ""
        try:
            for last_line in _read_lines(process, limit_s or SILENCE_TIMEOUT_S):
                if advance and last_line.startswith(_PROGRESS_START):
                    advance(json.loads(last_line)["done"])
        except BaseException:
            process.kill()
            raise
        try:
            code = process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        errors.seek(0)
        message = errors.read().decode("utf-8", "replace").strip() or last_line.strip()
    if last_line.startswith("{") and not last_line.startswith(_PROGRESS_START):
        result: Mapping[str, Any] = json.loads(last_line)
        return result
    raise ValueError(f"XRootD's client ended with {code}: {message[-300:]}")


def _read_lines(process: subprocess.Popen[str], limit_s: float) -> Iterator[str]:
    """Iterate over the lines that a process prints.

    Raises:
        TimeoutError: The process printed nothing for so many seconds.
    """
    lines: Queue[str] = Queue()

    def collect() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    Thread(target=collect, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=limit_s)
        except Empty:
            raise TimeoutError from None
        if not line:
            return
        yield line
