"""Limits per client: connections, requests in progress, requests per second."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from treehammer.config import Settings
from treehammer.web.core.responses import RequestRefusedError

_LOG = logging.getLogger("treehammer.service")

#: Part of a key's rate for the token of one job.
JOB_DIVISOR = 10
#: Seconds of the permitted rate that a client may use at once.
BURST_S = 10
#: Open files that are kept for databases, figures and certificates.
RESERVED_FILES = 128
#: Bits of an IPv6 address that count as one client: a provider gives every customer that many.
IPV6_CLIENT_BITS = 64
#: Clients that are remembered before the idle ones are forgotten.
MAX_REMEMBERED = 10_000
#: Seconds until a refusal for the same reason is logged again.
REPEAT_LOG_S = 60.0


@dataclass(frozen=True)
class ClientLimits:
    """Limits of the service.

    Attributes:
        connections: open connections of all clients.
        connections_per_address: open connections of one address, and its requests in progress.
        requests_per_s: requests per second of one address, and uploads per second of one key.
    """

    connections: int = 2000
    connections_per_address: int = 250
    requests_per_s: int = 300

    @classmethod
    def from_settings(cls, settings: Settings, open_files: int) -> ClientLimits:
        """Build the limits from the settings, lowered to fit the limit of open files."""
        usable = max(open_files - RESERVED_FILES, open_files // 2)
        connections = min(settings.serve_max_connections, usable)
        if connections < settings.serve_max_connections:
            _LOG.warning(
                "at most %d connections, because this process may open %d files: raise LimitNOFILE",
                connections,
                open_files,
            )
        return cls(
            connections,
            min(settings.serve_max_connections_per_address, max(connections // 4, 1)),
            settings.serve_requests_per_second,
        )


def client_group(address: str) -> str:
    """Return the part of an address that limits apply to: all of IPv4, the network of IPv6."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_CLIENT_BITS), strict=False))


class RefusalLog:
    """Logs refusals of clients, at most once per minute for each reason."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}
        self._skipped = 0

    def warn(self, reason: str, client: str, setting: str) -> None:
        """Log that a client was refused because of a limit."""
        now_s = time.monotonic()
        if now_s - self._logged.get(reason, -REPEAT_LOG_S) < REPEAT_LOG_S:
            self._skipped += 1
            return
        self._logged[reason] = now_s
        skipped = f"; {self._skipped} refusals were not logged" if self._skipped else ""
        self._skipped = 0
        _LOG.warning("refusing %s: %s (setting %s)%s", client, reason, setting, skipped)


@dataclass
class _Usage:
    """Use by one client: requests in progress, and tokens left at a time."""

    running: int
    tokens: float
    updated_s: float


class ClientQuota:
    """Quota of requests for every client, identified by a text.

    Args:
        rate: requests per second; :data:`BURST_S` seconds of them may come at once.
        running: requests in progress.
        name: of the clients, such as "address", for messages.
        setting: that changes the limits.
        now_s: returns seconds of a clock that never jumps.
    """

    def __init__(
        self,
        rate: float,
        running: int,
        *,
        name: str,
        setting: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._burst = max(rate * BURST_S, 1.0)
        self._max_running = running
        self._name = name
        self._setting = setting
        self._now_s = now_s
        self._usage: dict[str, _Usage] = {}
        self._log = RefusalLog()

    @contextmanager
    def open_request(self, client: str) -> Iterator[None]:
        """Count a request while the block runs.

        Raises:
            RequestRefusedError: the client has used up its quota.
        """
        usage = self._refill(client)
        if usage.running >= self._max_running:
            self._refuse(client, "too many requests at the same time", 1.0)
        if usage.tokens < 1.0:
            self._refuse(client, "too many requests", (1.0 - usage.tokens) / self._rate)
        usage.tokens -= 1.0
        usage.running += 1
        try:
            yield
        finally:
            usage.running -= 1

    def _refill(self, client: str) -> _Usage:
        now_s = self._now_s()
        usage = self._usage.get(client)
        if usage is None:
            if len(self._usage) >= MAX_REMEMBERED:
                self._forget_idle(now_s)
            usage = self._usage[client] = _Usage(0, self._burst, now_s)
        usage.tokens = self._tokens_of(usage, now_s)
        usage.updated_s = now_s
        return usage

    def _tokens_of(self, usage: _Usage, now_s: float) -> float:
        return min(self._burst, usage.tokens + (now_s - usage.updated_s) * self._rate)

    def _forget_idle(self, now_s: float) -> None:
        self._usage = {
            client: usage
            for client, usage in self._usage.items()
            if usage.running or self._tokens_of(usage, now_s) < self._burst
        }

    def _refuse(self, client: str, reason: str, seconds: float) -> None:
        sentence = f"{reason} from this {self._name}"
        self._log.warn(sentence, f"{self._name} {client}", self._setting)
        raise too_many_requests(f"{sentence}; try again later", seconds)


class UploadQuota:
    """Quota of uploads per second of each key, and of a tenth for each job's token.

    Args:
        limits: of keys.
    """

    def __init__(self, limits: ClientLimits) -> None:
        setting, running = "serve_requests_per_second", 1_000_000
        self._keys = ClientQuota(limits.requests_per_s, running, name="key", setting=setting)
        self._jobs = ClientQuota(
            limits.requests_per_s / JOB_DIVISOR, running, name="job", setting=setting
        )

    def count_upload(self, key_id: str, job_id: str | None) -> None:
        """Count an upload.

        Raises:
            RequestRefusedError: the key or the job has used up its quota.
        """
        if job_id is not None:
            with self._jobs.open_request(f"{key_id}/{job_id}"):
                pass
        with self._keys.open_request(key_id):
            pass


def too_many_requests(sentence: str, seconds: float = 5.0) -> RequestRefusedError:
    """Build a refusal of a client that has used up its share."""
    return RequestRefusedError(429, sentence, headers={"Retry-After": str(int(seconds) + 1)})
