"""Placing datasets on storages, and damaging replicas."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from byte_datasets import write_dataset

from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import digest_file
from treehammer.errors import ConfigError, DatasetError, TestbedError
from treehammer.testbed.components import site_list
from treehammer.testbed.components.site_list import corrupt_file, place_dataset, replica_path
from treehammer.testbed.components.xrootd_storage import storage_folder
from treehammer.testbed.workspace import Workspace

SITES = ("SITE_A", "SITE_B")
CONTENT = {"one.root": os.urandom(100_000), "two.root": b"two"}


@pytest.fixture
def catalogue(tmp_path: Path) -> FolderCatalogue:
    """A catalogue with the dataset ``made`` of two files."""
    write_dataset(tmp_path / "datasets", "made", CONTENT)
    return FolderCatalogue(tmp_path / "datasets")


@pytest.fixture
def box(tmp_path: Path) -> Workspace:
    made = Workspace("box", tmp_path / "box", tmp_path / "cache", sites=SITES)
    for site in SITES:
        storage_folder(made, site).mkdir(parents=True)
    return made


def at(box: Workspace, site: str) -> dict[str, bytes]:
    folder = replica_path(box, site, "made", "x").parent
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_correct_replicas_stay_and_others_are_replaced(
    catalogue: FolderCatalogue, box: Workspace
) -> None:
    assert place_dataset("made", catalogue, box) == {"SITE_A": 2, "SITE_B": 2}
    assert at(box, "SITE_A") == at(box, "SITE_B") == CONTENT
    corrupt_file(replica_path(box, "SITE_B", "made", "one.root"))
    replica_path(box, "SITE_A", "made", "two.root").unlink()
    assert place_dataset("made", catalogue, box) == {"SITE_A": 1, "SITE_B": 1}
    assert place_dataset("made", catalogue, box) == {"SITE_A": 0, "SITE_B": 0}
    assert at(box, "SITE_A") == at(box, "SITE_B") == CONTENT


def test_dataset_is_placed_at_named_sites_only(catalogue: FolderCatalogue, box: Workspace) -> None:
    assert place_dataset("made", catalogue, box, ["SITE_B", "SITE_B"]) == {"SITE_B": 2}
    assert at(box, "SITE_A") == {}


@pytest.mark.parametrize("name", ["one.root", "two.root"])
def test_corruption_keeps_size_and_time(
    catalogue: FolderCatalogue, box: Workspace, name: str
) -> None:
    place_dataset("made", catalogue, box, ["SITE_A"])
    path = replica_path(box, "SITE_A", "made", name)
    before = path.stat()
    corrupt_file(path)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert digest_file(path).adler32 != digest_file(catalogue.folder("made") / name).adler32


def test_unknown_site_and_dataset_are_refused(catalogue: FolderCatalogue, box: Workspace) -> None:
    with pytest.raises(ConfigError, match="SITE_A, SITE_B"):
        place_dataset("made", catalogue, box, ["SITE_X"])
    with pytest.raises(DatasetError, match="there is no dataset 'mad'"):
        place_dataset("mad", catalogue, box)


def test_changed_source_is_not_placed(catalogue: FolderCatalogue, box: Workspace) -> None:
    corrupt_file(catalogue.folder("made") / "one.root")
    with pytest.raises(DatasetError, match="has changed"):
        place_dataset("made", catalogue, box)
    assert at(box, "SITE_A") == {}


def test_full_disk_leaves_no_partial_copy(
    catalogue: FolderCatalogue, box: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, advance: object = None, *, copy_to: Path | None = None) -> None:
        assert copy_to is not None
        copy_to.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(site_list, "digest_file", full)
    with pytest.raises(TestbedError, match="the disk is full"):
        place_dataset("made", catalogue, box)
    assert at(box, "SITE_A") == {}
