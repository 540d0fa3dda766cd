"""Datasets made from others: other layouts and orders, RNTuples, and merged copies of real events."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from click.testing import CliRunner
from job_factory import write_payload_job
from tiny_dataset import change_spec, list_ntuple_pages, load_merged_spec
from warm_root import WarmDatasetRoots

from treehammer import hctests
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software import providers as softwares
from treehammer.config import Settings
from treehammer.datasets import root_process, tree_measurement
from treehammer.datasets.catalogues import dataset_rewriting
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.cli import show
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.production import find_source
from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import SPECS_FOLDER, MergedSpec
from treehammer.datasets.specs.rewrite_options import RewriteOptions
from treehammer.errors import DatasetError
from treehammer.text_formatting import no_progress

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("warm_actions")]

Software = Callable[[str], SoftwareRequest]
Make = Callable[..., Manifest]
AWKWARD = Path(__file__).parents[2] / "helpers" / "datasets" / "awkward_file.py"


@pytest.fixture(scope="module")
def catalogue(
    tmp_path_factory: pytest.TempPathFactory, tiny: dataset_specs.GeneratedSpec, software: Software
) -> FolderCatalogue:
    """Return a catalogue with ``tiny`` and ``awkward``: two files with the tree in a folder."""
    with_datasets = FolderCatalogue(tmp_path_factory.mktemp("anew"))
    root = software("6.40.00")
    with_datasets.make(tiny, root)
    folder = tmp_path_factory.mktemp("awkward")
    setup = softwares.setup_software(root, os.environ, root_process.KIT_FOLDER)
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


def test_baskets_span_clusters_on_request(catalogue: FolderCatalogue, make: Make) -> None:
    made = make("tiny", "across", autoflush="20", basket_size="4kB", across_clusters=True)
    layout = made.files[0].layout
    with uproot.open(_file(catalogue, "across")) as file:
        branch = file["events"]["event"]
        baskets = [branch.basket_entry_start_stop(i) for i in range(branch.num_baskets)]
    assert all(stop - start > 40 for start, stop in baskets[:-1])
    assert layout.clusters == layout.entries / 20
    assert layout.spanning_baskets > len(baskets) - 2
    assert catalogue.manifest("tiny").files[0].layout.spanning_baskets == 0


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
    # Clusters below ROOT's largest page need smaller pages.
    options = {"format": "rntuple", "compression": "zstd:5", "autoflush": "50kB"}
    made = make("tiny", "twin", **options)
    layout = made.files[0].layout
    source = catalogue.manifest("tiny").files[0].layout
    assert layout.format == "rntuple"
    assert (layout.tree, layout.entries) == ("events", source.entries)
    assert layout.branches == source.branches
    assert layout.clusters > 5
    # ROOT stores pages of equal content once, so that several columns may have one.
    pages = list_ntuple_pages(_file(catalogue, "twin"), "events")
    assert layout.basket_zipped_bytes.count == len(pages)
    assert layout.zipped_bytes == sum(pages.values())
    assert 1 < layout.ratio < 20
    assert made.origin["value_checksum"] == made.origin["value_checksum_of_source"]
    assert catalogue.verify("twin") == made
    assert make("tiny", "twin", replace_existing=True, **options).hash == made.hash
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


TINY = Path(__file__).with_name("merged-tiny.toml")
EVENTS = 300
KEPT = 7


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a source with several kinds of numbers; ``cut`` has 10-bit mantissas."""
    random = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("source") / "source.root"
    pt = random.exponential(30, EVENTS).astype(np.float32)
    special = np.where(random.random(EVENTS) < 0.3, 0, pt).astype(np.float32)
    special[:3] = np.inf, -np.inf, np.nan
    cut = (pt.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    arrays: dict[str, Any] = {
        "event": np.arange(EVENTS, dtype=np.int64),
        "flag": random.random(EVENTS) < 0.5,
        "pt": pt,
        "mass": random.normal(91, 3, EVENTS),
        "special": special,
        "cut": cut,
    }
    with uproot.recreate(path) as file:
        types = {name: values.dtype for name, values in arrays.items()}
        file.mktree("events", types).extend(arrays)
    return path


@pytest.fixture(scope="module")
def plan(source: Path, tmp_path_factory: pytest.TempPathFactory) -> MergedSpec:
    """Write and load the spec of that source."""
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    text = re.sub("0{64}", sha256, TINY.read_text(encoding="utf-8"))
    path = tmp_path_factory.mktemp("spec") / TINY.name
    path.write_text(text.replace("size = 1\n", f"size = {source.stat().st_size}\n"))
    return load_merged_spec(path)


@pytest.fixture(scope="module")
def merged_catalogue(
    plan: MergedSpec, source: Path, software: Software, tmp_path_factory: pytest.TempPathFactory
) -> FolderCatalogue:
    """Return a catalogue with the dataset, for tests that only read it."""
    catalogue_with_all = FolderCatalogue(tmp_path_factory.mktemp("made") / "all")
    catalogue_with_all.make(plan, software("6.40.00"), source=source.parent)
    return catalogue_with_all


def _arrays(path: str | Path) -> dict[str, np.ndarray[Any, Any]]:
    with uproot.open(path) as file:
        arrays: dict[str, np.ndarray[Any, Any]] = file["events"].arrays(library="np")
    return arrays


def test_copies_equal_source_up_to_stated_bits(
    merged_catalogue: FolderCatalogue, plan: MergedSpec, source: Path
) -> None:
    (file,) = merged_catalogue.files(plan.name)
    copies, originals = _arrays(file.url), _arrays(source)
    assert set(copies) == set(originals)
    for name in ("event", "flag"):
        assert np.array_equal(copies[name], np.tile(originals[name], plan.merged.copies))
    for name, word, mantissa in (
        ("pt", np.uint32, 23),
        ("mass", np.uint64, 52),
        ("special", np.uint32, 23),
        ("cut", np.uint32, 23),
    ):
        before = np.tile(originals[name].view(word), plan.merged.copies)
        after = copies[name].view(word)
        changed = before ^ after
        assert not np.any(changed >> word(mantissa - KEPT)), name
        # The first copy equals the source; nearly all values of the others differ.
        assert not np.any(changed[:EVENTS])
        plain = np.isfinite(np.tile(originals[name], plan.merged.copies)) & (before << word(1) != 0)
        assert not np.any(changed[~plain])
        few = 0.2 if name == "cut" else 0.01
        assert np.mean(changed[EVENTS:][plain[EVENTS:]] == 0) < few
    assert not np.any(copies["cut"].view(np.uint32) & np.uint32(0x1FFF))


def test_layout_matches_spec_and_manifest_records_source(
    merged_catalogue: FolderCatalogue, plan: MergedSpec, source: Path, software: Software
) -> None:
    manifest = merged_catalogue.verify(plan.name)
    layout = manifest.files[0].layout
    assert (layout.entries, layout.clusters) == (1800, 4)
    with uproot.open(merged_catalogue.files(plan.name)[0].url) as file:
        starts = {
            int(branch.basket_entry_start_stop(number)[0])
            for branch in file["events"].branches
            for number in range(branch.num_baskets)
        }
        assert starts == {0, 450, 900, 1350}
    assert manifest.origin["kind"] == "merged"
    assert manifest.origin["leaves"] == {"perturbed": 4, "exact": 0, "integer": 2, "object": 0}
    assert manifest.origin["branches_left_out"] == []
    (measured,), _ = tree_measurement.measure_files([source], software("6.40.00"))
    assert manifest.origin["source"]["layout"]["entries"] == measured.entries == EVENTS


def test_show_compares_dataset_with_its_source(
    merged_catalogue: FolderCatalogue, plan: MergedSpec, settings: Settings
) -> None:
    own_settings = replace(settings, cache_dir=merged_catalogue.root.parent)
    (merged_catalogue.root.parent / "datasets").symlink_to(merged_catalogue.root)
    made, origin = json.loads(
        CliRunner().invoke(show, [plan.name, "--json"], obj=own_settings).stdout
    )
    assert (made["entries"], origin["entries"]) == (1800, EVENTS)
    assert "events a cluster" in CliRunner().invoke(show, [plan.name], obj=own_settings).stdout


def test_merged_files_are_reproducible_across_releases(
    merged_catalogue: FolderCatalogue,
    plan: MergedSpec,
    source: Path,
    software: Software,
    tmp_path: Path,
) -> None:
    other_catalogue = FolderCatalogue(tmp_path / "elsewhere")
    made = other_catalogue.make(plan, software("6.38.00"), source=source)
    assert made.files == merged_catalogue.manifest(plan.name).files
    reseeded = other_catalogue.make(
        change_spec(plan, dataset={"seed": 6}),
        software("6.40.00"),
        source=source,
        replace_existing=True,
    )
    assert reseeded.files != made.files


def test_wrong_source_is_refused(
    plan: MergedSpec, source: Path, software: Software, tmp_path: Path
) -> None:
    merged_catalogue = FolderCatalogue(tmp_path / "datasets")
    wrong = tmp_path / "source.root"
    wrong.write_bytes(source.read_bytes()[:-1] + b"x")
    with pytest.raises(DatasetError, match="is not shipped with Treehammer") as absent:
        merged_catalogue.make(plan, software("6.40.00"))
    assert "a file that the test makes" in absent.value.hint
    assert "--source PATH" in absent.value.hint
    assert "TREEHAMMER_SOURCES_DIR" in absent.value.hint
    with pytest.raises(DatasetError, match=f"source.root has .* bytes with {plan.source.sha256}"):
        merged_catalogue.make(plan, software("6.40.00"), source=wrong)
    with pytest.raises(DatasetError, match="no file there is source"):
        merged_catalogue.make(plan, software("6.40.00"), source=tmp_path)
    with pytest.raises(DatasetError, match="cannot be read"):
        merged_catalogue.make(plan, software("6.40.00"), source=tmp_path / "none.root")
    (tmp_path / "another name.root").write_bytes(source.read_bytes())
    assert find_source(plan, tmp_path).name == "another name.root"
    assert merged_catalogue.names() == ()
    assert not list(merged_catalogue.root.glob(".*.part-*"))


def test_source_differing_from_spec_is_refused(
    plan: MergedSpec, source: Path, software: Software, tmp_path: Path
) -> None:
    other = change_spec(plan, source={"branches": 7})
    with pytest.raises(DatasetError, match="has 300 entries x 6 branches"):
        FolderCatalogue(tmp_path).make(other, software("6.40.00"), source=source)
    assert not list(tmp_path.glob(".*.part-*"))


def change_copies(spec: MergedSpec, copies: int) -> MergedSpec:
    """Return the spec with other copies of the source's events in one cluster."""
    entries = copies * spec.source.entries
    return change_spec(
        spec,
        dataset={"entries": entries, "size": 0, "sha256": ""},
        merged={"copies": copies},
        layout={"events_per_cluster": entries},
    )


@pytest.mark.slow
def test_copies_of_experiment_files_compress_like_source(
    shared_data: Path, software: Software, tmp_path: Path
) -> None:
    full = load_merged_spec(SPECS_FOLDER / "nanoaod-merged.toml")
    plan = change_copies(full, 4)
    merged_catalogue = FolderCatalogue(tmp_path)
    noisy = merged_catalogue.make(plan, software("6.40.00"), source=shared_data)
    plain = merged_catalogue.make(
        change_spec(plan, merged={"kept_bits": 23}),
        software("6.40.00"),
        source=shared_data,
        replace_existing=True,
    )
    source = noisy.origin["source"]["layout"]
    source_ratio = source["unzipped_bytes"] / source["zipped_bytes"]
    ratio, repeated = noisy.files[0].layout.ratio, plain.files[0].layout.ratio
    # Without noise the copies would compress much better than real data.
    assert abs(np.log(ratio / source_ratio)) < 0.25
    assert ratio < 0.9 * repeated
    assert noisy.files[0].layout.branches == full.source.branches
    assert noisy.origin["branches_left_out"] == []
    assert noisy.origin["leaves"]["perturbed"] > 250


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nanoaod-merged", "physlite-merged"])
def test_single_copy_reads_like_source_in_new_process(
    name: str,
    shared_data: Path,
    software: Software,
    warm_dataset_roots: WarmDatasetRoots,
    tmp_path: Path,
) -> None:
    full = load_merged_spec(SPECS_FOLDER / f"{name}.toml")
    entries = full.source.entries
    plan = change_copies(full, 1)
    merged_catalogue = FolderCatalogue(tmp_path)
    merged_catalogue.make(plan, software("6.40.00"), source=shared_data)
    made = Path(merged_catalogue.files(name)[0].url)
    for release in ("6.38.00", "6.40.00"):
        root = software(release)
        # Each process knows only the classes that its file describes.
        expected, actual = (
            read_values(file, full.tree, root, tmp_path, warm_dataset_roots)
            for file in (find_source(full, shared_data), made)
        )
        assert actual["events_total"] == entries
        assert actual == expected


def read_values(
    path: Path, tree: str, root: SoftwareRequest, folder: Path, roots: WarmDatasetRoots
) -> dict[str, Any]:
    """Read all values of a file with the shipped kit, in a fork that has read no such file."""
    setup = softwares.setup_software(root, os.environ, root_process.KIT_FOLDER)
    job = write_payload_job(folder, path, kind="checksum", tree=tree)
    payload = Path(hctests.__file__).parent / "ttree-read" / "read.py"
    command = setup.build_command("python", str(payload))
    code, log = roots.provide(command[0], setup.env).run(
        *command[1:], env={**setup.env, **job}, folder=folder
    )
    assert code == 0, log
    values = json.loads((folder / "result.json").read_text())["values"]
    names = ("value_checksum", "checksum_leaves", "checksum_skipped_leaves", "events_total")
    return {name: values[name] for name in names}
