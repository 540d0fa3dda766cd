"""Comparisons of stored measurements with the changes of counters, phases and instructions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from treehammer.analysis.comparison import commit_comparison, count_changes, phase_changes
from treehammer.analysis.comparison.count_changes import CountedSample, CounterChange
from treehammer.analysis.comparison.phase_changes import PHASE_COLUMNS, PhaseChange, PhasedSample
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, find_axis_value
from treehammer.analysis.statistics.verdict import INCOMPARABLE_VERDICTS, Verdict
from treehammer.collectors.record.metric_catalogue import COUNTER_NAMES
from treehammer.config import Settings
from treehammer.errors import ExitCode, NothingToDoError
from treehammer.hctests.definition.model import COMMIT_AXIS
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison import Comparison
    from treehammer.analysis.comparison.count_changes import CountPair


@dataclass(frozen=True)
class ComparisonResult:
    """A comparison of times with the changes of exact counters, of phases and of instructions."""

    comparison: Comparison
    counters: Sequence[CounterChange] = ()
    phases: Sequence[PhaseChange] = ()
    instructions: Sequence[CountPair] = ()

    @property
    def is_comparable(self) -> bool:
        """Whether anything of the two sides could be compared."""
        unequal = {
            row.comparison_key
            for row in self.comparison.verdicts
            if row.verdict == Verdict.VALUES_DIFFER
        }
        return any(
            row.verdict not in INCOMPARABLE_VERDICTS for row in self.comparison.of_series
        ) or any(change.comparison_key not in unequal for change in self.counters)

    def has_regressed(self, delta: float) -> bool:
        """Return whether a time or a counter got worse by more than ``delta`` in ln.

        Datasets of different content differ in their counters.
        """
        different = {
            row.comparison_key
            for row in self.comparison.verdicts
            if row.verdict == Verdict.OTHER_CONTENT
        }
        worse = any(
            change.is_regression(delta)
            for change in self.counters
            if change.comparison_key not in different
        )
        return worse or self.comparison.regressed


def rate_results(results: Sequence[ComparisonResult], delta: float) -> ExitCode:
    """Return the exit code of comparisons: whether something got worse, or could be compared at all."""
    if any(result.has_regressed(delta) for result in results):
        return ExitCode.REGRESSION
    is_comparable = any(result.is_comparable for result in results)
    return ExitCode.DONE if is_comparable else ExitCode.NOTHING


def compare_named(
    store: Store,
    selection: Selection,
    axis: str,
    texts: Sequence[str],
    delta: float,
    settings: Settings,
) -> tuple[list[ComparisonResult], Mapping[str, str]]:
    """Compare values as typed, see :func:`compare_selected`, and name compared campaigns and commits.

    Returns:
        the comparisons, and display names by value of the axis.
    """
    names: Mapping[str, str] = {}
    if axis == COMMIT_AXIS:
        names = commit_comparison.resolve_commits(store, selection, texts, settings)
        texts = [*names]
    results = compare_selected(store, selection, axis, texts, delta)
    return results, _load_campaign_names(store, results) if axis == "campaign" else names


def compare_selected(
    store: Store, selection: Selection, axis: str, texts: Sequence[str], delta: float
) -> list[ComparisonResult]:
    """Compare each further value with the first and store the verdicts."""
    # scipy takes a third of a second to load, so load it only here.
    from treehammer.analysis.comparison.comparison import compare_together, compare_with_first
    from treehammer.analysis.statistics.headline_rows import (
        load_earlier_checksums,
        load_headline_rows,
    )

    columns = tuple(dict.fromkeys((*SAMPLE_COLUMNS, *COUNTER_NAMES, *PHASE_COLUMNS)))
    rows = load_headline_rows(store, selection, columns)
    rows += load_earlier_checksums(store, rows, columns)
    counted = [CountedSample.from_row(row) for row in rows]
    if not counted:
        raise NothingToDoError("no measurement is selected", where=str(selection))
    if axis == "campaign":
        texts = [campaign_queries.resolve_campaign(store, text) for text in texts]
    if axis == COMMIT_AXIS:
        counted = commit_comparison.add_setups(store, counted)
    samples = [item.sample for item in counted]
    phased = [PhasedSample.from_row(row, sample) for row, sample in zip(rows, samples, strict=True)]
    values = [find_axis_value(samples, axis, text) for text in texts]
    queries = compare_with_first(axis, values, delta=delta, selection=selection)
    return [
        _store_result(store, counted, phased, comparison)
        for comparison in compare_together(samples, queries, now_us=time.time_ns() // 1000)
    ]


def _store_result(
    store: Store,
    counted: Sequence[CountedSample],
    phased: Sequence[PhasedSample],
    comparison: Comparison,
) -> ComparisonResult:
    query = comparison.query
    changes = count_changes.compare_counters(counted, query.axis, query.a, query.b)
    verdicts = count_changes.attach_counters(comparison.verdicts, changes)
    phases = phase_changes.compare_phases(phased, query.axis, query.a, query.b)
    verdicts = phase_changes.attach_phases(verdicts, phases)
    store.replace_comparison(query.id, comparison.pairs, verdicts)
    instructions = count_changes.load_counted_work(store, verdicts)
    phases = phase_changes.stored_phases(verdicts)
    return ComparisonResult(replace(comparison, verdicts=verdicts), changes, phases, instructions)


def _load_campaign_names(store: Store, results: Sequence[ComparisonResult]) -> dict[str, str]:
    queries = [result.comparison.query for result in results]
    compared = {str(value) for query in queries for value in (query.a, query.b)}
    return campaign_queries.fetch_distinct_names(store, compared)
