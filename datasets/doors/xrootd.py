"""A door that speaks the XRootD protocol, tried with XRootD's own client.

The client runs in a process of its own: it cannot live in one with ROOT's, and a process can be
ended when a server lets it wait.  ``python -m treehammer.datasets.doors.xrootd PREFIX PATH SIZE``
prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import quote, urlsplit

from treehammer.datasets.doors.probe import (
    NOT_ALLOWED,
    NOTHING_TO_READ,
    SAMPLE,
    Probe,
    Target,
    first_file,
    read_sample,
)

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
#: Seconds after which the client is ended.
LIMIT_S = 30.0

#: Numbers by which servers say that a path is not there, or not for us.
NOT_FOUND, NOT_AUTHORISED = 3011, 3010


def probe(prefix: str, target: Target) -> Probe:
    """Ask the server for its version and read a file."""
    command = [sys.executable, "-P", "-m", __name__, prefix, target.path, str(target.size)]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=os.environ | PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Probe(
            f"the server accepts connections and does not answer within {LIMIT_S:.0f} s",
            "Look into the server's log.",
        )
    try:
        return Probe(**json.loads(ended.stdout))
    except (ValueError, TypeError):
        said = (ended.stderr or ended.stdout).strip()[-300:]
        return Probe(f"XRootD's client ended with {ended.returncode}: {said}", "")


class _Refused(Exception):
    """A request that failed; ``status`` is XRootD's."""

    def __init__(self, status: Any) -> None:
        super().__init__(status.message.strip())
        self.status = status


def _try(prefix: str, target: Target) -> Probe:
    from XRootD import client
    from XRootD.client.flags import QueryCode

    parts = urlsplit(prefix)
    system = client.FileSystem(f"{parts.scheme}://{parts.netloc}")
    answer = _answer(system.query(QueryCode.CONFIG, "version role")).decode("utf-8", "replace")
    version, _, role = answer.strip("\0\n ").partition("\n")
    server = f"XRootD {version}" if version.startswith("v") else version
    try:
        probe = _read(client.File, prefix, target, _lister(system, parts.path, role))
    except _Refused as error:
        probe = _problem(error, target)
    return Probe(probe.problem, probe.remedy, probe.found, server)


def _read(
    file: Callable[[], Any],
    prefix: str,
    target: Target,
    entries: Callable[[str], list[tuple[str, bool]]],
) -> Probe:
    path = target.path or first_file(entries)
    if not path:
        return Probe(found=NOTHING_TO_READ)
    with file() as opened:
        _answer(opened.open(f"{prefix}/{quote(path)}"))
        size = _answer(opened.stat()).size
        sample = read_sample(target, path, _answer(opened.read(0, SAMPLE)), size)
        data_server = opened.get_property("DataServer")
    found = f"{sample.found} at {data_server}" if data_server else sample.found
    return Probe(sample.problem, sample.remedy, found)


def _lister(system: Any, base: str, role: str) -> Callable[[str], list[tuple[str, bool]]]:
    from XRootD.client.flags import DirListFlags, StatInfoFlags

    # A redirector has no folders of its own: those of its servers are put together.
    flags = DirListFlags.STAT | (DirListFlags.LOCATE if "manager" in role else 0)

    def entries(path: str) -> list[tuple[str, bool]]:
        folder = f"/{base}/{path}".rstrip("/")
        listed = _answer(system.dirlist("/" + folder.lstrip("/"), flags))
        return [
            (item.name, bool(item.statinfo and item.statinfo.flags & StatInfoFlags.IS_DIR))
            for item in listed
        ]

    return entries


def _answer(pair: tuple[Any, Any]) -> Any:
    status, answer = pair
    if not status.ok:
        raise _Refused(status)
    return answer


def _problem(error: _Refused, target: Target) -> Probe:
    message = str(error).removeprefix("[ERROR] ").removeprefix("[FATAL] ")
    message = message.removeprefix("Server responded with an error: ").strip()
    if error.status.errno == NOT_FOUND:
        return Probe(message, target.missing)
    if error.status.errno == NOT_AUTHORISED or "uth" in message:  # "Auth failed", "authorized"
        return Probe(message, NOT_ALLOWED)
    if not error.status.errno:
        return Probe(message, "Check the port: what listens there may speak another protocol.")
    return Probe(message, "Look into the server's log.")


def main(prefix: str, path: str, size: str) -> None:
    """Try a door and print what came of it."""
    target = Target(path, int(size))
    try:
        probe = _try(prefix, target)
    except _Refused as error:
        probe = _problem(error, target)
    print(json.dumps(asdict(probe)), flush=True)
    os._exit(0)  # the client's threads may wait for a server that will not answer


if __name__ == "__main__":
    main(*sys.argv[1:])
