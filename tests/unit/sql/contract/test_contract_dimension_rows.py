"""Rows of dimensions that the store knows to be stored, and databases in which they are not."""

from __future__ import annotations

import re

import pytest
import sqlalchemy as sa
from measurement_factory import make_measurement

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.schema import dimension_tables, measurement, rollup_day
from treehammer.sql.engine.database_engine import make_engine, parse_url, write_transaction
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write import recording, rollups
from treehammer.sql.write.audit_trail import MEASUREMENTS, Delivery, Sender
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store

SENDER = Sender("0123456789ab", "alice", "127.0.0.1", 1)


@pytest.fixture
def engine(store: Store) -> sa.Engine:
    return store._engine


def deliver(store: Store, *items: Measurement) -> AddResult:
    jobs = [str(item.values["job_id"]) for item in items]
    campaign_id = str(items[0].values["campaign_id"])
    return store.add(items, [Delivery(SENDER, MEASUREMENTS, campaign_id, jobs)])


def test_known_rows_need_no_statement(store: Store, engine: sa.Engine) -> None:
    deliver(store, make_measurement(job="a", host="x"))
    statements: list[str] = []
    sa.event.listen(
        engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )
    deliver(store, *(make_measurement(job="a", position=p, host="x") for p in range(2, 30)))
    tables = re.compile(rf"(FROM|INTO) ({'|'.join(dimension_tables)})\b", re.IGNORECASE)
    assert not [text for text in statements if tables.search(text)]
    assert len(statements) <= 8, statements


def test_other_process_adds_rows(store: Store, url: str) -> None:
    with Store.open(url) as other:
        store.add([make_measurement(job="a", host="x")])
        other.add([make_measurement(job="b", host="y")])
        store.add([make_measurement(job="c", host="y")])
        other.add([make_measurement(job="d", host="x")])
    assert check_database(url)["node"] == 2


def test_rows_deleted_by_hand_are_inserted_again(store: Store, url: str) -> None:
    first, second = make_measurement(job="a"), make_measurement(job="b")
    deliver(store, first)
    engine = make_engine(parse_url(url))
    with write_transaction(engine) as connection:
        for table in (rollup_day, measurement, *dimension_tables.values()):
            connection.execute(sa.delete(table))
    engine.dispose()
    assert deliver(store, second) == AddResult(1, 0)
    assert [row["job_id"] for row in store.measurements(Selection())] == ["b"]
    assert check_database(url)["subject"] == 1


def test_rolled_back_rows_are_not_known(
    store: Store, url: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no power")

    with monkeypatch.context() as patch:
        patch.setattr(rollups.RollupSums, "write", fail)
        with pytest.raises(RuntimeError, match="no power"):
            store.add([make_measurement()])
    assert not recording.cache_of(engine)
    assert store.add([make_measurement()]) == AddResult(1, 0)
    assert len(recording.cache_of(engine)) == len(dimension_tables)
    assert check_database(url)["measurement"] == 1


def test_full_cache_starts_again(
    store: Store, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_CACHED_IDS", 8)
    for number in range(20):
        store.add([make_measurement(job=str(number), host=f"host {number}")])
        assert len(recording.cache_of(engine)) <= 8 + len(dimension_tables)
