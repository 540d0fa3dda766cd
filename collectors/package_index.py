"""ROOT releases on the package index, as pip sees it."""

from __future__ import annotations

import os
import re
import sys

from treehammer.collectors.record.failures import ExecutionError
from treehammer.collectors.software.provider_tools import drop_foreign_python, run_tool
from treehammer.collectors.software.wheel_releases import WHEELS
from treehammer.errors import SoftwareError

_VERSIONS_LINE = re.compile(r"^Available versions:\s*(.+)$", re.MULTILINE)


def list_root_releases() -> list[str]:
    """List the ROOT releases that the index offers for this interpreter, newest first.

    A wheel whose release is not known yet is listed as ``wheel:VERSION``, by the version of its
    package.

    Raises:
        SoftwareError: pip is missing, or the index does not answer.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", "ROOT", "--pre"]
    command += ["--no-input", "--disable-pip-version-check"]
    try:
        printed = run_tool(command, drop_foreign_python(os.environ), "listing the wheels of ROOT")
    except ExecutionError as fault:
        raise SoftwareError(
            str(fault),
            hint="Check the network and pip's configuration, or list releases in a file.",
        ) from fault
    return parse_index_listing(printed)


def parse_index_listing(printed: str) -> list[str]:
    """Parse the output of ``pip index versions ROOT``."""
    match = _VERSIONS_LINE.search(printed)
    wheels = [part.strip() for part in match.group(1).split(",")] if match else []
    releases = {wheel: release for release, wheel in WHEELS.items()}
    return [releases.get(wheel, f"wheel:{wheel}") for wheel in wheels if wheel]
