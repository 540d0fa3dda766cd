"""Pacing of job starts, and the failure threshold that stops a site.

HTCondor enforces the pace by itself; no Treehammer process has to keep running.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from treehammer.durations import JobRamp
from treehammer.errors import ConfigError

#: Ended jobs without which no site is judged, unless the threshold is lower.
MIN_JUDGED_JOBS = 3


@dataclass(frozen=True)
class Pace:
    """Pace of job starts at sites with HTCondor.

    Attributes:
        in_flight: jobs of each door queued or running at a time.
        spread_s: seconds over which job starts are spread evenly; 0 for as soon as possible.
        ramp: growth of the number of concurrent jobs; None for all at once.
    """

    in_flight: int = 1
    spread_s: int = 0
    ramp: JobRamp | None = None

    def delay_expression(self, jobs: int, in_flight: int) -> str:
        """Return a ClassAd expression for the seconds from submission to the earliest start of job ProcId.

        Args:
            jobs: number of jobs.
            in_flight: number of jobs in the queue at a time.
        """
        delays = []
        if self.spread_s:
            delays.append(f"int(ProcId * {self.spread_s / jobs:.6f})")
        if self.ramp:
            # Once all slots are taken, a job starts when another has ended.
            step = f"ifThenElse(ProcId < {in_flight}, ProcId, {in_flight - 1}) / {self.ramp.jobs}"
            delays.append(f"({step}) * {self.ramp.every_s}")
        return " + ".join(delays) or "0"

    def last_delay_s(self, in_flight: int) -> float:
        """Return the seconds from submission after which the pace delays no job.

        Args:
            in_flight: number of jobs in the queue at a time.
        """
        ramp = (in_flight - 1) / self.ramp.jobs * self.ramp.every_s if self.ramp else 0.0
        return self.spread_s + ramp


@dataclass(frozen=True)
class BreakerThreshold:
    """Failure threshold: more than ``share`` (0 to 1) of at least ``minimum`` ended jobs failed.

    A site with fewer than twice ``minimum`` jobs is judged after half of them.
    """

    share: float = 0.5
    minimum: int = 10

    @classmethod
    def parse(cls, text: str) -> BreakerThreshold | None:
        """Parse text such as ``50%/10``; ``off`` returns None.

        Raises:
            ConfigError: the text is neither.
        """
        if text.strip() == "off":
            return None
        match = re.fullmatch(r"\s*(\d{1,3})\s*%\s*/\s*(\d{1,7})\s*", text)
        if match is None or int(match[1]) > 100 or not int(match[2]):
            raise ConfigError(
                f"{text!r} is not a failure threshold",
                where="--breaker",
                hint="Write it like 50%/10, which stops a site when more than half of at least ten "
                "ended jobs failed, or 'off'.",
            )
        return cls(int(match[1]) / 100, int(match[2]))

    def __str__(self) -> str:
        return f"{self.share:.0%}/{self.minimum}"

    def minimum_of(self, jobs: int) -> int:
        """Return how many of a site's jobs must have ended before it is judged."""
        return min(self.minimum, max(MIN_JUDGED_JOBS, math.ceil(jobs / 2)))

    def is_exceeded(self, ended: int, failed: int, jobs: int) -> bool:
        """Return whether these numbers of ended and failed jobs exceed the threshold.

        Args:
            ended: jobs of the site that ended.
            failed: those that failed.
            jobs: all jobs of the site.
        """
        return ended >= self.minimum_of(jobs) and failed > self.share * ended
