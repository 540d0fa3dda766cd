"""Recorder of reads: its build, the variables that preload it, and the notes of each process.

The node's own compiler builds ``recorder.c`` once for each machine.
"""

from __future__ import annotations

import glob
import hashlib
import mmap
import os
import platform
import re
import shutil
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, NamedTuple, Tuple

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorder.c")
#: Variable with the folder for the notes of each process.
TRACE_VARIABLE = "TREEHAMMER_TRACE"
#: Configuration of the XRootD client's recorder; one by XRD_PLUGIN would replace plug-ins for HTTP.
_XROOTD_PLUGIN = """\
url = root://*;roots://*;xroot://*;xroots://*
lib = libXrdClRecorder.so
enable = true
"""
#: Where the client finds others, and an enabled one that reads the same addresses.
_PLUGIN_FOLDERS = ("/etc/xrootd/client.plugins.d", "~/.xrootd/client.plugins.d")
_OTHER_PLUGIN = re.compile(
    r"(?ms)(?=.*^\s*enable\s*=\s*true).*^\s*url\s*=\s*(\*\s*$|[^\n]*\bx?roots?:)"
)
#: Variable of jobs on this machine with a folder for compiled libraries.
SHARED_FOLDER_VARIABLE = "TREEHAMMER_SHARED_LOOPS"
#: Optimized whatever the compiler's defaults; the checked functions are among those recorded.
_OPTIONS = ("-O2", "-shared", "-fPIC", "-U_FORTIFY_SOURCE")
#: A C library before 2.34, which a container may have, keeps dlsym() in a library of its own.
_LIBRARIES = ("-Wl,--no-as-needed", "-l:libdl.so.2", "-pthread")
_BUILD_TIMEOUT_S = 60

_MAGIC = b"HTRACE01"
_HEADER = struct.Struct("<8sIIIIQIIIIQ4040s")
_FILE = struct.Struct("<7QII464s")
_EVENT = struct.Struct("<IIQQqQ")
_STREAMS_SEEN, _RING_USED = 1, 2
#: Kinds of files; pipes, terminals and devices are one of them.
REGULAR, INTERNET, STREAM = 1, 2, 3


class RecorderError(Exception):
    """Reads cannot be recorded; the message is the reason."""


def build_recorder(folder: str) -> str:
    """Compile the recorder, in a folder unless this machine shares it; return the library's path.

    Raises:
        RecorderError: the node has no C compiler, it fails, or the folder is mounted noexec.
    """
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if platform.system() != "Linux" or compiler is None:
        raise RecorderError("the node has no C compiler for the recorder of reads")
    with open(SOURCE, "rb") as stream:
        digest = hashlib.sha256(stream.read() + platform.machine().encode()).hexdigest()[:16]
    folder = os.environ.get(SHARED_FOLDER_VARIABLE) or folder
    library = os.path.join(folder, f"recorder-{digest}.so")
    if os.path.exists(library):
        return library
    temporary = f"{library}.{os.getpid()}"
    command = [compiler, *_OPTIONS, "-o", temporary, SOURCE, *_LIBRARIES]
    try:
        os.makedirs(folder, exist_ok=True)
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            raise RecorderError(f"the recorder of reads cannot be loaded: {folder} is noexec")
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S
        )
        os.replace(temporary, library)
    except subprocess.CalledProcessError as error:
        lines = (line for line in error.stderr.splitlines() if "error" in line)
        message = f"the recorder of reads does not compile: {next(lines, 'no message')}"
        raise RecorderError(message) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecorderError(f"the recorder of reads cannot be built: {error}") from error
    return library


def preload_variables(library: str, folder: str, environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables by which each process of a command records its reads in a folder.

    An XRootD client that lacks its recorder, or has another plug-in, records nothing.
    """
    preload = [library, *filter(None, [environment.get("LD_PRELOAD", "")])]
    variables = {"LD_PRELOAD": ":".join(preload), TRACE_VARIABLE: folder}
    if {"XRD_PLUGIN", "XRD_PLUGINCONFDIR"} & environment.keys() or _has_client_plugin():
        return variables
    with open(os.path.join(folder, "recorder.conf"), "w", encoding="ascii") as stream:
        stream.write(_XROOTD_PLUGIN)
    return {**variables, "XRD_PLUGINCONFDIR": folder, "TREEHAMMER_TRACE_XROOTD": "1"}


def _has_client_plugin() -> bool:
    """Whether the XRootD client is configured to read ``root://`` by another plug-in."""
    for folder in _PLUGIN_FOLDERS:
        for path in glob.glob(os.path.expanduser(f"{folder}/*.conf")):
            with suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
                if _OTHER_PLUGIN.match(stream.read()):
                    return True
    return False


#: Stands for the duration of a block that ROOT wanted of the read before it.
_WANTED = 2**64 - 1


class Read(NamedTuple):
    """One read: number of the file, start by the monotonic clock, and what it returned."""

    file: int
    unused: int
    start_ns: int
    duration_ns: int
    offset: int
    length: int

    @property
    def is_wanted_block(self) -> bool:
        """Whether it is no read, but a block that ROOT wanted of one which also fills gaps."""
        return self.duration_ns == _WANTED


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
        used_ring: whether the process read by io_uring or libaio, which is not recorded.
        lost_files: files that found no place in the table.
        libraries: libraries that it loaded; the loader read the start of each.
        uncounted_bytes: bytes of reads that the kernel's account leaves out.
    """

    path: str
    pid: int
    program: str
    files: Tuple[FileSums, ...]
    event_count: int
    is_complete: bool
    streams_seen: bool
    used_ring: bool
    lost_files: int
    libraries: int
    uncounted_bytes: int

    @property
    def accounted_bytes(self) -> int:
        """Bytes of recorded reads that are in the kernel's account, those of pipes included."""
        return sum(file.bytes for file in self.files) - self.uncounted_bytes

    def iterate_reads(self) -> Iterator[Read]:
        """Read the notes of all reads in the order in which they ended."""
        if not self.event_count:
            return
        path = f"{os.path.splitext(self.path)[0]}.events"
        with (
            open(path, "rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as notes,
        ):
            view = memoryview(notes)[: self.event_count * _EVENT.size]
            try:
                for fields in _EVENT.iter_unpack(view):
                    yield Read(*fields)
            finally:
                view.release()


def read_notes(folder: str) -> List[ProcessNotes]:
    """Read the notes of all processes of a command; damaged ones are left out."""
    notes = []
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.trace"))):
        with suppress(OSError, struct.error), open(path, "rb") as stream:
            header = _Header(*_HEADER.unpack(stream.read(_HEADER.size)))
            if header.magic == _MAGIC:
                table = stream.read(header.files * _FILE.size)
                notes.append(_parse_notes(path, header, table))
    return notes


class _Header(NamedTuple):
    """Header of a file of notes, as ``struct Header`` of the recorder."""

    magic: bytes
    pid: int
    parent: int
    max_files: int
    max_events: int
    events: int
    files: int
    lost_files: int
    flags: int
    libraries: int
    uncounted_bytes: int
    program: bytes


def _parse_notes(path: str, header: _Header, table: bytes) -> ProcessNotes:
    files = []
    for *counts, size, kind, _, name in _FILE.iter_unpack(table):
        files.append(FileSums(_decode(name), kind, size, *counts))
    return ProcessNotes(
        path=path,
        pid=header.pid,
        program=_decode(header.program),
        files=tuple(files),
        event_count=min(header.events, header.max_events),
        is_complete=header.events <= header.max_events,
        streams_seen=bool(header.flags & _STREAMS_SEEN),
        used_ring=bool(header.flags & _RING_USED),
        lost_files=header.lost_files,
        libraries=header.libraries,
        uncounted_bytes=header.uncounted_bytes,
    )


def _decode(text: bytes) -> str:
    name = text.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
    return name if name.isprintable() else name.encode("unicode_escape").decode()
