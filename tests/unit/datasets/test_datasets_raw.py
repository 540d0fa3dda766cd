"""Raw datasets: seeded bytes without a tree."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from plan_factory import make_settings

from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.production import RAW_BLOCK_BYTES, generate_blocks
from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import RawSpec
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
