"""The worker and the results service: upload of the outbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificate_authority import CertificateAuthority
from ingest_stub import TOKEN, IngestStub, StubReply
from measurement_factory import make_measurement

from treehammer.collectors.job_spec import TOKEN_PLACEHOLDER
from treehammer.collectors.worker import service_client
from treehammer.collectors.worker.outbox import (
    LONGEST_PAUSE_S,
    Outbox,
    SendStatus,
    backoff_pause_s,
    send_outbox,
)
from treehammer.collectors.worker.service_client import (
    ServiceConfigError,
    ServiceEndpoint,
    ServiceResponse,
)

FAR = 1e9


def fill(folder: Path, count: int, **values: Any) -> list[str]:
    """Write ``count`` records; return their identities."""
    (folder / "records").mkdir(exist_ok=True)
    records = [make_measurement(f"job {number}", **values) for number in range(count)]
    for record in records:
        (folder / "records" / f"{record.id}.json").write_text(record.to_json() + "\n")
    return sorted(record.id for record in records)


class Time:
    """A clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def send_all(folder: Path, endpoint: ServiceEndpoint, ingest: IngestStub) -> Outbox:
    """Send the outbox of a folder, which succeeds at once."""
    outbox = Outbox(str(folder), ingest.url)
    assert send_outbox(outbox, endpoint, FAR, patient=False) is SendStatus.DONE
    return outbox


def send_patiently(
    outbox: Outbox, endpoint: ServiceEndpoint, time: Time, until: float = 60
) -> SendStatus:
    return send_outbox(outbox, endpoint, until, patient=True, clock=time.clock, sleep=time.sleep)


def test_acknowledged_records_are_not_sent_again(
    tmp_path: Path, ingest: IngestStub, endpoint: ServiceEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treehammer.collectors.worker.outbox.MAX_BATCH_RECORDS", 4)
    names = fill(tmp_path, 10)
    send_all(tmp_path, endpoint, ingest)
    assert (ingest.posts, sorted(ingest.records)) == ([4, 4, 2], names)
    sent = json.loads((tmp_path / "records" / f"{names[0]}.json").read_text())
    assert ingest.records[names[0]] == sent
    assert ingest.tokens == {TOKEN}
    again = Outbox(str(tmp_path), ingest.url + "/")
    assert again.pending() == []
    assert send_outbox(again, endpoint, FAR, patient=False) is SendStatus.DONE
    assert len(ingest.posts) == 3
    other = Outbox(str(tmp_path), "https://other.example")
    assert len(other.pending()) == 10, "another service has none"
    assert len(list((tmp_path / "records").iterdir())) == 10, "records stay in the sandbox"
    assert TOKEN not in (tmp_path / "outbox.json").read_text()


def test_conflicting_content_is_noted(
    tmp_path: Path, ingest: IngestStub, endpoint: ServiceEndpoint
) -> None:
    names = fill(tmp_path, 3)
    send_outbox(Outbox(str(tmp_path), ingest.url), endpoint, FAR, patient=False)
    (tmp_path / "outbox.json").write_text("{ damaged")
    (changed,) = fill(tmp_path, 1, site="elsewhere")
    assert changed in names
    outbox = send_all(tmp_path, endpoint, ingest)
    assert outbox.summarize()["conflicting"] == [changed]
    assert outbox.summarize()["acknowledged"] == 3


def refuse_one(bad: int, sent: list[int]) -> StubReply | None:
    """Name the record."""
    errors = [{"index": sent.index(bad), "reasons": ["site is unknown", "and more"]}]
    return StubReply(422, {"error": "no", "errors": errors})


def refuse_any(bad: int, sent: list[int]) -> StubReply | None:
    """Refuse all records for one of them, as a database does."""
    errors = [{"index": index, "reasons": ["it or another one"]} for index in range(len(sent))]
    return StubReply(422, {"error": "no", "errors": errors})


@pytest.mark.parametrize(
    "refuse, reason",
    [
        (refuse_one, "site is unknown; and more"),
        (refuse_any, "it or another one"),
        (lambda *_: StubReply(413, {"error": "it is too large"}), "it is too large (413)"),
        (lambda *_: StubReply(422, {"error": "no"}), "no (422)"),
    ],
)
def test_only_refused_records_are_excluded(
    tmp_path: Path,
    ingest: IngestStub,
    endpoint: ServiceEndpoint,
    refuse: Callable[[int, list[int]], StubReply | None],
    reason: str,
) -> None:
    names = fill(tmp_path, 9)
    bad = [2, 7]

    def script(records: list[dict[str, Any]]) -> StubReply | None:
        sent = [names.index(record["values"]["measurement_id"]) for record in records]
        return next((refuse(number, sent) for number in bad if number in sent), None)

    ingest.script = script
    outbox = send_all(tmp_path, endpoint, ingest)
    assert outbox.refused == {names[number]: reason for number in bad}
    assert set(ingest.records) == set(names) - set(outbox.refused)
    assert Outbox(str(tmp_path), ingest.url).pending() == [], "refused records are not sent again"


@pytest.mark.parametrize(
    "reply, expected",
    [
        (StubReply(401, {"error": "the job's token expired"}), "the job's token expired (401)"),
        (StubReply(403, {"error": "not your job's"}), "not your job's (403)"),
        (StubReply(404), "it answers 404 Not Found"),
        (StubReply(200, "<html>log in</html>"), "is not a Treehammer service"),
        (StubReply(200, {"new": 1, "known": 0, "conflicting": []}), "is not a Treehammer service"),
        (StubReply(307, {}, {"Location": "https://127.0.0.1:9/x"}), "redirects to 127.0.0.1:9"),
    ],
)
def test_permanent_errors_are_not_retried(
    tmp_path: Path, ingest: IngestStub, endpoint: ServiceEndpoint, reply: StubReply, expected: str
) -> None:
    fill(tmp_path, 3)
    ingest.script = lambda _: reply
    outbox, time = Outbox(str(tmp_path), ingest.url), Time()
    done = send_patiently(outbox, endpoint, time)
    assert (done, time.slept, len(ingest.posts)) == (SendStatus.REJECTED, [], 1)
    assert expected in Outbox(str(tmp_path), ingest.url).problem
    assert len(outbox.pending()) == 3


def test_transient_errors_are_retried(
    tmp_path: Path, ingest: IngestStub, endpoint: ServiceEndpoint
) -> None:
    fill(tmp_path, 3)
    replies = [
        StubReply(503, {}, {"Retry-After": "7"}),
        StubReply(502, "<html>"),
        StubReply(429, {"error": "slower"}),
        StubReply(200, '{"new": 3, ', {"Content-Length": "99"}),  # the service ends meanwhile
    ]
    ingest.script = lambda _: replies.pop(0) if replies else None
    outbox, time = Outbox(str(tmp_path), ingest.url), Time()
    assert send_patiently(outbox, endpoint, time) is SendStatus.DONE
    assert len(ingest.records) == 3
    assert 7 <= time.slept[0] <= 7 * 1.25, "never earlier than requested"
    assert 1 <= time.slept[1] <= 2
    assert 2 <= time.slept[2] <= 4
    assert outbox.problem == ""


def test_dead_service_stops_at_the_deadline(
    tmp_path: Path, ingest: IngestStub, endpoint: ServiceEndpoint
) -> None:
    fill(tmp_path, 3)
    ingest.script = lambda _: StubReply(503)
    outbox, time = Outbox(str(tmp_path), ingest.url), Time()
    assert send_patiently(outbox, endpoint, time) is SendStatus.RETRY_LATER
    assert 20 < time.now <= 60
    assert 5 <= len(ingest.posts) <= 9
    # A retry requested for after the deadline ends the transmission at once.
    ingest.script = lambda _: StubReply(503, {}, {"Retry-After": "3600"})
    before = time.now
    done = send_patiently(outbox, endpoint, time, before + 60)
    assert (done, time.now, outbox.retry_after_s) == (SendStatus.RETRY_LATER, before, 3600.0)


def test_pauses_grow_with_jitter_up_to_a_bound() -> None:
    for tries in range(1, 40):
        pauses = {backoff_pause_s(tries) for _ in range(50)}
        grown = min(2.0 ** (tries - 1), LONGEST_PAUSE_S)
        assert all(grown / 2 <= pause <= grown for pause in pauses)
        assert len(pauses) > 40
    assert all(100 <= backoff_pause_s(1, 100) <= 125 for _ in range(50))


def test_certificate_of_another_authority_is_rejected(tmp_path: Path, ingest: IngestStub) -> None:
    fill(tmp_path, 1)
    other = CertificateAuthority(tmp_path / "other")
    outbox = Outbox(str(tmp_path), ingest.url)
    endpoint = ServiceEndpoint(ingest.url, TOKEN, str(other.ca))
    assert send_outbox(outbox, endpoint, FAR, patient=True) is SendStatus.REJECTED
    assert "certificate (name its authority in service_ca_file)" in outbox.problem
    assert not ingest.posts
    named = ingest.url.replace("127.0.0.1", "localhost")
    answer = ServiceEndpoint(named, TOKEN, str(ingest.ca)).post(["{}"], 60)
    assert (answer.status, answer.permanent) == (0, True), "the host name must match as well"


def test_refused_connection_is_transient(authority_only: Path) -> None:
    answer = ServiceEndpoint("https://127.0.0.1:9", TOKEN, str(authority_only)).post(["{}"], 60)
    assert (answer.status, answer.permanent) == (0, False)
    assert "Connection refused" in answer.reason


@pytest.fixture
def authority_only(tmp_path: Path) -> Path:
    return CertificateAuthority(tmp_path / "authority").ca


@pytest.mark.parametrize("token", ["", TOKEN_PLACEHOLDER, "two words", "a\nb", "x" * 10000])
def test_malformed_token_is_rejected(token: str) -> None:
    with pytest.raises(ServiceConfigError) as error:
        ServiceEndpoint("https://127.0.0.1:9", token)
    assert not token or token not in str(error.value)


def test_token_is_not_in_any_text(ingest: IngestStub, endpoint: ServiceEndpoint) -> None:
    assert TOKEN not in repr(endpoint)
    ingest.script = lambda _: StubReply(401, {"error": "no"})
    assert TOKEN not in repr(endpoint.post(["{}"], 60))


def test_invalid_authority_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ServiceConfigError, match=r"ca\.pem"):
        ServiceEndpoint("https://127.0.0.1:9", TOKEN, str(tmp_path / "ca.pem"))
    with pytest.raises(ServiceConfigError, match="No such file"):
        ServiceEndpoint("https://127.0.0.1:9", TOKEN, str(tmp_path / "none.pem"))


def test_text_that_is_not_json_does_not_block_others(
    tmp_path: Path, ingest: IngestStub, endpoint: ServiceEndpoint
) -> None:
    names = fill(tmp_path, 2)
    for name, text in (
        ("torn", '{"values": {"job'),
        ("nan", '{"values": NaN}'),
        ("deep", "[" * 9**6),
    ):
        (tmp_path / "records" / f"{name}.json").write_text(text)
    outbox = send_all(tmp_path, endpoint, ingest)
    assert set(ingest.records) == set(names)
    assert set(outbox.refused) == {"torn", "nan", "deep"}
    assert outbox.refused["torn"].startswith("not a record: ")


def test_find_refused_ignores_invalid_indexes() -> None:
    errors = [{"index": 1, "reasons": ["a"]}, {"index": 5}, {"index": True}, {"index": "0"}, 3]
    assert ServiceResponse(422, "no", {"errors": errors}).find_refused(3) == {1: "a"}
    assert ServiceResponse(422, "no", {"errors": "none"}).find_refused(3) == {}


def test_retry_after_accepts_a_date(ingest: IngestStub, endpoint: ServiceEndpoint) -> None:
    date = {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}
    ingest.script = lambda _: StubReply(503, {}, date)
    assert endpoint.post(["{}"], 60).retry_after_s > 1e9
    ingest.script = lambda _: StubReply(503, {}, {"Retry-After": "soon"})
    assert endpoint.post(["{}"], 60).retry_after_s == 0


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b"[" * 100_000, b'{"a":' * 100_000])
def test_hostile_response_has_no_members(body: bytes) -> None:
    assert service_client._parse_object(body) == {}
