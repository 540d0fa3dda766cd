"""Figures as files: drawn by a process of their own, and kept."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from treehammer.web.core.responses import RequestRefusedError, service_unavailable

_LOG = logging.getLogger("treehammer.service")

#: Drawn at a time, whatever they are of; others wait.
MAX_DRAWING_PROCESSES = 2
#: Seconds that one may take.
DRAWING_TIMEOUT_S = 60
#: Bytes of files that are kept.
MAX_CACHED_BYTES = 32_000_000


class FigureFiles:
    """Makes files with :mod:`treehammer.web.figures.drawing`, and remembers the latest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def draw_file(self, form: str, wanted: Mapping[str, Any]) -> bytes:
        """The file.

        Args:
            form: one of :data:`treehammer.web.figures.drawing.FIGURE_FORMATS`.
            wanted: what the process reads, as JSON can hold it.

        Raises:
            Refusal: it could not be drawn, or not in time.
        """
        text = json.dumps(wanted, sort_keys=True).encode()
        key = f"{form} {hashlib.sha256(text).hexdigest()}"
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = _run_drawing(form, text)
        with self._lock:
            self._kept[key] = made
            while sum(map(len, self._kept.values())) > MAX_CACHED_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return made


def _run_drawing(form: str, text: bytes) -> bytes:
    words = [sys.executable, "-P", "-m", "treehammer.web.figures.drawing", form]
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, timeout=DRAWING_TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired:
        _LOG.warning("a figure was not drawn within %d s", DRAWING_TIMEOUT_S)
        raise service_unavailable("the figure is not drawn in time; choose a smaller one") from None
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or b""
        _LOG.error(
            "a figure could not be drawn: %s %s", error, said.decode(errors="replace")[-500:]
        )
        raise RequestRefusedError(
            500, f"the figure could not be made as {form}; the service's log says why"
        ) from None
    return done.stdout
