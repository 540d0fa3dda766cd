"""Durations and ramps as users write them, such as ``90s``, ``24h`` or ``5/10m``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from treehammer.errors import ConfigError

#: Microseconds of a second, the unit of times in the database.
SECOND_US = 1_000_000
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str, where: str) -> int:
    """Parse a duration such as ``90s``, ``30m``, ``24h`` or ``2d`` into seconds.

    Raises:
        ConfigError: the text is not a duration, or is not above 0.
    """
    match = re.fullmatch(r"\s*(\d{1,7})\s*([smhd])\s*", text)
    if match is None or not int(match[1]):
        raise ConfigError(
            f"{text!r} is not a duration",
            where=where,
            hint="Write it like 90s, 30m, 24h or 2d.",
        )
    return int(match[1]) * _SECONDS_PER_UNIT[match[2]]


@dataclass(frozen=True)
class JobRamp:
    """Growth of the number of concurrent jobs: ``jobs`` more every ``every_s`` seconds."""

    jobs: int
    every_s: int

    @classmethod
    def parse(cls, text: str, where: str) -> JobRamp:
        """Parse text such as ``5/10m``.

        Raises:
            ConfigError: the text is not a ramp.
        """
        jobs, _, every = text.partition("/")
        if not re.fullmatch(r"\s*\d{1,7}\s*", jobs) or not int(jobs) or not every:
            raise ConfigError(
                f"{text!r} is not a ramp",
                where=where,
                hint="Write it like 5/10m: five more jobs every ten minutes.",
            )
        return cls(int(jobs), parse_duration(every, where))
