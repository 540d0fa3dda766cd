"""Notification of systemd: readiness, status and watchdog (``Type=notify``; see sd_notify(3))."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

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
