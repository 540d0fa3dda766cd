"""Uploads: ``POST /api/v1/measurements`` and ``POST /api/v1/campaigns``.

Measurements are acknowledged once they are stored. Campaigns come from their submitters, with jobs and
attempts; their strict models are generated from the row classes of :mod:`treehammer.sql.core.rows`,
nested: a job belongs to the document's campaign, and an attempt to the job that contains it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from starlette.requests import Request
from starlette.responses import Response

from treehammer.collectors.job_spec import EXTERNAL_PREFIX, JobState
from treehammer.collectors.record.measurement_record import Measurement, RecordError
from treehammer.collectors.record.metric_catalogue import INT64_LIMIT, MAX_LONG_TEXT
from treehammer.collectors.record.outcome import FAILURE_CLASSES
from treehammer.collectors.record.value_checks import is_storable
from treehammer.errors import ForeignCampaignError, StoreError, UnstorableContentError
from treehammer.sql.core.access_keys import AccessGrant
from treehammer.sql.core.campaign_plan import CampaignPlan, describe_problem
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.core.schema import metadata
from treehammer.sql.write.audit_trail import Sender
from treehammer.sql.write.quality_flags import require_unflagged
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import CampaignUpload, UploadResult
from treehammer.web.core.auth import AccessControl, make_sender
from treehammer.web.core.measurement_writer import (
    KeyShareFullError,
    MeasurementWriter,
    UnwritableError,
    WriteFailedError,
    WriterClosedError,
    WriterFullError,
)
from treehammer.web.core.request_limits import (
    BodyBudget,
    RequestLimits,
    parse_json,
    too_many_requests,
)
from treehammer.web.core.responses import (
    AsciiJSONResponse,
    CampaignStored,
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
#: End of the year 9999, in microseconds since 1970 UTC.
_END_US = 2_932_897 * 86_400_000_000
_STATES = tuple(state.value for state in JobState)
#: Rows per request, and bytes of all decompressed bodies in progress.
MAX_ROWS, MAX_WAITING_BYTES = 2000, 64_000_000


class MeasurementIngest:
    """Endpoint for measurements."""

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
        async with self._budget.read_body(request, self._limits, grant) as body:
            parse = partial(parse_measurements, body, grant, self._limits)
            if len(body) <= LARGE_BODY_BYTES:
                measurements = parse()
            else:
                async with self._one_at_a_time:
                    measurements = await asyncio.to_thread(parse)
            request.state.note = f"{len(measurements)} measurements from {grant.name}"
            result = await self._write(measurements, sender) if measurements else AddResult(0, 0)
        outcome = MeasurementsStored(
            new=result.new, known=result.duplicates, conflicting=list(result.conflicting)
        )
        return AsciiJSONResponse(outcome.model_dump())

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
    """Parse a body into valid measurements of the token's holder; others are refused."""
    measurements: list[Measurement] = []
    errors: list[dict[str, Any]] = []
    for index, item in enumerate(_parse_items(body, limits)):
        try:
            measurement = Measurement.from_document(item)
            require_unflagged(measurement)
            job = (measurement.values["campaign_id"], measurement.values["job_id"])
            if grant.job_id is not None and job != (grant.campaign_id, grant.job_id):
                text = f"measurement {index} does not belong to the job of this token"
                raise RequestRefusedError(403, text)
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
    """Parse the list in a body; another form, and too many items, are refused."""
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


def _invalid_measurements(errors: Sequence[dict[str, Any]]) -> RequestRefusedError:
    count = "one measurement is" if len(errors) == 1 else "some measurements are"
    return RequestRefusedError(
        422, f"{count} invalid; nothing of this request was stored", errors=list(errors)
    )


class CampaignDocumentError(Exception):
    """An invalid campaign document, with all reasons."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class _StrictModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def _require_storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("must not contain NUL or lone surrogates")
    return text


def _field_type(table: str, name: str, hint: Any) -> Any:
    """Derive a field's type from its column and its meaning."""
    if name == "state":
        return Literal[_STATES]
    if name == "failure_class":
        return Literal[("", *FAILURE_CLASSES)]
    if hint is bool:
        return bool
    if hint is str:
        limit = getattr(metadata.tables[table].c[name].type, "length", None) or MAX_LONG_TEXT
        limit -= len(EXTERNAL_PREFIX) if name == "batch_system" else 0
        pattern: Any = {"pattern": "^[^\\u0000]*$"}
        bounds = Field(max_length=limit, min_length=int(name == "id"), json_schema_extra=pattern)
        return Annotated[str, bounds, AfterValidator(_require_storable)]
    minimum = {"number": 1, "exit_code": -INT64_LIMIT}.get(name, 0)
    maximum = _END_US - 1 if name.endswith("_us") else INT64_LIMIT - 1
    number = Annotated[int, Field(ge=minimum, le=maximum)]
    return number if hint is int else number | None


def _row_model(name: str, row_class: type, omit: str = "", **replacements: Any) -> type[BaseModel]:
    """Build the model of a table's rows, with ``replacements`` replacing or extending its fields."""
    hints = get_type_hints(row_class)
    names = [field.name for field in fields(row_class) if field.name not in (omit, *replacements)]
    row_fields: dict[str, Any] = {
        field: (_field_type(name.lower(), field, hints[field]), ...) for field in names
    }
    return create_model(name, __base__=_StrictModel, **row_fields, **replacements)


def _make_list_field(model: type[BaseModel]) -> Any:
    return (list[model], ...)  # type: ignore[valid-type]  # created at run time


_ATTEMPT = _row_model("Attempt", AttemptRow, "job_id")
_JOB = _row_model("Job", JobRow, "campaign_id", attempts=_make_list_field(_ATTEMPT))
_CAMPAIGN = _row_model("Campaign", CampaignRow, plan=(CampaignPlan, ...))
_REPLICA = _row_model("Replica", ReplicaRow, "owner")
#: Model of the request body; its name is that of the schema in the OpenAPI description.
CampaignDocument = create_model(
    "CampaignUpload",
    __base__=_StrictModel,
    campaign=(_CAMPAIGN, ...),
    jobs=_make_list_field(_JOB),
    replicas=_make_list_field(_REPLICA),
)


def count_rows(document: Any) -> int:
    """Count jobs, attempts and replicas of a document that may be invalid."""
    jobs, replicas = (_get_list(document, name) for name in ("jobs", "replicas"))
    return len(jobs) + len(replicas) + sum(len(_get_list(job, "attempts")) for job in jobs)


def _get_list(document: Any, name: str) -> list[Any]:
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, list) else []


def parse_campaign_document(document: Any) -> CampaignUpload:
    """Validate a document and convert it to rows, or raise its errors."""
    try:
        model: Any = CampaignDocument.model_validate(document)
    except ValidationError as error:
        raise CampaignDocumentError(
            [describe_problem(details, "the body") for details in error.errors(include_url=False)]
        ) from None
    plan = model.campaign.plan
    _require_storable_plan(plan)
    upload = _build_rows(document, plan)
    duplicates = [
        *_find_duplicates("job", (job.id for job in upload.jobs)),
        *_find_duplicates(
            "attempt", ((attempt.job_id, attempt.number) for attempt in upload.attempts)
        ),
        *_find_duplicates("replica", (replica.id for replica in upload.replicas)),
    ]
    if duplicates:
        raise CampaignDocumentError(duplicates)
    return upload


def _build_rows(document: Any, plan: CampaignPlan) -> CampaignUpload:
    campaign = CampaignRow(**{**document["campaign"], "plan": plan})
    jobs, attempts = [], []
    for values in document["jobs"]:
        columns = {name: value for name, value in values.items() if name != "attempts"}
        jobs.append(JobRow(campaign_id=campaign.id, **columns))
        attempts += [AttemptRow(job_id=columns["id"], **attempt) for attempt in values["attempts"]]
    replicas = [ReplicaRow(**replica) for replica in document["replicas"]]
    return CampaignUpload(campaign, jobs, attempts, replicas)


def _require_storable_plan(plan: CampaignPlan) -> None:
    """Refuse a plan whose text the database could not store."""
    try:
        json.dumps(plan.to_document(), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise CampaignDocumentError(["campaign.plan must not contain lone surrogates"]) from None
    except ValueError:
        raise CampaignDocumentError(["campaign.plan must contain finite numbers only"]) from None
    except RecursionError:
        raise CampaignDocumentError(["campaign.plan is nested too deeply"]) from None
    if len(plan.to_json()) > MAX_LONG_TEXT:
        raise CampaignDocumentError([f"campaign.plan is longer than {MAX_LONG_TEXT} characters"])


def _find_duplicates(kind: str, keys: Iterable[Hashable]) -> Iterator[str]:
    earlier: set[Hashable] = set()
    for key in keys:
        if key in earlier:
            yield f"duplicate {kind} {key}"
        earlier.add(key)


class CampaignIngest:
    """Endpoint for campaigns.

    Args:
        write: stores an upload of a sender, durably when it returns; called in a thread.
    """

    def __init__(
        self,
        access_control: AccessControl,
        write: Callable[[CampaignUpload, Sender], UploadResult],
        limits: RequestLimits,
    ) -> None:
        self._access_control = access_control
        self._write = write
        self._limits = limits
        self._budget = BodyBudget(MAX_WAITING_BYTES)
        # A transaction that takes too long ends in its thread, and later ones wait for it even if its
        # client has left.
        self._thread = ThreadPoolExecutor(1, "campaigns")

    async def post_campaign(self, request: Request) -> Response:
        """Store an uploaded campaign and respond with the outcome."""
        grant = await self._access_control.require_submitter(request)
        if grant.job_id is not None:
            raise RequestRefusedError(403, "the token of a job permits only its measurements")
        async with self._budget.read_body(request, self._limits, grant) as body:
            try:
                async with asyncio.timeout(self._limits.response_s):
                    upload, result = await asyncio.get_running_loop().run_in_executor(
                        self._thread, self._store_document, body, make_sender(request, grant)
                    )
            except TimeoutError:
                raise service_unavailable(
                    "the database took too long; repeat the same request"
                ) from None
        request.state.note = (
            f"{upload.row_count} rows of campaign {upload.campaign.id} from {grant.name}"
        )
        outcome = CampaignStored(new=result.new, changed=result.changed, known=result.unchanged)
        return AsciiJSONResponse(outcome.model_dump())

    def _store_document(self, body: bytes, sender: Sender) -> tuple[CampaignUpload, UploadResult]:
        document = parse_json(body, self._limits.json_marks)
        if (rows := count_rows(document)) > MAX_ROWS:
            raise RequestRefusedError(413, f"{rows} rows in one request; send at most {MAX_ROWS}")
        try:
            upload = parse_campaign_document(document)
            return upload, self._write(upload, sender)
        except CampaignDocumentError as error:
            raise _invalid_campaign(error.reasons[:MAX_REASONS]) from None
        except ForeignCampaignError as error:
            raise RequestRefusedError(403, error.message) from None
        except UnstorableContentError as error:
            raise _invalid_campaign([error.message]) from None
        except StoreError:
            raise service_unavailable(
                "the database cannot be written to now; repeat the same request"
            ) from None


def _invalid_campaign(reasons: Sequence[str]) -> RequestRefusedError:
    short = [reason[:MAX_REASON_CHARS] for reason in reasons]
    sentence = f"the campaign is invalid and nothing of this request was stored: {short[0]}"
    return RequestRefusedError(422, sentence, reasons=short)
