"""Counts of a load at an XCache: its ``.cinfo`` files, and the file_close records of its ``pfc`` stream."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from ....collectors import cache_counts
from ....collectors.cache_counts import CacheCounter, find_block
from ....collectors.cache_info import Chunk, ReadCounts
from ....collectors.json_documents import decode_json

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
                yield _read_close(record)
        except (ValueError, KeyError, TypeError):
            continue


def _read_close(record: Mapping[str, Any]) -> FileClose:
    names = ("b_hit", "b_miss", "b_bypass", "b_todisk")
    counts = ReadCounts(*(int(record[name]) for name in names))
    prefetched = int(record.get("b_prefetch", 0))
    return FileClose(str(record["lfn"]), int(record["blk_size"]), counts, prefetched)


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

    def end(self, asked: int) -> Dict[str, float]:
        """Return the figures of the load, without those that could not be counted.

        Args:
            asked: bytes that the load's clients read.
        """
        figures = self._summarize_infos(asked)
        if self._listener:
            stream = self._summarize_stream(asked, _STREAM_S if figures else cache_counts.SETTLE_S)
            figures = {**stream, **figures}
        return figures

    def close(self) -> None:
        """Stop listening."""
        if self._listener:
            self._listener.close()
        self._listener = None

    def _summarize_infos(self, asked: int) -> Dict[str, float]:
        infos = self.await_end()
        if infos is None:
            return {}
        figures = _make_figures(self.subtract_before(infos), find_block(infos), asked)
        stored_bytes = sum(
            info.count_stored(self._chunks[path]) for path, info in self.before.items()
        )
        requested = sum(size for pieces in self._chunks.values() for _, size in pieces)
        return {**figures, "stored_share": stored_bytes / max(requested, 1)}

    def _summarize_stream(self, asked: int, limit_s: float) -> Dict[str, float]:
        closes = self._await_closes(self._closes_before, limit_s)[self._closes_before :]
        if {close.path for close in closes} < set(self.paths):
            print("treehammer_load: the pfc stream of the cache lacks records", flush=True)
            return {}
        total = ReadCounts()
        for close in closes:
            total = total.plus(close.counts)
        block = max(close.block for close in closes)
        figures = _make_figures(total, block, asked)
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


def _make_figures(counts: ReadCounts, block: int, asked: int) -> Dict[str, float]:
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
    if asked:
        figures["fetch_ratio"] = counts.fetched / asked
    return figures


def _listen(address: str) -> Optional[StreamListener]:
    if not address:
        return None
    try:
        return StreamListener(address)
    except (OSError, ValueError, OverflowError) as error:
        print(f"treehammer_load: no pfc stream at {address}: {error}", flush=True)
        return None
