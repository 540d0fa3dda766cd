"""Submitters who do not trust each other: campaigns, jobs and checks of replicas have owners."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from measurement_factory import STARTED_US
from service_thread import ServiceThread, make_body, make_sent_measurement

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.service_spec import STARTS_PATH
from treehammer.sql.auth.access_keys import AccessKey
from treehammer.sql.auth.tokens import mint_job_token
from treehammer.sql.core.rows import CampaignRow, JobRow, ReplicaRow
from treehammer.sql.core.schema import receipt
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store

CAMPAIGN = CampaignRow(
    "c1", "nightly", STARTED_US, "https://x.org/r", "main", "abc", False, "reads", "tests/reads",
    "{}", 1, 1,
)  # fmt: skip
JOB = JobRow("j1", "c1", "A", "root", "timed", 1, "cold", "htcondor@must", "7.0", 4, "running")
BAD = ReplicaRow("f1", 5, "tiny", "h", "local", "root", "f", "root://", False, "torn")
LATER = 2**60
UPLOAD = "/api/v1/campaigns"


@pytest.fixture
def alice(service: ServiceThread) -> AccessKey:
    return service.make_key("submit", owner="alice")


@pytest.fixture
def mallory(service: ServiceThread) -> AccessKey:
    return service.make_key("submit", owner="mallory")


def send(service: ServiceThread, token: str, *measurements: Measurement) -> Any:
    return service.post_document(make_body(measurements), token)


def upload(
    service: ServiceThread,
    key: AccessKey,
    *jobs: JobRow,
    campaign: CampaignRow = CAMPAIGN,
    checks: tuple[ReplicaRow, ...] = (),
) -> Any:
    replicas = [{name: v for name, v in asdict(one).items() if name != "owner"} for one in checks]
    body = {
        "campaign": {**asdict(campaign), "plan": json.loads(campaign.plan)},
        "jobs": [
            {**{n: v for n, v in asdict(job).items() if n != "campaign_id"}, "attempts": []}
            for job in jobs
        ],
        "replicas": replicas,
    }
    return service.post_document(body, key.text, UPLOAD)


def make_own(campaign: str, job: str, **values: Any) -> Measurement:
    return make_sent_measurement(job, campaign_id=campaign, **values)


def stored(service: ServiceThread) -> list[tuple[Any, ...]]:
    columns = ["campaign_id", "job_id", "host", "plausible"]
    with Store.open(service.url) as store:
        return [
            tuple(row[name] for name in columns) for row in store.measurements(Selection(), columns)
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
    assert upload(service, alice, JOB).status_code == 200
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
    assert upload(service, alice, JOB).status_code == 200
    cancelled, renamed = replace(JOB, state="cancelled"), replace(CAMPAIGN, name="mine")
    for jobs, campaign in (([cancelled], CAMPAIGN), ([], renamed)):
        answer = upload(service, mallory, *jobs, campaign=campaign)
        assert answer.status_code == 403
        assert "belongs to another group" in answer.json()["error"]
    stolen = upload(service, mallory, JOB, campaign=replace(CAMPAIGN, id="m1"))
    assert stolen.status_code == 422
    assert "job j1 is one of another campaign" in stolen.json()["error"]
    with Store.open(service.url) as store:
        assert [job.state for job in store.jobs("c1")] == ["running"]
        assert [campaign.name for campaign in store.campaigns()] == ["nightly"]


@pytest.mark.parametrize("has_key", [True, False])
def test_others_cannot_be_first_to_send_to_a_campaign_submitted_here(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey, has_key: bool
) -> None:
    """The identities of its jobs are on the service's pages before any of them reports."""
    with Store.open(service.url) as store:
        store.add_campaign(CAMPAIGN, [JOB], key_id=alice.key_id if has_key else "")
    forged = mint_job_token(mallory, "c1", "j1", LATER)
    assert send(service, forged, make_own("c1", "j1", host="forged")).status_code == 403
    assert upload(service, mallory, replace(JOB, state="cancelled")).status_code == 403
    answer = send(service, mint_job_token(alice, "c1", "j1", LATER), make_own("c1", "j1"))
    assert answer.status_code == (200 if has_key else 403)
    admin = service.make_key("admin", owner="admins")
    assert send(service, admin.text, make_own("c1", "j1", round_=2)).json()["new"] == 1
    assert "forged" not in str(stored(service))


def test_imported_campaign_belongs_to_the_first_sender(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    with Store.open(service.url) as store:
        store.add_campaign(CAMPAIGN, [JOB])
    assert send(service, alice.text, make_own("c1", "j1")).status_code == 200
    assert send(service, mallory.text, make_own("c1", "j2")).status_code == 403


def test_other_groups_cannot_join_a_common_start(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    assert upload(service, alice, JOB).status_code == 200
    until_us = service.clock[0] + 60_000_000
    body = {"barrier": "b", "jobs": 2, "wait_s": 60, "lead_s": 1, "waited_s": 0}
    for key, status in ((mallory, 403), (alice, 200), (alice, 200)):
        token = mint_job_token(key, "c1", "j1", until_us)
        assert service.post_document(body, token, STARTS_PATH).status_code == status


def test_checks_of_replicas_apply_to_campaigns_of_their_group(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    reads = {"dataset_hash": "h", "door": "root", "plausible": True}
    assert send(service, alice.text, make_own("c1", "j1", **reads)).status_code == 200
    assert send(service, mallory.text, make_own("m1", "m1", **reads)).status_code == 200
    own = replace(CAMPAIGN, id="m1")
    assert upload(service, mallory, campaign=own, checks=(BAD,)).status_code == 200
    assert {row[0]: row[3] for row in stored(service)} == {"c1": True, "m1": False}
    admin = service.make_key("admin", owner="admins")
    known = replace(BAD, id="f2")
    other = replace(CAMPAIGN, id="a1")
    assert upload(service, admin, campaign=other, checks=(known,)).status_code == 200
    assert {row[0]: row[3] for row in stored(service)} == {"c1": False, "m1": False}


def test_good_check_of_another_group_excuses_nothing(
    service: ServiceThread, alice: AccessKey, mallory: AccessKey
) -> None:
    reads = {"dataset_hash": "h", "door": "root", "plausible": True}
    assert upload(service, alice, checks=(BAD,)).status_code == 200
    good = replace(BAD, id="f3", good=True, found_us=STARTED_US - 1)
    own = replace(CAMPAIGN, id="m1")
    assert upload(service, mallory, campaign=own, checks=(good,)).status_code == 200
    assert send(service, alice.text, make_own("c1", "j1", **reads)).status_code == 200
    with Store.open(service.url) as store:
        store.mark_bad_replicas()
    assert [row[3] for row in stored(service)] == [False]


def test_receipts_name_key_time_and_address(service: ServiceThread, alice: AccessKey) -> None:
    assert upload(service, alice, JOB, checks=(BAD,)).status_code == 200
    for round_ in (1, 2):
        assert send(service, alice.text, make_own("c1", "j1", round_=round_)).status_code == 200
    with Store.open(service.url) as store, store._engine.connect() as connection:
        rows = [row._asdict() for row in connection.execute(receipt.select())]
    assert {(row["kind"], row["subject"]) for row in rows} == {
        ("campaign", "c1"),
        ("measurements", "j1"),
        ("replica", "f1"),
    }
    assert len(rows) == 3, "the first time counts"
    assert {row["key_id"] for row in rows} == {alice.key_id}
    assert all(row["address"] and row["received_us"] > 0 for row in rows)
