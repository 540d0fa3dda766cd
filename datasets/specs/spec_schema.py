"""Schemas of dataset specs: the tables that all have, raw datasets, and merged datasets.

A raw dataset consists of files of seeded bytes without a tree, for load tests.  A merged one holds
the events of a given ROOT file, rewritten many times into a larger file; that file is not shipped,
only its checksum is known, since others publish it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

DATASET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")

#: Compression algorithms and the number ROOT gives each.
ALGORITHMS = {"zlib": 1, "lzma": 2, "lz4": 4, "zstd": 5}


@dataclass(frozen=True)
class DatasetSpecBase:
    """A dataset that can be made.

    Attributes:
        name: of the dataset, and of its one file without ``.root``.
        compression: as ROOT counts, 100 * algorithm + level.
        root: the release its checksum was pinned with.
        size: expected bytes of the file, 0 where nothing is pinned.
        sha256: expected checksum of the file, '' where nothing is pinned.
        text_hash: sha256 of the spec's text.
    """

    name: str
    description: str
    root: str
    size: int
    sha256: str
    tree: str
    entries: int
    events_per_cluster: int
    compression: int
    text_hash: str

    @property
    def file_name(self) -> str:
        """Name of the one file."""
        return f"{self.name}.root"

    @property
    def branch_count(self) -> int:
        """Top-level branches."""
        raise NotImplementedError


def check_dataset_name(value: str) -> str:
    """Return a valid name of a dataset.

    Raises:
        ValueError: it is not valid.
    """
    if not DATASET_NAME.fullmatch(value):
        raise ValueError("lower-case letters, digits, '.', '_' and '-' expected")
    return value


def check_identifier(value: str) -> str:
    """Return the value if it is a valid C++ identifier.

    Raises:
        ValueError: it is not.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError(f"{value!r} is not a name of letters, digits and '_'")
    return value


PositiveInt = Annotated[int, Field(ge=1)]
Identifier = Annotated[str, AfterValidator(check_identifier)]
CompressionLevel = Annotated[int, Field(ge=1, le=9)]


class SpecTable(BaseModel):
    """A table of a spec: no key but its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DatasetTable(SpecTable):
    """The [dataset] table."""

    name: Annotated[str, AfterValidator(check_dataset_name)]
    description: str
    root: str
    seed: Annotated[int, Field(ge=0)]
    entries: PositiveInt
    size: Annotated[int, Field(ge=0)] = 0
    sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""


def format_problems(error: ValidationError) -> Iterator[str]:
    """Format one line per mistake: its key and the problem."""
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "the whole"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key"
        yield f"{key}: {message}"


#: Most files of a dataset.
MAX_RAW_FILES = 100_000


@dataclass(frozen=True)
class RawSpec:
    """A dataset of equally large files.

    Attributes:
        seed: seed of the bytes.
        file_count: number of files.
        file_size: bytes of each.
        hash: expected identity of the dataset, '' where nothing is pinned.
        text_hash: sha256 of the spec's text.
    """

    name: str
    description: str
    seed: int
    file_count: int
    file_size: int
    hash: str
    text_hash: str

    tree = ""
    entries = 0
    branch_count = 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self.file_count * self.file_size

    def file_name(self, index: int) -> str:
        """Return the name of a file, counted from 0."""
        return f"{self.name}-{index:05d}.bin"


class _RawDatasetTable(SpecTable):
    name: Annotated[str, AfterValidator(check_dataset_name)]
    description: str
    seed: Annotated[int, Field(ge=0)]
    hash: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""


class _RawTable(SpecTable):
    files: Annotated[int, Field(ge=1, le=MAX_RAW_FILES)]
    size: Annotated[ByteSize, Field(ge=1, lt=2**63)]


class _RawSpecDocument(SpecTable):
    dataset: _RawDatasetTable
    raw: _RawTable


def parse_raw_spec(raw: dict[str, Any], text_hash: str) -> RawSpec:
    """Parse the spec in a TOML document.

    Raises:
        pydantic.ValidationError: it has mistakes.
    """
    document = _RawSpecDocument.model_validate(raw)
    dataset = document.dataset
    return RawSpec(
        name=dataset.name,
        description=dataset.description,
        seed=dataset.seed,
        file_count=document.raw.files,
        file_size=int(document.raw.size),
        hash=dataset.hash,
        text_hash=text_hash,
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
