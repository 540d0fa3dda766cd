"""Recordings of the XRootD client as datasets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from plan_factory import make_settings

from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.errors import DatasetError
from treehammer.submit.cli.datasets_commands import datasets

ROWS = """"1","Open","1700000000.0","root://host//data/x.root;16;0;0","1700000001.0","[SUCCESS]",""
"1","Read","1700000001.0","0;300;0","1700000002.5","[SUCCESS]","300"
"""
PROCESS = {"started_us": 1_699_999_996_000_000, "ended_us": 1_700_000_010_000_000}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "1-1.csv"
    path.write_text(ROWS)
    path.with_suffix(".json").write_text(json.dumps({**PROCESS, "door_url": "root://host//data"}))
    return path


def run_command(settings: Settings, *words: object) -> Result:
    return CliRunner().invoke(datasets, [*map(str, words)], obj=settings, standalone_mode=False)


def test_recording_becomes_a_dataset(settings: Settings, recording: Path) -> None:
    added = run_command(settings, "add", "analysis", recording)
    assert "analysis: 2 files, 552 bytes, a recording of 2 operations" in added.stdout
    catalogue = FolderCatalogue(settings.datasets_dir)
    manifest = catalogue.verify("analysis")
    assert manifest.is_raw
    assert manifest.origin["kind"] == "recording"
    figures = {
        key: manifest.origin[key] for key in ("initialise_s", "io_s", "compute_s", "bytes_read")
    }
    assert figures == {"initialise_s": 4.0, "io_s": 2.5, "compute_s": 7.5, "bytes_read": 300}
    assert (catalogue.folder("analysis") / "recording.csv").read_text() == ROWS
    document = json.loads((catalogue.folder("analysis") / "recording.json").read_text())
    assert document["urls"] == ["root://host//data/x.root"]
    assert document["process"]["door_url"] == "root://host//data"
    assert "root://host//data/x.root" in run_command(settings, "show", "analysis").stdout
    assert run_command(settings, "add", "analysis", recording).exception is None
    recording.write_text(ROWS * 2)
    refused = run_command(settings, "add", "analysis", recording).exception
    assert isinstance(refused, DatasetError)
    assert "of other content" in str(refused)


def test_recording_of_an_unknown_process_has_no_outer_phases(
    settings: Settings, recording: Path
) -> None:
    recording.with_suffix(".json").unlink()
    assert run_command(settings, "add", "analysis", recording).exception is None
    origin = FolderCatalogue(settings.datasets_dir).manifest("analysis").origin
    assert "initialise_s" not in origin
    assert origin["io_s"] == 2.5


@pytest.mark.parametrize("text", ["", "a,b,c\n1,2,3\n"])
def test_other_tables_are_refused(settings: Settings, recording: Path, text: str) -> None:
    recording.write_text(text)
    refused = run_command(settings, "add", "analysis", recording).exception
    assert isinstance(refused, DatasetError)
    assert "is not a recording" in str(refused)
    assert "several" not in FolderCatalogue(settings.datasets_dir).names()
    assert isinstance(
        run_command(settings, "add", "two", recording, recording).exception, DatasetError
    )
