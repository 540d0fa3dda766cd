"""Small datasets of tests: specs of one kind, files without trees, and ``tiny``.

Of files without trees it matters that every byte arrives.  ``tiny`` is made once in each process that
runs tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from treehammer import config
from treehammer.datasets import production
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import (
    MANIFEST_NAME,
    Distribution,
    Manifest,
    ManifestFile,
    TreeLayout,
    digest_file,
)
from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import MergedSpec
from treehammer.text_formatting import no_progress


def load_generated_spec(path: Path) -> dataset_specs.GeneratedSpec:
    """The spec of random values in a file."""
    plan = dataset_specs.load_spec(path)
    assert isinstance(plan, dataset_specs.GeneratedSpec)
    return plan


def load_merged_spec(path: Path) -> MergedSpec:
    """The spec of real events in a file."""
    plan = dataset_specs.load_spec(path)
    assert isinstance(plan, MergedSpec)
    return plan


NONE = Distribution(0, 0, 0, 0, 0, 0)
LAYOUT = TreeLayout("events", "ttree", 1, 1, 1, 1, 0, 1.0, 1, NONE, NONE, NONE)


def write_dataset(root: Path, name: str, contents: Mapping[str, bytes]) -> Manifest:
    """Have a dataset in a folder catalogue."""
    folder = root / name
    folder.mkdir(parents=True)
    files = []
    for file, content in contents.items():
        (folder / file).write_bytes(content)
        digest = digest_file(folder / file)
        files.append(ManifestFile(file, digest.size, digest.adler32, digest.sha256, LAYOUT))
    manifest = Manifest(name, tuple(files), {"kind": "added", "description": ""})
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return manifest


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
