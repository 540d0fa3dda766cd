"""Client of mounted paths: threads that read and write through the operating system."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import zlib
from typing import Callable, Dict, Mapping, Tuple

from .....collectors.record import operation_steps as steps
from ..operation import Flight, ThreadBuffer, ThreadedClient, classify_os_error, iterate_blocks

#: Threads, and so operations at a time, at most.
MAX_THREADS = 1_024
#: Bytes of one call, and of each thread's buffer.
MAX_READ = 1 << 20
#: Alignment of positions and lengths of operations past the page cache.
_ALIGNMENT = 4_096
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class _WrongDataError(Exception):
    """A file is shorter than it should be, or its checksum differs."""


class FileClient(ThreadedClient):
    """Client of paths, with one thread for each client.

    Args:
        clients: number of clients.
        timeout_s: unused: the operating system does not return from a path that hangs.
        direct: read and write past the page cache (O_DIRECT).
    """

    cores = len(os.sched_getaffinity(0))
    unsupported = frozenset({steps.CONNECT, steps.LOCATE})

    def __init__(self, clients: int, timeout_s: float, *, direct: bool = False) -> None:
        super().__init__(clients, timeout_s, min(max(clients, 16), MAX_THREADS))
        self._direct = os.O_DIRECT if direct else 0
        self._flags = os.O_RDONLY | os.O_CLOEXEC | self._direct
        self._unit = _ALIGNMENT if direct else 1
        self._server = socket.gethostname()
        self._local = ThreadBuffer(MAX_READ)
        self._lock = threading.Lock()
        self._readers: Dict[Tuple[int, str], int] = {}
        self._actions: Mapping[str, Callable[[Flight], object]] = {
            steps.OPEN: self._open,
            steps.CLOSE: self._close_reader,
            steps.READ: self._read,
            steps.VECTOR_READ: self._read,
            steps.READ_FILE: self._read_whole,
            steps.WRITE_FILE: self._write,
            steps.CREATE: self._write,
            steps.STAT: lambda flight: os.stat(flight.operation.file.url),
            steps.DELETE: lambda flight: os.unlink(flight.operation.file.url),
            steps.MKDIR: lambda flight: os.makedirs(flight.operation.file.url, exist_ok=True),
            steps.RMDIR: lambda flight: os.rmdir(flight.operation.file.url),
        }

    def close(self) -> None:
        """Close all files; threads that hang end with the process."""
        super().close()
        for descriptor in self._readers.values():
            os.close(descriptor)
        self._readers.clear()

    def _perform(self, flight: Flight) -> None:
        failure = ""
        flight.send()
        try:
            if flight.operation.name not in self._actions:
                raise OSError(errno.EOPNOTSUPP, "no such operation")
            self._actions[flight.operation.name](flight)
        except OSError as error:
            failure = classify_os_error(error)
        except _WrongDataError:
            failure = "wrong-data"
        flight.end(self._server, failure)

    # -- reading

    def _open(self, flight: Flight) -> None:
        operation = flight.operation
        if operation.keep:
            self._find_reader(operation.client, operation.file.url)
        else:
            os.close(os.open(operation.file.url, self._flags))

    def _close_reader(self, flight: Flight) -> None:
        operation = flight.operation
        with self._lock:
            descriptor = self._readers.pop((operation.client, operation.file.url), None)
        if descriptor is None:
            raise OSError(errno.EBADF, "its open failed")
        os.close(descriptor)

    def _read(self, flight: Flight) -> None:
        operation = flight.operation
        descriptor = self._find_reader(operation.client, operation.file.url)
        for chunk in operation.chunks:
            self._read_piece(descriptor, *chunk)

    def _find_reader(self, client: int, path: str) -> int:
        with self._lock:
            open_descriptor = self._readers.get((client, path))
        if open_descriptor is not None:
            return open_descriptor
        descriptor = os.open(path, self._flags)
        with self._lock:
            shared_descriptor = self._readers.setdefault((client, path), descriptor)
        if shared_descriptor != descriptor:  # opened by a second read of this client meanwhile
            os.close(descriptor)
        return shared_descriptor

    def _read_piece(self, descriptor: int, offset: int, size: int) -> None:
        position, end = offset - offset % self._unit, offset + size
        buffer = self._local.buffer
        while position < end:
            aligned_size = -(-(end - position) // self._unit) * self._unit
            read = os.preadv(descriptor, [memoryview(buffer)[:aligned_size]], position)
            position += read
            if not read or (position < end and position % self._unit):
                raise _WrongDataError

    def _read_whole(self, flight: Flight) -> None:
        file, adler32, position = flight.operation.file, 1, 0
        buffer = memoryview(self._local.buffer)
        descriptor = os.open(file.url, self._flags)
        try:
            while True:
                read = os.preadv(descriptor, [buffer], position)
                adler32 = zlib.adler32(buffer[:read], adler32)
                position += read
                if not read or position % self._unit or (read < MAX_READ and position >= file.size):
                    break
        finally:
            os.close(descriptor)
        if position != file.size or file.adler32 not in (None, adler32):
            raise _WrongDataError

    # -- writing

    def _write(self, flight: Flight) -> None:
        """Write a new file; an incomplete last unit of direct writing passes the page cache."""
        file, adler32 = flight.operation.file, 1
        descriptor = os.open(file.url, _NEW | self._direct, 0o644)
        try:
            for block in iterate_blocks(file.number, file.size):
                adler32 = zlib.adler32(block, adler32)
                whole = len(block) - len(block) % self._unit
                self._write_block(descriptor, memoryview(block)[:whole])
                if whole < len(block):
                    fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
                    self._write_block(descriptor, memoryview(block)[whole:])
        finally:
            os.close(descriptor)
        flight.adler32 = adler32

    def _write_block(self, descriptor: int, block: memoryview) -> None:
        while block:
            piece = block[:MAX_READ]
            if self._direct:
                buffer = memoryview(self._local.buffer)[: len(piece)]
                buffer[:] = piece
                piece = buffer
            block = block[os.write(descriptor, piece) :]
