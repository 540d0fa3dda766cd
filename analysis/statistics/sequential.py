"""Sequential plan of a comparison: it ends as soon as its question is decided."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, Verdict

#: Launches of a series after which a comparison may end.  Three are the fewest that a verdict on one
#: host needs; each further look doubles them, so that few looks share the error rate.
LOOKS = (3, 6, 12, 24, 48, 96)
#: Limit of the launches of a series unless the user sets one.
DEFAULT_MAX_LAUNCHES = 24
#: Verdicts that further launches may change.
_OPEN_VERDICTS = (Verdict.UNDECIDED, Verdict.NOT_ENOUGH)
#: Key of the plan in the request of a campaign.
PLAN_KEY = "until_decided"


@dataclass(frozen=True)
class SequentialPlan:
    """Numbers of launches of a series after which it is judged, and the limit of no effect.

    Each look is judged at the error rate divided by the number of looks.  By Bonferroni's inequality,
    the probability of a false claim at any of them is at most the whole rate. This holds for any reason
    to end the campaign and any dependence between the looks.
    """

    looks: tuple[int, ...]
    delta: float = DEFAULT_DELTA

    @classmethod
    def up_to(cls, max_launches: int, delta: float = DEFAULT_DELTA) -> SequentialPlan:
        """Make the plan with the looks of :data:`LOOKS` that a limit leaves.

        Raises:
            ValueError: a limit is out of range.
        """
        if not 0 < delta < 1:
            raise ValueError(f"--delta: must lie between 0 and 1, not {delta:g}")
        if not LOOKS[0] <= max_launches <= LOOKS[-1]:
            raise ValueError(
                f"--max-launches: must lie between {LOOKS[0]} and {LOOKS[-1]}, not {max_launches}"
            )
        return cls(tuple(look for look in LOOKS if look <= max_launches), delta)

    def describe(self) -> dict[str, Any]:
        """Return the plan as it is kept with the request of its campaign."""
        return asdict(self)


def is_open(verdict: str, low: float | None, high: float | None, delta: float) -> bool:
    """Return whether further launches could decide more about a series.

    Refused series stay refused, except those with too few launches.  ``different`` is open until its
    interval (ln) is no wider than ``delta``: the size is then known. Deciding whether it lies just within
    or just beyond the limit would take many more launches.
    """
    if verdict == Verdict.DIFFERENT and low is not None and high is not None:
        return high - low > delta
    return verdict in _OPEN_VERDICTS
