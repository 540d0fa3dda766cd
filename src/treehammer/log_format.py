"""Logs of programs that run unattended."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable


def log_to_stderr(level: int = logging.INFO, names: Iterable[str] = ("treehammer",)) -> None:
    """Log to standard error in lines that start with the time (UTC).

    Args:
        level: least severe level that is logged.
        names: loggers that do so, each with those below it.
    """
    handler = logging.StreamHandler()
    form = logging.Formatter("%(asctime)sZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    handler.setFormatter(form)
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
