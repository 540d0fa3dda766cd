"""Roll-ups, operations of load tests and rows of dimensions agree with the measurements in every database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from measurement_factory import make_measurement, make_operation, random_measurements
from store_helpers import find_rollup_differences, read_table

from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import StoreError
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.core.schema import (
    dimension_tables,
    measurement,
    operation,
    rollup_day,
    rollup_operation,
)
from treehammer.sql.engine.database_engine import (
    make_engine,
    parse_url,
    read_transaction,
    write_transaction,
)
from treehammer.sql.read.query_model import Condition, FigureQuery, Selection
from treehammer.sql.write import rollups
from treehammer.sql.write.audit_trail import MEASUREMENTS, Delivery, Sender
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store


def read_rollups(store: Store) -> list[dict[str, Any]]:
    with read_transaction(store._engine) as connection:
        return [dict(row) for row in connection.execute(sa.select(rollup_day)).mappings()]


def test_rollups_are_independent_of_insert_order(store: Store) -> None:
    for seed in range(2):
        store.add(random_measurements(seed, 50))
        assert find_rollup_differences(store) == []
    store.add(random_measurements(0, 50))  # again: nothing is counted twice
    assert find_rollup_differences(store) == []
    operations = read_table(store, rollup_operation)
    assert {row["outcome"] for row in operations} >= {"good", "implausible", "open"}
    assert sum(row["measurements"] for row in read_rollups(store)) == 100
    assert {row["kind"] for row in read_rollups(store)} == {"timed", "checksum"}
    assert {row["outcome"] for row in read_rollups(store)} == {
        "good",
        "implausible",
        "open",
        "read",
    }


def test_row_holds_counts_sums_and_squares(store: Store) -> None:
    store.add(
        make_measurement(job=str(n), eff_job=x, read_latency_hist=[n, 0, 1])
        for n, x in enumerate((0.5, 0.75, None))
    )
    (row,) = read_rollups(store)
    assert (row["day"], row["kind"], row["outcome"]) == (20260301, "timed", "good")
    assert row["measurements"] == 3
    assert (row["n_eff_job"], row["s_eff_job"], row["q_eff_job"]) == (2, 1.25, 0.8125)
    assert (row["n_eff_loop"], row["s_eff_loop"]) == (0, 0)
    assert row["read_latency_hist"] == [3, 0, 3]


def test_unsupported_is_counted_separately(store: Store) -> None:
    lacks: dict[str, Any] = {"failure_class": "software-setup", "failure_kind": "not-supported"}
    store.add([make_measurement(job="a", **lacks), make_measurement(job="b")])
    store.add([make_measurement(job="c", **{**lacks, "failure_kind": "version"})])
    store.add([make_measurement(job="d", **lacks, failure_phase="open")])
    counts = {row["outcome"]: row["measurements"] for row in read_rollups(store)}
    assert counts == {"software-setup: not supported": 2, "good": 1, "software-setup": 1}
    assert find_rollup_differences(store) == []
    store.rebuild_rollups()
    assert counts == {row["outcome"]: row["measurements"] for row in read_rollups(store)}
    # Measurements and roll-ups report the recorded failure class.
    for raw in (False, True):
        groups = store.load_figure(FigureQuery(by=("failure_class",), from_measurements=raw)).groups
        assert {group.by["failure_class"]: group.measurements for group in groups} == {
            None: 1,
            "software-setup": 3,
        }
        only = Selection(conditions=(Condition("failure_class", "=", "software-setup"),))
        (group,) = store.load_figure(FigureQuery(selection=only, from_measurements=raw)).groups
        assert group.measurements == 3


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_row_holds_the_last_good_measurement(store: Store, order: Sequence[int]) -> None:
    measurements = [
        make_measurement(job="first", started_us=10, server_version="v1", cpu_model="old"),
        make_measurement(job="last", started_us=20, server_version="v2", cpu_model="new"),
        make_measurement(job="bad", started_us=30, server_version="v3", plausible=False),
    ]
    for place in order:
        store.add([measurements[place]])
    table, storage, node = rollup_day.c, dimension_tables["storage"], dimension_tables["node"]
    query = (
        sa.select(table.outcome, table.last_us, storage.c.server_version, node.c.cpu_model)
        .outerjoin_from(rollup_day, storage, storage.c.id == table.storage_id)
        .outerjoin(node, node.c.id == table.node_id)
        .order_by(table.outcome)
    )
    for _ in range(2):
        with read_transaction(store._engine) as connection:
            rows = connection.execute(query).all()
        assert [*map(tuple, rows)] == [("good", 20, "v2", "new"), ("implausible", None, None, None)]
        assert find_rollup_differences(store) == []
        store.rebuild_rollups()


def test_read_sums_do_not_overflow(store: Store) -> None:
    most = measurement_sql.MAX_BIN_READS
    store.add([make_measurement(job="a", read_latency_hist=[most, most + 1])])
    store.add([make_measurement(job="b", read_latency_hist=[most, 1])])
    store.add([make_measurement(job="c", read_latency_hist=[1])])
    assert read_rollups(store)[0]["read_latency_hist"] == [2 * most + 1, 1]
    assert find_rollup_differences(store) == []
    answered = store.load_figure(FigureQuery(latencies=True)).groups[0].reads
    assert [*answered[:3]] == [2 * most + 1, 1, 0]


def test_implausible_values_are_excluded_from_sums(store: Store) -> None:
    store.add(make_measurement(job=str(x), eff_job=x) for x in (1e308, -1e300, 0.25))
    rows = {row["outcome"]: row for row in read_rollups(store)}
    row = rows["good"]
    assert (row["measurements"], row["n_eff_job"], row["s_eff_job"]) == (1, 1, 0.25)
    assert rows["implausible"]["measurements"] == 2
    assert find_rollup_differences(store) == []


def test_marked_measurements_move_to_another_outcome(store: Store) -> None:
    common: dict[str, Any] = {"dataset_hash": "d", "site": "SITE_A", "door": "root"}
    store.add(
        make_measurement(str(n), started_us=n, operations=[make_operation()], **common)
        for n in (10, 20, 30)
    )
    good = ReplicaRow("f1", 15, "data", "d", "SITE_A", "root", "f", "root://x", True, "")
    bad = ReplicaRow("f2", 25, "data", "d", "SITE_A", "root", "f", "root://x", False, "adler32")
    store.add_replicas([good, bad])
    assert store.mark_bad_replicas() == 2
    counts = {"good": 1, "implausible": 2}
    assert {row["outcome"]: row["measurements"] for row in read_rollups(store)} == counts
    operations = read_table(store, rollup_operation)
    assert {row["outcome"]: row["steps"] for row in operations} == counts
    assert find_rollup_differences(store) == []


def test_operations_are_stored_once_and_in_order(store: Store) -> None:
    steps = [make_operation(step=n, server="s" if n else "", step_s=10) for n in (2, 0, 1)]
    item = make_measurement(operations=steps)
    assert store.add([item]) == AddResult(1, 0)
    assert store.add([item, make_measurement("other")]) == AddResult(1, 1)
    assert store.preview_add([item]) == AddResult(0, 1)
    rows = read_table(store, operation)
    expected = [
        {**step, "server": step["server"] or None, "measurement_id": item.id, "line": line}
        for line, step in enumerate(steps)
    ]
    assert rows == expected
    assert isinstance(rows[0]["step_s"], float)


@pytest.mark.parametrize("changed", [[], [make_operation([0.5])], [make_operation()] * 2])
def test_other_operations_are_a_conflict(store: Store, changed: list[dict[str, Any]]) -> None:
    item = make_measurement(operations=[make_operation()])
    other = make_measurement(operations=changed)
    store.add([item])
    assert store.add([other]) == AddResult(0, 0, (item.id,))
    assert len(read_table(store, operation)) == 1
    assert find_rollup_differences(store) == []


def test_rollup_sums_steps_without_those_limited_by_the_generator(store: Store) -> None:
    def add(job: str, *steps: dict[str, Any]) -> None:
        store.add([make_measurement(job, operations=steps)])

    add("a", make_operation([0.001, 0.002], {"timeout": 1}, late=1), make_operation([9.0], step=1))
    add("b", make_operation([0.25], bytes=7), make_operation(operation="read", side="server"))
    late = make_operation([], step=5, clients=0, generator_limited=True)
    add("c", make_operation([5.0], step=4, generator_limited=True), late)
    opened, read = read_table(store, rollup_operation)
    assert (opened["day"], opened["outcome"], opened["side"]) == (20260301, "good", "client")
    counts = [opened[name] for name in ("steps", "limited_steps", "scheduled", "done")]
    assert counts == [3, 1, 5, 4], "the time of late answers is no step"
    assert [opened[name] for name in ("failed", "late", "bytes")] == [1, 1, 7]
    latency = LatencyHistogram.decode(opened["latency"])
    assert latency.count == 4
    assert latency.maximum == pytest.approx(9.0, rel=0.01)
    assert (read["side"], read["operation"], read["steps"]) == ("server", "read", 1)


def test_invented_counts_do_not_overflow(store: Store) -> None:
    most = 2**63 - 1
    latency = LatencyHistogram()
    latency.record(0.001, most)
    step = make_operation([], scheduled=most, bytes=most)
    steps = [{**step, "done": most, "latency": latency.encode()}] * 2
    store.add(make_measurement(job, operations=steps) for job in "ab")
    (row,) = read_table(store, rollup_operation)
    assert (row["done"], row["bytes"]) == (most, most)
    assert find_rollup_differences(store) == []


@pytest.mark.backends("sqlite", "postgresql")
def test_damaged_histogram_is_reported_with_its_remedy(store: Store, url: str) -> None:
    item = make_measurement(operations=[make_operation(), make_operation(step=1)])
    store.add([item])
    with write_transaction(store._engine) as connection:
        connection.execute(sa.update(operation).values(latency="HISTFAAA"))
    with pytest.raises(StoreError, match=f"latency of 1 measurement is damaged: {item.id}"):
        check_database(url)
    with pytest.raises(StoreError, match="no histogram of latencies"):
        store.rebuild_rollups()
    with write_transaction(store._engine) as connection:
        connection.execute(sa.update(operation).values(latency=None))
    store.rebuild_rollups()
    assert check_database(url)["operation"] == 2


SENDER = Sender("0123456789ab", "alice", "127.0.0.1", 1)


@pytest.fixture
def engine(store: Store) -> sa.Engine:
    return store._engine


def deliver(store: Store, *items: Measurement) -> AddResult:
    jobs = [str(item.values["job_id"]) for item in items]
    campaign_id = str(items[0].values["campaign_id"])
    return store.add(items, [Delivery(SENDER, MEASUREMENTS, campaign_id, jobs)])


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
        patch.setattr(rollups, "rebuild_rollups", fail)
        with pytest.raises(RuntimeError, match="no power"):
            store.add([make_measurement()])
    assert store.add([make_measurement()]) == AddResult(1, 0)
    assert check_database(url)["measurement"] == 1
