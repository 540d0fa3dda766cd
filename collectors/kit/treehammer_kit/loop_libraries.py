"""Libraries of the kit and of a payload's loop, which an earlier process built in a folder.

Without them, ROOT's interpreter compiles kit and loop in each process.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from typing import Optional, Tuple

from .payload_task import PayloadTask

#: Function of a loop's library that returns the loop's address.
LOOP_SYMBOL = "treehammer_loop"

#: Variable with the folder below which a payload builds libraries instead of measuring.
BUILD_VARIABLE = "TREEHAMMER_LOOP_BUILD"
#: Variable with the folder of the libraries that were built for this ROOT.
LIBRARIES_VARIABLE = "TREEHAMMER_LOOP_LIBRARIES"
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
    """

    code: str
    function: str
    argument: str
    ntuple: bool
    folder: str

    @property
    def key(self) -> str:
        """Hash of the loop, of the test's files that it can include, and of the kit."""
        digest = hashlib.sha256(f"{_hash_kit()} {self.argument} {self.function}\n".encode())
        digest.update(self.code.encode("utf-8", "surrogateescape"))
        digest.update(_hash_files(self.folder).encode())
        return digest.hexdigest()[:20]

    def write_source(self) -> str:
        """Return the source of the loop's library."""
        headers = ["kit.hpp", *(["ntuple_reader.hpp"] if self.ntuple else [])]
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
        loop: path of the loop's library.
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
    """
    folder = os.environ.get(LIBRARIES_VARIABLE)
    if not folder or not loop.code or task.imports or task.counting:
        return None
    kit, loop_path = library_paths(folder, loop)
    try:
        with open(os.path.join(folder, COMPILER_FILE), encoding="utf-8") as stream:
            compiler = stream.read()
    except OSError:
        return None
    if not os.path.exists(kit) or not os.path.exists(loop_path):
        return None
    return LoopLibraries(kit, loop_path, compiler)


def library_paths(folder: str, loop: LoopSource) -> Tuple[str, str]:
    """Return the paths of the kit's and the loop's library in the folder for a ROOT."""
    variant = "-ntuple" if loop.ntuple else ""
    return (
        os.path.join(folder, f"kit{variant}-{_hash_kit()}.so"),
        os.path.join(folder, f"loop-{loop.key}.so"),
    )


def _hash_kit() -> str:
    return _hash_files(KIT_FOLDER)[:20]


def _hash_files(folder: str) -> str:
    """Hash the sources in a folder, without those in folders below it."""
    digest = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        if name.endswith(_SOURCE_SUFFIXES):
            with open(os.path.join(folder, name), "rb") as stream:
                digest.update(f"{name}\n".encode("utf-8", "surrogateescape"))
                digest.update(hashlib.sha256(stream.read()).digest())
    return digest.hexdigest()
