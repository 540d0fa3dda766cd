"""Preparation of ROOT on the submitting machine; jobs install nothing."""

from __future__ import annotations

from pathlib import Path

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.failures import ExecutionError
from treehammer.collectors.software import providers
from treehammer.errors import ConfigError, SoftwareError
from treehammer.progress import ProgressFactory

#: Providers whose request names a place of the user's own: a missing ROOT is the user's mistake.
USER_PROVIDERS = ("path", "wrap", "build")


def prepare_root(
    request: SoftwareRequest, software_dir: Path, bars: ProgressFactory
) -> SoftwareRequest:
    """Prepare the requested ROOT, with a progress bar when a release has to be downloaded.

    Args:
        request: from :func:`treehammer.collectors.software.providers.parse_software_request`.
        software_dir: folder of the cached environments.
        bars: opens progress bars.
    Returns:
        the request with its location.

    Raises:
        ConfigError: the request names a folder without ROOT, or a missing command.
        SoftwareError: the preparation failed; the message names cause and remedy.
    """
    try:
        missing = providers.find_missing_release(request, software_dir)
        if not missing:
            return providers.prepare_software(request, software_dir)
        with bars(f"Fetching {missing}", 1) as step:
            return providers.prepare_software(request, software_dir, lambda note: step(0, note))
    except ExecutionError as fault:
        error = ConfigError if request.provider in USER_PROVIDERS else SoftwareError
        raise error(str(fault), where=f"ROOT {request.request}") from fault
