"""Reading a tree, as a benchmark of asv with its default settings."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _open_loop() -> Any:
    # asv imports the suite by itself, inside ROOT's Python.
    sys.path.insert(0, str(Path(os.environ["PEER_FOLDER"])))
    from read_loop import ReadLoop  # type: ignore[import-not-found]  # noqa: PLC0415, RUF100

    return ReadLoop(os.environ["PEER_URL"])


class Reading:
    def setup(self) -> None:
        self.loop = _open_loop()

    def time_read(self) -> None:
        self.loop.read()
