"""Fuzzing of the API: no internal errors, and only acknowledged content is stored.

Every run uses the same inputs; the environment variable ``FUZZ`` multiplies their number.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measurement_factory import STARTED_DAY, STARTED_US, make_measurement
from postgres_fixture import SharedPostgresServer
from service_thread import ServiceThread, make_body, run_service

from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.collectors.record.measurement_record import FIRST_START_US, make_measurement_id
from treehammer.collectors.record.metric_catalogue import (
    CATALOGUE,
    INT64_LIMIT,
    METRICS_BY_NAME,
    Metric,
)
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.collectors.record.outcome import FAILURE_CLASSES
from treehammer.collectors.record.plausibility import find_implausibilities
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.web.api.openapi import build_description
from treehammer.web.api.page_data import OPERATIONS
from treehammer.web.core.request_limits import RequestLimits

if TYPE_CHECKING:
    from schemathesis import Case

TIMES = float(os.environ.get("FUZZ", "1"))


def try_all(function: Callable[..., None], examples: int, *inputs: st.SearchStrategy[Any]) -> None:
    """Call a function with a number of generated inputs."""
    limits = settings(
        max_examples=math.ceil(examples * TIMES),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    limits(given(*inputs)(function))()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceThread]:
    with run_service(tmp_path) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceThread]:
    if request.param == "sqlite":
        with run_service(tmp_path) as running:
            yield running
        return
    server: SharedPostgresServer = request.getfixturevalue("postgresql")
    name = server.make_database()
    with run_service(tmp_path, url=server.url(name)) as running:
        yield running
    server.drop_database(name)


class Sent:
    """Acknowledged records, and the check that they are stored."""

    def __init__(self, service: ServiceThread) -> None:
        self.service = service
        self.key = service.make_key("admin").text
        self.records: dict[str, dict[str, Any]] = {}

    def note(self, items: list[dict[str, Any]], outcome: dict[str, Any]) -> None:
        """Remember acknowledged records; the first of an identity is stored."""
        for item in items:
            self.records.setdefault(item["values"]["measurement_id"], item)
        assert outcome["new"] + outcome["known"] + len(outcome["conflicting"]) == len(items)

    def check(self) -> None:
        """Check that exactly the acknowledged records are stored, unchanged."""
        counts = check_database(self.service.url)
        assert counts["measurement"] == len(self.records)
        for id_, item in self.records.items():
            document = self.service.get_path(f"/api/v1/measurements/{id_}", self.key).json()
            sent = {
                name: value for name, value in item["values"].items() if value not in (None, "")
            }
            if "site" in sent:  # the default of the store
                sent.setdefault("storage_site", sent["site"])
            # The service judges what it receives.
            for judged in ("plausible", "implausible_reasons"):
                sent.pop(judged, None)
            is_plausible = document["values"].pop("plausible")
            reasons = document["values"].pop("implausible_reasons", "")
            # A sender need not say why it calls a measurement implausible.
            assert is_plausible is not bool(reasons or not item["values"]["plausible"])
            assert not (is_plausible and find_implausibilities(item["values"]))
            expected = {"values": sent, "extras": item["extras"]}
            if item.get("operations"):
                expected["operations"] = [
                    {name: value for name, value in row.items() if value is not None}
                    for row in item["operations"]
                ]
            assert document == expected


# Inputs generated from the OpenAPI description


#: Operations without invalid inputs, except NUL in a path.
WITHOUT_INVALID_INPUT = (
    "GET /api/v1/token",
    "GET /api/v1/health",
    "GET /api/v1/live",
    "GET /api/v1/openapi.json",
    "GET /api/v1/measurements/{measurement_id}",
    "GET /api/v1/campaigns/{campaign_id}/operations",
)

CAMPAIGN_UPLOAD = "POST /api/v1/campaigns"

#: Operations with conditions on columns, whose syntax no schema describes.
CONDITIONS = [f"GET /api/v1/{n}" for n in ("explore", "figures/s0", "figures/cache", "compare")]


def test_service_conforms_to_description(service: ServiceThread) -> None:
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    schema = schemathesis.openapi.from_dict(build_description(RequestLimits()))
    stored = Sent(service)
    seen: dict[str, set[int]] = {}

    def check_case(case: Case[Any]) -> None:
        label = case.operation.label
        if label == CAMPAIGN_UPLOAD:
            remove_duplicates(case.body)
        elif label.startswith("POST"):
            make_consistent(case.body)
        answer = case.call(
            base_url=str(service.client.base_url), headers={"Authorization": f"Bearer {stored.key}"}
        )
        # The size of a body is checked before its content.
        excluded: list[Any] = [negative_data_rejection] if answer.status_code == 413 else []
        excluded += [positive_data_acceptance] if label in CONDITIONS else []
        case.validate_response(answer, excluded_checks=excluded)
        seen.setdefault(label, set()).add(answer.status_code)
        body: Any = case.body
        if label == CAMPAIGN_UPLOAD and answer.status_code == 200:
            assert sum(answer.json().values()) == len(rows_of(body))
        elif label.startswith("POST") and answer.status_code == 200:
            stored.note(body["measurements"], answer.json())

    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]  # The description is valid.
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and operation.label in WITHOUT_INVALID_INPUT:
                continue
            of_pages = operation.definition.raw["operationId"] in {page.name for page in OPERATIONS}
            try_all(
                check_case,
                5 if "requestBody" in operation.definition.raw else 1 if of_pages else 2,
                operation.as_strategy(generation_mode=mode),
            )
    assert {200, 422} <= seen["POST /api/v1/measurements"]
    assert {200, 422} <= seen[CAMPAIGN_UPLOAD]
    open_all_pages(service, stored.key)
    stored.check()
    assert len(stored.records) > 5


def open_all_pages(service: ServiceThread, key: str) -> None:
    """Check that pages can show every uploaded campaign."""
    campaigns = service.store.campaigns()
    jobs = [job for row in campaigns for job in service.store.jobs(row.id)]
    assert campaigns
    ids = [("/campaigns", row.id) for row in campaigns] + [("/jobs", job.id) for job in jobs]
    for path in ["/", "/campaigns", *(f"{kind}/{quote(id_, safe='')}" for kind, id_ in ids)]:
        assert service.get_path(path, key).status_code == 200, path


def remove_duplicates(document: Any) -> None:
    """Remove duplicates from a campaign's document, which no schema can exclude."""
    if not isinstance(document, dict):
        return
    campaign = document.get("campaign")
    of = campaign.get("id") if isinstance(campaign, dict) else None
    jobs = document.get("jobs")
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, dict) and isinstance(job.get("id"), str) and 0 < len(job["id"]) <= 128:
            job["id"] = make_measurement_id(f"{of}/{job['id']}", 1, 1, 1)
    for part in document.keys() & {"jobs", "replicas"}:
        document[part] = keep_first(document[part], "id")
    for row in rows_of(document):
        if "attempts" in row:
            row["attempts"] = keep_first(row["attempts"], "number")
    for row in rows_of(document):
        row.update({name: whole(value) for name, value in row.items()})


def keep_first(items: Any, name: str) -> Any:
    """Return a list without items that repeat the value of a member."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return items
    return list({str(whole(item.get(name))): item for item in items}.values())


def rows_of(document: Any) -> list[dict[str, Any]]:
    """Return all rows of a campaign's document that are objects."""
    jobs, replicas = (document.get(name) for name in ("jobs", "replicas"))
    rows = [document.get("campaign"), *(jobs if isinstance(jobs, list) else ())]
    for job in rows[1:]:
        attempts = job.get("attempts") if isinstance(job, dict) else None
        rows += attempts if isinstance(attempts, list) else ()
    rows += replicas if isinstance(replicas, list) else ()
    return [row for row in rows if isinstance(row, dict)]


def make_consistent(document: Any) -> None:
    """Make records consistent where no schema can describe the rule."""
    items = document.get("measurements") if isinstance(document, dict) else None
    for item in items if isinstance(items, list) else []:
        values = item.get("values") if isinstance(item, dict) else None
        if not isinstance(values, dict):
            continue
        operations = item.get("operations")
        for row in operations if isinstance(operations, list) else []:
            make_operation_consistent(row)
        for name, value in values.items():
            kind = METRICS_BY_NAME[name].type if name in METRICS_BY_NAME else ""
            if kind == "int":
                values[name] = whole(value)
            elif kind == "ints" and isinstance(value, list):
                values[name] = [whole(number) for number in value]
        names = ("job_id", "attempt", "round", "position")
        # Values that are invalid on purpose stay invalid.
        id_, day, started_us = (values.get(n) for n in ("measurement_id", "day", "started_us"))
        if all(name in values for name in names) and isinstance(id_, str) and 0 < len(id_) <= 128:
            values["measurement_id"] = make_measurement_id(*(values[name] for name in names))
        if type(started_us) is int and started_us >= 0:
            started_us = values["started_us"] = min(max(started_us, FIRST_START_US), STARTED_US)
        if isinstance(started_us, int) and isinstance(day, int) and 19700101 <= day <= 99991231:
            values["day"] = epoch_day_to_number(started_us // DAY_US)
        variant, why = values.get("variant"), values.get("implausible_reasons")
        if isinstance(variant, str) and len(variant) <= METRICS_BY_NAME["variant"].max_length:
            values["variant"] = json.dumps({"axis": len(variant)})
        if values.get("plausible") is True and isinstance(why, str):
            values["plausible"] = not why


def make_operation_consistent(row: Any) -> None:
    """Make a row of operations consistent; values that are invalid on purpose stay invalid."""
    if not isinstance(row, dict):
        return
    for metric in OPERATION_METRICS:
        name = metric.name
        value = whole(row.get(name)) if metric.type == "int" else row.get(name)
        if name in ("done", "failed", "late", "held") and type(value) is int and value >= 0:
            row[name] = 0 if value < INT64_LIMIT else value
        elif name in _CONSISTENT_TEXTS and isinstance(value, str):
            fits = metric.is_identity <= len(value) <= metric.max_length and "\0" not in value
            row[name] = _CONSISTENT_TEXTS[name] if fits else value
        elif metric.type == "float" and isinstance(value, int | float) and value is not True:
            row[name] = abs(value) or 1.0
        elif name in row:
            row[name] = value


#: Texts without operations that ended.
_CONSISTENT_TEXTS = {"operation": "open", "failures": "{}", "latency": ""}


def whole(value: Any) -> Any:
    """Convert a float like 1.0, an integer in JSON Schema but not in records."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Valid records generated from the metric catalogue

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
INT = st.integers(-INT64_LIMIT, INT64_LIMIT - 1) | st.sampled_from(
    [0, 1, -1, INT64_LIMIT - 1, -INT64_LIMIT, 2**53 + 1]
)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)


def values_of(metric: Metric) -> st.SearchStrategy[Any]:
    if metric.choices:
        return st.sampled_from(metric.choices)
    if metric.type == "text":
        limit = metric.max_length
        longest = st.sampled_from(["x", "é", "\U0001f600"]).map(lambda c: c * min(limit, 4000))
        short = TEXT.filter(bool) if metric.is_identity else TEXT
        return short | (longest if metric.name in ("host", "failure_message", "job_id") else short)
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "int": INT,
        "float": FLOAT | INT.map(lambda number: number % 2**53),
        "bool": st.booleans(),
        "ints": st.lists(
            st.integers(0, INT64_LIMIT - 1) if metric.minimum == 0 else INT, max_size=5
        ),
        "floats": st.lists(FLOAT, max_size=5),
    }
    return kinds[metric.type]


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    values = dict(make_measurement().values)
    for metric in draw(st.lists(st.sampled_from(CATALOGUE), max_size=25)):
        values[metric.name] = draw(values_of(metric))
    values |= {
        "record_version": 1,
        # A job belongs to the campaign under which it was first sent.
        "campaign_id": "campaign",
        "kind": draw(st.sampled_from(["timed", "checksum"])),
        "failure_class": draw(st.sampled_from([None, "", *FAILURE_CLASSES])),
        "started_us": draw(st.integers(FIRST_START_US, STARTED_US)),
        "day": STARTED_DAY,  # Replaced by make_consistent.
        **{name: draw(st.integers(1, 3)) for name in ("attempt", "repeat", "round", "position")},
    }
    make_consistent({"measurements": [{"values": values}]})
    name = st.from_regex("[A-Za-z_][A-Za-z0-9_]{0,63}", fullmatch=True)
    return {"values": values, "extras": draw(st.dictionaries(name, FLOAT, max_size=3))}


def test_valid_record_is_returned_unchanged(either: ServiceThread) -> None:
    service, stored = either, Sent(either)
    key = stored.key

    def post(items: list[dict[str, Any]], zipped: bool) -> None:
        data = json.dumps({"measurements": items}).encode()
        headers = {"Content_Encoding": "gzip"} if zipped else {}
        answer = service.post_document(gzip.compress(data) if zipped else data, key, **headers)
        assert answer.status_code == 200, answer.text
        stored.note(items, answer.json())
        repeated = service.post_document(data, key).json()
        assert repeated["new"] == 0

    try_all(post, 30, st.lists(records(), min_size=1, max_size=3), st.booleans())
    stored.check()


# Arbitrary bytes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
GOOD = json.dumps(make_body([make_measurement()])).encode()


@st.composite
def damaged_bodies(draw: st.DrawFn) -> bytes:
    """Generate a valid body with bytes changed, removed or repeated."""
    data = bytearray(GOOD)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data) - 1))
        length = draw(st.integers(0, 8))
        data[place : place + length] = draw(st.binary(max_size=8) | st.just(bytes(data[:length])))
    return bytes(data)


def test_arbitrary_body_causes_no_internal_error(service: ServiceThread) -> None:
    key = service.make_key("admin").text
    nested = JSON.map(
        lambda value: json.dumps({"measurements": [{"values": value, "extras": value}]})
    )
    odd = st.sampled_from(["application/json", "application/json;charset=utf-8", "text/json", "é"])

    def post(data: bytes, coding: str, kind: str, token: str) -> None:
        headers = {"Content-Encoding": coding, "Content-Type": kind}
        headers["Authorization"] = f"Bearer {token}"
        encoded = {n.encode(): value.encode("latin-1") for n, value in headers.items()}
        answer = service.client.post("/api/v1/measurements", content=data, headers=encoded)
        assert answer.status_code in (200, 400, 401, 403, 413, 415, 422), answer.text
        assert answer.status_code == 200 or answer.json()["error"]

    try_all(
        post,
        100,
        st.binary(max_size=100)
        | nested.map(str.encode)
        | damaged_bodies()
        | damaged_bodies().map(gzip.compress),
        st.sampled_from(["identity", "identity", "gzip", "br", "gzip;q=1", "\xff"]),
        odd,
        st.sampled_from([key, key, key, key[:-1], key + "x", "th1..", "..", "a.b.c", "\xff"]),
    )
    # A damaged body may hold a valid record, for instance with a changed letter in a text.
    ids = [row["measurement_id"] for row in service.store.measurements(Selection())]
    for id_ in ids:
        document = service.get_path(f"/api/v1/measurements/{id_}", key).json()
        repeated = service.post_document({"measurements": [document]}, key)
        assert repeated.json() == {"new": 0, "known": 1, "conflicting": []}, repeated.text
