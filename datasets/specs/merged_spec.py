"""Merged datasets: the events of a given ROOT file, rewritten many times into a larger one.

The file itself is not shipped, only its checksum is known: others publish it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from treehammer.datasets.specs.spec_schema import (
    ALGORITHMS,
    CompressionLevel,
    DatasetSpecBase,
    DatasetTable,
    PositiveInt,
    SpecTable,
)


@dataclass(frozen=True)
class MergeSource:
    """The file whose events are rewritten.

    Attributes:
        file: the name it was published under.
        description: its content and origin, for people.
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
            Lower bits that the branch uses are drawn at random for each copy.
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
    """Parse the spec in a TOML document.

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
