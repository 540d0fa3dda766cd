"""The outbox and its way to the results service: what is sent again, what never, and what is noted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ingest_stub import TOKEN, IngestStub, Reply

from treehammer.collectors.metrics import CATALOGUE
from treehammer.collectors.record import Measurement
from treehammer.collectors.service import PLACEHOLDER
from treehammer.collectors.worker import sending
from treehammer.collectors.worker.outbox import Outbox
from treehammer.collectors.worker.posting import Answer, Endpoint, UnusableService
from treehammer.collectors.worker.sending import Result, pause_s, send
from treehammer.testbed.certificates import Authority

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
def endpoint(ingest: IngestStub) -> Endpoint:
    return Endpoint(ingest.url, TOKEN, str(ingest.ca))


def fill(folder: Path, count: int, **values: Any) -> list[str]:
    """Write so many records; their identities."""
    (folder / "records").mkdir(exist_ok=True)
    required: dict[str, Any] = {
        m.name: {"int": 1, "float": 1.0, "text": "x", "bool": True}[m.type]
        for m in CATALOGUE
        if m.required
    }
    names = [f"{number:024x}" for number in range(count)]
    for name in names:
        record = Measurement({**required, **values, "measurement_id": name})
        (folder / "records" / f"{name}.json").write_text(record.to_json() + "\n")
    return names


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_what_is_acknowledged_is_noted_and_not_sent_again(
    tmp_path: Path, ingest: IngestStub, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "BATCH", 4)
    names = fill(tmp_path, 10)
    outbox = Outbox(str(tmp_path), ingest.url)
    assert send(outbox, endpoint, FAR, patient=False) is Result.DONE
    assert (ingest.posts, sorted(ingest.records)) == ([4, 4, 2], names)
    sent = json.loads((tmp_path / "records" / f"{names[0]}.json").read_text())
    assert ingest.records[names[0]] == sent
    assert ingest.tokens == {TOKEN}
    again = Outbox(str(tmp_path), ingest.url + "/")
    assert again.waiting() == []
    assert send(again, endpoint, FAR, patient=False) is Result.DONE
    assert len(ingest.posts) == 3
    assert len(Outbox(str(tmp_path), "https://other.example").waiting()) == 10, "it has none of it"
    assert len(list((tmp_path / "records").iterdir())) == 10, "the sandbox is the second way home"
    assert TOKEN not in (tmp_path / "outbox.json").read_text()


def test_what_came_before_is_known_and_other_content_is_noted(
    tmp_path: Path, ingest: IngestStub, endpoint: Endpoint
) -> None:
    names = fill(tmp_path, 3)
    send(Outbox(str(tmp_path), ingest.url), endpoint, FAR, patient=False)
    (tmp_path / "outbox.json").write_text("{ damaged")
    fill(tmp_path, 1, site="elsewhere")
    outbox = Outbox(str(tmp_path), ingest.url)
    assert send(outbox, endpoint, FAR, patient=False) is Result.DONE
    assert outbox.summary()["conflicting"] == [names[0]]
    assert outbox.summary()["acknowledged"] == 3


def test_only_refused_records_stay(tmp_path: Path, ingest: IngestStub, endpoint: Endpoint) -> None:
    names = fill(tmp_path, 9)
    bad = {names[2], names[7]}

    def script(sent: list[dict[str, Any]]) -> Reply | None:
        found = [i for i, r in enumerate(sent) if r["values"]["measurement_id"] in bad]
        errors = [{"index": i, "reasons": ["site is unknown", "and more"]} for i in found[:1]]
        return Reply(422, {"error": "no", "errors": errors}) if errors else None

    ingest.script = script
    outbox = Outbox(str(tmp_path), ingest.url)
    assert send(outbox, endpoint, FAR, patient=False) is Result.DONE
    assert outbox.refused == dict.fromkeys(bad, "site is unknown; and more")
    assert set(ingest.records) == set(names) - bad
    assert Outbox(str(tmp_path), ingest.url).waiting() == [], "refused is not tried for ever"


@pytest.mark.parametrize("status", [413, 422])
def test_too_much_at_once_is_halved_down_to_the_one(
    tmp_path: Path, ingest: IngestStub, endpoint: Endpoint, status: int
) -> None:
    names = fill(tmp_path, 7)

    def script(sent: list[dict[str, Any]]) -> Reply | None:
        ids = [r["values"]["measurement_id"] for r in sent]
        refuse = names[4] in ids or len(ids) > 3
        return Reply(status, {"error": "it is too large"}) if refuse else None

    ingest.script = script
    outbox = Outbox(str(tmp_path), ingest.url)
    assert send(outbox, endpoint, FAR, patient=False) is Result.DONE
    assert outbox.refused == {names[4]: f"it is too large ({status})"}
    assert set(ingest.records) == set(names) - {names[4]}


def test_one_that_spoils_a_whole_request_is_found(
    tmp_path: Path, ingest: IngestStub, endpoint: Endpoint
) -> None:
    names = fill(tmp_path, 6)

    def script(sent: list[dict[str, Any]]) -> Reply | None:
        if names[3] not in [r["values"]["measurement_id"] for r in sent]:
            return None
        either = "the database cannot hold it (it or another one)"
        errors = [{"index": index, "reasons": [either]} for index in range(len(sent))]
        return Reply(422, {"error": "no", "errors": errors})

    ingest.script = script
    outbox = Outbox(str(tmp_path), ingest.url)
    assert send(outbox, endpoint, FAR, patient=False) is Result.DONE
    assert set(outbox.refused) == {names[3]}
    assert set(ingest.records) == set(names) - {names[3]}


@pytest.mark.parametrize(
    "reply, said",
    [
        (Reply(401, {"error": "the job's token expired"}), "the job's token expired (401)"),
        (Reply(403, {"error": "not your job's"}), "not your job's (403)"),
        (Reply(404), "it answers 404 Not Found"),
        (Reply(200, "<html>log in</html>"), "is no results service"),
        (Reply(200, {"new": 1, "known": 0, "conflicting": []}), "is no results service"),
        (Reply(307, {}, {"Location": "https://127.0.0.1:9/x"}), "redirects to 127.0.0.1:9"),
    ],
)
def test_what_will_not_change_is_not_tried_again(
    tmp_path: Path, ingest: IngestStub, endpoint: Endpoint, reply: Reply, said: str
) -> None:
    fill(tmp_path, 3)
    ingest.script = lambda _: reply
    outbox, time = Outbox(str(tmp_path), ingest.url), Time()
    done = send(outbox, endpoint, 60, patient=True, clock=time.clock, sleep=time.sleep)
    assert (done, time.slept, len(ingest.posts)) == (Result.OVER, [], 1)
    assert said in Outbox(str(tmp_path), ingest.url).problem
    assert len(outbox.waiting()) == 3


def test_trouble_that_passes_is_waited_for(
    tmp_path: Path, ingest: IngestStub, endpoint: Endpoint
) -> None:
    fill(tmp_path, 3)
    replies = [
        Reply(503, {}, {"Retry-After": "7"}),
        Reply(502, "<html>"),
        Reply(429, {"error": "slower"}),
    ]
    ingest.script = lambda _: replies.pop(0) if replies else None
    outbox, time = Outbox(str(tmp_path), ingest.url), Time()
    done = send(outbox, endpoint, 60, patient=True, clock=time.clock, sleep=time.sleep)
    assert done is Result.DONE
    assert len(ingest.records) == 3
    assert 7 <= time.slept[0] <= 7 * 1.25, "never sooner than it asked for"
    assert 1 <= time.slept[1] <= 2
    assert 2 <= time.slept[2] <= 4
    assert outbox.problem == ""


def test_a_dead_service_costs_no_more_than_its_time(
    tmp_path: Path, ingest: IngestStub, endpoint: Endpoint
) -> None:
    fill(tmp_path, 3)
    ingest.script = lambda _: Reply(503)
    outbox, time = Outbox(str(tmp_path), ingest.url), Time()
    done = send(outbox, endpoint, 60, patient=True, clock=time.clock, sleep=time.sleep)
    assert done is Result.LATER
    assert 20 < time.now <= 60
    assert 5 <= len(ingest.posts) <= 9
    # Who is told to come back after the end need not wait for it.
    ingest.script = lambda _: Reply(503, {}, {"Retry-After": "3600"})
    before = time.now
    done = send(outbox, endpoint, before + 60, patient=True, clock=time.clock, sleep=time.sleep)
    assert (done, time.now, outbox.retry_after_s) == (Result.LATER, before, 3600.0)


def test_pauses_grow_are_jittered_and_bounded() -> None:
    for tries in range(1, 40):
        pauses = {pause_s(tries) for _ in range(50)}
        grown = min(2.0 ** (tries - 1), sending.LONGEST_PAUSE_S)
        assert all(grown / 2 <= pause <= grown for pause in pauses)
        assert len(pauses) > 40
    assert all(100 <= pause_s(1, 100) <= 125 for _ in range(50))


def test_a_service_that_another_authority_vouches_for_is_sent_nothing(
    tmp_path: Path, ingest: IngestStub
) -> None:
    fill(tmp_path, 1)
    other = Authority(tmp_path / "other")
    outbox = Outbox(str(tmp_path), ingest.url)
    endpoint = Endpoint(ingest.url, TOKEN, str(other.ca))
    assert send(outbox, endpoint, FAR, patient=True) is Result.OVER
    assert "certificate" in outbox.problem
    assert not ingest.posts
    named = ingest.url.replace("127.0.0.1", "localhost")
    answer = Endpoint(named, TOKEN, str(ingest.ca)).post(["{}"], 5)
    assert (answer.status, answer.final) == (0, True), "the name must be right as well"


def test_nothing_listens(tmp_path: Path, authority_only: Path) -> None:
    answer = Endpoint("https://127.0.0.1:9", TOKEN, str(authority_only)).post(["{}"], 5)
    assert (answer.status, answer.final) == (0, False)
    assert "Connection refused" in answer.said


@pytest.fixture
def authority_only(tmp_path: Path) -> Path:
    return Authority(tmp_path / "authority").ca


@pytest.mark.parametrize("token", ["", PLACEHOLDER, "two words", "a\nb", "x" * 10000])
def test_what_is_no_token_is_shown_to_nobody(token: str) -> None:
    with pytest.raises(UnusableService) as error:
        Endpoint("https://127.0.0.1:9", token)
    assert not token or token not in str(error.value)


def test_a_token_stands_in_no_text(ingest: IngestStub, endpoint: Endpoint) -> None:
    assert TOKEN not in repr(endpoint)
    ingest.script = lambda _: Reply(401, {"error": "no"})
    assert TOKEN not in repr(endpoint.post(["{}"], 5))


def test_an_authorities_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(UnusableService, match=r"ca\.pem"):
        Endpoint("https://127.0.0.1:9", TOKEN, str(tmp_path / "ca.pem"))
    with pytest.raises(UnusableService, match="No such file"):
        Endpoint("https://127.0.0.1:9", TOKEN, str(tmp_path / "none.pem"))


def test_what_is_no_record_stays_and_holds_up_nothing(
    tmp_path: Path, ingest: IngestStub, endpoint: Endpoint
) -> None:
    names = fill(tmp_path, 2)
    (tmp_path / "records" / "bad.json").write_text('{"values": {}, "extras": {}}')
    (tmp_path / "records" / f"{names[0]}.json").rename(tmp_path / "records" / "copy.json")
    outbox = Outbox(str(tmp_path), ingest.url)
    assert send(outbox, endpoint, FAR, patient=False) is Result.DONE
    assert set(ingest.records) == {names[1]}
    assert set(outbox.refused) == {"bad", "copy"}


def test_an_answer_names_refused_records_of_this_request_alone() -> None:
    errors = [{"index": 1, "reasons": ["a"]}, {"index": 5}, {"index": True}, {"index": "0"}, 3]
    assert Answer(422, "no", {"errors": errors}).refused(3) == {1: "a"}
    assert Answer(422, "no", {"errors": "none"}).refused(3) == {}


def test_retry_after_may_be_a_date(ingest: IngestStub, endpoint: Endpoint) -> None:
    date = {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}
    ingest.script = lambda _: Reply(503, {}, date)
    assert endpoint.post(["{}"], 5).retry_after_s > 1e9
    ingest.script = lambda _: Reply(503, {}, {"Retry-After": "soon"})
    assert endpoint.post(["{}"], 5).retry_after_s == 0
