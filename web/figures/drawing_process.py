"""Figures as files, drawn by subprocesses and cached."""

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

#: Files drawn at the same time; other requests wait.
MAX_DRAWING_PROCESSES = 2
#: Maximum duration of drawing one file, in seconds.
DRAWING_TIMEOUT_S = 60
#: Maximum total size of cached files.
MAX_CACHED_BYTES = 32_000_000


class FigureFiles:
    """Draws files with :mod:`treehammer.web.figures.drawing` and caches the latest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, bytes] = OrderedDict()

    def draw_file(self, form: str, drawing: Mapping[str, Any]) -> bytes:
        """Draw a file, or return it from the cache.

        Args:
            form: one of :data:`treehammer.web.figures.drawing.FIGURE_FORMATS`.
            drawing: input of the subprocess, serializable as JSON.

        Raises:
            RequestRefusedError: drawing failed or timed out.
        """
        text = json.dumps(drawing, sort_keys=True).encode()
        key = f"{form} {hashlib.sha256(text).hexdigest()}"
        with self._lock:
            if key in self._cached:
                self._cached.move_to_end(key)
                return self._cached[key]
        content = _run_drawing(form, text)
        with self._lock:
            self._cached[key] = content
            while sum(map(len, self._cached.values())) > MAX_CACHED_BYTES and len(self._cached) > 1:
                self._cached.popitem(last=False)
        return content


def _run_drawing(form: str, text: bytes) -> bytes:
    words = [sys.executable, "-P", "-m", "treehammer.web.figures.drawing", form]
    try:
        process = subprocess.run(
            words, input=text, capture_output=True, timeout=DRAWING_TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired:
        _LOG.warning("drawing a figure took longer than %d s", DRAWING_TIMEOUT_S)
        raise service_unavailable(
            "drawing the figure took too long; choose a smaller one"
        ) from None
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", b"") or b""
        _LOG.error("drawing a figure failed: %s %s", error, output.decode(errors="replace")[-500:])
        raise RequestRefusedError(
            500, f"drawing the figure as {form} failed; see the service's log"
        ) from None
    return process.stdout
