"""Upload of measurements: outcomes, refusals with reasons, limits and authorization."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from typing import Any

import pytest
from measurement_factory import make_measurement
from polling import wait_until
from service_thread import FailingStore, ServiceThread, StartService, make_body

from treehammer.errors import StoreError, UnstorableContentError
from treehammer.sql.core.access_keys import mint_job_token
from treehammer.sql.write.recording import AddResult
from treehammer.web.core import auth
from treehammer.web.core.request_limits import RequestLimits

DAY_US = 86400 * 1_000_000


def count_stored(service: ServiceThread) -> int:
    return sum(service.store.count_by_attempt("campaign").values())


def test_upload_reports_new_known_and_conflicting(service: ServiceThread, key: str) -> None:
    measurements = [make_measurement(position=p, extras={"a": 1.5}) for p in (1, 2, 3)]
    answer = service.post_document(make_body(measurements[:2]), key)
    assert (answer.status_code, answer.json()) == (200, {"new": 2, "known": 0, "conflicting": []})
    other = make_measurement(position=1, host="elsewhere")
    answer = service.post_document(make_body([*measurements, other]), key)
    assert answer.json() == {"new": 1, "known": 2, "conflicting": [other.id]}
    assert service.post_document(make_body([]), key).json() == {
        "new": 0,
        "known": 0,
        "conflicting": [],
    }
    assert count_stored(service) == 3


def test_upload_accepts_gzip(service: ServiceThread, key: str) -> None:
    data = gzip.compress(GOOD)
    assert service.post_document(data, key, Content_Encoding="gzip").json()["new"] == 1
    assert service.post_document(data, key, Content_Encoding="GZIP").json()["known"] == 1
    plain = {"Content_Type": 'Application/JSON; charset="UTF-8"', "Content_Encoding": "identity"}
    assert service.post_document(GOOD, key, **plain).json()["known"] == 1
    # The decompressed size equals that of one decompression step.
    filler = json.dumps({"measurements": []})
    even = gzip.compress(filler.ljust(65536).encode())
    assert service.post_document(even, key, Content_Encoding="gzip").status_code == 200


BODY = make_body([make_measurement()])
RECORD, GOOD = BODY["measurements"][0], json.dumps(BODY).encode()


def changed(**values: Any) -> Any:
    return {"measurements": [{**RECORD, "values": {**RECORD["values"], **values}}]}


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        pytest.param(content, status, word, id=f"{status}-{word}-{number}")
        for number, (content, status, word) in enumerate(
            [
                (b"", 400, "not valid JSON"),
                (b"{", 400, "line 1, column 2"),
                (b"\xef\xbb\xbf{}", 400, "not valid JSON"),
                (b'{"measurements": ["\xff"]}', 400, "UTF-8"),
                (b'{"measurements": [NaN]}', 400, "NaN"),
                (b'{"measurements": [-Infinity]}', 400, "-Infinity"),
                (b'{"measurements": [1%s]}' % (b"0" * 5000), 400, "digits"),
                (b'{"measurements": [], "measurements": []}', 400, "duplicate key 'measurements'"),
                (b'{"a": {"b\\ud800": 1, "b\\ud800": 2}}', 400, "duplicate key"),
                (b"[" * 200_000, 400, "deep"),
                (b'{"a":' * 100_000, 400, "deep"),
                (b"[]", 422, "exactly 'measurements'"),
                (b"{}", 422, "exactly 'measurements'"),
                (b'{"measurements": {}}', 422, "exactly 'measurements'"),
                (b'{"measurements": [], "more": 1}', 422, "exactly 'measurements'"),
                (b'{"measurements": [1]}', 422, "'values', 'extras'"),
                (b'{"measurements": [{"values": {}, "extras": []}]}', 422, "objects"),
                (b'{"measurements": [{"values": {}, "extras": {}}]}', 422, "series is missing"),
                (changed(host="a\x00b"), 422, "host must not contain NUL"),
                (changed(host="\ud800"), 422, "lone surrogates"),
                (changed(**{"\ud800": 1}), 422, "unknown field"),
                (changed(nonsense=1), 422, "unknown field 'nonsense'"),
                (changed(retries=2**63), 422, "retries must be a 64-bit"),
                (changed(eff_job="1"), 422, "eff_job must be a finite"),
                (changed(read_latency_hist=3), 422, "must be a list"),
                (changed(pass_loop_wall_s=[1, "a"]), 422, "finite numbers only"),
                (changed(host="x" * 4001), 422, "longer than 4000"),
                (changed(round=0), 422, "round must be at least 1"),
                (changed(variant="[1]"), 422, "variant must be a JSON object"),
                (changed(variant='{"threads": 1%s}' % ("0" * 400)), 422, "64 bits"),
                (changed(kind="fast"), 422, "kind must be one of timed, checksum"),
                (changed(record_version=2), 422, "record_version must be 1"),
                (changed(started_us=-1), 422, "started_us must be between 0"),
                (GOOD.replace(b"20260301", b"1e400"), 422, "day must be"),
                (
                    GOOD.replace(b'"extras": {}', b'"extras": {"a": 1e400}'),
                    422,
                    "a must be a finite",
                ),
                (GOOD.replace(b'"extras": {}', b'"extras": {"a-b": 1}'), 422, "not a name"),
                (
                    GOOD.replace(b'"extras": {}', b'"extras": {"a": 1, "a": 1}'),
                    400,
                    "duplicate key 'a'",
                ),
            ]
        )
    ],
)
def test_invalid_body_is_refused_with_reason(
    shared_service: ServiceThread, shared_key: str, content: Any, status: int, word: str
) -> None:
    answer = shared_service.post_document(content, shared_key)
    assert answer.status_code == status
    body = answer.json()
    reasons = [r for e in body.get("errors", []) for r in e["reasons"]]
    assert word in " ".join([body["error"], *reasons])
    assert count_stored(shared_service) == 0


def test_invalid_measurement_refuses_whole_request(
    shared_service: ServiceThread, shared_key: str
) -> None:
    document = make_body([make_measurement(position=p) for p in (1, 2, 3)])
    document["measurements"][1]["values"]["day"] = "today"
    document["measurements"][2]["extras"]["-"] = 1
    answer = shared_service.post_document(document, shared_key)
    assert answer.status_code == 422
    errors = answer.json()["errors"]
    assert [error["index"] for error in errors] == [1, 2]
    assert errors[0]["reasons"] == ["day must be a 64-bit whole number"]
    assert count_stored(shared_service) == 0


def test_error_response_is_bounded(shared_service: ServiceThread, shared_key: str) -> None:
    item = {"values": {"x" * 1000 + str(n): n for n in range(50)}, "extras": {}}
    answer = shared_service.post_document({"measurements": [item] * 200}, shared_key)
    errors = answer.json()["errors"]
    assert len(errors) == 100
    assert len(errors[0]["reasons"]) == 20
    assert max(len(reason) for reason in errors[0]["reasons"]) == 300


@pytest.mark.parametrize(
    ("headers", "status", "word"),
    [
        ({"Content_Type": "text/plain"}, 415, "application/json"),
        ({"Content_Type": ""}, 415, "application/json"),
        ({"Content_Type": "application/json; charset=latin-1"}, 415, "UTF-8"),
        ({"Content_Encoding": "br"}, 415, "gzip"),
        ({"Content_Encoding": "gzip, gzip"}, 415, "gzip"),
        ({"Content_Encoding": "gzip"}, 400, "not gzip data"),
    ],
)
def test_unsupported_headers_are_refused(
    shared_service: ServiceThread, shared_key: str, headers: dict[str, str], status: int, word: str
) -> None:
    answer = shared_service.post_document(GOOD, shared_key, **headers)
    assert answer.status_code == status
    assert word in answer.json()["error"]


def test_damaged_gzip_data_is_refused(shared_service: ServiceThread, shared_key: str) -> None:
    packed = gzip.compress(GOOD)
    spoiled = bytearray(packed)
    spoiled[len(packed) // 2] ^= 0xFF
    for data, message in (
        (packed[:-1], "truncated"),
        (packed[:10], "truncated"),
        (b"", "truncated"),
        (bytes(spoiled), "damaged"),
        (packed + packed, "follows the end"),
        (packed + b"\x00", "follows the end"),
        (zlib.compress(GOOD), "not gzip data"),
    ):
        answer = shared_service.post_document(data, shared_key, Content_Encoding="gzip")
        assert answer.status_code == 400
        assert message in answer.json()["error"]
    assert count_stored(shared_service) == 0


def test_too_large_bodies_are_refused(start_service: StartService) -> None:
    limits = RequestLimits(packed_bytes=50_000, unpacked_bytes=100_000, measurements=3)
    with start_service(limits=limits) as service:
        key = service.make_key("submit").text
        big = b" " * 50_001
        assert service.post_document(big, key).status_code == 413
        packed = gzip.compress(b" " * 100_001)
        assert service.post_document(packed, key, Content_Encoding="gzip").status_code == 413
        bomb = gzip.compress(b" " * 30_000_000)
        assert len(bomb) < 50_000
        assert service.post_document(bomb, key, Content_Encoding="gzip").status_code == 413

        answer = service.client.post(
            "/api/v1/measurements",
            content=iter([b" " * 1000] * 60),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        )
        assert answer.status_code == 413
        answer = service.post_document(
            make_body([make_measurement(position=p) for p in range(1, 5)]), key
        )
        assert answer.status_code == 413
        assert "at most 3" in answer.json()["error"]


def test_upload_times_out_if_database_is_slow(start_service: StartService) -> None:
    answered = threading.Event()

    def add(measurements: Any, deliveries: Any = ()) -> AddResult:
        answered.wait(60)
        return AddResult(len(list(measurements)), 0)

    with start_service(add, limits=RequestLimits(response_s=0.1)) as service:
        key = service.make_key("submit").text
        answer = service.post_document(GOOD, key)
        answered.set()
        assert answer.status_code == 503
        assert "send the same again" in answer.json()["error"]


def test_memory_budget_refuses_body(start_service: StartService) -> None:
    with start_service(limits=RequestLimits(waiting_bytes=len(GOOD) - 1)) as service:
        key = service.make_key("submit").text
        answer = service.post_document(GOOD, key)
        assert answer.status_code == 429
        assert "in progress with this key" in answer.json()["error"]
        assert int(answer.headers["Retry-After"]) > 0
        assert service.post_document(b'{"measurements": []}', key).status_code == 200


# Authorization


def test_upload_requires_valid_token(service: ServiceThread) -> None:
    reader = service.make_key("read").text
    for token, status, word in (
        ("", 401, "a token is required"),
        ("nonsense", 401, "was not issued by"),
        ("th1.ffffffffffff." + "x" * 43, 401, "has no such key"),
        (reader, 403, "role 'read'"),
    ):
        answer = service.post_document(GOOD, token)
        assert answer.status_code == status
        assert word in answer.json()["error"]
        assert ("WWW-Authenticate" in answer.headers) == (status == 401)
    answer = service.post_document(GOOD, "x", Authorization="Basic eDp5")
    assert answer.status_code == 401
    assert count_stored(service) == 0


def test_job_token_permits_own_measurements_only(service: ServiceThread) -> None:
    key = service.make_key("submit")
    token = mint_job_token(key, "campaign", "job", service.clock[0] + DAY_US)
    assert service.post_document(GOOD, token).json()["new"] == 1
    for other in (
        make_measurement(job="other"),
        make_measurement(position=2, campaign_id="another"),
    ):
        mixed = make_body([make_measurement(position=3), other])
        answer = service.post_document(mixed, token)
        assert answer.status_code == 403
        assert "measurement 1 does not belong to the job" in answer.json()["error"]
    assert count_stored(service) == 1
    grant = service.get_path("/api/v1/token", token).json()
    assert grant == {
        "role": "submit",
        "key_id": key.key_id,
        "name": "submiter",
        "expires_us": service.clock[0] + DAY_US,
        "campaign_id": "campaign",
        "job_id": "job",
    }
    service.clock[0] += 2 * DAY_US
    answer = service.post_document(GOOD, token)
    assert answer.status_code == 401
    assert "expired" in answer.json()["error"]
    service.clock[0] -= 2 * DAY_US
    assert service.post_document(GOOD, token).json()["known"] == 1


def wait_for_refusal(service: ServiceThread, token: str) -> str:
    """Upload until the token is refused, and return the reason."""
    document = make_body([])
    wait_until(lambda: service.post_document(document, token).status_code == 401, "it is refused")
    return str(service.post_document(document, token).json()["error"])


def test_revoked_tokens_are_refused_soon(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REFRESH_INTERVAL_S", 0.05)
    with start_service() as service, service.open_keyring() as keyring:
        key = service.make_key("submit")
        token, other = (
            mint_job_token(key, "campaign", job, service.clock[0] + DAY_US)
            for job in ("job", "job2")
        )
        answer = service.post_document(GOOD, token)
        assert answer.status_code == 200
        assert keyring.revoke_tokens("job", "job", now_us=1)
        assert "this job" in wait_for_refusal(service, token)
        assert service.post_document(make_body([]), other).status_code == 200
        assert keyring.revoke_key(key.key_id, now_us=1)
        assert "was revoked" in wait_for_refusal(service, other)


def test_too_many_values_are_refused_before_parsing(
    shared_service: ServiceThread, shared_key: str
) -> None:
    # One kilobyte of gzip expands to a megabyte of empty objects, which would take 24 MB.
    for item in (b"{},", b"[],", b"0,", b'{"a":{"b":{}}},'):
        many = b'{"measurements":[' + item * 1_000_001 + b"0]}"
        answer = shared_service.post_document(
            gzip.compress(many, 1), shared_key, Content_Encoding="gzip"
        )
        assert answer.status_code == 413
        assert "commas, colons and brackets" in answer.json()["error"]


def test_reading_requires_key_unless_public(
    service: ServiceThread, start_service: StartService
) -> None:
    submitter, reader = service.make_key("submit").text, service.make_key("read").text
    record = make_measurement(host="", retries=3, extras={"a": 2})
    assert service.post_document(make_body([record]), submitter).status_code == 200
    address = f"/api/v1/measurements/{record.id}"
    assert service.get_path(address).status_code == 401
    assert service.get_path(address, submitter).status_code == 403
    document = service.get_path(address, reader).json()
    assert document["extras"] == {"a": 2.0}
    assert "host" not in document["values"]
    assert document["values"]["retries"] == 3
    for unknown in ("nix", "x" * 200, "%F0%9F%98%80", "%ff"):
        answer = service.get_path(f"/api/v1/measurements/{unknown}", reader)
        assert answer.status_code == 404
    assert service.get_path("/api/v1/measurements/a%00b", reader).status_code == 400
    with start_service(reading_open=True) as public:
        assert public.get_path(address).headers["Cache-Control"] == "no-store"


# Other responses


def test_access_log_has_fields(service: ServiceThread, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="treehammer.access"):
        service.get_path("/api/v1/live?token=secret")
        wait_until(lambda: caplog.records, "a line in the log")
    fields = vars(caplog.records[-1])
    assert {name: fields[name] for name in ("method", "path", "status")} == {
        "method": "GET",
        "path": "/api/v1/live",
        "status": 200,
    }


def test_service_describes_itself(service: ServiceThread) -> None:
    assert service.get_path("/api/v1/health").json()["status"] == "ok"
    described = service.get_path("/api/v1/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    assert "/api/v1/measurements" in described["paths"]
    answer = service.get_path("/nowhere")
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": "there is nothing at this address"},
    )
    answer = service.client.delete("/api/v1/campaigns")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, HEAD, POST"


# Failures of the database


def test_upload_responds_503_until_database_recovers(start_service: StartService) -> None:
    store = FailingStore(StoreError("the server does not answer (secret-host)"))
    with start_service(store.add) as service:
        key = service.make_key("submit").text
        answer = service.post_document(GOOD, key)
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) > 0
        assert "secret-host" not in answer.text
        health = service.get_path("/api/v1/health")
        assert health.status_code == 503
        assert health.json()["status"] == "unavailable"
        live = service.get_path("/api/v1/live")
        assert (live.status_code, live.json()["status"]) == (200, "ok")
        store.error = None
        assert service.post_document(GOOD, key).status_code == 200
        assert service.get_path("/api/v1/health").status_code == 200


def test_unstorable_measurement_gets_422(start_service: StartService) -> None:
    with start_service(FailingStore(UnstorableContentError("too long a name")).add) as service:
        key = service.make_key("submit").text
        answer = service.post_document(GOOD, key)
        assert answer.status_code == 422
        assert answer.json()["errors"] == [
            {"index": 0, "reasons": ["the database cannot store it: too long a name"]}
        ]
        assert service.get_path("/api/v1/health").status_code == 200


def test_unexpected_error_is_hidden_and_survived(start_service: StartService) -> None:
    store = FailingStore(RuntimeError("boom"))
    with start_service(store.add) as service:
        key = service.make_key("submit").text
        answer = service.post_document(GOOD, key)
        assert (answer.status_code, "boom" in answer.text) == (500, False)
        store.error = None
        assert service.post_document(GOOD, key).status_code == 200
