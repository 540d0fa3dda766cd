"""Requirements of tests on the machine: programs, and helpers in other processes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest
from captured_runs import run_captured


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test with its reason; on CI, where everything is installed, fail it."""
    if os.environ.get("CI"):
        pytest.fail(f"on CI nothing may be missing: {reason}")
    pytest.skip(reason)


def find_python(version: str) -> str:
    """Find a Python such as 3.9 among pyenv's versions and on PATH; '' without one."""
    roots = [os.environ.get("PYENV_ROOT"), str(Path.home() / ".pyenv")]
    for root in filter(None, roots):
        for path in sorted(Path(root).glob(f"versions/{version}.*/bin/python")):
            return str(path)
    program = shutil.which(f"python{version}")
    if program:
        done = run_captured([program, "--version"])
        if f"Python {version}." in done.stdout + done.stderr:
            return program
    return ""
