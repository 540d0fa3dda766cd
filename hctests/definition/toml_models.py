"""Definition of a test: the frozen models of ``test.toml``, and their JSON Schema.

A loaded definition has all default axes.  Without the axis ``door`` it uses every site's first door.
[test] ``files`` then names every file, relative to the test's folder, with ``test.toml`` and the
payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    model_validator,
)
from pydantic.config import JsonDict

from treehammer.collectors.job_spec import BuildCommand, ServerCommand
from treehammer.errors import DefinitionError
from treehammer.hctests.definition.document_problems import (
    NAME_PATTERN,
    DocumentProblem,
    Items,
    StrictModel,
    build_document_schema,
    validate_document,
)
from treehammer.hctests.definition.judged_metrics import (
    MAX_HEADLINE,
    ExpectTable,
    MetricTable,
)
from treehammer.hctests.definition.matrix import (
    AXES_BY_NAME,
    AXIS_NAME_PATTERN,
    OPTIONAL_AXES,
    AxisValue,
    CustomValue,
    Rule,
)
from treehammer.hctests.definition.model import (
    DATASET_AXIS,
    DOOR_AXIS,
    FORMAT_AXIS,
    Scalar,
    Variant,
    detect_payload_kind,
)
from treehammer.text_formatting import JobRamp


def normalize_file_name(name: str) -> str:
    """Convert ``./read.py`` to ``read.py``; other unusual names are left to the check of files."""
    return str(PurePosixPath(name))


_FileName = Annotated[str, StringConstraints(min_length=1), AfterValidator(normalize_file_name)]


def _axis_values(axis: str) -> Any:
    described: JsonDict = {"minItems": 1, "uniqueItems": True}
    return Field(
        default_factory=lambda: AXES_BY_NAME[axis].default,
        json_schema_extra=described,
        description=f"Each is {AXES_BY_NAME[axis].expected}.",
    )


class TestTable(StrictModel):
    """The [test] table."""

    name: str = Field(
        pattern=NAME_PATTERN, description="Display name; not part of the test's identity."
    )
    description: str = Field("", max_length=2000, description="One or two sentences.")
    payload: _FileName = Field(
        description="C++ macro (.C), Python file (.py) or any executable, beside test.toml; 'any' "
        "measures the command of [settings] from outside.",
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
        "launches read whole passes until each side has used 0.75 s of CPU.",
    )
    seed: int = Field(1, ge=0, lt=2**63, description="Seed of orders and selections.")
    wall_limit_s: float = Field(
        600.0,
        gt=0,
        le=604_800,
        description="Wall time in seconds after which an execution is ended.",
    )
    memory_limit_mb: int = Field(
        2000,
        ge=1,
        le=10_000_000,
        description="Resident MB at which an execution is ended; jobs request as much for each payload.",
    )
    record: bool = Field(
        False,
        description="Record what each payload does with the XRootD client, for replay; such "
        "measurements form series of their own.",
    )
    headline: Items[str] = Field(
        default_factory=tuple,
        max_length=MAX_HEADLINE,
        description="Metrics that comparisons judge: of the catalogue, of [metrics], or of operations, "
        "e.g. open_p99_s. Empty: CPU and wall time per event. Not part of the test's identity.",
    )
    load: Items[str] = Field(
        default_factory=tuple,
        description="Shared libraries with dictionaries, loaded before a file is opened: beside "
        "test.toml, or absolute paths that all nodes have.",
    )
    imports: Items[str] = Field(
        default_factory=tuple,
        description="Python modules imported before a file is opened, of [test] files or of ROOT's "
        "Python.",
    )
    files: Items[str] = Field(
        default_factory=tuple,
        description="Further files that are sent with the payload and part of the test's identity.",
    )

    __test__ = False  # not a pytest class


class MatrixTable(StrictModel):
    """The [matrix] table; every further key is a custom axis."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Items[CustomValue]]

    root: Items[Annotated[Scalar, AxisValue(AXES_BY_NAME["root"])]] = _axis_values("root")
    branches: Items[Annotated[Scalar, AxisValue(AXES_BY_NAME["branches"])]] = _axis_values(
        "branches"
    )
    cache_mb: Items[Annotated[Scalar, AxisValue(AXES_BY_NAME["cache_mb"])]] = _axis_values(
        "cache_mb"
    )
    events: Items[Annotated[Scalar, AxisValue(AXES_BY_NAME["events"])]] = _axis_values("events")
    door: Items[Annotated[Scalar, AxisValue(AXES_BY_NAME["door"])]] = _axis_values("door")
    access: Items[Annotated[Scalar, AxisValue(AXES_BY_NAME["access"])]] = _axis_values("access")
    cache: Items[Annotated[Scalar, AxisValue(AXES_BY_NAME["cache"])]] = _axis_values("cache")
    bundle: Items[str] = Field(
        default_factory=tuple, description="Axes whose values run interleaved in one job."
    )
    _names: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _keep_order(cls, raw: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Keep the order of the axes, which is that of variants."""
        matrix = handler(raw)
        matrix._names = tuple(name for name in raw if name != "bundle")
        return matrix

    @property
    def axes(self) -> dict[str, tuple[Scalar, ...]]:
        """Every axis with its values in order; ``door`` only if the test names doors."""
        return {name: getattr(self, name) for name in self._names}

    def replace_axis(self, axis: str, values: Sequence[Scalar]) -> MatrixTable:
        """Return the table with other values of an axis."""
        return MatrixTable.model_validate({**self.axes, axis: values, "bundle": self.bundle})


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
        default_factory=CeilingTable,
        description="The most that all jobs together ask of one door at a time.",
    )

    def level_start_s(self, index: int) -> int:
        """Return the seconds from the common start at which job ``index`` (from 0) begins."""
        if not self.ramp:
            return 0
        ramp = JobRamp.parse(self.ramp, "[load] ramp")
        return index // ramp.jobs * ramp.every_s

    def describe(self) -> str:
        """Describe the load in one line."""
        start = f"together, after {self.wait_s:g} s at most" if self.together else "at once"
        parts = [f"{self.duration_s:g} s in steps of {self.step_s:g} s", f"jobs start {start}"]
        parts += [f"ramp {self.ramp}"] if self.ramp else []
        parts += ["writes"] if self.writes else []
        bounds = {
            "opens/s": self.ceiling.opens_per_s,
            "clients": self.ceiling.clients,
            "MB/s": self.ceiling.mb_per_s,
        }
        limits = [f"{value:g} {unit}" for unit, value in bounds.items() if value]
        parts += [f"states at most {', '.join(limits)} at a door"] if limits else []
        return "; ".join(parts)


class BeforeTable(StrictModel):
    """The [before] table: a command that applies settings of a server before each execution."""

    command: _FileName = Field(description="Executable beside test.toml, run on the job's node.")
    settings: Items[str] = Field(
        min_length=1,
        description="Axes whose values it applies; doors must permit them, and [matrix] bundle name them.",
    )
    timeout_s: float = Field(60.0, gt=0, le=3600, description="Seconds after which it has failed.")


class BuildTable(StrictModel):
    """The [build] table: a command that builds the test's own libraries on the node."""

    command: _FileName = Field(
        description="Executable beside test.toml, run once for each ROOT of a job in a copy of the "
        "test's folder.",
    )
    files: Items[str] = Field(
        default_factory=tuple,
        description="Sources and patches that it needs, sent with the payload and part of the test's "
        "identity.",
    )
    outputs: Items[str] = Field(
        min_length=1,
        description="Files that it leaves in its folder; [test] load may name them.",
    )
    preload: Items[str] = Field(
        default_factory=tuple,
        description="Those of outputs that are loaded into the payload before all other libraries "
        "(LD_PRELOAD).",
    )
    timeout_s: float = Field(
        600.0, gt=0, le=86_400, description="Seconds after which it has failed."
    )


class TestDefinition(StrictModel):
    """A test: the whole document test.toml."""

    test: TestTable
    matrix: MatrixTable = Field(default_factory=MatrixTable)
    exclude: Items[Rule] = Field(
        default_factory=tuple, description="Variants with all of these values are excluded."
    )
    include: Items[Rule] = Field(
        default_factory=tuple,
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
    expect: Items[ExpectTable] = Field(
        default_factory=tuple,
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

    __test__ = False  # not a pytest class

    @property
    def axes(self) -> dict[str, tuple[Scalar, ...]]:
        """Every axis with its values; see :attr:`MatrixTable.axes`."""
        return self.matrix.axes

    @property
    def dataset(self) -> str:
        """Name of the dataset, the first one of several; '' for none."""
        return self.test.dataset or str(next(iter(self.axes.get(DATASET_AXIS, ())), ""))

    def dataset_for(self, variant: Variant) -> str:
        """Return the name of the dataset that a variant reads; '' for none."""
        dataset = variant.dataset or self.dataset
        return self.twins.get(str(dict(variant.values).get(FORMAT_AXIS, "")), dataset)

    def check_missing_twin(self, name: str) -> None:
        """Refuse a dataset that is not here if it is the twin of another one than the test reads.

        Raises:
            DefinitionError: with the way to make and name the right one.
        """
        formats = {twin: format_ for format_, twin in self.twins.items()}
        if name not in formats or name.startswith(self.dataset):
            return
        format_, own = formats[name], f"{self.dataset}-{formats[name]}"
        raise DefinitionError(
            f"there is no dataset {name!r}, and it would be no twin of {self.dataset!r}",
            where=f"{self.test.name}: twins.{format_}",
            hint=f"Make that twin: treehammer datasets make {self.dataset} --format {format_}, and "
            f"name it: -S twins.{format_}={own}",
        )

    def axis_values(self, axis: str) -> tuple[str, ...]:
        """Return all values of an axis as text, those of [[include]] alone last."""
        included = (rule[axis] for rule in self.include if axis in rule)
        return tuple(dict.fromkeys(map(str, (*self.axes.get(axis, ()), *included))))

    @property
    def label_axes(self) -> tuple[str, ...]:
        """The axes that distinguish the test's variants, for :meth:`.Variant.label`."""
        names = (name for name in self.axes if name != DOOR_AXIS)
        return tuple(name for name in names if len(self.axis_values(name)) > 1)

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names of all datasets that variants read, the main one first; empty for none."""
        names = (self.dataset, *self.axis_values(DATASET_AXIS), *self.twins.values())
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def bundles_doors(self) -> bool:
        """Whether each job reads through all doors of the test."""
        return DOOR_AXIS in self.matrix.bundle

    @property
    def payload_kind(self) -> str:
        """``python``, ``macro`` or ``executable``, by the payload's suffix."""
        return detect_payload_kind(self.test.payload)

    @property
    def server_command(self) -> ServerCommand | None:
        """Command of [before] for the worker, with the first value of each setting; None without."""
        before = self.before
        if before is None:
            return None
        first = {name: self.axes[name][0] for name in before.settings}
        return ServerCommand(before.command, first, before.timeout_s)

    @property
    def build_command(self) -> BuildCommand | None:
        """Command of [build] for the worker; None without."""
        build = self.build
        if build is None:
            return None
        return BuildCommand(build.command, build.outputs, build.preload, build.timeout_s)

    def describe(self) -> dict[str, Any]:
        """Return the definition as campaigns store it, with every default written out."""
        before, build = self.server_command, self.build_command
        return {
            **self.model_dump(exclude={"test", "matrix"}),
            **self.test.model_dump(exclude={"load"}),
            "dataset": self.dataset,
            "axes": self.axes,
            "bundle": self.matrix.bundle,
            "libraries": self.test.load,
            "before": before and asdict(before),
            "build": build and asdict(build),
        }


TEST_TABLE_KEYS = tuple(TestTable.model_fields)


def build_test_schema() -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of test.toml, for editors."""
    schema = build_document_schema(TestDefinition, "test.toml")
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


def validate_definition(raw: Mapping[str, Any]) -> tuple[TestDefinition, list[DocumentProblem]]:
    """Validate the shape of a document.

    Returns:
        the document and its problems.  With problems, the document lacks the invalid parts, so that
        checks across keys still find further ones.
    """
    return validate_document(TestDefinition, raw, _fill_required_keys)


def fill_default_axes(raw: dict[str, Any]) -> None:
    """Add the axes that test.toml lacks to [matrix], behind its own; an executable has no ROOT."""
    matrix, test = raw.setdefault("matrix", {}), raw.get("test")
    if not isinstance(matrix, dict):
        return
    payload = test.get("payload") if isinstance(test, dict) else None
    if isinstance(payload, str) and detect_payload_kind(payload) == "executable":
        matrix.setdefault("root", ["none"])
    for name, axis in AXES_BY_NAME.items():
        if name != DOOR_AXIS:
            matrix.setdefault(name, list(axis.default))


def _fill_required_keys(document: dict[str, Any]) -> None:
    fill_default_axes(document)
    test = document.setdefault("test", {})
    test.setdefault("name", "unnamed")
    test.setdefault("payload", "test.toml")  # an existing file causes no further problem
    document["expect"] = [limit for limit in document.get("expect", ()) if "metric" in limit]
    if not {"command", "settings"} <= {*document.get("before", ())}:
        document.pop("before", None)
    if not {"command", "outputs"} <= {*document.get("build", ())}:
        document.pop("build", None)
