"""Jobs in HTCondor: states from the event log and the schedd, submissions, and tokens."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import classad2
import pytest
from credential_factory import write_token

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.operation_steps import LoadProgress
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor import htcondor_batch
from treehammer.submit.batch.htcondor.event_log import CONFIRM_AFTER_US, parse_events
from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch
from treehammer.submit.batch.htcondor.job_events import EventType, JobEvent, JobEvents
from treehammer.submit.batch.htcondor.pool import HTCondorPool, PoolConnection, PoolUnreachableError
from treehammer.submit.batch.htcondor.pool_probes import probe_pool
from treehammer.submit.batch.htcondor.submit_description import START_VARIABLE, Submission
from treehammer.submit.batch.interface import PROBE_FAILED, PROBE_OK, JobDescription, JobStatus
from treehammer.submit.campaigns.attempt_rows import explain_end

QUEUED_S = 1_767_225_600
EXECUTE, EVICTED, TERMINATED = EventType.EXECUTE, EventType.EVICTED, EventType.TERMINATED
SHADOW_EXCEPTION = EventType.SHADOW_EXCEPTION
ABORTED, HELD, RELEASED = EventType.ABORTED, EventType.HELD, EventType.RELEASED
DISCONNECTED, RECONNECTED = EventType.DISCONNECTED, EventType.RECONNECTED
RECONNECT_FAILED, CLUSTER_REMOVED = EventType.RECONNECT_FAILED, EventType.CLUSTER_REMOVED


def event(kind: int, second: int, attempt: int = 0, proc: int = 0, **values: object) -> str:
    """Format an event like HTCondor, whose own times are local."""
    moment = time.gmtime(QUEUED_S + 7200 + second)
    attributes = {
        "EventTime": time.strftime('"%Y-%m-%dT%H:%M:%S.000"', moment),
        "TreehammerAttempt": f'"{attempt}"' if attempt else '"$$([NumShadowStarts?:1])"',
        "TreehammerTime": QUEUED_S + second,
        **{k: json.dumps(v) for k, v in values.items()},
        "TriggerEventTypeNumber": kind,
    }
    local_time = time.strftime("%Y-%m-%d %H:%M:%S", moment)
    head = f"028 (007.{proc:03d}.000) {local_time} Job ad information"
    return "\n".join([head, *(f"{k} = {v}" for k, v in attributes.items()), "...", ""])


SUBMITTED = event(0, 0)


def apply_events(*events: str) -> JobEvents:
    job = JobEvents()
    for item in parse_events("".join((SUBMITTED, *events)), 7):
        job.apply(item)
    return job


def status_of(job: JobEvents, *, cancelled: bool = False) -> JobStatus:
    return job.status("b", cancelled=cancelled)


def test_repeated_events_change_nothing() -> None:
    events = [
        event(EXECUTE, 10, 1),
        event(EVICTED, 20, 1, TerminatedAndRequeued=True, TerminatedNormally=True, ReturnValue=75),
        event(EXECUTE, 30, 2),
        event(TERMINATED, 40, 2, TerminatedNormally=True, ReturnValue=0),
    ]
    twice = apply_events(*[item for item in events for _ in range(2)], *events)
    assert twice == apply_events(*events)
    assert [s.exit_code for s in twice.starts.values()] == [75, 0]


@pytest.mark.parametrize("missing", range(4))
def test_missing_event_loses_no_attempt(missing: int) -> None:
    events = [
        event(EXECUTE, 10, 1),
        event(EVICTED, 20, 1),
        event(EXECUTE, 30, 2),
        event(TERMINATED, 40, 2, TerminatedNormally=True, ReturnValue=0),
    ]
    del events[missing]
    ad = {"JobStatus": 4, "MATCH_EXP_TreehammerAttempt": "2", "NumShadowStarts": 2, "ExitCode": 0}
    job = apply_events(*events)
    job.apply_ad(ad)
    status = status_of(job)
    assert status.state is JobState.DONE
    assert [a.number for a in status.attempts] == [1, 2]
    assert [a.state for a in status.attempts] == [JobState.LOST, JobState.DONE]


def test_only_failed_reconnect_ends_start() -> None:
    seen = apply_events(
        event(EXECUTE, 10, 1),
        event(DISCONNECTED, 20, DisconnectReason="gone"),
        event(RECONNECTED, 25, 1),
        event(DISCONNECTED, 30, 1, DisconnectReason="gone"),
        event(RECONNECT_FAILED, 50, 1, Reason="lease expired", StartdName="slot1@x"),
        event(EVICTED, 51, 1, Reason="lease expired"),
    )
    assert (seen.starts[1].event, seen.starts[1].reason) == ("lost", "slot1@x: lease expired")


def test_later_start_ends_earlier_one_without_events() -> None:
    first, second = status_of(apply_events(event(EXECUTE, 10, 1), event(EXECUTE, 30, 2))).attempts
    assert (first.state, first.ended_us) == (JobState.LOST, (QUEUED_S + 30) * 1_000_000)
    assert first.reason == "its shadow ended without an event"
    assert second.state is JobState.RUNNING
    late = apply_events(event(EXECUTE, 30, 2), event(EXECUTE, 10, 1))
    assert [number for number, start in late.starts.items() if start.is_open] == [2, 1]


def test_ad_shows_last_start_unless_it_is_only_matched() -> None:
    def numbers(job: JobEvents, status: int, shadows: int, matched: str) -> list[int]:
        ad = {"JobStatus": status, "NumShadowStarts": shadows}
        job.apply_ad({**ad, "MATCH_EXP_TreehammerAttempt": matched})
        return [attempt.number for attempt in status_of(job).attempts]

    job = apply_events(event(EXECUTE, 10, 1), event(EVICTED, 20, 1))
    assert numbers(job, 1, 1, "2") == [1]
    assert numbers(job, 2, 2, "2") == [1, 2]
    assert numbers(JobEvents(), 1, 0, "1") == []
    unlogged = JobEvents()
    assert numbers(unlogged, 1, 1, "1") == [1]
    assert unlogged.starts[1].reason == "evicted: no event gives a reason"
    assert numbers(unlogged, 1, 2, "3") == [1, 3]


def test_removal_after_an_unexplained_eviction_is_the_explanation() -> None:
    """The schedd was asked between the end of a start and the removal of the job."""
    job = JobEvents()
    job.apply_ad({"JobStatus": 1, "NumShadowStarts": 1})
    job.apply_ad({"JobStatus": 3, "NumShadowStarts": 1, "RemoveReason": "no retries"})
    (attempt,) = status_of(job).attempts
    assert (attempt.event, attempt.reason) == ("lost", "removed from the queue: no retries")


def test_removal_is_classified_by_cause() -> None:
    held = [
        event(EXECUTE, 10, 1),
        event(EVICTED, 20, 1, Reason="no such file"),
        event(HELD, 20, HoldReason="no such file", HoldReasonCode=6, HoldReasonSubCode=2),
    ]
    cases = [
        ([event(ABORTED, 30, Reason="treehammer cancel (by user x)")], False, "cancelled", None),
        ([event(ABORTED, 30, Reason="via condor_rm")], True, "cancelled", None),
        ([event(ABORTED, 30, Reason="via condor_rm")], False, "lost", "lost"),
        ([*held, event(ABORTED, 30, Reason="held: no such file")], False, "lost", "held"),
        ([*held, event(ABORTED, 30, Reason="via condor_rm")], False, "lost", "held"),
        ([event(ABORTED, 30, Reason="submission: idle too long")], False, "lost", "submission"),
    ]
    for events, cancelled, state, failure in cases:
        status = status_of(apply_events(*events), cancelled=cancelled)
        assert (status.state.value, status.event) == (state, failure), events
    started, evicted = event(EXECUTE, 10, 1), event(EVICTED, 20, 1, Reason="preempted")
    temporary = event(EVICTED, 20, 1, TerminatedAndRequeued=True, TerminatedBySignal=9)
    for end, reason, failures, texts in (
        (evicted, "submission: idle", ["evicted", "submission"], ["evicted: preempted", "idle"]),
        (evicted, "evicted: 3 times", ["evicted"], ["evicted: preempted"]),
        (event(EVICTED, 20, 1), "evicted: 3 times", ["evicted"], ["evicted by its node"]),
        (temporary, "lost: x", [None, "lost"], ["ended by signal 9", "x"]),
    ):
        status = status_of(apply_events(started, end, event(ABORTED, 900, Reason=reason)))
        assert [attempt.event for attempt in status.attempts] == failures
        assert [attempt.reason for attempt in status.attempts] == texts


@pytest.mark.parametrize(
    ("code", "subcode", "reason", "failure", "cause"),
    [
        (34, 0, "Job has gone over cgroup memory limit of 128 megabytes.", "evicted", "memory"),
        (34, 102, "", "evicted", "memory"),
        (34, 104, "Job has exceeded its disk", "evicted", "disk"),
        (21, 102, "held by the machine", "evicted", "memory"),
        (26, 0, "Job exceeded its requested scratch space", "evicted", "disk"),
        (26, 0, "SYSTEM_PERIODIC_HOLD: maximum wallclock time of 72 hours", "evicted", "time"),
        (3, 0, "The job attribute PeriodicHold evaluated to TRUE", "held", "policy"),
        (46, 0, "The job exceeded allowed job duration of 1:00:00", "evicted", "time"),
        (47, 0, "The job exceeded allowed execute duration of 1:00:00", "evicted", "time"),
        (4, 0, "Proxy expired", "credential", "credential"),
        (2, 0, "Failed to authenticate with the token", "credential", "credential"),
        (13, 2, "Transfer input files failure: no such file", "held", "transfer of inputs"),
        (14, 13, "Cannot access initial working directory /a", "held", "submit folder"),
        (12, 28, "Transfer output files failure: No space left", "held", "transfer of outputs"),
        (33, 0, "Output too large", "held", "size of a transfer"),
        (6, 2, "Failed to execute", "held", "start of the job"),
        (35, 0, "Cannot pull the image", "held", "start of the job"),
        (1, 0, "via condor_hold (by user x)", "held", "a person"),
        (40, 0, "connection problem", "held", "cloud"),
        (99, 0, "something new", "held", ""),
        (99, 0, "something new about memory", "evicted", "memory"),
    ],
)
def test_hold_has_class_cause_and_remedy(
    code: int, subcode: int, reason: str, failure: str, cause: str
) -> None:
    values: dict[str, Any] = {
        "HoldReason": reason,
        "HoldReasonCode": code,
        "HoldReasonSubCode": subcode,
    }
    held = (event(EXECUTE, 10, 1), event(HELD, 20, **values))
    seen = apply_events(*held)
    events = JobEvents()
    events.apply_ad({"JobStatus": 5, **values})
    queued = status_of(events)
    gone = status_of(apply_events(*held, event(ABORTED, 30, Reason="held: x")))
    assert queued.state is JobState.HELD
    assert seen.starts[1].hold == queued.hold == gone.hold
    for status in (seen.starts[1], queued, gone):
        failure_class, text = explain_end(status)
        assert (status.event, failure_class) == ("held", failure)
        suffix = f": {cause}" if cause else ""
        assert f"(hold code {code}, subcode {subcode}{suffix}). " in text
        assert text.endswith(".")


@pytest.mark.parametrize(
    ("end", "code", "later_s", "event_name"),
    [
        (SHADOW_EXCEPTION, 34, 1, "held"),
        (RECONNECT_FAILED, 13, 1, "held"),
        (EVICTED, 1, 1, "held"),
        (SHADOW_EXCEPTION, 1, 1, "lost"),  # by a person, afterwards
        (SHADOW_EXCEPTION, 34, 90, "lost"),
    ],
)
def test_a_hold_tells_the_end_of_the_attempt_before_it(
    end: EventType, code: int, later_s: int, event_name: str
) -> None:
    events = [
        event(EXECUTE, 10, 1),
        event(end, 20, 1, Message="over memory", Reason="over memory"),
        event(HELD, 20 + later_s, 1, HoldReason="over memory", HoldReasonCode=code),
    ]
    # A repetition, and a release with the next start, leave the story as it is.
    for later in ([], events, [event(RELEASED, 120), event(EXECUTE, 130, 2)]):
        first = apply_events(*events, *later).starts[1]
        assert (first.state, first.event) == (JobState.LOST, event_name)
        assert bool(first.hold) == (event_name == "held")


def test_state_of_open_job_follows_its_events() -> None:
    held = event(HELD, 20, HoldReason="x", HoldReasonCode=1, HoldReasonSubCode=0)
    cases = [
        ((), JobState.QUEUED),
        ((event(EXECUTE, 10, 1),), JobState.RUNNING),
        ((event(EXECUTE, 10, 1), event(DISCONNECTED, 20, 1)), JobState.RUNNING),
        ((event(EXECUTE, 10, 1), event(EVICTED, 20, 1)), JobState.QUEUED),
        ((event(EXECUTE, 10, 1), held), JobState.HELD),
        ((event(EXECUTE, 10, 1), held, event(RELEASED, 30)), JobState.QUEUED),
        ((event(TERMINATED, 40, TerminatedNormally=True, ReturnValue=0),), JobState.DONE),
    ]
    for events, state in cases:
        assert status_of(apply_events(*events)).state is state, events
    running = apply_events(event(EXECUTE, 10, 1))
    for status in (1, 5):  # before the start
        running.apply_ad({"JobStatus": status, "EnteredCurrentStatus": QUEUED_S + 9})
    assert status_of(running).state is JobState.RUNNING


class Schedd:
    """A schedd whose queue and history are lists of ads, and the log of a cluster of two jobs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.asked = 0
        self.acts: list[tuple[str, str]] = []
        self.answers = True
        self.now_us = QUEUED_S * 1_000_000
        self.name = "first@host"
        self.known_names = [self.name]
        self.folder = folder
        self.submission = Submission.for_jobs(folder, "c", "", ["a", "b"])
        self.cluster = f'TreehammerSubmission == "{self.submission.name}" && ClusterId == 7'
        self.submission.path.mkdir(parents=True)
        index = self.submission.path / "submission.json"
        index.write_text('{"jobs": ["a", "b"], "text": ""}')
        os.utime(index, (QUEUED_S, QUEUED_S))
        self.submission.record_cluster(7, self.name)
        self.log = self.submission.log_file
        self._monkeypatch = monkeypatch
        self.restart_client()

    def restart_client(self) -> None:
        """Forget what was read, as another process does."""
        self.batch = HTCondorBatch(HTCondorPool(name="p"), self.folder)
        replace = self._monkeypatch.setattr
        connection = self.batch.connection
        replace(connection, "find_schedd_name", lambda: self.name)
        replace(connection, "query_collector", lambda *_: self.known_names)
        replace(connection, "query_ads", lambda *_, **__: self._answer(self.queue))
        replace(connection, "query_history", lambda *_, **__: self._answer(self.history))
        replace(connection, "act_on_jobs", lambda *words: self.acts.append(words[:2]))
        replace(time, "time_ns", lambda: self.now_us * 1000)

    def _answer(self, ads: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not self.answers:
            raise PoolUnreachableError("HTCondor does not answer")
        self.asked += 1
        return [{"ClusterId": 7, **ad} for ad in ads]

    def write(self, *events: str) -> None:
        with self.log.open("a") as stream:
            stream.writelines(events)

    def pass_time(self) -> None:
        self.now_us += 2 * CONFIRM_AFTER_US

    @property
    def ids(self) -> list[str]:
        return [f"7.{proc}@{self.submission.name}" for proc in range(2)]

    def statuses(self) -> list[JobStatus | None]:
        return [*map(self.batch.query(self.ids).get, self.ids)]

    def states(self) -> list[str]:
        return [status.state.value if status else "unknown" for status in self.statuses()]


#: First event of a log and, as HTCondor writes it, the same as attributes.
FIRST = "000 (007.000.000) 2026-01-01 02:00:00 Job submitted\n...\n" + SUBMITTED
DONE = {"TerminatedNormally": True, "ReturnValue": 0}
REMOVED = event(ABORTED, 20, Reason="via condor_rm")
RUNNING = {"JobStatus": 2, "NumShadowStarts": 1, "MATCH_EXP_TreehammerAttempt": "1"}


@pytest.fixture
def schedd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Schedd:
    return Schedd(tmp_path, monkeypatch)


def test_states_come_from_log_without_schedd(schedd: Schedd) -> None:
    schedd.answers = False
    foreign = event(TERMINATED, 5, 1, **DONE).replace("(007.", "(006.")
    started = event(EXECUTE, 10, 1, SlotName="slot1@x")
    schedd.write(FIRST, foreign, started[:-10])
    assert schedd.states() == ["queued", "queued"], "the last event is incomplete"
    schedd.write(started[-10:])
    assert schedd.states() == ["running", "queued"]
    status = schedd.statuses()[0]
    assert status
    (attempt,) = status.attempts
    assert (attempt.started_us, attempt.host) == ((QUEUED_S + 10) * 1_000_000, "slot1@x")
    schedd.write(event(TERMINATED, 20, 1, **DONE), event(ABORTED, 21, proc=1, Reason="by a person"))
    assert schedd.states() == ["done", "lost"]
    schedd.log.unlink()
    assert schedd.states() == ["done", "lost"], "final states outlive the log"


def test_silent_job_is_confirmed_once_a_minute(schedd: Schedd) -> None:
    schedd.write(FIRST, event(EXECUTE, 10, 1), event(EXECUTE, 10, 1, proc=1))
    schedd.queue = [{"ProcId": 0, **RUNNING}, {"ProcId": 1, **RUNNING}]
    schedd.pass_time()
    assert schedd.states() == ["running", "running"]
    assert schedd.states() == ["running", "running"]
    assert schedd.asked == 1
    # The ends are missing from the log: one job has left the queue, one is held.
    schedd.queue = [{"ProcId": 1, "JobStatus": 5, "HoldReasonCode": 1}]
    schedd.history = [{"ProcId": 0, "JobStatus": 4, "ExitCode": 0}]
    assert schedd.states() == ["running", "running"]
    schedd.pass_time()
    assert schedd.states() == ["done", "held"]
    schedd.queue, schedd.answers = [], False
    schedd.pass_time()
    assert schedd.states() == ["done", "held"], "a silent schedd changes nothing"
    schedd.answers = True
    assert schedd.states() == ["done", "unknown"], "neither queue nor history has the job"


def test_missing_cut_and_replaced_logs_are_completed_by_schedd(schedd: Schedd) -> None:
    end = event(TERMINATED, 20, 1, **DONE)
    schedd.queue = [{"ProcId": 1, **RUNNING}]
    schedd.history = [{"ProcId": 0, "JobStatus": 4, "ExitCode": 3}]

    def cut() -> None:
        schedd.log.write_text(event(EXECUTE, 10, 1, proc=1))

    def rotate() -> None:
        schedd.log.rename(schedd.log.with_suffix(".old"))
        schedd.write(event(EXECUTE, 10, 1, proc=1))

    hole = bytes(300) + event(EXECUTE, 10, 1, proc=1).encode()
    for damage in (schedd.log.unlink, cut, rotate, lambda: schedd.log.write_bytes(hole)):
        for is_new_process in (False, True):
            schedd.log.write_text(FIRST + event(EXECUTE, 10, 1))
            schedd.restart_client()
            assert schedd.states() == ["running", "queued"]
            damage()
            if is_new_process:
                schedd.restart_client()
            assert schedd.states() == ["done", "running"], damage
            schedd.answers = False
            with pytest.raises(PoolUnreachableError):
                schedd.states()
            schedd.answers = True
            schedd.write(event(EXECUTE, 10, 1, proc=1), end.replace(".000.", ".001."))
            assert schedd.states() == ["done", "done"], damage


@pytest.mark.parametrize(
    ("end", "cancelled", "state", "expected"),
    [
        (REMOVED, False, "lost", "before the job's turn came: via condor_rm"),
        (REMOVED, True, "cancelled", "cancelled"),
        (event(TERMINATED, 20, 1, **DONE), False, "lost", "MAX_JOBS_PER_OWNER; resume queues it"),
    ],
)
def test_job_removed_before_its_turn_is_lost_or_cancelled(
    schedd: Schedd, end: str, cancelled: bool, state: str, expected: str
) -> None:
    schedd.write(FIRST, end, event(CLUSTER_REMOVED, 30, proc=-1))
    if cancelled:
        schedd.submission.cancellation_mark.touch()
    ids = [*schedd.ids, f"7.2@{schedd.submission.name}"]
    _, second, status = schedd.batch.query(ids).values()
    assert (status.state.value, status.reason) == (state, second.reason)
    assert status.reason.endswith(expected)


@pytest.mark.parametrize("proc", [-1, 0], ids=["cluster", "job"])
def test_schedd_is_asked_about_holds_only_if_log_has_one(schedd: Schedd, proc: int) -> None:
    schedd.write(FIRST, event(EXECUTE, 10, 1, proc=1))
    assert not schedd.batch.release_held(schedd.ids, "site excluded")
    hold, end = (EventType.FACTORY_PAUSED, EventType.FACTORY_RESUMED) if proc else (HELD, RELEASED)
    text = "site excluded: disk burns"
    schedd.write(event(hold, 20, proc=proc, Reason=text, HoldReason=text, HoldReasonCode=1))
    assert not schedd.batch.release_held(schedd.ids, "other reason")
    assert schedd.asked == 0
    schedd.batch.release_held(schedd.ids, "site excluded")
    assert schedd.asked == 1
    schedd.write(event(end, 30, proc=proc, Reason=text))
    schedd.batch.release_held(schedd.ids, "site excluded")
    assert schedd.asked == 1


def test_open_jobs_are_cancelled_by_cluster_if_all_are(schedd: Schedd) -> None:
    schedd.write(FIRST, event(EXECUTE, 10, 1))
    assert schedd.batch.cancel(schedd.ids[1:]) == 1
    assert schedd.acts == [("Remove", f"{schedd.cluster} && (ProcId == 1)")]
    assert not schedd.submission.cancellation_mark.exists()
    assert schedd.batch.cancel([*schedd.ids, "1.0@other.0a", "local-1"]) == 2
    assert schedd.acts[1:] == [("Remove", schedd.cluster)]
    assert schedd.submission.cancellation_mark.exists()
    schedd.write(*(event(ABORTED, 20, proc=n, Reason="treehammer cancel") for n in range(2)))
    assert schedd.batch.cancel(schedd.ids) == 0
    assert len(schedd.acts) == 2


def test_another_default_schedd_is_not_taken_for_that_of_the_jobs(schedd: Schedd) -> None:
    schedd.write(FIRST, event(EXECUTE, 10, 1), event(HELD, 20, proc=1, HoldReason="x"))
    schedd.pass_time()
    schedd.name = "second@host"
    assert schedd.states() == ["running", "held"]
    for name in ("cancel", "release", "explain_waiting", "hold", "release_held"):
        arguments = ["x"] if name.startswith(("hold", "release_")) else []
        with pytest.raises(PoolUnreachableError, match=r"first@host .* second@host"):
            getattr(schedd.batch, name)(schedd.ids, *arguments)
    assert not schedd.acts
    schedd.batch.pool = HTCondorPool(name="p", schedd="second@host")
    assert schedd.states() == ["running", "held"], "the first one has them still"
    schedd.known_names.clear()
    assert schedd.states() == ["unknown", "unknown"], "the pool names another in its place"


def test_cluster_of_a_killed_submitter_is_in_its_log_or_at_its_schedd_alone(schedd: Schedd) -> None:
    schedd.submission.record_cluster(0, schedd.name)
    schedd.batch.pool = HTCondorPool(name="p", schedd="First@HOST")
    assert not schedd.batch.find("ab"), "the pool names it, in other letters"
    schedd.history = [{"ProcId": 0}]
    expected = dict(zip("ab", schedd.ids, strict=True))
    assert schedd.batch.find("ab") == expected
    schedd.submission.record_cluster(0, schedd.name)
    schedd.batch.pool = HTCondorPool(name="p", schedd="second@host")
    with pytest.raises(PoolUnreachableError, match=r"first@host .* second@host"):
        schedd.batch.find("ab")
    schedd.write(FIRST)
    schedd.answers = False
    assert schedd.batch.find("ab") == expected


def test_limit_that_refuses_jobs_is_named_and_their_schedd_known_before(
    schedd: Schedd, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings = SimpleNamespace(Schedd=dict, HTCondorException=RuntimeError)
    monkeypatch.setattr(htcondor_batch, "configured_bindings", lambda _: nullcontext(bindings))
    connection, location = schedd.batch.connection, {"Name": schedd.name}
    monkeypatch.setattr(connection, "call", lambda _: location)
    connection.pauses_s = ()
    submission = Submission.for_jobs(schedd.folder, "c", "text", ["d"])

    def refuse(*_: object) -> int:
        assert (submission.schedd, submission.cluster) == (schedd.name, 0)
        raise RuntimeError("expected next ProcId to be 1, but Schedd says -3")

    monkeypatch.setattr(schedd.batch, "_add_jobs", refuse)
    with pytest.raises(BatchError, match="schedd's limit MAX_JOBS_PER_OWNER"):
        schedd.batch.submit("c", [JobDescription("d", "text", {})])
    assert not submission.path.exists()


def test_held_jobs_are_released_and_waiting_ones_held(schedd: Schedd) -> None:
    schedd.write(FIRST, event(HELD, 20, proc=1, HoldReason="x", HoldReasonCode=1))
    assert schedd.batch.release(schedd.ids) == 1
    schedd.batch.hold(schedd.ids, "site excluded")
    idle = f"{schedd.cluster} && (ProcId == 0 || ProcId == 1) && JobStatus == 1"
    assert schedd.acts == [
        ("Release", f"{schedd.cluster} && (ProcId == 1) && JobStatus == 5"),
        ("Hold", f"{schedd.cluster} && isUndefined(ProcId) || {idle}"),
    ]


def test_ended_job_is_requeued_once_and_purged_with_its_submissions(
    schedd: Schedd, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = iter((8, 9))
    monkeypatch.setattr(schedd.batch, "_add_cluster", lambda s: s.record_cluster(next(clusters)))
    for folder in ("shared", "jobs/a/output/attempt-1", "jobs/b/output"):
        (schedd.submission.path / folder).mkdir(parents=True)
    for job in "ab":
        (schedd.submission.path / f"jobs/{job}/job.json").write_text(job)
    schedd.write(FIRST, event(TERMINATED, 20, 1, **DONE), event(EXECUTE, 10, 1, proc=1))
    replaced: list[tuple[str, list[str]]] = []

    def replace_inputs(job_id: str, inputs: Mapping[str, Path]) -> Mapping[str, Path]:
        replaced.append((job_id, [*inputs]))
        return inputs

    requeued = schedd.batch.requeue({schedd.ids[0]: 1}, replace_inputs)
    assert requeued == schedd.batch.requeue({schedd.ids[0]: 1}, replace_inputs)
    assert replaced[0] == ("a", ["job.json"]), "without its output"
    (new,) = requeued.values()
    assert new.startswith("8.0@c.")
    submission = Submission(schedd.folder, "c", new.rpartition(".")[2])
    assert (submission.previous_attempts, submission.cluster) == (1, 8)
    assert schedd.batch.find(["a", "b"]) == {"a": new, "b": schedd.ids[1]}
    assert [*submission.job_folder(0).iterdir()]

    schedd.batch.query([new])
    submission.log_file.write_text(
        "".join((FIRST, event(ABORTED, 30, Reason="x"))).replace("(007.", "(008.")
    )
    assert schedd.batch.purge([new, schedd.ids[1]]) > 0
    assert not submission.path.exists()
    assert schedd.submission.path.exists(), "one of its jobs runs"
    schedd.write(event(TERMINATED, 40, 1, proc=1, **DONE))
    assert schedd.batch.purge([*requeued, schedd.ids[1]]) > 0
    assert not schedd.submission.path.parent.exists()
    assert schedd.batch.requeue({new: 1}, replace_inputs) == {}, "purged"
    assert Submission(schedd.folder, "c", submission.tag).previous_attempts == 0, "removed"


@pytest.mark.parametrize("is_spooling", [True, False])
def test_submission_whose_inputs_never_arrive_is_removed(
    schedd: Schedd, monkeypatch: pytest.MonkeyPatch, is_spooling: bool
) -> None:
    """Its submitter died; a cluster with all inputs is found by its submission's name."""

    def query_ads(constraint: str, *_: object, **__: object) -> list[dict[str, int]]:
        return [{"ClusterId": 7}] if is_spooling or "HoldReasonCode" not in constraint else []

    (schedd.submission.path / "cluster.json").unlink()
    schedd.batch.pool = HTCondorPool(name="p", spool=True)
    monkeypatch.setattr(schedd.batch.connection, "query_ads", query_ads)
    batch_ids = schedd.batch.find(["a", "b", "c"])
    removals = [("Remove", schedd.submission.constraint)]
    expected = ({}, removals) if is_spooling else (dict(zip("ab", schedd.ids, strict=True)), [])
    assert (batch_ids, schedd.acts) == expected
    assert schedd.submission.path.exists() is not is_spooling


def test_event_without_own_time_has_local_time_of_its_log() -> None:
    text = event(EXECUTE, 10, 1).replace("TreehammerTime", "Other")
    (parsed,) = parse_events(text, 7)
    local = time.mktime(time.strptime("2026-01-01 02:00:10", "%Y-%m-%d %H:%M:%S"))
    assert parsed.time_us == local * 1_000_000
    (parsed,) = parse_events(text.replace("EventTime", "Other"), 7)
    assert parsed.time_us == 0


def test_waiting_is_explained_by_log(schedd: Schedd) -> None:
    schedd.submission.description_file.write_text("rank = 1\njob_lease_duration = 60\n")
    lost = event(DISCONNECTED, 20, 1, StartdName="slot1@SITE@x", DisconnectReason="gone")
    paused = event(EventType.FACTORY_PAUSED, 20, proc=-1, Reason="invalid item")
    schedd.write(FIRST, event(EXECUTE, 10, 1), lost, paused)
    ids = schedd.ids
    node, factory = schedd.batch.explain_waiting(ids)
    since, until = (
        time.strftime("%H:%M:%S %Z", time.localtime(QUEUED_S + second)) for second in (20, 80)
    )
    assert node.startswith(f"no contact to slot1@SITE@x, where 1 job ran, since {since}; ")
    assert node.endswith(f"starts the jobs again after {until}")
    assert factory == "HTCondor adds no more jobs of cluster 7: invalid item"
    schedd.write(event(RECONNECTED, 30, 1))
    assert schedd.batch.explain_waiting(ids) == [factory]
    schedd.queue = [{"JobMaterializeNextProcId": 0}]
    assert schedd.batch.explain_waiting(ids) == [factory], "paused"
    schedd.write(event(EventType.FACTORY_RESUMED, 30, proc=-1))
    assert schedd.batch.explain_waiting(ids) == [], "the next one may come soon"
    schedd.now_us += 200_000_000
    assert "no job of cluster 7 enters the queue" in schedd.batch.explain_waiting(ids)[0]
    down = {"GridResource": "ce", "GridResourceUnavailableTime": 60}
    other = ["ce has not answered since 1970-01-01 00:01 UTC", "1 job is not accepted yet by ce"]
    for ad, lines in ((down, other), ({"RoutedToJobId": "8.0"}, [])):
        schedd.queue = [{"ProcId": 1, "JobStatus": 1, **ad}]
        assert schedd.batch.explain_waiting(ids) == lines


@pytest.mark.parametrize(
    ("site", "group", "is_matched"),
    [("A", "mine", True), ("A", "other", False), ("B", "mine", False)],
)
def test_slot_and_job_require_each_other(
    monkeypatch: pytest.MonkeyPatch, site: str, group: str, is_matched: bool
) -> None:
    """The policy of a pool (START) may refuse a job; a slot without room has it later."""
    slot = classad2.ClassAd({"Site": "A", "Memory": 0, "TotalSlotMemory": 900})
    slot["Start"] = classad2.ExprTree('TARGET.Group == "mine"')
    slot["Requirements"] = classad2.ExprTree("START && TARGET.RequestCpus <= 0")
    requirements = classad2.ExprTree(f'TARGET.Site == "{site}" && TARGET.Memory > 500')
    job = classad2.ClassAd({"Group": group, "RequestCpus": 1, "Requirements": requirements})
    connection = PoolConnection(HTCondorPool(name="p"))
    slots = [classad2.ClassAd({"State": "Preempting"}), slot]  # it has no START
    monkeypatch.setattr(connection, "call", lambda _: slots)
    monkeypatch.setattr(connection, "query_schedd", lambda _: [job])
    assert connection.is_matched(7, 0, connection.query_slots()) is is_matched


def test_lost_node_of_spooled_job_comes_from_its_ad() -> None:
    job = JobEvents()
    lost = {**RUNNING, "JobDisconnectedDate": 50, "RemoteHost": "h"}
    job.apply_ad({**lost, "LastJobLeaseRenewal": 40})
    assert job.last_start
    assert (job.last_start.disconnected_us, job.last_start.lost_node) == (50_000_000, "h")
    job.apply(JobEvent(RECONNECTED, 0, 40_000_000, 1, {}))
    assert job.last_start.disconnected_us, "an older event"
    job.apply_ad({**lost, "LastJobLeaseRenewal": 60})
    assert job.last_start.disconnected_us == 0


def report_load(second: int, value: str, proc: int = 0) -> str:
    """Return the event of a worker's report, as HTCondor 23.9 writes it."""
    return event(33, second, proc=proc, Attribute="TreehammerLoad", Value=value)


def test_loads_come_from_log_or_schedd_without_a_query_of_their_own(schedd: Schedd) -> None:
    schedd.write(FIRST, event(EXECUTE, 10, 1), event(EXECUTE, 10, 1, proc=1))
    assert not schedd.batch.read_load_steps(schedd.ids)
    schedd.write(report_load(20, "{1,2,10.0,1000,20,5000000}"), report_load(20, "{1,2,5,1,0,0}", 1))
    schedd.write(event(33, 21, Attribute="Other", Value="{1,9,10.0,9,9,9}"))
    first = LoadProgress(2, 10.0, 1000, 20, 5_000_000)
    assert schedd.batch.read_load_steps(schedd.ids) == [first, LoadProgress(2, 5, 1, 0, 0)]
    schedd.write(report_load(30, "undefined", 1))
    assert schedd.batch.read_load_steps(schedd.ids) == [first]
    assert schedd.asked == 0
    schedd.log.unlink()
    schedd.restart_client()
    ad = {**RUNNING, "ProcId": 0, "TreehammerLoad": [1, 3, 10.0, 7, 0, 0]}
    schedd.queue = [ad, {**RUNNING, "ProcId": 1}]
    schedd.statuses()
    assert schedd.asked == 1
    assert schedd.batch.read_load_steps(schedd.ids) == [LoadProgress(3, 10.0, 7, 0, 0)]
    assert schedd.asked == 1


def test_load_counts_only_while_its_attempt_runs_on_a_known_node() -> None:
    report = report_load(20, "{1,2,10.0,1000,20,5000000}")
    started, lost = event(EXECUTE, 10, 1), event(DISCONNECTED, 30, 1)
    cases = [
        ((started, report), True),
        ((started, report, lost), False),
        ((started, report, lost, event(RECONNECTED, 40, 1)), True),
        ((started, report, event(EVICTED, 40, 1)), False),
        ((started, report, event(EVICTED, 40, 1), event(EXECUTE, 50, 2)), False),
        ((started, report, event(TERMINATED, 40, 1, **DONE)), False),
        ((report,), False),
    ]
    for events, counts in cases:
        assert bool(apply_events(*events).load) is counts, events


@pytest.mark.parametrize(
    ("later", "output", "numbers"),
    [
        ((), 0, [3]),
        ((event(ABORTED, 20, Reason="by a person"),), 0, [3]),
        ((event(TERMINATED, 20, TerminatedNormally=True, ReturnValue=0),), 4, [3, 4]),
    ],
    ids=["running", "removed", "restarted there"],
)
def test_requeued_job_of_another_pool_keeps_earlier_attempts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    later: tuple[str, ...],
    output: int,
    numbers: list[int],
) -> None:
    text = "arguments = $(treehammer_start)\nMy.TreehammerPreviousAttempts = 2\n"
    batch = HTCondorBatch(HTCondorPool(name="p"), tmp_path)
    submission = Submission.for_jobs(batch.root, "c", text, ["job"])
    submission.stage(text, [JobDescription("job", text, {})], spool=False)
    submission.record_cluster(7)
    submission.log_file.write_text("".join((FIRST, event(EXECUTE, 10), *later)))
    if output:
        for name in (output, "²"):
            (submission.job_folder(0) / f"output/attempt-{name}").mkdir(parents=True)
    ad = {"JobStatus": 2, "ClusterId": 7, "ProcId": 0, "TreehammerSubmission": submission.name}
    grid = {"GridResource": "condor a b", "JobStartDate": QUEUED_S + 10}
    monkeypatch.setattr(batch.connection, "query_ads", lambda *_, **__: [ad | grid])
    batch_id = f"7.0@{submission.name}"
    assert [a.number for a in batch.query([batch_id])[batch_id].attempts] == numbers


def test_routed_job_without_events_has_its_exit_code() -> None:
    """A job router starts another job, and may not log it before the job leaves the queue."""
    ad = {
        "JobStatus": 4,
        "NumShadowStarts": 2,
        "JobStartDate": QUEUED_S + 1,
        "CompletionDate": QUEUED_S + 9,
        "ExitCode": 3,
        "RoutedToJobId": "8.0",
    }
    job = JobEvents()
    job.apply_ad(ad)
    (attempt,) = status_of(job).attempts
    assert (attempt.exit_code, attempt.started_us) == (3, (QUEUED_S + 1) * 1_000_000)


def test_history_is_asked_once_for_all_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = HTCondorBatch(HTCondorPool(name="p"), tmp_path)
    batch_ids = []
    for cluster in (7, 8, 9):
        text = f"# {cluster}"
        submission = Submission.for_jobs(batch.root, "c", text, ["job"])
        submission.stage(text, [JobDescription("job", text, {})], spool=False)
        batch_ids.append(submission.batch_id(submission.record_cluster(cluster), 0))
    submission.cancellation_mark.touch()
    constraints: list[str] = []

    def query_history(constraint: str, *_: object, since: str) -> list[dict[str, Any]]:
        constraints.append(constraint)
        assert int(since.rpartition(" ")[2]) < time.time() - 80_000, "its clock may be behind"
        return [{"ClusterId": 7, "ProcId": 0, "JobStatus": 4, "ExitCode": 3, "NumShadowStarts": 1}]

    monkeypatch.setattr(batch.connection, "query_ads", lambda *_, **__: [])
    monkeypatch.setattr(batch.connection, "query_history", query_history)
    statuses = batch.query(batch_ids)
    assert {batch_id: status.state for batch_id, status in statuses.items()} == {
        batch_ids[0]: JobState.DONE,
        batch_ids[2]: JobState.CANCELLED,
    }
    assert len(constraints) == 1


def test_submissions_of_a_campaign_store_equal_inputs_once(tmp_path: Path) -> None:
    root, source = tmp_path / "submit", tmp_path / "source"
    (source / "payload").mkdir(parents=True)
    (source / "payload/read.py").write_text("read")
    (source / "worker.pyz").write_bytes(bytes(1_000_000))
    texts = [f"executable = true\n# {site} {START_VARIABLE}\n" for site in ("SITE_A", "SITE_B")]
    submissions = []
    for text in texts:
        (source / "token").write_text(text)
        inputs = {name: source / name for name in ("worker.pyz", "payload", "token")}
        submission = Submission.for_jobs(root, "c", text, ["job"])
        submission.stage(text, [JobDescription("job", text, inputs)], spool=False)
        submissions.append(submission)
    first, second = (submission.path / "shared" for submission in submissions)
    for name in ("worker.pyz", "payload/read.py"):
        assert (first / name).samefile(second / name)
    assert [(folder / "token").read_text() for folder in (first, second)] == texts
    # The archives differ by the token.
    freed = [submission.remove() for submission in submissions]
    assert freed[0] < freed[1] - 900_000


@pytest.mark.parametrize(
    ("after_s", "result", "finding"),
    [
        (None, PROBE_OK, "does not expire"),
        (-100, PROBE_FAILED, "expired at"),
        (3600, PROBE_OK, "valid until"),
    ],
)
def test_tokens_of_a_pool_are_probed(
    tmp_path: Path, after_s: float | None, result: str, finding: str
) -> None:
    connection = PoolConnection(HTCondorPool(name="first", token_dir=tmp_path))
    missing = next(probe_pool(connection, []))
    assert (missing.result, missing.finding) == (PROBE_FAILED, f"no token in {tmp_path}")
    write_token(tmp_path / "mine", None if after_s is None else time.time() + after_s)
    probe = next(probe_pool(connection, []))
    assert (probe.check, probe.result) == ("token mine", result)
    assert probe.finding.startswith(finding)
