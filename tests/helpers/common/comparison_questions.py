"""Questions to simulated campaigns, and the rows of their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from treehammer.analysis.comparison.comparison import (
    Comparison,
    ComparisonQuery,
    compare_samples,
)
from treehammer.analysis.statistics.sample import Sample
from treehammer.analysis.statistics.verdict import (
    SITES_SCOPE,
    VerdictEvidence,
)
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read.query_model import Selection

A, B = "6.38.00", "6.40.00"

THREE = ("T2_A", "T2_B", "T2_C")
AT_T2_A = Selection.parse(["c1"], ["site=T2_A"])


def ask(samples: Sequence[Sample], question: ComparisonQuery | None = None) -> Comparison:
    return compare_samples(samples, question or ComparisonQuery("root", A, B), now_us=1)


def changed(
    samples: Sequence[Sample], which: Callable[[Sample], bool], **changes: object
) -> list[Sample]:
    return [replace(s, **changes) if which(s) else s for s in samples]  # type: ignore[arg-type]


def is_b(sample: Sample) -> bool:
    return sample.axis_value("root") == B


def rows(found: Comparison, scope: str = "", metric: str = "cpu_per_event_s") -> list[VerdictRow]:
    of_scope = found.over_sites if scope == SITES_SCOPE else found.of_series
    return [row for row in of_scope if row.metric == metric]


def evidence(row: VerdictRow) -> VerdictEvidence:
    return VerdictEvidence.from_json(row.evidence)
