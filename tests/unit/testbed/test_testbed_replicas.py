"""Putting datasets on storages, and damaging what is there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from treehammer.datasets.catalogue import FolderCatalogue
from treehammer.datasets.content import digest
from treehammer.datasets.manifest import Distribution, Manifest, ManifestFile, TreeLayout
from treehammer.errors import ConfigError, DatasetError, TestbedError
from treehammer.testbed import replicas
from treehammer.testbed.parts import Box
from treehammer.testbed.storage import storage_of

SITES = ("SITE_A", "SITE_B")
NONE = Distribution(0, 0, 0, 0, 0, 0)
LAYOUT = TreeLayout("events", "TTree", 1, 1, 1, 1, 0, 1.0, 1, NONE, NONE, NONE)
CONTENT = {"one.root": os.urandom(100_000), "two.root": b"two"}


@pytest.fixture
def catalogue(tmp_path: Path) -> FolderCatalogue:
    """It has the dataset ``made``, of two files."""
    folder = tmp_path / "datasets" / "made"
    folder.mkdir(parents=True)
    files = []
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
        found = digest(folder / name)
        files.append(ManifestFile(name, found.size, found.adler32, found.sha256, LAYOUT))
    origin = {"kind": "added", "description": ""}
    text = Manifest("made", tuple(files), origin).to_json()
    (folder / "manifest.json").write_text(text)
    return FolderCatalogue(tmp_path / "datasets")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    made = Box("box", tmp_path / "box", tmp_path / "cache", SITES)
    for site in SITES:
        storage_of(made, site).mkdir(parents=True)
    return made


def at(box: Box, site: str) -> dict[str, bytes]:
    folder = replicas.replica(box, site, "made", "x").parent
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_every_site_gets_every_file(catalogue: FolderCatalogue, box: Box) -> None:
    assert replicas.put("made", catalogue, box) == {"SITE_A": 2, "SITE_B": 2}
    assert at(box, "SITE_A") == at(box, "SITE_B") == CONTENT


def test_what_is_right_stays_and_what_is_not_is_replaced(
    catalogue: FolderCatalogue, box: Box
) -> None:
    replicas.put("made", catalogue, box)
    replicas.corrupt(replicas.replica(box, "SITE_B", "made", "one.root"))
    replicas.replica(box, "SITE_A", "made", "two.root").unlink()

    assert replicas.put("made", catalogue, box) == {"SITE_A": 1, "SITE_B": 1}
    assert replicas.put("made", catalogue, box) == {"SITE_A": 0, "SITE_B": 0}
    assert at(box, "SITE_A") == at(box, "SITE_B") == CONTENT


def test_only_the_sites_that_were_named(catalogue: FolderCatalogue, box: Box) -> None:
    assert replicas.put("made", catalogue, box, ["SITE_B", "SITE_B"]) == {"SITE_B": 2}
    assert at(box, "SITE_A") == {}


@pytest.mark.parametrize("name", ["one.root", "two.root"])
def test_damage_shows_in_the_content_alone(catalogue: FolderCatalogue, box: Box, name: str) -> None:
    replicas.put("made", catalogue, box, ["SITE_A"])
    path = replicas.replica(box, "SITE_A", "made", name)
    before = path.stat()
    replicas.corrupt(path)

    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert digest(path).adler32 != digest(catalogue.folder("made") / name).adler32


def test_unknown_names_are_refused(catalogue: FolderCatalogue, box: Box) -> None:
    with pytest.raises(ConfigError, match="SITE_A, SITE_B"):
        replicas.put("made", catalogue, box, ["SITE_X"])
    with pytest.raises(DatasetError, match="there is no dataset 'mad'"):
        replicas.put("mad", catalogue, box)


def test_a_changed_source_is_put_nowhere(catalogue: FolderCatalogue, box: Box) -> None:
    replicas.corrupt(catalogue.folder("made") / "one.root")

    with pytest.raises(DatasetError, match="has changed"):
        replicas.put("made", catalogue, box)
    assert at(box, "SITE_A") == {}


def test_a_full_disk_is_told_and_leaves_nothing_half_copied(
    catalogue: FolderCatalogue, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, advance: object = None, *, copy_to: Path | None = None) -> None:
        assert copy_to is not None
        copy_to.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(replicas, "digest", full)
    with pytest.raises(TestbedError, match="the disk is full"):
        replicas.put("made", catalogue, box)
    assert at(box, "SITE_A") == {}
