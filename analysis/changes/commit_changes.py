"""Comparison of a test's consecutive commits: of separate campaigns, or in turns in one."""

from __future__ import annotations

from collections.abc import Sequence

from treehammer.analysis.comparison import counter_changes, phase_changes
from treehammer.analysis.comparison.commit_comparison import add_setups
from treehammer.analysis.comparison.comparison import (
    Comparison,
    ComparisonQuery,
    compare_samples,
)
from treehammer.analysis.comparison.counter_changes import CountedSample
from treehammer.analysis.comparison.phase_changes import PHASE_COLUMNS, PhasedSample
from treehammer.analysis.samples.headline_rows import load_headline_rows
from treehammer.analysis.samples.sample import SAMPLE_COLUMNS
from treehammer.collectors.record.exact_counters import COUNTER_NAMES
from treehammer.errors import NothingToDoError
from treehammer.hctests.matrix.definition import COMMIT_AXIS
from treehammer.sql.read.campaign_queries import fetch_campaign
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store


def compare_campaign_commits(
    store: Store, earlier_id: str, later_id: str, now_us: int
) -> Comparison | None:
    """Compare the commits of two campaigns of one test, and store the verdicts.

    Returns:
        None if there is nothing to compare: no measurements, the same commit, or commits that do
        not differ in this test.
    """
    commits = [fetch_campaign(store, id_).commit_id for id_ in (earlier_id, later_id)]
    if "" in commits or commits[0] == commits[1]:
        return None
    return compare_commits(store, (earlier_id, later_id), commits, now_us)


def compare_commits(
    store: Store, campaigns: Sequence[str], commits: Sequence[str], now_us: int
) -> Comparison | None:
    """Compare two commits within campaigns, and store the verdicts.

    Args:
        store: the database.
        campaigns: identities of the campaigns.
        commits: the earlier and the later commit.
        now_us: time of the comparison, microseconds since 1970 UTC.

    Returns:
        None if there is nothing to compare; see :func:`compare_campaign_commits`.
    """
    selection = Selection(tuple(campaigns))
    columns = tuple(dict.fromkeys((*SAMPLE_COLUMNS, *COUNTER_NAMES, *PHASE_COLUMNS)))
    rows = load_headline_rows(store, selection, columns)
    counted = add_setups(store, map(CountedSample.from_row, rows))
    samples = [item.sample for item in counted]
    tests = [{s.test_hash for s in samples if s.commit == commit} for commit in commits]
    if not all(tests) or tests[0] & tests[1]:
        return None
    query = ComparisonQuery(COMMIT_AXIS, commits[0], commits[1], selection=selection)
    try:
        comparison = compare_samples(samples, query, now_us=now_us)
    except NothingToDoError:
        return None
    changes = counter_changes.compare_counters(counted, COMMIT_AXIS, *commits)
    verdicts = counter_changes.attach_counters(comparison.verdicts, changes)
    phased = map(PhasedSample.from_row, rows, samples)
    phases = phase_changes.compare_phases(phased, COMMIT_AXIS, *commits)
    verdicts = phase_changes.attach_phases(verdicts, phases)
    store.replace_comparison(query.id, comparison.pairs, verdicts)
    return comparison
