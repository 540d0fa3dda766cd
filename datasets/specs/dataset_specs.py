"""Dataset specs: TOML files from which datasets are made, with their schema, and the shipped ones.

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
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

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
from treehammer.toml_documents import parse_toml

SPECS_FOLDER = Path(__file__).parent
#: Most files of a dataset.
MAX_FILES = 100_000
#: Most random bits that a value of each type can hold.
MAX_RANDOM_BITS = {"float": 23, "double": 52, "int": 31, "uint": 32, "long": 63, "bool": 1}
#: ROOT's letter for each type.
ROOT_TYPE_LETTERS = {"float": "F", "double": "D", "int": "I", "uint": "i", "long": "L", "bool": "O"}
#: Probabilities are drawn as 16-bit integers.
PROBABILITY_SCALE = 65536


# --- kinds of datasets


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

    file_count = 1

    @property
    def file_name(self) -> str:
        """Name of the one file, or of the first one."""
        return f"{self.name}.root"

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names of all files, which have the same content."""
        further = (f"{self.name}-{number:05d}.root" for number in range(1, self.file_count))
        return (self.file_name, *further)

    @property
    def branch_count(self) -> int:
        """Top-level branches."""
        raise NotImplementedError


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


@dataclass(frozen=True)
class CollectionPlan:
    """Objects that an event has several of; ``counter`` is the branch that says how many."""

    counter: str
    seed: int
    mean: int


@dataclass(frozen=True)
class BranchPlan:
    """One branch, every choice made.

    ``type`` is ROOT's letter; ``counter`` is '' for branches of ``length`` values an event;
    ``bits`` of a value are random; ``zeros`` of 65536 values are 0; where ``hold`` is not 0 the
    value counts up by one every ``hold`` events instead.
    """

    name: str
    type: str
    vector: bool
    length: int
    counter: str
    seed: int
    bits: int
    zeros: int
    hold: int


@dataclass(frozen=True)
class GeneratedSpec(DatasetSpecBase):
    """A dataset of random values, made from its seed.

    Attributes:
        file_count: number of files, which are copies of one.
    """

    collections: tuple[CollectionPlan, ...]
    branches: tuple[BranchPlan, ...]
    file_count: int

    @property
    def branch_names(self) -> tuple[str, ...]:
        """Top-level branches, counters first."""
        counters = (collection.counter for collection in self.collections)
        return (*counters, *(branch.name for branch in self.branches))

    @property
    def branch_count(self) -> int:
        """Top-level branches."""
        return len(self.collections) + len(self.branches)


RootSpec = GeneratedSpec | MergedSpec
AnySpec = RootSpec | RawSpec


# --- loading


def list_shipped_specs() -> dict[str, Path]:
    """List the shipped specs: name -> file."""
    return {path.stem: path for path in sorted(SPECS_FOLDER.glob("*.toml"))}


@functools.cache
def load_shipped_spec(name: str) -> AnySpec | None:
    """Load the shipped spec of that name, if there is one."""
    path = list_shipped_specs().get(name)
    return load_spec(path) if path else None


def load_spec(path: Path) -> AnySpec:
    """Read a spec and make every choice that it leaves to its seed.

    Raises:
        DatasetError: the file cannot be read or is wrong; every mistake is named with its key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        spec = _parse_spec(parse_toml(text), hashlib.sha256(text.encode()).hexdigest())
    except OSError as error:
        raise DatasetError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in format_problems(error))
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


def _parse_spec(raw: dict[str, Any], text_hash: str) -> AnySpec:
    """Distinguish the kinds of specs by their tables."""
    if "raw" in raw:
        return parse_raw_spec(raw, text_hash)
    if "merged" in raw:
        return parse_merged_spec(raw, text_hash)
    return _plan_dataset(_GeneratedSpecDocument.model_validate(raw), text_hash)


def format_problems(error: ValidationError) -> Iterator[str]:
    """Format one line per mistake: its key and the problem."""
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "the whole"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key"
        yield f"{key}: {message}"


# --- tables of all specs


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


def _common_values(
    dataset: DatasetTable, layout: _MergedLayoutTable | _GeneratedLayoutTable, text_hash: str
) -> dict[str, Any]:
    """Return the values that generated and merged datasets have in common."""
    return {
        "name": dataset.name,
        "description": dataset.description,
        "root": dataset.root,
        "size": dataset.size,
        "sha256": dataset.sha256,
        "entries": dataset.entries,
        "events_per_cluster": layout.events_per_cluster,
        "compression": 100 * ALGORITHMS[layout.compression] + layout.level,
        "text_hash": text_hash,
    }


# --- raw datasets


class _RawDatasetTable(SpecTable):
    name: Annotated[str, AfterValidator(check_dataset_name)]
    description: str
    seed: Annotated[int, Field(ge=0)]
    hash: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""


class _RawTable(SpecTable):
    files: Annotated[int, Field(ge=1, le=MAX_FILES)]
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


# --- merged datasets


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
        **_common_values(dataset, layout, text_hash),
        tree=source.tree,
        seed=dataset.seed,
        source=MergeSource(
            source.file, source.about, source.size, source.sha256, source.entries, source.branches
        ),
        copies=document.merged.copies,
        kept_bits=document.merged.kept_bits,
        basket_memory=layout.basket_memory,
    )


# --- generated datasets


def _as_range(value: Any) -> Any:
    """Allow one value where a range is meant."""
    return tuple(value) if isinstance(value, list) else (value, value)


def _check_ordered(value: tuple[Any, Any]) -> tuple[Any, Any]:
    if value[0] > value[1]:
        raise ValueError("the first of two numbers is the larger one")
    return value


IntRange = Annotated[
    tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]],
    BeforeValidator(_as_range),
    AfterValidator(_check_ordered),
]
Share = Annotated[float, Field(ge=0, le=1)]
ShareRange = Annotated[
    tuple[Share, Share], BeforeValidator(_as_range), AfterValidator(_check_ordered)
]


class _GeneratedLayoutTable(SpecTable):
    tree: Identifier
    # Of these every release writes the same bytes; zstd is not one.
    compression: Literal["zlib", "lzma", "lz4"]
    level: CompressionLevel
    events_per_cluster: PositiveInt
    files: Annotated[int, Field(ge=1, le=MAX_FILES)] = 1


class _CollectionTable(SpecTable):
    name: Identifier
    mean: PositiveInt


class _BranchesTable(SpecTable):
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


class _GeneratedSpecDocument(SpecTable):
    dataset: DatasetTable
    layout: _GeneratedLayoutTable
    collection: tuple[_CollectionTable, ...] = ()
    branches: Annotated[tuple[_BranchesTable, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        collection_names = {collection.name for collection in self.collection}
        names = Counter(f"n{name}" for name in collection_names)
        for group in self.branches:
            _require_collection(group.collection, collection_names)
            names.update(chain.from_iterable(map(_expand_names, group.names)))
        duplicates = sorted(name for name, count in names.items() if count > 1)
        if duplicates or len(collection_names) < len(self.collection):
            raise ValueError(f"named twice: {', '.join(duplicates) or 'a collection'}")
        return self


def _require_collection(name: str | None, collections: Collection[str]) -> None:
    if name is not None and name not in collections:
        raise ValueError(f"no [[collection]] named {name!r}{suggest_nearest(name, collections)}")


def _expand_names(pattern: str) -> Iterator[str]:
    """Expand ``HLT_{08..10}`` to HLT_08, HLT_09, HLT_10; any other name stands for itself."""
    match = re.fullmatch(r"([^{}]*)\{(\d+)\.\.(\d+)\}([^{}]*)", pattern)
    if not match:
        yield check_identifier(pattern)
        return
    before, first, last, after = match.groups()
    for number in range(int(first), int(last) + 1):
        yield check_identifier(f"{before}{number:0{len(first)}d}{after}")


def _plan_dataset(document: _GeneratedSpecDocument, text_hash: str) -> GeneratedSpec:
    dataset, layout = document.dataset, document.layout
    return GeneratedSpec(
        **_common_values(dataset, layout, text_hash),
        tree=layout.tree,
        collections=tuple(
            CollectionPlan(f"n{c.name}", _seeded_hash(dataset.seed, c.name, "count"), c.mean)
            for c in document.collection
        ),
        branches=tuple(
            _plan_branch(group, name, dataset.seed)
            for group in document.branches
            for pattern in group.names
            for name in _expand_names(pattern)
        ),
        file_count=layout.files,
    )


def _plan_branch(group: _BranchesTable, name: str, seed: int) -> BranchPlan:
    low, high = (round(PROBABILITY_SCALE * share) for share in group.zeros)
    return BranchPlan(
        name=name,
        type=ROOT_TYPE_LETTERS[group.type],
        vector=group.shape == "vector",
        length=group.length or 1,
        counter=f"n{group.collection}" if group.collection else "",
        seed=_seeded_hash(seed, name, "values"),
        bits=_pick_from_range(group.bits, _seeded_hash(seed, name, "bits")),
        zeros=_pick_from_range((low, high), _seeded_hash(seed, name, "zeros")),
        hold=group.hold or 0,
    )


def _seeded_hash(seed: int, name: str, purpose: str) -> int:
    """Derive 64 bits from the seed, a name and a purpose."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}:{purpose}".encode()).digest()[:8], "big")


def _pick_from_range(bounds: tuple[int, int], choice: int) -> int:
    return bounds[0] + choice % (bounds[1] - bounds[0] + 1)
