"""Headline of a comparison: of each variant, the verdicts of the widest scope that has one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from treehammer.analysis.comparison.wording.verdict_text import title_metric
from treehammer.analysis.statistics.verdict import (
    HOST_SCOPE,
    ONE_SIDED_VERDICTS,
    SITE_SCOPE,
    SITES_SCOPE,
    Verdict,
)
from treehammer.sql.read.overview_queries import VerdictCount
from treehammer.text_formatting import format_counts

#: Scopes, the widest first, with words for several verdicts.
SCOPE_WORDS = {SITES_SCOPE: "over sites", SITE_SCOPE: "by site", HOST_SCOPE: "by host"}
#: Verdicts that leave the question open for want of data: a narrower scope may say more.
_WITHOUT_DATA = (Verdict.NOT_ENOUGH, *ONE_SIDED_VERDICTS)


class ScopedVerdict(Protocol):
    """A verdict on one metric of one variant."""

    @property
    def metric(self) -> str:
        """Name of the metric."""

    @property
    def label(self) -> str:
        """Name of the variant within its comparison."""

    @property
    def scope(self) -> str:
        """Scope of the verdict."""

    @property
    def verdict(self) -> str:
        """The verdict."""


ScopedT = TypeVar("ScopedT", bound=ScopedVerdict)


def select_headline(rows: Iterable[ScopedT]) -> list[ScopedT]:
    """Select each variant's verdicts over sites, or those of its series if these say more.

    Every summary of a comparison is made of these rows, so that all of them agree.

    Args:
        rows: all verdicts of one comparison.
    """
    variants: dict[tuple[str, str], list[ScopedT]] = defaultdict(list)
    rows = list(rows)
    for row in rows:
        variants[row.metric, row.label].append(row)
    chosen = {id(row) for variant in variants.values() for row in _select_widest(variant)}
    return [row for row in rows if id(row) in chosen]


def _select_widest(rows: Sequence[ScopedT]) -> Sequence[ScopedT]:
    over_sites = [row for row in rows if row.scope == SITES_SCOPE]
    series = [row for row in rows if row.scope != SITES_SCOPE]
    if decided := [row for row in over_sites if row.verdict not in _WITHOUT_DATA]:
        return decided
    one_sided = all(row.verdict in ONE_SIDED_VERDICTS for row in series)
    return (over_sites or series) if one_sided else series


#: Metric -> scope, the widest first -> verdict -> number of rows, the most frequent first.
HeadlineCounts = Mapping[str, Mapping[str, Mapping[str, int]]]


def count_headline(counts: Iterable[VerdictCount]) -> HeadlineCounts:
    """Count the verdicts of a comparison's headline."""
    totals: dict[str, dict[str, Counter[str]]] = {}
    for row in select_headline(counts):
        scopes = totals.setdefault(row.metric, {scope: Counter() for scope in SCOPE_WORDS})
        scopes[row.scope][row.verdict] += row.count
    return {
        metric: {scope: dict(counted.most_common()) for scope, counted in scopes.items() if counted}
        for metric, scopes in totals.items()
    }


def describe_headline(headline: HeadlineCounts) -> str:
    """Describe the counts with their scopes, equal metrics once: ``CPU and wall: 20 same over sites``."""
    metrics: dict[str, list[str]] = {}
    for metric, scopes in headline.items():
        text = ", ".join(
            f"{format_counts(counts)} {SCOPE_WORDS[scope]}" for scope, counts in scopes.items()
        )
        metrics.setdefault(text, []).append(title_metric(metric))
    return "; ".join(f"{' and '.join(titles)}: {text}" for text, titles in metrics.items())


def count_slower(headline: HeadlineCounts) -> tuple[int, int, str]:
    """Count the slower rows of the metric with most of them, and all of its rows, with their scope."""
    totals = [
        (
            sum(counts.get(Verdict.SLOWER, 0) for counts in scopes.values()),
            sum(sum(counts.values()) for counts in scopes.values()),
            " and ".join(SCOPE_WORDS[scope] for scope in scopes),
        )
        for scopes in headline.values()
    ]
    return max(totals, key=lambda total: total[:2], default=(0, 0, ""))
