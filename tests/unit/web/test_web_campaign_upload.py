"""Upload of campaigns: stored rows, precedence of updates, refusals with reasons."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest
from measurement_factory import STARTED_US
from service_thread import ServiceThread, StartService, make_body, make_sent_measurement

from treehammer.collectors.job_spec import EXTERNAL_PREFIX
from treehammer.errors import StoreError
from treehammer.sql.auth.access_keys import mint_job_token
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.web.api.ingest import MAX_ROWS

PATH = "/api/v1/campaigns"
PLAN: Mapping[str, Any] = {
    "definition": {"axes": {"root": ["6.38.00"], "mode": [1, 0.5, True]}, "dataset": "tiny"},
    "sites": ["A"],
    "excluded": {"SITE_B": "power cut"},
}
CAMPAIGN = CampaignRow(
    "c1", "nightly", STARTED_US, "https://x.org/r", "main", "abc", False, "reads", "tests/reads",
    json.dumps(PLAN, sort_keys=True), 2, 8,
)  # fmt: skip
JOB = JobRow("j1", "c1", "A", "root", "timed", 1, "cold", "htcondor@must", "7.0", 4, "running")
ATTEMPT = AttemptRow("j1", 1, "running", STARTED_US, 0, None, "", "")


def document(*rows: JobRow | AttemptRow | ReplicaRow, campaign: CampaignRow = CAMPAIGN) -> Any:
    """Build the request body for rows."""
    body: dict[str, Any] = {"campaign": {**asdict(campaign), "plan": json.loads(campaign.plan)}}
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


@pytest.fixture
def key(service: ServiceThread) -> str:
    return service.make_key("submit").text


def upload(
    service: ServiceThread, key: str, *rows: JobRow | AttemptRow | ReplicaRow
) -> tuple[int, ...]:
    """Upload rows and return the numbers of new, changed and known ones."""
    answer = service.post_document(document(*rows), key, PATH)
    assert answer.status_code == 200, answer.text
    return tuple(answer.json().values())


def jobs(service: ServiceThread) -> list[JobRow]:
    with Store.open(service.url) as store:
        return [job for one in store.campaigns() for job in store.jobs(one.id)]


def marked(job: JobRow) -> JobRow:
    return replace(job, batch_system=EXTERNAL_PREFIX + job.batch_system)


def test_later_upload_replaces_earlier(service: ServiceThread, key: str) -> None:
    assert upload(service, key, JOB, ATTEMPT) == (3, 0, 0)
    assert upload(service, key, JOB, ATTEMPT) == (0, 0, 3)
    done = replace(JOB, state="done")
    ended = replace(ATTEMPT, state="done", ended_us=STARTED_US + 1, exit_code=0)
    assert upload(service, key, done, ended) == (0, 2, 1)
    assert upload(service, key, JOB, ATTEMPT) == (0, 0, 3), (
        "an earlier state that arrives late is ignored"
    )
    assert jobs(service) == [marked(done)]
    again = replace(JOB, state="queued", batch_id="8.0")
    assert upload(service, key, again) == (0, 1, 1)
    assert jobs(service) == [marked(again)]
    with Store.open(service.url) as store:
        assert store.campaigns() == [CAMPAIGN]
        assert store.attempts(["j1"]) == [ended], "rows outside the upload stay"


def test_upload_leaves_locally_tracked_jobs(service: ServiceThread, key: str) -> None:
    with Store.open(service.url) as store:
        store.add_campaign(CAMPAIGN, [JOB], group="submiter")
        assert upload(service, key, replace(JOB, state="lost"), ATTEMPT) == (0, 0, 3)
        assert (jobs(service), store.attempts(["j1"])) == ([JOB], [])
        done, ended = replace(JOB, state="done"), replace(ATTEMPT, state="done", exit_code=0)
        store.set_attempts([ended])
        store.set_jobs([done])
        assert upload(service, key, replace(JOB, state="lost"), ATTEMPT) == (0, 0, 3)
        # A job imported here was queued again by its submitter.
        second = replace(ATTEMPT, number=2)
        assert upload(service, key, JOB, second) == (1, 1, 1)
        assert (jobs(service), store.attempts(["j1"])) == ([marked(JOB)], [ended, second])


def test_uploaded_bad_replica_marks_measurements(service: ServiceThread, key: str) -> None:
    service.post_document(
        make_body([make_sent_measurement(dataset_hash="h", door="root", plausible=True)]), key
    )
    finding = ReplicaRow("f1", 5, "tiny", "h", "local", "root", "f", "root://", False, "torn")
    assert upload(service, key, finding) == (2, 0, 0)
    with Store.open(service.url) as store:
        (row,) = store.measurements(Selection(), ["plausible"])
        assert store.replicas() == [replace(finding, owner="submiter")]
    assert row["plausible"] is False


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
        (changed("plan", sites="A"), 422, "campaign.plan.sites: "),
        (changed("plan", templates={"A": 1}), 422, "campaign.plan.templates.A: "),
        (changed("plan", definition={"axes": {"root": 1}}), 422, "definition.axes.root: "),
        (changed("plan", definition={"axes": {"root": [[]]}}), 422, "definition.axes.root"),
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
    with Store.open(shared_service.url) as store:
        assert (store.campaigns(), store.replicas()) == ([], [])


def test_job_cannot_change_campaign(service: ServiceThread, key: str) -> None:
    upload(service, key, JOB)
    other = replace(CAMPAIGN, id="c2")
    answer = service.post_document(document(JOB, campaign=other), key, PATH)
    assert (answer.status_code, "another campaign" in answer.json()["error"]) == (403, True)
    with Store.open(service.url) as store:
        assert store.campaigns() == [CAMPAIGN], "the refused upload stored nothing"


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
