"""Limits on requests: bytes, shares of clients, bounded decompression and strict JSON."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.datastructures import Headers
from starlette.requests import Request

from treehammer.collectors.json_documents import RepeatedKeyError, refuse_repeated_keys
from treehammer.sql.core.access_keys import AccessGrant
from treehammer.web.core.responses import RequestRefusedError, service_unavailable

_GZIP, _PIECE_BYTES = 16 + zlib.MAX_WBITS, 65536


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


class BodyBudget:
    """Budget of bytes for all bodies in progress: half for a key, a quarter for a job."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used: Counter[str] = Counter()

    @asynccontextmanager
    async def read_body(
        self, request: Request, limits: RequestLimits, grant: AccessGrant
    ) -> AsyncIterator[bytes]:
        """Yield the decompressed body of a request, whose bytes return to the budget at the end.

        Raises:
            RequestRefusedError: the body has the wrong type, is too large or damaged, or fewer bytes
                are left, in all or in the share of the token's key or job.
        """
        shares = {f"key {grant.key_id}": ("key", 2)}
        if grant.job_id is not None:
            shares[f"job {grant.key_id} {grant.job_id}"] = ("job", 4)
        pieces: list[bytes] = []
        try:
            async for piece in _read_pieces(request, limits):
                self._require_room(len(piece), shares)
                self._used.update(dict.fromkeys(("", *shares), len(piece)))
                pieces.append(piece)
            yield b"".join(pieces)
        finally:
            used = sum(map(len, pieces))
            self._used.subtract(dict.fromkeys(("", *shares), used))
            self._used = +self._used

    def _require_room(self, count: int, shares: Mapping[str, tuple[str, int]]) -> None:
        for client, (name, divisor) in shares.items():
            if self._used[client] + count > self._limit // divisor:
                raise too_many_requests(
                    f"too many bytes are in progress with this {name}; try again later"
                )
        if self._used[""] + count > self._limit:
            raise service_unavailable(
                "the service's memory for requests is full; try again later", "memory full"
            )


def _find_coding(headers: Headers) -> str:
    """Find the coding of a body from its headers; other types and codings are refused."""
    kind, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise RequestRefusedError(415, "the body must be application/json in UTF-8")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip"):
        raise RequestRefusedError(
            415,
            "the body must be compressed with gzip or not at all",
            headers={"Accept-Encoding": "gzip, identity"},
        )
    return coding


async def _read_pieces(request: Request, limits: RequestLimits) -> AsyncIterator[bytes]:
    """Yield the decompressed body of a request in pieces of bounded size."""
    unpacker = zlib.decompressobj(_GZIP) if _find_coding(request.headers) == "gzip" else None
    # The web server refuses a length that is no number.
    if int(request.headers.get("content-length", "0")) > limits.packed_bytes:
        raise _body_too_large(f"{limits.packed_bytes} bytes")
    packed = unpacked = 0
    async for chunk in request.stream():
        packed += len(chunk)
        if packed > limits.packed_bytes:
            raise _body_too_large(f"{limits.packed_bytes} bytes")
        for piece in _unpack(unpacker, chunk) if unpacker else (chunk,):
            unpacked += len(piece)
            if unpacked > limits.unpacked_bytes:
                raise _body_too_large(f"{limits.unpacked_bytes} bytes")
            yield piece
    if unpacker and not unpacker.eof:
        raise RequestRefusedError(400, "the gzip data is truncated")


def _unpack(unpacker: Any, chunk: bytes) -> Iterator[bytes]:
    full = False
    while chunk or full:
        if unpacker.eof and chunk:
            raise RequestRefusedError(400, "data follows the end of the gzip data")
        try:
            piece = unpacker.decompress(chunk, _PIECE_BYTES)
        except zlib.error:
            raise RequestRefusedError(400, "the body is not gzip data, or is damaged") from None
        yield piece
        # A full piece may leave more output pending although the chunk is consumed.
        full = len(piece) == _PIECE_BYTES
        chunk = unpacker.unconsumed_tail or unpacker.unused_data


def _body_too_large(limit: str) -> RequestRefusedError:
    return RequestRefusedError(
        413, f"the body is larger than {limit}; send fewer measurements at a time"
    )


class _StrictJSONError(ValueError):
    """JSON with NaN or Infinity."""


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
    except (_StrictJSONError, RepeatedKeyError) as error:
        reason = str(error)
    except ValueError:
        reason = "a number has too many digits"
    raise RequestRefusedError(400, f"the body is not valid JSON: {reason}")


def _reject_constant(word: str) -> NoReturn:
    raise _StrictJSONError(f"{word} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=refuse_repeated_keys, parse_constant=_reject_constant)
