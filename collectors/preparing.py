"""Making a ROOT ready on this machine before any job needs it.  Stays at home: jobs install nothing."""

from __future__ import annotations

from pathlib import Path

from treehammer.collectors import software
from treehammer.collectors.failures import Fault
from treehammer.collectors.job import SoftwareRequest
from treehammer.errors import ConfigError, SoftwareError
from treehammer.terminal import Bars

#: Providers whose request names a place of the user's own: where nothing is there, it is their slip.
NAMED_BY_USER = ("path", "wrap")


def ready(request: SoftwareRequest, software_dir: Path, bars: Bars) -> SoftwareRequest:
    """The request with its location; a release that is not in the cache is fetched, with a bar.

    Args:
        request: from :func:`treehammer.collectors.software.parse`.
        software_dir: folder of the cached environments.
        bars: opens progress bars.

    Raises:
        ConfigError: there is no ROOT, or no command, where the request says.
        SoftwareError: it cannot be made ready; the message says why and what to do.
    """
    try:
        if request.provider != "wheel" or request.version in software.prepared(software_dir):
            return software.prepare(request, software_dir)
        with bars(f"Fetching ROOT {request.version}", 1) as step:
            return software.prepare(request, software_dir, lambda note: step(0, note))
    except Fault as fault:
        error = ConfigError if request.provider in NAMED_BY_USER else SoftwareError
        raise error(str(fault), where=f"ROOT {request.request}") from fault
