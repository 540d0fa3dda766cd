"""Rules for the states of sites: schema of their file, shipped rules and versions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, ValidationError
from pydantic_core import InitErrorDetails

from treehammer.analysis.status.day_outcomes import (
    OperationsRule,
    Share,
    VersionedRule,
    classify_share,
)
from treehammer.analysis.status.site_uses import SiteState
from treehammer.collectors.record.outcome import FAILURE_CLASSES
from treehammer.errors import ConfigError, InvalidDocumentError
from treehammer.hctests.definition.document_problems import (
    DocumentProblem,
    StrictModel,
    invalid_value,
    list_problems,
    load_document,
)
from treehammer.program_output import read_document_text
from treehammer.text_formatting import SECOND_US, format_share, parse_duration

RULES_FILE = Path(__file__).with_name("status_rules.toml")

#: Names that causes other than rules have.
RESERVED_RULE_NAMES = ("downtime", "override", "central", "too-few")

SubjectKind = Literal["site", "storage_site"]
#: Kinds that runs are charged to.
_ChargedKind = Literal["site", "storage_site", "door"]


def _validate_duration(text: str) -> str:
    try:
        parse_duration(text, "")
    except ConfigError as error:
        raise invalid_value(f"{error.message} ({error.hint})") from error
    return text


def _validate_failures(names: list[str]) -> list[str]:
    for name in names:
        if name not in FAILURE_CLASSES:
            classes = ", ".join(FAILURE_CLASSES)
            raise invalid_value(f"unknown failure class {name!r} (expected some of {classes})")
    return names


Duration = Annotated[str, AfterValidator(_validate_duration)]
_Failures = Annotated[list[str], AfterValidator(_validate_failures)]


def duration_us(text: str) -> int:
    """Convert a valid duration to microseconds."""
    return parse_duration(text, "") * SECOND_US


class StatusRule(VersionedRule):
    """A rule with a kind; the function that judges by it is registered for its class.

    Models with a literal ``kind`` are listed in ``MODELS`` once they are defined.
    """

    MODELS: ClassVar[dict[str, type[StatusRule]]] = {}

    if TYPE_CHECKING:  # each kind declares them
        kind: str

        @property
        def sites(self) -> Sequence[str]:
            """Kinds of sites that are judged."""

        def describe(self) -> str:
            """Describe the rule in words."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: Any) -> None:
        """List the model of a kind."""
        if kind := cls.model_fields.get("kind"):
            cls.MODELS[get_args(kind.annotation)[0]] = cls


class WindowRule(StatusRule):
    """A rule on the runs of a time window."""

    window: Duration = Field(description="Time window, such as 24h.")

    @property
    def memory_us(self) -> int:
        """Time for which a run influences a state."""
        return duration_us(self.window)

    @property
    def hold_us(self) -> int:
        """Time after a recovery at whose end a site is judged again."""
        return 0


class _RunRule(WindowRule):
    sites: list[_ChargedKind] = Field(
        ["site", "storage_site", "door"],
        min_length=1,
        description="Kinds of sites that are judged, and doors of a storage that has several.",
    )


class ShareRule(_RunRule):
    """State by the ratio of failed to good measurements in a time window."""

    kind: Literal["share"]
    min_measurements: int = Field(ge=1, description="Unknown with fewer measurements.")
    max_failed_per_success: Share = Field(description="A warning above this ratio.")
    clear_below: Share = Field(description="A warning ends below this ratio.")

    def classify(self, good: int, bad: int, *, was_bad: bool = False) -> SiteState:
        """Return the state by the share of bad measurements, without a minimum of their number."""
        if was_bad and good:
            limit = min(self.clear_below, self.max_failed_per_success)
            return SiteState.WARNING if bad >= limit * good and bad else SiteState.OK
        return classify_share(good, bad, self.max_failed_per_success)

    def describe(self) -> str:
        """Describe the rule in words."""
        return (
            "Critical: no measurement is good. Warning: failed and implausible ones are more than "
            f"{format_share(self.max_failed_per_success)} of the good ones, until they are fewer than "
            f"{format_share(self.clear_below)}. Over {self.window}, with {self.min_measurements} measurements "
            f"at least."
        )


class OperationsStatusRule(OperationsRule, StatusRule):
    """The rule for storages by load tests, as a rule for states."""

    kind: Literal["operations"]

    @property
    def sites(self) -> list[SubjectKind]:
        """Kinds of sites that are judged."""
        return ["storage_site"]


class ExclusionRule(_RunRule):
    """State by the last runs of several tests, with recovery by all of them."""

    kind: Literal["tests"]
    failed_runs: int = Field(
        ge=1, description="A test is failing if its last runs, this many, all failed."
    )
    failed_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="A test is failing, too, if more than this share of its runs failed.",
    )
    min_runs: int = Field(
        10, ge=1, description="Runs in the window without which no share is judged."
    )
    failing_tests: int = Field(
        ge=1, description="Critical if so many tests are failing, or all where fewer ran."
    )
    recovery_runs: int = Field(
        ge=1, description="Over when the last runs of every test, this many, succeeded."
    )
    hold: Duration = Field(description="No second exclusion within this time after a recovery.")
    forget: Duration = Field(
        description="A recovery does not wait for tests without a run in this time; a site without "
        "any is unknown."
    )

    @property
    def memory_us(self) -> int:
        """Time for which a run influences a state."""
        return duration_us(self.forget)

    @property
    def hold_us(self) -> int:
        """Time after a recovery at whose end a site is judged again."""
        return duration_us(self.hold)

    def describe(self) -> str:
        """Describe the rule in words."""
        return (
            f"Critical: of {self.failing_tests} tests, or of all where fewer ran, the last "
            f"{self.failed_runs} runs within {self.window} failed, or more than "
            f"{format_share(self.failed_share)} of {self.min_runs} or more; until the last "
            f"{self.recovery_runs} runs of every test succeeded. Warning: fewer tests are failing, "
            f"or the last recovery is less than {self.hold} ago."
        )


_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


def _parse_rules(tables: Any) -> Any:
    """Parse rules by their names; their keys depend on their kinds."""
    if not isinstance(tables, dict):
        return tables
    details: list[InitErrorDetails] = []
    for name, table in tables.items():
        if not isinstance(table, dict | StatusRule):
            details.append({"type": "dict_type", "loc": (name,), "input": table})
            continue
        for problem in _list_rule_problems(name, table):
            kind, path = invalid_value(problem.text), (name, *problem.path)
            details.append({"type": kind, "loc": path, "input": table})
    if details:
        raise ValidationError.from_exception_data("rules", details)
    return {
        name: table
        if isinstance(table, StatusRule)
        else StatusRule.MODELS[table["kind"]].model_validate(table)
        for name, table in tables.items()
    }


def _list_rule_problems(name: str, table: dict[str, Any] | StatusRule) -> list[DocumentProblem]:
    if isinstance(table, StatusRule):
        return []
    if name in RESERVED_RULE_NAMES or not _NAME.fullmatch(name):
        reserved = ", ".join(RESERVED_RULE_NAMES)
        expected = f"a word of lower-case letters, digits and '-' but {reserved}"
        return [DocumentProblem((), f"is not a valid name of a rule (expected {expected})")]
    model = StatusRule.MODELS.get(str(table.get("kind", "")))
    if model is None:
        kinds = ", ".join(StatusRule.MODELS)
        return [DocumentProblem(("kind",), f"is missing or unknown (known: {kinds})")]
    return list_problems(model, table)


Rule = TypeVar("Rule", bound=StatusRule)


class CentralTable(StrictModel):
    """Mass events: most sites turn critical at once."""

    share: float = Field(0.5, gt=0, le=1, description="Share of the judged sites.")
    min_sites: int = Field(3, ge=2, description="Number of sites at least.")
    within: Duration = Field("3h", description="Time within which they turn critical.")
    ends_below: Share = Field(
        0.5, description="Over when less than this share of its sites is still affected."
    )
    grace: Duration = Field(
        "6h", description="Sites not recovered this long after the end become critical."
    )


class ProbesTable(StrictModel):
    """Single jobs that find out whether a critical site has recovered."""

    every: Duration = Field("15m", description="Time between two probes of a site by one test.")
    tests: list[str] = Field(
        default_factory=list, description="Names of the tests that probe; all by default."
    )

    @property
    def every_us(self) -> int:
        """Time between two probes, in microseconds."""
        return duration_us(self.every)


class StatusRules(StrictModel):
    """File of rules for the states of sites."""

    step: Duration = Field("5m", description="Results are looked at in steps of this length.")
    reevaluate: Duration = Field("2d", description="Late results correct the states of this time.")
    storage_failures: _Failures = Field(
        ["stage-in", "open", "read", "data-check"],
        description="Failure classes that count against the storage that was read.",
    )
    test_failures: _Failures = Field(
        ["payload"], description="Failure classes of the test itself, which count against no site."
    )
    central: CentralTable = Field(CentralTable.model_validate({}), description="Mass events.")
    probes: ProbesTable = Field(
        ProbesTable.model_validate({}), description="Probes of critical sites."
    )
    rules: Annotated[dict[str, SerializeAsAny[StatusRule]], BeforeValidator(_parse_rules)] = Field(
        min_length=1, description="Rules by name."
    )

    @property
    def step_us(self) -> int:
        """Length of a step, in microseconds."""
        return duration_us(self.step)

    @property
    def reevaluate_us(self) -> int:
        """Time that late results correct, in microseconds."""
        return duration_us(self.reevaluate)

    @cached_property
    def document(self) -> str:
        """Canonical JSON of all values."""
        return json.dumps(self.model_dump(), sort_keys=True)

    @property
    def version(self) -> str:
        """Hash of all values."""
        return hashlib.sha256(self.document.encode()).hexdigest()[:12]

    def describe_central(self) -> str:
        """Describe the rule on mass events in words."""
        central = self.central
        return (
            f"Central event: at least {central.min_sites} sites and {format_share(central.share)} of "
            f"the judged ones turn critical within {central.within}; no exclusion until "
            f"{central.grace} after it ends. Rules {self.version}."
        )

    @property
    def longest_memory_us(self) -> int:
        """Longest time for which a run influences a state."""
        rules = self.list_rules(WindowRule)
        return max((max(duration_us(rule.window), rule.memory_us) for rule in rules), default=0)

    def list_rules(self, kind: type[Rule]) -> list[Rule]:
        """List the rules of a kind."""
        return [rule for rule in self.rules.values() if isinstance(rule, kind)]


@cache
def load_shipped_rules() -> StatusRules:
    """Load the rules that come with Treehammer."""
    return load_status_rules(RULES_FILE)


def load_status_rules(path: Path | None = None) -> StatusRules:
    """Load rules from a file; without one the shipped rules.

    Raises:
        InvalidDocumentError: the file cannot be read, or has mistakes; ``problems`` lists them.
    """
    if path is None:
        return load_shipped_rules()
    hint = "Check status_rules in treehammer.toml, TREEHAMMER_STATUS_RULES or --rules."
    return parse_status_rules(read_document_text(path, InvalidDocumentError, hint), str(path))


def parse_status_rules(text: str, name: str) -> StatusRules:
    """Parse the text of a rules file; messages call it ``name``.

    Raises:
        InvalidDocumentError: the text has mistakes.
    """
    return load_document(
        StatusRules,
        text,
        name,
        _drop_invalid_rules,
        lambda _document: (),
        InvalidDocumentError,
    )


def _drop_invalid_rules(document: dict[str, Any]) -> None:
    """Leave out rules that lack a key, and put a rule in place of the last one."""
    rules = document.get("rules", {}).items()
    valid = {name: rule for name, rule in rules if not _list_rule_problems(name, rule)}
    document["rules"] = valid or {"missing": StatusRule.model_construct(kind="")}
