"""Exports, results for Python programs and copies from SQLite, and the child process that reads in bulk."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow as pa
import pytest
from click.testing import CliRunner
from measurement_factory import make_campaign_row, make_measurement
from repository_code import find_command
from store_helpers import (
    WriteExport,
    check_corruption_is_refused,
    install_corrupting_trigger,
    read_in_process,
)

import treehammer
from treehammer import config
from treehammer.collectors.record.outcome import ExecutionError, Failure
from treehammer.collectors.software import providers
from treehammer.errors import ConfigError, ExitCode, NothingToDoError, SoftwareError, StoreError
from treehammer.sql.engine import database_setup
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_columns, arrow_stream
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress


@pytest.mark.usefixtures("in_process_reader")
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


def test_damaged_database_leaves_no_file(
    store: Store, write: WriteExport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_columns, "BATCH_ROWS", 10)
    store.add(make_measurement(job=f"{n:03}", log_excerpt="x" * 4000) for n in range(200))
    store.close()
    file = Path(str(store.url.database))
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        stream.write(b"\xff" * 200_000)
    with pytest.raises(StoreError, match="is damaged") as caught:
        write(tmp_path / "results.parquet")
    assert str(file) in str(caught.value)
    assert not list(tmp_path.glob("*.parquet*"))


def test_missing_root_names_other_formats(
    export_rows: Store, write: WriteExport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object) -> None:
        raise ExecutionError(
            Failure("software-setup", "broken", "setup", "pip could not install ROOT")
        )

    monkeypatch.setattr(providers, "prepare_software", no_network)
    with pytest.raises(SoftwareError, match=r"pip could not.*\n.*\.parquet"):
        write(tmp_path / "results.root")
    assert list(tmp_path.glob("*.root*")) == []


# Commands


def verb(settings: config.Settings, name: str, *arguments: str) -> Any:
    return CliRunner().invoke(find_command(name), arguments, obj=settings)


def test_export_and_db_commands(settings: config.Settings, store: Store, tmp_path: Path) -> None:
    store.add_campaign(make_campaign_row(), [])
    store.add([make_measurement(), make_measurement("other", campaign_id="other")])
    target = tmp_path / "results.csv"
    result = verb(settings, "export", str(target), "--campaign", "last", "--where", "site=local")
    assert result.exception is None
    assert f"1 measurement in {target}" in result.output
    assert len(pd.read_csv(io.StringIO(target.read_text()))) == 1

    counts = json.loads(verb(settings, "db", "check", "--json").stdout)
    assert {"table": "measurement", "rows": 2} in counts
    assert f"at revision {database_setup.REVISION}" in verb(settings, "db", "upgrade").output
    assert "recomputed" in verb(settings, "db", "rebuild").output


def test_prune_command(settings: config.Settings, store: Store) -> None:
    store.add([make_measurement(day=20200101, log_excerpt="said")])
    told = {"category": "logs", "measurements": 1, "bytes": 4}
    for arguments, last in ((["--dry-run"], "dry run: nothing was changed"), ([], "deleted")):
        result = verb(settings, "db", "prune", "--logs-after", "90", "--json", *arguments)
        (row,) = json.loads(result.stdout)
        assert row | told == row
        assert last in result.stderr
    result = verb(settings, "db", "prune", "--logs-after", "90", "--passes-after", "1", "--json")
    assert [row["measurements"] for row in json.loads(result.stdout)] == [0, 0]


def test_commands_raise_typed_errors(settings: config.Settings, tmp_path: Path) -> None:
    assert isinstance(verb(settings, "export", "results.csv").exception, NothingToDoError)
    assert isinstance(verb(settings, "db", "check").exception, NothingToDoError)
    Store.open(settings.database).close()
    assert isinstance(verb(settings, "db", "prune").exception, ConfigError)
    wrong = verb(settings, "export", "results.csv", "--where", "hots=x").exception
    assert isinstance(wrong, ConfigError)
    unknown = verb(settings, "export", "results.csv", "--campaign", "zz").exception
    assert isinstance(unknown, NothingToDoError)


@pytest.mark.usefixtures("in_process_reader")
@pytest.mark.parametrize("options", [(), ("--partition", "campaign", "--format", "csv")])
def test_cell_limit_shortens_texts_of_csv(tmp_path: Path, options: tuple[str, ...]) -> None:
    settings = config.load_settings({"data_dir": tmp_path / "data"}, environ={}, folder=tmp_path)
    with Store.open(settings.database) as store:
        store.add([make_measurement("a", log_excerpt="é" * 20), make_measurement("b")])
    name = "parts" if options else "results.csv"
    arguments = [str(tmp_path / name), "--cell-limit", "10", *options]
    result = CliRunner().invoke(find_command("export"), arguments, obj=settings)
    assert result.exit_code == 0, result.output
    (file,) = tmp_path.rglob("*.csv")
    rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    assert sorted(rows["log_excerpt"])[-1] == "é" * 9 + "…"
    whole = [str(tmp_path / "results.parquet"), "--cell-limit", "10"]
    refused = CliRunner().invoke(find_command("export"), whole, obj=settings)
    assert refused.exit_code == 2
    assert "--cell-limit is for CSV" in refused.output


@pytest.mark.usefixtures("in_process_reader")
def test_database_location_comes_from_settings(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add([make_measurement()])
    assert treehammer.results(columns="site", data_dir=tmp_path).num_rows == 1
    monkeypatch.setenv("TREEHAMMER_DATA_DIR", str(tmp_path))
    assert treehammer.results(columns="site").num_rows == 1


def test_importing_treehammer_does_not_load_arrow() -> None:
    code = "import sys, treehammer; assert not {'pyarrow', 'sqlalchemy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert treehammer.results.__doc__
    with pytest.raises(AttributeError, match="no attribute 'result'"):
        treehammer.result  # noqa: B018


PATIENCE_S = 20


@pytest.fixture
def filled(store: Store) -> Store:
    store.add(make_measurement(job=f"{n:04}") for n in range(2000))
    return store


def test_paused_reader_loses_no_bytes(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Writes below a page are atomic on a pipe, so every column is larger.
    monkeypatch.setattr(arrow_columns, "BATCH_ROWS", 1000)
    # Container images often set this; a write interrupted by a pause is then never completed.
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    with read_in_process(), arrow_stream.open_stream(filled.url, Selection(), {}) as source:
        whole = pa.Table.from_batches(source.batches, source.schema)
    others = set(psutil.Process().children())  # services that other tests have started
    with arrow_stream.open_stream(filled.url, Selection(), {}) as source:
        (child,) = set(psutil.Process().children()) - others
        paused = pa.Table.from_batches(_pausing(child, source.batches), source.schema)
    paused.validate(full=True)
    assert paused.equals(whole)


def test_unbuffered_stdout_gets_a_buffer() -> None:
    code = (
        "import io; from treehammer.program_output import open_binary_stdout as open_stdout\n"
        "with open_stdout() as stream: assert isinstance(stream, io.BufferedWriter)"
    )
    subprocess.run([sys.executable, "-u", "-c", code], check=True)


def test_endless_child_output_is_aborted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker = tmp_path / "talker"
    talker.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    talker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(talker))
    with pytest.raises(StoreError), arrow_stream.open_stream(store.url, Selection(), {}):
        pass


def _pausing(child: psutil.Process, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while True:
        # The child fills the pipe, which has no reader, and blocks in a write.
        _wait_for(child, psutil.STATUS_SLEEPING, psutil.STATUS_ZOMBIE)
        if child.status() != psutil.STATUS_ZOMBIE:
            child.suspend()
            _wait_for(child, psutil.STATUS_STOPPED)
            child.resume()
        try:
            yield next(batches)
        except StopIteration:
            return


def _wait_for(child: psutil.Process, *statuses: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while child.status() not in statuses:
        assert time.monotonic() < end, f"is still {child.status()}"
        time.sleep(0.01)


@pytest.mark.parametrize("spelled", ["{0}/./source.db", "{0}/link.db", "{0}/../{1}/source.db"])
def test_copy_onto_alias_of_source_is_refused(source: str, spelled: str) -> None:
    folder = Path(source.removeprefix("sqlite:///")).parent
    if not (link := folder / "link.db").exists():
        link.symlink_to(folder / "source.db")
    with pytest.raises(ConfigError, match="the same database"):
        copy_database(source, "sqlite:///" + spelled.format(folder, folder.name), bars=no_progress)


@pytest.mark.parametrize("memory", ["sqlite://", "sqlite:///:memory:"])
def test_copy_into_memory_is_refused(source: str, memory: str) -> None:
    with pytest.raises(ConfigError, match="in memory is gone"):
        copy_database(source, memory, bars=no_progress)


def test_broken_reference_is_reported_once(source: str, url: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    shutil.copyfile(source.removeprefix("sqlite:///"), broken)
    with closing(sqlite3.connect(broken)) as connection, connection:
        connection.execute("DELETE FROM subject")
    said = subprocess.run(
        [sys.executable, "-m", "treehammer", "db", "copy", f"sqlite:///{broken}", url],
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert said.returncode == ExitCode.INFRASTRUCTURE
    assert "FOREIGN KEY" in said.stderr
    assert "Traceback" not in said.stderr
    assert "Error closing" not in said.stderr


def test_corrupted_copy_is_refused(source: str, url: str) -> None:
    install_corrupting_trigger(
        url,
        [
            "CREATE TRIGGER spoil AFTER INSERT ON job WHEN new.id = 'b' "
            "BEGIN UPDATE job SET label = 'x' WHERE id = 'b'; END"
        ],
    )
    check_corruption_is_refused(source, url)
