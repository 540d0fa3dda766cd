"""Specs of generated datasets: TOML files that determine every byte; loading of specs of all kinds."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from treehammer.datasets.specs import spec_schema
from treehammer.datasets.specs.spec_schema import (
    ALGORITHMS,
    CompressionLevel,
    DatasetSpecBase,
    DatasetTable,
    Identifier,
    PositiveInt,
    SpecTable,
    check_identifier,
    format_problems,
)
from treehammer.errors import DatasetError, suggest_nearest

SPECS_FOLDER = Path(__file__).parent

#: Most random bits that a value of each type can hold.
MAX_RANDOM_BITS = {"float": 23, "double": 52, "int": 31, "uint": 32, "long": 63, "bool": 1}
#: ROOT's letter for each type.
ROOT_TYPE_LETTERS = {"float": "F", "double": "D", "int": "I", "uint": "i", "long": "L", "bool": "O"}
#: Probabilities are drawn as 16-bit integers.
PROBABILITY_SCALE = 65536


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
    """A dataset of random values, made from its seed."""

    collections: tuple[CollectionPlan, ...]
    branches: tuple[BranchPlan, ...]

    @property
    def branch_names(self) -> tuple[str, ...]:
        """Top-level branches, counters first."""
        counters = (collection.counter for collection in self.collections)
        return (*counters, *(branch.name for branch in self.branches))

    @property
    def branch_count(self) -> int:
        """Top-level branches."""
        return len(self.collections) + len(self.branches)


RootSpec = GeneratedSpec | spec_schema.MergedSpec
AnySpec = RootSpec | spec_schema.RawSpec


def list_shipped_specs() -> dict[str, Path]:
    """List the shipped specs: name -> file."""
    return {path.stem: path for path in sorted(SPECS_FOLDER.glob("*.toml"))}


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
        spec = _parse_spec(tomllib.loads(text), hashlib.sha256(text.encode()).hexdigest())
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
        return spec_schema.parse_raw_spec(raw, text_hash)
    if "merged" in raw:
        return spec_schema.parse_merged_spec(raw, text_hash)
    return _plan_dataset(_GeneratedSpecDocument.model_validate(raw), text_hash)


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


def _seeded_hash(seed: int, name: str, purpose: str) -> int:
    """Derive 64 bits from the seed, a name and a purpose."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}:{purpose}".encode()).digest()[:8], "big")


def _pick_from_range(bounds: tuple[int, int], choice: int) -> int:
    return bounds[0] + choice % (bounds[1] - bounds[0] + 1)


def _plan_dataset(document: _GeneratedSpecDocument, text_hash: str) -> GeneratedSpec:
    dataset, layout = document.dataset, document.layout
    return GeneratedSpec(
        name=dataset.name,
        description=dataset.description,
        root=dataset.root,
        size=dataset.size,
        sha256=dataset.sha256,
        tree=layout.tree,
        entries=dataset.entries,
        events_per_cluster=layout.events_per_cluster,
        compression=100 * ALGORITHMS[layout.compression] + layout.level,
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
        text_hash=text_hash,
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
