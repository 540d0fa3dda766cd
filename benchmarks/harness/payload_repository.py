"""Git repositories with made-up tests."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from treehammer.hctests.definition.model import TEST_FILE_NAME

_AUTHOR = ("-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false")


class PayloadRepository:
    """A new repository.

    Args:
        folder: created here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._run_git("init", "--quiet", "--initial-branch=main")

    def write_test(self, name: str, definition: str, files: Mapping[str, str]) -> None:
        """Write a test with its files; shell scripts are executable."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        for file, text in {TEST_FILE_NAME: definition, **files}.items():
            (folder / file).write_text(text)
            if file.endswith(".sh"):
                (folder / file).chmod(0o755)

    def commit(self, text: str) -> str:
        """Commit everything, also without changes; return the commit."""
        self._run_git("add", "--all")
        self._run_git("commit", "--quiet", "--allow-empty", "--message", text)
        return self._run_git("rev-parse", "HEAD")

    def _run_git(self, *arguments: str) -> str:
        command = ["git", *_AUTHOR, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout.strip()
