"""Output of states for monitoring systems: plugins for Nagios and its relatives, WLCG's documents.

Plugins follow the guidelines of the Monitoring Plugins; ``nagiosplugin``, a package of an extra,
formats performance data and ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treehammer.analysis.status.subject_state import AlarmFigure, SubjectState
from treehammer.sql.watch.alarms import hash_identity
from treehammer.text_formatting import make_single_line

#: Name of the producer unless MONIT assigned another one.
PRODUCER = "treehammer"
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
    line = _shorten(_clean_line(f"{title} {subject.level} - {subject.summary}"))
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
    from nagiosplugin import Range

    number = _format_number(threshold)
    return str(Range(number if threshold >= 0 else f"~:{number}"))


def _clean_line(text: str) -> str:
    """Remove field separators of the output and control characters."""
    return make_single_line(text).replace("|", "/")


def _shorten(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1].rstrip()}…"


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
            value = (
                "unknown"
                if figure.value is None
                else f"{_format_number(figure.value)}{figure.unit}"
            )
            extras.append(f"{figure.name}: {value}; {', '.join(limits)}")
    return extras


def build_monit_documents(
    subjects: Iterable[SubjectState], *, now_us: int, producer: str = PRODUCER
) -> list[dict[str, Any]]:
    """Build one document per subject for WLCG's monitoring, of type ``site_status`` and the like.

    A producer posts JSON objects with ``producer``, ``type``, ``type_prefix`` and ``timestamp`` in
    milliseconds; all other fields are data (https://monit-docs.web.cern.ch/metrics/http/). The
    identity of a document is that of subject and time, so that a repetition replaces it.

    Args:
        subjects: the states.
        now_us: time of the states, in microseconds since 1970 UTC.
        producer: name that MONIT assigned.
    """
    return [
        {
            "producer": producer,
            "type": f"{subject.kind}_status",
            "type_prefix": "raw",
            "timestamp": now_us // 1000,
            "_id": hash_identity(producer, subject.kind, subject.name, now_us // 1000),
            "name": subject.name,
            "status": subject.level.value,
            "status_code": subject.level.code,
            "summary": subject.summary,
            "details": "\n".join(subject.details),
            "since": None if subject.since_us is None else subject.since_us // 1000,
            "rule": subject.rule,
            "evidence": subject.evidence,
            **{f"figure_{figure.name}": figure.value for figure in subject.figures},
        }
        for subject in subjects
    ]
