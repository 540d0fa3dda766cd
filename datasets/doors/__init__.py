"""Doors of storage as anybody may try them: whether they work, and what they say of a file.

Whatever is wrong comes back as words, in seconds.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from treehammer.collectors.worker.door import reach
from treehammer.datasets.doors import folder, http, xrootd
from treehammer.datasets.doors.probe import Probe, Target
from treehammer.datasets.doors.seen import BROKEN, SILENT, UNTRIED, Advance, Seen

__all__ = ["Probe", "Seen", "Target", "probe", "read", "stat"]


def probe(protocol: str, prefix: str, target: Target, *, here: bool) -> Probe:
    """Try a door; whatever is wrong is told in seconds.

    Args:
        protocol: ``file``, ``root``, ``https`` or ``http``.
        prefix: of the door.
        target: what to read through it.
        here: whether the site's jobs run on this machine, so that a path means the same here.
    """
    if protocol == "file":
        return folder.probe(prefix, target, here=here)
    reached = reach(prefix)
    if reached.rtt_s is None:
        return Probe(
            problem=f"does not answer: {reached.error}",
            remedy="Check host and port of its prefix, and that the server and any firewall let "
            "this machine in.",
        )
    through = xrootd.probe if protocol == "root" else http.probe
    return through(prefix, target).timed(reached.rtt_s)


def stat(url: str, *, here: bool = True) -> Seen:
    """Size and adler32 of a file as its door tells them; a folder tells no checksum.

    Args:
        url: a path, or a URL of root, https or http.
        here: whether a path means a file of this machine.
    """
    scheme = urlsplit(url).scheme
    if trouble := _trouble(url, here=here):
        return trouble
    if scheme == "root":
        return xrootd.stat(url)
    return http.stat(url) if scheme else folder.stat(Path(url))


def read(
    url: str,
    advance: Advance | None = None,
    *,
    copy_to: Path | None = None,
    here: bool = True,
) -> Seen:
    """Size, adler32 and sha256 of all the bytes that come through a door.

    Args:
        url: a path, or a URL of root, https or http.
        advance: is told the bytes of each block.
        copy_to: a new file to keep them in.
        here: whether a path means a file of this machine.
    """
    scheme = urlsplit(url).scheme
    if trouble := _trouble(url, here=here):
        return trouble
    if scheme == "root":
        return xrootd.read(url, advance, copy_to)
    if scheme:
        return http.read(url, advance, copy_to)
    return folder.read(Path(url), advance, copy_to)


def _trouble(url: str, *, here: bool) -> Seen | None:
    """Why a door need not be asked."""
    scheme = urlsplit(url).scheme
    if not scheme:
        if here or Path(url).parent.is_dir():
            return None
        why = "a folder of the site's nodes cannot be tried from here"
        return Seen(trouble=UNTRIED, message=why)
    if scheme not in ("root", "https", "http"):
        return Seen(trouble=BROKEN, message=f"{scheme} cannot be spoken from here")
    reached = reach(url)
    return None if reached.rtt_s is not None else Seen(trouble=SILENT, message=reached.error)
