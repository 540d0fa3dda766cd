"""Roll-ups equal the measurements on every database."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from measurement_factory import make_measurement, random_measurements
from store_helpers import find_rollup_differences

from treehammer.errors import StoreError
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.core.schema import dimension_tables, rollup_day
from treehammer.sql.engine.database_engine import read_transaction, write_transaction
from treehammer.sql.read.query_model import Condition, FigureQuery, Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store


def read_rollups(store: Store) -> list[dict[str, Any]]:
    with read_transaction(store._engine) as connection:
        return [dict(row) for row in connection.execute(sa.select(rollup_day)).mappings()]


def test_rollups_are_independent_of_insert_order(store: Store) -> None:
    for seed in range(4):
        store.add(random_measurements(seed, 150))
        assert find_rollup_differences(store) == ""
    store.add(random_measurements(0, 150))  # again: nothing is counted twice
    assert find_rollup_differences(store) == ""
    assert sum(row["measurements"] for row in read_rollups(store)) == 600
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
    assert find_rollup_differences(store) == ""
    store.rebuild_rollups()
    assert counts == {row["outcome"]: row["measurements"] for row in read_rollups(store)}
    # Measurements and roll-ups report the recorded failure class.
    for raw in (False, True):
        groups = store.fetch_figure(
            FigureQuery(by=("failure_class",), from_measurements=raw)
        ).groups
        assert {group.by["failure_class"]: group.measurements for group in groups} == {
            None: 1,
            "software-setup": 3,
        }
        only = Selection(conditions=(Condition("failure_class", "=", "software-setup"),))
        (group,) = store.fetch_figure(FigureQuery(selection=only, from_measurements=raw)).groups
        assert group.measurements == 3


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
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
        assert find_rollup_differences(store) == ""
        store.rebuild_rollups()


def test_read_sums_do_not_overflow(store: Store) -> None:
    most = measurement_sql.MAX_BIN_READS
    store.add([make_measurement(job="a", read_latency_hist=[most, most + 1])])
    store.add([make_measurement(job="b", read_latency_hist=[most, 1])])
    store.add([make_measurement(job="c", read_latency_hist=[1])])
    assert read_rollups(store)[0]["read_latency_hist"] == [2 * most + 1, 1]
    assert find_rollup_differences(store) == ""
    answered = store.fetch_figure(FigureQuery(latencies=True)).groups[0].reads
    assert [*answered[:3]] == [2 * most + 1, 1, 0]


def test_rebuilt_rollups_are_equal(store: Store) -> None:
    store.add(random_measurements(1, 100))
    before = read_rollups(store)
    store.rebuild_rollups()
    assert find_rollup_differences(store) == ""
    assert len(read_rollups(store)) == len(before)


def test_implausible_values_are_excluded_from_sums(store: Store) -> None:
    store.add(make_measurement(job=str(x), eff_job=x) for x in (1e308, -1e300, 0.25))
    rows = {row["outcome"]: row for row in read_rollups(store)}
    row = rows["good"]
    assert (row["measurements"], row["n_eff_job"], row["s_eff_job"]) == (1, 1, 0.25)
    assert rows["implausible"]["measurements"] == 2
    assert find_rollup_differences(store) == ""


def test_rounding_is_no_difference(store: Store, url: str) -> None:
    # The sum depends on the order of addition: 2.7e-17 or 5.5e-17.
    for n, x in enumerate((0.3, -0.1, -0.2)):
        store.add([make_measurement(job=str(n), eff_job=x)])
    assert find_rollup_differences(store) == ""
    with write_transaction(store._engine) as connection:
        connection.execute(sa.text("UPDATE rollup_day SET s_eff_job = 0.000001"))
    assert find_rollup_differences(store) != ""


def test_bad_replica_measurements_are_removed(store: Store) -> None:
    common: dict[str, Any] = {"dataset_hash": "d", "site": "SITE_A", "door": "root"}
    store.add(
        make_measurement(job=str(n), started_us=n, eff_job=0.5, **common) for n in (10, 20, 30)
    )
    found = ReplicaRow("f1", 15, "data", "d", "SITE_A", "root", "f", "root://x", True, "")
    bad = ReplicaRow("f2", 25, "data", "d", "SITE_A", "root", "f", "root://x", False, "adler32")
    store.add_replicas([found, bad])
    assert store.mark_bad_replicas() == 2
    assert {row["outcome"]: row["measurements"] for row in read_rollups(store)} == {
        "good": 1,
        "implausible": 2,
    }
    assert find_rollup_differences(store) == ""


def test_differences_are_reported_and_repaired(store: Store, url: str) -> None:
    store.add(random_measurements(1, 100))
    assert check_database(url)["measurement"] == 100
    for change in (
        "UPDATE rollup_day SET measurements = measurements + 1 WHERE day = 20260101",
        "UPDATE rollup_day SET s_eff_job = 2 * s_eff_job + 1 WHERE day = 20260104",
        "DELETE FROM rollup_day WHERE day = 20260101",
        "UPDATE rollup_day SET day = 20270101 WHERE day = 20260101",
        "UPDATE rollup_day SET read_latency_hist = '[7]' WHERE day = 20260101",
        "UPDATE rollup_day SET read_latency_hist = '[7' WHERE day = 20260101",
        "UPDATE rollup_day SET last_us = last_us + 1 WHERE outcome = 'good'",
        "UPDATE rollup_day SET storage_id = NULL WHERE outcome = 'good'",
    ):
        with write_transaction(store._engine) as connection:
            assert connection.execute(sa.text(change)).rowcount
        with pytest.raises(StoreError, match=r"day 202.*(.|\n)*treehammer db rebuild"):
            check_database(url)
        store.rebuild_rollups()
        assert check_database(url)["measurement"] == 100
