"""Attribution of slowdowns to a site, to a release, or to neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from treehammer.analysis.comparison.verdict_text import METRIC_TITLES, side_names
from treehammer.analysis.statistics.verdict import SERIES_SCOPE, Verdict
from treehammer.sql.core.rows import VerdictRow

#: More names than this make a sentence unreadable.
MAX_NAMED = 6


@dataclass(frozen=True)
class SeriesVerdict:
    """The part of a series' verdict that attribution needs."""

    site: str
    label: str
    verdict: Verdict


def attribute_findings(findings: Iterable[SeriesVerdict], changed: str) -> tuple[str, ...]:
    """Say in sentences where slowdowns point; empty when nothing was found slower.

    A test slower at every site that could judge it (at least two) points at ``changed`` (the
    release); every test slower at one site (at least two tests) and not elsewhere points at
    that site; anything else at neither.
    """
    judged = [finding for finding in findings if finding.verdict.is_statistical]
    by_label = _group_findings(judged, lambda f: f.label, lambda f: f.site)
    by_site = _group_findings(judged, lambda f: f.site, lambda f: f.label)
    explained: set[tuple[str, str]] = set()
    everywhere = [
        label for label, sites in by_label.items() if len(sites) > 1 and all(sites.values())
    ]
    for label in everywhere:
        explained |= {(site, label) for site in by_label[label]}
    said = [f"slower at every site, which points at {changed}: {_join_names(everywhere)}"]
    for site, labels in by_site.items():
        rest = {(site, label) for label in labels} - explained
        if len(rest) > 1 and all(labels.values()):
            said.append(f"all {len(labels)} tests slower at {site}, which points at that site")
            explained |= rest
    slow = {(f.site, f.label) for f in judged if f.verdict is Verdict.SLOWER} - explained
    if len(by_site) == len(by_label) == 1:
        said += [
            f"slower in the only test judged at the only site ({site}): whose doing it is "
            "cannot be told"
            for site, _ in slow
        ]
    elif slow:
        named = _join_names([f"{label} at {site}" for site, label in sorted(slow)])
        said.append(f"slower, but neither in every test of a site nor at every site: {named}")
    return tuple(said if everywhere else said[1:])


def attribute_rows(
    rows: Sequence[VerdictRow], names: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """The same for all verdicts of a comparison, each sentence with the times it holds for.

    Args:
        rows: of the comparison.
        names: of campaigns, by identity.
    """
    said: dict[str, list[str]] = {}
    for metric, title in METRIC_TITLES.items():
        of_metric = [row for row in rows if row.scope == SERIES_SCOPE and row.metric == metric]
        if not of_metric:
            continue
        one = of_metric[0]
        changed = "the release" if one.axis == "root" else f"{one.axis}={side_names(one, names)[1]}"
        findings = [SeriesVerdict(row.site, row.label, Verdict(row.verdict)) for row in of_metric]
        for sentence in attribute_findings(findings, changed):
            said.setdefault(sentence, []).append(title)
    return tuple(f"{' and '.join(titles)}: {sentence}" for sentence, titles in said.items())


def summarize_attribution(
    rows: Sequence[VerdictRow], names: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Findings of :func:`attribute_findings`, or one sentence that explains why there are none."""
    if said := attribute_rows(rows, names):
        return said
    if not any(Verdict(row.verdict).is_statistical for row in rows if row.scope == SERIES_SCOPE):
        return ("No verdict could be given, so nothing is attributed to a site or a cause.",)
    changed = "the release" if rows[0].axis == "root" else rows[0].axis
    return (f"Nothing slower was found that points at a site or at {changed}.",)


def _join_names(names: Sequence[str]) -> str:
    shown = "; ".join(names[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown}; and {len(names) - MAX_NAMED} more"


def _group_findings(
    findings: Iterable[SeriesVerdict],
    outer: Callable[[SeriesVerdict], str],
    inner: Callable[[SeriesVerdict], str],
) -> dict[str, dict[str, bool]]:
    """Outer name -> inner name -> whether every verdict there is slower."""
    groups: dict[str, dict[str, bool]] = {}
    for finding in findings:
        group = groups.setdefault(outer(finding), {})
        slower = finding.verdict is Verdict.SLOWER
        group[inner(finding)] = slower and group.get(inner(finding), True)
    return groups
