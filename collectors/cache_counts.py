"""Counts of an XCache by its ``.cinfo`` files.

They count the bytes of one access, from the first open of a file to its last close, by origin: from
the cache (hit), fetched and stored meanwhile (missed), fetched and dropped (bypassed).
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import os
import time
from typing import Dict, Iterable, Mapping, Optional, Tuple
from urllib.parse import unquote, urlsplit

from .cache_info import CacheInfo, ReadCounts, parse_cache_info

#: Seconds until a cache has closed and counted the files of a load, and between two looks.  5.5.3 closes
#: a file that it still fetched ahead of the reads after 30 s, 5.8.1 and 6.2.0 after 10.
SETTLE_S, POLL_S = 40.0, 0.3


class CacheCounter:
    """Counts the reads of files at the cache behind their door.

    Args:
        folder: folder of the cache's files; '' if this job does not see it.
        urls: addresses of the files that are read.
    """

    def __init__(self, folder: str, urls: Iterable[str]) -> None:
        self.paths = ["/" + unquote(urlsplit(url).path).lstrip("/") for url in urls]
        self.folder = folder
        if folder and not os.path.isdir(folder):
            print(f"treehammer_load: this job does not see the cache's {folder}", flush=True)
            self.folder = ""
        self.before: Dict[str, CacheInfo] = {}

    def begin(self, *, is_primed: bool) -> bool:
        """Note the state before, when the cache has closed the files that were read until then.

        Returns:
            whether it is known.
        """
        infos = self._await_infos({}, complete=is_primed)
        self.before = infos or {}
        return infos is not None

    def await_end(self) -> Optional[Dict[str, CacheInfo]]:
        """Wait until the cache has counted a new access to each file; None if it does not."""
        return self._await_infos(self.before, complete=True)

    def count_bytes(self) -> Dict[str, int]:
        """Return the values of the catalogue since :meth:`begin`; empty if they are unknown."""
        infos = self.await_end()
        if infos is None:
            return {}
        total = self.subtract_before(infos)
        return {
            "server_cache_stored_bytes": sum(info.counts.stored for info in self.before.values()),
            "server_cache_asked_bytes": total.hit + total.missed + total.bypassed,
            "server_cache_fetched_bytes": total.fetched,
            "cache_block_kib": find_block(infos) // 1024,
        }

    def subtract_before(self, infos: Mapping[str, CacheInfo]) -> ReadCounts:
        """Sum the counts of all files since :meth:`begin`."""
        total = ReadCounts()
        for path, info in infos.items():
            before = self.before.get(path)
            total = total.plus(info.counts).plus(before.counts if before else ReadCounts(), -1)
        return total

    def _find_open(
        self, infos: Mapping[str, CacheInfo], before: Mapping[str, CacheInfo], *, complete: bool
    ) -> str:
        """Describe a file without an ended new access; '' if there is none."""
        paths = [path for path, info in infos.items() if info.is_open]
        for path in self.paths if complete else ():
            accesses = before[path].accesses if path in before else 0
            if path not in infos or infos[path].accesses <= accesses:
                paths.append(path)
        return f"{paths[0]} is not closed" if paths else ""

    def _await_infos(
        self, before: Mapping[str, CacheInfo], *, complete: bool
    ) -> Optional[Dict[str, CacheInfo]]:
        """Wait until all files have ended a new access, twice with the same counts; None if never.

        Without ``complete`` files may be missing, but those that exist must be closed.
        """
        if not self.folder:
            return None
        last: Optional[Dict[str, CacheInfo]] = None
        problem, deadline = "", time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            infos, problem = self._read_infos()
            problem = problem or self._find_open(infos, before, complete=complete)
            if problem:
                last = None
            elif infos == last:
                return infos
            else:
                last = infos
            time.sleep(POLL_S)
        print(f"treehammer_load: no counts of the cache in {self.folder}: {problem}", flush=True)
        return None

    def _read_infos(self) -> Tuple[Dict[str, CacheInfo], str]:
        infos, problem = {}, ""
        for path in self.paths:
            try:
                with open(f"{self.folder}{path}.cinfo", "rb") as stream:
                    infos[path] = parse_cache_info(stream.read())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problem = f"{path}.cinfo: {error}"
        return infos, problem


def find_block(infos: Mapping[str, CacheInfo]) -> int:
    """Find the bytes of the largest block."""
    return max(info.block for info in infos.values())
