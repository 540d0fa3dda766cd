"""Matrix of ROOT releases: the newest stored comparison of each pair, for each test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from starlette.requests import Request

from treehammer.analysis.comparison.verdict_headline import SCOPE_WORDS, select_headline
from treehammer.analysis.comparison.wording import verdict_text
from treehammer.analysis.samples.sample import HEADLINE_METRICS, natural_sort_key
from treehammer.analysis.statistics.verdict import CERTAIN_VERDICTS, Verdict
from treehammer.sql.read.release_comparisons import (
    ReleaseComparison,
    ReleaseEffect,
    list_release_comparisons,
)
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.web.views.compare.effect_matrix import MatrixCell, draw_column
from treehammer.web.views.shared.page_context import link_to

#: Metric whose verdicts are shown.
METRIC = HEADLINE_METRICS[0]
_NOT_COMPARED = MatrixCell("", "absent", "", "not compared")


def load_release_matrices(store: Store, request: Request) -> list[DataTable]:
    """Load the matrix of each test, in order of the tests' names; tests with a single pair have none.

    Bases are rows, other releases columns; the cell of a pair that was not compared is empty.
    """
    by_test: dict[str, list[ReleaseComparison]] = {}
    for comparison in list_release_comparisons(store, METRIC):
        by_test.setdefault(comparison.test, []).append(comparison)
    return [
        _build_matrix(test, comparisons, request)
        for test, comparisons in sorted(by_test.items())
        if len(comparisons) > 1
    ]


def _build_matrix(
    test: str, comparisons: Iterable[ReleaseComparison], request: Request
) -> DataTable:
    cells = {
        (comparison.a, comparison.b): _build_cell(
            comparison, link_to(request, "comparison", comparison=comparison.comparison_id)
        )
        for comparison in comparisons
    }
    bases, releases = (
        sorted({pair[side] for pair in cells}, key=natural_sort_key) for side in (0, 1)
    )
    columns = (
        TableColumn("base", "compared with"),
        *(draw_column(f"root:{other}", other) for other in releases),
    )
    rows = [
        {
            "base": base,
            **{f"root:{other}": cells.get((base, other), _NOT_COMPARED) for other in releases},
        }
        for base in bases
    ]
    name = test or "several tests"
    return DataTable(
        f"releases:{name}",
        name,
        columns,
        rows,
        is_arrangeable=False,
        is_exported=False,
        look="matrix releases",
    )


def _build_cell(comparison: ReleaseComparison, address: str) -> MatrixCell:
    effects = select_headline(comparison.effects)
    counts = Counter(effect.verdict for effect in effects)
    parts = [_describe_part(verdict, effects) for verdict in CERTAIN_VERDICTS if counts[verdict]]
    text = ", ".join(parts) or _describe_uncertain(counts)
    # Databases return rows in any order: equally frequent verdicts keep the order of the enumeration.
    frequent = sorted(Verdict, key=lambda verdict: -counts[verdict])
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in frequent if counts[verdict])
    words += "".join(
        f" {text}" for scope, text in SCOPE_WORDS.items() if scope in {e.scope for e in effects}
    )
    return MatrixCell(
        text,
        _find_class(counts),
        address,
        f"{comparison.b} against {comparison.a}: {words or 'no verdicts'}",
    )


def _describe_part(verdict: Verdict, effects: Sequence[ReleaseEffect]) -> str:
    """Describe the variants with a certain verdict, e.g. ``+5.1 % in 4 of 24``."""
    sizes = [
        effect.effect
        for effect in effects
        if effect.verdict == verdict and effect.effect is not None
    ]
    size = f"{verdict_text.format_effect(median(sizes))} " if sizes else ""
    count = sum(effect.verdict == verdict for effect in effects)
    return f"{size}in {count} of {len(effects)}"


def _describe_uncertain(counts: Mapping[str, int]) -> str:
    """Name the only verdict, or that there are several without a certain one."""
    return next(iter(counts)) if len(counts) == 1 else Verdict.UNDECIDED.value


def _find_class(counts: Mapping[str, int]) -> str:
    if counts.get(Verdict.SLOWER.value):
        return "worse-2"
    if counts.get(Verdict.FASTER.value):
        return "better-2"
    return "equal" if set(counts) == {Verdict.SAME.value} else "open"
