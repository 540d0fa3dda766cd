"""Counts of an XCache: its ``.cinfo`` files and the file_close records of its ``pfc`` stream.

Both count the bytes of one access, from the first open of a file to its last close, by origin: from
the cache (hit), fetched and stored meanwhile (missed), fetched and dropped (bypassed).  A ``.cinfo``
also has one bit for each block that is stored.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import unquote, urlsplit

from .cache_info import CacheInfo, Chunk, ReadCounts, parse_cache_info
from .json_documents import decode_json

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


#: Seconds until a cache has closed and counted the files of a load, and between two looks.  5.5.3 closes
#: a file that it still fetched ahead of the reads after 30 s, 5.8.1 and 6.2.0 after 10.
SETTLE_S, _POLL_S = 40.0, 0.3
#: Seconds until the stream tells of files whose counts are written.
_STREAM_S = 5.0
_MB = 1e6


class CacheCounter:
    """Counts a load's reads at the cache behind its door.

    Args:
        cache: keys ``files`` and ``monitor`` of the door's cache; empty for none.
        chunks: URL of each file that the load reads -> the pieces that it reads.
    """

    def __init__(self, cache: Mapping[str, Any], chunks: Mapping[str, Sequence[Chunk]]) -> None:
        self._chunks = {
            "/" + unquote(urlsplit(url).path).lstrip("/"): pieces for url, pieces in chunks.items()
        }
        self._paths = list(self._chunks)
        self._folder = str(cache.get("files") or "")
        if self._folder and not os.path.isdir(self._folder):
            print(f"treehammer_load: this job does not see the cache's {self._folder}", flush=True)
            self._folder = ""
        self._before: Dict[str, CacheInfo] = {}
        self._closes_before = 0
        self._listener = _listen(str(cache.get("monitor") or ""))

    def begin(self, *, is_primed: bool) -> None:
        """Note the state before the load, when the cache has closed the files that were read before."""
        infos = self._await_infos({}, complete=is_primed) if self._folder else None
        self._before = infos or {}
        if self._listener:
            limit_s = SETTLE_S if infos is None else _STREAM_S
            self._closes_before = len(self._await_closes(0, limit_s if is_primed else 0.0))
            if is_primed and not self._closes_before:
                print("treehammer_load: the cache sends no pfc stream", flush=True)
                self.close()

    def end(self, asked: int) -> Dict[str, float]:
        """Return the figures of the load, without those that could not be counted.

        Args:
            asked: bytes that the load's clients read.
        """
        figures = self._summarize_infos(asked) if self._folder else {}
        if self._listener:
            stream = self._summarize_stream(asked, _STREAM_S if figures else SETTLE_S)
            figures = {**stream, **figures}
        return figures

    def close(self) -> None:
        """Stop listening."""
        if self._listener:
            self._listener.close()
        self._listener = None

    def count_bytes(self) -> Dict[str, int]:
        """Return the values of the catalogue since :meth:`begin`; empty if they are unknown."""
        infos = self._await_infos(self._before, complete=True) if self._folder else None
        if infos is None:
            return {}
        total = self._subtract_before(infos)
        return {
            "server_cache_stored_bytes": sum(info.counts.stored for info in self._before.values()),
            "server_cache_asked_bytes": total.hit + total.missed + total.bypassed,
            "server_cache_fetched_bytes": total.fetched,
            "cache_block_kib": _find_block(infos) // 1024,
        }

    def _subtract_before(self, infos: Mapping[str, CacheInfo]) -> ReadCounts:
        """Sum the counts of all files since :meth:`begin`."""
        total = ReadCounts()
        for path, info in infos.items():
            before = self._before.get(path)
            total = total.plus(info.counts).plus(before.counts if before else ReadCounts(), -1)
        return total

    def _summarize_infos(self, asked: int) -> Dict[str, float]:
        infos = self._await_infos(self._before, complete=True)
        if infos is None:
            return {}
        figures = _make_figures(self._subtract_before(infos), _find_block(infos), asked)
        stored_bytes = sum(
            info.count_stored(self._chunks[path]) for path, info in self._before.items()
        )
        requested = sum(size for pieces in self._chunks.values() for _, size in pieces)
        return {**figures, "stored_share": stored_bytes / max(requested, 1)}

    def _summarize_stream(self, asked: int, limit_s: float) -> Dict[str, float]:
        closes = self._await_closes(self._closes_before, limit_s)[self._closes_before :]
        if {close.path for close in closes} < set(self._paths):
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

    def _await_infos(
        self, before: Mapping[str, CacheInfo], *, complete: bool
    ) -> Optional[Dict[str, CacheInfo]]:
        """Wait until all files have ended a new access, twice with the same counts; None if never.

        Without ``complete`` files may be missing, but those that exist must be closed.
        """
        last: Optional[Dict[str, CacheInfo]] = None
        problem, deadline = "", time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            infos, problem = self._read_infos()
            missing = [
                path for path in self._paths if complete and not _is_new(path, infos, before)
            ]
            opened = [path for path, info in infos.items() if info.is_open]
            if not problem and not missing and not opened:
                if infos == last:
                    return infos
                last = infos
            else:
                problem, last = problem or f"{[*missing, *opened][0]} is not closed", None
            time.sleep(_POLL_S)
        print(f"treehammer_load: no counts of the cache in {self._folder}: {problem}", flush=True)
        return None

    def _read_infos(self) -> Tuple[Dict[str, CacheInfo], str]:
        infos, problem = {}, ""
        for path in self._paths:
            try:
                with open(f"{self._folder}{path}.cinfo", "rb") as stream:
                    infos[path] = parse_cache_info(stream.read())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problem = f"{path}.cinfo: {error}"
        return infos, problem

    def _await_closes(self, number: int, limit_s: float) -> List[FileClose]:
        """Wait until records beyond a number name all files, and no further one comes."""
        assert self._listener is not None
        deadline, last = time.monotonic() + limit_s, -1
        while True:
            closes = self._listener.take()
            covers_all = {close.path for close in closes[number:]} >= set(self._paths)
            if (covers_all and len(closes) == last) or time.monotonic() > deadline:
                return closes
            last = len(closes)
            time.sleep(_POLL_S)


def _find_block(infos: Mapping[str, CacheInfo]) -> int:
    return max(info.block for info in infos.values())


def _is_new(path: str, infos: Mapping[str, CacheInfo], before: Mapping[str, CacheInfo]) -> bool:
    """Return whether a file was accessed since a state before; a new file counts from 0."""
    return path in infos and infos[path].accesses > (before[path].accesses if path in before else 0)


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
