"""Rewriting a dataset, with a stand-in for the ROOT process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.datasets import production
from treehammer.datasets.catalogues import dataset_rewriting
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.specs.dataset_specs import GeneratedSpec
from treehammer.datasets.specs.rewrite_options import RewriteOptions
from treehammer.errors import DatasetError
from treehammer.text_formatting import no_progress

Rewrite = Callable[..., Manifest]


@pytest.fixture
def catalogue(tmp_path: Path) -> FolderCatalogue:
    return FolderCatalogue(tmp_path / "datasets")


@pytest.fixture
def source(
    catalogue: FolderCatalogue, plan: GeneratedSpec, software: SoftwareRequest, fake_root: list[str]
) -> Manifest:
    manifest = catalogue.make(plan, software)
    fake_root.clear()
    return manifest


@pytest.fixture
def rewrite(catalogue: FolderCatalogue, source: Manifest, software: SoftwareRequest) -> Rewrite:
    """Return a function that rewrites the source as dataset ``mine``."""

    def make(name: str = "mine", replace_existing: bool = False, **options: Any) -> Manifest:
        return dataset_rewriting.rewrite_dataset(
            catalogue,
            options.pop("of", source),
            RewriteOptions(**options),
            name,
            software,
            bars=no_progress,
            replace_existing=replace_existing,
        )

    return make


def test_manifest_records_source_options_and_checksums(
    catalogue: FolderCatalogue, source: Manifest, rewrite: Rewrite, fake_root: list[str]
) -> None:
    made = rewrite(compression="zstd:5")
    assert fake_root == ["rewrite", "measure", "hashes", "hashes"]
    assert made.origin["kind"] == "rewritten"
    assert made.origin["from"] == {"name": "tiny", "hash": source.hash}
    assert made.origin["options"] == {"compression": "zstd:5"}
    assert made.origin["value_checksum"] == made.origin["value_checksum_of_source"] == "c"
    assert [file.name for file in made.files] == [file.name for file in source.files]
    assert catalogue.manifest("mine") == made


def test_existing_dataset_is_verified_or_refused(
    catalogue: FolderCatalogue, source: Manifest, rewrite: Rewrite, fake_root: list[str]
) -> None:
    made = rewrite(compression="zstd:5")
    fake_root.clear()
    assert rewrite(compression="zstd:5") == made
    assert fake_root == []
    with pytest.raises(DatasetError, match="made with other options") as caught:
        rewrite(compression="lz4")
    assert "--replace" in caught.value.hint
    other = rewrite(compression="lz4", replace_existing=True)
    assert other.origin["options"] == {"compression": "lz4"}
    (catalogue.folder("mine") / "tiny.root").unlink()
    with pytest.raises(DatasetError) as broken:
        catalogue.verify("mine")
    assert "make tiny --compression lz4 --as mine --replace" in broken.value.hint


def test_writing_and_ordering_take_two_steps(
    catalogue: FolderCatalogue, source: Manifest, rewrite: Rewrite, fake_root: list[str]
) -> None:
    file = source.files[0]
    plain = replace(source, files=(replace(file, layout=replace(file.layout, embedded_bytes=0)),))
    rewrite("one", of=plain, order="entry")
    assert fake_root == ["order", "measure", "hashes", "hashes"]
    fake_root.clear()
    rewrite(name="embedded", order="entry")
    assert fake_root == ["rewrite", "order", "measure", "hashes", "hashes"]
    fake_root.clear()
    rewrite(name="two", order="entry", compression="lz4")
    assert fake_root == ["rewrite", "order", "measure", "hashes", "hashes"]
    files = sorted(path.name for path in catalogue.folder("two").iterdir())
    assert files == ["manifest.json", "tiny.root"]
    fake_root.clear()
    rewrite(name="three", order="offset", compression="lz4")
    assert "order" not in fake_root


def test_wrong_basket_order_is_refused(
    catalogue: FolderCatalogue, source: Manifest, rewrite: Rewrite, fake_root: list[str]
) -> None:
    with pytest.raises(DatasetError, match=r"by branch and do not \(measured: entry\)"):
        rewrite(order="branch")
    assert catalogue.names() == ("tiny",)
    assert not list(catalogue.root.glob(".*.part-*"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lines": ["a x 2"], "checksum": "d"}, "leaves they differ: a x"),
        ({"lines": ["b x 1"], "checksum": "d"}, "leaves they differ: a x, b x"),
        ({"checksum": "d"}, "the checksum of all"),
    ],
)
def test_differing_values_are_refused(
    changes: dict[str, Any],
    expected: str,
    catalogue: FolderCatalogue,
    rewrite: Rewrite,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = production.run_action

    def run(action: str, document: Any, *rest: Any) -> dict[str, Any]:
        answer = plain(action, document, *rest)
        read_again = action == "hashes" and "/tiny/" not in document["paths"][0]
        return answer | changes if read_again else answer

    monkeypatch.setattr(production, "run_action", run)
    with pytest.raises(DatasetError, match="does not hold the values of its source") as caught:
        rewrite(compression="zstd")
    assert expected in caught.value.message
    assert catalogue.names() == ("tiny",)
    assert not list(catalogue.root.glob(".*.part-*"))


def test_taken_names_are_refused(rewrite: Rewrite) -> None:
    for name, message in (
        ("tiny", "is the dataset itself"),
        ("reference-small", "name of a shipped dataset"),
        ("Mine", "lower-case"),
    ):
        with pytest.raises(DatasetError, match=message):
            rewrite(name=name, compression="zstd")


@pytest.mark.parametrize(
    "options, factor",
    [
        ({"compression": "zstd"}, 1.25),
        ({"order": "offset"}, 1.25),
        ({"order": "entry", "root": "6.38.00"}, 2.5),
    ],
)
def test_largest_step_determines_required_space(
    source: Manifest, options: dict[str, Any], factor: float
) -> None:
    size = dataset_rewriting.estimate_disk_space(source, RewriteOptions(**options))
    assert size == round(factor * source.size)


def test_uncompressed_files_require_unzipped_space(source: Manifest) -> None:
    size = dataset_rewriting.estimate_disk_space(source, RewriteOptions(compression="none"))
    assert size == round(1.25 * source.files[0].layout.unzipped_bytes)
