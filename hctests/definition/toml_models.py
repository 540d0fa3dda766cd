"""Models of ``test.toml``, their JSON Schema, and error messages for invalid documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, core_schema

from treehammer.hctests.definition.document_problems import (
    NAME_PATTERN,
    DocumentProblem,
    DocumentTables,
    KeyPath,
    StrictModel,
    build_document_schema,
    invalid_value,
    validate_document,
)
from treehammer.hctests.definition.judged_metrics import MAX_HEADLINE
from treehammer.hctests.definition.matrix import (
    AXES_BY_NAME,
    AXIS_NAME_PATTERN,
    CUSTOM_AXIS_TYPE,
    OPTIONAL_AXES,
    Axis,
)
from treehammer.hctests.definition.model import Scalar


class _AxisValue:
    """Annotation for values of an axis: pydantic validates and describes them as the axis does."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> JsonDict:
        return dict(self._axis.schema)

    def _validate(self, value: Any) -> Scalar:
        try:
            return self._axis.normalize(value)
        except ValueError as error:
            raise invalid_value(f"{error} (expected {self._axis.expected})") from None


_Custom = Annotated[Scalar, _AxisValue(CUSTOM_AXIS_TYPE)]


def _axis_values(axis: str) -> Any:
    described: JsonDict = {"minItems": 1, "uniqueItems": True}
    return Field(
        default_factory=lambda: list(AXES_BY_NAME[axis].default),
        json_schema_extra=described,
        description=f"Each is {AXES_BY_NAME[axis].expected}.",
    )


class TestTable(StrictModel):
    """The [test] table."""

    name: str = Field(
        pattern=NAME_PATTERN, description="Display name; not part of the test's identity."
    )
    description: str = Field("", max_length=2000, description="One or two sentences.")
    payload: str = Field(
        min_length=1,
        description="C++ macro (.C), Python file (.py) or any executable, beside test.toml.",
    )
    dataset: str = Field(
        "",
        pattern=NAME_PATTERN.replace("^", "^(").replace("$", ")?$"),
        description="Name of the dataset to read; empty when the payload needs none, or where "
        "[matrix] dataset names several.",
    )
    tree: str = Field(
        "", max_length=200, description="Name of the tree; empty means the dataset's main tree."
    )
    mode: Literal["solo", "paired"] = Field(
        "solo",
        description="Executions of a job: undisturbed one after the other (solo), or two at a time "
        "that read by turns (paired). A job in paired mode compares each value of the bundled axes "
        "with the first.",
    )
    repeats: int = Field(1, ge=1, le=10_000, description="Jobs per series.")
    rounds: int = Field(
        2,
        ge=1,
        le=1_000,
        description="Balanced orders inside a job: AB, BA, …; in paired mode launches of each pair, "
        "beside one A/A launch.",
    )
    passes: int = Field(
        3,
        ge=1,
        le=10_000,
        description="Executions of the loop; the first of a warm execution is not counted. Paired "
        "launches read whole passes until each side has used 0.5 s of CPU.",
    )
    seed: int = Field(1, ge=0, lt=2**63, description="Seed of orders and selections.")
    wall_limit_s: float = Field(
        600, gt=0, le=604_800, description="Wall time in seconds after which an execution is ended."
    )
    memory_limit_mb: int = Field(
        4096, ge=1, le=10_000_000, description="Resident MB at which an execution is ended."
    )
    record: bool = Field(
        False,
        description="Record what each payload does with the XRootD client, for replay; such "
        "measurements form series of their own.",
    )
    headline: list[str] = Field(
        default_factory=list,
        max_length=MAX_HEADLINE,
        description="Metrics that comparisons judge: of the catalogue, of [metrics], or of operations, "
        "e.g. open_p99_s. Empty: CPU and wall time per event. Not part of the test's identity.",
    )
    load: list[str] = Field(
        default_factory=list,
        description="Shared libraries with dictionaries, loaded before a file is opened: beside "
        "test.toml, or absolute paths that all nodes have.",
    )
    imports: list[str] = Field(
        default_factory=list,
        description="Python modules imported before a file is opened, of [test] files or of ROOT's "
        "Python.",
    )
    files: list[str] = Field(
        default_factory=list,
        description="Further files that are sent with the payload and part of the test's identity.",
    )


class MatrixTable(StrictModel):
    """The [matrix] table; every further key is a custom axis."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[_Custom]]

    root: list[Annotated[Scalar, _AxisValue(AXES_BY_NAME["root"])]] = _axis_values("root")
    branches: list[Annotated[Scalar, _AxisValue(AXES_BY_NAME["branches"])]] = _axis_values(
        "branches"
    )
    cache_mb: list[Annotated[Scalar, _AxisValue(AXES_BY_NAME["cache_mb"])]] = _axis_values(
        "cache_mb"
    )
    events: list[Annotated[Scalar, _AxisValue(AXES_BY_NAME["events"])]] = _axis_values("events")
    door: list[Annotated[Scalar, _AxisValue(AXES_BY_NAME["door"])]] = _axis_values("door")
    access: list[Annotated[Scalar, _AxisValue(AXES_BY_NAME["access"])]] = _axis_values("access")
    cache: list[Annotated[Scalar, _AxisValue(AXES_BY_NAME["cache"])]] = _axis_values("cache")
    bundle: list[str] = Field(
        default_factory=list, description="Axes whose values run interleaved in one job."
    )


class MetricTable(StrictModel):
    """A [metrics.NAME] table: a counter that the payload reports beyond the catalogue."""

    unit: str = Field("1", min_length=1, max_length=20, description="SI unit; 1 for counts.")
    better: Literal["lower", "higher", ""] = Field("", description="Direction of improvement.")
    description: str = Field("", max_length=500, description="One sentence.")
    exact: bool = Field(
        False, description="Equal reads give equal values, so that one job decides in comparisons."
    )


class CeilingTable(StrictModel):
    """Key ``ceiling`` of [load]: the most that all jobs together ask of one door at a time."""

    opens_per_s: float = Field(0.0, ge=0, description="Files opened per second.")
    clients: int = Field(0, ge=0, description="Clients connected at a time.")
    mb_per_s: float = Field(0.0, ge=0, description="Traffic in 10^6 bytes per second.")


class LoadTable(StrictModel):
    """The [load] table, which makes a test a load test."""

    together: bool = Field(
        False, description="All jobs with the same variant wait for a common start."
    )
    ramp: str = Field(
        "",
        max_length=40,
        description="Jobs that begin at each level after the common start, and time between two "
        "levels, e.g. 10/5m; empty for all at once.",
    )
    wait_s: float = Field(
        600.0,
        ge=1,
        le=86_400,
        description="Seconds after the arrival of the first job at which the others start without "
        "those that are missing.",
    )
    lead_s: float = Field(
        5.0,
        ge=0,
        le=300,
        description="Seconds before its start at which the payload is launched and waits for it; 0 "
        "for a payload that begins at once.",
    )
    step_s: float = Field(10.0, gt=0, le=3600, description="Time step of operations in seconds.")
    duration_s: float = Field(
        60.0, gt=0, le=604_800, description="Length of the load in seconds, from the common start."
    )
    writes: bool = Field(False, description="The payload needs a writable area.")
    ceiling: CeilingTable = Field(
        default_factory=lambda: CeilingTable.model_validate({}),
        description="The most that all jobs together ask of one door at a time.",
    )


class BeforeTable(StrictModel):
    """The [before] table: a command that applies settings of a server before each execution."""

    command: str = Field(
        min_length=1, description="Executable beside test.toml, run on the job's node."
    )
    settings: list[str] = Field(
        min_length=1,
        description="Axes whose values it applies; doors must permit them, and [matrix] bundle name them.",
    )
    timeout_s: float = Field(60.0, gt=0, le=3600, description="Seconds after which it has failed.")


class BuildTable(StrictModel):
    """The [build] table: a command that builds the test's own libraries on the node."""

    command: str = Field(
        min_length=1,
        description="Executable beside test.toml, run once for each ROOT of a job in a copy of the "
        "test's folder.",
    )
    files: list[str] = Field(
        default_factory=list,
        description="Sources and patches that it needs, sent with the payload and part of the test's "
        "identity.",
    )
    outputs: list[str] = Field(
        min_length=1,
        description="Files that it leaves in its folder; [test] load may name them.",
    )
    preload: list[str] = Field(
        default_factory=list,
        description="Those of outputs that are loaded into the payload before all other libraries "
        "(LD_PRELOAD).",
    )
    timeout_s: float = Field(
        600.0, gt=0, le=86_400, description="Seconds after which it has failed."
    )


class SiteLimitTable(StrictModel):
    """A [expect.sites.SITE] table: bounds that replace those of its [[expect]] at one site."""

    at_most: float | None = Field(None, description="Upper bound at this site.")
    at_least: float | None = Field(None, description="Lower bound at this site.")


class ExpectTable(StrictModel):
    """A [[expect]] table: limits of a metric."""

    metric: str = Field(
        min_length=1,
        max_length=100,
        description="Any number of the catalogue, of [metrics], or of operations, e.g. open_p99_s.",
    )
    at_most: float | None = Field(
        None,
        description="Upper bound in the metric's unit; with base a multiple of the base's value.",
    )
    at_least: float | None = Field(None, description="Lower bound, likewise.")
    base: str = Field(
        "",
        max_length=200,
        description='ROOT release that the bounds are relative to, AXIS=VALUE, or "first": the first '
        "value of the bundled axis, also where -P replaces its values. Empty: the bounds are absolute.",
    )
    where: dict[str, _Custom] = Field(
        default_factory=dict,
        description="Axes and values of the variants that it holds for; empty for all.",
    )
    sites: dict[str, SiteLimitTable] = Field(
        default_factory=dict, description="Bounds that replace those above at one site."
    )


class DefinitionDocument(StrictModel):
    """The whole document test.toml."""

    test: TestTable
    matrix: MatrixTable = Field(default_factory=lambda: MatrixTable.model_validate({}))
    exclude: list[dict[str, _Custom]] = Field(
        default_factory=list, description="Variants with all of these values are excluded."
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
        default_factory=dict, description="Passed to the payload unchanged."
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of the payload. {AXIS} in a value stands for the "
        "variant's value of that axis.",
    )
    metrics: dict[str, MetricTable] = Field(
        default_factory=dict, description="Counters the payload reports beyond the catalogue."
    )
    expect: list[ExpectTable] = Field(
        default_factory=list,
        description="Limits of metrics, judged by submit --wait and check. Not part of the test's "
        "identity.",
    )
    load: LoadTable | None = Field(None, description="Makes the test a load test.")
    before: BeforeTable | None = Field(
        None, description="Applies settings of a server before each execution."
    )
    build: BuildTable | None = Field(
        None, description="Builds the test's own libraries before the payload runs."
    )


TEST_TABLE_KEYS = tuple(TestTable.model_fields)


def _find_table(path: KeyPath) -> str:
    if path[:2] == ("load", "ceiling") and len(path) > 2:
        return "load.ceiling"
    if path[0] == "expect":
        return "expect.sites" if "sites" in path and len(path) > 4 else "expect"
    return str(path[0]) if len(path) > 1 else ""


_DEFINITION_TABLES = DocumentTables(
    {
        "": DefinitionDocument,
        "test": TestTable,
        "matrix": MatrixTable,
        "metrics": MetricTable,
        "expect": ExpectTable,
        "expect.sites": SiteLimitTable,
        "load": LoadTable,
        "before": BeforeTable,
        "build": BuildTable,
        "load.ceiling": CeilingTable,
    },
    _find_table,
)


def build_test_schema() -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of test.toml, for editors."""
    schema = build_document_schema(DefinitionDocument, "test.toml")
    schema["properties"]["settings"]["additionalProperties"] = True
    matrix = schema["$defs"]["MatrixTable"]
    # Only names that match the pattern of axis names are allowed as further keys.
    matrix["patternProperties"] = {AXIS_NAME_PATTERN: {**matrix["additionalProperties"]}}
    for name, axis in OPTIONAL_AXES.items():
        matrix["properties"][name] = {
            "description": f"Each is {axis.expected}.",
            "items": dict(axis.schema),
            "type": "array",
        }
    matrix["additionalProperties"] = False
    return schema


def validate_definition(raw: Mapping[str, Any]) -> tuple[DefinitionDocument, list[DocumentProblem]]:
    """Validate the shape of a document.

    Returns:
        the document and its problems.  With problems, the document lacks the invalid parts, so that
        checks across keys still find further ones.
    """
    return validate_document(DefinitionDocument, raw, _DEFINITION_TABLES, _fill_required_keys)


def _fill_required_keys(document: dict[str, Any]) -> None:
    test = document.setdefault("test", {})
    test.setdefault("name", "unnamed")
    test.setdefault("payload", "test.toml")  # an existing file causes no further problem
    document["expect"] = [limit for limit in document.get("expect", ()) if "metric" in limit]
    if not {"command", "settings"} <= {*document.get("before", ())}:
        document.pop("before", None)
    if not {"command", "outputs"} <= {*document.get("build", ())}:
        document.pop("build", None)
