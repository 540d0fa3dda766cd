"""Pacing of job starts.

HTCondor enforces the pace by itself; no Treehammer process has to keep running.
"""

from __future__ import annotations

from dataclasses import dataclass

from treehammer.durations import JobRamp


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
