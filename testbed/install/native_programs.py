"""The testbed's C programs, compiled on demand and kept in the package cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from treehammer.collectors.shared_files import hold_lock
from treehammer.errors import TestbedError
from treehammer.testbed.core.component import ProgressCallback

_SOURCES = Path(__file__).parent / "native"
_LIBRARY_OPTIONS = ("-shared", "-fPIC")


def build_wanlink(cache: Path, say: ProgressCallback) -> Path:
    """Compile the link between two network namespaces, for root.

    Raises:
        TestbedError: it cannot be compiled.
    """
    return _compile_program("wanlink", "wanlink", (), cache, say)


def build_loopback_library(cache: Path, say: ProgressCallback) -> Path:
    """Compile the library that restricts a server to given addresses.

    Raises:
        TestbedError: it cannot be compiled.
    """
    return _compile_program("loopback", "loopback.so", _LIBRARY_OPTIONS, cache, say)


def _compile_program(
    name: str, file_name: str, options: tuple[str, ...], cache: Path, say: ProgressCallback
) -> Path:
    source = _SOURCES / f"{name}.c"
    command = ["-O2", *options, "-o"]
    key = hashlib.sha256(source.read_bytes() + repr(command).encode()).hexdigest()[:12]
    folder = cache / "native"
    target = folder / f"{key}-{file_name}"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise TestbedError("there is no C compiler", hint="Install one (Debian: apt install gcc).")
    with hold_lock(folder / f"{file_name}.lock"):
        say(f"compiling {name}")
        part = target.with_suffix(".part")
        result = subprocess.run(
            [compiler, *command, str(part), str(source), "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise TestbedError(
                f"cannot be compiled:\n  {result.stderr.strip()}",
                where=str(source),
                hint="Install the headers of Linux and libc (Debian: libc6-dev).",
            )
        part.rename(target)
    return target
