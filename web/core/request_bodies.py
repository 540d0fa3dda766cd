"""Bodies of requests, read within limits: unpacked, and strictly JSON."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from treehammer.web.core.responses import RequestRefusedError, service_unavailable

_GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True)
class RequestLimits:
    """What one request, and all at once, may take.

    Attributes:
        packed_bytes: of a body as it was sent.
        unpacked_bytes: of a body as it was meant; the largest record is 16 MB.
        measurements: of one request.
        marks: commas, colons and brackets of a body, which tell before it is parsed how many values
            there are at most: each takes up to 120 bytes, however short it was.
        waiting_bytes: of all unpacked bodies that are not answered yet.
        body_s: seconds until a body has arrived.
        answer_s: seconds until a request is answered, written or not.
    """

    packed_bytes: int = 16_000_000
    unpacked_bytes: int = 32_000_000
    measurements: int = 500
    json_marks: int = 1_000_000
    waiting_bytes: int = 128_000_000
    body_s: float = 60.0
    response_s: float = 40.0


class BodyBudget:
    """The bytes of bodies that may wait at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0

    @contextmanager
    def open_lease(self) -> Iterator[BodyLease]:
        """Room for one body, given back at the end."""
        lease = BodyLease(self)
        try:
            yield lease
        finally:
            self.taken -= lease.taken

    def take(self, count: int) -> None:
        """Take some bytes.

        Raises:
            Refusal: there are not so many left.
        """
        if self.taken + count > self._limit:
            raise service_unavailable("the service holds as much as it can; try again later")
        self.taken += count


class BodyLease:
    """What one body takes of a :class:`Room`."""

    def __init__(self, room: BodyBudget) -> None:
        self._room = room
        self.taken = 0

    def take(self, count: int) -> None:
        """Take more; see :meth:`Room.take`."""
        self._room.take(count)
        self.taken += count


async def read_body(request: Request, limits: RequestLimits, lease: BodyLease) -> bytes:
    """The unpacked body.

    Raises:
        Refusal: it is of the wrong type, too large, damaged or too slow.
    """
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise RequestRefusedError(415, "the body must be application/json in UTF-8")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip"):
        raise RequestRefusedError(
            415,
            "the body may be packed with gzip or not at all",
            headers={"Accept-Encoding": "gzip, identity"},
        )
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limits.packed_bytes:
        raise _body_too_large(f"{limits.packed_bytes} bytes")
    unpacker = _GzipUnpacker() if coding == "gzip" else None
    try:
        async with asyncio.timeout(limits.body_s):
            return await _read_chunks(request, limits, lease, unpacker)
    except TimeoutError:
        raise RequestRefusedError(
            408, f"the body did not arrive within {limits.body_s:.0f} s"
        ) from None
    except ClientDisconnect:
        # Nobody reads it.
        raise RequestRefusedError(400, "the connection ended before the body did") from None


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
            lease.take(len(piece))
            body += piece
    if unpacker:
        unpacker.finish()
    return bytes(body)


class _GzipUnpacker:
    """One gzip member, unpacked piece by piece: no more is ever unpacked than was asked for."""

    PIECE = 65536

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(_GZIP)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        full = False
        while chunk or full:
            if self._unpacker.eof and chunk:
                raise RequestRefusedError(400, "something follows the end of the gzip data")
            try:
                piece = self._unpacker.decompress(chunk, self.PIECE)
            except zlib.error:
                raise RequestRefusedError(400, "the body is no gzip data, or damaged") from None
            yield piece
            # With all of the chunk taken, some of what it meant may still be to come.
            full = len(piece) == self.PIECE
            chunk = self._unpacker.unconsumed_tail or self._unpacker.unused_data

    def finish(self) -> None:
        if not self._unpacker.eof:
            raise RequestRefusedError(400, "the gzip data end too early")


def _body_too_large(limit: str) -> RequestRefusedError:
    return RequestRefusedError(
        413, f"the body is larger than {limit}; send fewer measurements at a time"
    )


class _StrictJSONError(ValueError):
    """JSON that says something twice, or what is no number."""


def parse_json(body: bytes, most: int) -> Any:
    """Read strict JSON, with so many commas, colons and brackets at most.

    Raises:
        Refusal: it has more, or is none: not UTF-8, a key that stands twice, NaN or Infinity, nested
            too deeply.
    """
    if sum(map(body.count, (b",", b":", b"{", b"["))) > most:
        raise _body_too_large(f"{most} commas, colons and brackets")
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {error.start}"
    except json.JSONDecodeError as error:
        why = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        why = "nested too deeply"
    except _StrictJSONError as error:
        why = str(error)
    except ValueError:
        why = "a number has too many digits"
    raise RequestRefusedError(400, f"the body is not JSON: {why}")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _StrictJSONError(f"the key {twice[:100]!r} stands twice in one object")
    return members


def _reject_constant(word: str) -> NoReturn:
    raise _StrictJSONError(f"{word} is no number of JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object_without_duplicates, parse_constant=_reject_constant
)
