"""What the results service is told of a campaign: news alone, until they are acknowledged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sql_makers import campaign_row, job_row
from submit_makers import settings_for

from treehammer.collectors.worker.posting import Answer, Endpoint
from treehammer.config import Settings
from treehammer.sql.rows import ELSEWHERE, AttemptRow, ReplicaRow
from treehammer.sql.store import Store
from treehammer.submit import handing_in
from treehammer.submit.handing_in import HandingIn
from treehammer.web.campaign_document import read

PLAN = json.dumps({"definition": {"dataset": "tiny", "twins": {"rntuple": "twin"}}})
CAMPAIGN = campaign_row(plan=PLAN)
JOBS = [job_row(id_) for id_ in "abc"]
FIRST = AttemptRow("b", 1, "running", 5, 0, None, "", "")


class Service:
    """Takes what is sent, or answers as a test says."""

    def __init__(self) -> None:
        self.documents: list[Any] = []
        self.answers: list[Answer] = []

    def send(self, path: str, body: str, items: int, timeout_s: float) -> Answer:
        assert (path, timeout_s) == ("/api/v1/campaigns", 20)
        document = json.loads(body)
        assert read(document).rows == items, "the service can read it"
        self.documents.append(document)
        return self.answers.pop(0) if self.answers else Answer(200)

    def told(self) -> list[tuple[str, str, list[int]]]:
        """Job, state and attempts of all that was sent since."""
        jobs = [job for document in self.documents for job in document["jobs"]]
        self.documents.clear()
        return sorted((j["id"], j["state"], [a["number"] for a in j["attempts"]]) for j in jobs)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()
    monkeypatch.setattr(Endpoint, "send", made.send)
    monkeypatch.setenv("TREEHAMMER_SERVICE_TOKEN", f"th1.{'0' * 12}.{'a' * 43}")
    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(settings_for(tmp_path), service_url="https://x.org")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as made:
        made.add_campaign(CAMPAIGN, JOBS)
        made.set_attempts([FIRST])
        yield made


ALL = [(job.id, job.state, [1] if job.id == "b" else []) for job in JOBS]


def test_news_alone_are_told(service: Service, settings: Settings, store: Store) -> None:
    telling = HandingIn(settings)
    assert telling.tell(store, CAMPAIGN, True) == ""
    assert service.told() == [], "it does not report there"
    telling.begin(CAMPAIGN.id)
    assert telling.tell(store, CAMPAIGN) == ""
    assert service.told() == ALL
    assert HandingIn(settings).tell(store, CAMPAIGN) == ""
    assert service.documents == []
    store.set_attempts([replace(FIRST, number=2)])
    telling.tell(store, CAMPAIGN)
    assert service.told() == [("b", JOBS[1].state, [1, 2])]
    telling.tell(store, CAMPAIGN, True)
    assert len(service.told()) == 3


def test_what_fails_is_told_again_after_a_pause(
    service: Service, settings: Settings, store: Store
) -> None:
    telling = HandingIn(settings)
    telling.begin(CAMPAIGN.id)
    service.answers = [Answer(503, "busy (503)")]
    line = telling.tell(store, CAMPAIGN)
    assert "busy (503)" in line
    assert f"treehammer collect {CAMPAIGN.id}" in line
    assert service.told() == ALL
    assert telling.tell(store, CAMPAIGN) == ""
    assert service.documents == [], "it is left alone"
    assert telling.tell(store, CAMPAIGN, True) == ""
    assert service.told() == ALL


def test_one_that_is_refused_keeps_no_other_back(
    service: Service, settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing_in, "ROWS", 1)
    telling = HandingIn(settings)
    telling.begin(CAMPAIGN.id)
    service.answers = [Answer(422, "no (422)", final=True)]
    assert "no (422)" in telling.tell(store, CAMPAIGN)
    refused = service.documents[0]["jobs"][0]["id"]
    assert service.told() == ALL
    HandingIn(settings).tell(store, CAMPAIGN)
    assert [id_ for id_, *_ in service.told()] == [refused]


@pytest.mark.parametrize("content", ["", "[]", '{"service": "https://x.org"}', '{"rows": 1}'])
def test_what_cannot_be_read_is_told_again(
    service: Service, settings: Settings, store: Store, content: str
) -> None:
    telling = HandingIn(settings)
    telling.begin(CAMPAIGN.id)
    telling.tell(store, CAMPAIGN)
    (settings.handed_in_dir / f"{CAMPAIGN.id}.json").write_text(content)
    service.told()
    assert telling.tell(store, CAMPAIGN) == ""
    assert service.told() == ALL


def test_another_service_is_told_everything(
    service: Service, settings: Settings, store: Store
) -> None:
    HandingIn(settings).begin(CAMPAIGN.id)
    HandingIn(settings).tell(store, CAMPAIGN)
    service.told()
    HandingIn(replace(settings, service_url="https://y.org")).tell(store, CAMPAIGN)
    assert service.told() == ALL


def test_replicas_of_its_datasets_are_told(
    service: Service, settings: Settings, store: Store
) -> None:
    finding = ReplicaRow("1", 5, "twin", "hash", "A", "door", "f", "root://", False, "torn")
    store.add_replicas([finding, replace(finding, id="2", dataset="other")])
    telling = HandingIn(settings)
    telling.begin(CAMPAIGN.id)
    telling.tell(store, CAMPAIGN)
    assert [one["id"] for one in service.documents[0]["replicas"]] == ["1"]


def test_what_others_follow_is_theirs_to_tell(
    service: Service, settings: Settings, store: Store
) -> None:
    store.set_jobs([replace(job, batch_system=f"{ELSEWHERE}local") for job in JOBS])
    telling = HandingIn(settings)
    telling.begin(CAMPAIGN.id)
    telling.tell(store, CAMPAIGN)
    assert service.told() == []


def test_without_a_key_or_room_it_is_said(
    service: Service, settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    telling = HandingIn(settings)
    telling.begin(CAMPAIGN.id)
    monkeypatch.delenv("TREEHAMMER_SERVICE_TOKEN")
    assert "there is no token" in telling.tell(store, CAMPAIGN)
    monkeypatch.setenv("TREEHAMMER_SERVICE_TOKEN", "nonsense")
    assert "no key of a results service" in telling.tell(store, CAMPAIGN, True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("TREEHAMMER_SERVICE_TOKEN", f"th1.{'0' * 12}.{'a' * 43}")
    monkeypatch.setattr(handing_in, "write_atomically", full)
    assert "No space left on device" in telling.tell(store, CAMPAIGN, True)
