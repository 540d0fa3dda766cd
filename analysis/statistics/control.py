"""Agreement of equal halves: the summary of A/A launches, in which nothing differs."""

from __future__ import annotations

from dataclasses import dataclass

#: Controls whose mean abs(ln(B/A)) is at most this are good, even if their interval excludes 0.
MAX_CONTROL_EFFECT = 0.01


@dataclass(frozen=True)
class ControlCheck:
    """Controls of one metric: mean and standard deviation of ln(B/A) over their launches.

    ``base`` is the value of the compared axis that is compared with itself, '' for several values.
    ``sd`` is None for a single launch, the 95 % interval also for launches without spread.
    """

    metric: str
    base: str
    launches: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None

    @property
    def is_off(self) -> bool:
        """Whether the two equal halves differ: beyond doubt, and by more than a bound."""
        if self.low is None or self.high is None or abs(self.mean) <= MAX_CONTROL_EFFECT:
            return False
        return self.low > 0 or self.high < 0

    @property
    def is_in_order(self) -> bool:
        """Whether several launches differ by less than the bound on average."""
        return self.launches > 1 and abs(self.mean) <= MAX_CONTROL_EFFECT
