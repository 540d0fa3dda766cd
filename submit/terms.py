"""On which terms a campaign is submitted to the grid."""

from __future__ import annotations

from dataclasses import dataclass, field

from treehammer.collectors.service import WAIT_S
from treehammer.submit.credentials import Credentials
from treehammer.submit.pace import Breaker, Pace


@dataclass(frozen=True)
class Terms:
    """How fast jobs start, when a site is given up (None: never), what jobs show to the storage.

    ``replica_wait_s`` is how long, in seconds, sites are waited for that lack a good replica.
    ``service`` says whether jobs report to the results service, where one is set up, and
    ``service_wait_s`` how many seconds each spends on one that does not answer.
    """

    pace: Pace = field(default_factory=Pace)
    breaker: Breaker | None = field(default_factory=Breaker)
    credentials: Credentials = field(default_factory=Credentials)
    replica_wait_s: float = 0.0
    service: bool = True
    service_wait_s: float = WAIT_S


#: What holds where nothing is asked for.
USUAL = Terms()
