"""Recorder of reads: its build, the variables that preload it, and the notes of each process.

The node's own compiler builds ``recorder.c`` once for each machine.
"""

from __future__ import annotations

import glob
import hashlib
import mmap
import os
import platform
import shutil
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, NamedTuple, Tuple

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorder.c")
#: Variable with the folder for the notes of each process.
TRACE_VARIABLE = "TREEHAMMER_TRACE"
#: Variable of jobs on this machine with a folder for compiled libraries.
SHARED_FOLDER_VARIABLE = "TREEHAMMER_SHARED_LOOPS"
#: Optimized whatever the compiler's defaults; the checked functions are among those recorded.
_OPTIONS = ("-O2", "-shared", "-fPIC", "-U_FORTIFY_SOURCE")
_BUILD_TIMEOUT_S = 60

_MAGIC = b"HTRACE01"
_HEADER = struct.Struct("<8sIIIIQIIII4048s")
_FILE = struct.Struct("<7QII464s")
_EVENT = struct.Struct("<IIQQqQ")
_STREAMS_SEEN, _RING_USED = 1, 2
#: Kinds of files.
REGULAR, INTERNET = 1, 2


class RecorderError(Exception):
    """Reads cannot be recorded; the message is the reason."""


def build_recorder(folder: str) -> str:
    """Compile the recorder, unless it was compiled before; return the library's path.

    Args:
        folder: folder for the library where this machine shares none.

    Raises:
        RecorderError: the node has no C compiler, or it fails.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if platform.system() != "Linux" or compiler is None:
        raise RecorderError("the node has no C compiler for the recorder of reads")
    with open(SOURCE, "rb") as stream:
        digest = hashlib.sha256(stream.read() + platform.machine().encode()).hexdigest()[:16]
    folder = os.environ.get(SHARED_FOLDER_VARIABLE) or folder
    library = os.path.join(folder, f"recorder-{digest}.so")
    if os.path.exists(library):
        return library
    temporary = f"{library}.{os.getpid()}"
    command = [compiler, *_OPTIONS, "-o", temporary, SOURCE, "-ldl", "-pthread"]
    try:
        os.makedirs(folder, exist_ok=True)
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S
        )
        os.replace(temporary, library)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or ["no message"]
        raise RecorderError(f"the recorder of reads does not compile: {lines[0]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecorderError(f"the recorder of reads cannot be built: {error}") from error
    return library


def preload_variables(
    library: str, folder: str, environment: Mapping[str, str]
) -> Dict[str, str]:
    """Return the variables by which each process of a command records its reads in a folder."""
    preload = [library, *filter(None, [environment.get("LD_PRELOAD", "")])]
    return {"LD_PRELOAD": ":".join(preload), TRACE_VARIABLE: folder}


class Read(NamedTuple):
    """One read: seconds since the first boot-time clock tick, and what it returned."""

    file: int
    thread: int
    start_ns: int
    duration_ns: int
    offset: int
    length: int


@dataclass(frozen=True)
class FileSums:
    """Sums over one file or connection of a process, however many reads it had."""

    path: str
    kind: int
    size: int
    opens: int
    calls: int
    bytes: int
    read_ns: int
    maps: int
    mapped_bytes: int


@dataclass(frozen=True)
class ProcessNotes:
    """Notes of one program in one process.

    Attributes:
        files: sums by number of the file.
        is_complete: whether the notes hold every read, and not only the sums.
        streams_seen: whether reads of C streams are among them.
        used_ring: whether the process read by io_uring, which is not recorded.
        lost_files: files that found no place in the table.
    """

    path: str
    pid: int
    parent: int
    program: str
    files: Tuple[FileSums, ...]
    event_count: int
    is_complete: bool
    streams_seen: bool
    used_ring: bool
    lost_files: int

    def iterate_reads(self) -> Iterator[Read]:
        """Read the notes of all reads in the order in which they ended."""
        if not self.event_count:
            return
        with open(self.path, "rb") as stream:
            magic = _HEADER.unpack(stream.read(_HEADER.size))
            start = _HEADER.size + magic[3] * _FILE.size
            # The notes are sparse: only their beginning is on the disk.
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as notes:
                view = memoryview(notes)[start : start + self.event_count * _EVENT.size]
                try:
                    for fields in _EVENT.iter_unpack(view):
                        yield Read(*fields)
                finally:
                    view.release()


def read_notes(folder: str) -> List[ProcessNotes]:
    """Read the notes of all processes of a command, in no order; damaged ones are left out."""
    notes = []
    for path in glob.glob(os.path.join(glob.escape(folder), "*.trace")):
        with suppress(OSError, struct.error):
            with open(path, "rb") as stream:
                fields = _HEADER.unpack(stream.read(_HEADER.size))
                if fields[0] == _MAGIC:
                    notes.append(_parse_notes(path, fields, stream.read(fields[6] * _FILE.size)))
    return notes


def _parse_notes(path: str, header: Tuple[object, ...], table: bytes) -> ProcessNotes:
    _, pid, parent, _, max_events, events, _, lost_files, flags, _, program = header
    assert isinstance(events, int) and isinstance(max_events, int) and isinstance(flags, int)
    files = []
    for row in _FILE.iter_unpack(table):
        opens, calls, read_bytes, read_ns, maps, mapped_bytes, size, kind, _, name = row
        files.append(
            FileSums(
                _decode(name), kind, size, opens, calls, read_bytes, read_ns, maps, mapped_bytes
            )
        )
    return ProcessNotes(
        path=path,
        pid=int(str(pid)),
        parent=int(str(parent)),
        program=_decode(bytes(program)),  # type: ignore[call-overload]
        files=tuple(files),
        event_count=min(events, max_events),
        is_complete=events <= max_events,
        streams_seen=bool(flags & _STREAMS_SEEN),
        used_ring=bool(flags & _RING_USED),
        lost_files=int(str(lost_files)),
    )


def _decode(text: bytes) -> str:
    return text.split(b"\0", 1)[0].decode("utf-8", "replace")
