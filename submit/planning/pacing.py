"""How fast the jobs of a campaign may start, and when a site is given no more of them.

HTCondor itself keeps to all of it: nothing of ours has to run meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from treehammer.errors import ConfigError

_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str, where: str) -> int:
    """Read a duration such as ``90s``, ``30m``, ``24h`` or ``2d``.

    Raises:
        ConfigError: it is none, or not above 0.
    """
    match = re.fullmatch(r"\s*(\d{1,7})\s*([smhd])\s*", text)
    if match is None or not int(match[1]):
        raise ConfigError(
            f"{text!r} is no duration", where=where, hint="Write it like 90s, 30m, 24h or 2d."
        )
    return int(match[1]) * _SECONDS_PER_UNIT[match[2]]


@dataclass(frozen=True)
class PaceRamp:
    """``jobs`` more may run at a time every ``every_s`` seconds."""

    jobs: int
    every_s: int

    @classmethod
    def parse(cls, text: str) -> PaceRamp:
        """Read ``5/10m``.

        Raises:
            ConfigError: it is no ramp.
        """
        jobs, _, every = text.partition("/")
        if not re.fullmatch(r"\s*\d{1,7}\s*", jobs) or not int(jobs) or not every:
            raise ConfigError(
                f"{text!r} is no ramp",
                where="--ramp",
                hint="Write it like 5/10m: five more jobs every ten minutes.",
            )
        return cls(int(jobs), parse_duration(every, "--ramp"))


@dataclass(frozen=True)
class Pace:
    """How fast jobs start at sites with HTCondor.

    Attributes:
        in_flight: jobs of each door in the queue or running at a time.
        over_s: seconds over which the jobs' starts are spread evenly; 0 for as soon as possible.
        ramp: how the number of jobs at a time grows; None for all at once.
    """

    in_flight: int = 1
    over_s: int = 0
    ramp: PaceRamp | None = None

    def delay_expression(self, jobs: int, in_flight: int) -> str:
        """ClassAd expression of the seconds from submission to the earliest start of job ProcId.

        Args:
            jobs: how many jobs there are.
            in_flight: how many of them are in the queue at a time.
        """
        delays = []
        if self.over_s:
            delays.append(f"int(ProcId * {self.over_s / jobs:.6f})")
        if self.ramp:
            # Once all places are taken, a job starts where another has ended.
            step = f"ifThenElse(ProcId < {in_flight}, ProcId, {in_flight - 1}) / {self.ramp.jobs}"
            delays.append(f"({step}) * {self.ramp.every_s}")
        return " + ".join(delays) or "0"

    def last_delay_s(self, in_flight: int) -> float:
        """Seconds from submission after which no job has to wait for its earliest start any more.

        Args:
            in_flight: how many jobs are in the queue at a time.
        """
        ramp = (in_flight - 1) / self.ramp.jobs * self.ramp.every_s if self.ramp else 0.0
        return self.over_s + ramp


@dataclass(frozen=True)
class BreakerThreshold:
    """Stops a site when more than ``share`` (0 to 1) of at least ``minimum`` ended jobs failed."""

    share: float = 0.5
    minimum: int = 10

    @classmethod
    def parse(cls, text: str) -> BreakerThreshold | None:
        """Read ``50%/10``, or ``off`` for none.

        Raises:
            ConfigError: it is neither.
        """
        if text.strip() == "off":
            return None
        match = re.fullmatch(r"\s*(\d{1,3})\s*%\s*/\s*(\d{1,7})\s*", text)
        if match is None or int(match[1]) > 100 or not int(match[2]):
            raise ConfigError(
                f"{text!r} is no breaker",
                where="--breaker",
                hint="Write it like 50%/10: stop a site when more than half of at least ten "
                "ended jobs failed; or 'off'.",
            )
        return cls(int(match[1]) / 100, int(match[2]))

    def __str__(self) -> str:
        return f"{self.share:.0%}/{self.minimum}"

    def is_exceeded(self, ended: int, failed: int) -> bool:
        """Whether a site with so many ended jobs, and failed ones among them, is stopped."""
        return ended >= self.minimum and failed > self.share * ended
