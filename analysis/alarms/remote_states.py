"""States from a results service, for monitoring on another machine."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from treehammer.analysis.alarms.alarm_levels import (
    SERVICE_NAME,
    AlarmFigure,
    AlarmKind,
    AlarmLevel,
    SubjectState,
    judge_figure,
    worst_level,
)
from treehammer.collectors.service_spec import API_PREFIX
from treehammer.collectors.tls_context import make_tls_context
from treehammer.errors import ConfigError, NothingToDoError, StoreError

#: Seconds that the service may take for its state.
ANSWER_WARNING_S, ANSWER_CRITICAL_S = 5.0, 20.0
#: Bytes of a response that are read.
_MAX_RESPONSE_BYTES = 50_000_000


@dataclass(frozen=True)
class RemoteService:
    """A results service.

    Attributes:
        url: its base address.
        timeout_s: bounds each network wait.
        token: key with the role read; '' if reading is public.
        ca_file: certificate authorities; '' for the system's.
    """

    url: str
    timeout_s: float
    token: str = ""
    ca_file: str = ""

    def __repr__(self) -> str:
        return f"RemoteService({self.url!r})"

    def fetch_states(self, kind: AlarmKind | None = None, name: str = "") -> list[SubjectState]:
        """Fetch the states of all subjects, or the one of a kind and name.

        Raises:
            StoreError: the service does not answer, or not with states.
            NothingToDoError: it does not know the subject.
        """
        query = {"kind": kind.value, "name": name} if kind else {}
        document = self._get(f"/alarms?{urlencode({**query, 'table': 'states'})}")
        try:
            rows = document["tables"]["states"]
            return [SubjectState.from_document(row) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError("the response holds no states", where=self.url) from error

    def assess_service(self) -> SubjectState:
        """Assess the service by its own state and by the time that it takes to answer."""
        start = time.monotonic()
        try:
            (state,) = self.fetch_states(AlarmKind.SERVICE, SERVICE_NAME)
        except StoreError as error:
            return SubjectState(
                AlarmKind.SERVICE, SERVICE_NAME, AlarmLevel.CRITICAL, error.message, rule="answer/1"
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
        request = urllib.request.Request(  # noqa: S310 - the caller checked the scheme
            self.url.rstrip("/") + API_PREFIX + path, headers={"Accept": "application/json"}
        )
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            context = make_tls_context({"SSL_CERT_FILE": self.ca_file} if self.ca_file else {})
            with urllib.request.urlopen(  # noqa: S310 - as above
                request, timeout=self.timeout_s, context=context
            ) as response:
                document = json.loads(response.read(_MAX_RESPONSE_BYTES))
        except urllib.error.HTTPError as error:
            raise _explain_status(error, self.url) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise StoreError(f"the service does not answer: {reason}", where=self.url) from error
        if not isinstance(document, dict):
            raise StoreError("the response is not a JSON object", where=self.url)
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
            return NothingToDoError("the service does not know this site or release", where=url)
    return StoreError(f"the service answered with status {error.code}", where=url)
