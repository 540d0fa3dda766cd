"""Making a ROOT ready on this machine before any job needs it.  Stays at home: jobs install nothing."""

from __future__ import annotations

from pathlib import Path

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.failures import ExecutionError
from treehammer.collectors.software import providers
from treehammer.errors import ConfigError, SoftwareError
from treehammer.progress import ProgressFactory

#: Providers whose request names a place of the user's own: where nothing is there, it is their slip.
USER_PROVIDERS = ("path", "wrap")


def prepare_root(
    request: SoftwareRequest, software_dir: Path, bars: ProgressFactory
) -> SoftwareRequest:
    """The request with its location; a release that is not in the cache is fetched, with a bar.

    Args:
        request: from :func:`treehammer.collectors.software.providers.parse_software_request`.
        software_dir: folder of the cached environments.
        bars: opens progress bars.

    Raises:
        ConfigError: there is no ROOT, or no command, where the request says.
        SoftwareError: it cannot be made ready; the message says why and what to do.
    """
    try:
        if request.provider != "wheel" or request.version in providers.list_prepared_releases(
            software_dir
        ):
            return providers.prepare_software(request, software_dir)
        with bars(f"Fetching ROOT {request.version}", 1) as step:
            return providers.prepare_software(request, software_dir, lambda note: step(0, note))
    except ExecutionError as fault:
        error = ConfigError if request.provider in USER_PROVIDERS else SoftwareError
        raise error(str(fault), where=f"ROOT {request.request}") from fault
