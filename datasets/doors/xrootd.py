"""A door that speaks the XRootD protocol, asked with XRootD's own client.

The client (:mod:`.xrootd_client`) runs in a process of its own: it cannot live in one with ROOT's, and
a process can be ended when a server lets it wait.
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

from treehammer.datasets.doors import xrootd_client
from treehammer.datasets.doors.probe import Probe, Target
from treehammer.datasets.doors.seen import BROKEN, SILENT, Advance, Seen

#: Without these the client tries for minutes before it says that a server is dead.
PATIENCE = {
    "XRD_CONNECTIONWINDOW": "3",
    "XRD_CONNECTIONRETRY": "1",
    "XRD_REQUESTTIMEOUT": "10",
    "XRD_STREAMTIMEOUT": "10",
    "XRD_TIMEOUTRESOLUTION": "1",
    "XRD_REDIRECTLIMIT": "8",
    "XRD_APPNAME": "treehammer",
}
#: Seconds without a word after which the client is ended.
LIMIT_S = 30.0
NO_ANSWER = "the server accepts connections and does not answer within {:.0f} s"


def probe(prefix: str, target: Target) -> Probe:
    """Ask the server for its version and read a file."""
    try:
        return Probe(**_ask("probe", prefix, target.path, str(target.size)))
    except TimeoutError:
        return Probe(NO_ANSWER.format(LIMIT_S), "Look into the server's log.")
    except (ValueError, TypeError) as error:
        return Probe(str(error), "")


def stat(url: str) -> Seen:
    """Size and adler32 as the server tells them."""
    return _seen("stat", url, limit_s=LIMIT_S + xrootd_client.CHECKSUM_S)


def read(url: str, advance: Advance | None = None, copy_to: Path | None = None) -> Seen:
    """Read every byte, and keep them in a file if one is given."""
    return _seen("read", url, str(copy_to or ""), advance=advance)


def write(path: Path, url: str, advance: Advance | None = None) -> Seen:
    """Write a file of this machine in place of what is there."""
    return _seen("write", str(path), url, advance=advance)


def remove(url: str) -> Seen:
    """Remove a file."""
    return _seen("remove", url)


def _seen(verb: str, *words: str, advance: Advance | None = None, limit_s: float = 0.0) -> Seen:
    try:
        return Seen(**_ask(verb, *words, advance=advance, limit_s=limit_s))
    except TimeoutError:
        return Seen(trouble=SILENT, message=NO_ANSWER.format(limit_s or LIMIT_S))
    except (ValueError, TypeError) as error:
        return Seen(trouble=BROKEN, message=str(error))


def _ask(*words: str, advance: Advance | None = None, limit_s: float = 0.0) -> Mapping[str, Any]:
    """Run the client; what it says last.

    Raises:
        TimeoutError: it said nothing for ``limit_s`` (by default LIMIT_S) and was ended.
        ValueError: it ended without saying what came of it.
    """
    command = [sys.executable, "-P", "-m", xrootd_client.__name__, *words]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | PATIENCE,
        ) as process,
    ):
        told = ""
        try:
            for line in _lines(process, limit_s or LIMIT_S):
                told = line
                if advance and told.startswith('{"done"'):
                    advance(json.loads(told)["done"])
        except BaseException:
            process.kill()
            raise
        code = process.wait()
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip() or told.strip()
    if told.startswith("{") and not told.startswith('{"done"'):
        found: Mapping[str, Any] = json.loads(told)
        return found
    raise ValueError(f"XRootD's client ended with {code}: {said[-300:]}")


def _lines(process: subprocess.Popen[str], limit_s: float) -> Iterator[str]:
    """What a process prints, line by line.

    Raises:
        TimeoutError: it printed nothing for so many seconds.
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
