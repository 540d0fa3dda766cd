"""States of sites, releases and the service with their figures, and their output for monitoring systems.

Plugins for Nagios and its relatives follow the guidelines of the Monitoring Plugins;
``nagiosplugin``, a package of an extra, formats performance data. This module needs
neither pydantic nor SQLAlchemy, so that commands start without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from treehammer.text_formatting import make_single_line


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
        return _CODES.get(self, 0)

    @property
    def rank(self) -> int:
        """Severity for ordering; critical is the worst."""
        return list(AlarmLevel).index(self)


_CODES = {AlarmLevel.WARNING: 1, AlarmLevel.CRITICAL: 2, AlarmLevel.UNKNOWN: 3}


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
        origin: origin of the failures that led to it; '' if unknown.
        action: cause of most of these failures, and the remedy.
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
    origin: str = ""
    action: str = ""

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


#: Maximum characters of the first line, before the performance data.
MAX_LINE = 80


def format_plugin_output(subject: SubjectState, verbose: int = 0) -> str:
    """Format a state: one line with performance data, then the details.

    Args:
        subject: the state.
        verbose: 0 prints one line only, 1 the details, 2 also rule, evidence and thresholds.
    """
    # The name is unchanged, as names of sites differ in case.
    kind, _, name = subject.title.partition(" ")
    title = f"{kind.upper()} {name}".strip()
    line = _clean_line(f"{title} {subject.level} - {subject.summary}")
    line = line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1].rstrip()}…"
    data = " ".join(sorted(map(_format_figure, subject.figures)))
    lines = [f"{line} | {data}" if data else line]
    if verbose:
        lines += map(_clean_line, subject.details)
    if verbose > 1:
        lines += map(_clean_line, _list_extras(subject))
    return "\n".join(lines)


def _format_figure(figure: AlarmFigure) -> str:
    """Format a figure with its thresholds as performance data; U, without a unit, if unknown."""
    from nagiosplugin.performance import Performance

    value, unit = ("U", "") if figure.value is None else (_format_number(figure.value), figure.unit)
    return str(
        Performance(
            figure.name,
            value,
            unit,
            _format_range(figure.warning),
            _format_range(figure.critical),
            "",
            "" if figure.maximum is None else _format_number(figure.maximum),
        )
    )


def _format_number(value: float) -> str:
    """Format a number without an exponent, which perfdata does not know."""
    return f"{value:.4f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def _format_range(threshold: float | None) -> str:
    """Format a threshold as a range, which alerts above it."""
    if threshold is None:
        return ""
    return f"{'' if threshold >= 0 else '~:'}{_format_number(threshold)}"


def _clean_line(text: str) -> str:
    """Remove field separators of the output and control characters."""
    return make_single_line(text).replace("|", "/")


def _list_extras(subject: SubjectState) -> Sequence[str]:
    extras = [f"rule: {subject.rule}"] if subject.rule else []
    extras += [f"evidence: {subject.evidence}"] if subject.evidence else []
    for figure in subject.figures:
        limits = [
            f"{word} above {_format_number(limit)}{figure.unit}"
            for word, limit in (("warning", figure.warning), ("critical", figure.critical))
            if limit is not None
        ]
        if limits:
            number = "unknown" if figure.value is None else _format_number(figure.value)
            unit = "" if figure.value is None else figure.unit
            extras.append(f"{figure.name}: {number}{unit}; {', '.join(limits)}")
    return extras
