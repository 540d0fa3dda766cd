"""Checks of datasets: files, pinned checksums and names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from treehammer.datasets.manifest import (
    DATASET_NAME,
    MANIFEST_NAME,
    FileDigest,
    Manifest,
    ManifestFile,
    digest_file,
)
from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import RawSpec
from treehammer.errors import DatasetError


def check_pinned_checksum(
    spec: dataset_specs.RootSpec, content: FileDigest, writer: Mapping[str, str]
) -> None:
    """Refuse a file that differs from the pinned one; ``writer`` describes its software.

    Raises:
        DatasetError: The file differs.
    """
    pinned = spec.dataset
    if pinned.sha256 and (content.size, content.sha256) != (pinned.size, pinned.sha256):
        raise DatasetError(
            f"ROOT {writer['root']} with zlib {writer['zlib']} made {content.size} bytes with "
            f"sha256 {content.sha256}; pinned are {pinned.size} bytes with {pinned.sha256}",
            where=spec.file_names[0],
            # ROOT's wheels use the zlib of the machine.
            hint=f"Only equal files may bear the name: make it with ROOT {pinned.root} on a machine "
            "whose zlib is the original (zlib-ng writes other bytes), and copy the folder.",
        )


def check_pinned_hash(spec: RawSpec, manifest: Manifest) -> None:
    """Refuse raw files that differ from the pinned ones.

    Raises:
        DatasetError: The files differ.
    """
    pinned = spec.dataset.hash
    if pinned and manifest.hash != pinned:
        raise DatasetError(
            f"the files made have the identity {manifest.hash}; pinned is {pinned}",
            where=spec.name,
            hint="Correct hash, seed, files or size in the spec.",
        )


def find_file_mismatches(manifest: Manifest, folder: Path) -> Iterator[str]:
    """List files that are missing, unexpected or of another size."""
    expected = {file.name: file.size for file in manifest.files}
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.exists()}
    for name, size in expected.items():
        if name not in sizes:
            yield f"{name} is missing"
        elif sizes[name] != size:
            yield f"{name} has {sizes[name]} bytes instead of {size}"
    for name in sorted(sizes.keys() - expected.keys() - {MANIFEST_NAME}):
        yield f"{name} is not a file of the dataset"


def find_checksum_mismatches(
    file: ManifestFile, path: Path, advance: Callable[[int], None]
) -> Iterator[str]:
    """List the checksums of a file that differ; ``advance`` receives the bytes of each block."""
    try:
        content = digest_file(path, advance)
    except OSError as error:
        yield f"{file.name} cannot be read ({error.strerror})"
        return
    for kind in ("adler32", "sha256"):
        actual, expected = getattr(content, kind), getattr(file, kind)
        if actual != expected:
            yield f"{file.name} has {kind} {actual} instead of {expected}"


def find_spec_mismatch(manifest: Manifest) -> Iterator[str]:
    """Report a difference between the manifest and the shipped spec of that name."""
    spec = dataset_specs.load_shipped_spec(manifest.name)
    if isinstance(spec, RawSpec):
        differs = spec.dataset.hash not in ("", manifest.hash)
    else:
        pinned = [spec.dataset.sha256] * spec.file_count if spec and spec.dataset.sha256 else []
        differs = bool(pinned) and [f.sha256 for f in manifest.files] != pinned
    if differs:
        yield "it was made by another version of treehammer, from another spec"


def check_new_name(name: str) -> None:
    """Refuse a name that a user's dataset cannot have.

    Raises:
        DatasetError: The name is malformed or reserved.
    """
    if not DATASET_NAME.fullmatch(name):
        suggestion = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip(".-_")[:100]
        raise DatasetError(
            "a dataset's name has lower-case letters, digits, '.', '_' and '-' only",
            where=name,
            hint=f"For example: {suggestion}" if DATASET_NAME.fullmatch(suggestion) else "",
        )
    if name in dataset_specs.list_shipped_specs():
        raise DatasetError("is the name of a shipped dataset", where=name, hint="Choose another.")


def check_added_files(name: str, paths: Sequence[Path]) -> None:
    """Refuse a name or files that cannot form a dataset.

    Raises:
        DatasetError: A name or a file is not usable.
    """
    check_new_name(name)
    for path in paths:
        if not path.is_file():
            raise DatasetError("there is no regular file of this name", where=str(path))
        require_root_file(path, str(path))
    names = choose_file_names(paths)
    if len(set(names)) < len(names) or MANIFEST_NAME in names:
        raise DatasetError(
            "the files of a dataset need names of their own", where=", ".join(sorted(names))
        )


def require_root_file(path: Path, where: str) -> None:
    """Raise a DatasetError on ``where`` if a file is certainly none of ROOT, by its first bytes."""
    with path.open("rb") as file:
        start = file.read(500).lstrip()
    if not start.startswith(b"root"):
        kind = "a web page or XML" if start.startswith(b"<") else "of another format"
        problem = f"cannot be opened as a ROOT file: it is {kind if start else 'empty'}"
        raise DatasetError(problem, where=where, hint="Copy it again, and look into the copy.")


def choose_file_names(paths: Sequence[Path]) -> list[str]:
    """Choose the names of files in their dataset, which reach servers and libraries in addresses.

    ROOT, RDataFrame and uproot take brackets, colons and other characters for patterns, options or
    names of objects, and not all doors decode an address. Each such character becomes an underscore.
    """
    return [re.sub(r"[^A-Za-z0-9._+=@-]", "_", path.name) for path in paths]
