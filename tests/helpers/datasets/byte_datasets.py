"""Datasets whose files hold no trees: what matters is that every byte arrives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from treehammer.datasets.manifest import (
    MANIFEST_NAME,
    Distribution,
    Manifest,
    ManifestFile,
    TreeLayout,
    digest_file,
)

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
