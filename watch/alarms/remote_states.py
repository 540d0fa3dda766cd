"""States of sites, releases and the service as another results service sends them."""

from __future__ import annotations

import http.client
import time
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treehammer.collectors.http_requests import Deadline, mask_credentials, send_request
from treehammer.collectors.job_spec import API_PREFIX
from treehammer.collectors.json_documents import decode_json
from treehammer.collectors.worker.service_client import describe_network_error, make_service_context
from treehammer.config import Settings
from treehammer.errors import ConfigError, InfrastructureError, NothingToDoError, StoreError
from treehammer.setting_parsers import is_loopback, split_http_url
from treehammer.sql.core.access_keys import load_user_key
from treehammer.watch.alarms.subject_state import (
    SERVICE_NAME,
    AlarmFigure,
    AlarmKind,
    AlarmLevel,
    SubjectState,
    judge_figure,
    worst_level,
)

#: Seconds that the service may take for its state.
ANSWER_WARNING_S, ANSWER_CRITICAL_S = 5.0, 20.0
#: Bytes of a response that are read.
_MAX_RESPONSE_BYTES = 50_000_000

_Text = Annotated[str, Field(max_length=10_000)]
_Number = Annotated[float, Field(ge=-1e18, le=1e18)]


class _FigureDocument(BaseModel):
    """Figure of a state as another service sends it."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9_]{1,64}$")
    value: _Number | None
    unit: str = Field(pattern=r"^[A-Za-z%]{0,8}$")
    warning: _Number | None = None
    critical: _Number | None = None
    maximum: _Number | None = None


class _StateDocument(BaseModel):
    """State of a subject as another service sends it."""

    model_config = ConfigDict(strict=True)

    kind: AlarmKind = Field(strict=False)
    name: _Text
    state: AlarmLevel = Field(strict=False)
    summary: _Text
    details: tuple[_Text, ...] = Field(max_length=1000, strict=False)
    figures: list[_FigureDocument] = Field(max_length=1000)
    since_us: Annotated[int, Field(ge=0, le=2**62)] | None
    evidence: _Text
    rule: _Text

    def to_state(self) -> SubjectState:
        """Return the state."""
        figures = tuple(AlarmFigure(**vars(figure)) for figure in self.figures)
        values = {**vars(self), "figures": figures}
        return SubjectState(level=values.pop("state"), **values)


@dataclass(frozen=True)
class RemoteService:
    """A results service.

    Attributes:
        url: its base address.
        timeout_s: bounds each request.
        token: key with the role read; '' if reading is public.
        ca_file: certificate authorities; '' for the system's.
    """

    url: str
    timeout_s: float
    token: str = field(default="", repr=False)
    ca_file: str = ""

    @classmethod
    def open(cls, settings: Settings, url: str, timeout_s: float) -> RemoteService:
        """Open the service at an address with the user's key.

        Raises:
            NothingToDoError: the address is neither encrypted nor of this machine, or has a user.
        """
        parts = split_http_url(url)
        is_safe = parts and (parts.scheme == "https" or is_loopback(str(parts.hostname)))
        masked = mask_credentials(url)
        if not is_safe or masked != url:
            raise NothingToDoError(
                "the address must begin with https:// or be local, without a user", where=masked
            )
        key = load_user_key(settings)
        return cls(url, timeout_s, key.text if key else "", str(settings.service_ca_file or ""))

    def fetch_states(self, kind: AlarmKind | None, name: str) -> list[SubjectState]:
        """Fetch the states of all subjects, or the one of a kind and name.

        Raises:
            StoreError: the service does not answer.
            InfrastructureError: it answers, but not with these states.
            NothingToDoError: it does not know the subject.
        """
        query = {"kind": kind.value, "name": name} if kind else {}
        document = self._get(f"/alarms?{urlencode({**query, 'table': 'states'})}")
        tables = document.get("tables")
        rows = tables.get("states") if isinstance(tables, dict) else None
        if not isinstance(rows, list):
            raise InfrastructureError("the response holds no states", where=self.url)
        try:
            states = [_StateDocument.model_validate(row).to_state() for row in rows]
        except (ValidationError, OverflowError) as error:
            raise InfrastructureError(
                "the response holds an invalid state", where=self.url
            ) from error
        subjects = [(state.kind, state.name) for state in states]
        if not subjects or (kind and subjects != [(kind, name)]):
            raise InfrastructureError(
                "the response holds other states than asked for", where=self.url
            )
        return states

    def assess_service(self) -> SubjectState:
        """Assess the service by its own state and by the time that it takes to answer.

        Raises:
            InfrastructureError: it answers, but not with its state.
        """
        start = time.monotonic()
        try:
            (state,) = self.fetch_states(AlarmKind.SERVICE, SERVICE_NAME)
        except StoreError as error:
            return SubjectState(
                AlarmKind.SERVICE,
                SERVICE_NAME,
                AlarmLevel.CRITICAL,
                error.message,
                (error.message,),
                rule="answer/1",
            )
        taken_s = time.monotonic() - start
        answer = AlarmFigure("answer", taken_s, "s", ANSWER_WARNING_S, ANSWER_CRITICAL_S)
        level = judge_figure(answer)
        slow = f"answered after {taken_s:.1f} s" if level is not AlarmLevel.OK else ""
        return replace(
            state,
            level=worst_level(state.level, level),
            summary=", ".join(filter(None, (slow, state.summary))),
            figures=(answer, *state.figures),
        )

    def _get(self, path: str) -> Mapping[str, Any]:
        url = self.url.rstrip("/") + API_PREFIX + path
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            context = make_service_context(self.ca_file)
            # A service does not redirect its API; the token stays with the configured address.
            with send_request(
                "GET", url, Deadline(self.timeout_s), headers, context=context, follows=False
            ) as response:
                body = response.read(_MAX_RESPONSE_BYTES)
        except urllib.error.HTTPError as error:
            raise _explain_status(error, self.url) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = describe_network_error(getattr(error, "reason", error))
            raise StoreError(f"the service does not answer: {reason}", where=self.url) from error
        try:
            document = decode_json(body)
        except ValueError as error:
            raise InfrastructureError("the response is not JSON", where=self.url) from error
        if not isinstance(document, dict):
            raise InfrastructureError("the response is not a JSON object", where=self.url)
        return document


def _explain_status(error: urllib.error.HTTPError, url: str) -> Exception:
    with error:
        if error.code in (401, 403):
            return ConfigError(
                "the service requires a key with the role read",
                where=url,
                hint="Name its file as service_token_file.",
            )
        if error.code == 404:
            return NothingToDoError("no service is there, or it does not know this name", where=url)
    return StoreError(f"the service answered with status {error.code}", where=url)
