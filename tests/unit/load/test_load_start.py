"""Common starts of the jobs of a load, at the service and on the node, and their reports to HTCondor."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest
from local_servers import send_answer, serve_http, serve_tcp
from measurement_factory import make_campaign_row
from service_thread import ServiceThread

from treehammer.collectors.job_spec import START_ANSWER_KEYS, STARTS_PATH, LoadSpec
from treehammer.collectors.record.operation_steps import LOAD_PROGRESS_NAME, LoadProgress
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.worker.child_processes import StopSignals
from treehammer.collectors.worker.service_client import ServiceEndpoint
from treehammer.load import api as common_start
from treehammer.load.api import BarrierId, StartRegistry
from treehammer.load.worker import load_report, load_start
from treehammer.load.worker.load_report import LoadReport
from treehammer.load.worker.load_start import CommonStart, LoadStart
from treehammer.load.worker.start_meetings import (
    Appointment,
    ClockComparison,
    FolderMeeting,
    ServiceMeeting,
)
from treehammer.sql.core.access_keys import mint_job_token
from treehammer.web.core.responses import RequestRefusedError, StartAnswer, StartRequest

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
    appointment = FolderMeeting(LOAD, folder).poll(0, None)
    assert appointment is not None
    assert appointment.present == 1
    three = FolderMeeting(replace(load, jobs=3), str(tmp_path / "three"))
    three.withdraw()
    assert three.poll(0, None) is None, "one job in two attempts"


def test_missing_job_is_not_waited_for_longer_than_the_limit(tmp_path: Path) -> None:
    """By its own wait, whatever the clock of the folder says."""
    load = replace(LOAD, jobs=3, wait_s=50.0)
    first = FolderMeeting(load, str(tmp_path))
    assert first.poll(0, None) is None
    os.utime(tmp_path / "0", (0, 0))
    assert FolderMeeting(replace(load, index=1), str(tmp_path)).poll(0, None) is None
    appointment = first.poll(51, None)
    assert appointment is not None
    assert appointment.present == 2


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
            part = body[:sent] if Service.breaks_off else body
            send_answer(self, 200, part, Content_Length=str(len(body)))
            self.close_connection = Service.breaks_off

    with serve_http(Service) as port:
        endpoint = ServiceEndpoint(f"http://127.0.0.1:{port}", "token")
        meeting = ServiceMeeting(LOAD, "b", endpoint)
        with pytest.raises(ConnectionError, match="does not answer"):
            meeting.poll(0, None)
        Service.breaks_off = False
        appointment = meeting.poll(0, None)
    assert appointment is not None
    assert appointment.start_us == 5


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


STEP = LoadProgress(3, 10.0, 1000, 20, 5_000_000)


class Starter:
    """A starter of HTCondor that accepts a cookie and attributes, as version 23.9 answers."""

    def __init__(self, config: Path) -> None:
        self.attributes: list[str] = []
        self.answer = b"0\n"
        self.config = config

    def receive(self, connection: socket.socket) -> None:
        with connection.makefile("rwb") as stream:
            assert stream.readline() == b"cookie secret\n"
            stream.write(b"0\n")
            stream.flush()
            self.attributes.append(stream.readline().decode().strip())
            stream.write(self.answer)


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    process = Starter(tmp_path / "chirp.config")
    with serve_tcp(process.receive) as port:
        process.config.write_text(f"127.0.0.1 {port} secret\n")
        yield process


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def make_report(folder: Path, starter: Starter, jobs: int = 1) -> LoadReport:
    return LoadReport(str(folder), 2, jobs, {load_report.CONFIG_VARIABLE: str(starter.config)})


def test_new_steps_are_reported_at_a_bounded_rate(
    tmp_path: Path, starter: Starter, clock: list[float]
) -> None:
    path = str(tmp_path / LOAD_PROGRESS_NAME)
    report = make_report(tmp_path, starter)
    assert report.is_possible
    report.send_if_due()
    assert starter.attributes == [], "there is no step yet"
    for step in range(300):
        clock[0] = step / 10
        STEP._replace(step=step).write(path)
        report.send_if_due()
    steps = [f"set_job_attr TreehammerLoad {{2,{s},10.0,1000,20,5000000}}" for s in (0, 100, 200)]
    assert starter.attributes == steps
    clock[0] += 100
    report.send_if_due()
    report.send_if_due()
    report.end()
    assert starter.attributes[3:] == [
        "set_job_attr TreehammerLoad {2,299,10.0,1000,20,5000000}",
        "set_job_attr TreehammerLoad undefined",
    ]


def test_many_jobs_share_a_limit(tmp_path: Path, starter: Starter, clock: list[float]) -> None:
    """A thousand jobs send five reports per second, not a hundred."""
    report = make_report(tmp_path, starter, jobs=1000)
    for second in range(400):
        clock[0] = second
        STEP._replace(step=second).write(str(tmp_path / LOAD_PROGRESS_NAME))
        report.send_if_due()
    assert len(starter.attributes) == 2


def test_refused_and_silent_starters_are_left_alone(
    tmp_path: Path, starter: Starter, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    STEP.write(str(tmp_path / LOAD_PROGRESS_NAME))
    report = make_report(tmp_path, starter)
    starter.answer = b"-8\n"
    for second in range(60):
        clock[0] = second
        report.send_if_due()
    assert len(starter.attributes) == 1
    starter.answer, clock[0] = b"0\n", 60.0
    report.send_if_due()
    assert len(starter.attributes) == 2

    monkeypatch.setattr(load_report, "_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        starter.config.write_text(f"127.0.0.1 {silent.getsockname()[1]} secret\n")
        began = time.perf_counter()
        make_report(tmp_path, starter).send_if_due()
        assert time.perf_counter() - began < 5
    for text in ("", "no-port-number x y\n"):
        starter.config.write_text(text)
        make_report(tmp_path, starter).send_if_due()
    starter.config.unlink()
    make_report(tmp_path, starter).send_if_due()


def test_only_loads_in_htcondor_report(tmp_path: Path, starter: Starter) -> None:
    assert not make_report(tmp_path, starter, jobs=0).is_possible
    assert not LoadReport(str(tmp_path), 1, 4, {}).is_possible


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


Arrival = tuple[str, StartRequest]


def arrive(job: str, waited_s: float = 0.0, jobs: int = 3, **more: Any) -> Arrival:
    times: dict[str, Any] = {"wait_s": 60.0, "lead_s": 5.0, "waited_s": waited_s}
    return job, StartRequest(barrier="b", jobs=jobs, **times, **more)


def register(
    registry: StartRegistry, campaign: str, name: str, arrival: Arrival, key: str = "key"
) -> StartAnswer:
    return registry.register(BarrierId("group", campaign, name), *arrival, key)


def test_start_is_set_once_all_jobs_are_there() -> None:
    registry = StartRegistry(Clock())
    for job in ("a", "b", "a"):
        state = register(registry, "campaign", "b", arrive(job))
        assert state.start_us is None
    assert state.present == 2
    assert register(registry, "other", "b", arrive("c")).present == 1, "another campaign"
    state = register(registry, "campaign", "b", arrive("c"))
    assert state.start_us == (1000 + 2 + 2 * state.poll_s + 5) * 1e6
    assert register(registry, "campaign", "b", arrive("late")) == state


def test_withdrawn_jobs_are_not_waited_for() -> None:
    registry = StartRegistry(Clock())
    for job in ("a", "b"):
        assert register(registry, "c", "b", arrive(job, absent=True)).start_us is None
    assert register(registry, "c", "b", arrive("a")).start_us is None, "it came after all"
    state = register(registry, "c", "b", arrive("d"))
    assert state.start_us is not None
    assert state.present == 2


def test_start_is_set_without_missing_jobs_after_the_limit() -> None:
    clock = Clock()
    registry = StartRegistry(clock)
    register(registry, "campaign", "b", arrive("a"))
    clock.now_s += 59
    assert register(registry, "campaign", "b", arrive("b")).start_us is None
    clock.now_s += 1
    state = register(registry, "campaign", "b", arrive("b", 1.0))
    assert state.start_us is not None
    assert state.start_us > clock.now_s * 1e6
    assert state.present == 2


def test_restarted_service_learns_everything_from_the_jobs() -> None:
    before = StartRegistry(Clock())
    for job in ("a", "b"):
        register(before, "campaign", "b", arrive(job))
    first = register(before, "campaign", "b", arrive("c"))
    after = StartRegistry(Clock())
    repeated = arrive("a", start_us=first.start_us, present=first.present)
    assert register(after, "campaign", "b", repeated) == first
    assert register(after, "campaign", "b", arrive("b")) == first
    registry = StartRegistry(Clock())
    assert register(registry, "campaign", "b", arrive("a", 60.0)).start_us is not None


def test_registry_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_start, "MAX_BARRIERS", 2)
    monkeypatch.setattr(common_start, "KEY_DIVISOR", 1)
    monkeypatch.setattr(common_start, "JOB_DIVISOR", 1)
    clock = Clock()
    registry = StartRegistry(clock)
    register(registry, "campaign", "a", arrive("a"))
    with pytest.raises(RequestRefusedError, match="3 jobs are to start together, not 4"):
        register(registry, "campaign", "a", arrive("b", jobs=4))
    register(registry, "campaign", "b", arrive("a"))
    with pytest.raises(RequestRefusedError, match="too many loads"):
        register(registry, "campaign", "c", arrive("a"), "other key")
    clock.now_s += common_start.IDLE_S + 2
    register(registry, "campaign", "c", arrive("a"))


def test_one_job_leaves_places_to_others() -> None:
    """Attack: a job's token opens barriers, of which each is kept for a day."""
    clock = Clock()
    registry = StartRegistry(clock)
    shares = {
        "job": common_start.MAX_BARRIERS // common_start.JOB_DIVISOR,
        "key": common_start.MAX_BARRIERS // common_start.KEY_DIVISOR,
    }
    for number in range(shares["job"]):
        register(registry, "c", str(number), arrive("greedy", jobs=1 + number % 2))
    with pytest.raises(RequestRefusedError, match="job"):
        register(registry, "c", "more", arrive("greedy"))
    for number in range(shares["key"] - shares["job"]):
        register(registry, "c", f"key {number}", arrive(f"j{number}"))
    with pytest.raises(RequestRefusedError, match="key"):
        register(registry, "c", "even more", arrive("j"))
    assert register(registry, "c", "0", arrive("other", jobs=1)).present == 1, "its jobs still meet"
    assert register(registry, "c", "of another key", arrive("a"), "other").present == 1
    clock.now_s += 60
    assert register(registry, "c", "next execution", arrive("greedy")).present == 1
    assert register(registry, "c", "1", arrive("other", jobs=2)).start_us, "it still waits"


REQUEST: dict[str, Any] = {"barrier": "b", "jobs": 2, "wait_s": 60, "lead_s": 1, "waited_s": 0}


def test_jobs_of_groups_never_meet(service: ServiceThread) -> None:
    """Attack: a stranger opens the barrier of a campaign of which nothing was sent yet."""
    until_us = service.clock[0] + 60_000_000
    tokens = [
        mint_job_token(service.make_key("submit", owner=group), "campaign", job, until_us)
        for group, job in (("mallory", "a"), ("alice", "a"), ("alice", "b"))
    ]
    for token, jobs, present in zip(tokens, (9, 2, 2), (1, 1, 2), strict=True):
        answer = service.post_document({**REQUEST, "jobs": jobs}, token, STARTS_PATH)
        assert (answer.status_code, answer.json()["present"]) == (200, present)


def test_jobs_meet_with_their_tokens(service: ServiceThread) -> None:
    key = service.make_key("submit")
    until_us = service.clock[0] + 60_000_000
    tokens = [mint_job_token(key, "campaign", job, until_us) for job in ("a", "b")]
    first = service.post_document(REQUEST, tokens[0], STARTS_PATH).json()
    assert set(START_ANSWER_KEYS) <= first.keys()
    assert (first["start_us"], first["present"], first["jobs"]) == (None, 1, 2)
    second = service.post_document(REQUEST, tokens[1], STARTS_PATH).json()
    assert second["start_us"] > second["time_us"]
    repeated = service.post_document(REQUEST, tokens[0], STARTS_PATH).json()
    assert repeated["start_us"] == second["start_us"]


def test_invalid_requests_are_refused(service: ServiceThread) -> None:
    key = service.make_key("submit")
    until_us = service.clock[0] + 60_000_000
    token = mint_job_token(key, "campaign", "a", until_us)
    answer = service.post_document({**REQUEST, "jobs": 0}, token, STARTS_PATH)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("jobs: ")
    assert service.post_document(REQUEST, key.text, STARTS_PATH).status_code == 403
    assert service.post_document(REQUEST, "", STARTS_PATH).status_code == 401
    assert service.post_document(REQUEST, token, STARTS_PATH).status_code == 200
    assert service.post_document({**REQUEST, "jobs": 9}, token, STARTS_PATH).status_code == 409


def test_other_groups_cannot_join_a_common_start(service: ServiceThread) -> None:
    alice, mallory = (service.make_key("submit", owner=name) for name in ("alice", "mallory"))
    row = make_campaign_row("c1")
    campaign = {**vars(row), "plan": row.plan.to_document()}
    document = {"campaign": campaign, "jobs": [], "replicas": []}
    sent = service.post_document(document, alice.text, "/api/v1/campaigns")
    assert sent.status_code == 200, sent.text
    until_us = service.clock[0] + 60_000_000
    for key, status in ((mallory, 403), (alice, 200), (alice, 200)):
        token = mint_job_token(key, "c1", "j1", until_us)
        answer = service.post_document(REQUEST, token, STARTS_PATH)
        assert answer.status_code == status
