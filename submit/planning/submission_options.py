"""On which terms a campaign is submitted to the grid."""

from __future__ import annotations

from dataclasses import dataclass, field

from treehammer.collectors.service_spec import DEFAULT_WAIT_S
from treehammer.submit.planning.job_credentials import JobCredentials
from treehammer.submit.planning.pacing import BreakerThreshold, Pace


@dataclass(frozen=True)
class SubmissionOptions:
    """How fast jobs start, when a site is given up (None: never), what jobs show to the storage.

    ``replica_wait_s`` is how long, in seconds, sites are waited for that lack a good replica.
    ``service`` says whether jobs report to the results service, where one is set up, and
    ``service_wait_s`` how many seconds each spends on one that does not answer.
    """

    pace: Pace = field(default_factory=Pace)
    breaker: BreakerThreshold | None = field(default_factory=BreakerThreshold)
    credentials: JobCredentials = field(default_factory=JobCredentials)
    replica_wait_s: float = 0.0
    use_service: bool = True
    service_wait_s: float = DEFAULT_WAIT_S


#: What holds where nothing is asked for.
DEFAULT_OPTIONS = SubmissionOptions()
