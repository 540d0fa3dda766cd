"""The dataset ``tiny``, made once in each process that runs tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_files import load_generated_spec

from treehammer import config
from treehammer.datasets import production
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.text_formatting import no_progress

TINY_SPEC = Path(__file__).parents[2] / "integration" / "datasets" / "tiny.toml"


@pytest.fixture(scope="session")
def tiny_catalogue(tmp_path_factory: pytest.TempPathFactory) -> FolderCatalogue:
    """Return a catalogue with ``tiny``, one file, for tests that only read it."""
    software = production.prepare_dataset_root(
        "6.40.00", config.load_settings().software_dir, no_progress
    )
    catalogue = FolderCatalogue(tmp_path_factory.mktemp("datasets"))
    catalogue.make(load_generated_spec(TINY_SPEC), software)
    return catalogue
