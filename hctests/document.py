"""The shape of ``test.toml``: models that guard it, their JSON Schema, and their mistakes in words."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic.config import JsonDict
from pydantic_core import ErrorDetails, PydanticCustomError

from treehammer.hctests import axes
from treehammer.hctests.axes import CUSTOM, KNOWN, Axis
from treehammer.hctests.definition import Scalar
from treehammer.hctests.positions import Path

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


@dataclass(frozen=True)
class Problem:
    """One mistake: the keys that lead to it, and what is wrong."""

    path: Path
    text: str


def _reader(axis: Axis) -> Callable[[Any], Scalar]:
    def read(value: Any) -> Scalar:
        try:
            return axis.read(value)
        except ValueError as error:
            why = f"{error} (expected {axis.expected})"
            raise PydanticCustomError("wrong", "{why}", {"why": why}) from None

    return read


def _schema(axis: Axis) -> WithJsonSchema:
    return WithJsonSchema(dict(axis.schema))


def _values(axis: str) -> Any:
    described: JsonDict = {"minItems": 1, "uniqueItems": True}
    return Field(
        default_factory=lambda: list(KNOWN[axis].default),
        json_schema_extra=described,
        description=f"Each is {KNOWN[axis].expected}.",
    )


_Root = Annotated[Scalar, PlainValidator(_reader(KNOWN["root"])), _schema(KNOWN["root"])]
_Branches = Annotated[
    Scalar, PlainValidator(_reader(KNOWN["branches"])), _schema(KNOWN["branches"])
]
_Cache = Annotated[Scalar, PlainValidator(_reader(KNOWN["cache_mb"])), _schema(KNOWN["cache_mb"])]
_Events = Annotated[Scalar, PlainValidator(_reader(KNOWN["events"])), _schema(KNOWN["events"])]
_Door = Annotated[Scalar, PlainValidator(_reader(KNOWN["door"])), _schema(KNOWN["door"])]
_Access = Annotated[Scalar, PlainValidator(_reader(KNOWN["access"])), _schema(KNOWN["access"])]
_State = Annotated[Scalar, PlainValidator(_reader(KNOWN["cache"])), _schema(KNOWN["cache"])]
_Custom = Annotated[Scalar, PlainValidator(_reader(CUSTOM)), _schema(CUSTOM)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Test(_Strict):
    """The [test] table."""

    name: str = Field(pattern=NAME, description="Display name; no part of the test's identity.")
    description: str = Field("", max_length=2000, description="One or two sentences for people.")
    payload: str = Field(
        min_length=1,
        description="C++ macro (.C), Python file (.py) or any executable, beside this.",
    )
    dataset: str = Field(
        "",
        pattern=NAME.replace("^", "^(").replace("$", ")?$"),
        description="Name of the dataset that is read; empty when the payload needs none.",
    )
    tree: str = Field(
        "", max_length=200, description="Name of the tree; empty means the dataset's main tree."
    )
    repeats: int = Field(1, ge=1, le=10_000, description="Jobs per series.")
    rounds: int = Field(2, ge=1, le=1_000, description="Balanced orders inside a job: AB, BA, …")
    passes: int = Field(
        3,
        ge=1,
        le=10_000,
        description="Executions of the loop; the first of a warm one is kept, not counted.",
    )
    seed: int = Field(1, ge=0, lt=2**63, description="Seed of orders and selections.")
    wall_limit_s: float = Field(
        600, gt=0, le=604_800, description="Wall time after which one execution is ended."
    )
    memory_limit_mb: int = Field(
        4096, ge=1, le=10_000_000, description="Resident MB at which one execution is ended."
    )
    files: list[str] = Field(
        default_factory=list,
        description="Further files that travel with the payload and belong to the test's identity.",
    )


class Matrix(_Strict):
    """The [matrix] table; every further key is an axis of the test's own."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[_Custom]]

    root: list[_Root] = _values("root")
    branches: list[_Branches] = _values("branches")
    cache_mb: list[_Cache] = _values("cache_mb")
    events: list[_Events] = _values("events")
    door: list[_Door] = _values("door")
    access: list[_Access] = _values("access")
    cache: list[_State] = _values("cache")
    bundle: list[str] = Field(
        default_factory=list, description="Axes whose values run interleaved in one job."
    )


class Metric(_Strict):
    """A [metrics.NAME] table: a counter that the payload reports beyond the catalogue."""

    unit: str = Field("1", min_length=1, max_length=20, description="SI unit; 1 for counts.")
    better: Literal["lower", "higher", ""] = Field("", description="Which direction is better.")
    meaning: str = Field("", max_length=500, description="One sentence for people.")


class Document(_Strict):
    """All of test.toml."""

    test: Test
    matrix: Matrix = Field(default_factory=lambda: Matrix.model_validate({}))
    exclude: list[dict[str, _Custom]] = Field(
        default_factory=list, description="Variants with all of these values are left out."
    )
    include: list[dict[str, _Custom]] = Field(
        default_factory=list,
        description="Variants with these values are added; axes not named take all their values.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Handed to the payload as it is."
    )
    metrics: dict[str, Metric] = Field(
        default_factory=dict, description="Counters the payload reports beyond the catalogue."
    )


TEST_KEYS = tuple(Test.model_fields)
_TABLES: Mapping[str, tuple[str, ...]] = {
    "": tuple(Document.model_fields),
    "test": TEST_KEYS,
    "matrix": tuple(Matrix.model_fields),
    "metrics": tuple(Metric.model_fields),
}


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of test.toml, for editors."""
    schema = Document.model_json_schema()
    schema["properties"]["settings"]["additionalProperties"] = True
    matrix = schema["$defs"]["Matrix"]
    # Any name but a proper axis name is refused; extras are allowed by pattern alone.
    matrix["patternProperties"] = {axes.AXIS_NAME: {**matrix["additionalProperties"]}}
    matrix["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Treehammer test.toml",
    }


def validated(raw: Mapping[str, Any]) -> tuple[Document, list[Problem]]:
    """The document and every mistake of shape in it.

    Where there are mistakes, the document is what remains without the wrong parts, so that checks
    that go across keys can still be made and every mistake is named at once.
    """
    try:
        return Document.model_validate(raw), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    rest = copy.deepcopy(dict(raw))
    for detail in reversed(details):
        _drop(rest, detail["loc"])
    test = rest.setdefault("test", {})
    test.setdefault("name", "unnamed")
    test.setdefault("payload", "test.toml")  # a file that is there: it raises no further mistake
    return Document.model_validate(rest), [_problem(detail) for detail in details]


def _drop(document: Any, path: Path) -> None:
    """Take away what ``path`` leads to, if it is there."""
    table = document
    for key in path[:-1]:
        table = table[key]
    if isinstance(table, list):
        del table[int(path[-1])]
    else:
        table.pop(path[-1], None)


def _problem(detail: ErrorDetails) -> Problem:
    path, kind = detail["loc"], detail["type"]
    if kind == "extra_forbidden":
        return Problem(path, _unknown_key(path))
    if kind == "missing":
        return Problem(path, "is missing")
    return Problem(path, _words(kind, detail["input"], detail.get("ctx", {}), detail["msg"]))


def _words(kind: str, value: Any, context: Mapping[str, Any], message: str) -> str:
    """What is wrong and what was expected, from pydantic's kind of error."""
    limits = {
        "greater_than_equal": f"at least {context.get('ge')}",
        "greater_than": f"more than {context.get('gt')}",
        "less_than_equal": f"at most {context.get('le')}",
        "less_than": f"less than {context.get('lt')}",
    }
    expected = limits | {
        "string_type": "text in quotes",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "list_type": "a list of tables: [[double brackets]]"
        if isinstance(value, dict)
        else "a list in [brackets]",
        "dict_type": "a table",
        "model_type": "a table",
        "literal_error": str(context.get("expected")),
        "string_too_short": "text",
        "string_too_long": f"at most {context.get('max_length')} characters",
        "string_pattern_mismatch": "up to 64 letters, digits, '.', '_' and '-'",
    }
    if kind not in expected:
        return message
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} is wrong (expected {expected[kind]})"


def _unknown_key(path: Path) -> str:
    key = str(path[-1])
    table = str(path[0]) if len(path) > 1 else ""
    near = nearest(key, _TABLES[table])
    if not near:
        homes = [name for name, keys in _TABLES.items() if name and key in keys]
        near = f"; it belongs into [{homes[0]}]" if homes else ""
    where = f" of [{table}]" if table else ""
    return f"unknown key{where} (known: {', '.join(_TABLES[table])}){near}"


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """``; did you mean 'x'?`` with the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""
