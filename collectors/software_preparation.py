"""Preparation of ROOT on the submitting machine; jobs install nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.failures import ExecutionError
from treehammer.collectors.software import command_wrapper, providers
from treehammer.collectors.software.provider_tools import (
    drop_foreign_root,
    raise_setup_error,
    run_tool,
)
from treehammer.errors import ConfigError, SoftwareError
from treehammer.progress import ProgressFactory

_VERSION_CODE = "import ROOT; print('treehammer', ROOT.gROOT.GetVersion())"
_KIT_FOLDER = Path(__file__).parent / "kit"


def prepare_root(
    request: SoftwareRequest, software_dir: Path, bars: ProgressFactory, *, is_tried: bool = True
) -> SoftwareRequest:
    """Prepare the requested ROOT, with a progress bar when a release has to be downloaded.

    One that was not installed by Treehammer is set up and imported, as a job will do.

    Args:
        request: from :func:`treehammer.collectors.software.providers.parse_software_request`.
        software_dir: folder of the cached environments.
        bars: opens progress bars.
        is_tried: False leaves that import to :func:`try_root`.
    Returns:
        the request with its location.

    Raises:
        ConfigError: the request names a folder without ROOT, or a missing command.
        SoftwareError: the preparation failed; the message names cause and remedy.
    """
    with _explain_faults(request):
        missing = providers.find_missing_release(request, software_dir)
        if not missing:
            prepared = providers.prepare_software(request, software_dir)
            if is_tried:
                _try_software(prepared)
            return prepared
        with bars(f"Fetching {missing}", 1) as step:
            return providers.prepare_software(request, software_dir, lambda note: step(0, note))


def try_root(request: SoftwareRequest) -> None:
    """Set up and import a prepared ROOT that was not installed by Treehammer, as a job will do.

    Raises:
        ConfigError: a job could not use it.
        SoftwareError: the same for a place that may be missing for the moment.
    """
    with _explain_faults(request):
        _try_software(request)


@contextmanager
def _explain_faults(request: SoftwareRequest) -> Iterator[None]:
    """Raise a fault of the block as an error of the request."""
    try:
        yield
    except ExecutionError as fault:
        # CVMFS may be not mounted; any other place is the user's own choice.
        is_mistake = request.provider != "cvmfs" and not providers.is_installed_release(request)
        error = ConfigError if is_mistake else SoftwareError
        raise error(str(fault), where=f"ROOT {request.request}") from fault


def _try_software(request: SoftwareRequest) -> None:
    """Set up software of the user's own, and import its ROOT.

    Raises:
        ExecutionError: a job could not use it, or its ROOT has another version than requested.
    """
    if request.provider == "none" or providers.is_installed_release(request):
        return
    if request.provider == "wrap":
        command = command_wrapper.wrap_python(request, _VERSION_CODE)
        env: Mapping[str, str] = drop_foreign_root(os.environ)
    else:
        setup = providers.setup_software(request, os.environ, _KIT_FOLDER)
        if request.provider in providers.WITHOUT_ROOT:
            return
        command, env = [setup.python, "-c", _VERSION_CODE], setup.env
    output = run_tool(command, env, "importing ROOT")
    version = output.rpartition("treehammer ")[2].strip().replace("/", ".")
    if request.version and version != request.version:
        raise_setup_error("version", f"it is ROOT {version}, but must report {request.version}")
