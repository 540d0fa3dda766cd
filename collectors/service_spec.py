"""Files beside ``job.json`` that name the results service to a job.

::

    service.json      URL for measurements, and how long a job waits for an answer
    service-ca.pem    certificate authorities that sign the service's, unless the node knows them
    service-token     accepted for measurements of this job only

All are optional: the batch system returns a job's measurements in any case.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

#: Version of the layout of ``service.json``; the worker refuses others.
SERVICE_FORMAT = 1

#: Names of the files beside ``job.json``.
SERVICE_FILE, CA_FILE, TOKEN_FILE = "service.json", "service-ca.pem", "service-token"

#: Environment variable with a key or token, in place of a file.
TOKEN_VARIABLE = "TREEHAMMER_SERVICE_TOKEN"  # noqa: S105 - the name of a variable

#: Path of the API below a service's URL.
API_PREFIX = "/api/v1"
#: Path that accepts measurements.
MEASUREMENTS_PATH = f"{API_PREFIX}/measurements"
#: Path at which jobs that start together agree on the instant.
STARTS_PATH = f"{API_PREFIX}/starts"
#: Members of its answer: the service's clock, the instant (null while jobs are missing), the jobs
#: that were present when it was set, and the seconds until the next request.
START_ANSWER_KEYS = ("time_us", "start_us", "present", "poll_s")
#: Path at which submitting clients register a campaign.
CAMPAIGNS_PATH = f"{API_PREFIX}/campaigns"

#: Seconds in total that a job spends on an unresponsive service.
DEFAULT_WAIT_S = 60.0

#: Content of the token's file when nothing is submitted, as in ``treehammer render``.
TOKEN_PLACEHOLDER = "(a token is minted for each job when it is submitted)\n"  # noqa: S105 - a text, no secret

#: Usual proxy variables -> variables that only the worker reads.  A payload that reads over HTTP
#: must not use a proxy that exists for the service alone.
PROXY_VARIABLES = {"https_proxy": "TREEHAMMER_HTTPS_PROXY", "no_proxy": "TREEHAMMER_NO_PROXY"}

#: State of the records beside it, see :mod:`treehammer.collectors.worker.upload.outbox`.
OUTBOX_FILE = "outbox.json"


@dataclass(frozen=True)
class ServiceSpec:
    """A results service: its URL, and the seconds that a job spends on it without an answer."""

    url: str
    wait_s: float = DEFAULT_WAIT_S
    format: int = SERVICE_FORMAT

    def to_json(self) -> str:
        """Serialize to the text of ``service.json``."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ServiceSpec:
        """Read ``service.json``.

        Raises:
            ValueError: not JSON, another format, or a value is wrong.
        """
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("format") != SERVICE_FORMAT:
            raise ValueError(f"unknown format; expected {SERVICE_FORMAT}")
        url, wait_s = document.get("url"), document.get("wait_s")
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            raise ValueError("url: must begin with https://")
        if isinstance(wait_s, bool) or not isinstance(wait_s, (int, float)) or not wait_s >= 1:
            raise ValueError("wait_s: must be a number of seconds, at least 1")
        return cls(url, float(wait_s))
