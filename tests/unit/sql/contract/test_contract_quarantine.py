"""Quarantine, restoration and deletion of measurements, with the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from measurement_factory import STARTED_US, make_campaign_row, make_job_row, make_measurement
from store_helpers import find_rollup_differences

from treehammer.errors import ForeignCampaignError
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.audit_trail import Delivery, Sender, list_deliveries
from treehammer.sql.write.maintenance import ChangeScope, DatabaseChange, ScopeCount
from treehammer.sql.write.store import CampaignUpload, Store

ALICE = Sender("a" * 12, "alice", "127.0.0.1", 5)
MALLORY = Sender("b" * 12, "mallory", "127.0.0.2", 6)
READS: dict[str, Any] = {"dataset_hash": "h", "door": "d", "site": "s", "storage_site": "s"}
BAD = ReplicaRow("r", 1, "set", "h", "s", "d", "f", "root://", False, "torn")


@pytest.fixture
def filled(store: Store) -> Store:
    """Two campaigns: of alice with one recorded implausibility, and of mallory."""
    for sender, campaign in ((ALICE, "campaign"), (MALLORY, "other")):
        row = make_campaign_row(id=campaign)
        store.apply_upload(
            CampaignUpload(row, [make_job_row(f"{campaign} job", campaign_id=campaign)]), sender
        )
        store.add(
            [
                make_measurement(
                    f"{campaign} job",
                    position=n,
                    campaign_id=campaign,
                    started_us=STARTED_US + n,
                    plausible=n > 1,
                    implausible_reasons="too fast" if n == 1 else "",
                    extras={"e": 1.0},
                    **READS,
                )
                for n in (1, 2, 3)
            ],
            [Delivery(sender, "measurements", campaign, [f"{campaign} job"])],
        )
    return store


def read(store: Store) -> Mapping[tuple[Any, Any], tuple[Any, Any]]:
    columns = ["campaign_id", "position", "plausible", "implausible_reasons"]
    return {
        (row["campaign_id"], row["position"]): (row["plausible"], row["implausible_reasons"] or "")
        for row in store.measurements(Selection(), columns)
    }


def change(store: Store, action: str, reason: str = "", **scope: Any) -> int:
    changed = store.apply_change(
        DatabaseChange(action, ChangeScope(**scope), "root@here", 7, reason, str(scope))
    )
    assert not find_rollup_differences(store), "roll-ups follow"
    return changed


def test_quarantine_is_undone_by_restore(filled: Store) -> None:
    before = read(filled)
    assert change(filled, "quarantine", "wrong clock", key_id=MALLORY.key_id) == 3
    after = read(filled)
    assert after["other", 1] == (False, "too fast; quarantined: wrong clock")
    assert after["other", 2] == (False, "quarantined: wrong clock")
    assert after["campaign", 2] == before["campaign", 2]
    assert change(filled, "quarantine", "again", key_id=MALLORY.key_id) == 0
    assert change(filled, "restore", key_id=MALLORY.key_id) == 3
    assert read(filled) == before
    trail = [(row.action, row.reason, row.measurements) for row in filled.list_changes()]
    assert sorted(trail) == [
        ("quarantine", "again", 0),
        ("quarantine", "wrong clock", 3),
        ("restore", "", 3),
    ]


def test_scope_is_limited_by_time(filled: Store) -> None:
    scope: dict[str, Any] = {"since_us": STARTED_US + 2, "until_us": STARTED_US + 3}
    assert filled.count_scope(ChangeScope(**scope)) == [
        ScopeCount("campaign", "s", 1),
        ScopeCount("other", "s", 1),
    ]
    assert change(filled, "quarantine", "x", campaign_id="campaign", **scope) == 1
    assert [place for place, (good, _) in read(filled).items() if not good] == [
        ("campaign", 1),
        ("campaign", 2),
        ("other", 1),
    ]


def test_quarantined_measurement_stays_known(filled: Store) -> None:
    change(filled, "quarantine", "x", campaign_id="campaign")
    again = make_measurement(
        "campaign job", position=2, started_us=STARTED_US + 2, extras={"e": 1.0}, **READS
    )
    assert filled.add([again]).known == 1


def test_deleted_campaign_leaves_its_owner(filled: Store) -> None:
    assert change(filled, "delete", campaign_id="other", since_us=STARTED_US + 3) == 1
    assert len(filled.campaigns()) == 2, "a part of a campaign was deleted"
    assert change(filled, "delete", campaign_id="other") == 2
    assert [row.id for row in filled.campaigns()] == ["campaign"]
    assert {campaign for campaign, _ in read(filled)} == {"campaign"}
    assert filled.jobs("other") == []
    assert filled.find_owner("other") == "mallory", "its jobs may report again, and nobody else's"
    stranger = replace(MALLORY, owner="stranger", key_id="c" * 12)
    for campaign in ("other", "new"):
        measurement = make_measurement("other job", campaign_id=campaign)
        with pytest.raises(ForeignCampaignError):
            filled.add([measurement], list_deliveries([measurement], stranger))


def test_deleted_checks_take_back_their_marks(filled: Store) -> None:
    before = read(filled)
    filled.apply_upload(CampaignUpload(make_campaign_row(id="other"), (), (), [BAD]), MALLORY)
    filled.mark_bad_replicas()
    assert read(filled)["other", 2] == (False, "bad replica: torn")
    change(filled, "quarantine", "x", campaign_id="other")
    assert read(filled)["other", 1] == (False, "too fast; bad replica: torn; quarantined: x")
    assert change(filled, "delete checks", key_id=MALLORY.key_id) == 3
    assert read(filled)["other", 2] == (False, "quarantined: x")
    change(filled, "restore", campaign_id="other")
    assert read(filled) == before
    assert filled.replicas() == []
