"""Writers of generated and merged datasets, through a ROOT process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.datasets.model.file_digest import digest_file
from treehammer.datasets.production import layout_measurement, root_process
from treehammer.datasets.specs.generated_spec import GeneratedSpec
from treehammer.datasets.specs.merged_spec import MergedSpec, MergeSource
from treehammer.errors import DatasetError


def write_generated_file(
    plan: GeneratedSpec, software: SoftwareRequest, path: Path, on_done: Callable[[int], None]
) -> dict[str, Any]:
    """Write the file of a generated dataset; returns its facts for the manifest.

    Args:
        plan: the spec.
        software: ROOT, from :func:`.root_process.prepare_dataset_root`.
        path: the file to create.
        on_done: receives the number of events written.

    Raises:
        DatasetError: the file cannot be written.
        SoftwareError: this ROOT cannot be used.
    """
    request = {
        "path": str(path),
        "file_name": plan.file_name,
        "tree": plan.tree,
        "entries": plan.entries,
        "compression": plan.compression,
        "events_per_cluster": plan.events_per_cluster,
        "collections": [asdict(collection) for collection in plan.collections],
        "branches": [asdict(branch) for branch in plan.branches],
    }
    return root_process.run_action("make", request, software, on_done)


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
        f"Required: {source.description}.\n  Give the file, or a folder that holds it, with "
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
            for path in _find_candidates(location, source):
                if digest_file(path).sha256 == source.sha256:
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


def _find_candidates(folder: Path, source: MergeSource) -> Iterator[Path]:
    """List files of the right size, the one of the right name first."""
    paths = sorted(folder.iterdir(), key=lambda path: (path.name != source.file, path.name))
    return (path for path in paths if path.is_file() and path.stat().st_size == source.size)


def write_merged_file(
    spec: MergedSpec,
    source: Path,
    software: SoftwareRequest,
    path: Path,
    on_done: Callable[[int], None],
) -> dict[str, Any]:
    """Rewrite the events of the source; returns the file's facts for the manifest.

    Args:
        spec: the spec.
        source: from :func:`find_source`.
        software: ROOT, from :func:`.root_process.prepare_dataset_root`.
        path: the file to create.
        on_done: receives the number of events written.

    Raises:
        DatasetError: the source differs from the spec, or the file cannot be written.
        SoftwareError: this ROOT cannot be used.
    """
    request = {
        "path": str(path),
        "file_name": spec.file_name,
        "source": str(source),
        "tree": spec.tree,
        "entries": spec.source.entries,
        "branches": spec.source.branches,
        "copies": spec.copies,
        "kept_bits": spec.kept_bits,
        "seed": spec.seed,
        "compression": spec.compression,
        "events_per_cluster": spec.events_per_cluster,
        "basket_memory": spec.basket_memory,
    }
    writer_facts = root_process.run_action("merge", request, software, on_done)
    (layout,) = layout_measurement.measure_layouts([source], software, tree=spec.tree)
    source_facts = {
        "file": spec.source.file,
        "about": spec.source.description,
        "size": spec.source.size,
        "sha256": spec.source.sha256,
        "layout": asdict(layout),
    }
    return {**writer_facts, "source": source_facts}
