"""What a submitter hands in of a campaign, as JSON: strictly checked, and described for programs.

The models have the fields of :mod:`treehammer.sql.core.rows`, but nested: a job is of the campaign, and an
attempt of the job, that it stands in.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)

from treehammer.collectors.batch_names import EXTERNAL_PREFIX
from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.failures import FAILURE_CLASSES
from treehammer.collectors.record.measurement_record import INT64_LIMIT, MAX_LONG_TEXT, is_storable
from treehammer.hctests.matrix.definition import Scalar
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.core.schema import metadata
from treehammer.sql.write.uploaded_campaigns import CampaignUpload

#: The year 9999 ends before this, in microseconds since 1970 UTC.
_END_US = 2_932_897 * 86_400_000_000
_STATES = tuple(state.value for state in JobState)


class CampaignDocumentError(Exception):
    """What was handed in is not right; ``reasons`` are all that were found."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class _StrictModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _OpenModel(BaseModel):
    # Another version may have asked for more: that is kept, and read by nobody.
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class TestDefinitionModel(_OpenModel):
    """What pages show of a test's definition, and the command that runs it again repeats."""

    dataset: str = ""
    axes: dict[str, list[Scalar]] = {}
    bundle: list[str] = []
    settings: dict[str, Any] = {}


class CampaignPlanModel(_OpenModel):
    """What was asked for: definition with overrides, sites, breaker, templates by site."""

    definition: TestDefinitionModel = TestDefinitionModel()
    sites: list[str] = []
    breaker: Annotated[str, Field(pattern=r"^(off|(100|[1-9]?[0-9])%/[1-9][0-9]{0,6})$")] = "off"
    templates: dict[str, str] = {}


def _require_storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("must not contain NUL or lone surrogates")
    return text


def _field_type(table: str, name: str, hint: Any) -> Any:
    """The type of a field: what its column holds and its meaning allows."""
    if name == "state":
        return Literal[_STATES]
    if name == "failure_class":
        return Literal[("", *FAILURE_CLASSES)]
    if hint is bool:
        return bool
    if hint is str:
        limit = getattr(metadata.tables[table].c[name].type, "length", None) or MAX_LONG_TEXT
        limit -= len(EXTERNAL_PREFIX) if name == "batch_system" else 0
        shape: Any = {"pattern": "^[^\\u0000]*$"}
        bounds = Field(max_length=limit, min_length=int(name == "id"), json_schema_extra=shape)
        return Annotated[str, bounds, AfterValidator(_require_storable)]
    least = {"number": 1, "exit_code": -INT64_LIMIT}.get(name, 0)
    most = _END_US - 1 if name.endswith("_us") else INT64_LIMIT - 1
    number = Annotated[int, Field(ge=least, le=most)]
    return number if hint is int else number | None


def _row_model(name: str, kind: type, without: str = "", **others: Any) -> type[BaseModel]:
    """The model of the rows of a table, ``others`` in place of or beside its own fields."""
    hints = get_type_hints(kind)
    names = [one.name for one in fields(kind) if one.name not in (without, *others)]
    own: dict[str, Any] = {one: (_field_type(name.lower(), one, hints[one]), ...) for one in names}
    return create_model(name, __base__=_StrictModel, **own, **others)


def _list_of(model: type[BaseModel]) -> Any:
    return (list[model], ...)  # type: ignore[valid-type]  # made above


_ATTEMPT = _row_model("Attempt", AttemptRow, "job_id")
_JOB = _row_model("Job", JobRow, "campaign_id", attempts=_list_of(_ATTEMPT))
_CAMPAIGN = _row_model("Campaign", CampaignRow, plan=(CampaignPlanModel, ...))
_REPLICA = _row_model("Replica", ReplicaRow)
#: Name of the schema of what is handed in.
DOCUMENT_NAME = "HandedIn"
_DOCUMENT = create_model(
    DOCUMENT_NAME,
    __base__=_StrictModel,
    campaign=(_CAMPAIGN, ...),
    jobs=_list_of(_JOB),
    replicas=_list_of(_REPLICA),
)


def document_schemas() -> dict[str, Any]:
    """JSON Schemas by name, :data:`DOCUMENT` and what it refers to, for an OpenAPI description."""
    schema = _DOCUMENT.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs"), DOCUMENT_NAME: schema}


def count_rows(document: Any) -> int:
    """How many rows a document has at least; 0 when it is none."""
    parts = document if isinstance(document, dict) else {}
    jobs, replicas = (parts.get(name) for name in ("jobs", "replicas"))
    attempts = [one.get("attempts") for one in _as_list(jobs) if isinstance(one, dict)]
    return (
        len(_as_list(jobs))
        + len(_as_list(replicas))
        + sum(len(_as_list(some)) for some in attempts)
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def parse_campaign_document(document: Any) -> CampaignUpload:
    """The rows of a document.

    Raises:
        Mistakes: it is not right.
    """
    try:
        _DOCUMENT.model_validate(document)
    except ValidationError as error:
        raise CampaignDocumentError(
            [_describe_error(one) for one in error.errors(include_url=False)]
        ) from None
    campaign = {**document["campaign"], "plan": _canonical_plan(document["campaign"]["plan"])}
    jobs, attempts = [], []
    for values in document["jobs"]:
        own = {name: value for name, value in values.items() if name != "attempts"}
        jobs.append(JobRow(campaign_id=campaign["id"], **own))
        attempts += [AttemptRow(job_id=own["id"], **one) for one in values["attempts"]]
    replicas = [ReplicaRow(**one) for one in document["replicas"]]
    twice = [
        *_require_unique("job", (job.id for job in jobs)),
        *_require_unique("attempt", ((one.job_id, one.number) for one in attempts)),
        *_require_unique("replica", (one.id for one in replicas)),
    ]
    if twice:
        raise CampaignDocumentError(twice)
    return CampaignUpload(CampaignRow(**campaign), jobs, attempts, replicas)


def _canonical_plan(plan: Any) -> str:
    """Canonical JSON, as a submitter keeps it."""
    try:
        text = json.dumps(plan, sort_keys=True, allow_nan=False)
        json.dumps(plan, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise CampaignDocumentError(["campaign.plan must not contain lone surrogates"]) from None
    except ValueError:
        raise CampaignDocumentError(["campaign.plan must hold finite numbers only"]) from None
    except RecursionError:
        raise CampaignDocumentError(["campaign.plan is nested too deeply"]) from None
    if len(text) > MAX_LONG_TEXT:
        raise CampaignDocumentError([f"campaign.plan is longer than {MAX_LONG_TEXT} characters"])
    return text


def _require_unique(what: str, keys: Iterable[Hashable]) -> Iterator[str]:
    seen: set[Hashable] = set()
    for key in keys:
        if key in seen:
            yield f"{what} {key} stands twice"
        seen.add(key)


def _describe_error(error: Any) -> str:
    """One mistake in one line, without what was sent."""
    where = ".".join(map(str, error["loc"]))
    said = str(error["msg"]).removeprefix("Value error, ")
    return f"{where or 'the body'}: {said[:1].lower()}{said[1:]}"
