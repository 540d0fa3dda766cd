"""Checks of where results go: database, results service, and this machine's clock."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any

from treehammer.collectors.http_requests import Deadline, send_request
from treehammer.collectors.service_spec import API_PREFIX
from treehammer.config import Settings
from treehammer.errors import NothingToDoError, StoreError
from treehammer.sql.engine.database_engine import require_integrity
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.setup.schema_upgrade import REVISION
from treehammer.submit.diagnosis.diagnosis_run import Diagnosis, DiagnosisState
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS
from treehammer.submit.reporting import job_reporting
from treehammer.text_formatting import pluralize

#: Difference of clocks in seconds from which on times of records are doubtful, and unusable.
CLOCK_WARNING_S, CLOCK_FAILURE_S = 1.0, 60.0
_TIMEOUT_S = 8.0
_MAX_BYTES = 100_000


def check_revision(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the database can be opened and has this version's revision."""
    try:
        with ResultsReader.open(settings.database) as reader:
            count = len(reader.campaigns())
    except NothingToDoError:
        finding = "none yet; the first submission creates it"
        yield Diagnosis("database", DiagnosisState.NOT_CONFIGURED, finding)
        return
    yield Diagnosis(
        "database", DiagnosisState.OK, f"revision {REVISION}, {pluralize(count, 'campaign')}"
    )


def check_integrity(settings: Settings) -> Iterator[Diagnosis]:
    """Check every page, index and reference of an SQLite database."""
    try:
        reader = ResultsReader.open(settings.database)
    except (NothingToDoError, StoreError):  # reported with the revision
        return
    with reader, reader.connection() as connection:
        require_integrity(connection)
    yield Diagnosis("database integrity", DiagnosisState.OK, "undamaged")


def check_service(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the results service answers, knows this user's key and agrees on the time."""
    part, url = "results service", settings.service_url
    if not url:
        remedy = "Set service_url if jobs report to a service."
        yield Diagnosis(part, DiagnosisState.NOT_CONFIGURED, "none", remedy)
        return
    before = time.time()
    try:
        health = _fetch_health(settings)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        remedy = "Check service_url, service_ca_file, the network, and that treehammer serve runs."
        yield Diagnosis(part, DiagnosisState.FAILED, f"{url}: {reason}", remedy)
        return
    yield Diagnosis(part, DiagnosisState.OK, f"{url} answers, version {health['version']}")
    yield compare_clocks((before + time.time()) / 2, float(health["time_us"]) / 1e6)
    warnings = job_reporting.check_service(settings, DEFAULT_OPTIONS)
    if warnings:
        yield Diagnosis("service key", DiagnosisState.FAILED, warnings[0])
    else:
        yield Diagnosis("service key", DiagnosisState.OK, "accepted")


def compare_clocks(here_s: float, there_s: float) -> Diagnosis:
    """Judge the difference of this machine's clock from the service's."""
    offset = here_s - there_s
    finding = f"{offset:+.1f} s from the results service"
    if abs(offset) < CLOCK_WARNING_S:
        return Diagnosis("clock", DiagnosisState.OK, finding)
    state = DiagnosisState.FAILED if abs(offset) >= CLOCK_FAILURE_S else DiagnosisState.WARNING
    return Diagnosis(
        "clock", state, finding, "Synchronize the clocks, e.g. by chrony or timesyncd."
    )


def _fetch_health(settings: Settings) -> dict[str, Any]:
    """Fetch the state of the service.

    Raises:
        OSError: it cannot be reached.
        ValueError: it is not a Treehammer service.
    """
    ca = settings.service_ca_file
    context = ssl.create_default_context(cafile=str(ca) if ca else None)
    url = f"{settings.service_url}{API_PREFIX}/health"
    with send_request("GET", url, Deadline(_TIMEOUT_S), context=context) as reply:
        document = json.loads(reply.read(_MAX_BYTES))
    if not isinstance(document, dict) or "time_us" not in document:
        raise ValueError("the server at this address is not a Treehammer service")
    return document
