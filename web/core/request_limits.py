"""Limits on requests: bytes, shares of clients, bounded decompression and strict JSON."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.requests import Request

from treehammer.sql.core.access_keys import AccessGrant
from treehammer.web.core.responses import RequestRefusedError, service_unavailable

_GZIP = 16 + zlib.MAX_WBITS


def too_many_requests(sentence: str) -> RequestRefusedError:
    """Build a refusal of a client that has used up its share."""
    return RequestRefusedError(429, sentence, headers={"Retry-After": "6"})


@dataclass(frozen=True)
class RequestLimits:
    """Limits on one request, and on all requests together.

    Attributes:
        packed_bytes: of a body as sent.
        unpacked_bytes: of a body after decompression; the largest record has 16 MB.
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
        divisor: the share is the whole budget divided by it.
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
