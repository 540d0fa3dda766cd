"""Python environment of Rucio, from PyPI.

The packages of Rucio's server and client contain the same modules, so the server is never
installed beside Treehammer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from treehammer.collectors.shared_files import hold_lock
from treehammer.collectors.software.provider_tools import drop_foreign_python
from treehammer.errors import TestbedError
from treehammer.testbed.components.cvmfs_mount import copy_python
from treehammer.testbed.core.component import ProgressCallback

SCRIPTS = Path(__file__).parents[1] / "rucio_scripts"
REQUIREMENTS = SCRIPTS / "requirements.txt"
_COMPLETION_FILE = "complete"


def install_rucio(cache: Path, say: ProgressCallback) -> Path:
    """Install Rucio; return its Python. Fast if complete; an incomplete one is rebuilt.

    Raises:
        TestbedError: the packages cannot be fetched, or the disk is full.
    """
    base = Path(sys.executable).resolve()
    requirements = f"{base} {sys.version} {REQUIREMENTS.read_text(encoding='utf-8')}"
    folder = cache / "rucio" / hashlib.sha256(requirements.encode()).hexdigest()[:12]
    python = folder / "env" / "bin" / "python"
    if (folder / _COMPLETION_FILE).exists():
        return python
    with hold_lock(cache / "rucio.lock", lambda: say("waiting for another download of Rucio")):
        if not (folder / _COMPLETION_FILE).exists():
            say("fetching Rucio and its libraries (once)")
            try:
                shutil.rmtree(folder, ignore_errors=True)
                name = f"python{sys.version_info.major}.{sys.version_info.minor}"
                _create_environment(folder, copy_python(base, name, folder / "python"))
            except (OSError, shutil.Error) as error:
                raise TestbedError(
                    f"cannot be written: {error}",
                    where=str(folder),
                    hint="Free 400 MB there, or choose another --cache-dir.",
                ) from error
    return python


def _create_environment(folder: Path, base: Path) -> None:
    """Create the environment in place, because it is bound to its path; the mark comes last."""
    environment = folder / "env"
    _run_command([str(base), "-m", "venv", "--without-pip", str(environment)])
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    requirements = ["--no-deps", "--requirement", str(REQUIREMENTS)]
    _run_command(
        [*pip, "install", "--quiet", "--no-input", "--disable-pip-version-check", *requirements]
    )
    (folder / _COMPLETION_FILE).touch()


def _run_command(command: list[str]) -> None:
    result = subprocess.run(
        command,
        env=drop_foreign_python(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        message = "\n  ".join((result.stderr or result.stdout).strip().splitlines()[-3:])
        raise TestbedError(
            f"cannot be installed:\n  {message}",
            where="Rucio",
            hint="Check the network and pip's configuration, then repeat.",
        )
