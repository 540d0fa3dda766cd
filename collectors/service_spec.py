"""How a job knows the results service: from files that lie beside ``job.json``.

::

    service.json      where measurements are posted to, and how long a job waits for an answer
    service-ca.pem    the authorities that vouch for the service, where the node's own do not
    service-token     lets the measurements of this job in, and no others

None of them is needed: what a job measured comes back with the batch system in any case.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

#: Version of the layout of ``service.json``; the worker refuses others.
SERVICE_FORMAT = 1

#: Names of the files beside ``job.json``.
SERVICE_FILE, CA_FILE, TOKEN_FILE = "service.json", "service-ca.pem", "service-token"

#: Beneath it, below a service's URL, is all that programs ask.
API_PREFIX = "/api/v1"
#: Where a service takes measurements in.
MEASUREMENTS_PATH = f"{API_PREFIX}/measurements"
#: Where whoever submits tells it of a campaign.
CAMPAIGNS_PATH = f"{API_PREFIX}/campaigns"

#: Seconds that a job spends in all on a service that does not answer.
DEFAULT_WAIT_S = 60.0

#: What lies in place of a token where nothing is submitted.
TOKEN_PLACEHOLDER = "(a token is minted for each job when it is submitted)\n"  # noqa: S105 - a text, no secret

#: Variables that name proxies -> those that the worker alone is told the same by: a payload that reads
#: through HTTP must not find a proxy where it found none without the service.
PROXY_VARIABLES = {"https_proxy": "TREEHAMMER_HTTPS_PROXY", "no_proxy": "TREEHAMMER_NO_PROXY"}

#: Beside ``records/``: what became of these, see ``worker/outbox.py``.
OUTBOX_FILE = "outbox.json"


@dataclass(frozen=True)
class ServiceSpec:
    """A results service: its URL, and the seconds a job spends on it while it does not answer."""

    url: str
    wait_s: float = DEFAULT_WAIT_S
    format: int = SERVICE_FORMAT

    def to_json(self) -> str:
        """The text of ``service.json``."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ServiceSpec:
        """Read ``service.json``.

        Raises:
            ValueError: not JSON, another format, or a value is wrong.
        """
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("format") != SERVICE_FORMAT:
            raise ValueError(f"format {SERVICE_FORMAT} is expected")
        url, wait_s = document.get("url"), document.get("wait_s")
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            raise ValueError("url: must begin with https://")
        if isinstance(wait_s, bool) or not isinstance(wait_s, (int, float)) or not wait_s >= 1:
            raise ValueError("wait_s: must be a number of seconds, at least 1")
        return cls(url, float(wait_s))
