"""``POST /api/v1/measurements``: measurements come in, and are answered once they are safe."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from treehammer.collectors.record import Measurement, RecordError
from treehammer.sql.contradictions import require_possible
from treehammer.sql.recording import Added
from treehammer.sql.tokens import Grant
from treehammer.web.answers import JSONAnswer, Refusal, unavailable
from treehammer.web.bodies import Limits, Room, parse_json, read_body
from treehammer.web.doorkeeper import Doorkeeper
from treehammer.web.writer import Closed, Full, NotWritten, Unwritable, Writer

#: Bodies above so many bytes are looked at in a thread, so that others need not wait for them.
LARGE = 200_000
#: Wrong measurements, reasons of each and characters of a reason that an answer tells.
TOLD = (100, 20, 300)

_AWAY = "the database cannot be written now; nothing of this request was stored"


class Ingest:
    """The endpoint.

    Args:
        doorkeeper: tells what a token may do.
        writer: has measurements written.
        limits: of one request and of all.
    """

    def __init__(self, doorkeeper: Doorkeeper, writer: Writer, limits: Limits) -> None:
        self._doorkeeper = doorkeeper
        self._writer = writer
        self._limits = limits
        self._room = Room(limits.waiting_bytes)
        self._one_at_a_time = asyncio.Lock()

    async def post(self, request: Request) -> Response:
        """Take measurements in; the answer says what became of them."""
        grant = await self._doorkeeper.submitter(request)
        with self._room.lease() as lease:
            body = await read_body(request, self._limits, lease)
            measurements = await self._understood(body, grant)
            request.state.note = f"{len(measurements)} measurements of {grant.name}"
            added = await self._written(measurements) if measurements else Added(0, 0)
        return JSONAnswer(
            {"new": added.new, "known": added.known, "conflicting": list(added.conflicting)}
        )

    async def _understood(self, body: bytes, grant: Grant) -> Sequence[Measurement]:
        if len(body) <= LARGE:
            return understood(body, grant, self._limits)
        async with self._one_at_a_time:
            return await asyncio.to_thread(understood, body, grant, self._limits)

    async def _written(self, measurements: Sequence[Measurement]) -> Added:
        try:
            answer = self._writer.put(measurements)
            # What is not waited for any more is written nevertheless; sent again, it is known.
            async with asyncio.timeout(self._limits.answer_s):
                return await answer
        except Closed:
            raise unavailable("the service stops; try again when it is back") from None
        except Full:
            raise unavailable("too many measurements wait to be written; try again later") from None
        except NotWritten:
            raise unavailable(_AWAY) from None
        except TimeoutError:
            raise unavailable(
                "the database has taken too long; send the same again to learn whether it is stored"
            ) from None
        except Unwritable as error:
            reason = f"the database cannot hold it: {error}"[: TOLD[2]]
            beside = "" if len(measurements) == 1 else " (it or another one of this request)"
            raise _invalid(
                [{"index": i, "reasons": [reason + beside]} for i in range(len(measurements))]
            ) from None


def understood(body: bytes, grant: Grant, limits: Limits) -> list[Measurement]:
    """The measurements of a body, all of them valid and the bearer's to hand in.

    Raises:
        Refusal: they are not; nothing of the request is to be stored.
    """
    document = parse_json(body, limits.marks)
    items = document.get("measurements") if isinstance(document, dict) else None
    if not isinstance(items, list) or len(document) != 1:
        raise Refusal(
            422, "the body must be an object with exactly 'measurements', a list", errors=[]
        )
    most = limits.measurements
    if len(items) > most:
        raise Refusal(413, f"these are {len(items)} measurements; send at most {most} at a time")
    measurements: list[Measurement] = []
    errors: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        try:
            measurement = _measurement(item)
            _require_own(measurement, grant, index)
            measurements.append(measurement)
        except RecordError as error:
            if len(errors) < TOLD[0]:
                reasons = [reason[: TOLD[2]] for reason in error.problems[: TOLD[1]]]
                errors.append({"index": index, "reasons": reasons})
    if errors:
        raise _invalid(errors)
    return measurements


def _measurement(item: Any) -> Measurement:
    measurement = Measurement.from_document(item)
    require_possible(measurement, marked=False)
    return measurement


def _require_own(measurement: Measurement, grant: Grant, index: int) -> None:
    if grant.job_id is None:
        return
    owner = (measurement.values["campaign_id"], measurement.values["job_id"])
    if owner != (grant.campaign_id, grant.job_id):
        raise Refusal(403, f"measurement {index} is not of the job that this token is for")


def _invalid(errors: Sequence[dict[str, Any]]) -> Refusal:
    count = "a measurement" if len(errors) == 1 else "measurements"
    return Refusal(
        422, f"{count} cannot be taken; nothing of this request was stored", errors=list(errors)
    )
