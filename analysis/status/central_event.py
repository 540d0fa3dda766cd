"""Central events: most sites turn critical at once, which is not the fault of any of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from treehammer.analysis.status.site_state import SiteState
from treehammer.analysis.status.status_rules import CentralTable, duration_us
from treehammer.sql.core.watch_rows import StatusChangeRow


@dataclass
class CentralEvent:
    """The current or latest central event among the sites of one kind.

    Attributes:
        limits: when an event begins and ends.
        active: whether it goes on.
        members: sites that it affects.
        judged: number of sites with a state, apart from those that were critical before.
        affected: number of members when it ended.
        grace_end_us: time after the end at which members that have not recovered become critical.
    """

    limits: CentralTable
    active: bool = False
    members: set[str] = field(default_factory=set)
    judged: int = 0
    affected: int = 0
    grace_end_us: int | None = None

    @classmethod
    def resume(
        cls, limits: CentralTable, last: StatusChangeRow | None, members: Iterable[str]
    ) -> CentralEvent:
        """Continue after the last recorded change, with the sites that were affected then."""
        if last is None:
            return cls(limits)
        evidence = json.loads(last.evidence or "{}")
        if last.state == SiteState.CRITICAL:
            sites = {*evidence.get("sites", ()), *members}
            return cls(limits, True, sites, int(evidence.get("judged", 0)))
        return cls(
            limits, members={*members}, grace_end_us=last.since_us + duration_us(limits.grace)
        )

    def update(self, time_us: int, critical_since_us: Mapping[str, int | None]) -> None:
        """Begin, extend or end the event.

        Args:
            time_us: the time.
            critical_since_us: for each judged site the time since which its rules find it
                critical; None if they do not.
        """
        earliest = time_us - duration_us(self.limits.within)
        recent = {
            site
            for site, since in critical_since_us.items()
            if since is not None and since > earliest
        }
        critical = {site for site, since in critical_since_us.items() if since is not None}
        if not self.active:
            self.members &= critical  # A site that has recovered is no longer excused.
            self._begin(recent, len(critical_since_us) - len(critical - recent))
            return
        self.members |= recent
        affected = len(self.members & critical)
        self.judged = len(critical_since_us) - len(critical - self.members)
        if affected < self.limits.ends_below * len(self.members) or not affected:
            self.affected = len(self.members)
            self.active = False
            self.members &= critical
            self.grace_end_us = time_us + duration_us(self.limits.grace)

    def _begin(self, recent: set[str], judged: int) -> None:
        if len(recent) < max(self.limits.min_sites, self.limits.share * judged):
            return
        self.active = True
        self.members = {*recent}
        self.judged = judged
        self.grace_end_us = None

    def covers(self, site: str, time_us: int) -> bool:
        """Return whether the event excuses a site at a time."""
        if site not in self.members:
            return False
        return self.active or (self.grace_end_us is not None and time_us < self.grace_end_us)

    def describe(self) -> str:
        """Describe the event in one sentence."""
        if self.active:
            return (
                f"{len(self.members)} of {self.judged} sites turned critical within "
                f"{self.limits.within}"
            )
        return f"{len(self.members)} of {self.affected} sites are still affected"
