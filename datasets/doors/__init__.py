"""Probes of storage doors and observations of files through them.

Problems are reported in the results within seconds.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Protocol

from treehammer.collectors.storage_access import find_scheme, normalize_url
from treehammer.collectors.worker.probes.storage_door import measure_reachability
from treehammer.datasets.doors import file_door
from treehammer.datasets.doors.observations import (
    FAILED,
    NO_RESPONSE,
    NOT_TRIED,
    FileObservation,
    ProbeResult,
    ProbeTarget,
)
from treehammer.extensions import ExtensionGroup, load_extension
from treehammer.text_formatting import ByteCallback

__all__ = ["FileObservation", "ProbeResult", "ProbeTarget"]

#: Bytes of the file that is written to probe an area.
PROBE_BYTES = 1024
_UNTRIED = "a folder of the site's nodes cannot be tried from here"


class DoorClient(Protocol):
    """Functions by which a module accesses doors; URLs have no aliases of schemes."""

    def probe_server(self, prefix: str, target: ProbeTarget, /) -> ProbeResult:
        """Read a file below a prefix; problems are reported within seconds."""

    def stat_file(self, url: str, /) -> FileObservation:
        """Get size and adler32 of a file."""

    def read_file(
        self, url: str, size: int, advance: ByteCallback | None, copy_to: Path | None, /
    ) -> FileObservation:
        """Read a file and its checksums, and copy it to a new file if one is given."""

    def write_file(
        self, source: Path, url: str, advance: ByteCallback | None, /
    ) -> FileObservation:
        """Copy a local file to a URL."""

    def remove_file(self, url: str, /) -> FileObservation:
        """Remove a file."""


def probe_door(prefix: str, target: ProbeTarget, *, is_local: bool) -> ProbeResult:
    """Probe a door; problems are reported within seconds.

    Args:
        prefix: URL prefix or folder of the door.
        target: File to read.
        is_local: Whether the site's jobs run on this machine and see the same paths.
    """
    client = _require_client(prefix)
    if client is file_door:
        if is_local or Path(prefix).is_dir():
            return file_door.probe_server(prefix, target)
        return ProbeResult(details=_UNTRIED, tried=False)
    reachability = measure_reachability(prefix)
    if reachability.rtt_s is None:
        return ProbeResult(
            problem=f"does not answer: {reachability.error}",
            remedy="Check host and port of its prefix, and that the server and any firewall let "
            "this machine in.",
        )
    probe = client.probe_server(normalize_url(prefix), target)
    return replace(probe, rtt_s=reachability.rtt_s)


def stat_file(url: str, *, is_local: bool = True) -> FileObservation:
    """Get size and adler32 of a file from its door; folders provide no checksums.

    Args:
        url: a path, or a URL of root, https or http.
        is_local: Whether a path refers to a file on this machine.
    """
    if failed := _precheck_url(url, is_local=is_local):
        return failed
    return _require_client(url).stat_file(normalize_url(url))


def read_file(
    url: str,
    size: int,
    advance: ByteCallback | None = None,
    *,
    copy_to: Path | None = None,
    is_local: bool = True,
) -> FileObservation:
    """Read a file through a door; returns its size, adler32 and sha256.

    Args:
        url: a path, or a URL of root, https or http.
        size: Expected size in bytes; no more than a block beyond it is read.
        advance: Callback for the number of bytes of each block.
        copy_to: New file for the bytes.
        is_local: Whether a path refers to a file on this machine.
    """
    if failed := _precheck_url(url, is_local=is_local):
        return failed
    return _require_client(url).read_file(normalize_url(url), size, advance, copy_to)


def probe_writing(url: str) -> FileObservation:
    """Write a small file to a URL or path, and remove it; its folder is made if it is missing."""
    if failed := _precheck_url(url, is_local=True):
        return failed
    with NamedTemporaryFile(prefix="treehammer-") as source:
        source.write(os.urandom(PROBE_BYTES))
        source.flush()
        written = write_file(Path(source.name), url)
    return written if written.failure else remove_file(url)


def write_file(source: Path, url: str, advance: ByteCallback | None = None) -> FileObservation:
    """Copy a local file to a URL or path, replacing any file there."""
    return _require_client(url).write_file(source, normalize_url(url), advance)


def remove_file(url: str) -> FileObservation:
    """Remove a file."""
    return _require_client(url).remove_file(normalize_url(url))


def _find_client(url: str) -> DoorClient | None:
    """Return the module that opens a URL or path, shipped or of another package."""
    if scheme := find_scheme(url):
        client: DoorClient = import_module(f"{__name__}.{scheme.client}_door")
        return client
    name = url.partition("://")[0]
    extension: DoorClient | None = load_extension(ExtensionGroup.DOOR_PROTOCOLS, name)
    return extension


def _require_client(url: str) -> DoorClient:
    client = _find_client(url)
    assert client is not None, "URLs of other protocols are refused before"
    return client


def _precheck_url(url: str, *, is_local: bool) -> FileObservation | None:
    """Find a reason not to contact the door; return None without any."""
    client = _find_client(url)
    if client is file_door:
        if is_local or Path(url).parent.is_dir():
            return None
        return FileObservation(failure=NOT_TRIED, message=_UNTRIED)
    if client is None:
        message = f"protocol {url.partition('://')[0]} is not supported"
        return FileObservation(failure=FAILED, message=message)
    reachability = measure_reachability(url, tries=1)  # ports are few for thousands of files
    if reachability.rtt_s is None:
        return FileObservation(failure=NO_RESPONSE, message=reachability.error)
    return None
