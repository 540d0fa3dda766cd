"""Job states from HTCondor's event log, complete or not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from treehammer.collectors.job_spec import JobState
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.event_log import (
    EventLogState,
    JobEventState,
    LogClock,
    parse_events,
)
from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch
from treehammer.submit.batch.htcondor.job_status import derive_status
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.batch.htcondor.schedd_queue import split_conjunction
from treehammer.submit.batch.htcondor.submission_folder import QueuedCluster, Submission
from treehammer.submit.batch.htcondor.submit_description import build_description
from treehammer.submit.batch.interface import JobDescription

QUEUED_S = 1_767_225_600
EXECUTE, EVICTED, TERMINATED, ABORTED, HELD = 1, 4, 5, 9, 12
DISCONNECTED, RECONNECTED, RECONNECT_FAILED = 22, 23, 24


def event(kind: int, second: int, attempt: int = 0, proc: int = 0, **values: object) -> str:
    """Format an event like HTCondor, in a zone two hours east of UTC."""
    moment = time.gmtime(QUEUED_S + 7200 + second)
    known = {
        "EventTime": time.strftime('"%Y-%m-%dT%H:%M:%S.000"', moment),
        "TreehammerAttempt": f'"{attempt}"' if attempt else '"$$([NumShadowStarts?:1])"',
        **{k: json.dumps(v) for k, v in values.items()},
        "TriggerEventTypeNumber": kind,
    }
    head = (
        f"028 (007.{proc:03d}.000) {time.strftime('%Y-%m-%d %H:%M:%S', moment)} Job ad information"
    )
    return "\n".join([head, *(f"{k} = {v}" for k, v in known.items()), "...", ""])


SUBMITTED = event(0, 0)


def apply_events(*events: str) -> JobEventState:
    text = "".join((SUBMITTED, *events))
    clock = LogClock.from_first_event(text, QUEUED_S)
    assert clock is not None
    seen = JobEventState()
    for item in parse_events(text, 7, clock):
        seen.apply(item)
    return seen


def test_times_are_converted_from_writers_zone() -> None:
    seen = apply_events(event(EXECUTE, 10, 1, SlotName="slot1@x"))
    assert seen.starts[1].started_us == (QUEUED_S + 10) * 1_000_000
    assert seen.starts[1].host == "slot1@x"


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
    status = derive_status("b", apply_events(*events), ad, cancelled=False)
    assert status is not None
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
    assert (seen.starts[1].failure_class, seen.starts[1].reason) == (
        "lost",
        "slot1@x: lease expired",
    )


def test_late_event_of_earlier_start_keeps_later_one() -> None:
    seen = apply_events(event(EXECUTE, 30, 2), event(EXECUTE, 10, 1))
    assert [number for number, start in seen.starts.items() if start.is_open] == [2, 1]


def test_removal_is_classified_by_cause() -> None:
    held = [
        event(EXECUTE, 10, 1),
        event(EVICTED, 20, 1, Reason="no such file"),
        event(HELD, 20, HoldReason="no such file", HoldReasonCode=6, HoldReasonSubCode=2),
    ]
    cases = [
        ([event(ABORTED, 30, Reason="treehammer cancel (by user x)")], False, "cancelled", ""),
        ([event(ABORTED, 30, Reason="via condor_rm")], True, "cancelled", ""),
        ([event(ABORTED, 30, Reason="via condor_rm")], False, "lost", "lost"),
        ([*held, event(ABORTED, 30, Reason="held: no such file")], False, "lost", "held"),
        ([*held, event(ABORTED, 30, Reason="via condor_rm")], False, "lost", "held"),
        ([event(ABORTED, 30, Reason="submission: idle too long")], False, "lost", "submission"),
    ]
    for events, cancelled, state, failure in cases:
        status = derive_status("b", apply_events(*events), None, cancelled)
        assert status is not None
        assert (status.state.value, status.failure_class) == (state, failure), events


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
        (12, 28, "Transfer output files failure: No space left", "evicted", "disk"),
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
    seen = apply_events(event(EXECUTE, 10, 1), event(HELD, 20, **values))
    queued = derive_status("b", None, {"JobStatus": 5, **values}, cancelled=False)
    removed = apply_events(
        event(EXECUTE, 10, 1), event(HELD, 20, **values), event(ABORTED, 30, Reason="held: x")
    )
    gone = derive_status("b", removed, None, cancelled=False)
    assert queued
    assert gone
    assert seen.starts[1].failure_class == queued.failure_class == gone.failure_class == failure
    for text in (seen.starts[1].reason, queued.reason, gone.reason):
        suffix = f": {cause}" if cause else ""
        assert f"(hold code {code}, subcode {subcode}{suffix}). " in text
        assert text.endswith(".")


def test_unknown_job_has_no_status() -> None:
    assert derive_status("b", None, None, cancelled=False) is None
    assert derive_status("b", apply_events(event(EXECUTE, 1, 1)), None, cancelled=False) is None


def test_log_is_read_from_last_offset(tmp_path: Path) -> None:
    submission = Submission(tmp_path, "campaign", "0a")
    submission.path.mkdir(parents=True)
    (submission.path / "cluster.json").write_text(f'{{"cluster": 7, "queued_s": {QUEUED_S}}}')
    assert not EventLogState.read(submission).jobs, "no log yet"
    started = event(EXECUTE, 10, 1)
    submission.log_file.write_text(SUBMITTED + started[:-10])
    assert not any(job.starts for job in EventLogState.read(submission).jobs.values()), (
        "half an event"
    )
    submission.log_file.write_text(SUBMITTED + started)
    assert EventLogState.read(submission).jobs[0].starts[1].executing
    ended = event(TERMINATED, 40, 1, TerminatedNormally=True, ReturnValue=0)
    with submission.log_file.open("a") as stream:
        stream.write(ended)
    assert EventLogState.read(submission).jobs[0].is_over
    submission.log_file.unlink()
    assert EventLogState.read(submission).jobs[0].is_over, "state survives the log"
    submission.log_file.write_text(event(EXECUTE, 50, 1, proc=1))  # rotated
    seen = EventLogState.read(submission)
    assert (seen.jobs[0].is_over, seen.jobs[1].starts[1].executing) == (True, True)
    (submission.path / "event_log_state.json").write_text("{")
    assert list(EventLogState.read(submission).jobs) == [1]


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
    batch = HTCondorBatch(HTCondorPool("p"), tmp_path)
    batch._make_root()
    submission = Submission.for_jobs(batch.root, "c", text, ["job"])
    submission.stage(text, [JobDescription("job", text, {})], spool=False)
    submission.record_cluster(QueuedCluster(7, QUEUED_S))
    submission.log_file.write_text("".join((SUBMITTED, event(EXECUTE, 10), *later)))
    if output:
        (submission.job_folder(0) / f"output/attempt-{output}").mkdir(parents=True)
    ad = {"JobStatus": 2, "ClusterId": 7, "ProcId": 0, "TreehammerSubmission": submission.name}
    grid = {"GridResource": "condor a b", "JobStartDate": QUEUED_S + 10}
    monkeypatch.setattr(batch.queue, "query_ads", lambda *_: [] if later else [ad | grid])
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
    found = derive_status("7.0", None, ad, cancelled=False)
    assert found is not None
    (attempt,) = found.attempts
    assert (attempt.exit_code, attempt.started_us) == (3, (QUEUED_S + 1) * 1_000_000)


def test_reserved_keys_are_refused() -> None:
    def build(text: str, folder: str = "/f") -> str:
        return build_description(
            text, folder=folder, campaign="c", submission="c.0", inputs=["a"], spool=True
        )

    assert "max_materialize" not in build("max_materialize = 5\nuniverse = vanilla")
    for line in ("Log = x", "queue 5", "+TreehammerJob = 1", "a = b \\\nc\nmy.treehammerjob = 1"):
        with pytest.raises(BatchError, match="is set by Treehammer"):
            build(f"universe = vanilla\n{line}\n")
    with pytest.raises(BatchError, match="does not support folder names"):
        build("", folder="/a$b")


def test_expression_is_split_into_clauses() -> None:
    text = '((TARGET.Site == "a && b") && (x || y && z)) && (time() > 3) && f(1, 2 && 3)'
    assert split_conjunction(text) == [
        'TARGET.Site == "a && b"',
        "x || y && z",
        "time() > 3",
        "f(1, 2 && 3)",
    ]
    assert split_conjunction("true") == ["true"]


def test_removed_submission_has_no_previous_attempts(tmp_path: Path) -> None:
    """History still knows jobs whose folder was removed after collection."""
    assert Submission(tmp_path, "campaign", "0a").previous_attempts == 0
