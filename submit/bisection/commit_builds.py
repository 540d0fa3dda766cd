"""Builds of a repository's commits in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.shared_files import hold_lock, write_atomically
from treehammer.errors import SourceError, explain_cache_error
from treehammer.hctests.git.repository import Repository

#: Seconds that a build may take.
BUILD_TIMEOUT_S = 3600.0
#: Characters of a failed build's output that are kept.
_MAX_EXCERPT = 500
#: Placeholder of a build's folder in the value of the root axis.
FOLDER_PLACEHOLDER = "{build}"
DEFAULT_SOFTWARE = f"build:{FOLDER_PLACEHOLDER}"


class BuildFailedError(Exception):
    """A build that cannot be measured; the text is the reason."""


@dataclass(frozen=True)
class CommitBuilder:
    """Builds commits of one repository with one command, each in a folder of its own.

    Attributes:
        repository: the repository.
        command: shell command that runs in a copy of the commit.
        root: folder of all builds.
        timeout_s: seconds after which a build has failed.
    """

    repository: Repository
    command: str
    root: Path
    timeout_s: float = BUILD_TIMEOUT_S

    def build(self, commit: str) -> Path:
        """Build a commit, unless that was done before; return its folder.

        Raises:
            BuildFailedError: the command failed, now or before.
            SourceError: the cache cannot be written, or Git cannot read the commit.
        """
        folder = self.locate(commit)
        result = folder.with_suffix(".json")
        try:
            with hold_lock(folder.with_suffix(".lock")):
                if not result.is_file():
                    reason = self._build_anew(commit, folder)
                    write_atomically(result, json.dumps({"failure": reason}))
                reason = json.loads(result.read_text(encoding="utf-8"))["failure"]
        except OSError as error:
            message, hint = explain_cache_error(error)
            raise SourceError(message, where=str(error.filename or folder), hint=hint) from error
        if reason:
            raise BuildFailedError(reason)
        return folder

    def locate(self, commit: str) -> Path:
        """Return the folder of a commit's build, built or not."""
        key = f"{self.repository.display_name}\n{self.command}"
        return self.root / hashlib.sha256(key.encode()).hexdigest()[:12] / commit[:20]

    def _build_anew(self, commit: str, folder: Path) -> str:
        """Build in an empty folder; return the reason of a failure, or ''."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.repository.write_tree(commit, folder)
        log = folder.with_suffix(".log")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
            try:
                status = process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                _kill_group(process)
                return f"the build took longer than {self.timeout_s:g} s"
            except BaseException:
                _kill_group(process)
                raise
        if not status:
            return ""
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = lines[-1][-_MAX_EXCERPT:] if lines else "no output"
        return f"the build command failed with status {status}: {reason}"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
