"""Tables common to all dataset specs, and messages for their mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

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
