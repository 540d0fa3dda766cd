from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from treehammer import config
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets import production
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.specs.dataset_specs import GeneratedSpec
from treehammer.errors import DatasetError
from treehammer.submit.cli.datasets_commands import datasets


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
