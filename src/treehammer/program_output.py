"""Output besides the terminal: files, binary standard output, logs, and notification of systemd.

Files are private to their owner, or replaced only when complete. systemd learns readiness, status and
that the watchdog need not act (``Type=notify``; see sd_notify(3)).
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from treehammer.collectors.shared_files import find_target, read_document
from treehammer.errors import ConfigError, StoreError, TreehammerError

_LOG = logging.getLogger("treehammer")
_MODE = 0o600
#: Formats of a line: for people, or a JSON object for programs.
TEXT_FORMAT, JSON_FORMAT = LOG_FORMATS = "text", "json"
#: Attributes of every record; others were given by the caller and become fields.
_COMMON_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_WRONG_PLACES = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
#: Seconds between two reports of the status without a watchdog.
STATUS_INTERVAL_S = 5.0
#: Reports per watchdog period, so that a delayed one does not end the service.
REPORTS_PER_PERIOD = 3


def create_private_file(path: Path) -> int:
    """Create a file with mode 0600, and return its descriptor for writing.

    A umask could only take permissions from the mode, also those of the owner: it is set again.

    Raises:
        FileExistsError: the file exists.
        OSError: it cannot be created.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        os.fchmod(descriptor, _MODE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_private(path: Path) -> bool:
    """Return whether only the owner of a file can read it."""
    return not path.stat().st_mode & 0o077


def read_document_text(
    path: Path, error: type[TreehammerError], hint: str = "", *, name: str = ""
) -> str:
    """Read the text of a document that a person wrote, called ``name`` in messages; by its path by default.

    Raises:
        TreehammerError: of the given type; ``hint`` is the remedy if the file cannot be read.
    """
    where = name or str(path)
    try:
        return read_document(path)
    except OSError as cause:
        raise error(f"cannot be read ({cause.strerror})", where=where, hint=hint) from cause
    except ValueError as cause:
        raise error(f"cannot be read ({cause})", where=where) from cause


def read_secret_file(setting: str, path: Path | None) -> str:
    """Read the secret in the file of a setting; '' without a file.

    Raises:
        ConfigError: it cannot be read, or is empty.
    """
    if path is None:
        return ""
    where = f"{setting} {path}"
    secret = read_document_text(path, ConfigError, name=where).strip()
    if not secret:
        raise ConfigError("is empty", where=where)
    if not is_private(path):
        _warn_of_readable_secret(path)
    return secret


@cache
def _warn_of_readable_secret(path: Path) -> None:
    """Warn of a secret that other users can read, once for each file."""
    _LOG.warning("warning: other users can read %s: run chmod 600 %s", path, path)


@contextmanager
def replace_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces ``target`` on success and is deleted otherwise.

    Raises:
        TreehammerError: the file cannot be written.
    """
    with explain_write_errors(target, "The measurements are safe in the database."):
        file = Path(f"{find_target(target)}.{os.getpid()}.tmp")
        try:
            yield file
            file.replace(find_target(target))
        finally:
            file.unlink(missing_ok=True)


@contextmanager
def explain_write_errors(target: Path | str, hint: str = "") -> Iterator[None]:
    """Explain that a file or folder, which the user or the configuration names, cannot be written.

    Raises:
        ConfigError: the place is wrong, or not permitted.
        StoreError: any other reason, such as a full device.
    """
    try:
        yield
    except OSError as error:
        is_wrong = isinstance(error, _WRONG_PLACES) or error.errno in (errno.EROFS, errno.EINVAL)
        message = f"cannot be written ({error.strerror or error})"
        kind = ConfigError if is_wrong else StoreError
        raise kind(message, where=str(target), hint=hint) from error


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
        fields |= {key: item for key, item in vars(record).items() if key not in _COMMON_ATTRIBUTES}
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
    form = logging.Formatter("%(asctime)sZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    handler.setFormatter(JsonFormatter() if line_format == JSON_FORMAT else form)
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False


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
        # Only the service needs it, and loading it takes a fifth of the time of --help.
        import asyncio

        while self._address:
            if is_alive():
                status = " ".join(describe_failure().split()) or "accepting measurements"
                self.notify("WATCHDOG=1", f"STATUS={status}")
            await asyncio.sleep(self._interval_s)
