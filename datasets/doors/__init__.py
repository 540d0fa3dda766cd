"""Doors of storage as anybody may try them: whether they work, and what they say of a file.

Whatever is wrong comes back as words, in seconds.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

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

__all__ = ["FileObservation", "ProbeResult", "ProbeTarget", "probe_door", "read_file", "stat_file"]


def probe_door(protocol: str, prefix: str, target: ProbeTarget, *, here: bool) -> ProbeResult:
    """Probe a door; problems are reported within seconds.

    Args:
        protocol: ``file``, ``root``, ``https`` or ``http``.
        prefix: of the door.
        target: the file to read.
        here: whether the site's jobs run on this machine, so that a path means the same here.
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
    return through(prefix, target).with_rtt(reached.rtt_s)


def stat_file(url: str, *, here: bool = True) -> FileObservation:
    """Get size and adler32 of a file from its door; a folder has no checksums.

    Args:
        url: a path, or a URL of root, https or http.
        here: whether a path means a file of this machine.
    """
    scheme = urlsplit(url).scheme
    if trouble := _precheck_url(url, here=here):
        return trouble
    if scheme == "root":
        return xrootd.stat_file(url)
    return http.stat_file(url) if scheme else folder.stat_file(Path(url))


def read_file(
    url: str,
    advance: ByteCallback | None = None,
    *,
    copy_to: Path | None = None,
    here: bool = True,
) -> FileObservation:
    """Read a file through a door; returns its size, adler32 and sha256.

    Args:
        url: a path, or a URL of root, https or http.
        advance: receives the number of bytes of each block.
        copy_to: a new file to keep them in.
        here: whether a path means a file of this machine.
    """
    scheme = urlsplit(url).scheme
    if trouble := _precheck_url(url, here=here):
        return trouble
    if scheme == "root":
        return xrootd.read_file(url, advance, copy_to)
    if scheme:
        return http.read_file(url, advance, copy_to)
    return folder.read_file(Path(url), advance, copy_to)


def _precheck_url(url: str, *, here: bool) -> FileObservation | None:
    """Find a reason not to contact the door; None where there is none."""
    scheme = urlsplit(url).scheme
    if not scheme:
        if here or Path(url).parent.is_dir():
            return None
        why = "a folder of the site's nodes cannot be tried from here"
        return FileObservation(failure=NOT_TRIED, message=why)
    if scheme not in ("root", "https", "http"):
        return FileObservation(failure=FAILED, message=f"{scheme} cannot be spoken from here")
    reached = measure_reachability(url)
    return (
        None
        if reached.rtt_s is not None
        else FileObservation(failure=NO_RESPONSE, message=reached.error)
    )
