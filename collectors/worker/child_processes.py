"""Child processes of the worker: stop signals, forked calls, and bounded logs of their output."""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import sys
from collections import deque
from contextlib import suppress
from itertools import islice
from types import FrameType
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, Optional, Tuple

from ..record.outcome import ExecutionError, Failure
from ..shared_files import DISK_FULL_ERRNOS

#: Bytes kept at each end.
KEPT_BYTES = 512 * 1024
#: Bytes of a line without an end that wait to be masked.
_MAX_LINE_BYTES = 64 * 1024


class BoundedLog:
    """A sink for unlimited output that leaves a file of at most about twice ``keep`` bytes.

    Output that does not fit on the disk is dropped: a payload must not fail because of its log.
    ``mask`` replaces secrets in each line.
    """

    def __init__(
        self, path: str, keep: int = KEPT_BYTES, mask: Optional[Callable[[str], str]] = None
    ) -> None:
        # The file stays open until close() or the end of the `with` block.
        self._stream = open(path, "wb", buffering=0)  # noqa: SIM115
        self._keep = keep
        self._head = 0
        self._tail: Deque[bytes] = deque()
        self._tail_size = 0
        self._cut = 0
        self._last = b""
        self._mask = mask
        self._held = b""

    def __enter__(self) -> BoundedLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        """Add ``data``; its last line waits for its end if lines are masked."""
        if self._mask is None:
            self._add(data)
            return
        lines, newline, self._held = (self._held + data).rpartition(b"\n")
        self._add(self._mask_text(lines + newline))
        if len(self._held) > _MAX_LINE_BYTES:
            self._release_line()

    def _mask_text(self, data: bytes) -> bytes:
        assert self._mask is not None
        text = data.decode("utf-8", "surrogateescape")
        return self._mask(text).encode("utf-8", "surrogateescape")

    def _release_line(self) -> None:
        if self._held:
            self._add(self._mask_text(self._held))
            self._held = b""

    def _add(self, data: bytes) -> None:
        self._last = (self._last + data)[-4096:]
        room = self._keep - self._head
        if room > 0:
            self._write_through(data[:room])
            self._head += len(data[:room])
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_size += len(data)
            while self._tail_size - len(self._tail[0]) >= self._keep:
                dropped = len(self._tail.popleft())
                self._tail_size -= dropped
                self._cut += dropped

    def _write_through(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._stream.write(data) :]
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise

    def read_tail(self, characters: int) -> str:
        """Return the last ``characters`` of the text (at most 4096 bytes), without NUL."""
        self._release_line()
        text = self._last.decode("utf-8", "replace").replace("\x00", "")
        return text.strip()[-characters:]

    def close(self) -> None:
        """Write the note on omitted bytes and the tail, and close the file."""
        self._release_line()
        if self._cut:
            self._write_through(f"\n[... {self._cut} bytes omitted ...]\n".encode())
        self._write_through(b"".join(self._tail))
        self._tail.clear()
        self._stream.close()


def print_line(text: str, stream: str = "stdout") -> None:
    """Print a line; after a failure, such as a full disk, stay silent.

    Otherwise Python would exit with a code of its own when it flushes the stream at its end.
    """
    try:
        print(text, file=getattr(sys, stream), flush=True)
    except OSError:
        setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - for the process's lifetime


#: Signals with which a batch system, a terminal or a user ends the worker.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; called in a new child process."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def enter_helper_process() -> None:
    """Prepare a newly forked child that works for the worker: the worker decides when it ends."""
    die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Process groups receive these as well.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class StopSignals:
    """Context that notes the first stop signal and makes ``fd`` readable at each signal.

    Nothing is interrupted: the worker checks :attr:`stopped_by` where it can stop cleanly.
    """

    def __init__(self) -> None:
        self.stopped_by = ""
        self.fd, self._write_end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_end, False)
        self._before: Dict[int, Any] = {}
        self._fd_before = -1

    def __enter__(self) -> StopSignals:
        self._fd_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self.fd)
        os.close(self._write_end)

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        if number in STOP_SIGNALS and not self.stopped_by:
            self.stopped_by = signal.Signals(number).name

    def raise_if_stopped(self, phase: str) -> None:
        """Raise an error in ``phase`` once a stop signal has arrived.

        Raises:
            ExecutionError: class ``evicted``.
        """
        if self.stopped_by:
            message = f"{self.stopped_by} reached the worker in the phase '{phase}'."
            raise ExecutionError(Failure("evicted", "stopped", phase, message, transient=True))

    def drain(self) -> None:
        """Make ``fd`` unreadable until the next signal."""
        with suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass


class ForkedCall:
    """Call in a child process, so that its process tree is accounted apart from others.

    The child is killed with its parent.  ``fd`` becomes readable when the call has ended.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.fd, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run_child(function, write_end)
        os.close(write_end)

    def stop(self) -> None:
        """Ask the child to stop, as a batch system would; it still returns its result."""
        os.kill(self.pid, signal.SIGTERM)

    def result(self) -> Any:
        """Wait for the end of the call and return its result.

        Raises:
            OSError: the call failed with it, or the child was killed.
        """
        with os.fdopen(self.fd, "rb") as stream:
            content = stream.read()
        os.waitpid(self.pid, 0)
        if not content:
            raise ChildProcessError("the process that supervised the payload was killed")
        succeeded, value = pickle.loads(content)
        if not succeeded:
            raise value
        return value


def _run_child(function: Callable[[], Any], write_end: int) -> None:
    die_with_parent()
    try:
        try:
            content = pickle.dumps((True, function()))
        except OSError as error:
            content = pickle.dumps((False, error))
        with os.fdopen(write_end, "wb") as stream:
            stream.write(content)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def run_forked(calls: Iterable[Callable[[], Any]], at_once: int = 1) -> Iterator[Tuple[int, Any]]:
    """Make each call in a child process: the worker kills all that descends from its own one.

    Yields the number of each call, from 0, and its result, as they end.  If the iteration stops early,
    the other calls are asked to stop.

    Raises:
        OSError: a call failed with it, or its child was killed.
    """
    remaining_calls = enumerate(calls)
    running: Dict[int, Tuple[int, ForkedCall]] = {}
    try:
        while True:
            for number, call in islice(remaining_calls, at_once - len(running)):
                child = ForkedCall(call)
                running[child.fd] = number, child
            if not running:
                return
            for fd in select.select(list(running), [], [])[0]:
                number, child = running.pop(fd)
                yield number, child.result()
    finally:
        for _, child in running.values():
            child.stop()
        for _, child in running.values():
            with suppress(OSError):  # it was killed
                child.result()
