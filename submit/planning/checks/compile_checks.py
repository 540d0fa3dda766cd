"""Compilation of a test's C++ files by ROOT, before anything is sent."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from treehammer.collectors.record.failures import ExecutionError
from treehammer.collectors.software import providers
from treehammer.collectors.software_preparation import prepare_root
from treehammer.config import Settings
from treehammer.datasets.production.root_process import KIT_FOLDER
from treehammer.errors import SoftwareError
from treehammer.hctests.matrix.definition import PinnedTest
from treehammer.progress import ProgressFactory
from treehammer.submit.planning.checks.content_checks import ContentProblem

_SUFFIXES = (".C", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx")
_TIMEOUT_S = 600
_SCRIPT = """
import sys
import ROOT
from treehammer_kit import root_engine
root_engine.compile_kit(ROOT)
print("ready", flush=True)
sys.exit(0 if ROOT.gInterpreter.Declare(f'#include "{sys.argv[1]}"') else 3)
"""
_COMPILER_ERROR = re.compile(r"^(?:In file included from .*\n)*(.*?error: .*)$", re.MULTILINE)


def find_compile_problems(
    pinned: PinnedTest, settings: Settings, bars: ProgressFactory
) -> Iterator[ContentProblem]:
    """Compile each C++ file of a test by itself with the first release of its ``root`` axis.

    Raises:
        SoftwareError: this ROOT is not available.
    """
    files = [name for name in pinned.definition.files if Path(name).suffix in _SUFFIXES]
    if not files:
        return
    release = str(pinned.definition.axes["root"][0])
    request = providers.parse_software_request(release)
    if request.provider in providers.WITHOUT_ROOT:
        return
    request = prepare_root(request, settings.software_dir, bars)
    try:
        setup = providers.setup_software(request, os.environ, KIT_FOLDER)
    except ExecutionError as fault:
        raise SoftwareError(str(fault), where=f"ROOT {release}") from fault
    for name in files:
        path = pinned.folder.resolve() / name
        done = subprocess.run(
            [*setup.build_command("python", "-c"), _SCRIPT, str(path)],
            cwd=path.parent,
            env=dict(setup.env),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_S,
        )
        if "ready" not in done.stdout:
            raise SoftwareError(
                f"does not start: {done.stderr.strip().splitlines()[-1:]}", where=f"ROOT {release}"
            )
        if done.returncode:
            yield ContentProblem(
                "test.files",
                f"{name} does not compile with ROOT {release}",
                _find_error(done.stderr),
            )


def _find_error(log: str) -> str:
    """Find the compiler's first error."""
    found = _COMPILER_ERROR.search(log)
    return found[1] if found else log.strip()[-300:]
