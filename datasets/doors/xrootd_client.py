"""What is asked of a server with XRootD's own client, in a process of its own.

``python -m treehammer.datasets.doors.xrootd_client VERB ...`` prints a JSON object in a line for what
came of it, after objects with ``done``, the bytes of each block, while it reads or writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
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
from treehammer.datasets.doors.seen import BROKEN, MISSING, REFUSED, SILENT, Seen, adler32_of

#: Bytes of a request; short enough that a slow line answers in time.
BLOCK = 2 << 20
#: Seconds that a server may take to read a file for its checksum.
CHECKSUM_S = 600

#: Numbers by which servers say that a path is not there, not for us, or a folder, and what they
#: cannot do.
NOT_FOUND, NOT_AUTHORISED, IS_DIRECTORY, UNSUPPORTED = 3011, 3010, 3016, 3013


class _Refused(Exception):
    """A request that failed; ``status`` is XRootD's."""

    def __init__(self, status: Any) -> None:
        message = status.message.strip()
        for head in ("[ERROR] ", "[FATAL] ", "Server responded with an error: "):
            message = message.removeprefix(head)
        super().__init__(message.replace("\0", "").strip())
        self.status = status

    @property
    def is_about_us(self) -> bool:
        """Whether the server does not let us."""
        said = str(self)  # "Auth failed", "not authorized"
        return self.status.errno == NOT_AUTHORISED or "uth" in said


def _answer(pair: tuple[Any, Any]) -> Any:
    status, answer = pair
    if not status.ok:
        raise _Refused(status)
    return answer


def _say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


# --- trying a door


def _probe(prefix: str, path: str, size: str) -> Mapping[str, Any]:
    target = Target(path, int(size))
    try:
        return asdict(_try(prefix, target))
    except _Refused as error:
        return asdict(_problem(error, target))


def _try(prefix: str, target: Target) -> Probe:
    from XRootD import client
    from XRootD.client.flags import QueryCode

    system, path = _system(prefix)
    answer = _answer(system.query(QueryCode.CONFIG, "version role")).decode("utf-8", "replace")
    version, _, role = answer.strip("\0\n ").partition("\n")
    server = f"XRootD {version}" if version.startswith("v") else version
    try:
        probe = _sample(client.File, prefix, target, _lister(system, path, role))
    except _Refused as error:
        probe = _problem(error, target)
    return Probe(probe.problem, probe.remedy, probe.found, server)


def _system(url: str) -> tuple[Any, str]:
    """The server of a URL, and the path in it."""
    from XRootD import client

    parts = urlsplit(url)
    return client.FileSystem(f"{parts.scheme}://{parts.netloc}"), "/" + parts.path.lstrip("/")


def _sample(
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
        folder = "/" + f"{base}/{path}".strip("/")
        try:
            listed = _answer(system.dirlist(folder, flags))
        except _Refused as error:
            if error.status.errno != IS_DIRECTORY:
                raise
            listed = _answer(system.dirlist(folder, flags & ~DirListFlags.STAT))
        return [(item.name, is_folder(folder, item)) for item in listed]

    def is_folder(folder: str, item: Any) -> bool:
        if item.statinfo:
            return bool(item.statinfo.flags & StatInfoFlags.IS_DIR)
        # A cache has folders of its own as soon as it has files, and cannot look at them.
        status, info = system.stat(f"{folder}/{item.name}")
        return bool(
            info.flags & StatInfoFlags.IS_DIR if status.ok else status.errno == IS_DIRECTORY
        )

    return entries


def _problem(error: _Refused, target: Target) -> Probe:
    message = str(error)
    if error.status.errno == NOT_FOUND:
        return Probe(message, target.missing)
    if error.is_about_us:
        return Probe(message, NOT_ALLOWED)
    if not error.status.errno:
        return Probe(message, "Check the port: what listens there may speak another protocol.")
    return Probe(message, "Look into the server's log.")


# --- one file


def _stat(url: str) -> Seen:
    """Size and adler32 as the server tells them; behind a redirector, as the data server does."""
    system, path = _system(url)
    size = _answer(system.stat(path)).size
    try:
        try:
            return Seen(size, _checksum(system, path))
        except _Refused as error:
            if error.status.errno != UNSUPPORTED:
                raise
            return Seen(size, _checksum(_data_server(url), path))
    except _Refused as error:
        if error.status.errno in (0, NOT_FOUND) or error.is_about_us:
            raise
        return Seen(size=size, message=f"tells no checksum: {error}")


def _checksum(system: Any, path: str) -> str:
    from XRootD.client.flags import QueryCode

    query = f"{path}?cks.type=adler32"
    said = _answer(system.query(QueryCode.CHECKSUM, query, timeout=CHECKSUM_S))
    kind, _, value = said.decode("ascii", "replace").strip("\0\n ").partition(" ")
    return adler32_of(value) if kind == "adler32" else ""


def _data_server(url: str) -> Any:
    """The server that a redirector leads a reader to."""
    from XRootD import client

    with client.File() as file:
        _answer(file.open(url))
        return client.FileSystem(f"root://{file.get_property('DataServer')}")


def _read(url: str, copy_to: str) -> Seen:
    """Size and checksums of all bytes that come through the door; they are kept in a file, or with ''
    nowhere.
    """
    from XRootD import client

    size, adler, sha = 0, 1, hashlib.sha256()
    with client.File() as file, Path(copy_to or os.devnull).open("wb") as kept:
        _answer(file.open(url))
        while block := _answer(file.read(size, BLOCK)):
            size += len(block)
            adler = zlib.adler32(block, adler)
            sha.update(block)
            kept.write(block)
            _say(done=len(block))
    return Seen(size, f"{adler:08x}", sha.hexdigest())


def _write(path: str, url: str) -> Seen:
    """Write a file in place of what is there; an unfinished one the server forgets."""
    from XRootD import client
    from XRootD.client.flags import OpenFlags

    flags = OpenFlags.DELETE | OpenFlags.MAKEPATH | OpenFlags.POSC
    size = 0
    file = client.File()
    with Path(path).open("rb") as source:
        _answer(file.open(url, flags))
        while block := source.read(BLOCK):
            _answer(file.write(block, size))
            size += len(block)
            _say(done=len(block))
    _answer(file.close())
    return Seen(size)


def _remove(url: str) -> Seen:
    system, path = _system(url)
    _answer(system.rm(path))
    return Seen()


def _seen(do: Callable[..., Seen], *words: str) -> Mapping[str, Any]:
    try:
        return asdict(do(*words))
    except _Refused as error:
        trouble = BROKEN if error.status.errno else SILENT
        if error.status.errno == NOT_FOUND:
            trouble = MISSING
        elif error.is_about_us:
            trouble = REFUSED
        return asdict(Seen(trouble=trouble, message=str(error)))
    except OSError as error:
        return asdict(Seen(trouble=BROKEN, message=f"{error.filename}: {error.strerror}"))


_FILE: Mapping[str, Callable[..., Seen]] = {
    "stat": _stat,
    "read": _read,
    "write": _write,
    "remove": _remove,
}


def main(verb: str, *words: str) -> None:
    """Do it and print what came of it."""
    _say(**(_probe(*words) if verb == "probe" else _seen(_FILE[verb], *words)))
    os._exit(0)  # the client's threads may wait for a server that will not answer


if __name__ == "__main__":
    main(*sys.argv[1:])
