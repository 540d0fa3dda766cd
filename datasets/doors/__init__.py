"""Probes of storage doors and observations of files through them.

Problems are reported in the results within seconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from treehammer.collectors.storage_schemes import (
    FILE_CLIENT,
    HTTP_CLIENT,
    XROOTD_CLIENT,
    find_scheme,
    normalize_url,
)
from treehammer.collectors.worker.probes.storage_door import measure_reachability
from treehammer.datasets.doors import folder, http, xrootd
from treehammer.datasets.doors.file_observation import (
    FAILED,
    NO_RESPONSE,
    NOT_TRIED,
    FileObservation,
)
from treehammer.datasets.doors.probe import ProbeResult, ProbeTarget
from treehammer.progress import ByteCallback

__all__ = [
    "FileObservation",
    "ProbeResult",
    "ProbeTarget",
    "probe_door",
    "probe_writing",
    "read_file",
    "remove_file",
    "stat_file",
    "write_file",
]

#: Bytes of the file that is written to probe an area.
PROBE_BYTES = 1024


def probe_door(protocol: str, prefix: str, target: ProbeTarget, *, here: bool) -> ProbeResult:
    """Probe a door; problems are reported within seconds.

    Args:
        protocol: ``file``, ``root``, ``https`` or ``http``.
        prefix: URL prefix or folder of the door.
        target: File to read.
        here: Whether the site's jobs run on this machine and see the same paths.
    """
    if protocol == "file":
        return folder.probe_folder(prefix, target, here=here)
    reached = measure_reachability(prefix)
    if reached.rtt_s is None:
        return ProbeResult(
            problem=f"does not answer: {reached.error}",
            remedy="Check host and port of its prefix, and that the server and any firewall let "
            "this machine in.",
        )
    through = xrootd.probe_server if protocol == "root" else http.probe_server
    return through(normalize_url(prefix), target).with_rtt(reached.rtt_s)


def stat_file(url: str, *, here: bool = True) -> FileObservation:
    """Get size and adler32 of a file from its door; folders provide no checksums.

    Args:
        url: a path, or a URL of root, https or http.
        here: Whether a path refers to a file on this machine.
    """
    if trouble := _precheck_url(url, here=here):
        return trouble
    url, client = normalize_url(url), _find_client(url)
    if client == XROOTD_CLIENT:
        return xrootd.stat_file(url)
    return http.stat_file(url) if client == HTTP_CLIENT else folder.stat_file(Path(url))


def read_file(
    url: str,
    size: int,
    advance: ByteCallback | None = None,
    *,
    copy_to: Path | None = None,
    here: bool = True,
) -> FileObservation:
    """Read a file through a door; returns its size, adler32 and sha256.

    Args:
        url: a path, or a URL of root, https or http.
        size: Expected size in bytes; no more than a block beyond it is read.
        advance: Callback for the number of bytes of each block.
        copy_to: New file for the bytes.
        here: Whether a path refers to a file on this machine.
    """
    if trouble := _precheck_url(url, here=here):
        return trouble
    url, client = normalize_url(url), _find_client(url)
    if client == XROOTD_CLIENT:
        return xrootd.read_file(url, size, advance, copy_to)
    if client == HTTP_CLIENT:
        return http.read_file(url, size, advance, copy_to)
    return folder.read_file(Path(url), advance, copy_to)


def probe_writing(url: str) -> FileObservation:
    """Write a small file to a URL or path, and remove it; its folder is made if it is missing."""
    if trouble := _precheck_url(url, here=True):
        return trouble
    with NamedTemporaryFile(prefix="treehammer-") as source:
        source.write(os.urandom(PROBE_BYTES))
        source.flush()
        written = write_file(Path(source.name), url)
    return written if written.failure else remove_file(url)


def write_file(source: Path, url: str, advance: ByteCallback | None = None) -> FileObservation:
    """Copy a local file to a URL or path, replacing any file there."""
    url, client = normalize_url(url), _find_client(url)
    if client == XROOTD_CLIENT:
        return xrootd.write_file(source, url, advance)
    if client == HTTP_CLIENT:
        return http.write_file(source, url, advance)
    return folder.write_file(source, Path(url))


def remove_file(url: str) -> FileObservation:
    """Remove a file."""
    url, client = normalize_url(url), _find_client(url)
    if client == XROOTD_CLIENT:
        return xrootd.remove_file(url)
    return http.remove_file(url) if client == HTTP_CLIENT else folder.remove_file(Path(url))


def _find_client(url: str) -> str:
    """Return the client that opens a URL or path; '' without one."""
    scheme = find_scheme(url)
    return scheme.client if scheme else ""


def _precheck_url(url: str, *, here: bool) -> FileObservation | None:
    """Find a reason not to contact the door; return None without any."""
    client = _find_client(url)
    if client == FILE_CLIENT:
        if here or Path(url).parent.is_dir():
            return None
        why = "a folder of the site's nodes cannot be tried from here"
        return FileObservation(failure=NOT_TRIED, message=why)
    if not client:
        message = f"protocol {url.partition('://')[0]} is not supported"
        return FileObservation(failure=FAILED, message=message)
    reached = measure_reachability(url)
    return (
        None
        if reached.rtt_s is not None
        else FileObservation(failure=NO_RESPONSE, message=reached.error)
    )
