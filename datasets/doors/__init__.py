"""Probes of storage doors and observations of files through them.

Problems are reported in the results within seconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from treehammer.collectors.storage_access import (
    FILE_CLIENT,
    HTTP_CLIENT,
    XROOTD_CLIENT,
    find_scheme,
    normalize_url,
)
from treehammer.collectors.worker.probes.storage_door import measure_reachability
from treehammer.datasets.doors import http, observations, xrootd
from treehammer.datasets.doors.observations import (
    FAILED,
    NO_RESPONSE,
    NOT_TRIED,
    FileObservation,
    ProbeResult,
    ProbeTarget,
)
from treehammer.text_formatting import ByteCallback

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


def probe_door(protocol: str, prefix: str, target: ProbeTarget, *, is_local: bool) -> ProbeResult:
    """Probe a door; problems are reported within seconds.

    Args:
        protocol: ``file``, ``root``, ``https`` or ``http``.
        prefix: URL prefix or folder of the door.
        target: File to read.
        is_local: Whether the site's jobs run on this machine and see the same paths.
    """
    if protocol == "file":
        return observations.probe_folder(prefix, target, is_local=is_local)
    reachability = measure_reachability(prefix)
    if reachability.rtt_s is None:
        return ProbeResult(
            problem=f"does not answer: {reachability.error}",
            remedy="Check host and port of its prefix, and that the server and any firewall let "
            "this machine in.",
        )
    probe_server = xrootd.probe_server if protocol == "root" else http.probe_server
    return probe_server(normalize_url(prefix), target).with_rtt(reachability.rtt_s)


def stat_file(url: str, *, is_local: bool = True) -> FileObservation:
    """Get size and adler32 of a file from its door; folders provide no checksums.

    Args:
        url: a path, or a URL of root, https or http.
        is_local: Whether a path refers to a file on this machine.
    """
    if failed := _precheck_url(url, is_local=is_local):
        return failed
    url, client = normalize_url(url), _find_client(url)
    if client == XROOTD_CLIENT:
        return xrootd.stat_file(url)
    return http.stat_file(url) if client == HTTP_CLIENT else observations.stat_local_file(Path(url))


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
    url, client = normalize_url(url), _find_client(url)
    if client == XROOTD_CLIENT:
        return xrootd.read_file(url, size, advance, copy_to)
    if client == HTTP_CLIENT:
        return http.read_file(url, size, advance, copy_to)
    return observations.read_local_file(Path(url), advance, copy_to)


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
    url, client = normalize_url(url), _find_client(url)
    if client == XROOTD_CLIENT:
        return xrootd.write_file(source, url, advance)
    if client == HTTP_CLIENT:
        return http.write_file(source, url, advance)
    return observations.write_local_file(source, Path(url))


def remove_file(url: str) -> FileObservation:
    """Remove a file."""
    url, client = normalize_url(url), _find_client(url)
    if client == XROOTD_CLIENT:
        return xrootd.remove_file(url)
    return (
        http.remove_file(url)
        if client == HTTP_CLIENT
        else observations.remove_local_file(Path(url))
    )


def _find_client(url: str) -> str:
    """Return the client that opens a URL or path; '' without one."""
    scheme = find_scheme(url)
    return scheme.client if scheme else ""


def _precheck_url(url: str, *, is_local: bool) -> FileObservation | None:
    """Find a reason not to contact the door; return None without any."""
    client = _find_client(url)
    if client == FILE_CLIENT:
        if is_local or Path(url).parent.is_dir():
            return None
        reason = "a folder of the site's nodes cannot be tried from here"
        return FileObservation(failure=NOT_TRIED, message=reason)
    if not client:
        message = f"protocol {url.partition('://')[0]} is not supported"
        return FileObservation(failure=FAILED, message=message)
    reachability = measure_reachability(url)
    return (
        None
        if reachability.rtt_s is not None
        else FileObservation(failure=NO_RESPONSE, message=reachability.error)
    )
