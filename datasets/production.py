"""Production of dataset files.

Raw files need no ROOT: their bytes depend on seed, file and position alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.datasets import root_process
from treehammer.datasets.manifest import FileDigest, digest_blocks, digest_file
from treehammer.datasets.specs.dataset_specs import GeneratedSpec, MergedSpec, RawSpec
from treehammer.datasets.tree_measurement import measure_files
from treehammer.errors import DatasetError
from treehammer.text_formatting import ProgressCallback

#: Bytes that one hash yields; part of the definition of the files.
RAW_BLOCK_BYTES = 1 << 20


def write_generated_file(
    spec: GeneratedSpec, software: SoftwareRequest, path: Path, on_done: ProgressCallback
) -> dict[str, Any]:
    """Write the file of a generated dataset; returns its facts for the manifest.

    Args:
        spec: the spec.
        software: ROOT, from :func:`prepare_dataset_root`.
        path: the file to create.
        on_done: receives the number of events written.

    Raises:
        DatasetError: the file cannot be written.
        SoftwareError: this ROOT cannot be used.
    """
    request = {
        "path": str(path),
        "file_name": spec.file_names[0],
        "tree": spec.tree,
        "entries": spec.entries,
        "compression": spec.layout.compression_setting,
        "events_per_cluster": spec.layout.events_per_cluster,
        "collections": spec.plan_collections(),
        "branches": spec.plan_branches(),
    }
    return root_process.run_action("make", request, software, on_done)


def write_merged_file(
    spec: MergedSpec, source: Path, software: SoftwareRequest, path: Path, on_done: ProgressCallback
) -> dict[str, Any]:
    """Rewrite the events of the source; returns the file's facts for the manifest.

    Args:
        spec: the spec.
        source: from :func:`find_source`.
        software: ROOT, from :func:`prepare_dataset_root`.
        path: the file to create.
        on_done: receives the number of events written.

    Raises:
        DatasetError: the source differs from the spec, or the file cannot be written.
        SoftwareError: this ROOT cannot be used.
    """
    request = {
        "path": str(path),
        "file_name": spec.file_names[0],
        "source": str(source),
        "tree": spec.tree,
        "entries": spec.source.entries,
        "branches": spec.source.branches,
        "copies": spec.merged.copies,
        "kept_bits": spec.merged.kept_bits,
        "seed": spec.dataset.seed,
        "compression": spec.layout.compression_setting,
        "events_per_cluster": spec.layout.events_per_cluster,
        "basket_memory": spec.layout.basket_memory,
    }
    writer_facts = root_process.run_action("merge", request, software, on_done)
    (layout,), _ = measure_files([source], software, tree=spec.tree)
    source_facts = spec.source.model_dump(include={"file", "about", "size", "sha256"})
    return {**writer_facts, "source": {**source_facts, "layout": asdict(layout)}}


def find_source(spec: MergedSpec, location: Path | None) -> Path:
    """Find the source file of a merged dataset and verify its checksum.

    Args:
        spec: names the file.
        location: the file, or a folder that holds it under any name; None where none was given.

    Raises:
        DatasetError: it is missing, or is another file.
    """
    source = spec.source
    hint = (
        f"Required: {source.about}.\n  Give the file, or a folder that holds it, with "
        f"'treehammer datasets make {spec.name} --source PATH', or set sources_dir "
        "in treehammer.toml or as TREEHAMMER_SOURCES_DIR."
    )
    if location is None:
        raise DatasetError(
            f"is made from {source.file}, which is not shipped with Treehammer",
            where=spec.name,
            hint=hint,
        )
    try:
        if location.is_dir():
            # The file of the right name first; only those of the right size are read.
            for path in sorted(location.iterdir(), key=lambda p: (p.name != source.file, p.name)):
                is_candidate = path.is_file() and path.stat().st_size == source.size
                if is_candidate and digest_file(path).sha256 == source.sha256:
                    return path
            problem = (
                f"no file there is {source.file} ({source.size} bytes, sha256 {source.sha256})"
            )
        else:
            digest = digest_file(location)
            if digest.sha256 == source.sha256:
                return location
            problem = (
                f"has {digest.size} bytes with sha256 {digest.sha256}; {source.file} has "
                f"{source.size} bytes with {source.sha256}"
            )
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    raise DatasetError(problem, where=str(location), hint=hint)


def write_raw_file(
    spec: RawSpec, index: int, path: Path, advance: Callable[[int], None]
) -> FileDigest:
    """Write a file block by block; ``advance`` receives the bytes of each block."""
    with path.open("xb") as stream:
        return digest_blocks(generate_blocks(spec, index), advance, stream)


def generate_blocks(spec: RawSpec, index: int) -> Iterator[bytes]:
    """Generate a file's bytes: block N is SHAKE-128 of ``treehammer/raw/SEED/FILE/N``.

    Args:
        spec: the spec.
        index: number of the file, from 0.
    """
    for start in range(0, spec.file_size, RAW_BLOCK_BYTES):
        key = f"treehammer/raw/{spec.dataset.seed}/{index}/{start // RAW_BLOCK_BYTES}"
        size = min(RAW_BLOCK_BYTES, spec.file_size - start)
        yield hashlib.shake_128(key.encode()).digest(size)
