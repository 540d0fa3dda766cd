"""Tests of uploaded campaigns, and of the ownership of campaigns and jobs."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import STARTED_US, make_measurement
from service_thread import ServiceThread, StartService, make_body

from treehammer.collectors.job_spec import EXTERNAL_PREFIX
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import StoreError
from treehammer.sql.core.access_keys import AccessKey, mint_job_token
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.rows import LOCAL_OWNER, AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.core.schema import receipt
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer.export import export_file
from treehammer.sql.transfer.importer import import_files
from treehammer.sql.write.audit_trail import Delivery
from treehammer.sql.write.keyring import Keyring
from treehammer.sql.write.maintenance import ChangeScope, DatabaseChange
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress
from treehammer.web.api.ingest import MAX_ROWS
from treehammer.web.core import measurement_writer
from treehammer.web.core.live_database import LiveDatabase

PATH = "/api/v1/campaigns"
PLAN: Mapping[str, Any] = {
    "definition": {"axes": {"root": ["6.38.00"], "mode": [1, 0.5, True]}, "dataset": "tiny"},
    "sites": ["A"],
    "excluded": {"SITE_B": "power cut"},
}
CAMPAIGN = CampaignRow(
    "c1", "nightly", STARTED_US, "https://x.org/r", "main", "abc", False, "reads", "tests/reads",
    CampaignPlan.model_validate(PLAN), 2, 8,
)  # fmt: skip
JOB = JobRow("j1", "c1", "A", "root", "timed", 1, "cold", "htcondor@must", "7.0", 4, "running")
BAD = ReplicaRow("f1", 5, "tiny", "h", "local", "root", "f", "root://", False, "torn")
ATTEMPT = AttemptRow("j1", 1, "running", STARTED_US, 0, None, "", "")


def document(*rows: JobRow | AttemptRow | ReplicaRow, campaign: CampaignRow = CAMPAIGN) -> Any:
    """Build the request body for rows."""
    body: dict[str, Any] = {"campaign": {**vars(campaign), "plan": campaign.plan.to_document()}}
    jobs: dict[str, Any] = {}
    for row in rows:
        values = asdict(row)
        if isinstance(row, JobRow):
            del values["campaign_id"]
            jobs[row.id] = {**values, "attempts": []}
        elif isinstance(row, AttemptRow):
            jobs[values.pop("job_id")]["attempts"].append(values)
    replicas = [asdict(row) for row in rows if isinstance(row, ReplicaRow)]
    for replica in replicas:
        del replica["owner"]
    return {**body, "jobs": [*jobs.values()], "replicas": replicas}


def upload(
    service: ServiceThread, key: str, *rows: JobRow | AttemptRow | ReplicaRow
) -> tuple[int, ...]:
    """Upload rows and return the numbers of new, changed and known ones."""
    answer = service.post_document(document(*rows), key, PATH)
    assert answer.status_code == 200, answer.text
    return tuple(answer.json().values())


def jobs(service: ServiceThread) -> list[JobRow]:
    return [
        job for campaign in service.store.campaigns() for job in service.store.jobs(campaign.id)
    ]


def marked(job: JobRow) -> JobRow:
    return replace(job, batch_system=EXTERNAL_PREFIX + job.batch_system)


def test_upload_leaves_locally_tracked_jobs(service: ServiceThread, key: str) -> None:
    service.store.add_campaign(CAMPAIGN, [JOB], group="submiter")
    assert upload(service, key, replace(JOB, state="lost"), ATTEMPT) == (0, 0, 3)
    assert (jobs(service), service.store.attempts(["j1"])) == ([JOB], [])
    done, ended = replace(JOB, state="done"), replace(ATTEMPT, state="done", exit_code=0)
    service.store.set_attempts([ended])
    service.store.set_jobs([done])
    assert upload(service, key, replace(JOB, state="lost"), ATTEMPT) == (0, 0, 3)
    # A job imported here was queued again by its submitter.
    second = replace(ATTEMPT, number=2)
    assert upload(service, key, JOB, second) == (1, 1, 1)
    assert upload(service, key, JOB, ATTEMPT, second) == (0, 0, 4), "it came late"
    assert (jobs(service), service.store.attempts(["j1"])) == ([marked(JOB)], [ended, second])
    for state, changes in (("done", 1), ("running", 0), ("lost", 1)):
        assert upload(service, key, replace(JOB, state=state)) == (0, changes, 2 - changes)


def test_upload_requires_submitter_key(service: ServiceThread, key: str) -> None:
    token = mint_job_token(service.make_key("submit"), "c1", "j1", 2**60)
    assert service.post_document(document(), token, PATH).status_code == 403
    assert service.post_document(document(), service.make_key("read").text, PATH).status_code == 403
    assert service.post_document(document(), "", PATH).status_code == 401
    assert (
        service.post_document(document(), service.make_key("admin").text, PATH).status_code == 200
    )
    assert service.get_path(PATH, key).status_code == 403, "a key to submit does not permit reading"


def test_pages_show_uploaded_campaign(service: ServiceThread, key: str) -> None:
    assert upload(service, key, JOB, ATTEMPT) == (3, 0, 0)
    reader = service.make_key("read").text
    (listed,) = service.get_path("/api/v1/campaigns", reader).json()["tables"]["campaigns"]
    assert (listed["campaign_id"], listed["running"], listed["planned"]) == ("c1", 1, 8)
    for path in ("/overview", "/campaigns/c1", "/jobs/j1"):
        answer = service.get_path(f"/api/v1{path}", reader)
        assert answer.status_code == 200
        page = service.get_path(path.replace("/overview", "/"), reader)
        assert EXTERNAL_PREFIX not in page.text
    assert "htcondor@must 7.0" in service.get_path("/jobs/j1", reader).text


def changed(part: str, **values: Any) -> Any:
    """Build a valid document with other values in one of its parts."""
    finding = ReplicaRow("f1", 1, "tiny", "h", "A", "root", "f", "root://a//f", True, "")
    body = document(JOB, ATTEMPT, finding)
    parts = {
        "": body,
        "campaign": body["campaign"],
        "plan": body["campaign"]["plan"],
        "job": body["jobs"][0],
        "attempt": body["jobs"][0]["attempts"][0],
        "replica": body["replicas"][0],
    }
    parts[part].update(values)
    return body


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (b"{", 400, "not valid JSON"),
        ([], 422, "the body: input should be"),
        ({}, 422, "campaign: field required"),
        (changed("", more=1), 422, "more: extra inputs"),
        (changed("", jobs={}), 422, "jobs: input should be a valid list"),
        (changed("campaign", id=""), 422, "campaign.id: "),
        (changed("campaign", id="x" * 129), 422, "campaign.id: "),
        (changed("campaign", name="a\0b"), 422, "must not contain NUL"),
        (changed("campaign", name="\ud800"), 422, "campaign.name: "),
        (changed("campaign", created_us=2**62), 422, "campaign.created_us: "),
        (changed("campaign", created_us=-1), 422, "campaign.created_us: "),
        (changed("campaign", planned_jobs=-1), 422, "campaign.planned_jobs: "),
        (changed("campaign", dirty=1), 422, "campaign.dirty: "),
        (changed("campaign", plan="{}"), 422, "campaign.plan: "),
        (changed("plan", excluded="never"), 422, "campaign.plan.excluded: "),
        (changed("plan", definition={"load": "a"}), 422, "campaign.plan.definition.load: "),
        (changed("plan", templates={"A": 1}), 422, "campaign.plan.templates.A: "),
        (changed("plan", definition={"axes": {"root": 1}}), 422, "definition.axes.root: "),
        (changed("plan", more="\ud800"), 422, "lone surrogates"),
        (changed("plan", more="x" * 1_000_001), 422, "longer than"),
        (
            json.dumps(changed("plan", more=7e7)).replace("70000000.0", "1e999").encode(),
            422,
            "finite numbers",
        ),
        (changed("job", state="gone"), 422, "jobs.0.state: "),
        (changed("job", repeat=1.5), 422, "jobs.0.repeat: "),
        (changed("job", campaign_id="c2"), 422, "jobs.0.campaign_id: extra"),
        (changed("job", batch_system="x" * 4000), 422, "jobs.0.batch_system: "),
        (changed("attempt", number=0), 422, "jobs.0.attempts.0.number: "),
        (changed("attempt", exit_code=2**63), 422, "exit_code: "),
        (changed("attempt", failure_class="bad luck"), 422, "failure_class: "),
        (changed("attempt", message="x" * 1_000_001), 422, "message: "),
        (changed("replica", good=None), 422, "replicas.0.good: "),
        ({**document(), "jobs": document(JOB)["jobs"] * 2}, 422, "duplicate job j1"),
        (changed("job", attempts=document(JOB, ATTEMPT)["jobs"][0]["attempts"] * 2), 422, "duplicate attempt"),
        ({**document(), "jobs": [{}] * (MAX_ROWS + 1)}, 413, "at most"),
        (changed("job", attempts=[{}] * (MAX_ROWS + 1)), 413, "at most"),
    ],
)  # fmt: skip
def test_invalid_campaign_is_refused_with_reason(
    shared_service: ServiceThread, shared_key: str, content: Any, status: int, word: str
) -> None:
    answer = shared_service.post_document(content, shared_key, PATH)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["error"]
    assert (shared_service.store.campaigns(), shared_service.store.replicas()) == ([], [])


def test_job_cannot_change_campaign(service: ServiceThread, key: str) -> None:
    upload(service, key, JOB)
    other = replace(CAMPAIGN, id="c2")
    answer = service.post_document(document(JOB, campaign=other), key, PATH)
    assert (answer.status_code, "another campaign" in answer.json()["error"]) == (403, True)
    assert service.store.campaigns() == [CAMPAIGN], "the refused upload stored nothing"


def test_largest_upload_is_stored(service: ServiceThread, key: str) -> None:
    many = [replace(JOB, id=f"j{number}") for number in range(MAX_ROWS)]
    packed = gzip.compress(json.dumps(document(*many)).encode())
    answer = service.post_document(packed, key, PATH, Content_Encoding="gzip")
    assert answer.json() == {"new": MAX_ROWS + 1, "changed": 0, "known": 0}
    assert len(jobs(service)) == MAX_ROWS


def test_upload_responds_503_if_database_fails(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_service() as service:
        key = service.make_key("submit").text

        def fail(*_: object) -> None:
            raise StoreError("disk full", where="/secret")

        monkeypatch.setattr(Store, "apply_upload", fail)
        answer = service.post_document(document(), key, PATH)
        assert (answer.status_code, int(answer.headers["Retry-After"]) > 0) == (503, True)
        assert "secret" not in answer.text


LATER = 2**60


@pytest.fixture
def alice(service: ServiceThread) -> AccessKey:
    return service.make_key("submit", owner="alice")


@pytest.fixture
def mallory(service: ServiceThread) -> AccessKey:
    return service.make_key("submit", owner="mallory")


def send(service: ServiceThread, token: str, *measurements: Measurement) -> Any:
    return service.post_document(make_body(measurements), token)


def send_campaign(
    service: ServiceThread,
    key: AccessKey,
    *rows: JobRow | ReplicaRow,
    campaign: CampaignRow = CAMPAIGN,
) -> Any:
    return service.post_document(document(*rows, campaign=campaign), key.text, PATH)


def make_own(campaign: str, job: str, **values: Any) -> Measurement:
    return make_measurement(job, campaign_id=campaign, **values)


def stored(service: ServiceThread) -> list[tuple[Any, ...]]:
    columns = ["campaign_id", "job_id", "host", "plausible"]
    return [
        tuple(row[name] for name in columns)
        for row in service.store.measurements(Selection(), columns)
    ]


def test_other_groups_cannot_send_to_a_campaign(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    assert send(service, alice.text, make_own("c1", "j1")).json()["new"] == 1
    forged = mint_job_token(mallory, "c1", "j2", LATER)
    for token in (mallory.text, forged):
        answer = send(service, token, make_own("c1", "j2", host="forged"))
        assert answer.status_code == 403
        assert "campaign c1 belongs to another group" in answer.json()["error"]
    second = service.make_key("submit", owner="alice")
    assert send(service, second.text, make_own("c1", "j2")).json()["new"] == 1
    admin = service.make_key("admin", owner="admins")
    assert send(service, admin.text, make_own("c1", "j3")).json()["new"] == 1
    assert "forged" not in str(stored(service))


def test_jobs_cannot_be_sent_under_another_campaign(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    """A measurement's identity follows from its job, so that a forged one would take its place."""
    assert send_campaign(service, alice, JOB).status_code == 200
    assert send(service, alice.text, make_own("c1", "j2")).status_code == 200
    for job in ("j1", "j2"):
        answer = send(
            service,
            mint_job_token(mallory, "c2", job, LATER),
            make_own("c2", job, round_=2, host="forged"),
        )
        assert answer.status_code == 403
        assert f"job {job} is one of another campaign" in answer.json()["error"]
        assert send(service, alice.text, make_own("c1", job, round_=2)).json()["new"] == 1


def test_refused_request_does_not_fail_others_of_its_batch(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    assert send(service, alice.text, make_own("c1", "j1")).status_code == 200
    mixed = send(service, mallory.text, make_own("m1", "m1"), make_own("c1", "j9"))
    assert mixed.status_code == 403
    assert send(service, mallory.text, make_own("m1", "m1")).json()["new"] == 1
    assert {row[0] for row in stored(service)} == {"c1", "m1"}


def test_other_groups_cannot_change_a_campaign(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    assert send_campaign(service, alice, JOB).status_code == 200
    cancelled, renamed = replace(JOB, state="cancelled"), replace(CAMPAIGN, name="mine")
    for jobs, campaign in (([cancelled], CAMPAIGN), ([], renamed)):
        answer = send_campaign(service, mallory, *jobs, campaign=campaign)
        assert answer.status_code == 403
        assert "belongs to another group" in answer.json()["error"]
    stolen = send_campaign(service, mallory, JOB, campaign=replace(CAMPAIGN, id="m1"))
    assert stolen.status_code == 403
    assert "job j1 is one of another campaign" in stolen.json()["error"]
    assert [job.state for job in service.store.jobs("c1")] == ["running"]
    assert [campaign.name for campaign in service.store.campaigns()] == ["nightly"]


@pytest.mark.parametrize("has_key", [True, False])
def test_others_cannot_be_first_to_send_to_a_campaign_submitted_here(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey, has_key: bool
) -> None:
    """The identities of its jobs are on the service's pages before any of them reports."""
    service.store.add_campaign(CAMPAIGN, [JOB], key_id=alice.key_id if has_key else "")
    forged = mint_job_token(mallory, "c1", "j1", LATER)
    assert send(service, forged, make_own("c1", "j1", host="forged")).status_code == 403
    assert send_campaign(service, mallory, replace(JOB, state="cancelled")).status_code == 403
    answer = send(service, mint_job_token(alice, "c1", "j1", LATER), make_own("c1", "j1"))
    assert answer.status_code == (200 if has_key else 403)
    admin = service.make_key("admin", owner="admins")
    assert send(service, admin.text, make_own("c1", "j1", round_=2)).json()["new"] == 1
    assert "forged" not in str(stored(service))


def test_job_of_a_campaign_that_was_not_uploaded_cannot_be_taken_over(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    """Attack: the job has reported, but its campaign is not uploaded yet; a stranger names it."""
    assert send(service, alice.text, make_own("c1", "j1")).status_code == 200
    stolen = send_campaign(service, mallory, JOB, campaign=replace(CAMPAIGN, id="m1"))
    assert stolen.status_code == 403
    assert "job j1 is one of another campaign" in stolen.json()["error"]
    assert send(service, alice.text, make_own("c1", "j1", round_=2)).json()["new"] == 1
    assert send_campaign(service, alice, JOB).json()["new"] == 2
    assert [job.id for job in service.store.jobs("c1")] == ["j1"]
    assert service.store.jobs("m1") == []


def test_uploaded_job_stays_with_its_campaign_when_rows_are_gone(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    """Receipts say whose a job is: its row may be missing."""
    assert send_campaign(service, alice, JOB).status_code == 200
    scope = ChangeScope(campaign_id="c1")
    service.store.apply_change(DatabaseChange("delete", scope, "root", 1, "", "all"))
    assert send(service, mallory.text, make_own("m1", "j1")).status_code == 403
    assert send(service, mallory.text, make_own("c1", "j2")).status_code == 403
    assert send(service, alice.text, make_own("c1", "j1")).json()["new"] == 1


@pytest.mark.parametrize("how", ["measurements", "campaign"])
def test_results_written_here_belong_to_this_installation(service: ServiceThread, how: str) -> None:
    """Attack: the campaign was imported, or made before the first key; strangers post to it."""
    if how == "measurements":
        service.store.add([make_own("c1", "j1")])
    if how == "campaign":
        service.store.add_campaign(CAMPAIGN, [JOB])
    assert service.store.find_owner("c1") == LOCAL_OWNER
    mallory = service.make_key("submit", owner="mallory")
    sent = {
        "measurements": send(service, mallory.text, make_own("c1", "j2")),
        "a job's measurements": send(
            service, mint_job_token(mallory, "c1", "j1", LATER), make_own("c1", "j1", round_=2)
        ),
        "its job under another campaign": send(service, mallory.text, make_own("m1", "j1")),
        "an upload": send_campaign(service, mallory, replace(JOB, state="cancelled")),
        "an upload of its job": send_campaign(
            service, mallory, JOB, campaign=replace(CAMPAIGN, id="m1")
        ),
    }
    assert {name: answer.status_code for name, answer in sent.items()} == dict.fromkeys(sent, 403)
    admin = service.make_key("admin", owner="admins")
    assert send(service, admin.text, make_own("c1", "j1", round_=3)).json()["new"] == 1


def test_imported_campaign_belongs_to_the_named_group(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey, tmp_path: Path
) -> None:
    other_url, file = f"sqlite:///{tmp_path}/theirs.db", tmp_path / "theirs.parquet"
    with Store.open(other_url) as store:
        store.add_campaign(CAMPAIGN, [replace(JOB, state="done")])
        store.add([make_own("c1", "j1")])
        export_file(store, Selection(), file, software_dir=tmp_path)
    options: dict[str, Any] = {"ignore_unknown": False, "dry_run": False, "bars": no_progress}
    import_files(service.store, [file], group="alice", **options)
    assert send(service, mallory.text, make_own("c1", "j1", round_=2)).status_code == 403
    assert send(service, alice.text, make_own("c1", "j1", round_=2)).json()["new"] == 1


def test_imported_file_cannot_take_jobs_over(
    service: ServiceThread, alice: AccessKey, tmp_path: Path
) -> None:
    """Attack: a file for the administrator names a job of another campaign."""
    assert send(service, alice.text, make_own("c1", "j1")).status_code == 200
    forged, file = f"sqlite:///{tmp_path}/forged.db", tmp_path / "forged.parquet"
    with Store.open(forged) as store:
        store.add([make_own("m1", "j1", round_=2, host="forged")])
        export_file(store, Selection(), file, software_dir=tmp_path)
    options: dict[str, Any] = {"ignore_unknown": False, "dry_run": False, "bars": no_progress}
    (result,) = import_files(service.store, [file], **options)
    assert "job j1 is one of another campaign" in result.problems[0]
    assert "forged" not in str(stored(service))


def test_retried_write_passes_the_same_checks(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: a request fails with the database; the service repeats it when that is back."""
    monkeypatch.setattr(measurement_writer, "CHECK_INTERVAL_S", 0.1)
    outage = OutageStore()
    with start_service(outage.add) as service:
        outage.database = LiveDatabase(service.url)
        alice, mallory = (service.make_key("submit", owner=name) for name in ("alice", "mallory"))
        assert send(service, alice.text, make_own("c1", "j1")).status_code == 200
        for key, sent in (
            (mallory, make_own("c1", "j2", host="forged")),
            (alice, make_own("a", "a")),
        ):
            outage.fails = True
            assert send(service, key.text, sent).status_code == 503
            outage.fails = False
            outage.wait_for_write()
        assert {row[:2] for row in stored(service)} == {("c1", "j1"), ("a", "a")}
        assert service.store.find_owner("a") == "alice", "the retried write has its receipt"
        outage.database.close()


class OutageStore:
    """A database that fails on request."""

    def __init__(self) -> None:
        self.database: LiveDatabase | None = None
        self.fails = False
        self._written = threading.Event()

    def add(self, measurements: Iterable[Measurement], deliveries: Iterable[Delivery]) -> AddResult:
        if self.fails or self.database is None:
            self._written.clear()
            raise StoreError("away")
        try:
            return self.database.add(measurements, deliveries)
        finally:
            self._written.set()

    def wait_for_write(self) -> None:
        """Wait until the service has written again."""
        assert self._written.wait(30)


@pytest.mark.parametrize("scope", ["key", "campaign", "job"])
def test_retried_write_needs_a_valid_key(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    """Attack: the key or token is revoked while its request waits for the database."""
    monkeypatch.setattr(measurement_writer, "CHECK_INTERVAL_S", 0.1)
    outage = OutageStore()
    with start_service(outage.add) as service:
        outage.database = LiveDatabase(service.url)
        key = service.make_key("submit", owner="alice")
        outage.fails = True
        token = mint_job_token(key, "c1", "j1", LATER)
        assert send(service, token, make_own("c1", "j1")).status_code == 503
        engine = open_engine(service.url, create=False)
        if scope == "key":
            Keyring(engine).revoke_key(key.key_id, now_us=1)
        else:
            Keyring(engine).revoke_tokens(scope, "c1" if scope == "campaign" else "j1", now_us=1)
        engine.dispose()
        outage.fails = False
        outage.wait_for_write()
        outage.database.close()
        assert stored(service) == []


def test_known_check_does_not_belong_to_its_second_sender(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    """Attack: a check that is sent again would be deleted with the checks of its second sender."""
    assert send_campaign(service, alice, BAD).status_code == 200
    campaign = replace(CAMPAIGN, id="m1")
    answer = send_campaign(service, mallory, replace(BAD, good=True), campaign=campaign)
    assert answer.json() == {"new": 1, "changed": 0, "known": 1}
    scope = ChangeScope(key_id=mallory.key_id)
    service.store.apply_change(DatabaseChange("delete checks", scope, "root", 1, "", "checks"))
    assert service.store.replicas() == [replace(BAD, owner="alice")]


def test_checks_of_replicas_apply_to_campaigns_of_their_group(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    reads = {"dataset_hash": "h", "door": "root", "plausible": True}
    assert send(service, alice.text, make_own("c1", "j1", **reads)).status_code == 200
    assert send(service, mallory.text, make_own("m1", "m1", **reads)).status_code == 200
    campaign = replace(CAMPAIGN, id="m1")
    assert send_campaign(service, mallory, BAD, campaign=campaign).status_code == 200
    assert {row[0]: row[3] for row in stored(service)} == {"c1": True, "m1": False}
    admin = service.make_key("admin", owner="admins")
    check = replace(BAD, id="f2")
    other = replace(CAMPAIGN, id="a1")
    assert send_campaign(service, admin, check, campaign=other).status_code == 200
    assert {row[0]: row[3] for row in stored(service)} == {"c1": False, "m1": False}


def test_good_check_of_another_group_excuses_nothing(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    reads = {"dataset_hash": "h", "door": "root", "plausible": True}
    assert send_campaign(service, alice, BAD).status_code == 200
    good = replace(BAD, id="f3", good=True, found_us=STARTED_US - 1)
    campaign = replace(CAMPAIGN, id="m1")
    assert send_campaign(service, mallory, good, campaign=campaign).status_code == 200
    assert send(service, alice.text, make_own("c1", "j1", **reads)).status_code == 200
    service.store.mark_bad_replicas()
    assert [row[3] for row in stored(service)] == [False]


def test_receipts_name_key_time_and_address(service: ServiceThread, alice: AccessKey) -> None:
    assert send_campaign(service, alice, JOB, BAD).status_code == 200
    for round_ in (1, 2):
        assert send(service, alice.text, make_own("c1", "j1", round_=round_)).status_code == 200
    with Store.open(service.url) as store, store._engine.connect() as connection:
        rows = [row._asdict() for row in connection.execute(receipt.select())]
    assert {(row["kind"], row["subject"]) for row in rows} == {
        ("campaign", "c1"),
        ("job", "j1"),
        ("measurements", "j1"),
        ("replica", "f1"),
    }
    assert len(rows) == 4, "the first time counts"
    assert {row["key_id"] for row in rows} == {alice.key_id}
    assert all(row["address"] and row["received_us"] > 0 for row in rows)
