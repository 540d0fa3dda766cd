"""Upload of campaigns to the results service: changes only, until acknowledged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import make_campaign_row, make_job_row
from plan_factory import make_settings

from treehammer.collectors.job_spec import EXTERNAL_PREFIX
from treehammer.collectors.worker.service_client import ServiceEndpoint, ServiceResponse
from treehammer.config import Settings
from treehammer.sql.core.rows import AttemptRow, ReplicaRow
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_upload
from treehammer.submit.campaigns.campaign_upload import CampaignUploader
from treehammer.web.api.ingest import parse_campaign_document

PLAN = json.dumps({"definition": {"dataset": "tiny", "twins": {"rntuple": "twin"}}})
CAMPAIGN = make_campaign_row(plan=PLAN)
JOBS = [make_job_row(id_) for id_ in "abc"]
FIRST = AttemptRow("b", 1, "running", 5, 0, None, "", "")


class Service:
    """Accepts documents, or gives prepared answers."""

    def __init__(self) -> None:
        self.documents: list[Any] = []
        self.answers: list[ServiceResponse] = []

    def send(self, path: str, body: str, items: int, timeout_s: float) -> ServiceResponse:
        assert (path, timeout_s) == ("/api/v1/campaigns", 20)
        document = json.loads(body)
        assert parse_campaign_document(document).row_count == items, "the service can parse it"
        self.documents.append(document)
        return self.answers.pop(0) if self.answers else ServiceResponse(200)

    def received_jobs(self) -> list[tuple[str, str, list[int]]]:
        """Return job, state and attempts of all documents since the last call."""
        jobs = [job for document in self.documents for job in document["jobs"]]
        self.documents.clear()
        return sorted((j["id"], j["state"], [a["number"] for a in j["attempts"]]) for j in jobs)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()
    monkeypatch.setattr(ServiceEndpoint, "send", made.send)
    monkeypatch.setenv("TREEHAMMER_SERVICE_TOKEN", f"th1.{'0' * 12}.{'a' * 43}")
    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(make_settings(tmp_path), service_url="https://x.org")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as made:
        made.add_campaign(CAMPAIGN, JOBS)
        made.set_attempts([FIRST])
        yield made


@pytest.fixture
def uploader(settings: Settings) -> CampaignUploader:
    """An uploader with a registered campaign."""
    registered = CampaignUploader(settings)
    registered.register_campaign(CAMPAIGN.id)
    return registered


ALL = [(job.id, job.state, [1] if job.id == "b" else []) for job in JOBS]


def test_only_changes_are_uploaded(service: Service, settings: Settings, store: Store) -> None:
    uploader = CampaignUploader(settings)
    assert uploader.upload(store, CAMPAIGN, True) == ""
    assert service.received_jobs() == [], "the campaign is not registered"
    uploader.register_campaign(CAMPAIGN.id)
    assert uploader.upload(store, CAMPAIGN) == ""
    assert service.received_jobs() == ALL
    assert CampaignUploader(settings).upload(store, CAMPAIGN) == ""
    assert service.documents == []
    store.set_attempts([replace(FIRST, number=2)])
    uploader.upload(store, CAMPAIGN)
    assert service.received_jobs() == [("b", JOBS[1].state, [1, 2])]
    uploader.upload(store, CAMPAIGN, True)
    assert len(service.received_jobs()) == 3


def test_failed_upload_is_retried_after_pause(
    service: Service, settings: Settings, store: Store, uploader: CampaignUploader
) -> None:
    service.answers = [ServiceResponse(503, "busy (503)")]
    line = uploader.upload(store, CAMPAIGN)
    assert "busy (503)" in line
    assert f"treehammer collect {CAMPAIGN.id}" in line
    assert service.received_jobs() == ALL
    assert uploader.upload(store, CAMPAIGN) == ""
    assert service.documents == [], "no request during the pause"
    assert uploader.upload(store, CAMPAIGN, True) == ""
    assert service.received_jobs() == ALL


def test_rejected_rows_do_not_block_others(
    service: Service,
    settings: Settings,
    store: Store,
    uploader: CampaignUploader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(campaign_upload, "MAX_ROWS", 1)
    service.answers = [ServiceResponse(422, "no (422)", permanent=True)]
    assert "no (422)" in uploader.upload(store, CAMPAIGN)
    refused = service.documents[0]["jobs"][0]["id"]
    assert service.received_jobs() == ALL
    CampaignUploader(settings).upload(store, CAMPAIGN)
    assert [id_ for id_, *_ in service.received_jobs()] == [refused]


@pytest.mark.parametrize("content", ["", "[]", '{"service": "https://x.org"}', '{"rows": 1}'])
def test_unreadable_state_uploads_everything(
    service: Service, settings: Settings, store: Store, uploader: CampaignUploader, content: str
) -> None:
    uploader.upload(store, CAMPAIGN)
    (settings.uploads_dir / f"{CAMPAIGN.id}.json").write_text(content)
    service.received_jobs()
    assert uploader.upload(store, CAMPAIGN) == ""
    assert service.received_jobs() == ALL


def test_new_service_receives_everything(
    service: Service, settings: Settings, store: Store
) -> None:
    CampaignUploader(settings).register_campaign(CAMPAIGN.id)
    CampaignUploader(settings).upload(store, CAMPAIGN)
    service.received_jobs()
    CampaignUploader(replace(settings, service_url="https://y.org")).upload(store, CAMPAIGN)
    assert service.received_jobs() == ALL


def test_replica_checks_are_uploaded(
    service: Service, uploader: CampaignUploader, store: Store
) -> None:
    finding = ReplicaRow("1", 5, "twin", "hash", "A", "door", "f", "root://", False, "torn")
    store.add_replicas([finding, replace(finding, id="2", dataset="other")])
    uploader.upload(store, CAMPAIGN)
    assert [one["id"] for one in service.documents[0]["replicas"]] == ["1"]


def test_external_jobs_are_not_uploaded(
    service: Service, uploader: CampaignUploader, store: Store
) -> None:
    store.set_jobs([replace(job, batch_system=f"{EXTERNAL_PREFIX}local") for job in JOBS])
    uploader.upload(store, CAMPAIGN)
    assert service.received_jobs() == []


def test_missing_key_or_disk_space_is_reported(
    service: Service,
    settings: Settings,
    store: Store,
    uploader: CampaignUploader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TREEHAMMER_SERVICE_TOKEN")
    assert "no valid token" in uploader.upload(store, CAMPAIGN)
    monkeypatch.setenv("TREEHAMMER_SERVICE_TOKEN", "nonsense")
    assert "not a key of a results service" in uploader.upload(store, CAMPAIGN, True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("TREEHAMMER_SERVICE_TOKEN", f"th1.{'0' * 12}.{'a' * 43}")
    monkeypatch.setattr(campaign_upload, "write_atomically", full)
    assert "No space left on device" in uploader.upload(store, CAMPAIGN, True)
