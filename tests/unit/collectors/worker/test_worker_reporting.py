"""The worker and the results service: upload of the outbox, and the common start of loads."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest
from certificate_authority import CertificateAuthority
from ingest_stub import TOKEN, IngestStub, StubReply
from local_servers import serve_http
from measurement_factory import make_measurement

from treehammer.collectors.job_spec import TOKEN_PLACEHOLDER, LoadSpec
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.worker import service_client
from treehammer.collectors.worker.child_processes import StopSignals
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
from treehammer.load.worker import load_start
from treehammer.load.worker.load_start import CommonStart, LoadStart
from treehammer.load.worker.start_meetings import (
    Appointment,
    ClockComparison,
    FolderMeeting,
    ServiceMeeting,
)

FAR = 1e9


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestStub]:
    stub = IngestStub(tmp_path_factory.mktemp("service"))
    yield stub
    stub.stop()


@pytest.fixture
def ingest(service: IngestStub) -> Iterator[IngestStub]:
    service.records.clear()
    service.posts.clear()
    service.tokens.clear()
    yield service
    service.script = lambda _: None


@pytest.fixture
def endpoint(ingest: IngestStub) -> ServiceEndpoint:
    return ServiceEndpoint(ingest.url, TOKEN, str(ingest.ca))


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
    assert len(Outbox(str(tmp_path), "https://other.example").pending()) == 10, (
        "another service has none"
    )
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
    assert "certificate" in outbox.problem
    assert not ingest.posts
    named = ingest.url.replace("127.0.0.1", "localhost")
    answer = ServiceEndpoint(named, TOKEN, str(ingest.ca)).post(["{}"], 60)
    assert (answer.status, answer.permanent) == (0, True), "the host name must match as well"


def test_refused_connection_is_transient(tmp_path: Path, authority_only: Path) -> None:
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


LOAD = LoadSpec(
    index=0,
    jobs=2,
    barrier="b",
    folder="starts",
    wait_s=60.0,
    lead_s=0.0,
    level_start_s=0.0,
    step_s=1.0,
    duration_s=100.0,
)


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    with StopSignals() as made:
        yield made


def test_last_job_sets_the_start_for_all(tmp_path: Path) -> None:
    folder = str(tmp_path / "b")
    first = FolderMeeting(LOAD, folder)
    assert first.poll(0, None) is None
    assert first.poll(1, None) is None, "the same job does not count twice"
    set_start = FolderMeeting(replace(LOAD, index=1), folder).poll(0, None)
    assert set_start is not None
    assert set_start.start_us > time.time() * 1e6 - 60e6
    assert set_start.present == 2
    assert first.poll(2, None) == set_start
    assert FolderMeeting(replace(LOAD, index=7), folder).poll(0, None) == set_start


def test_withdrawn_job_is_not_waited_for(tmp_path: Path, signals: StopSignals) -> None:
    load = replace(LOAD, index=1)
    CommonStart(load, str(tmp_path), None, signals).withdraw("1-1")
    folder = str(tmp_path / "starts/b-1-1")
    found = FolderMeeting(LOAD, folder).poll(0, None)
    assert found is not None
    assert found.present == 1
    three = FolderMeeting(replace(load, jobs=3), str(tmp_path / "three"))
    three.withdraw()
    assert three.poll(0, None) is None, "one job in two attempts"


def test_missing_job_is_not_waited_for_longer_than_the_limit(tmp_path: Path) -> None:
    meeting = FolderMeeting(replace(LOAD, jobs=3, wait_s=50.0), str(tmp_path))
    assert meeting.poll(0, None) is None
    long_ago = time.time() - 51
    os.utime(tmp_path / "0", (long_ago, long_ago))
    found = FolderMeeting(replace(LOAD, index=1, jobs=3, wait_s=50.0), str(tmp_path)).poll(0, None)
    assert found is not None
    assert found.present == 2


def test_job_waits_for_the_others(tmp_path: Path, signals: StopSignals) -> None:
    def arrive() -> None:
        FolderMeeting(replace(LOAD, index=1), str(tmp_path / "starts/b-1-1")).poll(0, None)

    other = threading.Timer(0.5, arrive)
    other.start()
    start = CommonStart(LOAD, str(tmp_path), None, signals).wait("1-1")
    other.join()
    assert start.own_start_us is not None
    assert start.launch_us >= start.own_start_us
    values = start.values()
    assert (values["load_index"], values["load_jobs"], values["start_present_jobs"]) == (0, 2, 2)
    assert values["start_offset_s"] >= 0, "a payload without lead begins when it is launched"


def test_stop_signal_ends_the_wait(tmp_path: Path, signals: StopSignals) -> None:
    before = {child.pid for child in psutil.Process().children()}
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(ExecutionError, match="in the phase 'start'") as caught:
        CommonStart(LOAD, str(tmp_path), None, signals).wait("1-1")
    assert caught.value.failure.failure_class == "evicted"
    assert {child.pid for child in psutil.Process().children()} == before, "a process is left"


def test_unreachable_service_lets_the_job_start_alone(
    tmp_path: Path,
    signals: StopSignals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(load_start, "START_PATIENCE_S", 1.0)
    load = replace(LOAD, folder="", wait_s=0.5)
    endpoint = ServiceEndpoint("http://127.0.0.1:1", "token")
    start = CommonStart(load, str(tmp_path), endpoint, signals).wait("1-1")
    assert start.values()["start_state"] == "alone"
    assert start.describe_for_payload()["start_us"] is None
    assert "starting alone" in (said := capsys.readouterr().err)
    assert "cannot be reached: Connection refused" in said
    without = CommonStart(load, str(tmp_path), None, signals).wait("1-1")
    assert without.values()["start_state"] == "alone"


@pytest.mark.parametrize("sent", [0, 20])
def test_truncated_answer_is_no_refusal(sent: int) -> None:
    """A service that is killed may have sent the headers of an answer, and a part of its body."""
    body = b'{"time_us": 1, "start_us": 5, "present": 2, "jobs": 2, "poll_s": 1.0}'

    class Service(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        breaks_off = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:sent] if Service.breaks_off else body)
            self.close_connection = Service.breaks_off

    with serve_http(Service) as port:
        endpoint = ServiceEndpoint(f"http://127.0.0.1:{port}", "token")
        meeting = ServiceMeeting(LOAD, "b", endpoint)
        with pytest.raises(ConnectionError, match="does not answer"):
            meeting.poll(0, None)
        Service.breaks_off = False
        found = meeting.poll(0, None)
    assert found is not None
    assert found.start_us == 5


def test_job_after_the_end_of_the_load_fails(tmp_path: Path, signals: StopSignals) -> None:
    folder = str(tmp_path / "starts/b-1-1")
    load = replace(LOAD, jobs=1, duration_s=0.1)
    FolderMeeting(load, folder).poll(0, None)
    time.sleep(1.3)  # beyond the notice and the load
    start = CommonStart(replace(load, index=1), str(tmp_path), None, signals).wait("1-1")
    assert start.values()["start_state"] == "late"
    with pytest.raises(ExecutionError, match="their load is over") as caught:
        start.require_rest_of_load()
    assert caught.value.failure.failure_class == "submission"


def test_shortest_round_trip_gives_the_clock_offset() -> None:
    clocks = ClockComparison()
    clocks.add_round_trip(100.0, 101.0, 90.0)
    clocks.add_round_trip(200.0, 200.25, 190.0)
    clocks.add_round_trip(300.0, 304.0, 290.0)
    assert (clocks.offset_s, clocks.error_s) == (10.125, 0.125)


def test_start_is_converted_to_the_clock_of_the_node() -> None:
    load = replace(LOAD, lead_s=5.0, level_start_s=20.0, index=3)
    appointment = Appointment(1_000_000_000, 2, clock_offset_s=-2.5, clock_error_s=0.1)
    start = LoadStart(load, 7.0, appointment, 1_012_500_000, waited=True)
    assert start.start_us == 997_500_000
    assert start.describe_for_payload()["first_step"] == 20
    in_time = start.values(began_us=1_017_510_000)
    assert (in_time["start_state"], in_time["start_offset_s"]) == ("together", 0.01)
    assert in_time["start_planned_us"] == 1_000_000_000, "by the clock that all jobs share"
    assert start.values()["start_offset_s"] is None, "the payload did not report its start"
    late = start.values(began_us=1_018_500_000)
    assert (late["start_state"], late["start_offset_s"]) == ("late", 1.0)


def test_later_starts_allow_for_jobs_that_still_load(
    tmp_path: Path, signals: StopSignals, capsys: pytest.CaptureFixture[str]
) -> None:
    common = CommonStart(replace(LOAD, jobs=1), str(tmp_path), None, signals)
    for execution in ("1-1", "1-2"):
        start = common.wait(execution, is_first=execution == "1-1")
        assert start.values()["start_present_jobs"] == 1
    assert [line for line in capsys.readouterr().out.splitlines() if "waiting" in line] == [
        f"waiting for all 1 jobs to start together, {limit} s at most" for limit in (60, 160)
    ]
