"""Promises of exports from every database."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from measurement_factory import make_measurement
from pyarrow import parquet
from store_fixtures import WriteExport

from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.errors import StoreError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store


def expected_rows(store: Store) -> list[dict[str, Any]]:
    rows = list(store.measurements(Selection()))
    extras = {(e.measurement_id, e.name): e.value for e in store.extras(Selection())}
    for row in rows:
        for name in ("e", "hits"):
            row[f"extra_{name}"] = extras.get((str(row["measurement_id"]), name))
    return rows


def test_parquet_equals_database(export_rows: Store, write: WriteExport, tmp_path: Path) -> None:
    assert write(tmp_path / "results.parquet") == 8
    table = parquet.read_table(tmp_path / "results.parquet", use_threads=False)
    assert table.to_pylist() == expected_rows(export_rows)
    assert table.schema.metadata[b"selection"] == b"all measurements"
    frame = pd.read_parquet(tmp_path / "results.parquet")
    assert list(frame["retries"].isna()) == [
        row["retries"] is None for row in expected_rows(export_rows)
    ]


def test_csv_equals_database(export_rows: Store, write: WriteExport, tmp_path: Path) -> None:
    write(tmp_path / "results.CSV")
    frame = pd.read_csv(tmp_path / "results.CSV", dtype=str, keep_default_na=False, na_values=[""])
    convert: dict[str, Callable[[str], Any]] = {
        "int": int,
        "float": float,
        "text": str,
        "bool": {"true": True, "false": False}.__getitem__,
        "ints": json.loads,
        "floats": json.loads,
    }
    rows = [
        {
            name: None
            if pd.isna(value)
            else convert[METRICS_BY_NAME[name].type if name in METRICS_BY_NAME else "float"](value)
            for name, value in row.items()
        }
        for row in frame.to_dict("records")
    ]
    assert rows == expected_rows(export_rows)


@pytest.mark.usefixtures("in_process_reader")
def test_empty_column_keeps_type(store: Store, write: WriteExport, tmp_path: Path) -> None:
    store.add([make_measurement()])
    write(tmp_path / "results.parquet")
    schema = parquet.read_schema(tmp_path / "results.parquet")
    assert str(schema.field("retries").type) == "int64"
    assert str(schema.field("eff_loop").type) == "double"
    assert str(schema.field("host").type) == "string"
    assert schema.names == [metric.name for metric in CATALOGUE]


def test_export_respects_selection(export_rows: Store, write: WriteExport, tmp_path: Path) -> None:
    selection = Selection.parse(["campaign"], ["host="])
    assert write(tmp_path / "results.parquet", selection) == 2
    table = parquet.read_table(tmp_path / "results.parquet", use_threads=False)
    assert set(table["job_id"].to_pylist()) == {"a", "c"}
    assert table.schema.metadata[b"selection"] == str(selection).encode()
    assert table["extra_hits"].to_pylist() == [2.5, None]


@pytest.mark.usefixtures("in_process_reader")
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_failed_export_keeps_previous_file(
    export_rows: Store, write: WriteExport, tmp_path: Path, suffix: str
) -> None:
    target = tmp_path / f"results{suffix}"
    write(target)
    before = target.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="No space left"):
        write(target, step=fail)
    assert target.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_export_and_writer_do_not_block(
    export_rows: Store, write: WriteExport, tmp_path: Path
) -> None:
    def add(done: int, _note: str = "") -> None:
        export_rows.add(
            [make_measurement(job=f"while {done} rows were written", extras={"new": 1.0})]
        )

    assert write(tmp_path / "results.parquet", step=add) == 8, "one state of the database"
    assert len(list(export_rows.measurements(Selection(), ["job_id"]))) > 8
