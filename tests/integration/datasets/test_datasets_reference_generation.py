"""The full-size reference dataset with fewer events: all branches, in seconds.

The complete dataset is pinned in its spec, so ``treehammer datasets make reference-750mb``
verifies it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from warm_root import WarmDatasetRoots, compute_value_checksum

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.specs import dataset_specs

pytestmark = [pytest.mark.root, pytest.mark.slow]

Software = Callable[[str], SoftwareRequest]
Make = Callable[[str, str], FolderCatalogue]

EVENTS, CLUSTERS = 60, 3


@pytest.fixture(scope="module")
def reduced() -> dataset_specs.GeneratedSpec:
    """Return ``reference-750mb`` with fewer events and without pinned checksums."""
    plan = dataset_specs.load_shipped_spec("reference-750mb")
    assert isinstance(plan, dataset_specs.GeneratedSpec)
    cluster = EVENTS // CLUSTERS
    return replace(plan, entries=EVENTS, events_per_cluster=cluster, size=0, sha256="")


@pytest.fixture(scope="module")
def make(
    reduced: dataset_specs.GeneratedSpec,
    software: Software,
    tmp_path_factory: pytest.TempPathFactory,
) -> Make:
    """Return a function that generates it in a named folder and returns the catalogue."""

    def do(folder: str, version: str) -> FolderCatalogue:
        catalogue = FolderCatalogue(tmp_path_factory.mktemp("reduced") / folder)
        catalogue.make(reduced, software(version))
        return catalogue

    return do


@pytest.fixture(scope="module")
def first(make: Make) -> FolderCatalogue:
    return make("first", "6.40.00")


def _manifest(catalogue: FolderCatalogue) -> Manifest:
    return catalogue.manifest("reference-750mb")


def _file(catalogue: FolderCatalogue) -> Path:
    return Path(catalogue.files("reference-750mb")[0].url)


def test_runs_and_releases_write_identical_bytes(first: FolderCatalogue, make: Make) -> None:
    repeated, older = make("again", "6.40.00"), make("older and elsewhere", "6.38.00")
    assert _file(repeated).read_bytes() == _file(first).read_bytes()
    assert _manifest(older).origin["root"] == "6.38.00"
    assert _manifest(older).hash == _manifest(first).hash
    assert _manifest(older).files == _manifest(first).files


def test_releases_read_equal_values(
    first: FolderCatalogue,
    software: Software,
    warm_dataset_roots: WarmDatasetRoots,
    tmp_path: Path,
) -> None:
    file = _file(first)
    both = [
        compute_value_checksum(file, "events", software(version), tmp_path, warm_dataset_roots)
        for version in ("6.38.00", "6.40.00")
    ]
    assert both[0] == both[1]
    assert (both[0].leaves, both[0].events, both[0].uncovered) == (3000, EVENTS, ())


def test_layout_matches_spec(first: FolderCatalogue, reduced: dataset_specs.GeneratedSpec) -> None:
    layout = _manifest(first).files[0].layout
    assert (layout.entries, layout.branches, layout.clusters) == (EVENTS, 3000, CLUSTERS)
    # Small baskets compress worse: in the complete file the ratio is 4 and the share 42 %.
    assert 2.5 < layout.ratio < 5
    assert 0.3 <= layout.top2_share <= 0.5
    assert layout.embedded_bytes == 0
