"""Datasets whose files hold no trees: what matters is that every byte arrives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from treehammer.datasets.content import digest
from treehammer.datasets.manifest import (
    MANIFEST_NAME,
    Distribution,
    Manifest,
    ManifestFile,
    TreeLayout,
)

NONE = Distribution(0, 0, 0, 0, 0, 0)
LAYOUT = TreeLayout("events", "ttree", 1, 1, 1, 1, 0, 1.0, 1, NONE, NONE, NONE)


def lay(root: Path, name: str, contents: Mapping[str, bytes]) -> Manifest:
    """Have a dataset in a folder catalogue."""
    folder = root / name
    folder.mkdir(parents=True)
    files = []
    for file, content in contents.items():
        (folder / file).write_bytes(content)
        found = digest(folder / file)
        files.append(ManifestFile(file, found.size, found.adler32, found.sha256, LAYOUT))
    manifest = Manifest(name, tuple(files), {"kind": "added", "description": ""})
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return manifest
