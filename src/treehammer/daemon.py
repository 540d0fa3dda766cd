"""Programs that run unattended: their logs, and notification of systemd.

systemd learns readiness, status and that the watchdog need not act (``Type=notify``; see sd_notify(3)).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

#: Formats of a line: for people, or a JSON object for programs.
TEXT_FORMAT, JSON_FORMAT = LOG_FORMATS = "text", "json"

#: Attributes of every record; others were given by the caller and become fields.
_COMMON_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with the fields that the caller gave as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        at = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {
            name: value for name, value in vars(record).items() if name not in _COMMON_ATTRIBUTES
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def log_to_stderr(
    level: int = logging.INFO,
    names: Iterable[str] = ("treehammer",),
    line_format: str = TEXT_FORMAT,
) -> None:
    """Log to standard error, each line with the time (UTC).

    Args:
        level: least severe level that is logged.
        names: loggers that do so, each with those below it.
        line_format: one of :data:`LOG_FORMATS`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if line_format == JSON_FORMAT else _make_text_formatter())
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False


def _make_text_formatter() -> logging.Formatter:
    form = logging.Formatter("%(asctime)sZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    return form


#: Seconds between two reports of the status without a watchdog.
STATUS_INTERVAL_S = 5.0
#: Reports per watchdog period, so that a delayed one does not end the service.
REPORTS_PER_PERIOD = 3


class SystemdNotifier:
    """Sends messages to systemd; does nothing if systemd did not start this process.

    Args:
        address: of systemd's socket; '' for none.
        interval_s: seconds between two reports.
    """

    def __init__(self, address: str = "", interval_s: float = STATUS_INTERVAL_S) -> None:
        # A leading @ stands for Linux's abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._interval_s = interval_s

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> SystemdNotifier:
        """Return the notifier that systemd requests from this process by its environment."""
        period_us = environ.get("WATCHDOG_USEC", "")
        is_watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval_s = STATUS_INTERVAL_S
        if is_watched and period_us.isdecimal() and int(period_us):
            interval_s = min(interval_s, int(period_us) / 1e6 / REPORTS_PER_PERIOD)
        return cls(environ.get("NOTIFY_SOCKET", ""), interval_s)

    def notify(self, *assignments: str) -> None:
        """Send assignments such as ``READY=1``; a failure has no consequence."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(assignments).encode(), self._address)

    async def report_forever(
        self, is_alive: Callable[[], bool], describe_failure: Callable[[], str]
    ) -> None:
        """Report the status, and to the watchdog that the event loop runs, until cancelled.

        Args:
            is_alive: whether everything without which the service is useless still runs.
            describe_failure: returns the reason why the service cannot work now, '' if it can.
        """
        while self._address:
            if is_alive():
                status = " ".join(describe_failure().split()) or "accepting measurements"
                self.notify("WATCHDOG=1", f"STATUS={status}")
            await asyncio.sleep(self._interval_s)
