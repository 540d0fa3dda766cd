"""Workload of the test ``cache-read``: whole files, or a fraction of their blocks without repeats.

Each file is divided into blocks, which a seeded permutation orders.  A fraction reads the first ones,
so that 0.9 reads 90 % of the bytes.  Files of a cache that was emptied are read before, in part
or whole, as the axis ``server_cache`` requires, and the cache's own counts become figures: those of its
``.cinfo`` files, and of the file_close records of its ``pfc`` stream.
"""

from __future__ import annotations

import math
import random
import socket
import threading
import time
from itertools import chain
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from ....collectors import cache_counts
from ....collectors.cache_counts import CacheCounter, Chunk, ReadCounts, find_block
from ....collectors.job_spec import HALF, SERVER_CACHE_AXIS, WARM
from ....collectors.json_documents import decode_json
from ....collectors.record.operation_steps import CLOSE, COPY, OPEN, READ, READ_FILE
from .load_driver import ClosedLoop
from .load_task import GENERATOR, LoadTask
from .operation import LoadFile, Operation
from .payload import LoadOutcome, perform_load
from .workloads import MAX_SEQUENCE, LoadSpan

#: Seconds until the stream tells of files whose counts are written.
_STREAM_S = 5.0
_MB = 1e6
_EVENT = b'{"event":'
_MAX_PACKET_BYTES = 65_536


class FileClose(NamedTuple):
    """A record of the ``pfc`` stream about the end of an access to a file.

    Attributes:
        path: path of the file.
        block: bytes of a block.
        counts: of this access.
        prefetched: bytes that the cache fetched without a read.
    """

    path: str
    block: int
    counts: ReadCounts
    prefetched: int


def parse_stream_packet(packet: bytes) -> Iterator[FileClose]:
    """Iterate over the file_close records of a packet; packets of other streams have none."""
    for line in packet.replace(b"\0", b"\n").split(b"\n"):
        position = line.find(_EVENT)
        if position < 0:
            continue
        try:
            record = decode_json(line[position:])
            if record["event"] == "file_close":
                names = ("b_hit", "b_miss", "b_bypass", "b_todisk")
                counts = ReadCounts(*(int(record[name]) for name in names))
                prefetched = int(record.get("b_prefetch", 0))
                yield FileClose(str(record["lfn"]), int(record["blk_size"]), counts, prefetched)
        except (ValueError, KeyError, TypeError):
            continue


class StreamListener:
    """Receives the ``pfc`` stream of a cache until it is closed.

    Args:
        address: HOST:PORT on this node.

    Raises:
        OSError: nothing can be received there.
        ValueError: no such address.
    """

    def __init__(self, address: str) -> None:
        host, _, text = address.rpartition(":")
        port = int(text)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._lock = threading.Lock()
        self._closes: List[FileClose] = []
        try:
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(0.2)
        self._is_closed = False
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def take(self) -> List[FileClose]:
        """Return the records so far."""
        with self._lock:
            return list(self._closes)

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        self._thread.join()
        self._socket.close()

    def _receive(self) -> None:
        while not self._is_closed:
            try:
                packet = self._socket.recv(_MAX_PACKET_BYTES)
            except socket.timeout:
                continue
            with self._lock:
                self._closes.extend(parse_stream_packet(packet))


class LoadCacheCounter(CacheCounter):
    """Counts a load's reads at the cache behind its door.

    Args:
        cache: keys ``files`` and ``monitor`` of the door's cache; empty for none.
        chunks: URL of each file that the load reads -> the pieces that it reads.
    """

    def __init__(self, cache: Mapping[str, Any], chunks: Mapping[str, Sequence[Chunk]]) -> None:
        super().__init__(str(cache.get("files") or ""), chunks)
        self._chunks = dict(zip(self.paths, chunks.values()))  # noqa: B905  (Python 3.9)
        self._closes_before = 0
        self._listener = _listen(str(cache.get("monitor") or ""))

    def begin(self, *, is_primed: bool) -> bool:
        """Note the state before the load, when the cache has closed the files that were read before."""
        is_known = super().begin(is_primed=is_primed)
        if self._listener:
            limit_s = _STREAM_S if is_known else cache_counts.SETTLE_S
            self._closes_before = len(self._await_closes(0, limit_s if is_primed else 0.0))
            if is_primed and not self._closes_before:
                print("treehammer_load: the cache sends no pfc stream", flush=True)
                self.close()
        return is_known

    def end(self, read_bytes: int) -> Dict[str, float]:
        """Return the figures of the load, without those that could not be counted.

        Args:
            read_bytes: bytes that the load's clients read.
        """
        figures = self._summarize_infos(read_bytes)
        if self._listener:
            stream = self._summarize_stream(
                read_bytes, _STREAM_S if figures else cache_counts.SETTLE_S
            )
            figures = {**stream, **figures}
        return figures

    def close(self) -> None:
        """Stop listening."""
        if self._listener:
            self._listener.close()
        self._listener = None

    def _summarize_infos(self, read_bytes: int) -> Dict[str, float]:
        infos = self.await_end()
        if infos is None:
            return {}
        figures = _make_figures(self.subtract_before(infos), find_block(infos), read_bytes)
        stored_bytes = sum(
            info.count_stored(self._chunks[path]) for path, info in self.before.items()
        )
        requested = sum(size for pieces in self._chunks.values() for _, size in pieces)
        return {**figures, "stored_share": stored_bytes / max(requested, 1)}

    def _summarize_stream(self, read_bytes: int, limit_s: float) -> Dict[str, float]:
        closes = self._await_closes(self._closes_before, limit_s)[self._closes_before :]
        if {close.path for close in closes} < set(self.paths):
            print("treehammer_load: the pfc stream of the cache lacks records", flush=True)
            return {}
        total = ReadCounts()
        for close in closes:
            total = total.plus(close.counts)
        block = max(close.block for close in closes)
        figures = _make_figures(total, block, read_bytes)
        for name in ("hit", "miss", "bypass", "fetched"):
            figures[f"stream_{name}_mb"] = figures[f"{name}_mb"]
        figures["prefetched_mb"] = sum(close.prefetched for close in closes) / _MB
        return figures

    def _await_closes(self, number: int, limit_s: float) -> List[FileClose]:
        """Wait until records beyond a number name all files, and no further one comes."""
        assert self._listener is not None
        deadline, last = time.monotonic() + limit_s, -1
        while True:
            closes = self._listener.take()
            covers_all = {close.path for close in closes[number:]} >= set(self.paths)
            if (covers_all and len(closes) == last) or time.monotonic() > deadline:
                return closes
            last = len(closes)
            time.sleep(cache_counts.POLL_S)


def _make_figures(counts: ReadCounts, block: int, read_bytes: int) -> Dict[str, float]:
    read = counts.hit + counts.missed + counts.bypassed
    figures = {
        "hit_mb": counts.hit / _MB,
        "miss_mb": counts.missed / _MB,
        "bypass_mb": counts.bypassed / _MB,
        "fetched_mb": counts.fetched / _MB,
        "cache_block_kib": block / 1024,
    }
    if read:
        figures["hit_share"] = counts.hit / read
    if read_bytes:
        figures["fetch_ratio"] = counts.fetched / read_bytes
    return figures


def _listen(address: str) -> Optional[StreamListener]:
    if not address:
        return None
    try:
        return StreamListener(address)
    except (OSError, ValueError, OverflowError) as error:
        print(f"treehammer_load: no pfc stream at {address}: {error}", flush=True)
        return None


#: Ways of reading (axis ``pattern``): whole files, or a fraction of their blocks.
WHOLE, SPARSE = "copy", "sparse"
#: Bytes of a block where neither axis nor setting names any.
DEFAULT_BLOCK_KIB = 1024
#: Operations that read, of which one is the load's.
_READS = frozenset({READ, READ_FILE, COPY})


def choose_blocks(size: int, block: int, fraction: float, seed: str) -> List[Chunk]:
    """Choose blocks of a file that together are a fraction of its bytes, in random order.

    No block repeats.  The last block of a file may be short; the last one that is read is cut so
    that the number of bytes is exact, rounded up.
    """
    numbers = list(range(math.ceil(size / block)))
    random.Random(seed).shuffle(numbers)
    chunks: List[Chunk] = []
    remaining = min(math.ceil(round(size * fraction, 6)), size)
    for number in numbers:
        if not remaining:
            break
        length = min(block, size - number * block, remaining)
        chunks.append((number * block, length))
        remaining -= length
    return chunks


def choose_primed(chunks: Sequence[Chunk], state: str, size: int) -> List[Chunk]:
    """Choose what is read of a file before: all of it for ``warm``, for ``half`` the blocks of low offsets.

    A cache has nothing left to fetch ahead of a whole file, which would disturb the load and delay
    the cache's counts.  Neighbors share the blocks of a cache, so the lower half of the blocks
    is half of the cache's as well.
    """
    if state == WARM:
        length = DEFAULT_BLOCK_KIB * 1024
        return [(offset, min(length, size - offset)) for offset in range(0, size, length)]
    return sorted(chunks)[: (len(chunks) + 1) // 2] if state == HALF else []


class _Part(NamedTuple):
    """The part of a file that one client reads."""

    client: int
    file: LoadFile
    chunks: Sequence[Chunk]


class CachedReads:
    """Reads of one execution.

    Args:
        task: the execution.

    Attributes:
        pattern: :data:`WHOLE` or :data:`SPARSE`.
        state: of the cache before; '' for any.
    """

    def __init__(self, task: LoadTask) -> None:
        self.pattern = task.read_choice("pattern", (SPARSE, WHOLE))
        self.state = str(task.axes.get(SERVER_CACHE_AXIS, ""))
        fraction = task.read_number("fraction", 1.0, (0, 1))
        block = task.read_block() or DEFAULT_BLOCK_KIB * 1024
        clients = task.read_clients()
        self._task = task
        count = task.read_count("files", 1, MAX_SEQUENCE)
        first = task.index * clients * count
        by_file: Dict[int, List[int]] = {}
        for position in range(clients * count):
            number = (first + position) % len(task.files)
            by_file.setdefault(number, []).append(position // count)
        self.parts: List[_Part] = []
        for number, members in by_file.items():
            file = task.files[number]
            # Seeded by the file alone: through every door, the same blocks are read.
            seed = f"{task.seed} {number} {block}"
            share = 1.0 if self.pattern == WHOLE else fraction
            chunks = choose_blocks(file.size, block, share, seed)
            self.parts += [
                _Part(client, file, chunks[place :: len(members)])
                for place, client in enumerate(members)
            ]
        self.parts.sort()

    @property
    def files(self) -> Sequence[LoadFile]:
        """The files that are read, each once."""
        return list(dict.fromkeys(part.file for part in self.parts))

    def list_chunks(self) -> Dict[str, List[Chunk]]:
        """List the pieces of each file that are read, by its URL."""
        chunks: Dict[str, List[Chunk]] = {}
        for part in self.parts:
            chunks.setdefault(part.file.url, []).extend(part.chunks)
        return chunks

    def list_preparations(self) -> List[Iterator[Operation]]:
        """List the reads of each client that come before the load."""
        parts = self.parts
        if self.state == WARM:  # by one of the clients that share a file
            parts = list({part.file: part for part in parts}.values())
        primed = [
            part._replace(chunks=choose_primed(part.chunks, self.state, part.file.size))
            for part in parts
        ]
        return self._sequence([part for part in primed if part.chunks], _read_chunks)

    def list_reads(self) -> List[Iterator[Operation]]:
        """List the reads of each client."""
        if self.pattern == SPARSE:
            return self._sequence(self.parts, _read_chunks)
        name = READ_FILE if self._task.client == GENERATOR else COPY
        return self._sequence(
            self.parts, lambda part: iter([Operation(0.0, name, part.client, part.file)])
        )

    @staticmethod
    def _sequence(
        parts: Sequence[_Part], read: Callable[[_Part], Iterator[Operation]]
    ) -> List[Iterator[Operation]]:
        """Let each client read its parts one after the other."""
        by_client: Dict[int, List[_Part]] = {}
        for part in parts:
            by_client.setdefault(part.client, []).append(part)
        return [chain.from_iterable(map(read, members)) for members in by_client.values()]


def _read_chunks(part: _Part) -> Iterator[Operation]:
    yield Operation(0.0, OPEN, part.client, part.file, keep=True)
    for chunk in part.chunks:
        yield Operation(0.0, READ, part.client, part.file, [chunk])
    # A cache counts the reads of a file when it is closed.
    yield Operation(0.0, CLOSE, part.client, part.file)


def read_through_cache(task: LoadTask) -> LoadOutcome:
    """Perform the load, and add the exact counts of clients and cache to its figures."""
    reads = CachedReads(task)
    counter = LoadCacheCounter(task.server_cache, reads.list_chunks())
    preparations = reads.list_preparations()

    def make_loop(_task: LoadTask, _span: LoadSpan) -> ClosedLoop:
        return ClosedLoop(reads.list_reads(), moves_files=reads.pattern == WHOLE)

    try:
        outcome = perform_load(
            task,
            make_loop,
            prepare_reads=preparations,
            begin=lambda: counter.begin(is_primed=bool(preparations)),
        )
        requested_bytes = sum(row["bytes"] for row in outcome.rows if row["operation"] in _READS)
        outcome.figures.update(
            asked_mb=requested_bytes / 1e6,
            asked_fraction=requested_bytes / sum(file.size for file in reads.files),
            **counter.end(requested_bytes),
        )
        block = outcome.figures.pop("cache_block_kib", None)
        outcome.values["cache_block_kib"] = None if block is None else round(block)
    finally:
        counter.close()
    return outcome
