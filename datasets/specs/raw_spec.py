"""Raw datasets: files of seeded bytes without a tree, for load tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, ByteSize, Field

from treehammer.datasets.specs.spec_schema import SpecTable, check_dataset_name

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


class _DatasetTable(SpecTable):
    name: Annotated[str, AfterValidator(check_dataset_name)]
    description: str
    seed: Annotated[int, Field(ge=0)]
    hash: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""


class _RawTable(SpecTable):
    files: Annotated[int, Field(ge=1, le=MAX_RAW_FILES)]
    size: Annotated[ByteSize, Field(ge=1, lt=2**63)]


class _RawSpecDocument(SpecTable):
    dataset: _DatasetTable
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
