"""Operations of load tests: upload, the stored record, and the stream of a campaign."""

from __future__ import annotations

import json

import pytest
from measurement_factory import make_operation
from service_thread import ServiceThread, StartService, make_body, make_sent_measurement

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.write.store import Store
from treehammer.web.api import page_data

ADDRESS = "/api/v1/campaigns/campaign/operations"


def load_measurements() -> list[Measurement]:
    steps = [make_operation([0.001] * 99 + [2.0], {"reset": 1}), make_operation([], step=1)]
    return [make_sent_measurement(position=p, operations=steps) for p in (1, 2, 3)]


def test_uploaded_operations_are_part_of_the_record(service: ServiceThread) -> None:
    key = service.make_key("submit").text
    records = load_measurements()
    for counts in ({"new": 3, "known": 0}, {"new": 0, "known": 3}):
        answer = service.post_document(make_body(records), key)
        assert answer.json() == {**counts, "conflicting": []}
    reader = service.make_key("read").text
    found = service.get_path(f"/api/v1/measurements/{records[0].id}", reader).json()
    assert found["operations"] == list(records[0].operations)


def test_invalid_operations_are_refused_with_their_place(service: ServiceThread) -> None:
    document = make_body(load_measurements())
    document["measurements"][1]["operations"][1]["done"] = 5
    answer = service.post_document(document, service.make_key("submit").text)
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["index"] == 1
    assert error["reasons"][0].startswith("operations[1]: ")


def test_campaign_streams_its_operations(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_data, "CHUNK", 2)
    records = load_measurements()
    with start_service(reading_open=True) as service:
        with Store.open(service.url) as store:
            store.add([*records, make_sent_measurement(position=9)])
        answer = service.get_path(ADDRESS)
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [(one["measurement_id"], one["line"]) for one in lines] == [
            (record.id, line) for record in records for line in (0, 1)
        ]
        first, second = lines[:2]
        assert (first["site"], first["failures"], first["server"]) == ("local", '{"reset": 1}', "")
        assert first["p50_s"] == pytest.approx(0.001, rel=0.01)
        assert first["max_s"] == pytest.approx(2.0, rel=0.01)
        assert (second["p50_s"], second["latency"]) == (None, "")
        for address in ("/api/v1/campaigns/other/operations", f"{ADDRESS}x"):
            assert service.get_path(address).status_code == 404
        assert service.get_path(f"{ADDRESS}?side=client").status_code == 400


def test_stream_requires_key_unless_public(service: ServiceThread) -> None:
    assert service.get_path(ADDRESS).status_code == 401
