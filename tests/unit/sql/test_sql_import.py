"""Imports into SQLite: the command, trees written by uproot, and conversion of whole columns."""

from __future__ import annotations

import json
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pyarrow as pa
import pytest
import uproot
from click.testing import CliRunner
from measurement_factory import full_measurement, make_measurement
from repository_code import find_command
from store_helpers import (
    ExportedStore,
    awkward_measurements,
    import_counts,
    import_file,
    read_contents,
    write_export,
)

from treehammer import config
from treehammer.collectors.record.measurement_record import (
    Measurement,
    RecordError,
    describe_value_error,
)
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME, Metric
from treehammer.errors import ConfigError, MeasurementFileError, NothingToDoError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer.arrow_columns import (
    ARROW_TYPES,
    Problems,
    convert_column,
    find_valid_columns,
    list_rows,
    list_values,
)
from treehammer.sql.transfer.importer import read_ahead
from treehammer.sql.write.store import Store

# Trees by uproot


STAND_INS: dict[str, Any] = {"text": "", "float": np.nan, "int": -(2**63), "bool": 255}


def by_uproot(store: Store, file: Path) -> Path:
    """Write the measurements with uproot, as a user without ROOT would."""
    rows = [*store.measurements(Selection())]
    columns: dict[str, Any] = {}
    for name in rows[0]:
        kind = METRICS_BY_NAME[name].type
        values = [row[name] for row in rows]
        if kind in ("ints", "floats"):
            lists = ak.Array([value or [] for value in values])
            columns[name] = ak.values_astype(lists, "int64" if kind == "ints" else "float64")
            continue
        known = [STAND_INS[kind] if value is None else value for value in values]
        types = {"int": np.int64, "float": np.float64, "bool": np.uint8}
        columns[name] = ak.Array(known) if kind == "text" else np.array(known, types[kind])
    with uproot.recreate(file) as opened:
        opened.mktree(
            "results",
            {
                name: ak.type(c).content if isinstance(c, ak.Array) else c.dtype
                for name, c in columns.items()
            },
        )
        opened["results"].extend(columns)
    return file


def test_trees_by_uproot(store: Store, tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        others.add([make_measurement(), *(full_measurement(n) for n in range(5))])
        file = by_uproot(others, tmp_path / "uproot.root")
        found = import_file(store, file)
        assert import_counts(found) == [(6, 0, 0, 0)], found[0].problems
        assert read_contents(store) == read_contents(others)


def test_root_file_without_tree_is_reported(store: Store, tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "other.root") as opened:
        opened.mktree("events", {"x": np.float64})
    (found,) = import_file(store, tmp_path / "other.root")
    assert "has no tree 'results'" in found.problems[0]
    assert "events" in found.problems[0]


# Folders


def test_folder_is_replaced_only_by_complete_export(
    other_store: Store, exported_store: ExportedStore, tmp_path: Path
) -> None:
    folder = shutil.copytree(exported_store.folder, tmp_path / "parts")
    odd = "campaign_id=odd%20id%2F%C3%A9%3D%25"
    names = {"_manifest.json", "campaign_id=campaign", odd, "campaign_id=unmeasured"}
    assert names < {path.name for path in folder.iterdir()}
    write_export(other_store, folder, Selection(("campaign",)))
    only = {"_manifest.json", "campaign_id=campaign"}
    assert {path.name for path in folder.iterdir()} == only
    with pytest.raises(NothingToDoError):
        write_export(other_store, folder, Selection(("nobody",)))
    assert {path.name for path in folder.iterdir()} == only
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_foreign_folder_is_not_replaced(other_store: Store, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("all of it")
    with pytest.raises(ConfigError, match="something other than an export"):
        write_export(other_store, mine)
    with pytest.raises(ConfigError, match="folder does not exist"):
        write_export(other_store, tmp_path / "no" / "parts")
    assert (mine / "thesis.tex").read_text() == "all of it"


# Command


def verb(folder: Path, *arguments: str | Path) -> Any:
    settings = config.load_settings(
        {"data_dir": folder, "cache_dir": folder}, environ={}, folder=folder
    )
    return CliRunner().invoke(find_command("import"), [*map(str, arguments)], obj=settings)


def test_import_command(exported_store: ExportedStore, tmp_path: Path) -> None:
    file = exported_store.file
    rows = len([*awkward_measurements()])
    folder = tmp_path / "here"
    folder.mkdir()
    (tried,) = json.loads(verb(folder, file, "--dry-run", "--json").stdout)
    assert tried == {
        "file": str(file), "new": rows, "duplicates": 0, "conflicts": 0, "invalid": 0, "campaigns": 2
    }  # fmt: skip
    assert not [*folder.iterdir()], "a dry run makes no database"
    assert json.loads(verb(folder, file, "--json").stdout) == [tried]
    again = verb(folder, file)
    assert again.exception is None
    assert str(rows) in again.stdout
    assert verb(folder).exit_code == 2
    (tmp_path / "no.root").write_text("")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert isinstance(
        verb(empty, tmp_path / "no.root", tmp_path / "none.parquet").exception, MeasurementFileError
    )
    assert not [*empty.iterdir()], "nothing to take in makes no database"
    wrong = verb(folder, tmp_path / "no.root", file).exception
    assert isinstance(wrong, MeasurementFileError)
    assert wrong.exit_code == 2
    assert "no.root" in str(wrong)


TIMEOUT_S = 10


def test_items_keep_their_order() -> None:
    assert list(read_ahead([])) == []
    assert list(read_ahead(range(100))) == [*range(100)]


def test_one_item_is_prepared_meanwhile() -> None:
    begun = [threading.Event() for _ in range(3)]

    def iterate_items() -> Iterator[int]:
        for number, event in enumerate(begun):
            event.set()
            yield number

    with closing(read_ahead(iterate_items())) as items:
        assert next(items) == 0
        assert begun[1].wait(TIMEOUT_S)
    assert not begun[2].is_set()


def test_error_comes_after_the_items_before_it() -> None:
    def iterate_items() -> Iterator[int]:
        yield 1
        raise ValueError("damaged")

    items = read_ahead(iterate_items())
    assert next(items) == 1
    with pytest.raises(ValueError, match="damaged"):
        next(items)


def test_closing_waits_for_the_thread() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def iterate_items() -> Iterator[int]:
        yield 1
        may_end.wait(TIMEOUT_S)
        has_ended.set()
        yield 2

    with closing(read_ahead(iterate_items())) as items:
        assert next(items) == 1
        threading.Timer(0.05, may_end.set).start()
    assert has_ended.is_set()


#: Values of each kind that fit its type, valid for some metrics and invalid for others.
CANDIDATES: dict[str, list[Any]] = {
    "text": ["", "a", "a\0b", "x" * 100_000, "{}", "[]", "0" * 24],
    "int": [-(2**63), -1, 0, 1, 20_260_101, 2**63 - 1],
    "float": [-1.5, 0.0, 1e300, float("inf"), float("-inf"), float("nan")],
    "bool": [True, False],
    "ints": [[], [0, 1], [-1], [3, -(2**63)]],
    "floats": [[], [0.0, 1.0], [float("nan"), 1.0], [float("inf")], [-1.0, 2.0]],
}


def is_valid_column(metric: Metric, values: list[Any]) -> bool:
    column = pa.array(values, ARROW_TYPES[metric.type])
    return metric.name in find_valid_columns(pa.record_batch({metric.name: column}))


def test_column_is_valid_only_if_all_values_are() -> None:
    usual_values = full_measurement(1).values
    for metric in CATALOGUE:
        usual = usual_values[metric.name]
        assert is_valid_column(metric, [usual, usual]), metric.name
        for value in CANDIDATES[metric.type]:
            is_valid = not describe_value_error(metric, value)
            assert is_valid_column(metric, [usual, value, usual]) == is_valid, (metric.name, value)
            assert is_valid_column(metric, [value]) <= is_valid, (metric.name, value)


def test_unknown_values_count_as_empty_texts_where_required() -> None:
    usual_values = full_measurement(1).values
    for metric in CATALOGUE:
        is_empty_text = metric.type == "text" and not describe_value_error(metric, "")
        found = is_valid_column(metric, [usual_values[metric.name], None])
        assert found == (is_empty_text or not metric.required), metric.name


def test_checked_values_are_not_checked_again() -> None:
    values = {**full_measurement(1).values, "events": -1, "cpu_per_event_s": "fast"}
    with pytest.raises(RecordError, match="events"):
        Measurement(values)
    with pytest.raises(RecordError, match=r"^cpu_per_event_s must be a finite number$"):
        Measurement(values, unchecked=["cpu_per_event_s", "job_id"])
    del values["job_id"]
    with pytest.raises(RecordError, match=r"^job_id is missing$"):
        Measurement(values, unchecked=["host", "job_id"])


@pytest.mark.parametrize("kind", ARROW_TYPES)
def test_listed_values_equal_those_of_arrow(kind: str) -> None:
    some = [one for one in CANDIDATES[kind] if "nan" not in str(one)]
    for values in (some, [None, *some, None], [None, None], []):
        column = pa.array(values, ARROW_TYPES[kind])
        for part in (column, column.slice(1), column.slice(1, 2)):
            listed = list_values(part, None)
            assert listed == part.to_pylist()
            assert list(map(type, listed)) == list(map(type, part.to_pylist()))
    assert list_values(pa.array(["a", None, "a"]), "") == ["a", "", "a"]


TEXTS = ["a", None, "b", "a", "é"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array(["c", *TEXTS]).dictionary_encode().slice(1),
        pa.array(TEXTS, pa.large_string()).dictionary_encode(),
        pa.DictionaryArray.from_arrays(
            pa.array([1, None, 2, 1, 3], pa.int8()), pa.array([None, "a", "b", "é"])
        ),
        pa.DictionaryArray.from_arrays(
            pa.array([0, None, 1, 0, 2], pa.uint64()), pa.array(["a", "b", "é", *"cdefg"])
        ),
    ],
    ids=lambda column: str(column.type),
)
def test_texts_become_dictionary(column: pa.Array) -> None:
    problems: Problems = defaultdict(list)
    converted = convert_column(column, "host", "text", problems)
    assert converted.type == pa.dictionary(pa.int32(), pa.string())
    assert converted.to_pylist() == list_values(converted, None) == TEXTS
    assert not problems


def test_only_damaged_texts_are_refused() -> None:
    damaged = pa.array([b"a", b"\xff", None, b"b", b"\xff"]).view(pa.string())
    for column in (damaged, damaged.dictionary_encode()):
        problems: Problems = defaultdict(list)
        converted = convert_column(column, "host", "text", problems)
        assert list_values(converted, "") == ["a", "", "", "b", ""]
        assert problems == {1: ["host must be UTF-8"], 4: ["host must be UTF-8"]}


def test_places_outside_dictionary_are_refused() -> None:
    places = pa.array([0, 2, None, -1], pa.int32())
    column = pa.DictionaryArray.from_arrays(places, pa.array(["a", "b"]), safe=False)
    problems: Problems = defaultdict(list)
    converted = convert_column(column, "host", "text", problems)
    assert list_values(converted, None) == ["a", None, None, None]
    assert sorted(problems) == [1, 3]


def test_rows_share_values_of_equal_columns() -> None:
    values = full_measurement(1).values
    texts = {name: pa.array([values[name]] * 2).dictionary_encode() for name in ("host", "kind")}
    batch = pa.record_batch(
        {**texts, "eff_job": pa.array([0.5, None]), "door": pa.nulls(2), "ref": pa.nulls(2)}
    )
    same = {"host": values["host"], "kind": values["kind"], "door": "", "ref": None}
    assert list(list_rows(batch)) == [({**same, "eff_job": number}, {}) for number in (0.5, None)]
    assert list(list_rows(batch.select([*same]).slice(1))) == [(same, {})]
