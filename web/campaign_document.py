"""What a submitter hands in of a campaign, as JSON: strictly checked, and described for programs.

The models have the fields of :mod:`treehammer.sql.rows`, but nested: a job is of the campaign, and an
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

from treehammer.collectors.failures import CLASSES
from treehammer.collectors.record import INT64, MAX_LONG_TEXT, is_storable
from treehammer.hctests.definition import Scalar
from treehammer.sql.handed_in import HandedIn
from treehammer.sql.rows import ELSEWHERE, AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.schema import metadata
from treehammer.submit.batch.base import JobState

#: The year 9999 ends before this, in microseconds since 1970 UTC.
_END_US = 2_932_897 * 86_400_000_000
_STATES = tuple(state.value for state in JobState)


class Mistakes(Exception):
    """What was handed in is not right; ``reasons`` are all that were found."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Open(BaseModel):
    # Another version may have asked for more: that is kept, and read by nobody.
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Definition(_Open):
    """What pages show of a test's definition, and the command that runs it again repeats."""

    dataset: str = ""
    axes: dict[str, list[Scalar]] = {}
    bundle: list[str] = []
    settings: dict[str, Any] = {}


class CampaignPlan(_Open):
    """What was asked for: definition with overrides, sites, breaker, templates by site."""

    definition: Definition = Definition()
    sites: list[str] = []
    breaker: Annotated[str, Field(pattern=r"^(off|(100|[1-9]?[0-9])%/[1-9][0-9]{0,6})$")] = "off"
    templates: dict[str, str] = {}


def _storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("must not contain NUL or lone surrogates")
    return text


def _type_of(table: str, name: str, hint: Any) -> Any:
    """The type of a field: what its column holds and its meaning allows."""
    if name == "state":
        return Literal[_STATES]
    if name == "failure_class":
        return Literal[("", *CLASSES)]
    if hint is bool:
        return bool
    if hint is str:
        limit = getattr(metadata.tables[table].c[name].type, "length", None) or MAX_LONG_TEXT
        limit -= len(ELSEWHERE) if name == "batch_system" else 0
        shape: Any = {"pattern": "^[^\\u0000]*$"}
        bounds = Field(max_length=limit, min_length=int(name == "id"), json_schema_extra=shape)
        return Annotated[str, bounds, AfterValidator(_storable)]
    least = {"number": 1, "exit_code": -INT64}.get(name, 0)
    most = _END_US - 1 if name.endswith("_us") else INT64 - 1
    number = Annotated[int, Field(ge=least, le=most)]
    return number if hint is int else number | None


def _model(name: str, kind: type, without: str = "", **others: Any) -> type[BaseModel]:
    """The model of the rows of a table, ``others`` in place of or beside its own fields."""
    hints = get_type_hints(kind)
    names = [one.name for one in fields(kind) if one.name not in (without, *others)]
    own: dict[str, Any] = {one: (_type_of(name.lower(), one, hints[one]), ...) for one in names}
    return create_model(name, __base__=_Strict, **own, **others)


def _many(model: type[BaseModel]) -> Any:
    return (list[model], ...)  # type: ignore[valid-type]  # made above


_ATTEMPT = _model("Attempt", AttemptRow, "job_id")
_JOB = _model("Job", JobRow, "campaign_id", attempts=_many(_ATTEMPT))
_CAMPAIGN = _model("Campaign", CampaignRow, plan=(CampaignPlan, ...))
_REPLICA = _model("Replica", ReplicaRow)
#: Name of the schema of what is handed in.
DOCUMENT = "HandedIn"
_DOCUMENT = create_model(
    DOCUMENT,
    __base__=_Strict,
    campaign=(_CAMPAIGN, ...),
    jobs=_many(_JOB),
    replicas=_many(_REPLICA),
)


def schemas() -> dict[str, Any]:
    """JSON Schemas by name, :data:`DOCUMENT` and what it refers to, for an OpenAPI description."""
    schema = _DOCUMENT.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs"), DOCUMENT: schema}


def count(document: Any) -> int:
    """How many rows a document has at least; 0 when it is none."""
    parts = document if isinstance(document, dict) else {}
    jobs, replicas = (parts.get(name) for name in ("jobs", "replicas"))
    attempts = [one.get("attempts") for one in _list(jobs) if isinstance(one, dict)]
    return len(_list(jobs)) + len(_list(replicas)) + sum(len(_list(some)) for some in attempts)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def read(document: Any) -> HandedIn:
    """The rows of a document.

    Raises:
        Mistakes: it is not right.
    """
    try:
        _DOCUMENT.model_validate(document)
    except ValidationError as error:
        raise Mistakes([_told(one) for one in error.errors(include_url=False)]) from None
    campaign = {**document["campaign"], "plan": _plan(document["campaign"]["plan"])}
    jobs, attempts = [], []
    for values in document["jobs"]:
        own = {name: value for name, value in values.items() if name != "attempts"}
        jobs.append(JobRow(campaign_id=campaign["id"], **own))
        attempts += [AttemptRow(job_id=own["id"], **one) for one in values["attempts"]]
    replicas = [ReplicaRow(**one) for one in document["replicas"]]
    twice = [
        *_twice("job", (job.id for job in jobs)),
        *_twice("attempt", ((one.job_id, one.number) for one in attempts)),
        *_twice("replica", (one.id for one in replicas)),
    ]
    if twice:
        raise Mistakes(twice)
    return HandedIn(CampaignRow(**campaign), jobs, attempts, replicas)


def _plan(plan: Any) -> str:
    """Canonical JSON, as a submitter keeps it."""
    try:
        text = json.dumps(plan, sort_keys=True, allow_nan=False)
        json.dumps(plan, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Mistakes(["campaign.plan must not contain lone surrogates"]) from None
    except ValueError:
        raise Mistakes(["campaign.plan must hold finite numbers only"]) from None
    except RecursionError:
        raise Mistakes(["campaign.plan is nested too deeply"]) from None
    if len(text) > MAX_LONG_TEXT:
        raise Mistakes([f"campaign.plan is longer than {MAX_LONG_TEXT} characters"])
    return text


def _twice(what: str, keys: Iterable[Hashable]) -> Iterator[str]:
    seen: set[Hashable] = set()
    for key in keys:
        if key in seen:
            yield f"{what} {key} stands twice"
        seen.add(key)


def _told(error: Any) -> str:
    """One mistake in one line, without what was sent."""
    where = ".".join(map(str, error["loc"]))
    said = str(error["msg"]).removeprefix("Value error, ")
    return f"{where or 'the body'}: {said[:1].lower()}{said[1:]}"
