"""A fresh clone of this repository, and how its code and verbs are used there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Checkout:
    """A clone of the committed state, and the environment in which its code and verbs are used."""

    folder: Path
    environment: dict[str, str]


@dataclass(frozen=True)
class DemoRun(Checkout):
    """A checkout in which ``make demo`` was run, and what it printed."""

    output: str


def checkout_environment(folder: Path) -> dict[str, str]:
    """The user's environment with ``.venv`` active and the clone's code first."""
    kept = {
        name: value
        for name, value in os.environ.items()
        # Make below another make announces the folders that it enters.
        if not name.startswith(("TREEHAMMER_", "GIT_", "MAKE", "MFLAGS"))
    }
    return {
        **kept,
        "PATH": f"{REPOSITORY / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "src"),
        "TREEHAMMER_DATA_DIR": str(folder / "data"),
        # Printed output must not depend on who runs it.
        "GIT_AUTHOR_NAME": "Reader",
        "GIT_AUTHOR_EMAIL": "reader@example.org",
        "GIT_COMMITTER_NAME": "Reader",
        "GIT_COMMITTER_EMAIL": "reader@example.org",
    }
