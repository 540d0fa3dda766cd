"""Trying doors for real: open a file, read 1 kB of it, time a round trip, ask for the version."""

from __future__ import annotations

from treehammer.collectors.worker.door import reach
from treehammer.submit.doors import folder, http, xrootd
from treehammer.submit.doors.probe import Probe, Target
from treehammer.submit.site import Door

__all__ = ["Probe", "Target", "probe"]


def probe(door: Door, target: Target, *, here: bool) -> Probe:
    """Try a door; whatever is wrong is told in seconds.

    Args:
        door: of a site.
        target: what to read through it.
        here: whether the site's jobs run on this machine, so that a path means the same here.
    """
    if door.protocol == "file":
        return folder.probe(door.prefix, target, here=here)
    reached = reach(door.prefix)
    if reached.rtt_s is None:
        return Probe(
            problem=f"does not answer: {reached.error}",
            remedy="Check host and port of its prefix, and that the server and any firewall let "
            "this machine in.",
        )
    through = xrootd.probe if door.protocol == "root" else http.probe
    return through(door.prefix, target).timed(reached.rtt_s)
