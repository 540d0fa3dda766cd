"""Metrics of the service process: requests, refusals, queue, commits, errors and size."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from service_thread import ServiceThread, StartService, make_body, make_sent_measurement

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import StoreError
from treehammer.sql.write.audit_trail import Delivery
from treehammer.sql.write.recording import AddResult
from treehammer.web.core import auth, measurement_writer

METRICS = "/metrics/service"


class FailingStore:
    """Destination of measurements that fails while ``broken``."""

    def __init__(self) -> None:
        self.broken = True

    def add(
        self, measurements: Iterable[Measurement], deliveries: Iterable[Delivery] = ()
    ) -> AddResult:
        if self.broken:
            raise StoreError("the disk is full", where="results.db")
        return AddResult(len(list(measurements)), 0)


def read_samples(service: ServiceThread, key: str) -> dict[tuple[str, ...], float]:
    """Read all samples by name and values of labels, in order of their names."""
    answer = service.get_path(METRICS, key)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *map(str, _ordered(sample.labels))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def _ordered(labels: Mapping[str, str]) -> list[str]:
    return [value for name, value in sorted(labels.items()) if name != "le"]


def test_metrics_count_requests_refusals_and_commits(service: ServiceThread) -> None:
    reader, submitter = service.make_key("read").text, service.make_key("submit").text
    body = make_body([make_sent_measurement(position=1), make_sent_measurement(position=2)])
    for _ in range(2):
        assert service.post_document(body, submitter).status_code == 200
    assert service.post_document(b"{", submitter).status_code == 400
    assert service.post_document(body, "").status_code == 401
    assert service.post_document(body, reader).status_code == 403
    assert service.get_path("/nothing-here").status_code in (401, 404)
    found = read_samples(service, reader)
    requests = "treehammer_http_requests_total"
    assert found[requests, "measurements", "POST", "200"] == 2
    assert found[requests, "measurements", "POST", "400"] == 1
    assert found["treehammer_refusals_total", "malformed"] == 1
    assert found["treehammer_refusals_total", "forbidden"] == 1
    assert found["treehammer_refusals_total", "unauthenticated"] >= 1
    written = "treehammer_written_measurements_total"
    assert (found[written, "new"], found[written, "known"]) == (2, 2)
    assert found["treehammer_commit_seconds_count", "measurements"] == 2
    assert found["treehammer_commit_seconds_sum", "measurements"] > 0
    assert found["treehammer_queue_measurements",] == 0
    assert found["treehammer_queue_limit_measurements",] == measurement_writer.MAX_WAITING
    assert found["treehammer_database_writable",] == 1
    file = Path(service.url.removeprefix("sqlite:///"))
    assert found["treehammer_database_bytes", "sqlite"] >= file.stat().st_size
    assert found["process_resident_memory_bytes",] > 1e6
    assert not [key for key in found if key[0].startswith("treehammer_last_write_error")]


def test_metrics_require_a_reading_key_even_where_reading_is_public(
    start_service: StartService,
) -> None:
    with start_service(reading_open=True) as service:
        assert service.client.get("/metrics").status_code == 200
        assert service.client.get(METRICS).status_code == 401
        assert service.get_path(METRICS, service.make_key("submit").text).status_code == 403
        assert service.get_path(METRICS, service.make_key("read").text).status_code == 200


def test_metrics_show_last_write_error(start_service: StartService) -> None:
    store = FailingStore()
    with start_service(store) as service:
        reader, submitter = service.make_key("read").text, service.make_key("submit").text
        body = make_body([make_sent_measurement()])
        before = time.time()
        assert service.post_document(body, submitter).status_code == 503
        found = read_samples(service, reader)
        assert found["treehammer_database_writable",] == 0
        assert found["treehammer_write_errors_total", "measurements"] == 1
        assert found["treehammer_refusals_total", "database"] == 1
        failed = found["treehammer_last_write_error_timestamp_seconds", "the disk is full"]
        assert before <= failed <= time.time()
        store.broken = False
        assert service.post_document(body, submitter).status_code == 200
        found = read_samples(service, reader)
        assert found["treehammer_database_writable",] == 1
        assert found["treehammer_last_write_error_timestamp_seconds", "the disk is full"] == failed


def test_metrics_are_served_while_database_is_gone(
    service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = service.make_key("read").text
    assert service.get_path(METRICS, reader).status_code == 200
    monkeypatch.setattr(auth, "MAX_AGE_S", 0.0)
    file = Path(service.url.removeprefix("sqlite:///"))
    file.rename(file.with_name("moved.db"))
    try:
        assert service.get_path("/metrics", reader).status_code == 503
        assert "treehammer_http_requests_total" in service.get_path(METRICS, reader).text
        assert service.get_path(METRICS, "th1.0123456789ab." + "a" * 43).status_code == 401
    finally:
        file.with_name("moved.db").rename(file)


def test_metrics_have_few_labels_whatever_clients_send(service: ServiceThread) -> None:
    for number, method in enumerate(("PUT", "PATCH", "DELETE", "PROPFIND", "REPORT")):
        service.client.request(method, f"/path/{number}")
    requests = {
        key
        for key in read_samples(service, service.make_key("read").text)
        if key[0] == "treehammer_http_requests_total"
    }
    assert {key[1:3] for key in requests} == {("pages", "other")}
