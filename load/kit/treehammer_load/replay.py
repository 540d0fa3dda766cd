"""Replay of a recording: its operations at the recorded instants, however the storage responds."""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from threading import Lock
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Sequence, Set, Tuple

from ....collectors.kit.treehammer_kit.payload_task import PayloadError
from ....collectors.record.latency_histograms import LatencyHistogram
from ....collectors.record.xrootd_recording import (
    FIGURES_NAME,
    RECORDING_NAME,
    RecordedOperation,
    parse_recording,
)
from ....collectors.shared_files import local_path
from .load_task import LoadTask
from .operation import Flight, LoadFile, Operation, make_load_error
from .workloads import LoadSpan

#: Operations that are replayed; those that change files are left out.
REPLAYED = frozenset({"open", "stat", "read", "vector_read", "close"})
#: Largest factor of speed.
MAX_FACTOR = 1000.0
#: Separates the two texts of the setting ``replace``, as in xrdreplay.
_REPLACE_SIGN = ":="
#: Time limit of each request that fetches the recording.
_FETCH_S = 120
_PHASES = ("initialise_s", "io_s", "waiting_s", "compute_s")


class Recording(NamedTuple):
    """Operations that can be replayed, the number of the others, and the recording's figures."""

    operations: Sequence[RecordedOperation]
    skipped: int
    figures: Mapping[str, Any]


class Replay:
    """Replayed operations at their instants, and figures of the replay.

    Args:
        recording: the recording.
        urls: URL of each file to open, by its recorded URL.
        clients: number of clients, each of which performs all operations.
        factor: speed: 2 replays in half of the time.
        start_s: instant of the first operation.
    """

    def __init__(
        self,
        recording: Recording,
        urls: Mapping[str, str],
        clients: int,
        factor: float,
        start_s: float,
    ) -> None:
        self._recording, self._urls = recording, urls
        self._clients, self._factor, self._start_s = clients, factor, start_s
        operations = recording.operations
        self._recorded_start_s = operations[0].start_s
        self._recorded_s = max(operation.end_s for operation in operations) - self._recorded_start_s
        self._errors = LatencyHistogram()
        self._spent_s = self._last_end_s = 0.0
        self._lock = Lock()

    @property
    def end_s(self) -> float:
        """Instant at which the last recorded operation ended."""
        return self._start_s + self._recorded_s / self._factor

    @property
    def operations(self) -> Iterator[Operation]:
        """All operations of all clients, in the order of their instants."""
        files: Dict[int, LoadFile] = {}
        for recorded in self._recording.operations:
            due_s = self._start_s + (recorded.start_s - self._recorded_start_s) / self._factor
            if recorded.name == "open":
                files[recorded.handle] = LoadFile(self._urls[recorded.url])
            chunks = recorded.chunks if recorded.bytes else ()
            for client in range(self._clients):
                yield Operation(
                    due_s,
                    recorded.name,
                    client,
                    files[recorded.handle],
                    chunks,
                    handle=recorded.handle,
                )

    def observe(self, flight: Flight, now_s: float) -> None:
        """Note when an operation was sent and when it ended."""
        operation = flight.operation
        with self._lock:
            self._last_end_s = max(self._last_end_s, now_s)
            if flight.sent_s is None:
                return
            released_s = flight.sent_s if flight.released_s is None else flight.released_s
            self._errors.record(released_s - operation.due_s)
            self._spent_s += now_s - released_s

    def summarize(self) -> Dict[str, float]:
        """Compare the replay with the recording; times of several clients are averaged."""
        replayed_s = max(self._last_end_s - self._start_s, 0.0)
        recorded_spent_s = sum(
            operation.end_s - operation.start_s for operation in self._recording.operations
        )
        figures = {
            name: self._recording.figures[name]
            for name in _PHASES
            if self._recording.figures.get(name) is not None
        }
        figures.update(
            recorded_s=self._recorded_s,
            replayed_s=replayed_s,
            time_ratio=replayed_s * self._factor / max(self._recorded_s, 1e-6),
            recorded_operations_s=recorded_spent_s,
            replayed_operations_s=self._spent_s / self._clients,
            skipped_operations=float(self._recording.skipped),
        )
        if self._errors.count:
            for name, fraction in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                figures[f"timing_error_{name}_s"] = self._errors.quantile(fraction)
        return figures


def replay_recording(task: LoadTask, span: LoadSpan) -> Replay:
    """Replay a recording by each of ``clients`` clients, ``factor`` times as fast.

    Raises:
        PayloadError: the dataset is not a recording, or its files are not at this door.
    """
    clients = task.read_clients()
    factor = task.read_number("factor", 1.0, (0, MAX_FACTOR))
    recording = _load_recording(tuple(task.files))
    opened = dict.fromkeys(
        operation.url for operation in recording.operations if operation.name == "open"
    )
    return Replay(recording, map_urls(list(opened), task, recording), clients, factor, span.start_s)


def load_recording(task: LoadTask) -> Iterator[Operation]:
    """Fetch the recording before the load; there is no operation to perform.

    Raises:
        PayloadError: the dataset is not a recording, it cannot be read, or this door cannot replay it.
    """
    if not task.url.partition("://")[0].endswith(("root", "roots")):
        raise PayloadError(
            "open", "not-supported", "setup", f"a replay needs a door with root://, not {task.url}"
        )
    _load_recording(tuple(task.files))
    return iter(())


@lru_cache(maxsize=1)
def _load_recording(files: Tuple[LoadFile, ...]) -> Recording:
    """Fetch the recording of a dataset and choose the operations that can be replayed."""
    by_name = {file.url.rpartition("/")[2]: file for file in files}
    if RECORDING_NAME not in by_name:
        raise make_load_error(
            "this dataset is not a recording; make one with treehammer datasets add NAME FILE.csv"
        )
    try:
        figures = json.loads(_fetch(by_name[FIGURES_NAME])) if FIGURES_NAME in by_name else {}
        operations = parse_recording(_fetch(by_name[RECORDING_NAME]).splitlines(keepends=True))
        replayed = list(_choose_operations(operations))
    except (ValueError, IndexError) as error:
        raise make_load_error(f"{by_name[RECORDING_NAME].url}: {error}") from error
    if not replayed:
        raise make_load_error("nothing to replay: no file of this recording was opened and read")
    return Recording(replayed, len(operations) - len(replayed), figures)


def _choose_operations(operations: Sequence[RecordedOperation]) -> Iterator[RecordedOperation]:
    """Choose operations that read, on files that could be opened for reading."""
    readable: Set[int] = set()
    for operation in operations:
        if not operation.succeeded:
            continue
        if operation.name == "open" and not operation.writes:
            readable.add(operation.handle)
        if operation.handle in readable and _reaches_storage(operation):
            yield operation


def _reaches_storage(operation: RecordedOperation) -> bool:
    """Return whether an operation is replayed, and asks the server for anything."""
    # The client answers such a stat itself, from the response to the open, inside the call: its
    # callback would hold the lock of the file.
    is_local = operation.name == "stat" and operation.arguments.startswith("false")
    is_empty = operation.name in ("read", "vector_read") and not operation.bytes > 0
    return operation.name in REPLAYED and not is_local and not is_empty


def _fetch(file: LoadFile) -> str:
    """Fetch a small text file, and compare its checksum."""
    path = local_path(file.url)
    try:
        if path is not None:
            with open(path, "rb") as stream:
                content = stream.read()
        else:
            content = _fetch_by_xrootd(file)
    except OSError as error:
        raise PayloadError("open", "missing", "setup", f"{file.url}: {error}") from error
    if file.adler32 not in (None, zlib.adler32(content)):
        raise PayloadError(
            "open", "checksum", "setup", f"{file.url} differs from its manifest: place it again"
        )
    return content.decode("utf-8-sig")


def _fetch_by_xrootd(file: LoadFile) -> bytes:
    from XRootD import client  # type: ignore[import-untyped,unused-ignore]

    source, limit = client.File(), {"timeout": _FETCH_S}
    status, _ = source.open(file.url, **limit)
    if status.ok:
        status, content = source.read(0, file.size, **limit)
        source.close(**limit)
    if not status.ok:
        raise OSError(status.message.strip())
    return bytes(content)


def map_urls(recorded: Sequence[str], task: LoadTask, recording: Recording) -> Dict[str, str]:
    """Map recorded URLs to files at this test's door.

    The setting ``replace`` (``FROM:=TO``) replaces the beginning of each URL; without it the door
    of the recording is replaced by this one.

    Raises:
        PayloadError: a file is not at the door, which alone has permitted the load.
    """
    old, new = _find_replacement(task, recording)
    replaces = bool(old and new)
    mapped = {
        url: new + url[len(old) :] if replaces and url.startswith(old) else url for url in recorded
    }
    door = _find_server(task.url)
    for url in mapped.values():
        if _find_server(url) != door:
            raise make_load_error(
                f"{url} is not at {door or 'this path'}, the door of this test: choose the door of "
                f"the recording, or set settings.replace = 'FROM{_REPLACE_SIGN}TO'"
            )
    return mapped


def _find_replacement(task: LoadTask, recording: Recording) -> Tuple[str, str]:
    """Return the beginning of recorded URLs, and its replacement; '' where one is unknown."""
    replace = str(task.settings.get("replace", ""))
    if not replace:
        process = recording.figures.get("process") or {}
        return process.get("door_url") or "", task.door_url
    old, _, new = replace.partition(_REPLACE_SIGN)
    if not (old and new):
        raise make_load_error(f"settings.replace = {replace!r}: expected FROM{_REPLACE_SIGN}TO")
    return old, new


def _find_server(url: str) -> str:
    """Return protocol and server of a URL; '' for a path."""
    scheme, separator, address = url.partition("://")
    return f"{scheme}://{address.partition('/')[0]}" if separator else ""
