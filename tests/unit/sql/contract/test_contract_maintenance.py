"""Quarantine, restoration, deletion and pruning of measurements, and read sessions, in every database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
import sqlalchemy as sa
from measurement_factory import STARTED_US, make_campaign_row, make_job_row, make_measurement
from store_helpers import find_rollup_differences

from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import ForeignCampaignError, TokenError
from treehammer.sql.core.access_keys import AccessGrant, AccessKey, MasterKeys
from treehammer.sql.core.measurement_columns import PACKED_COLUMNS
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.core.schema import measurement, quality_flag
from treehammer.sql.read.query_model import FigureQuery, Selection
from treehammer.sql.write import keyring
from treehammer.sql.write.audit_trail import Delivery, Sender, list_deliveries
from treehammer.sql.write.keyring import Keyring, SessionTable, session_id, verify_session
from treehammer.sql.write.maintenance import (
    PRUNED_COLUMNS,
    ChangeScope,
    DatabaseChange,
    PruneResult,
    ScopeCount,
    check_database,
    first_kept_day,
)
from treehammer.sql.write.recording import AddResult
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


def read_flags(store: Store) -> list[tuple[Any, ...]]:
    columns, flags = measurement.c, quality_flag.c
    order = (columns.campaign_id, columns.position, flags.kind)
    query = sa.select(*order, flags.reason, flags.set_by, flags.set_us).join(measurement)
    now_us = current_us()
    with store.connection() as connection:
        rows = connection.execute(query.order_by(*order)).all()
    assert all(now_us - 60_000_000 < row.set_us <= now_us for row in rows)
    return [tuple(row[:-1]) for row in rows]


def change(store: Store, action: str, reason: str = "", **scope: Any) -> int:
    changed = store.apply_change(
        DatabaseChange(action, ChangeScope(**scope), "root@here", 7, reason, str(scope))
    )
    assert not find_rollup_differences(store), "roll-ups follow"
    return changed


def test_quarantine_is_undone(filled: Store) -> None:
    before = read(filled)
    assert change(filled, "quarantine", "wrong clock", key_id=MALLORY.key_id) == 3
    after = read(filled)
    assert after["other", 1] == (False, "too fast; quarantined: wrong clock")
    assert after["other", 2] == (False, "quarantined: wrong clock")
    assert after["campaign", 2] == before["campaign", 2]
    groups = filled.load_figure(FigureQuery()).groups
    assert sum(group.measurements for group in groups) == len(after) - 3
    assert change(filled, "quarantine", "again", key_id=MALLORY.key_id) == 0
    assert change(filled, "unquarantine", key_id=MALLORY.key_id) == 3
    assert read(filled) == before
    trail = [(row.action, row.reason, row.measurements) for row in filled.list_changes()]
    assert sorted(trail) == [
        ("quarantine", "again", 0),
        ("quarantine", "wrong clock", 3),
        ("unquarantine", "", 3),
    ]


def test_flags_name_their_kind_reason_originator_and_time(filled: Store) -> None:
    before = read_flags(filled)
    assert before == [
        ("campaign", 1, "recorded", "too fast", "sender"),
        ("other", 1, "recorded", "too fast", "sender"),
    ]
    filled.apply_upload(CampaignUpload(make_campaign_row(id="other"), (), (), [BAD]), MALLORY)
    filled.mark_bad_replicas()
    change(filled, "quarantine", "x; outlier: y", key_id=MALLORY.key_id)
    assert read_flags(filled)[1:5] == [
        ("other", 1, "bad replica", "torn", "check r"),
        ("other", 1, "quarantined", "x; outlier: y", "root@here"),
        ("other", 1, "recorded", "too fast", "sender"),
        ("other", 2, "bad replica", "torn", "check r"),
    ]
    assert read(filled)["other", 1][1] == "too fast; bad replica: torn; quarantined: x; outlier: y"
    change(filled, "unquarantine", key_id=MALLORY.key_id)
    assert change(filled, "delete checks", key_id=MALLORY.key_id) == 3
    assert read_flags(filled) == before
    assert filled.replicas() == []
    change(filled, "delete", campaign_id="other")
    assert read_flags(filled) == before[:1]


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
    repeated = make_measurement(
        "campaign job", position=2, started_us=STARTED_US + 2, extras={"e": 1.0}, **READS
    )
    assert filled.add([repeated]).duplicates == 1


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


DAYS = (20260101, 20260102, 20260103)


def build_measurement(day: int, **values: Any) -> Measurement:
    lists: dict[str, Any] = {name: [0.5, day / 7] for name in PACKED_COLUMNS}
    values = {**lists, "log_excerpt": "said at the end", "read_latency_hist": [1, 2], **values}
    return make_measurement(job=str(day), day=day, extras={"hits": 1}, **values)


@pytest.fixture
def filled_store(store: Store) -> list[Measurement]:
    rows = [build_measurement(day) for day in DAYS]
    store.add(rows)
    return rows


def read_rows(store: Store) -> dict[Any, dict[str, Any]]:
    return {row["day"]: dict(row) for row in store.measurements(Selection())}


def test_dry_run_changes_nothing(store: Store, filled_store: list[Measurement]) -> None:
    before = read_rows(store)
    prunable = store.prunable("logs", date(2026, 1, 3))
    assert prunable == PruneResult("logs", date(2026, 1, 3), 2, 2 * len("said at the end"))
    passes = store.prunable("passes", date(2026, 1, 3))
    assert passes.measurements == 2
    numbers = 2 * len(PACKED_COLUMNS) * 2 * 8
    assert 0 < passes.bytes < numbers + 2 * 100, "they are compressed"
    assert read_rows(store) == before


@pytest.mark.parametrize("what", ["passes", "logs"])
def test_old_columns_are_pruned(
    store: Store, url: str, filled_store: list[Measurement], what: str
) -> None:
    before = read_rows(store)
    prunable = store.prunable(what, date(2026, 1, 3))
    assert store.prune(what, date(2026, 1, 3)) == prunable
    assert store.prunable(what, date(2026, 1, 3)).measurements == 0
    gone = PACKED_COLUMNS if what == "passes" else ("log_excerpt",)
    for day, row in read_rows(store).items():
        expected = dict.fromkeys(gone, None) if day < 20260103 else {}
        assert row == {**before[day], **expected}
    assert check_database(url)["extra"] == 3  # which compares the roll-ups, too


def test_pruned_measurement_is_recognized(store: Store, filled_store: list[Measurement]) -> None:
    for what in ("passes", "logs"):
        store.prune(what, date(2026, 1, 2))
    assert store.add(filled_store) == AddResult(0, 3)
    assert read_rows(store)[DAYS[0]]["log_excerpt"] is None
    other = build_measurement(DAYS[0], eff_job=0.25)
    assert store.add([other]) == AddResult(0, 0, (other.id,))
    # Permanent columns still conflict.
    other = build_measurement(DAYS[2], log_excerpt="something else")
    assert store.add([other]) == AddResult(0, 0, (other.id,))


def test_kept_days() -> None:
    assert first_kept_day(1, date(2026, 3, 1)) == date(2026, 3, 1)
    assert first_kept_day(30, date(2026, 3, 1)) == date(2026, 1, 31)
    assert {"log_excerpt", "pass_loop_wall_s"} < set(PRUNED_COLUMNS)


MASTER = b"m" * 32


def make_grant(key: AccessKey) -> AccessGrant:
    return AccessGrant("read", key.key_id, "Älice", "")


def test_session_is_kept_until_it_ends(store: Store) -> None:
    table, keyring = SessionTable(store._engine), Keyring(store._engine)
    key = keyring.create_key(MASTER, "read", "Älice", now_us=1)
    token = table.open_session(make_grant(key), address="::1", now_us=10, expires_us=20)
    (row,) = table.list_sessions(now_us=20)
    assert (row.name, row.key_id) == ("Älice", key.key_id)
    assert token not in repr(row)
    assert len(session_id(row)) == 12
    grant = verify_session(token, keyring.load_access(), MasterKeys(MASTER), 20)
    assert (grant.may_read, grant.may_submit, grant.name) == (True, False, "Älice")
    with pytest.raises(TokenError, match="expired"):
        verify_session(token, keyring.load_access(), MasterKeys(MASTER), 21)
    assert table.list_sessions(now_us=21) == []
    assert table.end_sessions([row.token_hash, row.token_hash]) == 1
    with pytest.raises(TokenError, match="ended"):
        verify_session(token, keyring.load_access(), MasterKeys(MASTER), 20)


def test_revoked_key_has_no_sessions(store: Store) -> None:
    table, keyring = SessionTable(store._engine), Keyring(store._engine)
    key, other = (keyring.create_key(MASTER, "read", "a", now_us=1) for _ in range(2))
    tokens = [
        table.open_session(make_grant(key_), address="-", now_us=1, expires_us=9)
        for key_ in (key, other)
    ]
    before = keyring.load_access()
    keyring.revoke_key(key.key_id, now_us=2)
    access = keyring.load_access()
    assert [key_.key_id for key_ in access.sessions.values()] == [other.key_id]
    assert verify_session(tokens[1], access, MasterKeys(MASTER), 3).key_id == other.key_id
    # A session that another process still knows ends by its key.
    mixed = type(before)(access.keys, sessions=before.sessions)
    with pytest.raises(TokenError, match="revoked"):
        verify_session(tokens[0], mixed, MasterKeys(MASTER), 3)


def test_oldest_sessions_of_a_holder_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "MAX_SESSIONS_PER_KEY", 2)
    table = SessionTable(store._engine)
    keys = [Keyring(store._engine).create_key(MASTER, "read", "a", now_us=1) for _ in range(2)]
    for key in keys:
        for now_us in (1, 2, 3):
            table.open_session(make_grant(key), address="-", now_us=now_us, expires_us=9)
    rows = table.list_sessions(now_us=3)
    assert {(row.key_id, row.created_us) for row in rows} == {
        (key.key_id, now_us) for key in keys for now_us in (2, 3)
    }
