"""``POST /api/v1/measurements``: upload of measurements, acknowledged once they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from treehammer.collectors.record.measurement_record import Measurement, RecordError
from treehammer.errors import ForeignCampaignError
from treehammer.sql.auth.access_keys import AccessGrant
from treehammer.sql.write.audit_trail import Sender
from treehammer.sql.write.quality_flags import require_unflagged
from treehammer.sql.write.recording import AddResult
from treehammer.web.core.auth import AccessControl, make_sender
from treehammer.web.core.client_limits import too_many_requests
from treehammer.web.core.measurement_writer import (
    KeyShareFullError,
    MeasurementWriter,
    UnwritableError,
    WriteFailedError,
    WriterClosedError,
    WriterFullError,
)
from treehammer.web.core.request_checks import (
    BodyBudget,
    RequestLimits,
    list_shares,
    parse_json,
    read_body,
)
from treehammer.web.core.responses import (
    AsciiJSONResponse,
    MeasurementsStored,
    RequestRefusedError,
    service_unavailable,
)

#: Bodies above this size are parsed in a thread, one at a time, to keep the event loop free.
LARGE_BODY_BYTES = 200_000
#: Invalid measurements per response, reasons per measurement, characters per reason.
MAX_ERRORS, MAX_REASONS, MAX_REASON_CHARS = 100, 20, 300

#: Response to a failure of the writer, the first that matches.
_UNAVAILABLE: tuple[tuple[type[Exception], str, str], ...] = (
    (WriterClosedError, "the service is stopping; repeat the request when it is back", "stopping"),
    (
        WriterFullError,
        "too many measurements are waiting to be written; try again later",
        "queue full",
    ),
    (
        WriteFailedError,
        "the database cannot be written to now; nothing of this request was stored",
        "database",
    ),
    (
        TimeoutError,
        "the database took too long; send the same again to learn whether it is stored",
        "database timeout",
    ),
)


class MeasurementIngest:
    """The endpoint.

    Args:
        access_control: authorizes tokens.
        writer: writes measurements.
        limits: of one request and of all.
    """

    def __init__(
        self, access_control: AccessControl, writer: MeasurementWriter, limits: RequestLimits
    ) -> None:
        self._access_control = access_control
        self._writer = writer
        self._limits = limits
        self._budget = BodyBudget(limits.waiting_bytes)
        self._one_at_a_time = asyncio.Lock()

    async def post_measurements(self, request: Request) -> Response:
        """Store uploaded measurements and respond with the outcome."""
        grant = await self._access_control.require_submitter(request)
        sender = make_sender(request, grant)
        with self._budget.open_lease(list_shares(grant)) as lease:
            body = await read_body(request, self._limits, lease)
            with self._writer.announce():
                measurements = await self._parse_body(body, grant)
            request.state.note = f"{len(measurements)} measurements from {grant.name}"
            added = await self._write(measurements, sender) if measurements else AddResult(0, 0)
        stored = MeasurementsStored(
            new=added.new, known=added.known, conflicting=list(added.conflicting)
        )
        return AsciiJSONResponse(stored.model_dump())

    async def _parse_body(self, body: bytes, grant: AccessGrant) -> Sequence[Measurement]:
        if len(body) <= LARGE_BODY_BYTES:
            return parse_measurements(body, grant, self._limits)
        async with self._one_at_a_time:
            return await asyncio.to_thread(parse_measurements, body, grant, self._limits)

    async def _write(self, measurements: Sequence[Measurement], sender: Sender) -> AddResult:
        try:
            result = self._writer.submit(measurements, sender)
            # After a timeout the writer continues; measurements sent again are then already stored.
            async with asyncio.timeout(self._limits.response_s):
                return await result
        except ForeignCampaignError as error:
            raise RequestRefusedError(403, error.message) from None
        except UnwritableError as error:
            suspect = "" if len(measurements) == 1 else " (this or another one of the request)"
            reason = f"the database cannot store it: {error}"[:MAX_REASON_CHARS] + suspect
            raise _invalid_measurements(
                [{"index": i, "reasons": [reason]} for i in range(len(measurements))]
            ) from None
        except KeyShareFullError:
            raise too_many_requests(
                "too many measurements of this key are waiting to be written; try again later"
            ) from None
        except tuple(kind for kind, _, _ in _UNAVAILABLE) as error:
            answers = (texts for kind, *texts in _UNAVAILABLE if isinstance(error, kind))
            raise service_unavailable(*next(answers)) from None


def parse_measurements(body: bytes, grant: AccessGrant, limits: RequestLimits) -> list[Measurement]:
    """Parse a body into measurements that are valid and that the token's holder may upload.

    Raises:
        RequestRefusedError: some measurement is invalid or belongs to another job.
    """
    measurements: list[Measurement] = []
    errors: list[dict[str, Any]] = []
    for index, item in enumerate(_parse_items(body, limits)):
        try:
            measurement = _parse_measurement(item)
            _require_own_campaign(measurement, grant, index)
            measurements.append(measurement)
        except RecordError as error:
            reasons = [reason[:MAX_REASON_CHARS] for reason in error.problems[:MAX_REASONS]]
            errors.append({"index": index, "reasons": reasons})
    if errors:
        raise _invalid_measurements(errors[:MAX_ERRORS])
    if (extras := sum(len(measurement.extras) for measurement in measurements)) > limits.extras:
        raise RequestRefusedError(
            413, f"{extras} extras in one request; send at most {limits.extras} at a time"
        )
    return measurements


def _parse_items(body: bytes, limits: RequestLimits) -> list[Any]:
    """Parse the list in a body.

    Raises:
        RequestRefusedError: the body has another form, or too many items.
    """
    document = parse_json(body, limits.json_marks)
    items = document.get("measurements") if isinstance(document, dict) else None
    if not isinstance(items, list) or len(document) != 1:
        raise RequestRefusedError(
            422, "the body must be an object with exactly 'measurements', a list", errors=[]
        )
    if len(items) > limits.measurements:
        raise RequestRefusedError(
            413, f"{len(items)} measurements in one request; send at most {limits.measurements}"
        )
    return items


def _parse_measurement(item: Any) -> Measurement:
    measurement = Measurement.from_document(item)
    require_unflagged(measurement)
    return measurement


def _require_own_campaign(measurement: Measurement, grant: AccessGrant, index: int) -> None:
    if grant.job_id is None:
        return
    owner = (measurement.values["campaign_id"], measurement.values["job_id"])
    if owner != (grant.campaign_id, grant.job_id):
        raise RequestRefusedError(
            403, f"measurement {index} does not belong to the job of this token"
        )


def _invalid_measurements(errors: Sequence[dict[str, Any]]) -> RequestRefusedError:
    count = "one measurement is" if len(errors) == 1 else "some measurements are"
    return RequestRefusedError(
        422, f"{count} invalid; nothing of this request was stored", errors=list(errors)
    )
