"""Files that a load writes: in a folder of the load's own, removed at its end."""

from __future__ import annotations

import time
from threading import Event, Lock
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ....collectors.kit.treehammer_kit.payload_task import PayloadError
from ....collectors.record.operation_steps import (
    CREATE,
    DELETE,
    MKDIR,
    READ_FILE,
    RMDIR,
    WRITE_FILE,
)
from .load_driver import GRACE_S, ClosedLoop, ClosedLoopDriver, LoadTimer, LoadWatchdog
from .operation import NO_CEILING, CeilingShare, Flight, LoadFile, Operation, StorageClient
from .recorder import Recorder, StepClock

#: Operations at a time while files are prepared and removed; fewer for a load of fewer clients.
PARALLEL = 16
#: Seconds for the removal of files and of folders, and after SIGTERM, when the worker kills the
#: payload after 5 s.
REMOVAL_S, FOLDER_REMOVAL_S, STOPPED_REMOVAL_S = 600.0, 60.0, 1.5
#: Seconds for the preparation.
PREPARATION_S = 3600.0


class WrittenFiles:
    """Folder for the files of a load.

    Attributes:
        folder: URL or path of the folder.
        adler32s: URL -> checksum of each file that exists; None if its writing failed.
        removed: number of files that were removed at the end.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.adler32s: Dict[str, Optional[int]] = {}
        self.removed = 0
        self._sizes: Dict[str, int] = {}
        self._folders: List[str] = []
        self._lock = Lock()
        self._exists = False

    def name_file(self, name: str, size: int, number: int) -> LoadFile:
        """Return a file of the folder, with its checksum once it is written."""
        url = f"{self.folder}/{name}"
        return LoadFile(url, size, number, self.adler32s.get(url))

    def observe(self, flight: Flight, failure: str) -> None:
        """Note the end of an operation; a write that failed may have left a file."""
        operation = flight.operation
        with self._lock:
            url = operation.file.url
            if operation.name in (WRITE_FILE, CREATE) or operation.puts:
                self.adler32s[url] = flight.adler32
                self._sizes[url] = operation.file.size
            elif operation.name == DELETE and failure in ("", "not-found"):
                self.adler32s.pop(url, None)
            elif operation.name == MKDIR and url != self.folder:
                self._folders.append(url)
            elif operation.name == RMDIR and not failure and url in self._folders:
                self._folders.remove(url)

    def count_wrong(self, client: StorageClient, stop: Event, ceiling: CeilingShare) -> int:
        """Read all files back, in 600 s at most; return how many have another content."""
        files = [
            LoadFile(url, self._sizes[url], adler32=adler32)
            for url, adler32 in self.adler32s.items()
            if adler32 is not None
        ]
        reads = [Operation(0.0, READ_FILE, 0, file) for file in files]
        ended = _perform_all(client, reads, REMOVAL_S, stop, self.observe, ceiling)
        return len(reads) - sum(not failure for _, failure in ended)

    def prepare(
        self,
        client: StorageClient,
        operations: Iterable[Operation],
        stop: Event,
        ceiling: CeilingShare = NO_CEILING,
    ) -> None:
        """Make the folder and perform operations in it, the making of folders first.

        Raises:
            PayloadError: one failed.
        """
        self._exists = True
        all_operations = list(operations)
        for batch in (
            [Operation(0.0, MKDIR, 0, LoadFile(self.folder))],
            [operation for operation in all_operations if operation.name == MKDIR],
            [operation for operation in all_operations if operation.name != MKDIR],
        ):
            ended = _perform_all(client, batch, PREPARATION_S, stop, self.observe, ceiling)
            failed = [(operation, failure) for operation, failure in ended if failure]
            if failed and not stop.is_set():
                operation, failure = failed[0]
                message = (
                    f"{operation.name} {operation.file.url} before the load: {failure}. Is the writable area of "
                    "the door right, and do this job's credentials permit writing there?"
                )
                raise PayloadError("open", failure, "setup", message)

    def remove(self, client: StorageClient, stop: Event) -> None:
        """Remove all files and the folder, after ``stop`` as far as a few seconds allow."""
        if not self._exists:
            return
        # A connection may break: try again as long as some are removed.
        while self.adler32s and not stop.is_set():
            if not self._remove_files(client, REMOVAL_S, stop):
                break
        if stop.is_set():
            self._remove_files(client, STOPPED_REMOVAL_S, Event())
        if not self.adler32s:
            self._remove_folders(client, list(self._folders), stop)
            self._remove_folders(client, [self.folder], stop)

    def _remove_folders(self, client: StorageClient, urls: List[str], stop: Event) -> None:
        """Remove folders, of which each server behind a redirector may have its own."""
        limit_s = FOLDER_REMOVAL_S
        if was_stopped := stop.is_set():
            limit_s, stop = STOPPED_REMOVAL_S, Event()
        end = time.monotonic() + limit_s
        while urls and (left_s := end - time.monotonic()) > 0:
            folders = [Operation(0.0, RMDIR, 0, LoadFile(url)) for url in urls]
            ended = _perform_all(client, folders, left_s, stop, self.observe)
            removed = [operation.file.url for operation, failure in ended if not failure]
            urls = [] if was_stopped else [url for url in removed if client.has_copy(url)]

    def _remove_files(self, client: StorageClient, limit_s: float, stop: Event) -> int:
        """Remove files once; return how many were removed."""
        files = [Operation(0.0, DELETE, 0, LoadFile(url)) for url in self.adler32s]
        ended = _perform_all(client, files, limit_s, stop, self.observe)
        removed = sum(not failure for _, failure in ended)
        self.removed += removed
        return removed


def _perform_all(
    client: StorageClient,
    operations: Iterable[Operation],
    limit_s: float,
    stop: Event,
    observe: Callable[[Flight, str], None],
    ceiling: CeilingShare = NO_CEILING,
) -> List[Tuple[Operation, str]]:
    """Perform operations, several at a time; return those that ended, with their failures."""
    ended: List[Tuple[Operation, str]] = []

    def note(flight: Flight, failure: str) -> None:
        observe(flight, failure)
        ended.append((flight.operation, failure))

    lanes = min(PARALLEL, client.clients)
    all_operations = list(operations)
    sequences = [
        iter([operation._replace(client=lane) for operation in all_operations[lane::lanes]])
        for lane in range(lanes)
    ]
    _perform_sequences(client, sequences, limit_s, stop, note, ceiling)
    return ended


def _perform_sequences(
    client: StorageClient,
    sequences: Sequence[Iterator[Operation]],
    limit_s: float,
    stop: Event,
    observe: Callable[[Flight, str], None],
    ceiling: CeilingShare,
) -> bool:
    """Perform the operations of each client in order; return whether all came to their ends."""
    steps = StepClock(limit_s, 0)
    recorder = Recorder(steps, len(sequences), observe=observe)
    timer = LoadTimer(time.monotonic(), stop)
    driver = ClosedLoopDriver(client, recorder, steps, timer, ceiling)
    with LoadWatchdog(
        limit_s + GRACE_S, f"operations before or after the load took over {limit_s:g} s"
    ):
        driver.run_loop(ClosedLoop(sequences), limit_s, patience_s=0.0)
    return driver.is_complete


def perform_reads_before(
    client: StorageClient,
    sequences: Sequence[Iterator[Operation]],
    stop: Event,
    ceiling: CeilingShare,
) -> None:
    """Perform reads that come before a load, those of each client in order.

    Raises:
        PayloadError: one failed, or they took too long.
    """
    failures: List[Tuple[Operation, str]] = []

    def note(flight: Flight, failure: str) -> None:
        if failure:
            failures.append((flight.operation, failure))

    is_complete = _perform_sequences(client, sequences, PREPARATION_S, stop, note, ceiling)
    if stop.is_set() or (is_complete and not failures):
        return
    message = f"the reads before the load took longer than {PREPARATION_S:g} s"
    if failures:
        operation, failure = failures[0]
        message = f"{operation.name} {operation.file.url} before the load: {failure}"
    raise PayloadError("open", failures[0][1] if failures else "timeout", "setup", message)
