"""Explanations in the evidence of new bad states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treehammer.analysis.status.failure_explanation import BAD_STATES, UNDECIDED, explain_period
from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.sql.core.evidence import FailureExplanation
from treehammer.sql.core.subjects import STORAGE_SITE, SUBJECT_KINDS
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.read import overview_queries
from treehammer.sql.read.failure_counts import Period, PeriodCounts
from treehammer.sql.read.reader import ResultsReader

#: Periods before a change of state whose results explain it. Shorter ones show new failures that the
#: good results of a day would hide.
STATE_PERIODS_US = (DAY_US, DAY_US // 4, DAY_US // 24)
#: Changes of states that one evaluation explains, the newest ones.
MAX_EXPLAINED = 100


def add_explanations(
    store: ResultsReader, changes: Sequence[StatusChangeRow]
) -> list[StatusChangeRow]:
    """Add explanations to the evidence of new bad states that rules decided."""
    counts = PeriodCounts(store)
    newest = sorted(filter(_is_explained, changes), key=lambda row: row.since_us)[-MAX_EXPLAINED:]
    explained = {id(row) for row in newest}
    return [
        _add_explanation(store, row, counts) if id(row) in explained else row for row in changes
    ]


def _is_explained(row: StatusChangeRow) -> bool:
    is_judged = row.subject_kind in SUBJECT_KINDS and row.rule_version
    return bool(not row.rule and row.state in BAD_STATES and is_judged)


def _add_explanation(
    store: ResultsReader, row: StatusChangeRow, counts: PeriodCounts
) -> StatusChangeRow:
    is_storage = row.subject_kind == STORAGE_SITE
    by = overview_queries.STORAGE_SITE if is_storage else overview_queries.JOB_SITE
    explanation: FailureExplanation | None = None
    for length_us in STATE_PERIODS_US:
        period = Period(row.since_us - length_us, row.since_us)
        shorter = explain_period(store, row.site, period, by=by, counts=counts)
        is_certain = shorter is not None and shorter.culprit not in UNDECIDED
        explanation = shorter if is_certain else explanation or shorter
        if is_certain:
            break
    if explanation is None:
        return row
    return replace(row, evidence=replace(row.evidence, explanation=explanation))
