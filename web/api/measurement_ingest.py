"""``POST /api/v1/measurements``: measurements come in, and are answered once they are safe."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from treehammer.collectors.record.measurement_record import Measurement, RecordError
from treehammer.sql.auth.tokens import AccessGrant
from treehammer.sql.write.record_consistency import require_consistent
from treehammer.sql.write.recording import AddResult
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.measurement_writer import (
    MeasurementWriter,
    UnwritableError,
    WriteFailedError,
    WriterClosedError,
    WriterFullError,
)
from treehammer.web.core.request_bodies import BodyBudget, RequestLimits, parse_json, read_body
from treehammer.web.core.responses import (
    AsciiJSONResponse,
    RequestRefusedError,
    service_unavailable,
)

#: Bodies above so many bytes are looked at in a thread, so that others need not wait for them.
LARGE_BODY_BYTES = 200_000
#: Wrong measurements, reasons of each and characters of a reason that an answer tells.
MAX_ERRORS_REASONS_AND_CHARS = (100, 20, 300)

_DATABASE_UNAVAILABLE = "the database cannot be written now; nothing of this request was stored"


class MeasurementIngest:
    """The endpoint.

    Args:
        doorkeeper: tells what a token may do.
        writer: has measurements written.
        limits: of one request and of all.
    """

    def __init__(
        self, doorkeeper: AccessControl, writer: MeasurementWriter, limits: RequestLimits
    ) -> None:
        self._doorkeeper = doorkeeper
        self._writer = writer
        self._limits = limits
        self._room = BodyBudget(limits.waiting_bytes)
        self._one_at_a_time = asyncio.Lock()

    async def post_measurements(self, request: Request) -> Response:
        """Take measurements in; the answer says what became of them."""
        grant = await self._doorkeeper.require_submitter(request)
        with self._room.open_lease() as lease:
            body = await read_body(request, self._limits, lease)
            measurements = await self._parse_body(body, grant)
            request.state.note = f"{len(measurements)} measurements of {grant.name}"
            added = await self._write(measurements) if measurements else AddResult(0, 0)
        return AsciiJSONResponse(
            {"new": added.new, "known": added.known, "conflicting": list(added.conflicting)}
        )

    async def _parse_body(self, body: bytes, grant: AccessGrant) -> Sequence[Measurement]:
        if len(body) <= LARGE_BODY_BYTES:
            return parse_measurements(body, grant, self._limits)
        async with self._one_at_a_time:
            return await asyncio.to_thread(parse_measurements, body, grant, self._limits)

    async def _write(self, measurements: Sequence[Measurement]) -> AddResult:
        try:
            answer = self._writer.submit(measurements)
            # What is not waited for any more is written nevertheless; sent again, it is known.
            async with asyncio.timeout(self._limits.response_s):
                return await answer
        except WriterClosedError:
            raise service_unavailable("the service stops; try again when it is back") from None
        except WriterFullError:
            raise service_unavailable(
                "too many measurements wait to be written; try again later"
            ) from None
        except WriteFailedError:
            raise service_unavailable(_DATABASE_UNAVAILABLE) from None
        except TimeoutError:
            raise service_unavailable(
                "the database has taken too long; send the same again to learn whether it is stored"
            ) from None
        except UnwritableError as error:
            reason = f"the database cannot hold it: {error}"[: MAX_ERRORS_REASONS_AND_CHARS[2]]
            beside = "" if len(measurements) == 1 else " (it or another one of this request)"
            raise _invalid_measurements(
                [{"index": i, "reasons": [reason + beside]} for i in range(len(measurements))]
            ) from None


def parse_measurements(body: bytes, grant: AccessGrant, limits: RequestLimits) -> list[Measurement]:
    """The measurements of a body, all of them valid and the bearer's to hand in.

    Raises:
        Refusal: they are not; nothing of the request is to be stored.
    """
    document = parse_json(body, limits.json_marks)
    items = document.get("measurements") if isinstance(document, dict) else None
    if not isinstance(items, list) or len(document) != 1:
        raise RequestRefusedError(
            422, "the body must be an object with exactly 'measurements', a list", errors=[]
        )
    most = limits.measurements
    if len(items) > most:
        raise RequestRefusedError(
            413, f"these are {len(items)} measurements; send at most {most} at a time"
        )
    measurements: list[Measurement] = []
    errors: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        try:
            measurement = _parse_measurement(item)
            _require_own_campaign(measurement, grant, index)
            measurements.append(measurement)
        except RecordError as error:
            if len(errors) < MAX_ERRORS_REASONS_AND_CHARS[0]:
                reasons = [
                    reason[: MAX_ERRORS_REASONS_AND_CHARS[2]]
                    for reason in error.problems[: MAX_ERRORS_REASONS_AND_CHARS[1]]
                ]
                errors.append({"index": index, "reasons": reasons})
    if errors:
        raise _invalid_measurements(errors)
    return measurements


def _parse_measurement(item: Any) -> Measurement:
    measurement = Measurement.from_document(item)
    require_consistent(measurement, marked=False)
    return measurement


def _require_own_campaign(measurement: Measurement, grant: AccessGrant, index: int) -> None:
    if grant.job_id is None:
        return
    owner = (measurement.values["campaign_id"], measurement.values["job_id"])
    if owner != (grant.campaign_id, grant.job_id):
        raise RequestRefusedError(
            403, f"measurement {index} is not of the job that this token is for"
        )


def _invalid_measurements(errors: Sequence[dict[str, Any]]) -> RequestRefusedError:
    count = "a measurement" if len(errors) == 1 else "measurements"
    return RequestRefusedError(
        422, f"{count} cannot be taken; nothing of this request was stored", errors=list(errors)
    )
