"""Limits per client and per request: connections, rates, bounded bodies and strict JSON."""

from __future__ import annotations

import ipaddress
import json
import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.requests import Request

from treehammer.config import Settings
from treehammer.sql.core.access_keys import AccessGrant
from treehammer.web.core.responses import RequestRefusedError, service_unavailable

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
_GZIP = 16 + zlib.MAX_WBITS


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


@dataclass(frozen=True)
class RequestLimits:
    """Limits on one request, and on all requests together.

    Attributes:
        packed_bytes: of a body as sent.
        unpacked_bytes: of a body after decompression; the largest record has 16 MB.
        measurements: per request.
        json_marks: commas, colons and brackets of a body. They bound the number of values before the
            body is parsed; each value takes up to 120 bytes in memory.
        waiting_bytes: of all decompressed bodies without a response yet.
        extras: metrics that tests define, of all measurements of a request.
        response_s: seconds until the response, whether or not the rows are written.
    """

    packed_bytes: int = 16_000_000
    unpacked_bytes: int = 32_000_000
    measurements: int = 500
    json_marks: int = 1_000_000
    waiting_bytes: int = 128_000_000
    extras: int = 10_000
    response_s: float = 40.0


@dataclass(frozen=True)
class BudgetShare:
    """Part of the budget that one client may use.

    Attributes:
        client: identifies the client.
        divisor: the share is the whole budget divided by it.
        name: of the client, for messages.
    """

    client: str
    divisor: int
    name: str


def list_shares(grant: AccessGrant) -> list[BudgetShare]:
    """List the shares of a token's key and job: half of the budget, and a quarter."""
    shares = [BudgetShare(f"key {grant.key_id}", 2, "key")]
    if grant.job_id is not None:
        shares.append(BudgetShare(f"job {grant.key_id} {grant.job_id}", 4, "job"))
    return shares


class BodyBudget:
    """Budget of bytes for all bodies in progress, with shares of clients."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._used_by_client: Counter[str] = Counter()

    @contextmanager
    def open_lease(self, shares: Sequence[BudgetShare] = ()) -> Iterator[BodyLease]:
        """Yield a lease for one body within shares, returned to the budget at the end."""
        lease = BodyLease(self, shares)
        try:
            yield lease
        finally:
            self._used -= lease.used
            for share in shares:
                self._used_by_client[share.client] -= lease.used
                if self._used_by_client[share.client] <= 0:
                    del self._used_by_client[share.client]

    def reserve(self, count: int, shares: Sequence[BudgetShare]) -> None:
        """Reserve bytes.

        Raises:
            RequestRefusedError: fewer bytes are left, in all or in a share.
        """
        for share in shares:
            if self._used_by_client[share.client] + count > self._limit // share.divisor:
                raise too_many_requests(
                    f"too many bytes are in progress with this {share.name}; try again later"
                )
        if self._used + count > self._limit:
            raise service_unavailable(
                "the service's memory for requests is full; try again later", "memory full"
            )
        self._used += count
        for share in shares:
            self._used_by_client[share.client] += count


class BodyLease:
    """Bytes of a :class:`BodyBudget` reserved for one body."""

    def __init__(self, budget: BodyBudget, shares: Sequence[BudgetShare]) -> None:
        self._budget = budget
        self._shares = shares
        self.used = 0

    def reserve(self, count: int) -> None:
        """Reserve more bytes; see :meth:`BodyBudget.reserve`."""
        self._budget.reserve(count, self._shares)
        self.used += count


async def read_body(request: Request, limits: RequestLimits, lease: BodyLease) -> bytes:
    """Read and decompress the body of a request.

    Raises:
        RequestRefusedError: the body has the wrong type, is too large or damaged.
    """
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise RequestRefusedError(415, "the body must be application/json in UTF-8")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip"):
        raise RequestRefusedError(
            415,
            "the body must be compressed with gzip or not at all",
            headers={"Accept-Encoding": "gzip, identity"},
        )
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limits.packed_bytes:
        raise _body_too_large(f"{limits.packed_bytes} bytes")
    unpacker = _GzipUnpacker() if coding == "gzip" else None
    return await _read_chunks(request, limits, lease, unpacker)


async def _read_chunks(
    request: Request, limits: RequestLimits, lease: BodyLease, unpacker: _GzipUnpacker | None
) -> bytes:
    body = bytearray()
    packed = 0
    async for chunk in request.stream():
        packed += len(chunk)
        if packed > limits.packed_bytes:
            raise _body_too_large(f"{limits.packed_bytes} bytes")
        for piece in unpacker.feed(chunk) if unpacker else (chunk,):
            if len(body) + len(piece) > limits.unpacked_bytes:
                raise _body_too_large(f"{limits.unpacked_bytes} bytes")
            lease.reserve(len(piece))
            body += piece
    if unpacker:
        unpacker.finish()
    return bytes(body)


class _GzipUnpacker:
    """Decompressor of one gzip member, in pieces of bounded size."""

    PIECE = 65536

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(_GZIP)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        full = False
        while chunk or full:
            if self._unpacker.eof and chunk:
                raise RequestRefusedError(400, "data follows the end of the gzip data")
            try:
                piece = self._unpacker.decompress(chunk, self.PIECE)
            except zlib.error:
                raise RequestRefusedError(400, "the body is not gzip data, or is damaged") from None
            yield piece
            # A full piece may leave more output pending although the chunk is consumed.
            full = len(piece) == self.PIECE
            chunk = self._unpacker.unconsumed_tail or self._unpacker.unused_data

    def finish(self) -> None:
        if not self._unpacker.eof:
            raise RequestRefusedError(400, "the gzip data is truncated")


def _body_too_large(limit: str) -> RequestRefusedError:
    return RequestRefusedError(
        413, f"the body is larger than {limit}; send fewer measurements at a time"
    )


class _StrictJSONError(ValueError):
    """JSON with a duplicate key, NaN or Infinity."""


def parse_json(body: bytes, max_marks: int) -> Any:
    """Parse strict JSON in UTF-8 with at most ``max_marks`` commas, colons and brackets.

    Raises:
        RequestRefusedError: there are more, or the body is invalid: duplicate keys, NaN, Infinity and
            deep nesting are refused, too.
    """
    if sum(map(body.count, (b",", b":", b"{", b"["))) > max_marks:
        raise _body_too_large(f"{max_marks} commas, colons and brackets")
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {error.start}"
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        reason = "nested too deeply"
    except _StrictJSONError as error:
        reason = str(error)
    except ValueError:
        reason = "a number has too many digits"
    raise RequestRefusedError(400, f"the body is not valid JSON: {reason}")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _StrictJSONError(f"duplicate key {duplicate[:100]!r} in one object")
    return members


def _reject_constant(word: str) -> NoReturn:
    raise _StrictJSONError(f"{word} is not a JSON number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object_without_duplicates, parse_constant=_reject_constant
)
