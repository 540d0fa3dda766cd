"""Programs whose output a test reads."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any


def run_captured(
    command: Sequence[str | PathLike[str]], *, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and keep its output as text.

    Args:
        command: program and arguments.
        check: whether to raise an error for any exit code but 0.
        options: further ones of :func:`subprocess.run`.
    """
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)


def run_git(folder: Path, *words: str) -> str:
    """Run Git in a folder, as a fixed author; return its output."""
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return run_captured(["git", *author, *words], cwd=folder, check=True).stdout.strip()


def commit_all(repository: Path, message: str = "Change") -> str:
    """Commit all files, which may be unchanged; return the commit."""
    run_git(repository, "add", "--all")
    run_git(repository, "commit", "--quiet", "--allow-empty", "--message", message)
    return run_git(repository, "rev-parse", "HEAD")


def make_repository(folder: Path) -> Path:
    """Make an empty repository with the branch ``main``."""
    folder.mkdir(parents=True, exist_ok=True)
    run_git(folder, "init", "--quiet", "--initial-branch=main")
    return folder
