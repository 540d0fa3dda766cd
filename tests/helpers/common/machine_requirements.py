"""Requirements of tests on the machine: programs, packages of npm, and helpers in other processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest
from captured_runs import run_captured

from treehammer import config
from treehammer.collectors.shared_files import hold_lock


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test with its reason; on CI, where everything is installed, fail it."""
    if os.environ.get("CI"):
        pytest.fail(f"on CI nothing may be missing: {reason}")
    pytest.skip(reason)


def fetch_npm_package(name: str, version: str) -> Path:
    """The folder that holds a package; the test is skipped where there is no npm."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        skip_or_fail("npm or node is not installed")
    folder = config.load_settings().cache_dir / "test-tools" / f"{name}-{version}"
    package = folder / "node_modules" / name
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder / "lock"):
        if not (package / "package.json").exists():
            options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
            subprocess.run([npm, "install", *options, f"{name}@{version}"], check=True, timeout=300)
    return package


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
