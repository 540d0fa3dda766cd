"""Plan of a campaign: the document that a submission writes and the database parses.

A plan holds what was requested and decided before submission.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
)
from pydantic_core import ErrorDetails

from treehammer.errors import ConfigError, StoreError
from treehammer.hctests.definition.model import (
    ANY_COMMAND,
    COMMIT_AXIS,
    DATASET_AXIS,
    FORMAT_AXIS,
    RELEASE_AXIS,
    SETUP_KEYS,
    Scalar,
)

if TYPE_CHECKING:
    from treehammer.hctests.definition.judged_metrics import ExpectTable, MetricTable
    from treehammer.hctests.definition.toml_models import LoadTable

#: Version of the document. Plans of releases up to 0.2.0 name none and have fewer keys.
SCHEMA_VERSION = 1
_Value = TypeVar("_Value")
#: A list of JSON, which a frozen model holds as a tuple.
_Items = Annotated[tuple[_Value, ...], Strict(False)]
_Number = int | float


def _restore_whole(value: Any) -> Any:
    """Convert 5.0 to 5: JSON does not distinguish them."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Count = Annotated[int, Field(ge=0, le=2**63 - 1), BeforeValidator(_restore_whole)]


class _PlanModel(BaseModel):
    """Base of the models: keys that other versions add are kept."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", allow_inf_nan=False)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with valid values replaced."""
        return self.model_copy(update=changes)


class PlannedTest(_PlanModel):
    """The test as pinned; see :class:`.PinnedTest`.

    Attributes:
        files: relative name -> SHA-256 of each of the test's files.
    """

    repository: str = ""
    ref: str = ""
    commit: str = ""
    dirty: bool = False
    path: str = ""
    files: dict[str, str] = {}


class PlannedDefinition(_PlanModel):
    """The test's definition with all overrides; see :meth:`.TestDefinition.describe`.

    ``expect``, ``metrics`` and ``load`` are kept as the submitting version wrote them; :attr:`limits`,
    :attr:`own_metrics` and :attr:`load_test` are the parts of them that this version understands.
    """

    name: str = ""
    description: str = ""
    payload: str = ""
    dataset: str = ""
    tree: str = ""
    mode: str = ""
    repeats: _Count | None = None
    rounds: _Count | None = None
    passes: _Count | None = None
    seed: _Count | None = None
    wall_limit_s: _Number = 600.0
    memory_limit_mb: _Count | None = None
    axes: dict[str, _Items[Scalar]] = {}
    bundle: _Items[str] = ()
    include: _Items[dict[str, Scalar]] = ()
    exclude: _Items[dict[str, Scalar]] = ()
    twins: dict[str, str] = {}
    settings: dict[str, Any] = {}
    environment: dict[str, str] = {}
    headline: _Items[str] = ()
    metrics: dict[str, dict[str, Any]] = {}
    expect: _Items[dict[str, Any]] = ()
    load: dict[str, Any] | None = None

    @property
    def compared_axes(self) -> dict[str, Sequence[Scalar]]:
        """Axes that the campaign compares, with their values as requested, the base first.

        These are the bundled axes, whose values share jobs; without them the commit, release or format.
        """
        varying = self.varying_axes
        bundled = [axis for axis in self.bundle if axis in varying]
        apart = [axis for axis in (COMMIT_AXIS, RELEASE_AXIS, FORMAT_AXIS) if axis in varying]
        return {axis: self.axes[axis] for axis in bundled or apart[:1]}

    @property
    def varying_axes(self) -> list[str]:
        """Names of the axes with several values."""
        return [axis for axis, values in self.axes.items() if len(values) > 1]

    @property
    def exact_metrics(self) -> set[str]:
        """Names of the test's own metrics that are exact."""
        return {name for name, metric in self.metrics.items() if metric.get("exact")}

    @property
    def work(self) -> str:
        """What times "per event" are measured per: ``event``, or ``run`` of a command."""
        return "run" if self.payload == ANY_COMMAND else "event"

    @property
    def datasets(self) -> set[str]:
        """Names of all datasets that the variants read."""
        names = [*self.axes.get(DATASET_AXIS, ()), self.dataset, *self.twins.values()]
        names += [rule.get(DATASET_AXIS, "") for rule in self.include]
        return {str(name) for name in names if name}

    # Their models, with the positions of TOML, are slow to load, and few plans need them.

    @cached_property
    def own_metrics(self) -> dict[str, MetricTable]:
        """Own metrics of the test by name."""
        from treehammer.hctests.definition.judged_metrics import MetricTable

        return {
            name: MetricTable.model_construct(**metric) for name, metric in self.metrics.items()
        }

    @cached_property
    def limits(self) -> list[ExpectTable]:
        """Limits of the test, without those that only another version understands."""
        from treehammer.hctests.definition.judged_metrics import ExpectTable

        limits = []
        for document in self.expect:
            with suppress(ValidationError):
                limits.append(ExpectTable.model_validate(document))
        return limits

    @cached_property
    def load_test(self) -> LoadTable | None:
        """Load of the test; None without one, and for one that only another version understands."""
        if not self.load:
            return None
        from treehammer.hctests.definition.toml_models import LoadTable

        try:
            load = LoadTable.model_validate(self.load)
            load.level_start_s(0)
        except (ValueError, ConfigError):
            return None
        return load

    @cached_property
    def setup(self) -> dict[str, Any]:
        """Keys that two commits must share to be compared, see :func:`.compute_setup`."""
        return self.model_dump(include={*SETUP_KEYS}, exclude_unset=True)


class SequentialPlan(_PlanModel):
    """Numbers of launches of a series after which it is judged, and the limit of no effect.

    Each look is judged at its share of the error rate, see :func:`.share_error_rate`.  By Bonferroni's
    inequality, the probability of a false claim at any of them is at most the whole rate. This holds for
    any reason to end the campaign and any dependence between the looks.

    Attributes:
        looks: launches after which a series is judged.
        delta: effects (in ln) within ±delta count as none.
        checksums: earlier campaign whose checksum executions hold for this one; '' for none.
    """

    looks: _Items[_Count] = Field(min_length=1)
    delta: _Number
    checksums: str = ""


class PlannedCost(_PlanModel):
    """Estimated cost of a campaign; None where it is unknown."""

    wall_s: _Number | None = None
    cpu_s: _Number | None = None
    read_bytes: _Number | None = None


class PlannedWatch(_PlanModel):
    """A test that watches servers during the load."""

    test: str = ""
    hash: str = ""
    settings: dict[str, Any] = {}
    sites: _Items[str] = ()


def _require_known_version(version: int) -> int:
    if version > SCHEMA_VERSION:
        raise ValueError(f"{version} is newer than {SCHEMA_VERSION}, the version that is read here")
    return version


class CampaignPlan(_PlanModel):
    """Plan of a campaign.

    Attributes:
        schema_version: version of the document.
        test: the test as pinned; None in plans of releases up to 0.2.0.
        definition: the test's definition as requested: variants, repeats, limits.
        submitter: user who submitted the campaign; '' if unknown.
        sites: sites whose storage is read.
        runners: sites that run the jobs; empty: each site reads its own storage.
        excluded: site, or label of a door, that is left out -> reason.
        included: site, or label of a door, that is used although it should not be -> reason.
        watch: tests that watch the servers.
        templates: site -> name and hash of its submit description's template.
        until_decided: looks of a campaign that ends when it is decided.
        estimate: estimated cost, recorded by the submission.
    """

    schema_version: Annotated[_Count, AfterValidator(_require_known_version)] = Field(
        SCHEMA_VERSION, json_schema_extra={"maximum": SCHEMA_VERSION}
    )
    test: PlannedTest | None = None
    definition: PlannedDefinition = PlannedDefinition()
    submitter: str = ""
    sites: _Items[str] = ()
    runners: _Items[str] = Field((), alias="from")
    excluded: dict[str, str] = {}
    included: dict[str, str] = {}
    watch: _Items[PlannedWatch] = ()
    templates: dict[str, str] = {}
    until_decided: SequentialPlan | None = None
    estimate: PlannedCost = PlannedCost()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a stored plan.

        Raises:
            StoreError: the text is not a plan that this version reads.
        """
        try:
            return cls.model_validate(json.loads(text))
        except ValidationError as error:
            problem = describe_problem(error.errors(include_url=False)[0])
        except (ValueError, RecursionError) as error:
            problem = f"not JSON ({error})"
        raise StoreError(
            f"cannot read a campaign's plan: {problem}",
            hint="Read it with the version of Treehammer that wrote it, or a later one.",
        )

    def to_document(self) -> dict[str, Any]:
        """Return the values of JSON: the keys that were written, those of other versions included."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def to_json(self) -> str:
        """Return canonical JSON, the text of the column."""
        return json.dumps(self.to_document(), sort_keys=True)

    # Columns of the campaign, which queries select by.

    @property
    def has_own_metrics(self) -> bool:
        """Whether the test states headline or exact metrics, or is a command's with times per run."""
        definition = self.definition
        return bool(
            definition.headline or definition.exact_metrics or definition.payload == ANY_COMMAND
        )

    @property
    def is_sequential(self) -> bool:
        """Whether the campaign ends when it is decided."""
        return self.until_decided is not None

    @property
    def axes(self) -> str:
        """Names of the axes with several values, sorted, separated by spaces."""
        return " ".join(sorted(self.definition.varying_axes))


def describe_problem(details: ErrorDetails, document: str = "the document") -> str:
    """Describe a validation error in one line, its key first, without the invalid value."""
    key = ".".join(map(str, details["loc"])) or document
    message = details["msg"].removeprefix("Value error, ").partition(" or instance")[0]
    message = message.replace("valid tuple", "valid list")
    return f"{key}: {message[:1].lower()}{message[1:]}"
