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

from . import wheel
from .common import fault, why, without_foreign_python
from .pins import pin

#: How often a download is tried, and the seconds before the second try and the third.
TRIES = 3
BACK_OFF_S: Tuple[float, ...] = (5.0, 20.0)
#: Bytes on disk while a wheel is installed: 240 MB of archive, 670 MB of ROOT, Python and numpy.
NEEDED_BYTES = 1_050_000_000
#: Bytes of an environment without any package, generously.
_ENVIRONMENT_BYTES = 40_000_000

_PIP = ("-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")
_FULL = re.compile(r"No space left on device|Disk quota exceeded|Errno (28|122)\b")
_OTHER_BYTES = re.compile(r"DO NOT MATCH THE HASHES")
_CUT = re.compile(
    r"IncompleteRead|Connection broken|Connection aborted|ConnectionReset|RemoteDisconnected|"
    r"Read timed out|NewConnectionError|Connection refused|Name or service not known|"
    r"Temporary failure in name resolution|Retrying \("
)
_NO_ARCHIVE = re.compile(r"BadZipFile|zip file|zlib\.error|Bad CRC|is invalid")
#: Characters of a tool's line that a message repeats.
_SHOWN = 300
_NOT_OFFERED = "No matching distribution"

Progress = Callable[[str], None]


def make(folder: str, version: str, say: Progress, lock: int) -> None:
    """Build in place, since an environment is bound to its path; the marker comes last.

    Args:
        folder: of the environment, replaced when it exists.
        version: of ROOT.
        say: receives one short sentence at a time.
        lock: descriptor of the lock that is held.  The tools that are started inherit it, so that
            nobody builds here while one of them outlives this process.

    Raises:
        Fault: it cannot be made; nothing half-made is left.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        temporary = os.path.join(folder, "tmp")
        os.makedirs(temporary)  # on the same disk, and gone with the folder
        _check_room(folder, version)
        Maker(folder, version, say, lock, temporary).make()
        shutil.rmtree(temporary)
        wheel.mark_complete(folder, version)
    except BaseException as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        try:
            if full:
                _full(folder, version)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _check_room(folder: str, version: str) -> None:
    if shutil.disk_usage(folder).free < NEEDED_BYTES:
        _full(folder, version)


def _full(folder: str, version: str) -> NoReturn:
    free = shutil.disk_usage(os.path.dirname(folder)).free // 1_000_000
    fault(
        "disk",
        f"the disk of {folder} is full: ROOT {version} needs {NEEDED_BYTES // 1_000_000} MB while "
        f"it is installed, {free} MB are free; make room there, or name a cache_dir elsewhere",
    )


@dataclass(frozen=True)
class Maker:
    """Makes one environment, step by step."""

    folder: str
    version: str
    say: Progress
    lock: int
    temporary: str

    def make(self) -> None:
        """Every step, to a ROOT that has started once."""
        self.say(f"ROOT {self.version}: new environment")
        self.new_environment()
        self.say(f"ROOT {self.version}: installing (240 MB to fetch, 670 MB on disk)")
        self._install(f"ROOT=={wheel.WHEELS[self.version]}", pin(self.version))
        self._install("numpy", "")
        self.say(f"ROOT {self.version}: first start")
        output = self._step(
            [
                wheel.python_of(self.folder),
                "-c",
                "import ROOT; print('version', ROOT.gROOT.GetVersion())",
            ],
            f"ROOT {self.version} is installed in {self.folder} but does not start",
            "its wheel may need another system; use 'path:' with a ROOT of your own",
        )
        found = output.split()[-1] if output.split() else "nothing"
        if found != self.version:
            asked = f"ROOT=={wheel.WHEELS[self.version]}"
            fault("version", f"the wheel {asked} reports {found}, not {self.version}")

    def new_environment(self) -> None:
        """Python and pip, without any package."""
        self._step(
            [sys.executable, "-m", "venv", self.folder],
            f"cannot make a Python environment in {self.folder}",
            "Python's venv module must be installed (Debian: python3-venv)",
        )

    def _install(self, what: str, sha256: str) -> None:
        """Fetch and install a package, as often as it takes."""
        command = [wheel.python_of(self.folder), *_PIP, "--no-deps"]
        if sha256:
            listed = os.path.join(self.temporary, "wanted.txt")
            with open(listed, "w", encoding="utf-8") as stream:
                stream.write(f"{what} --hash=sha256:{sha256}\n")
            command += ["--require-hashes", "-r", listed]
        else:
            command.append(what)
        for number in range(1, TRIES + 1):
            done = self._run(command if number == 1 else [*command, "--no-cache-dir"])
            if not done.returncode:
                return
            said = done.stdout + done.stderr
            if _FULL.search(said):
                _full(self.folder, self.version)
            reason = _reason(said)
            if number == TRIES or (_NOT_OFFERED in said and not _CUT.search(said)):
                self._give_up(what, number, reason)
            wait = BACK_OFF_S[number - 1]
            self.say(f"ROOT {self.version}: {reason}; try {number + 1} of {TRIES} in {wait:g} s")
            time.sleep(wait)

    def _give_up(self, what: str, tries: int, reason: str) -> None:
        python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        often = f" in {tries} tries" if tries > 1 else ""
        fault(
            "download",
            f"pip could not install ROOT {self.version} ({what}) for {python}{often}: {reason}; "
            "check the network and pip's configuration, or use 'path:' with a ROOT of your own",
            transient=True,
        )

    def _step(self, command: List[str], what: str, remedy: str) -> str:
        """Run one step of the making and return its output."""
        done = self._run(command)
        if done.returncode:
            # venv keeps its tools' words to itself, and they remove what they could not finish.
            short = shutil.disk_usage(self.folder).free < _ENVIRONMENT_BYTES
            if short or _FULL.search(done.stdout + done.stderr):
                _full(self.folder, self.version)
            fault("broken", f"{what}: {why(done.stderr or done.stdout)}; {remedy}")
        return done.stdout

    def _run(self, command: List[str]) -> subprocess.CompletedProcess[str]:
        env = {**without_foreign_python(os.environ), "TMPDIR": self.temporary}
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


def _reason(said: str) -> str:
    """What went wrong with a download, in plain words."""
    if _OTHER_BYTES.search(said):
        digests = re.findall(r"(?:Expected sha256|Got)\s+([0-9a-f]{64})", said)
        shown = f" (SHA-256 {digests[-1]} instead of {digests[0]})" if len(digests) > 1 else ""
        return f"the download is corrupt{shown}"
    if _NO_ARCHIVE.search(said):
        return f"the download is corrupt ({why(said)})"
    cut = [line.strip() for line in said.splitlines() if _CUT.search(line)]
    if cut:
        return f"the connection to the package index broke ({cut[-1][:_SHOWN]})"
    return why(said)
