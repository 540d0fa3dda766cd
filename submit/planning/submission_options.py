"""Options of a submission."""

from __future__ import annotations

from dataclasses import dataclass, field

from treehammer.collectors.service_spec import DEFAULT_WAIT_S
from treehammer.submit.planning.job_credentials import JobCredentials
from treehammer.submit.planning.pacing import Pace

#: Option that names sites to use although their state forbids it.
INCLUDE_OPTION = "--include-excluded"


@dataclass(frozen=True)
class SubmissionOptions:
    """Options of a submission to grid sites.

    Attributes:
        pace: pace of job starts.
        include_excluded: sites to use although their state forbids it, or ``all``.
        credentials: credentials that jobs present to the storage.
        replica_timeout_s: seconds to wait for sites without a good replica.
        use_service: let jobs report to the results service, if one is configured.
        service_timeout_s: seconds that each job spends on a service that does not respond.
    """

    pace: Pace = field(default_factory=Pace)
    include_excluded: tuple[str, ...] = ()
    credentials: JobCredentials = field(default_factory=JobCredentials)
    replica_timeout_s: float = 0.0
    use_service: bool = True
    service_timeout_s: float = DEFAULT_WAIT_S


DEFAULT_OPTIONS = SubmissionOptions()
