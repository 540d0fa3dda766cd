"""Build of the libraries of kit and loop with the node's own compiler, before a payload measures.

The worker starts a payload once with the variable that asks for it.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from .compiled_kit import CompiledRoot
from .loop_libraries import (
    CLING,
    COMPILER_FILE,
    KIT_FOLDER,
    LoopSource,
    library_paths,
)
from .payload_task import PayloadTask

#: Compilers that are tried, in this order.
_COMPILERS = ("g++", "c++", "clang++")
_OPTIMIZATION = "-O2"
_OPTIONS = (_OPTIMIZATION, "-fPIC", "-shared", "-pthread", "-w")
#: Days after which a library that no job used is removed.
_MAX_AGE_DAYS = 60
_DAY_S = 86400

_KIT_SOURCE = "library_calls.cpp"


class BuildError(Exception):
    """The libraries cannot be built here."""


def build_libraries(base: str, task: PayloadTask, loop: LoopSource) -> Dict[str, Any]:
    """Build the libraries unless they exist, and try them; return their folder, '' for none.

    The compiler's messages go to standard error.
    """
    try:
        if not loop.code or task.imports or task.kind == "checksum":
            raise BuildError("this execution needs ROOT's interpreter")
        toolchain = _Toolchain.find()
        folder = os.path.join(base, toolchain.key)
        os.makedirs(folder, exist_ok=True)
        with _hold_lock(os.path.join(folder, "lock")):
            _build_missing(folder, toolchain, task, loop)
    except (BuildError, OSError) as error:
        print(f"treehammer_kit: the loop is compiled by {CLING}: {error}", file=sys.stderr)
        return {"folder": ""}
    _remove_old(base)
    return {"folder": folder}


def _build_missing(folder: str, toolchain: _Toolchain, task: PayloadTask, loop: LoopSource) -> None:
    kit, loop_path = library_paths(folder, loop)
    description = os.path.join(folder, COMPILER_FILE)
    if os.path.exists(kit) and os.path.exists(loop_path):
        for path in (kit, loop_path, description):
            os.utime(path)
        return
    with _replacing(description) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        stream.write(toolchain.compiler)
    if not os.path.exists(kit):
        options = ["-DTREEHAMMER_NTUPLE"] if loop.ntuple else []
        with _replacing(kit) as temporary:
            toolchain.compile(os.path.join(KIT_FOLDER, _KIT_SOURCE), temporary, options)
    source = f"{loop_path}.cpp"
    with _replacing(loop_path) as temporary:
        try:
            with open(source, "w", encoding="utf-8", errors="surrogateescape") as stream:
                stream.write(loop.write_source())
            toolchain.compile(source, temporary, [f"-I{loop.folder}"])
        finally:
            with suppress(OSError):
                os.unlink(source)
        root = CompiledRoot(kit, temporary)
        for name in task.libraries:
            root.gSystem.Load(os.path.join(task.folder, name))
        root.load_loop("TheNTupleLoop" if loop.ntuple else "TheLoop")


@dataclass(frozen=True)
class _Toolchain:
    """A compiler with its options for the ROOT that this Python imports."""

    program: str
    compiler: str
    before: Sequence[str]
    after: Sequence[str]
    key: str

    @classmethod
    def find(cls) -> _Toolchain:
        """Find the first compiler, and ROOT's headers and libraries.

        Raises:
            BuildError: one of them is missing.
        """
        program = next((path for path in map(shutil.which, _COMPILERS) if path), None)
        if program is None:
            raise BuildError(f"there is no compiler ({', '.join(_COMPILERS)})")
        if not shutil.which("root-config"):
            raise BuildError("there is no root-config")
        version = _run([program, "--version"]).splitlines()[0].strip()
        words = shlex.split(_run(["root-config", "--incdir", "--libdir", "--cflags", "--libs"]))
        headers, libraries = _locate_root(*words[:2])
        standard = [word for word in words if word.startswith("-std=")]
        linked = [word for word in words if word.startswith("-l")]
        paths = filter(None, os.environ.get("ROOT_INCLUDE_PATH", "").split(os.pathsep))
        before = [*_OPTIONS, *standard, f"-I{headers}", *(f"-I{path}" for path in paths)]
        after = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-Wl,--as-needed", *linked]
        state = [program, version, *before, *after, platform.machine(), *platform.libc_ver()]
        for path in sorted(glob.glob(os.path.join(libraries, "lib[CRT]*.so"))):
            status = os.stat(path)
            state.append(f"{path} {status.st_size} {status.st_mtime_ns}")
        key = hashlib.sha256("\n".join(state).encode()).hexdigest()[:20]
        return cls(program, f"{version} {_OPTIMIZATION}", before, after, key)

    def compile(self, source: str, target: str, options: Sequence[str]) -> None:
        """Compile a source to a library.

        Raises:
            BuildError: the compiler failed; its messages are on standard error.
        """
        command = [self.program, *self.before, *options, source, "-o", target, *self.after]
        sys.stderr.flush()
        code = subprocess.call(command, stdin=subprocess.DEVNULL)
        if code:
            raise BuildError(f"{self.compiler} ended with {code}")


def _locate_root(headers: str, libraries: str) -> Tuple[str, str]:
    """Locate ROOT's headers and libraries; root-config of its package from PyPI names wrong folders."""
    spec = importlib.util.find_spec("ROOT")
    package = os.path.dirname(spec.origin) if spec and spec.origin else ""
    if os.path.exists(os.path.join(package, "include", "RVersion.h")):
        return os.path.join(package, "include"), os.path.join(package, "lib")
    if not os.path.exists(os.path.join(headers, "RVersion.h")):
        raise BuildError(f"ROOT's headers are not in {headers}")
    return headers, libraries


def _run(command: List[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode or not done.stdout.strip():
        raise BuildError(f"{shlex.join(command)} ended with {done.returncode}")
    return done.stdout


@contextmanager
def _hold_lock(path: str) -> Iterator[None]:
    """Let one process at a time build in a folder; the kernel frees the lock of a dead one."""
    with open(path, "w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def _replacing(path: str) -> Iterator[str]:
    """Yield a temporary path, which replaces ``path`` unless the block fails."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _remove_old(base: str) -> None:
    """Remove libraries that no job used for long, and remains of interrupted builds."""
    limit = time.time() - _MAX_AGE_DAYS * _DAY_S
    for path in glob.glob(os.path.join(base, "*", "*")):
        with suppress(OSError):
            if os.stat(path).st_mtime < limit:
                os.unlink(path)
