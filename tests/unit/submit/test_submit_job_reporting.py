"""Reporting to the results service: uploads of campaigns, and tokens of jobs."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificate_authority import CertificateAuthority
from ingest_stub import IngestStub, StubReply
from measurement_factory import make_campaign_row, make_job_row
from plan_factory import READING_TEST, SHELL_TEST, make_grid_plan, make_local_plan, make_settings

from treehammer.collectors.job_spec import (
    CA_FILE,
    EXTERNAL_PREFIX,
    SERVICE_FILE,
    TOKEN_FILE,
    TOKEN_PLACEHOLDER,
    TOKEN_VARIABLE,
)
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.worker.service_client import ServiceEndpoint, ServiceResponse
from treehammer.config import Settings, load_settings
from treehammer.errors import ConfigError
from treehammer.sql.core import access_keys
from treehammer.sql.core.rows import AccessKeyRow, AttemptRow, ReplicaRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.htcondor.submit_description import (
    IDLE_LIMIT_S,
    MAX_GRID_ATTEMPTS,
    Submission,
)
from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.batch.local_batch import LocalBatch
from treehammer.submit.campaigns import campaign_upload, job_rendering
from treehammer.submit.campaigns.campaign_upload import CampaignUploader
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.campaigns.job_reporting import (
    TOKEN_GRACE_S,
    check_service,
    find_token_lives,
    make_token_renewal,
    proxy_environment,
    reporting_for_preview,
    reporting_for_submission,
)
from treehammer.submit.campaigns.submission import submit_plan
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import Pace, SubmissionOptions
from treehammer.text_formatting import JobRamp
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
    fake = Service()
    monkeypatch.setattr(ServiceEndpoint, "send", fake.send)
    monkeypatch.setenv("TREEHAMMER_SERVICE_TOKEN", f"th1.{'0' * 12}.{'a' * 43}")
    return fake


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(make_settings(tmp_path), service_url="https://x.org")


@pytest.fixture
def store(store: Store) -> Store:
    """A store with a campaign."""
    store.add_campaign(CAMPAIGN, JOBS)
    store.set_attempts([FIRST])
    return store


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
    assert [replica["id"] for replica in service.documents[0]["replicas"]] == ["1"]


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


MASTER = b"m" * 32
KEY = access_keys.derive_key(MASTER, "0123456789ab")
URL = "https://127.0.0.1:9"


def make_service_settings(
    folder: Path, *, url: str = URL, key: str | None = KEY.text, **more: object
) -> Settings:
    flags: dict[str, object] = {"data_dir": folder / "data", "cache_dir": folder / "cache"}
    if key is not None:
        (folder / "key").write_text(key + "\n")
        flags["service_token_file"] = folder / "key"
    return load_settings(flags | {"service_url": url} | more, environ={}, folder=folder)


def granted(token: str) -> access_keys.AccessGrant:
    row = AccessKeyRow(
        KEY.key_id, "submit", "x", 1, None, None, access_keys.fingerprint_master_key(MASTER), "x"
    )
    access = access_keys.AccessList({KEY.key_id: row})
    return access_keys.verify_token(token, access, access_keys.MasterKeys(MASTER), current_us())


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def described(plan: Plan, settings: Settings, folder: Path) -> list[JobDescription]:
    folder.mkdir()
    return list(
        render_jobs(
            plan, folder, environ={}, service=reporting_for_submission(settings, plan.options)
        )
    )


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("open_umask")
def test_job_tokens_are_separate_and_private(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path / "test", SHELL_TEST)
    for job in described(plan, make_service_settings(tmp_path), tmp_path / "out"):
        path = job.inputs[TOKEN_FILE]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        token = path.read_text().strip()
        grant = granted(token)
        assert (grant.campaign_id, grant.job_id) == (plan.campaign_id, job.job_id)
        assert token not in job.text
        other_inputs = [p for name, p in job.inputs.items() if name != TOKEN_FILE]
        assert not [p for p in other_inputs if p.is_file() and token.encode() in p.read_bytes()]
        assert KEY.secret not in "".join(p.read_text() for p in (path, job.inputs[SERVICE_FILE]))


@pytest.mark.usefixtures("open_umask")
def test_tokens_stay_private_in_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalBatch, "_ensure_runner", lambda _batch: None)
    settings = make_service_settings(tmp_path)
    plan = make_local_plan(tmp_path / "test", SHELL_TEST)
    jobs = described(plan, settings, tmp_path / "out")
    spool = tmp_path / "spool"
    LocalBatch(spool).submit(plan.campaign_id, jobs)
    grid = make_grid_plan(tmp_path / "grid", READING_TEST)
    described_grid = described(grid, settings, tmp_path / "grid-out")
    root = tmp_path / "pool"
    text = described_grid[0].text
    submission = Submission.for_jobs(
        root, grid.campaign_id, text, [j.job_id for j in described_grid]
    )
    submission.stage(text, described_grid, spool=False)
    for folder, count in ((spool, len(jobs)), (root, len(described_grid))):
        token_files = [p for p in files(folder) if p.name == TOKEN_FILE]
        assert len(token_files) == count
        assert {stat.S_IMODE(path.stat().st_mode) for path in token_files} == {0o600}
        secrets = [path.read_bytes().strip() for path in token_files]
        assert len(set(secrets)) == count
        contents = [p.read_bytes() for p in files(folder) if p.name != TOKEN_FILE]
        assert not [text for text in contents for secret in secrets if secret in text]
    assert f"transfer_input_files = {','.join(_transferred(submission))}" in (
        submission.description_file.read_text()
    )


def _transferred(submission: Submission) -> list[str]:
    shared = ["worker.pyz", "payload", SERVICE_FILE]
    return [*(f"../../shared/{name}" for name in shared), "output", "job.json", TOKEN_FILE]


def test_preview_has_token_placeholders(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "authority")
    settings = make_service_settings(tmp_path, service_ca_file=authority.ca)
    plan = make_local_plan(tmp_path / "test", SHELL_TEST)
    (tmp_path / "out").mkdir()
    reporting = reporting_for_preview(settings, plan.options)
    jobs = list(render_jobs(plan, tmp_path / "out", environ={}, service=reporting))
    assert job_rendering.write_preview(plan, jobs, settings, tmp_path / "rendered") == len(jobs)
    inputs = tmp_path / "rendered" / "1" / "inputs"
    assert (inputs / TOKEN_FILE).read_text() == TOKEN_PLACEHOLDER
    assert json.loads((inputs / SERVICE_FILE).read_text())["url"] == URL
    assert (inputs / CA_FILE).read_bytes() == authority.ca.read_bytes()


def test_jobs_without_service_have_no_service_files(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path / "test", SHELL_TEST)
    assert (
        reporting_for_submission(
            make_service_settings(tmp_path), SubmissionOptions(use_service=False)
        )
        is None
    )
    assert check_service(make_settings(tmp_path), SubmissionOptions()) == []
    (job, *_) = described(plan, make_service_settings(tmp_path, url=""), tmp_path / "out")
    assert not {SERVICE_FILE, CA_FILE, TOKEN_FILE} & job.inputs.keys()


def test_missing_key_is_refused_before_storing(tmp_path: Path) -> None:
    settings = make_service_settings(tmp_path, key=None)
    with pytest.raises(ConfigError, match="no key for https") as error:
        submit_plan(make_local_plan(tmp_path / "test", SHELL_TEST), settings)
    assert "--no-service" in str(error.value)
    assert not (tmp_path / "data").exists()
    with pytest.raises(ConfigError, match="not a key of a results service"):
        check_service(make_service_settings(tmp_path, key="th1.abc.short"), SubmissionOptions())


def test_key_is_read_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, KEY.text)
    reporting = reporting_for_submission(
        make_service_settings(tmp_path, key=None), SubmissionOptions()
    )
    assert reporting is not None
    assert reporting.key == KEY
    assert KEY.secret not in repr(reporting)


def test_invalid_ca_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="it contains no certificates"):
        reporting_for_preview(
            make_service_settings(tmp_path, service_ca_file=tmp_path / "ca.pem"),
            SubmissionOptions(),
        )


def test_unavailable_service_warns_and_rejected_key_fails(tmp_path: Path) -> None:
    stub = IngestStub(tmp_path / "service")
    settings = make_service_settings(tmp_path, url=stub.url, service_ca_file=stub.ca)
    try:
        assert check_service(settings, SubmissionOptions()) == []
        stub.script = lambda _: StubReply(422, {"error": "no measurements"})
        assert check_service(settings, SubmissionOptions()) == [], "the key is accepted"
        stub.script = lambda _: StubReply(401, {"error": "key 0123456789ab was revoked"})
        with pytest.raises(ConfigError, match="was revoked") as refused:
            check_service(settings, SubmissionOptions())
        assert KEY.secret not in str(refused.value)
        stub.script = lambda _: StubReply(503)
        assert "503" in check_service(settings, SubmissionOptions())[0]
    finally:
        stub.stop()
    (line,) = check_service(settings, SubmissionOptions(service_timeout_s=7))
    assert "Connection refused" in line
    assert "each spends up to 7 s" in line


def test_tokens_outlive_their_jobs(tmp_path: Path) -> None:
    options = SubmissionOptions(pace=Pace(in_flight=2, spread_s=3600, ramp=JobRamp(1, 60)))
    plan = make_grid_plan(tmp_path / "grid", READING_TEST, options=options)
    jobs = list(plan.jobs)
    (life_s,) = set(find_token_lives(plan, 1).values())
    each = MAX_GRID_ATTEMPTS * (IDLE_LIMIT_S + max(job.wall_limit_s for job in jobs))
    assert life_s >= 3600 + 60 + (len(jobs) / 2) * each + TOKEN_GRACE_S
    local = make_local_plan(tmp_path / "test", SHELL_TEST)
    walls_s = [job.wall_limit_s for job in local.jobs]
    for slots, in_turn in ((1, 2), (2, 1)):
        (life_s,) = set(find_token_lives(local, slots).values())
        least_s = 2 * in_turn * walls_s[0] + TOKEN_GRACE_S
        assert least_s <= life_s < least_s + 1000


def test_requeued_jobs_get_new_tokens(tmp_path: Path) -> None:
    settings = make_service_settings(tmp_path)
    plan = make_local_plan(tmp_path / "test", SHELL_TEST)
    job = described(plan, settings, tmp_path / "out")[0]
    (tmp_path / "new").mkdir()
    ids = [job.job_id]
    service = reporting_for_submission(settings, SubmissionOptions(service_timeout_s=5))
    renewal = make_token_renewal(service, tmp_path / "new", plan.campaign_id, ids, 60.0)
    inputs = renewal(job.job_id, job.inputs)
    assert inputs.keys() == job.inputs.keys()
    assert json.loads(inputs[SERVICE_FILE].read_text())["wait_s"] == 5
    assert granted(inputs[TOKEN_FILE].read_text().strip()).job_id == job.job_id
    # Jobs that did not report before still do not; nor do any without a configured service.
    alone = {"job.json": job.inputs["job.json"]}
    assert renewal(job.job_id, alone) == alone
    none = make_token_renewal(None, tmp_path / "new", plan.campaign_id, ids, 60.0)
    assert none(job.job_id, job.inputs).keys() == job.inputs.keys() - {SERVICE_FILE, TOKEN_FILE}


def test_proxy_environment_omits_passwords() -> None:
    variables = proxy_environment({"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "localhost"})
    assert variables == {
        "TREEHAMMER_HTTPS_PROXY": "http://proxy:3128",
        "TREEHAMMER_NO_PROXY": "localhost",
    }
    assert proxy_environment({"https_proxy": "http://me:5ecret@proxy:3128"}) == {}
