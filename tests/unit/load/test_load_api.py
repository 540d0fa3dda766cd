"""The common start at the results service."""

from __future__ import annotations

from typing import Any

import pytest
from measurement_factory import make_campaign_row
from service_thread import ServiceThread

from treehammer.collectors.job_spec import START_ANSWER_KEYS, STARTS_PATH
from treehammer.load import api as common_start
from treehammer.load.api import BarrierId, StartRegistry
from treehammer.sql.core.access_keys import mint_job_token
from treehammer.web.core.responses import RequestRefusedError, StartAnswer, StartRequest


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
