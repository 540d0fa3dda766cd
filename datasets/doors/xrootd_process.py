"""Requests with XRootD's own client, in a separate process.

``python -m treehammer.datasets.doors.xrootd_process`` reads requests, each a line with a list of words.
For each it prints one JSON object per line: progress as ``done``, the bytes of each block read or
written, and finally the result.  It ends with its input, or after a time without requests.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from treehammer.datasets.doors.observations import (
    FAILED,
    MISSING,
    NO_RESPONSE,
    NOTHING_TO_READ,
    OVERLOAD_HINT,
    PERMISSION_HINT,
    REFUSED,
    SAMPLE_BYTES,
    FileObservation,
    ProbeResult,
    ProbeTarget,
    check_sample,
    find_first_file,
    normalize_adler32,
    read_blocks,
)
from treehammer.datasets.manifest import digest_blocks

#: Bytes of a request, small enough for a response in time on a slow connection.
TRANSFER_BLOCK_BYTES = 2 << 20
#: Timeout in seconds of a checksum, for which the server may read the file.
CHECKSUM_TIMEOUT_S = 600
#: Seconds without a request after which the client ends.
IDLE_TIMEOUT_S = 60

#: XRootD error numbers: no such path, access denied, folder, unsupported, not authenticated.
NOT_FOUND, NOT_AUTHORISED, IS_DIRECTORY, UNSUPPORTED, AUTH_FAILED = 3011, 3010, 3016, 3013, 3030
#: Remedies of an overloaded server, and of one that requires TLS.
_HINTS = {3024: OVERLOAD_HINT, 3028: "The server requires TLS: use roots:// in the prefix."}
_PATH = re.compile(r"\S*/\S*")


class _XRootDError(Exception):
    """Failed request; ``status`` is XRootD's."""

    def __init__(self, status: Any) -> None:
        message = status.message.strip()
        for head in ("[ERROR] ", "[FATAL] ", "Server responded with an error: "):
            message = message.removeprefix(head)
        super().__init__(message.replace("\0", "").strip())
        self.status = status

    @property
    def failure(self) -> str:
        """The kind of the failure."""
        message = _PATH.sub("", str(self))  # such as "Auth failed" or "not authorized"
        kinds = {NOT_AUTHORISED: REFUSED, AUTH_FAILED: REFUSED, NOT_FOUND: MISSING, 0: NO_RESPONSE}
        return REFUSED if "uth" in message else kinds.get(self.status.errno, FAILED)

    @property
    def remedy(self) -> str:
        """The remedy where trust, credentials or TLS lack, or the server is busy; otherwise ''."""
        if re.search("TLS error|Login failed", str(self)):
            return "Name the grid's authorities in X509_CERT_DIR; check the server's certificate."
        return PERMISSION_HINT if self.failure == REFUSED else _HINTS.get(self.status.errno, "")


def _unwrap_response(pair: tuple[Any, Any]) -> Any:
    status, answer = pair
    if not status.ok:
        raise _XRootDError(status)
    return answer


def _print_message(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def _probe(prefix: str, path: str, size: str) -> ProbeResult:
    from XRootD import client
    from XRootD.client.flags import QueryCode

    target, server = ProbeTarget(path, int(size)), ""
    system, folder = _open_filesystem(prefix)
    try:
        answer = _unwrap_response(system.query(QueryCode.CONFIG, "version role"))
        version, _, role = answer.decode("utf-8", "replace").strip("\0\n ").partition("\n")
        server = f"XRootD {version}" if version.startswith("v") else version
        probe = _probe_file(client.File, prefix, target, _make_lister(system, folder, role))
    except _XRootDError as error:
        probe = _describe_failure(error, target, server)
    return replace(probe, server=server)


def _open_filesystem(url: str) -> tuple[Any, str]:
    """Open the server of a URL; return it with the path of the URL."""
    from XRootD import client

    parts = urlsplit(url)
    return client.FileSystem(f"{parts.scheme}://{parts.netloc}"), "/" + parts.path.lstrip("/")


def _probe_file(
    file: Callable[[], Any],
    prefix: str,
    target: ProbeTarget,
    entries: Callable[[str], list[tuple[str, bool]]],
) -> ProbeResult:
    path = target.path or find_first_file(entries)
    if not path:
        return ProbeResult(details=NOTHING_TO_READ)
    with file() as opened:
        _unwrap_response(opened.open(f"{prefix}/{quote(path)}"))
        size = _unwrap_response(opened.stat()).size
        sample = check_sample(target, path, _unwrap_response(opened.read(0, SAMPLE_BYTES)), size)
        data_server = opened.get_property("DataServer")
    return replace(sample, details=f"{sample.details} at {data_server}") if data_server else sample


def _make_lister(system: Any, base: str, role: str) -> Callable[[str], list[tuple[str, bool]]]:
    from XRootD.client.flags import DirListFlags, StatInfoFlags

    # A redirector has no folders itself: merge the listings of its servers.
    flags = DirListFlags.STAT | (DirListFlags.LOCATE if "manager" in role else 0)

    def entries(path: str) -> list[tuple[str, bool]]:
        folder = "/" + f"{base}/{path}".strip("/")
        try:
            items = _unwrap_response(system.dirlist(folder, flags))
        except _XRootDError as error:
            if error.status.errno != IS_DIRECTORY:
                raise
            items = _unwrap_response(system.dirlist(folder, flags & ~DirListFlags.STAT))
        return [(item.name, is_folder(folder, item)) for item in items]

    def is_folder(folder: str, item: Any) -> bool:
        if item.statinfo:
            return bool(item.statinfo.flags & StatInfoFlags.IS_DIR)
        # A cache lists its folders without their type once they contain files.
        status, info = system.stat(f"{folder}/{item.name}")
        return bool(
            info.flags & StatInfoFlags.IS_DIR if status.ok else status.errno == IS_DIRECTORY
        )

    return entries


def _describe_failure(error: _XRootDError, target: ProbeTarget, server: str) -> ProbeResult:
    """Describe a failure of a server, whose name is '' where it has not answered at all."""
    hint = "Look into the server's log"
    port_hint = "Check the port, where another protocol may listen, and the server's log."
    remedies = {
        MISSING: target.missing_file_hint,
        NO_RESPONSE: f"{hint}, and that of any to which it redirects." if server else port_hint,
        FAILED: f"{hint}.",
    }
    return ProbeResult(str(error), error.remedy or remedies[error.failure])


def _stat_file(url: str) -> FileObservation:
    """Request size and adler32; behind a redirector, from the data server."""
    system, path = _open_filesystem(url)
    size = _unwrap_response(system.stat(path)).size
    try:
        try:
            return FileObservation(size, _query_checksum(system, path))
        except _XRootDError as error:
            if error.status.errno != UNSUPPORTED:
                raise
            return FileObservation(size, _query_checksum(_find_data_server(url), path))
    except _XRootDError as error:
        if error.failure != FAILED:
            raise
        return FileObservation(size=size, message=f"no checksum: {error}")


def _query_checksum(system: Any, path: str) -> str:
    from XRootD.client.flags import QueryCode

    query = f"{path}?cks.type=adler32"
    answer = _unwrap_response(system.query(QueryCode.CHECKSUM, query, timeout=CHECKSUM_TIMEOUT_S))
    digits = re.match(rb"(?i)adler32 +([0-9a-f]{1,8})\b", answer)  # a script may name none
    return normalize_adler32(digits[1].decode()) if digits else ""


def _find_data_server(url: str) -> Any:
    """Find the data server to which a redirector sends a reader."""
    from XRootD import client

    with client.File() as file:
        _unwrap_response(file.open(url))
        return client.FileSystem(f"{urlsplit(url).scheme}://{file.get_property('DataServer')}")


def _read_file(url: str, size: str, copy_to: str) -> FileObservation:
    """Read a file of ``size`` bytes and its checksums, and copy it unless ``copy_to`` is ''."""
    from XRootD import client

    with client.File() as file, Path(copy_to or os.devnull).open("wb") as copy:
        _unwrap_response(file.open(url))
        blocks = read_blocks(
            lambda offset: _unwrap_response(file.read(offset, TRANSFER_BLOCK_BYTES)), int(size)
        )
        digest = digest_blocks(blocks, lambda size: _print_message(done=size), copy)
    return FileObservation.from_digest(digest)


def _write_file(path: str, url: str) -> FileObservation:
    """Write a file, replacing an existing one; the server discards incomplete files."""
    from XRootD import client
    from XRootD.client.flags import OpenFlags

    flags = OpenFlags.DELETE | OpenFlags.MAKEPATH | OpenFlags.POSC
    size = 0
    file = client.File()
    with Path(path).open("rb") as source:
        _unwrap_response(file.open(url, flags))
        while block := source.read(TRANSFER_BLOCK_BYTES):
            _unwrap_response(file.write(block, size))
            size += len(block)
            _print_message(done=len(block))
    _unwrap_response(file.close())
    return FileObservation(size)


def _remove_file(url: str) -> FileObservation:
    system, path = _open_filesystem(url)
    _unwrap_response(system.rm(path))
    return FileObservation()


def _perform_action(verb: str, *words: str) -> FileObservation | ProbeResult:
    try:
        return _ACTIONS[verb](*words)
    except _XRootDError as error:
        return FileObservation(failure=error.failure, message=str(error), remedy=error.remedy)
    except OSError as error:
        return FileObservation(failure=FAILED, message=f"{error.filename}: {error.strerror}")


_ACTIONS: Mapping[str, Callable[..., FileObservation | ProbeResult]] = {
    "probe": _probe,
    "stat": _stat_file,
    "read": _read_file,
    "write": _write_file,
    "remove": _remove_file,
}


def main() -> None:
    """Perform requests and print their results."""
    while select.select([sys.stdin], [], [], IDLE_TIMEOUT_S)[0] and (line := sys.stdin.readline()):
        _print_message(**asdict(_perform_action(*json.loads(line))))
    os._exit(0)  # the client's threads may still wait for a silent server


if __name__ == "__main__":
    main()
