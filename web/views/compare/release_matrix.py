"""Matrix of ROOT releases: the newest stored comparison of each pair, for each test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from starlette.requests import Request

from treehammer.analysis.comparison.wording import verdict_text
from treehammer.analysis.samples.sample import HEADLINE_METRICS, natural_sort_key
from treehammer.analysis.statistics.verdict import CERTAIN_VERDICTS, SITES_SCOPE, Verdict
from treehammer.sql.read.release_comparisons import (
    ReleaseComparison,
    ReleaseEffect,
    list_release_comparisons,
)
from treehammer.sql.write.store import Store
from treehammer.web.views.shared.page_context import link_to

#: Metric whose verdicts are shown.
METRIC = HEADLINE_METRICS[0]


@dataclass(frozen=True)
class ReleaseCell:
    """Result of one comparison: text, color and address of its page."""

    text: str
    css_class: str
    address: str
    description: str


@dataclass(frozen=True)
class ReleaseMatrix:
    """Comparisons of one test: bases by row, other releases by column; None where none is stored."""

    test: str
    others: Sequence[str]
    rows: Sequence[tuple[str, Sequence[ReleaseCell | None]]]


def load_release_matrices(store: Store, request: Request) -> list[ReleaseMatrix]:
    """Load the matrix of each test, in order of the tests' names; tests with a single pair have none."""
    by_test: dict[str, list[ReleaseComparison]] = {}
    for one in list_release_comparisons(store, METRIC):
        by_test.setdefault(one.test, []).append(one)
    return [
        _build_matrix(test, found, request)
        for test, found in sorted(by_test.items())
        if len(found) > 1
    ]


def _build_matrix(test: str, found: Iterable[ReleaseComparison], request: Request) -> ReleaseMatrix:
    cells = {
        (one.a, one.b): _build_cell(
            one, link_to(request, "comparison", comparison=one.comparison_id)
        )
        for one in found
    }
    bases, others = (
        sorted({pair[side] for pair in cells}, key=natural_sort_key) for side in (0, 1)
    )
    return ReleaseMatrix(
        test, others, [(base, [cells.get((base, other)) for other in others]) for base in bases]
    )


def _build_cell(one: ReleaseComparison, address: str) -> ReleaseCell:
    effects = _choose_scope(one.effects)
    counts = Counter(effect.verdict for effect in effects)
    parts = [_describe_part(verdict, effects) for verdict in CERTAIN_VERDICTS if counts[verdict]]
    text = ", ".join(parts) or _describe_uncertain(counts)
    # Databases return rows in any order: equally frequent verdicts are in that of their definition.
    frequent = sorted(Verdict, key=lambda verdict: -counts[verdict])
    words = ", ".join(f"{counts[one]} {one}" for one in frequent if counts[one])
    return ReleaseCell(
        text, _find_class(counts), address, f"{one.b} against {one.a}: {words or 'no verdicts'}"
    )


def _choose_scope(effects: Sequence[ReleaseEffect]) -> Sequence[ReleaseEffect]:
    """Choose the verdicts over sites, else those of single sites."""
    pooled = [one for one in effects if one.scope == SITES_SCOPE and one.effect is not None]
    return pooled or [one for one in effects if one.scope != SITES_SCOPE]


def _describe_part(verdict: Verdict, effects: Sequence[ReleaseEffect]) -> str:
    """Describe the variants with a certain verdict, e.g. ``+5.1 % in 4 of 24``."""
    found = [one.effect for one in effects if one.verdict == verdict and one.effect is not None]
    size = f"{verdict_text.format_effect(median(found))} " if found else ""
    count = sum(one.verdict == verdict for one in effects)
    return f"{size}in {count} of {len(effects)}"


def _describe_uncertain(counts: Mapping[str, int]) -> str:
    return Verdict.SAME.value if set(counts) == {Verdict.SAME.value} else Verdict.UNDECIDED.value


def _find_class(counts: Mapping[str, int]) -> str:
    if counts.get(Verdict.SLOWER.value):
        return "worse-2"
    if counts.get(Verdict.FASTER.value):
        return "better-2"
    return "equal" if set(counts) == {Verdict.SAME.value} else "open"
