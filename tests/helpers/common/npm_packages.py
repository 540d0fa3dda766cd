"""Packages of npm that tests use, kept in the cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.collectors.shared_files import hold_lock


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
