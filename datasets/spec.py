"""Dataset specs: what a made dataset holds, in a TOML file from which its bytes follow."""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from treehammer.errors import DatasetError

SPECS_FOLDER = Path(__file__).parent / "specs"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")

#: Compression algorithms of which every release writes the same bytes (zstd is not one), and
#: the number ROOT gives each.
ALGORITHMS = {"zlib": 1, "lzma": 2, "lz4": 4}
#: Most random bits that a value of each type can hold.
WIDTHS = {"float": 23, "double": 52, "int": 31, "uint": 32, "long": 63, "bool": 1}
#: ROOT's letter for each type.
LETTERS = {"float": "F", "double": "D", "int": "I", "uint": "i", "long": "L", "bool": "O"}
#: Probabilities are drawn as 16-bit integers.
CERTAIN = 65536


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
class DatasetSpec:
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
    collections: tuple[CollectionPlan, ...]
    branches: tuple[BranchPlan, ...]
    text_hash: str

    @property
    def file_name(self) -> str:
        """Name of the one file."""
        return f"{self.name}.root"


def shipped() -> dict[str, Path]:
    """The specs that come with treehammer: name -> file."""
    return {path.stem: path for path in sorted(SPECS_FOLDER.glob("*.toml"))}


def shipped_spec(name: str) -> DatasetSpec | None:
    """The shipped spec of that name, if there is one."""
    path = shipped().get(name)
    return load(path) if path else None


def load(path: Path) -> DatasetSpec:
    """Read a spec and make every choice that it leaves to its seed.

    Raises:
        DatasetError: the file cannot be read or is wrong; every mistake is named with its key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = _Document.model_validate(tomllib.loads(text))
    except OSError as error:
        raise DatasetError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DatasetError(f"is not valid TOML: {error}", where=str(path)) from error
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in _problems(error))
        raise DatasetError(
            f"is not a dataset spec:\n{problems}",
            where=str(path),
            hint="The shipped specs show every key.",
        ) from error
    if document.dataset.name != path.stem:
        raise DatasetError(
            f"dataset.name: is {document.dataset.name!r}", where=str(path), hint="Name both alike."
        )
    return _plan(document, hashlib.sha256(text.encode()).hexdigest())


def _pair(value: Any) -> Any:
    """Allow one value where a range is meant."""
    return tuple(value) if isinstance(value, list) else (value, value)


def _ordered(value: tuple[Any, Any]) -> tuple[Any, Any]:
    if value[0] > value[1]:
        raise ValueError("the first of two numbers is the larger one")
    return value


def _dataset_name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("lower-case letters, digits, '.', '_' and '-' expected")
    return value


def _identifier(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError(f"{value!r} is not a name of letters, digits and '_'")
    return value


Range = Annotated[
    tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]],
    BeforeValidator(_pair),
    AfterValidator(_ordered),
]
Share = Annotated[float, Field(ge=0, le=1)]
ShareRange = Annotated[tuple[Share, Share], BeforeValidator(_pair), AfterValidator(_ordered)]
Positive = Annotated[int, Field(ge=1)]
Identifier = Annotated[str, AfterValidator(_identifier)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Dataset(_Model):
    name: Annotated[str, AfterValidator(_dataset_name)]
    description: str
    root: str
    seed: Annotated[int, Field(ge=0)]
    entries: Positive
    size: Annotated[int, Field(ge=0)] = 0
    sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""


class _Layout(_Model):
    tree: Identifier
    compression: Literal["zlib", "lzma", "lz4"]
    level: Annotated[int, Field(ge=1, le=9)]
    events_per_cluster: Positive


class _Collection(_Model):
    name: Identifier
    mean: Positive


class _Branches(_Model):
    """Branches of one kind; of a range, each takes its own value by a seeded hash of its name."""

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    type: Literal["float", "double", "int", "uint", "long", "bool"]
    shape: Literal["scalar", "array", "jagged", "vector"]
    length: Annotated[int, Field(ge=2)] | None = None
    collection: str | None = None
    bits: Range = (0, 0)
    zeros: ShareRange = (0.0, 0.0)
    hold: Positive | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.length is not None) != (self.shape == "array"):
            raise ValueError("'length' belongs to shape 'array' and to no other")
        if (self.collection is not None) != (self.shape in ("jagged", "vector")):
            raise ValueError("'collection' belongs to shapes 'jagged' and 'vector'")
        if self.shape == "vector" and self.type not in ("float", "double", "int"):
            raise ValueError("a vector is one of float, double or int")
        if self.hold is not None and (self.bits != (0, 0) or self.zeros != (0, 0)):
            raise ValueError("'hold' counts events: 'bits' and 'zeros' have no place beside it")
        if self.bits[1] > WIDTHS[self.type]:
            raise ValueError(f"'bits' of {self.type} is at most {WIDTHS[self.type]}")
        return self


class _Document(_Model):
    dataset: _Dataset
    layout: _Layout
    collection: tuple[_Collection, ...] = ()
    branches: Annotated[tuple[_Branches, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names(self) -> Self:
        known = {collection.name for collection in self.collection}
        names = [f"n{name}" for name in known]
        for group in self.branches:
            if group.collection is not None and group.collection not in known:
                near = difflib.get_close_matches(group.collection, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"no [[collection]] named {group.collection!r}{hint}")
            names += [name for pattern in group.names for name in _expand(pattern)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or len(known) < len(self.collection):
            raise ValueError(f"named twice: {', '.join(twice) or 'a collection'}")
        return self


def _problems(error: ValidationError) -> Iterator[str]:
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "the whole"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key"
        yield f"{key}: {message}"


def _expand(pattern: str) -> Iterator[str]:
    """``HLT_{08..10}`` -> HLT_08, HLT_09, HLT_10; any other name stands for itself."""
    match = re.fullmatch(r"([^{}]*)\{(\d+)\.\.(\d+)\}([^{}]*)", pattern)
    if not match:
        yield _identifier(pattern)
        return
    before, first, last, after = match.groups()
    for number in range(int(first), int(last) + 1):
        yield _identifier(f"{before}{number:0{len(first)}d}{after}")


def _choice(seed: int, name: str, purpose: str) -> int:
    """64 bits that follow from the seed, a name and what they are for."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}:{purpose}".encode()).digest()[:8], "big")


def _within(bounds: tuple[int, int], choice: int) -> int:
    return bounds[0] + choice % (bounds[1] - bounds[0] + 1)


def _plan(document: _Document, text_hash: str) -> DatasetSpec:
    dataset, layout = document.dataset, document.layout
    return DatasetSpec(
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
            CollectionPlan(f"n{c.name}", _choice(dataset.seed, c.name, "count"), c.mean)
            for c in document.collection
        ),
        branches=tuple(
            _branch(group, name, dataset.seed)
            for group in document.branches
            for pattern in group.names
            for name in _expand(pattern)
        ),
        text_hash=text_hash,
    )


def _branch(group: _Branches, name: str, seed: int) -> BranchPlan:
    low, high = (round(CERTAIN * share) for share in group.zeros)
    return BranchPlan(
        name=name,
        type=LETTERS[group.type],
        vector=group.shape == "vector",
        length=group.length or 1,
        counter=f"n{group.collection}" if group.collection else "",
        seed=_choice(seed, name, "values"),
        bits=_within(group.bits, _choice(seed, name, "bits")),
        zeros=_within((low, high), _choice(seed, name, "zeros")),
        hold=group.hold or 0,
    )
