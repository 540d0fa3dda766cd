"""Exports, imports and copies on SQLite, results for Python programs, and conversion of columns."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from measurement_factory import make_campaign_row, make_measurement
from repository_code import invoke_command
from store_helpers import ExportedStore, WriteExport, awkward_measurements

import treehammer
from treehammer import config
from treehammer.collectors.record.outcome import ExecutionError, Failure
from treehammer.collectors.software import providers
from treehammer.errors import (
    ConfigError,
    MeasurementFileError,
    NothingToDoError,
    SoftwareError,
    StoreError,
)
from treehammer.sql.engine import database_setup
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.sql.transfer.measurement_files import ColumnTypeError, list_values
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress


def test_refusals(export_rows: Store, write: WriteExport, tmp_path: Path) -> None:
    for name in ("results.xls", "results", "no/such/folder.csv"):
        with pytest.raises(ConfigError, match=name):
            write(tmp_path / name)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        write(tmp_path / "folder.csv")
    with pytest.raises(NothingToDoError, match="job_id=nobody"):
        write(tmp_path / "results.csv", Selection.parse(wheres=["job_id=nobody"]))
    assert not list(tmp_path.glob("*.xls")) + list(tmp_path.glob("results.csv"))


def test_missing_root_names_other_formats(
    export_rows: Store, write: WriteExport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = Failure("software-setup", "broken", "setup", "pip could not install ROOT")
    monkeypatch.setattr(providers, "prepare_software", Mock(side_effect=ExecutionError(failure)))
    with pytest.raises(SoftwareError, match=r"pip could not.*\n.*\.parquet"):
        write(tmp_path / "results.root")
    assert list(tmp_path.glob("*.root*")) == []


# Commands


def test_export_and_db_commands(settings: config.Settings, store: Store, tmp_path: Path) -> None:
    import pandas as pd

    store.add_campaign(make_campaign_row(), [])
    store.add([make_measurement(), make_measurement("other", campaign_id="other")])
    target = tmp_path / "results.csv"
    result = invoke_command(
        "export", settings, str(target), "--campaign", "last", "--where", "site=local"
    )
    assert result.exception is None
    assert f"1 measurement in {target}" in result.output
    assert len(pd.read_csv(io.StringIO(target.read_text()))) == 1

    counts = json.loads(invoke_command("db", settings, "check", "--json").stdout)
    assert {"table": "measurement", "rows": 2} in counts
    assert (
        f"at revision {database_setup.REVISION}" in invoke_command("db", settings, "upgrade").output
    )
    assert "recomputed" in invoke_command("db", settings, "rebuild").output


def test_prune_command(settings: config.Settings, store: Store) -> None:
    store.add([make_measurement(day=20200101, log_excerpt="said")])
    sizes = {"category": "logs", "measurements": 1, "bytes": 4}
    for arguments, last in ((["--dry-run"], "dry run: nothing was changed"), ([], "deleted")):
        result = invoke_command("db", settings, "prune", "--logs-after", "90", "--json", *arguments)
        (row,) = json.loads(result.stdout)
        assert row | sizes == row
        assert last in result.stderr
    result = invoke_command(
        "db", settings, "prune", "--logs-after", "90", "--passes-after", "1", "--json"
    )
    assert [row["measurements"] for row in json.loads(result.stdout)] == [0, 0]


def test_commands_raise_typed_errors(settings: config.Settings) -> None:
    assert isinstance(invoke_command("export", settings, "results.csv").exception, NothingToDoError)
    for command in ("check", "upgrade"):
        missing = invoke_command("db", settings, command).exception
        assert isinstance(missing, NothingToDoError)
        assert not Path(missing.where).exists()
    Store.open(settings.database).close()
    assert isinstance(invoke_command("db", settings, "prune").exception, ConfigError)
    wrong = invoke_command("export", settings, "results.csv", "--where", "hots=x").exception
    assert isinstance(wrong, ConfigError)
    unknown = invoke_command("export", settings, "results.csv", "--campaign", "zz").exception
    assert isinstance(unknown, NothingToDoError)
    with closing(sqlite3.connect(settings.database.removeprefix("sqlite:///"))) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0.2.0'")
        connection.commit()
    older = invoke_command("db", settings, "copy", settings.database, f"{settings.database}.2")
    assert isinstance(older.exception, StoreError)
    assert f"treehammer --database {settings.database} db upgrade" in older.exception.hint


def test_cell_limit_shortens_texts_of_csv(
    settings: config.Settings, store: Store, tmp_path: Path
) -> None:
    import pandas as pd

    store.add([make_measurement("a", log_excerpt="é" * 20), make_measurement("b")])
    file = tmp_path / "results.csv"
    result = invoke_command("export", settings, str(file), "--cell-limit", "10")
    assert result.exit_code == 0, result.output
    rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    assert sorted(rows["log_excerpt"])[-1] == "é" * 9 + "…"
    whole = [str(tmp_path / "results.parquet"), "--cell-limit", "10"]
    refused = invoke_command("export", settings, *whole)
    assert refused.exit_code == 2
    assert "--cell-limit is for CSV" in refused.output


def test_database_location_comes_from_settings(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add([make_measurement()])
    assert treehammer.results(columns="site", data_dir=tmp_path).num_rows == 1
    monkeypatch.setenv("TREEHAMMER_DATA_DIR", str(tmp_path))
    assert treehammer.results(columns="site").num_rows == 1


def test_importing_treehammer_loads_no_slow_module() -> None:
    # Ctrl-C has a traceback until the command line has begun.
    slow = "{'pyarrow', 'sqlalchemy', 'threading', 'typing'}"
    code = f"import sys; slow = {slow} - {{*sys.modules}}; import treehammer.__main__; assert not slow & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert treehammer.results.__doc__
    with pytest.raises(AttributeError, match="no attribute 'result'"):
        treehammer.result  # noqa: B018


@pytest.mark.parametrize("spelled", ["{0}/source.db", "{0}/link.db", "{0}/../{1}/source.db"])
def test_copy_onto_alias_of_source_is_refused(source: str, spelled: str) -> None:
    folder = Path(source.removeprefix("sqlite:///")).parent
    if not (link := folder / "link.db").exists():
        link.symlink_to(folder / "source.db")
    for memory in ("sqlite://", "sqlite:///:memory:"):
        with pytest.raises(ConfigError, match="in memory is gone"):
            copy_database(source, memory, bars=no_progress)
    with pytest.raises(ConfigError, match="the same database"):
        copy_database(source, "sqlite:///" + spelled.format(folder, folder.name), bars=no_progress)


def test_broken_reference_is_reported_once(source: str, url: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    shutil.copyfile(source.removeprefix("sqlite:///"), broken)
    with closing(sqlite3.connect(broken)) as connection, connection:
        connection.execute("DELETE FROM subject")
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        copy_database(f"sqlite:///{broken}", url, bars=no_progress)


def import_verb(folder: Path, *arguments: str | Path) -> Any:
    return invoke_command("import", folder, *map(str, arguments))


def test_import_command(exported_store: ExportedStore, tmp_path: Path) -> None:
    file = exported_store.file
    rows = len([*awkward_measurements()])
    folder = tmp_path / "here"
    folder.mkdir()
    (tried,) = json.loads(import_verb(folder, file, "--dry-run", "--json").stdout)
    assert tried == {
        "file": str(file), "new": rows, "duplicates": 0, "conflicts": 0, "invalid": 0, "campaigns": 2
    }  # fmt: skip
    assert not [*folder.iterdir()], "a dry run makes no database"
    assert json.loads(import_verb(folder, file, "--json").stdout) == [tried]
    (tmp_path / "no.parquet").write_text("")
    empty = tmp_path / "empty"
    empty.mkdir()
    missing = import_verb(empty, tmp_path / "no.parquet", tmp_path / "none.parquet").exception
    assert isinstance(missing, MeasurementFileError)
    assert not [*empty.iterdir()], "nothing to take in makes no database"
    wrong = import_verb(folder, tmp_path / "no.parquet", file).exception
    assert isinstance(wrong, MeasurementFileError)
    assert "no.parquet" in str(wrong)


# Values of foreign columns


@pytest.mark.parametrize(
    "values, type_, kind, expected",
    [
        ([1.0, 2.5, None, float("nan")], None, "int", [1, 2.5, None, None]),
        ([2.0**53], None, "int", [2.0**53]),
        ([2**63], pa.uint64(), "int", [2**63]),
        ([1, None], pa.int8(), "float", [1, None]),
        ([0.5, float("inf")], pa.float32(), "float", [0.5, float("inf")]),
        ([0, 1, 2, None], None, "bool", [False, True, 2, None]),
        ([[1.0, 0.5], [], None], None, "ints", [[1, 0.5], [], None]),
        ([[], None], None, "floats", [[], None]),
        (["a", None], pa.large_string(), "text", ["a", None]),
        (["a", None, "a"], pa.dictionary(pa.int32(), pa.string()), "text", ["a", None, "a"]),
        ([None, None], None, "float", [None, None]),
    ],
    ids=str,
)
def test_values_of_foreign_columns(
    values: list[Any], type_: pa.DataType | None, kind: str, expected: list[Any]
) -> None:
    listed = list_values(pa.array(values, type_), kind)  # loads pandas
    assert listed == expected
    assert list(map(type, listed)) == list(map(type, expected))


@pytest.mark.parametrize("kind", ["int", "float", "bool", "ints", "floats"])
def test_columns_of_texts_hold_no_numbers(kind: str) -> None:
    with pytest.raises(ColumnTypeError, match="string"):
        list_values(pa.array(["1"]), kind)


def test_unknown_texts_are_replaced() -> None:
    assert list_values(pa.array(["a", None]), "text", "") == ["a", ""]
    assert list_values(pa.nulls(1), "text", "") == [""]
