"""Generated files: identical bytes from each release, also when several processes make them or one is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import uproot
from polling import wait_until
from spool_harness import is_alive

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs import dataset_specs
from treehammer.errors import DatasetError

pytestmark = pytest.mark.root

Software = Callable[[str], SoftwareRequest]


def test_releases_write_identical_bytes(
    tiny_catalogue: FolderCatalogue,
    tiny: dataset_specs.GeneratedSpec,
    software: Software,
    tmp_path: Path,
) -> None:
    other = FolderCatalogue(tmp_path / "elsewhere and longer")
    made = other.make(tiny, software("6.38.00"))
    assert made.origin["root"] == "6.38.00"
    assert made.files == tiny_catalogue.manifest("tiny").files


def test_content_matches_spec(
    tiny_catalogue: FolderCatalogue, tiny: dataset_specs.GeneratedSpec
) -> None:
    (file,) = tiny_catalogue.files("tiny")
    with uproot.open(file.url) as opened:
        tree = opened["events"]
        assert tree.num_entries == tiny.entries
        assert set(tree.keys()) == set(tiny.branch_names)
        arrays = tree.arrays(library="np")
    assert arrays["event"].tolist() == list(range(1, tiny.entries + 1))
    assert arrays["lumi"].tolist() == [1 + event // 100 for event in range(tiny.entries)]
    for counter, mean, members in (
        ("nMuon", 3, ("Muon_pt", "Muon_id")),
        ("nHit", 60, ("Hit_e", "Hit_cell", "Hit_word")),
    ):
        counts = arrays[counter]
        assert counts.min() == 0 or mean > 10
        assert counts.max() <= 2 * mean
        assert counts.mean() == pytest.approx(mean, rel=0.1)
        for member in members:
            assert [len(values) for values in arrays[member]] == counts.tolist()
    shares = {branch["name"]: branch["zeros"] / 65536 for branch in tiny.plan_branches()}
    for name in ("flag0", "flag9", "level", "Muon_pt", "Muon_id", "Hit_e"):
        values = np.concatenate([np.atleast_1d(value) for value in arrays[name]])
        # A level of 5 bits is 0 by chance in one of 32 cases.
        expected = shares[name] + (1 - shares[name]) / 32 if name == "level" else shares[name]
        assert np.mean(values == 0) == pytest.approx(expected, abs=0.04)
    assert np.ptp(arrays["level"]) == 31
    assert arrays["cov"].shape == (tiny.entries, 6)
    assert len(np.unique(arrays["weight"])) == tiny.entries
    hits = np.concatenate(list(arrays["Hit_e"]))
    mantissas = np.unique(hits[hits != 0].view(np.uint32) & 0x7FFFFF)
    assert len(mantissas) == 64
    assert not np.any(mantissas & 0x1FFFF)
    assert not np.array_equal(arrays["flag0"], arrays["flag1"])


def test_manifest_agrees_with_uproot(tiny_catalogue: FolderCatalogue) -> None:
    layout = tiny_catalogue.manifest("tiny").files[0].layout
    (file,) = tiny_catalogue.files("tiny")
    with uproot.open(file.url) as opened:
        tree = opened["events"]
        # Read the headers of the baskets in the file, not the tree's table of them.
        keys = [
            (branch.basket_entry_start_stop(i)[0], branch.basket_key(i))
            for branch in tree.branches
            for i in range(branch.num_baskets)
        ]
        sizes = [key.fNbytes for _, key in keys]
        unzipped = [branch.uncompressed_bytes for branch in tree.branches]
        starts = np.array([0, 500, 1000])
    assert layout.branches == len(unzipped)
    assert layout.basket_zipped_bytes.count == len(sizes)
    assert layout.zipped_bytes == sum(sizes)
    assert layout.basket_zipped_bytes.maximum == max(sizes)
    assert layout.basket_zipped_bytes.median == pytest.approx(np.median(sizes))
    assert layout.unzipped_bytes == sum(unzipped)
    clusters = np.zeros(3, dtype=int)
    for (start, _), size in zip(keys, sizes, strict=True):
        clusters[np.searchsorted(starts, start, side="right") - 1] += size
    assert layout.clusters == 3
    assert layout.cluster_zipped_bytes.minimum == clusters.min()
    assert layout.cluster_zipped_bytes.maximum == clusters.max()
    assert layout.embedded_bytes == 0


@pytest.mark.usefixtures("warm_actions_of_test")
def test_main_tree_of_two_files_is_found(
    tiny_catalogue: FolderCatalogue, software: Software, tmp_path: Path
) -> None:
    events = {"pt": np.arange(50, dtype=np.float32), "eta": np.ones(50, dtype=np.float32)}
    paths = [tmp_path / "one.root", tmp_path / "two.root"]
    for path in paths:
        with uproot.recreate(path) as file:
            file.mktree("metadata", {"x": "int32"}).extend({"x": np.arange(60, dtype=np.int32)})
            file.mktree("deep/Events", {"pt": "float32", "eta": "float32"}).extend(events)
    catalogue = FolderCatalogue(tmp_path / "datasets")
    manifest = catalogue.add("ours", paths, software("6.40.00"))
    assert manifest.tree == "deep/Events"
    assert [file.layout.entries for file in manifest.files] == [50, 50]
    assert catalogue.add("ours", paths, software("6.40.00")) == manifest
    other = catalogue.add("other", paths, software("6.40.00"), tree="metadata")
    assert other.tree == "metadata"


@pytest.mark.usefixtures("warm_actions_of_test")
def test_files_without_tree_are_refused(software: Software, tmp_path: Path) -> None:
    catalogue = FolderCatalogue(tmp_path / "datasets")
    text = tmp_path / "text.root"
    text.write_text("not at all")
    with pytest.raises(DatasetError, match="cannot be opened as a ROOT file") as caught:
        catalogue.add("ours", [text], software("6.40.00"))
    assert caught.value.where == str(text)
    empty = tmp_path / "empty.root"
    with uproot.recreate(empty) as file:
        file.mktree("Events", {"pt": "float32"})
    with pytest.raises(DatasetError, match="'Events' is empty"):
        catalogue.add("ours", [empty], software("6.40.00"))
    with pytest.raises(DatasetError, match="has no tree 'Evnts'; it has Events"):
        catalogue.add("ours", [empty], software("6.40.00"), tree="Evnts")
    text.write_bytes(empty.read_bytes().replace(b"Events", b"\xc9vents"))
    with pytest.raises(DatasetError, match="no UTF-8: write or copy it again"):
        catalogue.add("ours", [text], software("6.40.00"))
    assert catalogue.names() == ()


@pytest.mark.usefixtures("warm_actions_of_test")
def test_files_of_experiments_are_measured(
    shared_data: Path, software: Software, tmp_path: Path
) -> None:
    catalogue = FolderCatalogue(tmp_path)
    root = software("6.40.00")
    nano = catalogue.add("nanoaod", [shared_data / "cms-nanoaod-2015-ttbar.root"], root)
    layout = nano.files[0].layout
    assert (nano.tree, layout.entries, layout.branches) == ("Events", 200, 947)
    # Nearly all baskets of this file are embedded in the tree's record.
    assert 0.5 * layout.zipped_bytes < layout.embedded_bytes < layout.zipped_bytes
    assert layout.zipped_bytes < nano.size
    with uproot.open(shared_data / "cms-nanoaod-2015-ttbar.root") as file:
        branches = file["Events"].branches
        assert layout.basket_zipped_bytes.count == sum(branch.num_baskets for branch in branches)
        assert layout.embedded_baskets == sum(len(branch.embedded_baskets) for branch in branches)
    assert layout.branch_ratio.count == 947
    assert layout.branch_ratio.minimum <= layout.ratio <= layout.branch_ratio.maximum
    assert layout.cluster_zipped_bytes.median == pytest.approx(layout.zipped_bytes, rel=0.01)
    # The file holds ten RNTuples; the largest is the main one.
    ntuple = catalogue.add("ntuple", [shared_data / "atlas-physlite-rntuple.root"], root)
    layout = ntuple.files[0].layout
    assert (ntuple.tree, layout.format) == ("EventData", "rntuple")
    assert (layout.entries, layout.branches) == (100, 854)
    assert "EventTag" in ntuple.origin["other_trees"]


HERE = Path(__file__).parent
PATIENCE_S = 600


def _start(folder: Path, spec_file: Path, *prefix: str) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, *map(str, (HERE / "make_tiny.py", folder, spec_file))]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _half_made(folder: Path) -> list[Path]:
    return [path for path in folder.glob(".tiny.part-*/tiny.root") if path.stat().st_size > 100_000]


@pytest.fixture
def long_spec(tmp_path: Path) -> Path:
    """Write a spec of ``tiny`` with enough events to interrupt its generation."""
    path = tmp_path / "long" / "tiny.toml"
    path.parent.mkdir()
    text = (HERE / "tiny.toml").read_text(encoding="utf-8")
    path.write_text(text.replace("entries = 1500", "entries = 3000000"), encoding="utf-8")
    return path


def test_concurrent_processes_make_dataset_once(
    tmp_path: Path, tiny: dataset_specs.GeneratedSpec, software: Callable[[str], SoftwareRequest]
) -> None:
    software("6.40.00")
    folder = tmp_path / "datasets"
    processes = [_start(folder, HERE / "tiny.toml") for _ in range(2)]
    outputs = [process.communicate(timeout=PATIENCE_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    made = [errors for _, errors in outputs if "Making tiny" in errors]
    verified = [errors for _, errors in outputs if "Verifying tiny" in errors]
    assert len(made) == len(verified) == 1
    assert FolderCatalogue(folder).verify("tiny").size > 0


@pytest.mark.usefixtures("warm_actions_of_test")
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_make_leaves_no_files(
    stop: signal.Signals,
    tmp_path: Path,
    long_spec: Path,
    tiny: dataset_specs.GeneratedSpec,
    software: Callable[[str], SoftwareRequest],
) -> None:
    root = software("6.40.00")
    catalogue = FolderCatalogue(tmp_path / "datasets")
    process = _start(catalogue.root, long_spec)
    try:
        wait_until(lambda: _half_made(catalogue.root), "a half-made file")
        (child,) = psutil.Process(process.pid).children()
        process.send_signal(stop)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not is_alive(child.pid), "the end of the ROOT process")
    assert process.returncode != 0
    assert catalogue.names() == ()
    if stop is signal.SIGINT:
        assert not list(catalogue.root.glob(".tiny.part-*"))
    catalogue.make(tiny, root)
    assert catalogue.names() == ("tiny",)
    assert not list(catalogue.root.glob(".tiny.part-*"))


def test_write_error_is_reported(
    tmp_path: Path, long_spec: Path, software: Callable[[str], SoftwareRequest]
) -> None:
    software("6.40.00")
    folder = tmp_path / "datasets"
    # A function between fork and exec may wait forever for a lock of another thread.
    process = _start(folder, long_spec, "prlimit", "--fsize=1000000")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, errors
    assert "refused: " in errors
    assert "tiny.root cannot be written; " in errors
    assert "MB are free" in errors
    assert "ROOT said: " in errors
    assert "Traceback" not in errors
    assert not list(folder.glob(".tiny.part-*"))
    assert FolderCatalogue(folder).names() == ()
