"""Merged datasets: the events of a given ROOT file, rewritten many times into a larger one.

The file itself is not shipped: it is somebody else's, known here by its checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.datasets.model.file_digest import digest_file
from treehammer.datasets.production import layout_measurement, root_process
from treehammer.datasets.specs.spec_schema import (
    ALGORITHMS,
    CompressionLevel,
    DatasetSpecBase,
    DatasetTable,
    PositiveInt,
    SpecTable,
)
from treehammer.errors import DatasetError


@dataclass(frozen=True)
class MergeSource:
    """The file whose events are rewritten.

    Attributes:
        file: the name it was published under.
        about: what it is and where it comes from, for people.
        entries: of its tree.
        branches: top-level ones of its tree.
    """

    file: str
    description: str
    size: int
    sha256: str
    entries: int
    branches: int


@dataclass(frozen=True)
class MergedSpec(DatasetSpecBase):
    """A dataset of real events.

    Attributes:
        source: the file that they come from.
        copies: how many times each event is written.  The first copy is the event itself.
        kept_bits: leading bits of the mantissa that every copy of a floating-point value shares.
            Of the bits below, those that the branch makes use of are drawn anew for each copy.
        basket_memory: bytes of all baskets together, for ``TTree::OptimizeBaskets``.
    """

    seed: int
    source: MergeSource
    copies: int
    kept_bits: int
    basket_memory: int

    @property
    def branch_count(self) -> int:
        """Top-level branches."""
        return self.source.branches


def _check_file_name(value: str) -> str:
    if Path(value).name != value:
        raise ValueError(f"{value!r} is not the name of a file without its folder")
    return value


class _SourceTable(SpecTable):
    file: Annotated[str, AfterValidator(_check_file_name)]
    about: str
    size: PositiveInt
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    tree: Annotated[str, Field(min_length=1)]
    entries: PositiveInt
    branches: PositiveInt


class _MergedTable(SpecTable):
    copies: PositiveInt
    kept_bits: Annotated[int, Field(ge=0, le=23)]


class _MergedLayoutTable(SpecTable):
    compression: Literal["zlib", "lzma", "lz4", "zstd"]
    level: CompressionLevel
    events_per_cluster: PositiveInt
    basket_memory: PositiveInt


class _MergedSpecDocument(SpecTable):
    dataset: DatasetTable
    source: _SourceTable
    merged: _MergedTable
    layout: _MergedLayoutTable

    @model_validator(mode="after")
    def _check_entries(self) -> Self:
        entries = self.merged.copies * self.source.entries
        if self.dataset.entries != entries:
            raise ValueError(
                f"dataset.entries is {self.dataset.entries}, but {self.merged.copies} copies of "
                f"{self.source.entries} events are {entries}"
            )
        return self


def parse_merged_spec(raw: dict[str, Any], text_hash: str) -> MergedSpec:
    """The spec in a TOML document.

    Raises:
        pydantic.ValidationError: it has mistakes.
    """
    document = _MergedSpecDocument.model_validate(raw)
    dataset, source, layout = document.dataset, document.source, document.layout
    return MergedSpec(
        name=dataset.name,
        description=dataset.description,
        root=dataset.root,
        size=dataset.size,
        sha256=dataset.sha256,
        tree=source.tree,
        entries=dataset.entries,
        events_per_cluster=layout.events_per_cluster,
        compression=100 * ALGORITHMS[layout.compression] + layout.level,
        text_hash=text_hash,
        seed=dataset.seed,
        source=MergeSource(
            source.file, source.about, source.size, source.sha256, source.entries, source.branches
        ),
        copies=document.merged.copies,
        kept_bits=document.merged.kept_bits,
        basket_memory=layout.basket_memory,
    )


def find_source(spec: MergedSpec, given: Path | None) -> Path:
    """The source file, verified by its checksum.

    Args:
        spec: says which file it is.
        given: the file, or a folder that holds it under any name; None when nobody has said.

    Raises:
        DatasetError: it is not there, or is another file.
    """
    source = spec.source
    hint = (
        f"Wanted is {source.description}.\n  Give it, or a folder that holds it, with "
        f"'treehammer datasets make {spec.name} --source PATH', or name the folder as sources_dir "
        "in treehammer.toml or as TREEHAMMER_SOURCES_DIR."
    )
    if given is None:
        raise DatasetError(
            f"is made from {source.file}, which does not come with treehammer",
            where=spec.name,
            hint=hint,
        )
    try:
        if given.is_dir():
            for path in _find_candidates(given, source):
                if digest_file(path).sha256 == source.sha256:
                    return path
            wrong = f"no file there is {source.file} ({source.size} bytes, sha256 {source.sha256})"
        else:
            found = digest_file(given)
            if found.sha256 == source.sha256:
                return given
            wrong = (
                f"has {found.size} bytes with sha256 {found.sha256}; {source.file} has "
                f"{source.size} bytes with {source.sha256}"
            )
    except OSError as error:
        wrong = f"cannot be read ({error.strerror})"
    raise DatasetError(wrong, where=str(given), hint=hint)


def _find_candidates(folder: Path, source: MergeSource) -> Iterator[Path]:
    """Files of the right size, the one of the right name first."""
    paths = sorted(folder.iterdir(), key=lambda path: (path.name != source.file, path.name))
    return (path for path in paths if path.is_file() and path.stat().st_size == source.size)


def write_merged_file(
    spec: MergedSpec,
    source: Path,
    software: SoftwareRequest,
    path: Path,
    on_done: Callable[[int], None],
) -> dict[str, Any]:
    """Rewrite the events of the source and return what the manifest tells about it.

    Args:
        spec: what to write.
        source: from :func:`find_source`.
        software: the ROOT to do it with, from :func:`treehammer.datasets.production.root_process.prepare_dataset_root`.
        path: the file to create.
        on_done: is told the events written.

    Raises:
        DatasetError: the source does not hold what the spec says, or the file cannot be written.
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
    made = root_process.run_action("merge", request, software, on_done)
    (layout,) = layout_measurement.measure_layouts([source], software, tree=spec.tree)
    facts = {
        "file": spec.source.file,
        "about": spec.source.description,
        "size": spec.source.size,
        "sha256": spec.source.sha256,
        "layout": asdict(layout),
    }
    return {**made, "source": facts}
