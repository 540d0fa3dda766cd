"""Operations of load tests in exports and imports, from and into every database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from measurement_factory import make_measurement, make_operation
from pyarrow import parquet
from store_helpers import (
    EVERYTHING,
    find_rollup_differences,
    import_counts,
    import_file,
    load_measurements,
    read_contents,
    write_export,
)

from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import companion_tables, file_readers
from treehammer.sql.write.store import Store


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path}/other.db")


@pytest.mark.parametrize("name", ["results.parquet", "parts"])
def test_imported_operations_equal_exported_ones(
    store: Store, other: Store, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companion_tables, "NESTED_ROWS", 2)
    monkeypatch.setattr(file_readers, "READ_ROWS", 40)
    with other:
        other.add(load_measurements())
        other.add([make_measurement("one more", campaign_id="second")])
        target = write_export(other, tmp_path / name)
        assert import_counts(import_file(store, target, dry_run=True))[0][0] >= 4
        new = [found.new for found in import_file(store, target)]
        assert sum(new) == 5
        assert read_contents(store) == read_contents(other)
    assert find_rollup_differences(store) == ""
    again = import_counts(import_file(store, target))
    assert [counts[1] for counts in again] == new
    assert not any(counts[2] for counts in again)


def test_other_operations_in_a_file_are_a_conflict(
    store: Store, other: Store, tmp_path: Path
) -> None:
    store.add([make_measurement(operations=[make_operation()])])
    with other:
        other.add([make_measurement(operations=[make_operation([0.5])])])
        target = write_export(other, tmp_path / "theirs.parquet")
    for dry_run in (True, False):
        assert import_counts(import_file(store, target, dry_run=dry_run)) == [(0, 0, 1, 0)]


def test_invalid_operations_in_a_file_are_reported(store: Store, tmp_path: Path) -> None:
    store.add([make_measurement(job, operations=[make_operation()]) for job in "ab"])
    file = write_export(store, tmp_path / "changed.parquet")
    table = parquet.read_table(file)
    lists = table.column("operations").to_pylist()
    lists[1][0]["done"] += 1
    place = table.schema.get_field_index("operations")
    column = pa.array(lists, table.schema.field(place).type)
    parquet.write_table(table.set_column(place, table.schema.field(place), column), file)
    [found] = import_file(store, file)
    assert import_counts([found]) == [(0, 1, 0, 1)]
    assert "operations[0]" in found.problems[0]


def test_csv_has_a_second_file_of_operations(store: Store, tmp_path: Path) -> None:
    file, beside = tmp_path / "all.csv", tmp_path / "all.operations.csv"
    step = make_operation([0.001] * 99 + [2.0], {"reset": 1}, server="a, b", step=3)
    item = make_measurement(operations=[step, make_operation([], {"timeout": 1})])
    store.add([item, make_measurement("plain")])
    write_export(store, file)
    assert list(pd.read_csv(file, nrows=0)) == [metric.name for metric in CATALOGUE]
    table = pd.read_csv(beside)
    derived = ["p50_s", "p95_s", "p99_s", "max_s"]
    names = [metric.name for metric in OPERATION_METRICS]
    assert [*table] == ["measurement_id", "line", *names, *derived]
    first = table.iloc[0]
    assert (first.measurement_id, first.server, first.step) == (item.id, "a, b", 3)
    assert json.loads(first.failures) == {"reset": 1}
    assert [*first[derived]] == pytest.approx([0.001, 0.001, 0.001, 2.0], rel=0.01)
    assert table.iloc[1][derived].isna().all()
    write_export(store, file, Selection.parse([], ["job_id=plain"]))
    assert not beside.exists()
    assert [path.name for path in tmp_path.glob("*.csv")] == ["all.csv"]


@pytest.mark.backends("sqlite")
def test_exports_without_operations_have_no_column_of_them(store: Store, tmp_path: Path) -> None:
    store.add([make_measurement()])
    assert (
        "operations" not in parquet.read_schema(write_export(store, tmp_path / "a.parquet")).names
    )
    with store.snapshot() as snapshot:
        assert not snapshot.has_operations(EVERYTHING)


@pytest.mark.backends("sqlite")
def test_partitions_nest_the_operations_of_their_campaign(store: Store, tmp_path: Path) -> None:
    def add(job: str, campaign: str, *steps: dict[str, Any]) -> None:
        store.add([make_measurement(job, campaign_id=campaign, operations=steps)])

    add("a", "first", make_operation(), make_operation(step=1))
    add("b", "second")
    folder = write_export(store, tmp_path / "parts")
    counts = {
        path.parent.name: [
            0 if ops is None else len(ops) for ops in pd.read_parquet(path)["operations"]
        ]
        for path in folder.glob("*/*.parquet")
    }
    assert counts == {"campaign_id=first": [2], "campaign_id=second": [0]}
