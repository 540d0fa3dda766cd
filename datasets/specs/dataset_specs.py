"""Dataset specs: TOML files from which datasets are made, as models, and the shipped ones.

A generated dataset has random values; the spec determines every byte.  A raw dataset consists of files
of seeded bytes without a tree, for load tests.  A merged one holds the events of a given ROOT file,
rewritten many times into a larger file; that file is not shipped, only its checksum is known, since
others publish it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from treehammer.datasets.manifest import ALGORITHMS, DATASET_NAME
from treehammer.errors import DatasetError, suggest_nearest
from treehammer.program_output import read_document_text
from treehammer.toml_documents import parse_toml

SPECS_FOLDER = Path(__file__).parent
#: Most files of a dataset.
MAX_FILES = 100_000
#: Most branches of one range of names.
MAX_BRANCHES = 100_000
#: Most random bits that a value of each type can hold.
MAX_RANDOM_BITS = {"float": 23, "double": 52, "int": 31, "uint": 32, "long": 63, "bool": 1}
#: ROOT's letter for each type.
ROOT_TYPE_LETTERS = {"float": "F", "double": "D", "int": "I", "uint": "i", "long": "L", "bool": "O"}
#: Probabilities are drawn as 16-bit integers.
PROBABILITY_SCALE = 65536


def _check_dataset_name(value: str) -> str:
    if not DATASET_NAME.fullmatch(value):
        raise ValueError("lower-case letters, digits, '.', '_' and '-' expected")
    return value


def _check_identifier(value: str) -> str:
    """Return the value if it is a valid C++ identifier."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError(f"{value!r} is not a name of letters, digits and '_'")
    return value


def _check_file_name(value: str) -> str:
    if Path(value).name != value:
        raise ValueError(f"{value!r} is not the name of a file without its folder")
    return value


def _as_range(value: Any) -> Any:
    """Allow one value where a range is meant."""
    return tuple(value) if isinstance(value, list) else (value, value)


def _check_ordered(value: tuple[Any, Any]) -> tuple[Any, Any]:
    if value[0] > value[1]:
        raise ValueError("the first of two numbers is the larger one")
    return value


Natural = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
IntRange = Annotated[
    tuple[Natural, Natural], BeforeValidator(_as_range), AfterValidator(_check_ordered)
]
Share = Annotated[float, Field(ge=0, le=1)]
ShareRange = Annotated[
    tuple[Share, Share], BeforeValidator(_as_range), AfterValidator(_check_ordered)
]
Identifier = Annotated[str, AfterValidator(_check_identifier)]
#: A checksum, '' where nothing is pinned.
PinnedSha256 = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]


class _Table(BaseModel):
    """A table of a spec: no key but its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _DatasetTable(_Table):
    name: Annotated[str, AfterValidator(_check_dataset_name)]
    description: str
    seed: Natural


class DatasetSpec(_Table):
    """A dataset that can be made; ``text_hash`` is the sha256 of the spec's text."""

    dataset: _DatasetTable
    text_hash: str = ""

    @property
    def name(self) -> str:
        """Name of the dataset, and of its first file without suffix and number."""
        return self.dataset.name


class _RawDatasetTable(_DatasetTable):
    hash: PinnedSha256 = ""


class _RawTable(_Table):
    files: Annotated[int, Field(ge=1, le=MAX_FILES)]
    size: Annotated[ByteSize, Field(ge=1, lt=2**63)]


class RawSpec(DatasetSpec):
    """A dataset of equally large files of seeded bytes."""

    dataset: _RawDatasetTable
    raw: _RawTable

    tree: ClassVar[str] = ""
    entries: ClassVar[int] = 0
    branch_count: ClassVar[int] = 0

    @property
    def file_count(self) -> int:
        """Number of files."""
        return self.raw.files

    @property
    def file_size(self) -> int:
        """Bytes of each file."""
        return self.raw.size

    def file_name(self, index: int) -> str:
        """Return the name of a file, counted from 0."""
        return f"{self.name}-{index:05d}.bin"


class _RootDatasetTable(_DatasetTable):
    """Entries, size and sha256 are those of each file, which release ``root`` wrote."""

    root: str
    entries: PositiveInt
    size: Natural = 0
    sha256: PinnedSha256 = ""


class _LayoutTable(_Table):
    compression: Literal["zlib", "lzma", "lz4", "zstd"]
    level: Annotated[int, Field(ge=1, le=9)]
    events_per_cluster: PositiveInt

    @property
    def compression_setting(self) -> int:
        """ROOT's number, 100 * algorithm + level."""
        return 100 * ALGORITHMS[self.compression] + self.level


class _RootSpec(DatasetSpec):
    """A dataset of ROOT files with the same content."""

    dataset: _RootDatasetTable
    layout: _LayoutTable

    @property
    def file_count(self) -> int:
        """Number of files."""
        return 1

    @property
    def file_size(self) -> int:
        """Expected bytes of each file, 0 where nothing is pinned."""
        return self.dataset.size

    @property
    def entries(self) -> int:
        """Events of each file."""
        return self.dataset.entries

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names of all files."""
        further = (f"{self.name}-{number:05d}.root" for number in range(1, self.file_count))
        return (f"{self.name}.root", *further)


class MergeSource(_Table):
    """The file whose events are rewritten: the name it was published under, its content and origin."""

    file: Annotated[str, AfterValidator(_check_file_name)]
    about: str
    size: PositiveInt
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    tree: Annotated[str, Field(min_length=1)]
    entries: PositiveInt
    branches: PositiveInt


class _MergedTable(_Table):
    """How many times each event is written, the first time as it is.

    Copies of a floating-point value share the leading ``kept_bits`` of the mantissa.  Lower bits that
    the branch uses are drawn at random for each copy.
    """

    copies: PositiveInt
    kept_bits: Annotated[int, Field(ge=0, le=23)]


class _MergedLayoutTable(_LayoutTable):
    """Layout with the bytes of all baskets together, for ``TTree::OptimizeBaskets``."""

    basket_memory: PositiveInt


class MergedSpec(_RootSpec):
    """A dataset of real events."""

    source: MergeSource
    merged: _MergedTable
    layout: _MergedLayoutTable

    @property
    def tree(self) -> str:
        """Name of the tree."""
        return self.source.tree

    @property
    def branch_count(self) -> int:
        """Top-level branches."""
        return self.source.branches

    @model_validator(mode="after")
    def _check_entries(self) -> Self:
        entries = self.merged.copies * self.source.entries
        if self.dataset.entries != entries:
            raise ValueError(
                f"dataset.entries is {self.dataset.entries}, but {self.merged.copies} copies of "
                f"{self.source.entries} events are {entries}"
            )
        return self


class _GeneratedLayoutTable(_LayoutTable):
    tree: Identifier
    # Of these every release writes the same bytes; zstd is not one.
    compression: Literal["zlib", "lzma", "lz4"]
    files: Annotated[int, Field(ge=1, le=MAX_FILES)] = 1


class _CollectionTable(_Table):
    """Objects that an event has several of; the branch ``nNAME`` says how many."""

    name: Identifier
    mean: PositiveInt


class _BranchesTable(_Table):
    """Branches of one kind; of a range, each takes its own value by a seeded hash of its name."""

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    type: Literal["float", "double", "int", "uint", "long", "bool"]
    shape: Literal["scalar", "array", "jagged", "vector"]
    length: Annotated[int, Field(ge=2)] | None = None
    collection: str | None = None
    bits: IntRange = (0, 0)
    zeros: ShareRange = (0.0, 0.0)
    hold: PositiveInt | None = None

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if (self.length is not None) != (self.shape == "array"):
            raise ValueError("'length' is required for shape 'array', and not allowed for others")
        if (self.collection is not None) != (self.shape in ("jagged", "vector")):
            raise ValueError(
                "'collection' is required for shapes 'jagged' and 'vector', and not allowed for others"
            )
        if self.shape == "vector" and self.type not in ("float", "double", "int"):
            raise ValueError("a vector is one of float, double or int")
        if self.hold is not None and (self.bits != (0, 0) or self.zeros != (0, 0)):
            raise ValueError("'hold' counts events and cannot be combined with 'bits' or 'zeros'")
        if self.bits[1] > MAX_RANDOM_BITS[self.type]:
            raise ValueError(f"'bits' of {self.type} is at most {MAX_RANDOM_BITS[self.type]}")
        return self

    def expand_names(self) -> Iterator[str]:
        """Expand ``HLT_{08..10}`` to HLT_08, HLT_09, HLT_10; any other name stands for itself."""
        for pattern in self.names:
            match = re.fullmatch(r"([^{}]*)\{(\d+)\.\.(\d+)\}([^{}]*)", pattern)
            if not match:
                yield _check_identifier(pattern)
                continue
            before, first, last, after = match.groups()
            if not 0 <= int(last) - int(first) < MAX_BRANCHES:
                raise ValueError(f"{pattern!r} has no names, or more than {MAX_BRANCHES:,}")
            for number in range(int(first), int(last) + 1):
                yield _check_identifier(f"{before}{number:0{len(first)}d}{after}")

    def plan_branch(self, name: str, seed: int) -> dict[str, Any]:
        """Make every choice for a branch, as the writer takes them.

        ``type`` is ROOT's letter; ``counter`` is '' for branches of ``length`` values an event;
        ``bits`` of a value are random; ``zeros`` of 65536 values are 0; where ``hold`` is not 0 the
        value counts up by one every ``hold`` events instead.
        """
        low, high = (round(PROBABILITY_SCALE * share) for share in self.zeros)
        return {
            "name": name,
            "type": ROOT_TYPE_LETTERS[self.type],
            "vector": self.shape == "vector",
            "length": self.length or 1,
            "counter": f"n{self.collection}" if self.collection else "",
            "seed": _seeded_hash(seed, name, "values"),
            "bits": _pick_from_range(self.bits, _seeded_hash(seed, name, "bits")),
            "zeros": _pick_from_range((low, high), _seeded_hash(seed, name, "zeros")),
            "hold": self.hold or 0,
        }


class GeneratedSpec(_RootSpec):
    """A dataset of random values, made from its seed; its files are copies of one."""

    layout: _GeneratedLayoutTable
    collection: tuple[_CollectionTable, ...] = ()
    branches: Annotated[tuple[_BranchesTable, ...], Field(min_length=1)]

    @property
    def tree(self) -> str:
        """Name of the tree."""
        return self.layout.tree

    @property
    def file_count(self) -> int:
        """Number of files."""
        return self.layout.files

    @property
    def branch_names(self) -> tuple[str, ...]:
        """Top-level branches, counters first."""
        counters = (f"n{collection.name}" for collection in self.collection)
        return (*counters, *(name for group in self.branches for name in group.expand_names()))

    @property
    def branch_count(self) -> int:
        """Top-level branches."""
        return len(self.branch_names)

    def plan_collections(self) -> list[dict[str, Any]]:
        """Make every choice for the collections, as the writer takes them."""
        return [
            {
                "counter": f"n{collection.name}",
                "seed": _seeded_hash(self.dataset.seed, collection.name, "count"),
                "mean": collection.mean,
            }
            for collection in self.collection
        ]

    def plan_branches(self) -> list[dict[str, Any]]:
        """Make every choice for the branches."""
        return [
            group.plan_branch(name, self.dataset.seed)
            for group in self.branches
            for name in group.expand_names()
        ]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        collections = {collection.name for collection in self.collection}
        for group in self.branches:
            name = group.collection
            if name is not None and name not in collections:
                nearest = suggest_nearest(name, collections)
                raise ValueError(f"no [[collection]] named {name!r}{nearest}")
        counts = Counter(self.branch_names)
        if duplicates := sorted(name for name, count in counts.items() if count > 1):
            raise ValueError(f"named twice: {', '.join(duplicates)}")
        return self


RootSpec = GeneratedSpec | MergedSpec
AnySpec = RootSpec | RawSpec


def _seeded_hash(seed: int, name: str, purpose: str) -> int:
    """Derive 64 bits from the seed, a name and a purpose."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}:{purpose}".encode()).digest()[:8], "big")


def _pick_from_range(bounds: tuple[int, int], choice: int) -> int:
    return bounds[0] + choice % (bounds[1] - bounds[0] + 1)


def list_shipped_specs() -> dict[str, Path]:
    """List the shipped specs: name -> file."""
    return {path.stem: path for path in sorted(SPECS_FOLDER.glob("*.toml"))}


@functools.cache
def load_shipped_spec(name: str) -> AnySpec | None:
    """Load the shipped spec of that name, if there is one."""
    path = list_shipped_specs().get(name)
    return load_spec(path) if path else None


def load_spec(path: Path) -> AnySpec:
    """Read a spec.

    Raises:
        DatasetError: the file cannot be read or is wrong; every mistake is named with its key.
    """
    text = read_document_text(path, DatasetError)
    try:
        document = parse_toml(text)
        kinds: dict[str, type[AnySpec]] = {"raw": RawSpec, "merged": MergedSpec}
        kind = next((kinds[table] for table in kinds if table in document), GeneratedSpec)
        text_hash = hashlib.sha256(text.encode()).hexdigest()
        spec = kind.model_validate({**document, "text_hash": text_hash})
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in _format_problems(error))
        raise DatasetError(
            f"is not a dataset spec:\n{problems}",
            where=str(path),
            hint="The shipped specs show every key.",
        ) from error
    except ValueError as error:
        raise DatasetError(f"is not valid TOML: {error}", where=str(path)) from error
    if spec.name != path.stem:
        raise DatasetError(
            f"dataset.name: is {spec.name!r}", where=str(path), hint="Name both alike."
        )
    return spec


def _format_problems(error: ValidationError) -> Iterator[str]:
    """Format one line per mistake: its key and the problem."""
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "the whole"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key"
        # Tables with mistakes are missing in their list.
        if item["type"] != "too_short" or error.error_count() == 1:
            yield f"{key}: {message}"
