"""Command ``python worker.pyz log FILE``: the calls in a complete server log as CSV."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .line_formats import FORMATS_BY_NAME, LineFormat, LogError, select_format
from .log_parser import decode_lines, parse_log, write_calls


def add_log_command(verbs: Any) -> None:
    """Add the command to a parser's sub-parsers."""
    verb = verbs.add_parser(
        "log",
        help="write the calls in a server's log as CSV",
        epilog="example: python worker.pyz log /var/log/xrootd/xrootd.log > calls.csv",
    )
    verb.add_argument("log", metavar="FILE", help="the server's log; - for standard input")
    verb.add_argument(
        "--format",
        default="xrootd",
        help=f"one of {', '.join(FORMATS_BY_NAME)}, or a JSON file with the keys of "
        "[settings.format] [default: xrootd]",
    )


def write_log_calls(options: argparse.Namespace) -> int:
    """Run the command; return the exit code.

    Raises:
        LogError: the log or its format cannot be used.
    """
    form = _find_format(options.format)
    if options.log == "-":
        write_calls(parse_log(decode_lines(sys.stdin.buffer), form), sys.stdout)
        return 0
    try:
        with open(options.log, "rb") as stream:
            write_calls(parse_log(decode_lines(stream), form), sys.stdout)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LogError(f"{options.log}: {error.strerror}: name a log that you may read") from error
    return 0


def _find_format(text: str) -> LineFormat:
    if not text.endswith(".json"):
        return select_format(text)
    try:
        with open(text, encoding="utf-8") as stream:
            table = json.load(stream)
    except (OSError, ValueError) as error:
        raise LogError(f"{text}: {error}") from error
    if not isinstance(table, dict):
        raise LogError(f"{text}: expected an object with the keys of a format")
    return select_format(table)
