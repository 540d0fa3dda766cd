"""Formats of server logs: patterns of the lines that begin, carry on and end a call."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import filterfalse
from typing import Any, Dict, Mapping, NamedTuple, Optional, Pattern, Tuple, Union

from .....collectors.kit.treehammer_kit.payload_task import PayloadError
from ..clients.xrootd_client import FAILURES_BY_RESPONSE


class LogError(PayloadError):
    """A log or its format cannot be used."""

    def __init__(self, message: str) -> None:
        super().__init__("payload", "bad-log", "setup", message)


@dataclass(frozen=True)
class LineFormat:
    """Format of a log in which each call has an identity.

    All patterns are regular expressions.  Lines that match none are skipped, so that
    new kinds of lines do no harm.

    Attributes:
        time: begins a line; group ``second`` is read with ``clock``, group ``fraction`` (``.123``)
            is optional.
        clock: format of ``datetime.strptime``, in the node's time zone unless it has ``%z``, or UTC by
            ``%Z``; without a year, this year's or last year's.
        begin: begins a call; groups ``request``, ``operation``, and if known ``stream``, which
            distinguishes calls of one connection, and ``size``.
        end: ends a call; groups ``request``, ``stream`` as above, and if known ``bytes``, and
            ``code``, which is empty or 0 after success.
        part: carries on an answer before its end, with ``bytes``; '' for none.
        again: answers that the client must send the call again, which continues it; '' for none.
        pause: states the ``seconds`` that the client must wait before; '' if unknown.
        redirect: sends the client to another server, which ends the call as ``OPERATION_redirect``;
            '' for none.
        work: begins the processing of a call that waited; '' if unknown.
        operations: operation in the log -> operation of the record; others are skipped.
        moved: operation in the log -> bytes that it moves: ``answer``, ``size``, or ``difference``
            of both, for answers that repeat the request.
        failures: code -> class of failure; ``other`` for the rest.
    """

    time: str
    clock: str
    begin: str
    end: str
    part: str = ""
    work: str = ""
    again: str = ""
    pause: str = ""
    redirect: str = ""
    operations: Mapping[str, str] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


#: Roles of lines, in the order in which patterns are tried: the most frequent ones first, and the
#: particular answers before the end, whose pattern may match them as well.
_ROLES = ("begin", "part", "again", "redirect", "end", "work", "pause")
#: Groups that patterns must have, other ones than ``request`` alone.
_REQUIRED_GROUPS = {
    "time": {"second"},
    "begin": {"request", "operation"},
    "pause": {"request", "seconds"},
}


def _compile(name: str, text: str) -> Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise LogError(f"format.{name}: not a regular expression: {error}") from error
    missing = sorted(_REQUIRED_GROUPS.get(name, {"request"}) - set(pattern.groupindex))
    if missing:
        raise LogError(f"format.{name}: add the group (?P<{missing[0]}>...)")
    return pattern


class LogLine(NamedTuple):
    """A line that belongs to a call: its role, instant and groups."""

    role: str
    time_us: int
    groups: Dict[str, Optional[str]]

    @property
    def key(self) -> Tuple[str, str]:
        """Identity of its call: request and stream."""
        return self.groups["request"] or "", self.groups.get("stream") or ""

    def read_number(self, name: str) -> int:
        """Return the number of a group; 0 without it, or where a server writes ``-`` for none.

        Raises:
            LogError: the group is another text.
        """
        text = self.groups.get(name) or "-"
        if text != "-" and not text.isdecimal():
            raise LogError(f"format: the group {name!r} is {text[:20]!r}, which is no whole number")
        return 0 if text == "-" else int(text)


class LineReader:
    """Reads lines of one format.

    Attributes:
        has_times: whether it has read a line with a time.

    Raises:
        LogError: a pattern is not a regular expression, or lacks a group; the clock cannot be read.
    """

    def __init__(self, form: LineFormat) -> None:
        self.has_times, self._clock = False, str(form.clock)
        if parse_time(datetime.now().astimezone().strftime(self._clock), self._clock) is None:
            raise LogError(f"format.clock = {self._clock!r}: not a format of strptime")
        self._time = _compile("time", str(form.time))
        texts = {role: str(getattr(form, role)) for role in _ROLES}
        self._roles = [(role, _compile(role, text)) for role, text in texts.items() if text]
        self._known_second = ""
        self._known_us = 0

    def read(self, line: str) -> Optional[LogLine]:
        """Read a line; None if it belongs to no call."""
        stamp = self._time.match(line)
        instant = None if stamp is None else self._read_time(stamp.groupdict())
        if stamp is None or instant is None:
            return None
        self.has_times = True
        for role, pattern in self._roles:
            match = pattern.match(line, stamp.end())
            if match is not None:
                return LogLine(role, instant, match.groupdict())
        return None

    def find_time(self, line: str) -> Optional[int]:
        """Return the instant of any line, microseconds since 1970 UTC; None without one."""
        stamp = self._time.match(line)
        return None if stamp is None else self._read_time(stamp.groupdict())

    def _read_time(self, groups: Mapping[str, Optional[str]]) -> Optional[int]:
        second = groups["second"] or ""
        # Parsing is slow, and many lines share a second.
        if second != self._known_second:
            instant = parse_time(second, self._clock)
            if instant is None:
                return None
            self._known_second, self._known_us = second, instant
        # Servers in Java write a comma.
        digits = (groups.get("fraction") or "").lstrip(".,")
        return self._known_us + round(float(f"0.{digits}") * 1e6)


def parse_time(text: str, clock: str) -> Optional[int]:
    """Return local time, or that of its zone, as microseconds since 1970 UTC; None if it has another format."""
    now = time.time()
    year = time.localtime(now).tm_year
    try:
        if "%y" in clock or "%Y" in clock:
            return _count_us(text, clock)
        instant = _count_us(f"{year} {text}", f"%Y {clock}")
        # A line of the last days of December may be read in January.
        if instant > (now + 86_400) * 1e6:
            instant = _count_us(f"{year - 1} {text}", f"%Y {clock}")
    except (ValueError, OverflowError, re.error):
        return None
    return instant


def _count_us(text: str, clock: str) -> int:
    moment = datetime.strptime(text, clock)
    if "%Z" in clock and re.search("UTC|GMT", text):
        moment = moment.replace(tzinfo=timezone.utc)
    # Logs are read as they grow: of the two hours that clocks repeat in autumn, the later that began.
    later = moment.replace(fold=1)
    if later.timestamp() <= time.time():
        moment = later
    return round(moment.timestamp() * 1e6)


_XROOTD_CALL = r"[^\s:]+:(?P<request>\d+@\S+) Xrootd_?{}: (?P<stream>[0-9a-f]{{4}}) "

#: XRootD's log with ``xrootd.trace emsg login request response``; ``xrootd -z`` adds microseconds.
#: The answer to a login names the user, the request does not: file descriptor and host identify the
#: connection.
XROOTD = LineFormat(
    time=r"(?P<second>\d{6} \d\d:\d\d:\d\d)(?P<fraction>\.\d+)? \d+ ",
    clock="%y%m%d %H:%M:%S",
    begin=_XROOTD_CALL.format("Protocol") + r"req=(?P<operation>\w+) dlen=(?P<size>\d+)",
    # More follows (4000, partial), or comes later: a message beside the answer (4001), a delay (4006).
    part=_XROOTD_CALL.format("Response")
    + r"sending (?P<more>partial \d+ info and )?(?P<bytes>\d+) data bytes(?(more)|; status=400[016]\b)",
    # Another step of an authentication (4002), or a wait (4005).
    again=_XROOTD_CALL.format("Response") + r"sending \d+ data bytes; status=400[25]\b",
    pause=_XROOTD_CALL.format("Protocol") + r"stalling client for (?P<seconds>\d+) sec",
    redirect=_XROOTD_CALL.format("Response")
    + r"(?:redirecting|sending \d+ data bytes; status=4004\b)",
    end=_XROOTD_CALL.format("Response")
    + r"(?:sending OK|sending err (?P<code>\d+)|"
    + r"(?:sending|sendfile) (?:final \d+ info and )?(?P<bytes>\d+) data bytes"
    # Of the other statuses, 4007 alone is a success.
    + r"(?!; status=(?!0\b|4007\b)))",
    operations={
        "login": "connect",
        "auth": "authenticate",
        "locate": "locate",
        "stat": "stat",
        "mkdir": "mkdir",
        "open": "open",
        "read": "read",
        "pgread": "read",
        "readv": "vector_read",
        "write": "write",
        "pgwrite": "write",
        "close": "close",
        "rm": "delete",
        "rmdir": "rmdir",
    },
    moved={
        "read": "answer",
        "pgread": "answer",
        "readv": "difference",
        "write": "size",
        "pgwrite": "size",
    },
    failures={str(code): failure for code, failure in FAILURES_BY_RESPONSE.items()},
)

#: Tables of a format -> pattern of their values.
_TABLES: Mapping[str, str] = {
    "operations": "[a-z][a-z0-9_]{0,31}",
    "moved": "answer|size|difference",
    "failures": "credential|no-space|not-found|not-permitted|not-supported|other|redirect-limit|"
    "refused|reset|server-error|stalled|timeout|unfinished|wrong-data",
}


def select_format(value: Union[str, Mapping[str, Any]]) -> LineFormat:
    """Return XRootD's format by its name, or build one from a table of the test's settings.

    Raises:
        LogError: it has another name, or the table has mistakes.
    """
    if value == "xrootd":
        return XROOTD
    if not isinstance(value, Mapping):
        raise LogError(f"format = {value!r}: expected 'xrootd', or a table [settings.format]")
    keys = "time", "clock", *_ROLES, *_TABLES
    problems = [f"unknown key {key!r}" for key in sorted(set(value) - set(keys))]
    absent = filterfalse(value.get, ("time", "clock", "begin", "end"))
    problems += [f"{key!r} is missing" for key in absent]
    if problems:
        raise LogError(f"format: {problems[0]} (keys: {', '.join(keys)})")
    for key, pattern in _TABLES.items():
        table = value.get(key, {})
        texts = table.values() if isinstance(table, Mapping) else [""]
        if not all(re.fullmatch(pattern, str(text)) for text in texts):
            raise LogError(f"format.{key} = {table!r}: expected a table with values like {pattern}")
    return LineFormat(**value)
