"""Making the environment of a released ROOT: on the submitting side, never in a job.

What arrives is checked against :mod:`.pins`, or where a wheel is not listed against the hash that
the index states.  An interrupted or corrupt download is fetched again, without pip's cache, which
may hold the very bytes that were wrong.
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

from . import wheel_environments
from .provider_tools import drop_foreign_python, extract_error_line, raise_setup_error
from .wheel_pins import find_wheel_sha256

#: How often a download is tried, and the seconds before the second try and the third.
MAX_TRIES = 3
BACK_OFF_S: Tuple[float, ...] = (5.0, 20.0)
#: Bytes on disk while a wheel is installed: 240 MB of archive, 670 MB of ROOT, Python and numpy.
NEEDED_BYTES = 1_050_000_000
#: Bytes of an environment without any package, generously.
_ENVIRONMENT_BYTES = 40_000_000

_PIP_INSTALL = ("-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")
_DISK_FULL_PATTERN = re.compile(r"No space left on device|Disk quota exceeded|Errno (28|122)\b")
_HASH_MISMATCH_PATTERN = re.compile(r"DO NOT MATCH THE HASHES")
_CONNECTION_LOST_PATTERN = re.compile(
    r"IncompleteRead|Connection broken|Connection aborted|ConnectionReset|RemoteDisconnected|"
    r"Read timed out|NewConnectionError|Connection refused|Name or service not known|"
    r"Temporary failure in name resolution|Retrying \("
)
_CORRUPT_ARCHIVE_PATTERN = re.compile(r"BadZipFile|zip file|zlib\.error|Bad CRC|is invalid")
#: Characters of a tool's line that a message repeats.
_MAX_LINE_LENGTH = 300
_NO_DISTRIBUTION_TEXT = "No matching distribution"

Progress = Callable[[str], None]


def install_release(folder: str, version: str, say: Progress, lock: int) -> None:
    """Build in place, since an environment is bound to its path; the marker comes last.

    Args:
        folder: of the environment, replaced when it exists.
        version: of ROOT.
        say: receives one short sentence at a time.
        lock: descriptor of the lock that is held.  The tools that are started inherit it, so that
            nobody builds here while one of them outlives this process.

    Raises:
        ExecutionError: it cannot be made; nothing half-made is left.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        temporary = os.path.join(folder, "tmp")
        os.makedirs(temporary)  # on the same disk, and gone with the folder
        _check_disk_space(folder, version)
        WheelInstaller(folder, version, say, lock, temporary).install()
        shutil.rmtree(temporary)
        wheel_environments.write_marker(folder, version)
    except BaseException as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        try:
            if full:
                _raise_disk_full(folder, version)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _check_disk_space(folder: str, version: str) -> None:
    if shutil.disk_usage(folder).free < NEEDED_BYTES:
        _raise_disk_full(folder, version)


def _raise_disk_full(folder: str, version: str) -> NoReturn:
    free = shutil.disk_usage(os.path.dirname(folder)).free // 1_000_000
    raise_setup_error(
        "disk",
        f"the disk of {folder} is full: ROOT {version} needs {NEEDED_BYTES // 1_000_000} MB while "
        f"it is installed, {free} MB are free; make room there, or name a cache_dir elsewhere",
    )


@dataclass(frozen=True)
class WheelInstaller:
    """Makes one environment, step by step."""

    folder: str
    version: str
    say: Progress
    lock: int
    temporary: str

    def install(self) -> None:
        """Every step, to a ROOT that has started once."""
        self.say(f"ROOT {self.version}: new environment")
        self.create_environment()
        self.say(f"ROOT {self.version}: installing (240 MB to fetch, 670 MB on disk)")
        self._install_package(
            f"ROOT=={wheel_environments.WHEELS[self.version]}", find_wheel_sha256(self.version)
        )
        self._install_package("numpy", "")
        self.say(f"ROOT {self.version}: first start")
        output = self._run_step(
            [
                wheel_environments.environment_python(self.folder),
                "-c",
                "import ROOT; print('version', ROOT.gROOT.GetVersion())",
            ],
            f"ROOT {self.version} is installed in {self.folder} but does not start",
            "its wheel may need another system; use 'path:' with a ROOT of your own",
        )
        found = output.split()[-1] if output.split() else "nothing"
        if found != self.version:
            asked = f"ROOT=={wheel_environments.WHEELS[self.version]}"
            raise_setup_error("version", f"the wheel {asked} reports {found}, not {self.version}")

    def create_environment(self) -> None:
        """Python and pip, without any package."""
        self._run_step(
            [sys.executable, "-m", "venv", self.folder],
            f"cannot make a Python environment in {self.folder}",
            "Python's venv module must be installed (Debian: python3-venv)",
        )

    def _install_package(self, what: str, sha256: str) -> None:
        """Fetch and install a package, as often as it takes."""
        command = [wheel_environments.environment_python(self.folder), *_PIP_INSTALL, "--no-deps"]
        if sha256:
            listed = os.path.join(self.temporary, "wanted.txt")
            with open(listed, "w", encoding="utf-8") as stream:
                stream.write(f"{what} --hash=sha256:{sha256}\n")
            command += ["--require-hashes", "-r", listed]
        else:
            command.append(what)
        for number in range(1, MAX_TRIES + 1):
            done = self._run_command(command if number == 1 else [*command, "--no-cache-dir"])
            if not done.returncode:
                return
            said = done.stdout + done.stderr
            if _DISK_FULL_PATTERN.search(said):
                _raise_disk_full(self.folder, self.version)
            reason = _describe_download_failure(said)
            if number == MAX_TRIES or (
                _NO_DISTRIBUTION_TEXT in said and not _CONNECTION_LOST_PATTERN.search(said)
            ):
                self._raise_download_error(what, number, reason)
            wait = BACK_OFF_S[number - 1]
            self.say(
                f"ROOT {self.version}: {reason}; try {number + 1} of {MAX_TRIES} in {wait:g} s"
            )
            time.sleep(wait)

    def _raise_download_error(self, what: str, tries: int, reason: str) -> None:
        python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        often = f" in {tries} tries" if tries > 1 else ""
        raise_setup_error(
            "download",
            f"pip could not install ROOT {self.version} ({what}) for {python}{often}: {reason}; "
            "check the network and pip's configuration, or use 'path:' with a ROOT of your own",
            transient=True,
        )

    def _run_step(self, command: List[str], what: str, remedy: str) -> str:
        """Run one step of the making and return its output."""
        done = self._run_command(command)
        if done.returncode:
            # venv keeps its tools' words to itself, and they remove what they could not finish.
            short = shutil.disk_usage(self.folder).free < _ENVIRONMENT_BYTES
            if short or _DISK_FULL_PATTERN.search(done.stdout + done.stderr):
                _raise_disk_full(self.folder, self.version)
            raise_setup_error(
                "broken", f"{what}: {extract_error_line(done.stderr or done.stdout)}; {remedy}"
            )
        return done.stdout

    def _run_command(self, command: List[str]) -> subprocess.CompletedProcess[str]:
        env = {**drop_foreign_python(os.environ), "TMPDIR": self.temporary}
        return subprocess.run(
            command,
            env=env,
            cwd=os.sep,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            pass_fds=(self.lock,),
        )


def _describe_download_failure(said: str) -> str:
    """What went wrong with a download, in plain words."""
    if _HASH_MISMATCH_PATTERN.search(said):
        digests = re.findall(r"(?:Expected sha256|Got)\s+([0-9a-f]{64})", said)
        shown = f" (SHA-256 {digests[-1]} instead of {digests[0]})" if len(digests) > 1 else ""
        return f"the download is corrupt{shown}"
    if _CORRUPT_ARCHIVE_PATTERN.search(said):
        return f"the download is corrupt ({extract_error_line(said)})"
    cut = [line.strip() for line in said.splitlines() if _CONNECTION_LOST_PATTERN.search(line)]
    if cut:
        return f"the connection to the package index broke ({cut[-1][:_MAX_LINE_LENGTH]})"
    return extract_error_line(said)
