"""Trying doors for real: open a file, read 1 kB of it, time a round trip, ask for the version."""

from __future__ import annotations

from treehammer.collectors.worker.door import reach
from treehammer.datasets.doors import folder, http, xrootd
from treehammer.datasets.doors.probe import Probe, Target

__all__ = ["Probe", "Target", "probe"]


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
