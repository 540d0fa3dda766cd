"""Counters that ROOT's readers print: lines ``RNTupleReader.RPageSourceFile.nReadV|unit|meaning|value``.

A job exports them by ``reader.EnableMetrics()`` and ``reader.PrintInfo(kMetrics)``.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from typing import Any, Dict, List

_LINE = re.compile(rb"^(RNTuple\w+(?:\.\w+)+)\|([^|]*)\|([^|]*)\|(-?[\d.]+(?:e[-+]?\d+)?)$")
#: Beginnings of the names of rates and ratios, which do not add up.
_RATES = ("bw", "rt")
_MAX_COUNTERS = 200
_MAX_LINE = 4096


class OutputReader:
    """Passes a command's output on, line by line, and notes the counters in it.

    Attributes:
        descriptor: the command's standard output; its own copy is closed by :meth:`finish`.
    """

    def __init__(self) -> None:
        self._source, self.descriptor = os.pipe()
        self._counters: Dict[str, Dict[str, Any]] = {}
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        rest = b""
        while True:
            chunk = os.read(self._source, 65536)
            if not chunk:
                break
            with suppress(OSError):  # nobody reads: the command shall end as it would
                os.write(1, chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_MAX_LINE:]
            for line in lines:
                if line.startswith(b"RNTuple"):
                    self._add(line)
        os.close(self._source)

    def _add(self, line: bytes) -> None:
        match = _LINE.match(line.strip())
        if match is None or len(self._counters) >= _MAX_COUNTERS:
            return
        name, unit, meaning, text = (part.decode("utf-8", "replace") for part in match.groups())
        counter = self._counters.setdefault(
            name, {"name": name, "unit": unit, "meaning": meaning, "value": 0.0, "readers": 0}
        )
        counter["readers"] += 1
        counter["value"] += float(text)

    def finish(self) -> List[Dict[str, Any]]:
        """Return the counters, summed over all readers that printed them; call it when all have ended."""
        os.close(self.descriptor)
        self._thread.join()
        return [
            counter
            for counter in self._counters.values()
            if counter["readers"] == 1 or not short_name(counter["name"]).startswith(_RATES)
        ]


def short_name(name: str) -> str:
    """Return the last word of a counter's name."""
    return name.rpartition(".")[2]


def metric_name(name: str) -> str:
    """Return the name by which a test declares a counter as a metric: ``sz_read_payload``."""
    return re.sub(r"(?<=.)(?=[A-Z])", "_", short_name(name)).lower()
