"""Rewritten datasets: other layouts, other basket orders, and RNTuples."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software import providers as softwares
from treehammer.datasets import production
from treehammer.datasets.catalogues import dataset_rewriting
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.rewrite_options import RewriteOptions
from treehammer.errors import DatasetError
from treehammer.text_formatting import no_progress

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("warm_actions")]

Software = Callable[[str], SoftwareRequest]
Make = Callable[..., Manifest]
AWKWARD = Path(__file__).with_name("write_awkward.py")


@pytest.fixture(scope="module")
def catalogue(
    tmp_path_factory: pytest.TempPathFactory, tiny: dataset_specs.GeneratedSpec, software: Software
) -> FolderCatalogue:
    """Return a catalogue with ``tiny`` and ``awkward``: two files with the tree in a folder."""
    with_datasets = FolderCatalogue(tmp_path_factory.mktemp("anew"))
    root = software("6.40.00")
    with_datasets.make(tiny, root)
    folder = tmp_path_factory.mktemp("awkward")
    setup = softwares.setup_software(root, os.environ, production.KIT_FOLDER)
    paths = [folder / "one.root", folder / "two.root"]
    command = [*setup.build_command("python", str(AWKWARD)), str(paths[0])]
    subprocess.run(command, env=dict(setup.env), check=True, capture_output=True)
    paths[1].write_bytes(paths[0].read_bytes())
    with_datasets.add("awkward", paths, root, tree="deep/events")
    return with_datasets


@pytest.fixture(scope="module")
def make(catalogue: FolderCatalogue, software: Software) -> Make:
    """Return a function that rewrites a dataset of the catalogue."""

    def do(
        source: str,
        name: str,
        *,
        root: str = "6.40.00",
        replace_existing: bool = False,
        **options: Any,
    ) -> Manifest:
        return dataset_rewriting.rewrite_dataset(
            catalogue,
            catalogue.manifest(source),
            RewriteOptions(**options),
            name,
            software(root),
            bars=no_progress,
            replace_existing=replace_existing,
        )

    return do


def _baskets(path: Path) -> list[tuple[int, int, int]]:
    """List file position, branch and first entry of every basket, read with uproot."""
    with uproot.open(path) as file:
        return sorted(
            (
                int(branch.member("fBasketSeek")[i]),
                number,
                int(branch.basket_entry_start_stop(i)[0]),
            )
            for number, branch in enumerate(file["events"].branches)
            for i in range(branch.num_baskets)
        )


def _file(catalogue: FolderCatalogue, name: str) -> Path:
    return Path(catalogue.files(name)[0].url)


def test_rewrite_changes_compression_and_clusters_only(
    catalogue: FolderCatalogue, make: Make
) -> None:
    made = make("tiny", "lz4", compression="lz4:4", autoflush="300", basket_size="4kB")
    layout, before = made.files[0].layout, catalogue.manifest("tiny").files[0].layout
    assert (layout.clusters, before.clusters) == (5, 3)
    assert layout.basket_zipped_bytes.count > before.basket_zipped_bytes.count
    assert made.origin["value_checksum"] == made.origin["value_checksum_of_source"]
    assert made.origin["leaves_covered"] == layout.branches
    rewritten_path, source_path = _file(catalogue, "lz4"), _file(catalogue, "tiny")
    with uproot.open(rewritten_path) as rewritten, uproot.open(source_path) as original:
        assert rewritten.file.compression.__class__.__name__ == "LZ4"
        assert rewritten["events"]["event"].compression.level == 4
        values = rewritten["events"].arrays(library="np"), original["events"].arrays(library="np")
        for name, expected in values[1].items():
            assert all(np.array_equal(a, b) for a, b in zip(values[0][name], expected, strict=True))
    # The bytes depend only on the options and the release.
    assert (
        make(
            "tiny",
            "lz4",
            compression="lz4:4",
            autoflush="300",
            basket_size="4kB",
            replace_existing=True,
        ).hash
        == made.hash
    )


def test_rewrite_without_options_keeps_layout(catalogue: FolderCatalogue, make: Make) -> None:
    made = make("tiny", "zstd", compression="zstd:5", root="6.38.00")
    assert made.origin["root"] == "6.38.00"
    places = [
        sorted(place[1:] for place in _baskets(_file(catalogue, name))) for name in ("zstd", "tiny")
    ]
    # The writer of the source did not know the basket sizes during the first cluster.
    first = 500
    assert [p for p in places[0] if p[1] >= first] == [p for p in places[1] if p[1] >= first]
    assert made.files[0].layout.clusters == 3


def test_baskets_are_in_requested_order(catalogue: FolderCatalogue, make: Make) -> None:
    plain = sorted(place[1:] for place in _baskets(_file(catalogue, "tiny")))
    for order in ("entry", "branch", "offset"):
        layout = make("tiny", f"by-{order}", order=order).files[0].layout
        baskets = _baskets(_file(catalogue, f"by-{order}"))
        assert sorted(basket[1:] for basket in baskets) == plain
        entries, branches = [b[2] for b in baskets], [b[1] for b in baskets]
        assert (entries == sorted(entries)) == ("entry" in layout.basket_order.split())
        assert (branches == sorted(branches)) == ("branch" in layout.basket_order.split())
        assert order == "offset" or order in layout.basket_order.split()
        assert (layout.mean_jump_bytes == 0) == (order == "entry")
    source = [basket[1:] for basket in _baskets(_file(catalogue, "tiny"))]
    assert [basket[1:] for basket in _baskets(_file(catalogue, "by-offset"))] == source


def test_rntuple_has_same_values(catalogue: FolderCatalogue, make: Make) -> None:
    made = make("tiny", "twin", format="rntuple", compression="zstd:5")
    layout = made.files[0].layout
    source = catalogue.manifest("tiny").files[0].layout
    assert layout.format == "rntuple"
    assert (layout.tree, layout.entries) == ("events", source.entries)
    assert layout.branches == source.branches
    assert layout.clusters == 1
    assert layout.basket_zipped_bytes.count > source.branches
    assert 1 < layout.ratio < 20
    assert made.origin["value_checksum"] == made.origin["value_checksum_of_source"]
    assert catalogue.verify("twin") == made
    assert (
        make("tiny", "twin", format="rntuple", compression="zstd:5", replace_existing=True).hash
        == made.hash
    )
    with pytest.raises(DatasetError, match="holds RNTuples") as caught:
        make("twin", "again", compression="lz4")
    assert "made from tiny" in caught.value.hint


def test_unsupported_rntuple_branches_are_refused_or_skipped(
    catalogue: FolderCatalogue, make: Make
) -> None:
    with pytest.raises(DatasetError, match="branches cannot be written") as caught:
        make("awkward", "whole", format="rntuple")
    assert "named: TNamed" in caught.value.message
    assert "--skip-unwritable" in caught.value.hint
    assert not catalogue.has("whole")
    made = make("awkward", "part", format="rntuple", skip_unwritable=True)
    left_out = [line.partition(":")[0] for line in made.origin["branches_left_out"]]
    assert "named" in left_out
    assert not {"event", "dotted.x", "pair", "values"} & set(left_out)
    assert [file.layout.entries for file in made.files] == [330, 330]
    assert made.files[0].layout.tree == "deep/events"


def test_rewrite_handles_files_folders_clusters_and_objects(
    catalogue: FolderCatalogue, make: Make
) -> None:
    made = make("awkward", "smaller", compression="lzma:1")
    assert [file.name for file in made.files] == ["one.root", "two.root"]
    assert made.origin["objects_compared"] >= 1  # the TNamed
    assert made.origin["branches_left_out"] == []
    for name in ("smaller", "awkward"):
        with uproot.open(_file(catalogue, name)) as file:
            branch = file["deep/events"]["event"]
            starts = [branch.basket_entry_start_stop(i)[0] for i in range(branch.num_baskets)]
        assert starts == [0, 50, 100, 175, 250, 325]
    ordered = make("awkward", "ordered", order="entry", autoflush="10")
    assert "entry" in ordered.files[1].layout.basket_order
    assert ordered.files[0].layout.clusters == 33
