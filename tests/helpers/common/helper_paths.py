"""Environment in which another Python process can import the test helpers."""

from __future__ import annotations

import os
from pathlib import Path

_HELPERS = Path(__file__).parents[1]


def helper_environment() -> dict[str, str]:
    """Return this process's environment with every helper folder on ``PYTHONPATH``."""
    folders = [str(folder) for folder in sorted(_HELPERS.iterdir()) if folder.is_dir()]
    if inherited := os.environ.get("PYTHONPATH"):
        folders.append(inherited)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
