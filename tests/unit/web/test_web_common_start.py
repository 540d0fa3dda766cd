"""Common start of jobs at the service: registration, limits, restarts and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from service_thread import ServiceThread

from treehammer.collectors.service_spec import START_ANSWER_KEYS, STARTS_PATH
from treehammer.sql.auth.tokens import mint_job_token
from treehammer.web.core import start_registry
from treehammer.web.core.start_registry import (
    Arrival,
    BarrierConflictError,
    StartRegistry,
    TooManyBarriersError,
)

REQUEST: dict[str, Any] = {"barrier": "b", "jobs": 2, "wait_s": 60, "lead_s": 1, "waited_s": 0}


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def arrive(job: str, waited_s: float = 0.0, jobs: int = 3, **more: Any) -> Arrival:
    return Arrival(job, jobs, 60.0, 5.0, waited_s, **more)


def test_start_is_set_once_all_jobs_are_there() -> None:
    registry = StartRegistry(Clock())
    for job in ("a", "b", "a"):
        state = registry.register("campaign", "b", arrive(job))
        assert state.start_us is None
    assert state.present == 2
    assert registry.register("other", "b", arrive("c")).present == 1, "another campaign"
    state = registry.register("campaign", "b", arrive("c"))
    assert state.start_us == (1000 + 2 + 2 * state.poll_s + 5) * 1e6
    assert registry.register("campaign", "b", arrive("late")) == state


def test_withdrawn_jobs_are_not_waited_for() -> None:
    registry = StartRegistry(Clock())
    for job in ("a", "b"):
        assert registry.register("c", "b", arrive(job, absent=True)).start_us is None
    assert registry.register("c", "b", arrive("a")).start_us is None, "it came after all"
    state = registry.register("c", "b", arrive("d"))
    assert state.start_us is not None
    assert state.present == 2


def test_start_is_set_without_missing_jobs_after_the_limit() -> None:
    clock = Clock()
    registry = StartRegistry(clock)
    registry.register("campaign", "b", arrive("a"))
    clock.now_s += 59
    assert registry.register("campaign", "b", arrive("b")).start_us is None
    clock.now_s += 1
    state = registry.register("campaign", "b", arrive("b", 1.0))
    assert state.start_us is not None
    assert state.start_us > clock.now_s * 1e6
    assert state.present == 2


def test_restarted_service_learns_everything_from_the_jobs() -> None:
    before = StartRegistry(Clock())
    for job in ("a", "b"):
        before.register("campaign", "b", arrive(job))
    known = before.register("campaign", "b", arrive("c"))
    after = StartRegistry(Clock())
    told = arrive("a", start_us=known.start_us or 0, present=known.present)
    assert after.register("campaign", "b", told) == known
    assert after.register("campaign", "b", arrive("b")) == known
    waiting = StartRegistry(Clock())
    assert waiting.register("campaign", "b", arrive("a", 60.0)).start_us is not None


def test_registry_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_registry, "MAX_BARRIERS", 2)
    clock = Clock()
    registry = StartRegistry(clock)
    registry.register("campaign", "a", arrive("a"))
    with pytest.raises(BarrierConflictError, match="3 jobs are to start together, not 4"):
        registry.register("campaign", "a", arrive("b", jobs=4))
    registry.register("campaign", "b", arrive("a"))
    with pytest.raises(TooManyBarriersError):
        registry.register("campaign", "c", arrive("a"))
    clock.now_s += start_registry.KEEP_S + 1
    registry.register("campaign", "c", arrive("a"))


def test_jobs_meet_with_their_tokens(service: ServiceThread) -> None:
    key = service.make_key("submit")
    until_us = service.clock[0] + 60_000_000
    tokens = [mint_job_token(key, "campaign", job, until_us) for job in ("a", "b")]
    first = service.post_document(REQUEST, tokens[0], STARTS_PATH).json()
    assert set(START_ANSWER_KEYS) <= first.keys()
    assert (first["start_us"], first["present"], first["jobs"]) == (None, 1, 2)
    second = service.post_document(REQUEST, tokens[1], STARTS_PATH).json()
    assert second["start_us"] > second["time_us"]
    again = service.post_document(REQUEST, tokens[0], STARTS_PATH).json()
    assert again["start_us"] == second["start_us"]


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
