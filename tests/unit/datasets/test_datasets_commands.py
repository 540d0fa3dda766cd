"""Commands ``treehammer datasets``: on datasets with trees, on seeded bytes, and on recordings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from plan_factory import make_settings

from treehammer import config
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets import production
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.production import RAW_BLOCK_BYTES, generate_blocks
from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import GeneratedSpec, RawSpec
from treehammer.errors import DatasetError, DefinitionError
from treehammer.submit.campaigns.campaign_request import CampaignRequest, plan_request
from treehammer.submit.cli.datasets_commands import datasets

SPEC = """
[dataset]
name = "bytes"
description = "three files"
seed = 7
[raw]
files = 3
size = 1500000
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.fixture
def raw_spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "bytes.toml"
    path.write_text(SPEC)
    return path


def run(settings: Settings, *words: str) -> Result:
    return CliRunner().invoke(datasets, words, obj=settings, standalone_mode=False)


def test_raw_dataset_is_made_shown_and_verified(settings: Settings, raw_spec_file: Path) -> None:
    assert "3 files, 4.5 MB, raw bytes" in run(settings, "make", str(raw_spec_file)).stdout
    manifest = FolderCatalogue(settings.datasets_dir).manifest("bytes")
    assert [file.size for file in manifest.files] == [1_500_000] * 3
    assert len({file.sha256 for file in manifest.files}) == 3
    rows = json.loads(run(settings, "show", "bytes", "--json").stdout)
    assert [row["sha256"] for row in rows] == [file.sha256 for file in manifest.files]
    assert "branches" not in run(settings, "show", "bytes").stdout
    assert run(settings, "verify", "bytes").exception is None
    file = settings.datasets_dir / "bytes" / manifest.files[1].name
    file.chmod(0o600)
    file.write_bytes(b"x" * 1_500_000)
    verified = run(settings, "verify", "bytes")
    assert verified.exception or verified.return_value


def test_bytes_are_defined_by_seed_file_and_position(raw_spec_file: Path) -> None:
    spec = dataset_specs.load_spec(raw_spec_file)
    assert isinstance(spec, RawSpec)
    first, second = generate_blocks(spec, 2)
    assert first == hashlib.shake_128(b"treehammer/raw/7/2/0").digest(RAW_BLOCK_BYTES)
    assert second == hashlib.shake_128(b"treehammer/raw/7/2/1").digest(1_500_000 - RAW_BLOCK_BYTES)


def test_other_bytes_than_pinned_are_refused(settings: Settings, raw_spec_file: Path) -> None:
    catalogue = FolderCatalogue(settings.datasets_dir)
    spec = dataset_specs.load_spec(raw_spec_file)
    assert isinstance(spec, RawSpec)
    with pytest.raises(DatasetError, match="pinned is 0000"):
        catalogue.make_raw(replace(spec, hash="0" * 64))
    assert not catalogue.has("bytes")
    made = catalogue.make_raw(spec)
    assert catalogue.make_raw(replace(spec, hash=made.hash), replace_existing=True) == made


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--compression", "zlib:1"), "no layout"),
        (("--as", "other"), "no layout"),
    ],
)
def test_raw_files_have_no_layout(
    settings: Settings, raw_spec_file: Path, options: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(DatasetError, match=expected):
        raise run(settings, "make", str(raw_spec_file), *options).exception or AssertionError


@pytest.mark.parametrize(
    ("test", "is_refused"),
    [
        ('payload = "run.sh"\ndataset = "bytes"\n[matrix]\nroot = ["current"]', True),
        ('payload = "run.sh"\ndataset = "bytes"\n[matrix]\nroot = ["none"]', False),
        ('payload = "run.sh"\ndataset = "bytes"\ntree = "events"\n[matrix]\nroot = ["none"]', True),
        ('payload = "run.sh"\ndataset = "bytes"\n[load]\ntogether = true', False),
    ],
)
def test_only_tests_without_tree_take_raw_files(
    settings: Settings, raw_spec_file: Path, tmp_path: Path, test: str, is_refused: bool
) -> None:
    FolderCatalogue(settings.datasets_dir).make_raw(load_raw_spec(raw_spec_file))
    folder = tmp_path / "test"
    folder.mkdir()
    (folder / "test.toml").write_text(f'[test]\nname = "load"\n{test}\n')
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    request = CampaignRequest(str(folder))
    if is_refused:
        with pytest.raises(DefinitionError, match="holds raw files, but this test reads a tree"):
            plan_request(request, settings, fetch=False)
        return
    plan = plan_request(request, settings, fetch=False)
    (execution, *_) = plan.jobs[0].spec.executions
    assert [file.size for file in execution.files] == [1_500_000] * 3


def load_raw_spec(path: Path) -> RawSpec:
    spec = dataset_specs.load_spec(path)
    assert isinstance(spec, RawSpec)
    return spec


ROWS = """"1","Open","1700000000.0","root://host//data/x.root;16;0;0","1700000001.0","[SUCCESS]",""
"1","Read","1700000001.0","0;300;0","1700000002.5","[SUCCESS]","300"
"""
PROCESS = {"started_us": 1_699_999_996_000_000, "ended_us": 1_700_000_010_000_000}


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


@pytest.fixture
def cache_settings(tmp_path: Path) -> Settings:
    return config.load_settings({"cache_dir": tmp_path / "cache"}, environ={}, folder=tmp_path)


@pytest.fixture
def catalogue(cache_settings: Settings) -> FolderCatalogue:
    return FolderCatalogue(cache_settings.datasets_dir)


@pytest.fixture
def manifest(
    catalogue: FolderCatalogue, plan: GeneratedSpec, software: SoftwareRequest, fake_root: list[str]
) -> Manifest:
    """The dataset ``tiny``."""
    return catalogue.make(plan, software)


def invoke(cache_settings: Settings, *arguments: str) -> Result:
    return CliRunner().invoke(datasets, arguments, obj=cache_settings)


def _verify(cache_settings: Settings, *arguments: str) -> Result:
    words = ["verify", *arguments]
    return CliRunner().invoke(datasets, words, obj=cache_settings, standalone_mode=False)


def test_list_shows_existing_and_shipped_datasets(
    cache_settings: Settings, manifest: Manifest
) -> None:
    result = invoke(cache_settings, "list", "--json")
    assert result.exit_code == 0
    states = {row["name"]: row["state"] for row in json.loads(result.stdout)}
    assert states.pop("tiny") == "generated"
    assert set(states) >= {"reference-small", "reference-750mb"}
    assert set(states.values()) == {"not made"}


def test_show(cache_settings: Settings, manifest: Manifest) -> None:
    text = invoke(cache_settings, "show", "tiny").stdout
    assert manifest.hash in text
    assert manifest.files[0].sha256 in text
    (row,) = json.loads(invoke(cache_settings, "show", "tiny", "--json").stdout)
    assert row["adler32"] == manifest.files[0].adler32
    assert row["basket_zipped_bytes_median"] == 40
    assert "not made" in invoke(cache_settings, "show", "reference-small").stdout
    assert isinstance(invoke(cache_settings, "show", "tinny").exception, DatasetError)


@pytest.mark.usefixtures("manifest")
def test_verify_reports_all_and_exits_with_1(
    cache_settings: Settings, catalogue: FolderCatalogue, software: SoftwareRequest, tmp_path: Path
) -> None:
    source = tmp_path / "a.root"
    source.write_bytes(b"root")
    catalogue.add("mine", [source], software)
    assert _verify(cache_settings).return_value == 0
    (catalogue.folder("mine") / "a.root").unlink()
    result = _verify(cache_settings, "--json")
    assert result.return_value == 1
    states = {row["name"]: row["state"] for row in json.loads(result.stdout)}
    assert states == {"mine": "refused", "tiny": "unchanged"}
    assert isinstance(invoke(cache_settings, "verify", "other").exception, DatasetError)


@pytest.mark.usefixtures("fake_root")
def test_make_and_add(
    cache_settings: Settings,
    software: SoftwareRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(production, "prepare_root", lambda *_: software)
    source = tmp_path / "a.root"
    source.write_bytes(b"root")
    result = invoke(cache_settings, "add", "mine", str(source), "--tree", "Events")
    assert result.exit_code == 0
    assert "'Events'" in result.stdout
    assert "Other trees: Runs" in result.stdout
    assert "ROOT cannot read 1 of 3 branches:\n  odd: Odd: Fatal in <F>: no.\n" in result.stdout
    unknown = invoke(cache_settings, "make", "mine").exception
    assert isinstance(unknown, DatasetError)
    assert "reference-small" in unknown.hint
    refused = invoke(cache_settings, "make", "reference-small").exception
    assert isinstance(refused, DatasetError)
    assert "pinned" in refused.message
