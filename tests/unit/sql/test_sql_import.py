"""Imports into SQLite, the import command, and trees written by uproot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from cli_verbs import find_command
from click.testing import CliRunner
from measurement_factory import full_measurement, make_measurement
from store_fixtures import ExportedStore
from store_helpers import (
    awkward_measurements,
    import_counts,
    import_file,
    read_contents,
    write_export,
)

from treehammer import config
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError, MeasurementFileError, NothingToDoError
from treehammer.sql.read.query_model import Selection
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
