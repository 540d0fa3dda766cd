"""Libraries of the kit and of a payload's loop: their build, and ROOT without PyROOT through them.

The node's own compiler builds them in a folder before a payload measures; later processes find them
there.  Without libraries, ROOT's interpreter compiles kit and loop in each process.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from .loop_hash import hash_loop
from .payload_task import PayloadTask

#: Function of a loop's library that returns the loop's address.
LOOP_SYMBOL = "treehammer_loop"

#: Variable with the folder below which a payload builds libraries instead of measuring.
BUILD_VARIABLE = "TREEHAMMER_LOOP_BUILD"
#: Variable with the folder of the libraries that were built for this ROOT.
LIBRARIES_VARIABLE = "TREEHAMMER_LOOP_LIBRARIES"
#: Variable with a folder into which a payload copies these libraries, to load the copies.
COPY_VARIABLE = "TREEHAMMER_LOOP_COPY"
#: File in that folder with the name of the compiler.
COMPILER_FILE = "compiler"
#: Value of ``loop_compiler`` where ROOT's interpreter compiles the loop.
CLING = "cling"

KIT_FOLDER = os.path.dirname(os.path.abspath(__file__))
#: Files of a test that its loop can include.
_SOURCE_SUFFIXES = (".C", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".icc")


@dataclass(frozen=True)
class LoopSource:
    """The loop of a payload.

    Attributes:
        code: C++ that defines the function; '' if the payload does not support the format.
        function: name of the function.
        argument: class of its argument.
        ntuple: whether it reads RNTuples.
        folder: the payload's folder.
        frame: whether it is an analysis with RDataFrame.
        is_late: whether the payload writes the code itself, once a file has told the columns' types.
        callgrind: path of valgrind's header where the loop's instructions are counted.
    """

    code: str
    function: str
    argument: str
    ntuple: bool
    folder: str
    frame: bool = False
    is_late: bool = False
    callgrind: str = ""

    @property
    def key(self) -> str:
        """Hash of the loop, of the test's files that it can include, and of the kit."""
        digest = hashlib.sha256(f"{_hash_kit()} {self.argument} {self.function}\n".encode())
        digest.update(self.code.encode("utf-8", "surrogateescape"))
        digest.update(_hash_files(self.folder).encode())
        return digest.hexdigest()[:20]

    @property
    def hook(self) -> str:
        """Function of the kit that holds the timed loop."""
        return "TheAnalysis" if self.frame else "TheNTupleLoop" if self.ntuple else "TheLoop"

    @property
    def kit_options(self) -> List[str]:
        """Options with which the kit's library is compiled for this loop."""
        options = ["-DTREEHAMMER_NTUPLE"] if self.ntuple else []
        options += ["-DTREEHAMMER_FRAME"] if self.frame else []
        if self.callgrind:
            options.append(f'-DTREEHAMMER_CALLGRIND="{self.callgrind}"')
        return options

    def write_source(self) -> str:
        """Return the source of the loop's library."""
        headers = [
            "kit.hpp",
            *(["ntuple_reader.hpp"] if self.ntuple else []),
            *(["columns/dataframe.hpp"] if self.frame else []),
        ]
        includes = "".join(f'#include "{os.path.join(KIT_FOLDER, header)}"\n' for header in headers)
        kind = f"void (*{LOOP_SYMBOL}())(treehammer::{self.argument} &)"
        return (
            f"{includes}{mark_lines(self.code)}\n"
            f'#line 1 "treehammer"\nextern "C" {kind} {{ return &{self.function}; }}\n'
        )


@dataclass(frozen=True)
class LoopLibraries:
    """Libraries that exist.

    Attributes:
        kit: path of the kit's library.
        loop: path of the loop's library; '' for a late one.
        compiler: name, version and optimization of their compiler.
    """

    kit: str
    loop: str
    compiler: str


def mark_lines(code: str) -> str:
    """Precede code by a directive, so that a compiler's messages name its line in the script."""
    script = sys.argv[0]
    try:
        with open(script, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, ValueError):
        return code
    position = text.find(code)
    if position < 0:
        return code
    return f'#line {text.count(chr(10), 0, position) + 1} "{os.path.basename(script)}"\n{code}'


def find_libraries(task: PayloadTask, loop: LoopSource) -> Optional[LoopLibraries]:
    """Find the libraries that the worker had built; None to let ROOT's interpreter compile the loop.

    Modules that a test imports may need PyROOT.

    Raises:
        OSError: their copies cannot be written.
    """
    folder = os.environ.get(LIBRARIES_VARIABLE)
    if not folder or not (loop.code or loop.is_late) or task.imports:
        return None
    kit, loop_path = library_paths(folder, loop)
    try:
        with open(os.path.join(folder, COMPILER_FILE), encoding="utf-8") as stream:
            compiler = stream.read()
    except OSError:
        return None
    if not all(map(os.path.exists, (kit,) if loop.is_late else (kit, loop_path))):
        return None
    return LoopLibraries(_copy(kit), "" if loop.is_late else _copy(loop_path), compiler)


def _copy(library: str) -> str:
    """Copy a library where this payload loads copies; return the path to load."""
    folder = os.environ.get(COPY_VARIABLE)
    if not folder:
        return library
    os.makedirs(folder, exist_ok=True)
    return shutil.copy(library, folder)


def library_paths(folder: str, loop: LoopSource) -> Tuple[str, str]:
    """Return the paths of the kit's and the loop's library in the folder for a ROOT."""
    variant = f"{'-ntuple' if loop.ntuple else ''}{'-frame' if loop.frame else ''}"
    variant += "-count" if loop.callgrind else ""
    return (
        os.path.join(folder, f"kit{variant}-{_hash_kit()}.so"),
        os.path.join(folder, f"loop-{loop.key}.so"),
    )


def _hash_kit() -> str:
    folders = (KIT_FOLDER, os.path.join(KIT_FOLDER, "columns"))
    return hashlib.sha256("".join(map(_hash_files, folders)).encode()).hexdigest()[:20]


def _hash_files(folder: str) -> str:
    """Hash the sources in a folder, without those in folders below it."""
    digest = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        if name.endswith(_SOURCE_SUFFIXES):
            with open(os.path.join(folder, name), "rb") as stream:
                digest.update(f"{name}\n".encode("utf-8", "surrogateescape"))
                digest.update(hashlib.sha256(stream.read()).digest())
    return digest.hexdigest()


# The names below are those that PyROOT has, so that the passes use either.


class CompiledRoot:
    """ROOT as loaded by the kit's library.

    Args:
        kit: path of the kit's library.
        loop: path of the loop's library, which needs the kit's; '' for a late one.

    Raises:
        OSError: a library is missing, or needs symbols that this ROOT does not have.
    """

    def __init__(self, kit: str, loop: str = "") -> None:
        # Also libraries that ROOT and the test load later find ROOT's symbols.
        library = ctypes.CDLL(kit, mode=ctypes.RTLD_GLOBAL)
        self._call_library = library.treehammer_call
        self._call_library.restype = ctypes.c_char_p
        self._call_library.argtypes = [
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_char_p),
        ]
        self._loop = loop
        self.gROOT = _Namespace(self, "gROOT")
        self.gSystem = _Namespace(self, "gSystem")
        self.gEnv = _Namespace(self, "gEnv")
        self.treehammer = _Namespace(self, "treehammer")

    def load_loop(self, name: str, late_loop: str = "") -> None:
        """Install the loop's function as the timed loop, a function of the kit called ``name``.

        Args:
            name: the function.
            late_loop: path of a late loop's library.

        Raises:
            OSError: its library is missing, or needs symbols that no loaded library has.
        """
        function = ctypes.CDLL(late_loop or self._loop)[LOOP_SYMBOL]
        function.restype = ctypes.c_void_p
        self.call(f"treehammer.{name}", None, function())

    def call(self, name: str, address: Optional[int], *arguments: Any) -> Any:
        """Call a function of the library, or a method of the object at an address.

        Raises:
            RuntimeError: it failed.
        """
        texts = [_encode(argument) for argument in arguments]
        array = (ctypes.c_char_p * len(texts))(*texts)
        text = self._call_library(name.encode(), address, len(texts), array)
        if text.startswith(b"!"):
            raise RuntimeError(text[1:].decode("utf-8", "replace"))
        return json.loads(
            text.decode("utf-8", "replace"), object_hook=lambda items: SimpleNamespace(**items)
        )


def _encode(argument: Any) -> bytes:
    if isinstance(argument, bool):
        return b"1" if argument else b"0"
    if isinstance(argument, (list, tuple)):
        return " ".join(map(str, argument)).encode()
    return str(argument).encode("utf-8", "surrogateescape")


class _Namespace:
    """Functions of ROOT or of the kit; those that make a reader return a :class:`CompiledReader`."""

    def __init__(self, root: CompiledRoot, name: str) -> None:
        self._root = root
        self._name = name

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            result = self._root.call(f"{self._name}.{name}", None, *arguments)
            return CompiledReader(self._root, name, result) if name.endswith("Reader") else result

        return call


class CompiledReader:
    """A reader of one file: its methods, and the members of its C++ class as attributes."""

    def __init__(self, root: CompiledRoot, name: str, address: int) -> None:
        self._root = root
        self._name = name
        self._address = address
        self._attributes: Dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name[0].isupper():
            return lambda *arguments: self._call(name, *arguments)
        if not self._attributes:
            self._attributes = vars(self._call("attributes"))
        try:
            return self._attributes[name]
        except KeyError:
            raise AttributeError(name) from None

    def __del__(self) -> None:
        self._call("delete")

    def _call(self, method: str, *arguments: Any) -> Any:
        self._attributes = {}
        return self._root.call(f"{self._name}.{method}", self._address, *arguments)


# The worker starts a payload once with the variable that requests only the build.

#: Compilers that are tried, in this order.
_COMPILERS = ("g++", "c++", "clang++")
_OPTIMIZATION = "-O2"
_OPTIONS = (_OPTIMIZATION, "-fPIC", "-shared", "-pthread", "-w")
#: Days after which a library that no job used is removed.
_MAX_AGE_DAYS = 60
_DAY_S = 86400

_KIT_SOURCE = "library_calls.cpp"
#: Part of the dynamic linker's message about a library on a file system without programs.
_NOEXEC_ERROR = "failed to map segment from shared object"


class BuildError(Exception):
    """The libraries cannot be built here."""


def build_libraries(base: str, task: PayloadTask, loop: LoopSource) -> Dict[str, Any]:
    """Build the libraries unless they exist, and try them; return their folder, and the loop's hash.

    It is '' where ROOT's interpreter compiles the loop, with the reason unless the test requires that.
    The compiler's messages go to standard error.
    """
    if not (loop.code or loop.is_late) or task.imports or task.kind == "checksum":
        return {"folder": ""}
    try:
        toolchain = _Toolchain.find()
        folder = os.path.join(base, toolchain.key)
        os.makedirs(folder, exist_ok=True)
        with _hold_lock(os.path.join(folder, "lock")):
            _build_missing(folder, toolchain, task, loop)
    except (BuildError, OSError) as error:
        print(f"treehammer_kit: the loop is compiled by {CLING}: {error}", file=sys.stderr)
        return {"folder": "", "reason": _name_reason(error)}
    _remove_old(base)
    if loop.is_late:
        return {"folder": folder}
    library = library_paths(folder, loop)[1]
    return {"folder": folder, "loop_hash": hash_loop(library, sys.argv[0], loop.code)}


def build_late_loop(task: PayloadTask, loop: LoopSource) -> str:
    """Build the library of a late loop unless it exists; return the path to load.

    Raises:
        BuildError: it does not compile; the compiler's messages go to standard error.
        OSError: the folder cannot be written.
    """
    folder = os.environ[LIBRARIES_VARIABLE]
    path = library_paths(folder, loop)[1]
    if not os.path.exists(path):
        with _hold_lock(os.path.join(folder, "lock")):
            _build_missing(folder, _Toolchain.find(), task, loop)
    return _copy(path)


def _name_reason(error: Exception) -> str:
    """Name the reason for having no libraries by the same words in all jobs, whose folders differ."""
    if _NOEXEC_ERROR in str(error):
        return "the scratch folder is mounted noexec"
    if isinstance(error, OSError):
        return error.strerror or re.sub(r"\S*/", "", str(error))
    return str(error)


def _build_missing(folder: str, toolchain: _Toolchain, task: PayloadTask, loop: LoopSource) -> None:
    kit, loop_path = library_paths(folder, loop)
    description = os.path.join(folder, COMPILER_FILE)
    if os.path.exists(kit) and (os.path.exists(loop_path) or not loop.code):
        for path in (kit, *([loop_path] if loop.code else []), description):
            os.utime(path)
        return
    with _replacing(description) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        stream.write(toolchain.compiler)
    if not os.path.exists(kit):
        with _replacing(kit) as temporary:
            toolchain.compile(os.path.join(KIT_FOLDER, _KIT_SOURCE), temporary, loop.kit_options)
    if not loop.code:
        return
    source = f"{loop_path}.cpp"
    with _replacing(loop_path) as temporary:
        try:
            with open(source, "w", encoding="utf-8", errors="surrogateescape") as stream:
                stream.write(loop.write_source())
            toolchain.compile(source, temporary, [f"-I{loop.folder}"])
        finally:
            with suppress(OSError):
                os.unlink(source)
        if loop.is_late:  # the payload loads it, beside the kit that it has
            return
        root = CompiledRoot(kit, temporary)
        for name in task.libraries:
            root.gSystem.Load(os.path.join(task.folder, name))
        root.load_loop(loop.hook)


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
        state += _describe_build(headers, libraries)
        key = hashlib.sha256("\n".join(state).encode()).hexdigest()[:20]
        return cls(program, f"{version} {_OPTIMIZATION}", before, after, key)

    def compile(self, source: str, target: str, options: Sequence[str]) -> None:
        """Compile a source to a library.

        Raises:
            BuildError: the compiler failed; its messages are on standard error.
        """
        command = [self.program, *self.before, *options, source, "-o", target, *self.after]
        sys.stderr.flush()
        # Messages in English, by which the first error is found.
        environment = {**os.environ, "LC_ALL": "C"}
        code = subprocess.call(command, stdin=subprocess.DEVNULL, env=environment)
        if code:
            raise BuildError(f"{self.compiler} ended with {code}")


def _describe_build(headers: str, libraries: str) -> Iterator[str]:
    """Describe the files of a build of ROOT; one in place may change headers alone."""
    for path in sorted(glob.glob(os.path.join(libraries, "lib[CRT]*.so"))):
        status = os.stat(path)
        yield f"{path} {status.st_size} {status.st_mtime_ns}"
    newest_ns = 0
    for folder, _, names in os.walk(headers):
        for name in names:
            with suppress(OSError):
                newest_ns = max(newest_ns, os.stat(os.path.join(folder, name)).st_mtime_ns)
    yield str(newest_ns)


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
    completed = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if completed.returncode or not completed.stdout.strip():
        raise BuildError(f"{shlex.join(command)} ended with {completed.returncode}")
    return completed.stdout


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
