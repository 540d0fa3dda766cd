"""Output of a plugin for Nagios and its relatives, by the guidelines of the Monitoring Plugins.

The state is computed before; ``nagiosplugin`` formats states, performance data and their quoting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nagiosplugin import Check, Context, Metric, Range, Resource, Result, Summary, state
from nagiosplugin.performance import Performance

from treehammer.analysis.alarms.alarm_levels import AlarmFigure, AlarmLevel, SubjectState
from treehammer.text_formatting import make_single_line

#: Maximum characters of the first line, before the performance data.
MAX_LINE = 80
_STATES = {
    AlarmLevel.OK: state.Ok,
    AlarmLevel.DOWNTIME: state.Ok,
    AlarmLevel.WARNING: state.Warn,
    AlarmLevel.CRITICAL: state.Critical,
    AlarmLevel.UNKNOWN: state.Unknown,
}


def format_plugin_output(subject: SubjectState, verbose: int = 0) -> str:
    """Format a state: one line with performance data, then the details.

    Args:
        subject: the state.
        verbose: 0 prints one line only, 1 the details, 2 also rule, evidence and thresholds.
    """
    check = _run_check(subject)
    line = _clean_line(f"{check.name} {subject.level} - {check.summary_str}")
    data = " ".join(check.perfdata)
    lines = [f"{_shorten(line)} | {data}" if data else _shorten(line)]
    if verbose:
        lines += map(_clean_line, subject.details)
    if verbose > 1:
        lines += map(_clean_line, _list_extras(subject))
    return "\n".join(lines)


def _run_check(subject: SubjectState) -> Check:
    check = Check(
        _SubjectResource(subject),
        _LevelContext(subject.level),
        *(_FigureContext(one) for one in subject.figures),
        _SubjectSummary(subject),
    )
    check.name = subject.title.upper() if not subject.name else _title(subject)
    check()
    return check


def _title(subject: SubjectState) -> str:
    """Format a subject, with its name unchanged, as names of sites differ in case."""
    kind, _, name = subject.title.partition(" ")
    return f"{kind.upper()} {name}".strip()


class _SubjectResource(Resource):  # type: ignore[misc]  # nagiosplugin has no types
    """The subject: its state as a metric, and its figures."""

    def __init__(self, subject: SubjectState) -> None:
        self._subject = subject

    def probe(self) -> Iterable[Metric]:
        """Return the metrics of the subject."""
        yield Metric("state", self._subject.level.code, context="state")
        for one in self._subject.figures:
            yield Metric(one.name, one.value, context=one.name)


class _LevelContext(Context):  # type: ignore[misc]  # nagiosplugin has no types
    """Gives the computed state; figures are not judged a second time."""

    def __init__(self, level: AlarmLevel) -> None:
        super().__init__("state")
        self._level = level

    def evaluate(self, metric: Metric, resource: Resource) -> Result:
        """Return the computed state."""
        return Result(_STATES[self._level], metric=metric)

    def performance(self, metric: Metric, resource: Resource) -> None:
        """Leave the state out of the performance data."""


class _FigureContext(Context):  # type: ignore[misc]  # nagiosplugin has no types
    """Formats a figure with its thresholds as performance data."""

    def __init__(self, figure: AlarmFigure) -> None:
        super().__init__(figure.name)
        self._figure = figure

    def evaluate(self, metric: Metric, resource: Resource) -> Result:
        """Return OK, since the state was computed from all figures."""
        return Result(state.Ok, metric=metric)

    def performance(self, metric: Metric, resource: Resource) -> Performance:
        """Return the performance data; U for an unknown value."""
        figure = self._figure
        return Performance(
            figure.name,
            "U" if figure.value is None else _format_number(figure.value),
            # A value of U has no unit.
            "" if figure.value is None else figure.unit,
            _format_range(figure.warning, figure.is_minimum),
            _format_range(figure.critical, figure.is_minimum),
            "",
            "" if figure.maximum is None else _format_number(figure.maximum),
        )


class _SubjectSummary(Summary):  # type: ignore[misc]  # nagiosplugin has no types
    """The summary of the subject in any state."""

    def __init__(self, subject: SubjectState) -> None:
        self._subject = subject

    def ok(self, results: Any) -> str:
        """Return the summary."""
        return self._subject.summary

    def problem(self, results: Any) -> str:
        """Return the summary."""
        return self._subject.summary


def _format_number(value: float) -> str:
    """Format a number without an exponent, which perfdata does not know."""
    return f"{value:.4f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def _format_range(threshold: float | None, is_minimum: bool) -> str:
    """Format a threshold as a range: ``10`` alerts above 10, ``10:`` below."""
    if threshold is None:
        return ""
    number = _format_number(threshold)
    if is_minimum:
        return str(Range(f"{number}:"))
    return str(Range(number if threshold >= 0 else f"~:{number}"))


def _clean_line(text: str) -> str:
    """Remove what ends a field of the output, or controls a terminal."""
    return make_single_line(text).replace("|", "/")


def _shorten(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1].rstrip()}…"


def _list_extras(subject: SubjectState) -> Sequence[str]:
    extras = [f"rule: {subject.rule}"] if subject.rule else []
    extras += [f"evidence: {subject.evidence}"] if subject.evidence else []
    for one in subject.figures:
        side = "below" if one.is_minimum else "above"
        limits = [
            f"{word} {side} {_format_number(limit)}{one.unit}"
            for word, limit in (("warning", one.warning), ("critical", one.critical))
            if limit is not None
        ]
        if limits:
            value = "unknown" if one.value is None else f"{_format_number(one.value)}{one.unit}"
            extras.append(f"{one.name}: {value}; {', '.join(limits)}")
    return extras
