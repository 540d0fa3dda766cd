"""Cached environments of released programs from PyPI: installation, checks and use.

Only the submitting side installs, never a job; a damaged environment is never used.
"""

from __future__ import annotations

import csv
import errno
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, NoReturn, Tuple

from ..job_spec import SoftwareRequest
from ..shared_files import write_atomically
from .setup_commands import (
    drop_foreign_python,
    drop_foreign_root,
    extract_error_line,
    raise_setup_error,
    run_tool,
)
from .wheel_releases import Release, find_release

MARKER_NAME = ".treehammer.json"

#: Compiled code and the interpreter's dictionaries: some 220 of a wheel's 4700 files, checked in a
#: few milliseconds.  (Byte code is regenerated at installation and never matches.)
_CHECKED_SUFFIXES = (".so", ".pcm", ".pch", ".rootmap")


def environment_folder(release: Release, software_dir: str) -> str:
    """Return the folder of a release's environment, installed or not."""
    return os.path.abspath(os.path.join(software_dir, release.folder_name))


def environment_python(folder: str) -> str:
    """Return the path of an environment's interpreter."""
    return os.path.join(folder, "bin", "python")


def write_marker(folder: str, release: Release) -> None:
    """Mark an environment as complete, the last step of its installation."""
    write_atomically(os.path.join(folder, MARKER_NAME), json.dumps(release.marker))


def is_installed(folder: str, release: Release) -> bool:
    """Return whether the environment was completed and its interpreter still exists."""
    try:
        with open(os.path.join(folder, MARKER_NAME), encoding="utf-8") as stream:
            document = json.load(stream)
    except (OSError, ValueError):
        return False
    # The interpreter is a link to the Python that created the environment, which can disappear.
    return document == release.marker and os.access(environment_python(folder), os.X_OK)


def find_denied_python(folder: str) -> str:
    """Return the target of an environment's interpreter that this user may not run; '' otherwise."""
    python = environment_python(folder)
    try:
        os.stat(python)
    except PermissionError:
        return os.path.realpath(python)
    except OSError:  # it is gone
        return ""
    return "" if os.access(python, os.X_OK) else os.path.realpath(python)


def find_damage(folder: str, release: Release) -> str:
    """Describe the first installed file that is missing or changed; '' for none.

    Compares sizes with the wheel's own list of files: hashing 670 MB before each job would take
    longer than many jobs.
    """
    record = _find_record_file(folder, release)
    if not record:
        return "the list of installed files is missing"
    try:
        with open(record, encoding="utf-8", newline="") as stream:
            lines = [line for line in stream if any(part in line for part in _CHECKED_SUFFIXES)]
    except (OSError, ValueError) as error:
        return f"the list of installed files cannot be read: {error}"
    packages = os.path.dirname(os.path.dirname(record))
    for path, _, size in csv.reader(lines):
        try:
            installed = os.stat(os.path.join(packages, path)).st_size
        except OSError as error:
            return f"{path}: {error.strerror}"
        if size and installed != int(size):
            return f"{path} has {installed} bytes instead of {size}"
    return ""


def _find_record_file(folder: str, release: Release) -> str:
    """Find the wheel's list of installed files; '' when missing."""
    pattern = os.path.join(folder, "lib", "python3*", "site-packages", "*.dist-info", "RECORD")
    # Folders of wheels are named with underscores.
    package = re.sub(r"[-_.]+", "_", release.package.lower())
    name = f"{package}-{release.wheel}.dist-info"
    for record in glob.glob(pattern):
        if os.path.basename(os.path.dirname(record)).lower() == name:
            return record
    return ""


def is_usable(folder: str, release: Release) -> bool:
    """Return whether a job can use the environment."""
    return is_installed(folder, release) and not find_damage(folder, release)


def setup_wheel(request: SoftwareRequest, base: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    """Set up an installed release; return interpreter and environment."""
    folder, release = request.location, find_release(request)
    if not is_installed(folder, release):
        raise_setup_error(
            "missing",
            f"{release.title} is not installed in {folder or 'any folder'}; "
            "planning installs it, a job never does",
        )
    damage = find_damage(folder, release)
    if damage:
        raise_setup_error(
            "broken",
            f"{release.title} in {folder} is damaged ({damage}); submit again: planning "
            "reinstalls it, a job never does",
        )
    env = drop_foreign_root(base)
    python = environment_python(folder)
    query = "import sysconfig; print(sysconfig.get_path('platlib'))"
    packages = run_tool([python, "-c", query], env, f"the Python of {folder}").strip()
    folders = [os.path.dirname(python), os.path.join(packages, "ROOT", "bin"), env.get("PATH", "")]
    env["PATH"] = os.pathsep.join(folder for folder in folders if folder)
    env["VIRTUAL_ENV"] = folder
    return python, env


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
        _check_disk_space(folder, release)
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


def _check_disk_space(folder: str, release: Release) -> None:
    if shutil.disk_usage(folder).free < release.needed_bytes:
        _raise_disk_full(folder, release)


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
        self._install_package(f"{release.package}=={release.wheel}", "--no-deps")
        for package in release.further_packages:
            self._install_package(package, "" if release.dependencies else "--no-deps")
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

    def _install_package(self, package: str, option: str) -> None:
        """Download and install a package, with retries."""
        command = [environment_python(self.folder), *_PIP_INSTALL]
        command += [option] if option else []
        command += self._list_requirement(package)
        for number in range(1, MAX_TRIES + 1):
            done = self._run_command(command if number == 1 else [*command, "--no-cache-dir"])
            if not done.returncode:
                return
            output = done.stdout + done.stderr
            if _DISK_FULL_PATTERN.search(output):
                _raise_disk_full(self.folder, self.release)
            reason = _describe_download_failure(output)
            if number == MAX_TRIES or (
                _NO_DISTRIBUTION_TEXT in output and not _CONNECTION_LOST_PATTERN.search(output)
            ):
                self._raise_download_error(package, number, reason)
            wait = BACK_OFF_S[number - 1]
            self.notify(
                f"{self.release.title}: {reason}; try {number + 1} of {MAX_TRIES} in {wait:g} s"
            )
            time.sleep(wait)

    def _list_requirement(self, package: str) -> List[str]:
        """Return the arguments that select a package, the release itself with its known hash."""
        sha256 = self.release.sha256
        if not sha256 or not package.startswith(f"{self.release.package}=="):
            return [package]
        listed = os.path.join(self.temporary, "wanted.txt")
        with open(listed, "w", encoding="utf-8") as stream:
            stream.write(f"{package} --hash=sha256:{sha256}\n")
        return ["--require-hashes", "-r", listed]

    def _raise_download_error(self, package: str, tries: int, reason: str) -> None:
        python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        attempts = f" in {tries} tries" if tries > 1 else ""
        raise_setup_error(
            "download",
            f"pip could not install {self.release.title} ({package}) for {python}{attempts}: {reason}; "
            f"check the network and pip's configuration, or {self.release.remedy}",
            transient=True,
        )

    def _run_step(self, command: List[str], problem: str, remedy: str) -> str:
        """Run one step of the installation and return its output."""
        done = self._run_command(command)
        if done.returncode:
            # venv hides the output of its tools, and they remove incomplete files.
            short = shutil.disk_usage(self.folder).free < _ENVIRONMENT_BYTES
            if short or _DISK_FULL_PATTERN.search(done.stdout + done.stderr):
                _raise_disk_full(self.folder, self.release)
            raise_setup_error(
                "broken", f"{problem}: {extract_error_line(done.stderr or done.stdout)}; {remedy}"
            )
        return done.stdout

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
