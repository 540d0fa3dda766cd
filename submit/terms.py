"""On which terms a campaign is submitted to sites with HTCondor."""

from __future__ import annotations

from dataclasses import dataclass, field

from treehammer.submit.credentials import Credentials
from treehammer.submit.pace import Breaker, Pace


@dataclass(frozen=True)
class Terms:
    """How fast jobs start, when a site is given up (None: never), what jobs show to the storage."""

    pace: Pace = field(default_factory=Pace)
    breaker: Breaker | None = field(default_factory=Breaker)
    credentials: Credentials = field(default_factory=Credentials)


#: What holds where nothing is asked for.
USUAL = Terms()
