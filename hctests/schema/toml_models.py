"""The shape of ``test.toml``: models that guard it, their JSON Schema, and their mistakes in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from treehammer.hctests.matrix import axes
from treehammer.hctests.matrix.axes import AXES_BY_NAME, CUSTOM_AXIS_TYPE, Axis
from treehammer.hctests.matrix.definition import FORMAT_AXIS, Scalar
from treehammer.hctests.schema.document_problems import (
    NAME_PATTERN,
    DocumentProblem,
    DocumentTables,
    StrictModel,
    build_document_schema,
    validate_document,
)
from treehammer.hctests.schema.toml_positions import KeyPath


def _make_validator(axis: Axis) -> Callable[[Any], Scalar]:
    def read(value: Any) -> Scalar:
        try:
            return axis.normalize(value)
        except ValueError as error:
            why = f"{error} (expected {axis.expected})"
            raise PydanticCustomError("wrong", "{why}", {"why": why}) from None

    return read


def _make_schema_hook(axis: Axis) -> WithJsonSchema:
    return WithJsonSchema(dict(axis.schema))


def _axis_values(axis: str) -> Any:
    described: JsonDict = {"minItems": 1, "uniqueItems": True}
    return Field(
        default_factory=lambda: list(AXES_BY_NAME[axis].default),
        json_schema_extra=described,
        description=f"Each is {AXES_BY_NAME[axis].expected}.",
    )


_Root = Annotated[
    Scalar,
    PlainValidator(_make_validator(AXES_BY_NAME["root"])),
    _make_schema_hook(AXES_BY_NAME["root"]),
]
_Branches = Annotated[
    Scalar,
    PlainValidator(_make_validator(AXES_BY_NAME["branches"])),
    _make_schema_hook(AXES_BY_NAME["branches"]),
]
_CacheSize = Annotated[
    Scalar,
    PlainValidator(_make_validator(AXES_BY_NAME["cache_mb"])),
    _make_schema_hook(AXES_BY_NAME["cache_mb"]),
]
_Events = Annotated[
    Scalar,
    PlainValidator(_make_validator(AXES_BY_NAME["events"])),
    _make_schema_hook(AXES_BY_NAME["events"]),
]
_Door = Annotated[
    Scalar,
    PlainValidator(_make_validator(AXES_BY_NAME["door"])),
    _make_schema_hook(AXES_BY_NAME["door"]),
]
_Access = Annotated[
    Scalar,
    PlainValidator(_make_validator(AXES_BY_NAME["access"])),
    _make_schema_hook(AXES_BY_NAME["access"]),
]
_CacheState = Annotated[
    Scalar,
    PlainValidator(_make_validator(AXES_BY_NAME["cache"])),
    _make_schema_hook(AXES_BY_NAME["cache"]),
]
_Custom = Annotated[
    Scalar, PlainValidator(_make_validator(CUSTOM_AXIS_TYPE)), _make_schema_hook(CUSTOM_AXIS_TYPE)
]


class TestTable(StrictModel):
    """The [test] table."""

    name: str = Field(
        pattern=NAME_PATTERN, description="Display name; no part of the test's identity."
    )
    description: str = Field("", max_length=2000, description="One or two sentences for people.")
    payload: str = Field(
        min_length=1,
        description="C++ macro (.C), Python file (.py) or any executable, beside this.",
    )
    dataset: str = Field(
        "",
        pattern=NAME_PATTERN.replace("^", "^(").replace("$", ")?$"),
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


class MatrixTable(StrictModel):
    """The [matrix] table; every further key is an axis of the test's own."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[_Custom]]

    root: list[_Root] = _axis_values("root")
    branches: list[_Branches] = _axis_values("branches")
    cache_mb: list[_CacheSize] = _axis_values("cache_mb")
    events: list[_Events] = _axis_values("events")
    door: list[_Door] = _axis_values("door")
    access: list[_Access] = _axis_values("access")
    cache: list[_CacheState] = _axis_values("cache")
    bundle: list[str] = Field(
        default_factory=list, description="Axes whose values run interleaved in one job."
    )


class MetricTable(StrictModel):
    """A [metrics.NAME] table: a counter that the payload reports beyond the catalogue."""

    unit: str = Field("1", min_length=1, max_length=20, description="SI unit; 1 for counts.")
    better: Literal["lower", "higher", ""] = Field("", description="Which direction is better.")
    description: str = Field("", max_length=500, description="One sentence for people.")


class DefinitionDocument(StrictModel):
    """All of test.toml."""

    test: TestTable
    matrix: MatrixTable = Field(default_factory=lambda: MatrixTable.model_validate({}))
    exclude: list[dict[str, _Custom]] = Field(
        default_factory=list, description="Variants with all of these values are left out."
    )
    include: list[dict[str, _Custom]] = Field(
        default_factory=list,
        description="Variants with these values are added; axes not named take all their values.",
    )
    twins: dict[str, str] = Field(
        default_factory=dict,
        description="Value of the axis 'format' -> dataset with the same content as [test] dataset.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Handed to the payload as it is."
    )
    metrics: dict[str, MetricTable] = Field(
        default_factory=dict, description="Counters the payload reports beyond the catalogue."
    )


TEST_TABLE_KEYS = tuple(TestTable.model_fields)


def _find_table(path: KeyPath) -> str:
    return str(path[0]) if len(path) > 1 else ""


_DEFINITION_TABLES = DocumentTables(
    {
        "": tuple(DefinitionDocument.model_fields),
        "test": TEST_TABLE_KEYS,
        "matrix": tuple(MatrixTable.model_fields),
        "metrics": tuple(MetricTable.model_fields),
    },
    _find_table,
)


def build_test_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of test.toml, for editors."""
    schema = build_document_schema(DefinitionDocument, "test.toml")
    schema["properties"]["settings"]["additionalProperties"] = True
    matrix = schema["$defs"]["MatrixTable"]
    # Any name but a proper axis name is refused; extras are allowed by pattern alone.
    matrix["patternProperties"] = {axes.AXIS_NAME_PATTERN: {**matrix["additionalProperties"]}}
    matrix["patternProperties"][f"^{FORMAT_AXIS}$"] = {"items": dict(axes.FORMAT_AXIS_TYPE.schema)}
    matrix["additionalProperties"] = False
    return schema


def validate_definition(raw: Mapping[str, Any]) -> tuple[DefinitionDocument, list[DocumentProblem]]:
    """The document and every mistake of shape in it.

    Where there are mistakes, the document is what remains without the wrong parts, so that checks
    that go across keys can still be made and every mistake is named at once.
    """
    return validate_document(DefinitionDocument, raw, _DEFINITION_TABLES, _fill_required_keys)


def _fill_required_keys(rest: dict[str, Any]) -> None:
    test = rest.setdefault("test", {})
    test.setdefault("name", "unnamed")
    test.setdefault("payload", "test.toml")  # a file that is there: it raises no further mistake
