"""Wording of the attribution of slowdowns to a site or to the compared value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from treehammer.analysis.comparison.wording.verdict_text import (
    describe_change,
    format_change_interval,
    list_metrics,
    side_names,
    title_metric,
    word_verdict,
)
from treehammer.analysis.statistics.verdict import (
    SERIES_SCOPES,
    Verdict,
    VerdictEvidence,
)
from treehammer.hctests.matrix.definition import COMMIT_AXIS
from treehammer.sql.core.rows import VerdictRow

#: More names than this make a sentence unreadable.
MAX_NAMED = 6


def attribute_rows(
    rows: Sequence[VerdictRow], names: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Say in sentences where slowdowns point, each with the times it holds for.

    A site that differs from the others over all variants points at that site; a variant that is
    slower over the other sites points at the compared value.  Empty when neither was found.

    Args:
        rows: of the comparison.
        names: of campaigns, by identity.
    """
    metrics_by_sentence: dict[str, list[str]] = {}
    for metric in list_metrics(rows):
        for sentence in _attribute_metric([row for row in rows if row.metric == metric], names):
            metrics_by_sentence.setdefault(sentence, []).append(title_metric(metric))
    return tuple(
        f"{' and '.join(titles)}: {sentence}" for sentence, titles in metrics_by_sentence.items()
    )


@dataclass(frozen=True)
class _Findings:
    """Findings of one metric: sites that stand apart, variants that are slower, and other slow rows.

    ``shifts`` maps a site to (shift, low, high) in ln.
    """

    shifts: Mapping[str, tuple[float, ...]]
    slower: Sequence[str]
    unexplained: Sequence[VerdictRow]

    @classmethod
    def collect(cls, rows: Sequence[VerdictRow]) -> _Findings:
        """Collect the findings from the rows' evidence."""
        evidence = [(row, VerdictEvidence.from_json(row.evidence)) for row in rows]
        shifts = {
            row.site: row_evidence.site_shift
            for row, row_evidence in evidence
            if row_evidence.site_shift
        }
        slower = [row.label for row, row_evidence in evidence if row_evidence.points_at_change]
        slow = filter(_is_slower_series, rows)
        unexplained = [row for row in slow if row.site not in shifts and row.label not in slower]
        return cls(shifts, slower, unexplained)


def _is_slower_series(row: VerdictRow) -> bool:
    return row.verdict == Verdict.SLOWER and row.scope in SERIES_SCOPES


def _attribute_metric(rows: Sequence[VerdictRow], names: Mapping[str, str]) -> Iterator[str]:
    findings = _Findings.collect(rows)
    metric, worse = rows[0].metric, word_verdict(rows[0].metric, Verdict.SLOWER)
    better = VerdictEvidence.from_json(rows[0].evidence).better
    if findings.slower:
        where = "at the other sites" if findings.shifts else "over the sites"
        change = _name_change(rows, names)
        yield f"{worse} {where}, which points at {change}: {_join_names(findings.slower)}"
    for site, (shift, low, high) in findings.shifts.items():
        yield (
            f"{site} is {describe_change(shift, metric, better)} {format_change_interval(low, high)} than the other "
            "sites, which points at that site"
        )
    if findings.unexplained:
        yield _describe_unexplained(rows, findings.unexplained, names)


def _describe_unexplained(
    rows: Sequence[VerdictRow], unexplained: Sequence[VerdictRow], names: Mapping[str, str]
) -> str:
    worse = word_verdict(rows[0].metric, Verdict.SLOWER)
    judged = {row.site for row in rows if row.site and Verdict(row.verdict).is_statistical}
    if len(judged) == 1:
        return (
            f"{worse} at the only site that was judged ({judged.pop()}), which points at "
            f"{_name_change(rows, names)} or at that site"
        )
    named = _join_names([f"{row.label} at {row.site}" for row in unexplained])
    return f"{worse}, but neither over the sites nor in all variants of a site: {named}"


def summarize_attribution(
    rows: Sequence[VerdictRow], names: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the findings of :func:`attribute_rows`, or a sentence that explains their absence."""
    if sentences := attribute_rows(rows, names):
        return sentences
    if not any(Verdict(row.verdict).is_statistical for row in rows):
        return ("No verdict could be given, so nothing is attributed to a site or a cause.",)
    changed = "the release" if rows[0].axis == "root" else rows[0].axis
    return (f"Nothing slower was found that points at a site or at {changed}.",)


def _name_change(rows: Sequence[VerdictRow], names: Mapping[str, str]) -> str:
    first = rows[0]
    name = side_names(first, names)[1]
    named = {"root": "the release", COMMIT_AXIS: name if " " in name else f"commit {name}"}
    return named.get(first.axis, f"{first.axis}={name}")


def _join_names(names: Sequence[str]) -> str:
    listed = "; ".join(names[:MAX_NAMED])
    return listed if len(names) <= MAX_NAMED else f"{listed}; and {len(names) - MAX_NAMED} more"
