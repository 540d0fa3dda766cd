"""States of sites, in the words of grid monitoring.

Apart from the rules, which need pydantic: commands start without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class SiteState(StrEnum):
    """State of a site, a storage, or one of their days."""

    OK = "ok"
    #: Works with failures above a threshold, or its exclusion is suspended.
    WARNING = "warning"
    #: Does not work; work is better sent elsewhere.
    CRITICAL = "critical"
    #: Too few results to judge.
    UNKNOWN = "unknown"
    #: Announced not to work.
    DOWNTIME = "downtime"

    @property
    def letter(self) -> str:
        """Short text for a small cell."""
        return "–" if self is SiteState.UNKNOWN else self.value[0].upper()


#: States from the worst to the least informative.
WORST_FIRST = (
    SiteState.CRITICAL,
    SiteState.WARNING,
    SiteState.DOWNTIME,
    SiteState.OK,
    SiteState.UNKNOWN,
)


def find_worst_state(states: Iterable[SiteState]) -> SiteState:
    """Return the worst of several states; unknown only if all are."""
    return min(states, key=WORST_FIRST.index, default=SiteState.UNKNOWN)
