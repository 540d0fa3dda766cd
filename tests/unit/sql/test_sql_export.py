"""Exports from SQLite to files without ROOT, and refused exports."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli_verbs import find_command
from click.testing import CliRunner
from measurement_factory import make_campaign_row, make_measurement
from store_fixtures import WriteExport

from treehammer import config
from treehammer.collectors.record.outcome import ExecutionError, Failure
from treehammer.collectors.software import providers
from treehammer.errors import ConfigError, NothingToDoError, SoftwareError, StoreError
from treehammer.sql.engine import database_setup
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_columns
from treehammer.sql.write.store import Store


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
