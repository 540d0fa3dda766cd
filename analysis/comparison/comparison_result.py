"""Comparisons of stored measurements, of commits too, with the changes of counters, phases and instructions."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treehammer.analysis.comparison.comparison import (
    Comparison,
    ComparisonQuery,
    compare_samples,
    compare_together,
    compare_with_first,
)
from treehammer.analysis.comparison.instruction_changes import load_counted_work
from treehammer.analysis.comparison.series_changes import (
    DETAIL_COLUMNS,
    CounterChange,
    DetailedSample,
    PhaseChange,
    attach_counters,
    attach_phases,
    compare_counters,
    compare_phases,
    describe_phases,
    stored_counters,
    stored_phases,
    summarize_counters,
)
from treehammer.analysis.statistics.headline_rows import load_earlier_checksums, load_headline_rows
from treehammer.analysis.statistics.sample import find_axis_value
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    INCOMPARABLE_VERDICTS,
    Verdict,
)
from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode, NothingToDoError, SourceError
from treehammer.hctests.definition.model import (
    COMMIT_AXIS,
    COMMIT_DIGITS,
    DIRTY_SUFFIX,
    SETUP_KEYS,
    Scalar,
    compute_setup,
    format_commit,
    identify_commit,
)
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_queries import load_campaign, load_plans
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store
from treehammer.text_formatting import join_names

if TYPE_CHECKING:
    from treehammer.analysis.comparison.instruction_changes import CountPair

#: Commits that a message lists, at most.
MAX_LISTED = 8

_HASH = re.compile(r"[0-9a-f]{4,64}")


@dataclass(frozen=True)
class ComparisonResult:
    """A comparison of times with the changes of exact counters, of phases and of instructions."""

    comparison: Comparison
    counters: Sequence[CounterChange] = ()
    phases: Sequence[PhaseChange] = ()
    instructions: Sequence[CountPair] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences on data, builds, controls, exact counters and phases."""
        counters = [summarize_counters(self.counters)] if self.counters else []
        return [*self.comparison.notes, *counters, *describe_phases(self.phases)]

    @property
    def is_comparable(self) -> bool:
        """Whether anything of the two sides could be compared."""
        unequal = self._find_keys(Verdict.VALUES_DIFFER)
        return any(
            row.verdict not in INCOMPARABLE_VERDICTS for row in self.comparison.of_series
        ) or any(change.comparison_key not in unequal for change in self.counters)

    def has_regressed(self, delta: float) -> bool:
        """Return whether a time or a counter got worse by more than ``delta`` in ln.

        Datasets of different content differ in their counters.
        """
        different = self._find_keys(Verdict.OTHER_CONTENT)
        return self.comparison.regressed or any(
            change.is_regression(delta)
            for change in self.counters
            if change.comparison_key not in different
        )

    def _find_keys(self, verdict: Verdict) -> set[str]:
        """Find the keys of the rows with a verdict."""
        return {row.comparison_key for row in self.comparison.verdicts if row.verdict == verdict}


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
    """Compare each further value as typed with the first, and store the verdicts.

    Returns:
        the comparisons, and display names of campaigns and commits by value of the axis.
    """
    names: Mapping[str, str] = {}
    if axis == COMMIT_AXIS:
        names = resolve_commits(store, selection, texts, settings)
        texts = [*names]
    elif axis == "campaign":
        texts = [campaign_queries.resolve_campaign(store, text) for text in texts]
        names = campaign_queries.load_distinct_names(store, texts)
    detailed = load_details(store, load_headline_rows(store, selection, DETAIL_COLUMNS), axis)
    if not detailed:
        raise NothingToDoError("no measurement is selected", where=str(selection))
    samples = [item.sample for item in detailed]
    values = [find_axis_value(samples, axis, text) for text in texts]
    results = _compare_details(store, detailed, axis, values, delta, selection)
    store_results(store, results)
    return results, names


def load_details(
    store: ResultsReader, rows: Sequence[dict[str, Any]], axis: str
) -> list[DetailedSample]:
    """Make the samples of rows, with the earlier executions and the setups that a comparison needs."""
    rows = [*rows, *load_earlier_checksums(store, rows, DETAIL_COLUMNS)]
    detailed = [DetailedSample.from_row(row) for row in rows]
    return add_setups(store, detailed) if axis == COMMIT_AXIS else detailed


def _compare_details(
    store: ResultsReader,
    detailed: Sequence[DetailedSample],
    axis: str,
    values: Sequence[Scalar],
    delta: float,
    selection: Selection,
) -> list[ComparisonResult]:
    """Compare each further value with the first."""
    queries = compare_with_first(axis, values, delta=delta, selection=selection)
    samples = [item.sample for item in detailed]
    results = [
        add_changes(comparison, detailed)
        for comparison in compare_together(samples, queries, now_us=current_us())
    ]
    return [
        replace(result, instructions=load_counted_work(store, result.comparison.verdicts))
        for result in results
    ]


def store_results(store: Store, results: Iterable[ComparisonResult]) -> None:
    """Store the pairs and verdicts of comparisons; repeated ones replace the stored ones."""
    for result in results:
        comparison = result.comparison
        store.replace_comparison(comparison.query.id, comparison.pairs, comparison.verdicts)


@dataclass(frozen=True)
class CampaignVerdict:
    """What a campaign compared: each further value of an axis with the first.

    Attributes:
        problems: axes that cannot be compared, with the reason.
    """

    results: Sequence[ComparisonResult] = ()
    problems: Sequence[str] = ()


def judge_campaign(
    store: ResultsReader,
    campaign: CampaignRow,
    rows: Sequence[dict[str, Any]],
    *,
    axes: Mapping[str, Sequence[Scalar]] | None = None,
    delta: float | None = None,
) -> CampaignVerdict:
    """Compare what a campaign was submitted to compare, in the direction that was requested.

    Args:
        store: the database, to which nothing is written.
        campaign: the campaign.
        rows: its measurements from :func:`load_headline_rows`, with :data:`DETAIL_COLUMNS`.
        axes: compared axes; by default those of its plan.
        delta: effects (in ln) within ±delta count as none; by default that of the campaign's plan.
    """
    definition, sequential = campaign.plan.definition, campaign.plan.until_decided
    if axes is None:
        axes = definition.compared_axes
    if delta is None:
        delta = sequential.delta if sequential else DEFAULT_DELTA
    selection = Selection((campaign.id,))
    results: list[ComparisonResult] = []
    problems: list[str] = []
    for axis, values in axes.items():
        detailed = load_details(store, rows, axis)
        measured = {item.sample.axis_value(axis) for item in detailed}
        if absence := _describe_absence(axis, values, measured):
            problems.append(absence)
            continue
        present = [value for value in values if value in measured]
        try:
            results += _compare_details(store, detailed, axis, present, delta, selection)
        except NothingToDoError as error:
            problems.append(str(error))
    return CampaignVerdict(results, problems)


def _describe_absence(
    axis: str, values: Sequence[Scalar], measured: Collection[Scalar | None]
) -> str:
    """Say which values were not measured, if the first one or all others are among them; else ''."""
    absent = [str(value) for value in values if value not in measured]
    if values[0] in measured and len(values) - len(absent) >= 2:
        return ""
    return f"Nothing was measured with {axis}={', '.join(absent)}, so nothing is compared."


def add_changes(comparison: Comparison, samples: Sequence[DetailedSample]) -> ComparisonResult:
    """Add the changes of exact counters and of phases to the evidence of a comparison's series."""
    sides = (comparison.query.axis, comparison.query.a, comparison.query.b)
    rows = attach_counters(comparison.verdicts, compare_counters(samples, *sides))
    rows = attach_phases(rows, compare_phases(samples, *sides))
    comparison = replace(comparison, verdicts=rows)
    return ComparisonResult(comparison, stored_counters(rows), stored_phases(rows))


def add_setups(store: ResultsReader, items: Iterable[DetailedSample]) -> list[DetailedSample]:
    """Add to each sample the setup of its campaign, '' where the database lacks the campaign."""
    items = list(items)
    plans = load_plans(store, {item.sample.campaign_id for item in items})
    setups = {id_: compute_setup(plan.definition.setup) for id_, plan in plans.items()}
    return [
        replace(item, sample=replace(item.sample, setup=setups.get(item.sample.campaign_id, "")))
        for item in items
    ]


def resolve_commits(
    store: ResultsReader, selection: Selection, texts: Sequence[str], settings: Settings
) -> dict[str, str]:
    """Resolve hashes, branches and tags to measured commits, and name each of them.

    Branches and tags are those of the repositories that were measured; where none of them knows a
    name, that of the repository of the present folder counts.

    Args:
        store: the database.
        selection: the measurements to compare.
        texts: commits as typed; ``COMMIT+dirty`` is a modified working tree.
        settings: ``git_dir`` contains the mirrors of remote repositories.

    Returns:
        measured values of the axis -> display names, in the order of ``texts``.

    Raises:
        NothingToDoError: a commit was not measured.
        ConfigError: a text fits several measured commits, or two texts mean one commit.
        SourceError: no repository knows a ref.
    """
    measured: set[str] = set()
    repositories: set[str] = set()
    columns = ("commit_id", "dirty", "test_hash", "repository")
    with store.snapshot() as snapshot:
        for row in snapshot.measurements(selection, columns):
            if commit := _identify_row(row):
                measured.add(commit)
                repositories.add(str(row["repository"] or ""))
    names: dict[str, str] = {}
    for text in texts:
        commit = find_measured(text, measured)
        if not commit:
            commit = _resolve_ref(text, measured, sorted(repositories - {""}), settings)
        if commit in names:
            raise ConfigError(f"both sides are commit {format_commit(commit)}", where="compare")
        is_hash = commit.startswith(text.partition("+")[0])
        names[commit] = format_commit(commit) if is_hash else f"{text} ({format_commit(commit)})"
    return names


def find_measured(text: str, measured: Iterable[str]) -> str:
    """Find the measured commit that a hash, or its beginning, means; '' for none.

    Raises:
        ConfigError: it fits several.
    """
    start, plus, tree = text.partition("+")
    if not _HASH.fullmatch(start):
        return ""
    candidates = [
        commit
        for commit in measured
        if commit.startswith(start)
        and bool(plus) == ("+" in commit)
        and (tree == DIRTY_SUFFIX or commit.partition("+")[2].startswith(tree))
    ]
    if len(candidates) > 1:
        raise ConfigError(
            f"{text!r} fits {len(candidates)} measured commits: {_list_commits(candidates)}",
            where="compare",
            hint="Give more digits.",
        )
    return candidates[0] if candidates else ""


def _resolve_ref(
    text: str, measured: Iterable[str], repositories: Sequence[str], settings: Settings
) -> str:
    """Resolve a ref by Git in several repositories to the one measured commit that it means."""
    # Only names of branches and tags need Git.
    from treehammer.hctests.pinned_tests import open_repository

    resolved: set[str] = set()
    errors: list[SourceError] = []
    for repository in (*repositories, str(Path.cwd())):
        if resolved and repository not in repositories:
            break
        try:
            resolved.add(open_repository(repository, text, settings.git_dir)[1])
        except SourceError as error:
            errors.append(error)
    matches = resolved.intersection(measured)
    if len(matches) == 1:
        return matches.pop()
    if matches:
        raise ConfigError(
            f"{text!r} is another commit in each of several repositories: {_list_commits(matches)}",
            where="compare",
            hint="Name the commit by its hash.",
        )
    if not resolved:
        raise errors[0]
    raise NothingToDoError(
        f"no measurement of commit {text} ({_list_commits(resolved)}) is selected",
        where="compare",
        hint=f"Commits measured: {_list_commits(measured) or 'none'}.",
    )


def _list_commits(commits: Iterable[str]) -> str:
    """List commits, those of modified trees with the hash that distinguishes them."""
    parts = [commit.partition("+") for commit in sorted(commits)]
    names = [f"{digits[:COMMIT_DIGITS]}{plus}{tree}" for digits, plus, tree in parts]
    return join_names(names, MAX_LISTED)


def explain_incomparable(
    store: ResultsReader, selection: Selection, commits: Collection[str]
) -> str:
    """Name the parts of the setup in which measured commits differ; '' if they differ in none."""
    columns = ("commit_id", "dirty", "test_hash", "campaign_id")
    campaigns: dict[str, str] = {}
    with store.snapshot() as snapshot:
        for row in snapshot.measurements(selection, columns):
            commit = _identify_row(row)
            if commit in commits:
                campaigns[str(row["campaign_id"])] = commit
    plans = load_plans(store, campaigns)
    setups = {campaigns[id_]: plan.definition.setup for id_, plan in plans.items()}
    changes = []
    for key in SETUP_KEYS:
        values = {
            format_commit(commit): json.dumps(setups[commit].get(key), sort_keys=True)
            for commit in commits
            if commit in setups
        }
        if len(set(values.values())) > 1:
            sides_text = ", ".join(f"{value} at {commit}" for commit, value in values.items())
            changes.append(f"{key}: {sides_text}")
    return "; ".join(changes)


def _identify_row(row: Mapping[str, Any]) -> str:
    commit = str(row["commit_id"] or "")
    return identify_commit(commit, bool(row["dirty"]), str(row["test_hash"]))


def compare_campaign_commits(
    store: Store, earlier_id: str, later_id: str, now_us: int
) -> Comparison | None:
    """Compare the commits of two campaigns of one test, and store the verdicts.

    Returns:
        None if there is nothing to compare: no measurements, the same commit, or commits that do
        not differ in this test.
    """
    commits = [load_campaign(store, id_).commit_id for id_ in (earlier_id, later_id)]
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
    rows = load_headline_rows(store, selection, DETAIL_COLUMNS)
    detailed = add_setups(store, map(DetailedSample.from_row, rows))
    samples = [item.sample for item in detailed]
    tests = [{s.test_hash for s in samples if s.commit == commit} for commit in commits]
    if not all(tests) or tests[0] & tests[1]:
        return None
    query = ComparisonQuery(COMMIT_AXIS, commits[0], commits[1], selection=selection)
    try:
        comparison = compare_samples(samples, query, now_us=now_us)
    except NothingToDoError:
        return None
    result = add_changes(comparison, detailed)
    store_results(store, [result])
    return result.comparison
