"""States of sites, releases and the service, with the figures and thresholds that lead to them.

This module needs no pydantic, so that commands start without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class SiteState(StrEnum):
    """State of a site, a storage, or one of their days."""

    OK = "ok"
    #: Works with failures above a threshold, or its exclusion is suspended.
    WARNING = "warning"
    #: Does not work; work is better sent elsewhere.
    CRITICAL = "critical"
    #: Too few results to judge.
    UNKNOWN = "unknown"
    #: Announced not to work.
    DOWNTIME = "downtime"

    @property
    def letter(self) -> str:
        """Short text for a small cell."""
        return "–" if self is SiteState.UNKNOWN else self.value[0].upper()


#: States from the worst to the least informative.
WORST_FIRST = (
    SiteState.CRITICAL,
    SiteState.WARNING,
    SiteState.DOWNTIME,
    SiteState.OK,
    SiteState.UNKNOWN,
)


def find_worst_state(states: Iterable[SiteState]) -> SiteState:
    """Return the worst of several states; unknown only if all are."""
    return min(states, key=WORST_FIRST.index, default=SiteState.UNKNOWN)


class AlarmLevel(StrEnum):
    """States of the Monitoring Plugins, and downtime, which suppresses alarms; the worst last."""

    OK = "OK"
    DOWNTIME = "DOWNTIME"
    UNKNOWN = "UNKNOWN"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"

    @property
    def code(self) -> int:
        """Exit code of a plugin: 0 OK and downtime, 1 warning, 2 critical, 3 unknown."""
        return _CODES[self]

    @property
    def rank(self) -> int:
        """Severity for ordering; critical is the worst."""
        return list(AlarmLevel).index(self)


_CODES: Mapping[AlarmLevel, int] = {
    AlarmLevel.OK: 0,
    AlarmLevel.DOWNTIME: 0,
    AlarmLevel.WARNING: 1,
    AlarmLevel.CRITICAL: 2,
    AlarmLevel.UNKNOWN: 3,
}


class AlarmKind(StrEnum):
    """Kinds of subjects that have a state."""

    SITE = "site"
    RELEASE = "release"
    SERVICE = "service"
    #: Most sites at once, or most storages; the name is that of the kind of sites.
    CENTRAL = "central"


#: Name of the service as a subject.
SERVICE_NAME = "treehammer"


@dataclass(frozen=True)
class AlarmFigure:
    """A number that a state depends on or is shown with.

    Attributes:
        name: unique in its state; letters, digits and ``_``.
        value: in its unit; None if unknown.
        unit: ``s``, ``%`` or '' for a number of things.
        warning: values above are a warning; None without such a threshold.
        critical: values above are critical.
        maximum: largest possible value.
    """

    name: str
    value: float | None
    unit: str = ""
    warning: float | None = None
    critical: float | None = None
    maximum: float | None = None


@dataclass(frozen=True)
class SubjectState:
    """State of a site, release or service.

    Attributes:
        kind: kind of the subject.
        name: its name.
        level: the state.
        summary: the reason in a few words.
        details: further lines.
        figures: numbers with thresholds.
        since_us: time since which it is in this state, in microseconds since 1970 UTC; None if
            unknown.
        evidence: path of the page with the evidence, below the service's address.
        rule: rule that led to the state, with its version.
        is_excused: whether messages about the state are suppressed, by a downtime or a central event.
    """

    kind: AlarmKind
    name: str
    level: AlarmLevel
    summary: str
    details: tuple[str, ...] = ()
    figures: tuple[AlarmFigure, ...] = ()
    since_us: int | None = None
    evidence: str = ""
    rule: str = ""
    is_excused: bool = False

    @property
    def title(self) -> str:
        """Kind and name of the subject."""
        if self.kind is AlarmKind.SERVICE:
            return self.kind.value
        if self.kind is AlarmKind.CENTRAL:
            return f"central {self.name.replace('_', ' ')}s"
        return f"{self.kind} {self.name}"

    def to_document(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        return {
            "kind": self.kind.value,
            "name": self.name,
            "state": self.level.value,
            "code": self.level.code,
            "summary": self.summary,
            "since_us": self.since_us,
            "rule": self.rule,
            "evidence": self.evidence,
            "details": list(self.details),
            "figures": [asdict(figure) for figure in self.figures],
        }


def worst_level(*levels: AlarmLevel) -> AlarmLevel:
    """Return the worst of some states; OK without any."""
    return max(levels, key=lambda level: level.rank, default=AlarmLevel.OK)


def judge_figure(figure: AlarmFigure) -> AlarmLevel:
    """Judge a figure by its thresholds; OK where its value is unknown."""
    for level, threshold in (
        (AlarmLevel.CRITICAL, figure.critical),
        (AlarmLevel.WARNING, figure.warning),
    ):
        if figure.value is not None and threshold is not None and figure.value > threshold:
            return level
    return AlarmLevel.OK
