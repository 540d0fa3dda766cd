"""Exports, copies and results for Python programs, from and into every database."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from measurement_factory import (
    full_measurement,
    make_campaign_row,
    make_measurement,
    make_operation,
)
from pyarrow import parquet
from repository_code import find_command
from store_helpers import (
    WriteExport,
    find_rollup_differences,
    import_counts,
    import_file,
    load_measurements,
    read_all_tables,
    read_contents,
    write_export,
)

import treehammer
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_stream, database_copy, measurement_files
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress


def expected_rows(store: Store) -> list[dict[str, Any]]:
    rows = list(store.measurements(Selection()))
    extras = {(e.measurement_id, e.name): e.value for e in store.extras(Selection())}
    for row in rows:
        for name in ("e", "hits"):
            row[f"extra_{name}"] = extras.get((str(row["measurement_id"]), name))
    return rows


def test_parquet_equals_database(export_rows: Store, write: WriteExport, tmp_path: Path) -> None:
    import pandas as pd

    assert write(tmp_path / "results.parquet") == 8
    table = parquet.read_table(tmp_path / "results.parquet", use_threads=False)
    assert table.to_pylist() == expected_rows(export_rows)
    assert table.schema.metadata[b"selection"] == b"all measurements"
    frame = pd.read_parquet(tmp_path / "results.parquet")
    assert list(frame["retries"].isna()) == [
        row["retries"] is None for row in expected_rows(export_rows)
    ]


@pytest.mark.backends("sqlite")
def test_csv_equals_database(export_rows: Store, write: WriteExport, tmp_path: Path) -> None:
    import pandas as pd

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


def test_empty_column_keeps_type(store: Store, write: WriteExport, tmp_path: Path) -> None:
    store.add([make_measurement()])
    write(tmp_path / "results.parquet")
    schema = parquet.read_schema(tmp_path / "results.parquet")
    assert str(schema.field("retries").type) == "int64"
    assert str(schema.field("eff_loop").type) == "double"
    assert str(schema.field("host").type) == "string"
    assert schema.names == [metric.name for metric in CATALOGUE]


@pytest.mark.backends("sqlite")
def test_export_respects_selection(export_rows: Store, write: WriteExport, tmp_path: Path) -> None:
    selection = Selection.parse(["campaign"], ["host="])
    assert write(tmp_path / "results.parquet", selection) == 2
    table = parquet.read_table(tmp_path / "results.parquet", use_threads=False)
    assert set(table["job_id"].to_pylist()) == {"a", "c"}
    assert table.schema.metadata[b"selection"] == str(selection).encode()
    assert table["extra_hits"].to_pylist() == [2.5, None]


@pytest.mark.backends("sqlite")
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


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_copy, "CHUNK", 50)


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path}/other.db")


def test_imported_operations_equal_exported_ones(
    store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_stream, "NESTED_ROWS", 2)
    monkeypatch.setattr(measurement_files, "NESTED_READ_ROWS", 2)
    with other:
        other.add(load_measurements())
        other.add([make_measurement("one more", campaign_id="second")])
        target = write_export(other, tmp_path / "results.parquet")
        assert import_counts(import_file(store, target, dry_run=True))[0][0] >= 4
        new = [result.new for result in import_file(store, target)]
        assert sum(new) == 5
        assert read_contents(store) == read_contents(other)
    assert find_rollup_differences(store) == []
    repeated = import_counts(import_file(store, target))
    assert [counts[1] for counts in repeated] == new
    assert not any(counts[2] for counts in repeated)


def test_other_operations_in_a_file_are_a_conflict(
    store: Store, other: Store, tmp_path: Path
) -> None:
    store.add([make_measurement(operations=[make_operation()])])
    with other:
        other.add([make_measurement(operations=[make_operation([0.5])])])
        target = write_export(other, tmp_path / "theirs.parquet")
    for dry_run in (True, False):
        assert import_counts(import_file(store, target, dry_run=dry_run)) == [(0, 0, 1, 0)]


@pytest.mark.backends("sqlite")
def test_invalid_operations_in_a_file_are_reported(store: Store, tmp_path: Path) -> None:
    store.add([make_measurement(job, operations=[make_operation()]) for job in "ab"])
    file = write_export(store, tmp_path / "changed.parquet")
    table = parquet.read_table(file)
    lists = table.column("operations").to_pylist()
    lists[1][0]["done"] += 1
    place = table.schema.get_field_index("operations")
    column = pa.array(lists, table.schema.field(place).type)
    parquet.write_table(table.set_column(place, table.schema.field(place), column), file)
    [result] = import_file(store, file)
    assert import_counts([result]) == [(0, 1, 0, 1)]
    assert "operations[0]" in result.problems[0]


@pytest.mark.backends("sqlite")
def test_csv_has_a_second_file_of_operations(store: Store, tmp_path: Path) -> None:
    import pandas as pd

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


def test_copy_equals_source_and_is_usable(source: str, url: str, tmp_path: Path) -> None:
    counts, copied = copy_database(source, url, bars=no_progress)
    assert copied
    assert all(counts.values()), "no table is left out of this test"
    tables = read_all_tables(url)
    assert tables == read_all_tables(source)
    assert {name: len(rows) for name, rows in tables.items()} == counts
    assert copy_database(source, url, bars=no_progress) == (counts, False)
    back = f"sqlite:///{tmp_path}/back.db"
    copy_database(url, back, bars=no_progress)
    assert read_all_tables(back) == tables
    with Store.open(url) as store:
        assert store.add(full_measurement(n) for n in (119, 120)) == AddResult(1, 1)
    filled = read_all_tables(url)
    with pytest.raises(StoreError, match=r"other rows: table \w+, \w*id(.|\n)*Give an empty one"):
        copy_database(source, url, bars=no_progress)
    assert read_all_tables(url) == filled


CORRUPTING_TRIGGERS = {
    "sqlite": [
        "CREATE TRIGGER spoil AFTER INSERT ON job WHEN new.id = 'b' "
        "BEGIN UPDATE job SET label = 'x' WHERE id = 'b'; END"
    ],
    "postgresql": [
        "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN new.label := 1; RETURN new; END'",
        "CREATE TRIGGER spoil BEFORE INSERT ON job FOR EACH ROW WHEN (new.id = 'b') "
        "EXECUTE FUNCTION spoil()",
    ],
}


@pytest.mark.backends(*CORRUPTING_TRIGGERS)
def test_corrupted_copy_is_refused(source: str, url: str, backend: str) -> None:
    with Store.open(url) as store, store._engine.begin() as connection:
        for statement in CORRUPTING_TRIGGERS[backend]:
            connection.exec_driver_sql(statement)
    with pytest.raises(StoreError, match=r"the copy differs from the source: table job, id b"):
        copy_database(source, url, bars=no_progress)
    assert not any(read_all_tables(url).values())


def test_interrupted_copy_leaves_nothing(source: str, url: str) -> None:
    @contextmanager
    def interrupted(_what: str, _total: int) -> Iterator[Any]:
        def step(done: int, _note: str = "") -> None:
            if done > 120:
                raise KeyboardInterrupt

        yield step

    with pytest.raises(KeyboardInterrupt):
        copy_database(source, url, bars=interrupted)
    assert not any(read_all_tables(url).values())
    assert copy_database(source, url, bars=no_progress)[1]


def test_damaged_source_is_reported(source: str, url: str, tmp_path: Path) -> None:
    file = Path(shutil.copy(source.removeprefix("sqlite:///"), tmp_path / "damaged.db"))
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        stream.write(b"\xff" * 200_000)
    with pytest.raises(StoreError, match=r"damaged\.db: the database is damaged"):
        copy_database(f"sqlite:///{file}", url, bars=no_progress)
    assert not any(read_all_tables(url).values())
    with pytest.raises(NothingToDoError):
        copy_database(f"sqlite:///{tmp_path}/none.db", url, bars=no_progress)


def test_copy_command(source: str, url: str) -> None:
    for remark in ("copied and compared every row", "all rows were present"):
        result = CliRunner().invoke(find_command("db"), ["copy", source, url, "--json"])
        assert result.exception is None
        assert {"table": "extra", "rows": 7} in json.loads(result.stdout)
        assert remark in result.stderr


@pytest.fixture
def filled(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(arrow_stream, "BATCH_ROWS", 3)
    store.add_campaign(make_campaign_row("campaign", created_us=1), [])
    store.add_campaign(make_campaign_row("other", created_us=2), [])
    store.add(
        [
            *(full_measurement(n) for n in range(4)),
            make_measurement(job="a", extras={"hits": 2.5, "e": 1}),
            make_measurement(job="b", host="h", read_latency_hist=[1, 2]),
            make_measurement(job="c", campaign_id="other", extras={"e": 3.0}),
        ]
    )
    return store


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def test_table_equals_database(filled: Store, url: str) -> None:
    table = treehammer.results(database=url)
    names = [metric.name for metric in CATALOGUE]
    assert table.column_names == [*names, "extra_e", "extra_hits"]
    assert to_rows(table.select(names)) == list(filled.measurements(Selection()))
    assert b"unit" not in table.schema.metadata
    assert table.schema.field("eff_job").metadata[b"title"].endswith(b"[1]")


def test_selected_columns_in_order(filled: Store, url: str) -> None:
    whole = treehammer.results(database=url)
    for columns in (
        ["extra_hits"],
        ["extra_e", "host", "plausible", "read_latency_hist", "extra_hits", "pass_loop_wall_s"],
    ):
        table = treehammer.results(columns=iter(columns), database=url)
        assert table.column_names == columns
        assert to_rows(table) == to_rows(whole.select(columns))


def test_only_selected_columns_are_read(filled: Store) -> None:
    statements: list[str] = []
    sa.event.listen(
        filled._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )
    with filled.frozen() as reader:
        stream = arrow_stream.stream_measurements(reader, Selection(), {}, columns=["eff_job"])
        assert sum(batch.num_rows for batch in stream.batches) == 7
    assert any("eff_job" in statement for statement in statements)
    assert not any("inventory" in statement for statement in statements)


def test_campaigns_and_conditions(filled: Store, url: str) -> None:
    def jobs(campaign: str | list[str] | None, where: str | list[str] = "") -> list[str]:
        table = treehammer.results(campaign, where or (), ["job_id"], database=url)
        return [str(job) for job in table["job_id"].to_pylist()]

    assert jobs("last") == ["c"]
    assert jobs(["campaign", "name of other"]) == ["a", "b", "c"]
    assert jobs("campaign", "host=h") == ["b"]
    assert jobs(None, ["job_id~?", "host="]) == ["a", "c"]


def test_empty_selection_gives_empty_table(filled: Store, url: str) -> None:
    table = treehammer.results(where="host=nobody", columns=["host", "extra_e"], database=url)
    assert table.num_rows == 0
    assert table.schema.field("extra_e").type == pa.float64()


def test_batches_share_one_snapshot(filled: Store, url: str) -> None:
    with treehammer.result_batches(columns=["job_id"], database=url) as batches:
        first = batches.read_next_batch()
        assert 0 < first.num_rows <= 3
        filled.add([make_measurement(job="while it was read")])
        assert first.num_rows + batches.read_all().num_rows == 7
    assert len(list(filled.measurements(Selection(), ["job_id"]))) == 8


def test_abandoned_stream_releases_connection(filled: Store, url: str) -> None:
    treehammer.result_batches(database=url)
    with treehammer.result_batches(database=url) as batches:
        batches.read_next_batch()
    assert filled.add([make_measurement(job="afterwards")]).new == 1


INVALID_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"columns": "sites"}, r"unknown column 'sites'\n.*'site'"),
    ({"columns": ["extra_hit"]}, r"unknown column 'extra_hit'\n.*'extra_hits'"),
    ({"columns": []}, "no column was given"),
    ({"where": "hots=1"}, "host"),
    ({"campaign": "nobody"}, "name of other"),
    ({"campaign": "no\0body"}, "name of other"),
    ({"campaign": []}, "no campaign was given"),
    ({"campaign": [None]}, "campaign: a text is expected, not None"),
    ({"campaign": 3}, "campaign: a text is expected, or several, not 3"),
    ({"where": "site=a\0b"}, "NUL"),
    ({"where": "site~a\0*"}, "NUL"),
    ({"where": "site=\udcff"}, "UTF-8"),
    ({"where": "site~\udcff*"}, "UTF-8"),
    ({"campaign": "no\udcffbody"}, "name of other"),
    ({"columns": "extra_\udcff"}, "unknown column"),
    ({"where": [4]}, "where: a text is expected, not 4"),
    ({"columns": "si\0te"}, "unknown column"),
    ({"columns": "extra_\0"}, "unknown column"),
    ({"columns": [5]}, "columns: a text is expected, not 5"),
]


@pytest.mark.backends("sqlite")
def test_invalid_arguments_are_reported(filled: Store, url: str) -> None:
    for wrong, message in INVALID_ARGUMENTS:
        with pytest.raises(ConfigError, match=message):
            treehammer.results(**wrong, database=url)


@pytest.mark.backends("sqlite", "postgresql")
def test_reader_failure_is_reported(filled: Store, url: str) -> None:
    with filled._engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE extra RENAME COLUMN value TO other")
    with pytest.raises(StoreError, match=r"other|value") as caught:
        treehammer.results(database=url)
    assert "JOIN" not in str(caught.value)
