"""JSON bodies of the service's own responses: each model builds and describes one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from treehammer.sql.auth.access_keys import ROLES

Count = Annotated[int, Field(ge=0)]


class ApiModel(BaseModel):
    """Base of all response bodies: no members beyond the declared ones."""

    model_config = ConfigDict(extra="forbid")


class Error(ApiModel):
    """A refused request."""

    error: str = Field(description="One sentence.")


class InvalidMeasurement(ApiModel):
    """Validation errors of one measurement."""

    index: Count = Field(description="Position in the request, from 0.")
    reasons: list[str]


class InvalidMeasurements(Error):
    """A refused upload of measurements."""

    errors: list[InvalidMeasurement]


class InvalidCampaign(Error):
    """A refused upload of a campaign."""

    reasons: list[str]


class MeasurementsStored(ApiModel):
    """Outcome of an upload of measurements."""

    new: Count
    known: Count = Field(description="Stored before with the same content.")
    conflicting: list[str] = Field(description="Identities stored before with other content.")


class CampaignStored(ApiModel):
    """Outcome of an upload of a campaign, in rows."""

    new: Count
    changed: Count
    known: Count


class StartRequest(BaseModel):
    """A job that wants to start together with others of its campaign."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    barrier: str = Field(min_length=1, max_length=64, description="Name within the campaign.")
    jobs: int = Field(ge=1, le=100_000, description="Expected jobs.")
    wait_s: float = Field(ge=0, le=86_400, description="Longest wait for missing jobs.")
    lead_s: float = Field(ge=0, le=300, description="Time that a job needs before its start.")
    waited_s: float = Field(ge=0, description="Time for which this job has waited.")
    absent: bool = Field(False, description="This job will not come: do not wait for it.")
    start_us: Annotated[int, Field(ge=0, le=2**62)] | None = Field(
        None, description="The common start, once the job knows it."
    )
    present: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description="Jobs that were present when it was set, once the job knows it."
    )


class StartAnswer(ApiModel):
    """The common start of jobs."""

    time_us: Count = Field(description="The service's clock, in microseconds since 1970 UTC.")
    start_us: Count | None = Field(description="The common start; null while jobs are missing.")
    present: Count = Field(description="Present jobs; once the start is set, those present then.")
    jobs: Count = Field(description="Expected jobs.")
    poll_s: float = Field(description="Seconds until the next request.")


class Token(ApiModel):
    """Permissions of a token."""

    role: Literal[ROLES]  # type: ignore[valid-type]
    key_id: str = Field(description="Identity of the key that signed the token.")
    name: str = Field(description="Holder of the key.")
    expires_us: int | None = Field(description="Microseconds since 1970 UTC; null for never.")
    campaign_id: str | None = Field(description="Set for the token of a job.")
    job_id: str | None = Field(description="Set for the token of a job.")


class Health(ApiModel):
    """State of the service."""

    status: Literal["ok", "unavailable"]
    version: str
    time_us: Count = Field(description="The service's clock, in microseconds since 1970 UTC.")


class PageData(ApiModel):
    """Content of a page."""

    title: str = Field(description="Title of the page.")
    tables: dict[str, list[dict[str, Any]]] = Field(description="Rows by name of the table.")
    about: dict[str, Any] = Field(description="Values of the page outside its tables.")


#: Models that the OpenAPI description refers to by name, as responses.
RESPONSE_MODELS: tuple[tuple[type[BaseModel], Literal["serialization"]], ...] = tuple(
    (model, "serialization")
    for model in (
        Error,
        InvalidMeasurements,
        InvalidCampaign,
        MeasurementsStored,
        CampaignStored,
        StartAnswer,
        Token,
        Health,
    )
)
