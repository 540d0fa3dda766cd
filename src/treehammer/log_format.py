"""Logs of programs that run unattended."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
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
