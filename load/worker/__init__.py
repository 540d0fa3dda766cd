"""Load tests on the node: common starts, reports of a load, and verbs of the worker for people."""

from __future__ import annotations

from typing import Any, Optional

from ...collectors.job_spec import LoadSpec
from ...collectors.worker.child_processes import StopSignals
from ...collectors.worker.service_client import ServiceEndpoint
from .load_start import CommonStart


def open_phases(
    load: LoadSpec, job_folder: str, endpoint: Optional[ServiceEndpoint], signals: StopSignals
) -> CommonStart:
    """Open the phases that a load adds to a job's executions."""
    return CommonStart(load, job_folder, endpoint, signals)


def add_verbs(verbs: Any) -> None:
    """Add the verbs for people to the worker's parser."""
    from .benchmark_command import add_bench_command  # loads the generator

    add_bench_command(verbs)
