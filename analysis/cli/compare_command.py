"""The verb ``compare``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.comparison import (
    commit_comparison,
    count_changes,
    phase_changes,
    verdict_text,
)
from treehammer.analysis.comparison.comparison_notes import attribute_rows
from treehammer.analysis.comparison.conclusion import describe_conclusion
from treehammer.analysis.comparison.count_changes import (
    CountedSample,
    CounterChange,
    change_columns,
)
from treehammer.analysis.comparison.phase_changes import PHASE_COLUMNS, PhaseChange, PhasedSample
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, find_axis_value
from treehammer.analysis.statistics.verdict import (
    CERTAIN_VERDICTS,
    DEFAULT_DELTA,
    INCOMPARABLE_VERDICTS,
    Verdict,
)
from treehammer.collectors.record.metric_catalogue import COUNTER_NAMES
from treehammer.config import Settings
from treehammer.errors import ExitCode, NothingToDoError
from treehammer.hctests.definition.model import COMMIT_AXIS
from treehammer.sql.cli.transfer_commands import complete_campaigns
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import TABLE, on_interrupt, output_options, print_hint, print_rows

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison import Comparison
    from treehammer.analysis.comparison.count_changes import CountPair


#: Verdicts that are also said in a sentence, at most.
MAX_SENTENCES = 6


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


delta_option = click.option(
    "--delta",
    type=float,
    default=DEFAULT_DELTA,
    show_default=True,
    help="Effects within this count as none; in ln, so 0.02 is about 2 %.",
)


@click.command("compare")
@click.argument("a")
@click.argument("b", nargs=-1, required=True)
@click.option("--axis", default="root", show_default=True, help="Axis of the values A and B.")
@click.option(
    "--campaign",
    metavar="ID|last",
    help="Only this campaign [default: all].",
    shell_complete=complete_campaigns,
)
@click.option(
    "--where", "wheres", multiple=True, metavar="COLUMN=VALUE", help="Only these measurements."
)
@delta_option
@output_options
@click.pass_obj
@on_interrupt("nothing half-made was stored")
def compare_command(
    settings: Settings,
    a: str,
    b: tuple[str, ...],
    axis: str,
    campaign: str | None,
    wheres: tuple[str, ...],
    delta: float,
    form: str,
) -> int:
    """Say whether B is faster or slower than A, where, and how certain that is.

    A and B are ROOT releases, or values of another axis of the test; site, door, campaign (by name,
    too) and commit (hash, branch or tag of the test's repository) can be compared as well.  Several
    B are each compared with A and share one correction for the number of tests.  Leaves with 1 when
    something is slower by more than --delta, with 3 when nothing can be compared.

    \b
    Example: treehammer compare 6.38.00 6.40.00
             treehammer compare 6.36.00 6.38.00 6.40.00
             treehammer compare 0 30 --axis cache_mb --campaign last
             treehammer compare main my-branch --axis commit
    """
    with Store.open(settings.database, create=False) as store:
        selection = Selection.parse([store.campaign(campaign).id] if campaign else [], wheres)
        results, names = compare_named(store, selection, axis, [a, *b], delta, settings)
        reason = ""
        if axis == COMMIT_AXIS and not any(result.is_comparable for result in results):
            reason = commit_comparison.explain_incomparable(store, selection, names)
    code = print_results(results, names, delta, form=form)
    if reason:
        print_hint(f"The commits were measured in different ways: {reason}.", err=True)
    return code


def print_results(
    results: Sequence[ComparisonResult], names: Mapping[str, str], delta: float, *, form: str
) -> ExitCode:
    """Print comparisons with their conclusions, and return the exit code that they deserve."""
    print_comparisons(results, names, form=form)
    if form == TABLE:
        for result in results:
            _print_counts(result.instructions, _side_names(result.comparison, names))
    print_conclusions([result.comparison for result in results], names, form=form)
    return rate_results(results, delta)


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


def print_comparisons(
    results: Sequence[ComparisonResult], names: Mapping[str, str], *, form: str = TABLE
) -> None:
    """Print comparisons, and once the notes that they share; with JSON and CSV to standard error.

    Args:
        results: the comparisons.
        names: of the campaigns or commits that are compared, by identity.
        form: table, JSON or CSV.
    """
    if form != TABLE:
        print_rows(_flatten_results(results), (), form=form)
    notes, common = _separate_common([_list_notes(result, names, form) for result in results])
    for number, (result, result_notes) in enumerate(zip(results, notes, strict=True)):
        if form == TABLE:
            click.echo("\n" if number else "", nl=False)
            _print_tables(result.comparison, names)
            _print_changed_counters(result.counters, _side_names(result.comparison, names))
        _print_lines(result_notes, form)
    if common:
        _print_lines(["\nAll comparisons:", *common], form)


def print_verdict_tables(
    results: Sequence[ComparisonResult], names: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Print the tables of comparisons, without their notes."""
    for result in results:
        click.echo()
        _print_tables(result.comparison, names)
        _print_changed_counters(result.counters, _side_names(result.comparison, names))


def _separate_common(notes: Sequence[list[str]]) -> tuple[list[list[str]], list[str]]:
    """Return the notes without those that several comparisons share, and the shared ones."""
    first, *following = notes
    common = (
        [line for line in first if all(line in other for other in following)] if following else []
    )
    return [[line for line in lines if line not in common] for lines in notes], common


def _print_lines(lines: Iterable[str], form: str) -> None:
    for line in lines:
        print_hint(line, err=form != TABLE)


def _list_notes(result: ComparisonResult, names: Mapping[str, str], form: str) -> list[str]:
    """List the sentences below the tables of a comparison."""
    notes = [*attribute_rows(result.comparison.verdicts, names), *result.comparison.notes]
    if form == TABLE and result.counters:
        notes.append(count_changes.summarize_counters(result.counters))
    return notes + phase_changes.describe_phases(result.phases)


def _flatten_results(results: Sequence[ComparisonResult]) -> list[dict[str, Any]]:
    """Return verdicts, then changes of counters and of phases as flat rows."""
    verdicts = [row for result in results for row in result.comparison.verdicts]
    counters = [change for result in results for change in result.counters]
    phases = [change for result in results for change in result.phases]
    return [
        *map(verdict_text.flatten_verdict, verdicts),
        *map(asdict, counters),
        *map(asdict, phases),
    ]


def print_conclusions(
    comparisons: Sequence[Comparison], names: Mapping[str, str], *, form: str = TABLE
) -> None:
    """Print each comparison's conclusion; with JSON and CSV to standard error."""
    for comparison in comparisons:
        text = describe_conclusion(comparison.verdicts, names)
        click.secho(f"\n{text}", bold=True, err=form != TABLE)


def _print_tables(comparison: Comparison, names: Mapping[str, str]) -> None:
    first = comparison.verdicts[0]
    title = verdict_text.comparison_title(first, names)
    columns = _verdict_columns(comparison.verdicts, names)
    _print_verdicts(comparison.of_series, columns, f"{title}, by site")
    click.echo()
    if pooled := [row for row in comparison.over_sites if row.effect is not None]:
        pooled_columns = [c for c in columns if c.key not in ("site", "shown_a", "shown_b")]
        _print_verdicts(pooled, pooled_columns, f"{title}, all sites")
        click.echo()
    for line in verdict_text.explain_not_pooled(comparison.over_sites):
        click.echo(line)
    _print_sentences(comparison.verdicts, names)


def _print_sentences(rows: Sequence[VerdictRow], names: Mapping[str, str]) -> None:
    """Print the first certain verdicts as sentences."""
    certain = [row for row in rows if row.verdict in CERTAIN_VERDICTS]
    for row in certain[:MAX_SENTENCES]:
        # The sentence names other metrics than times.
        clock = verdict_text.METRIC_TITLES.get(row.metric)
        subject = f"{row.label}, {clock}" if clock else row.label
        click.echo(f"{subject}: {verdict_text.describe_verdict(row, names)}.")


def _side_names(comparison: Comparison, names: Mapping[str, str]) -> tuple[str, str]:
    return verdict_text.side_names(comparison.verdicts[0], names)


def _print_changed_counters(counters: Sequence[CounterChange], sides: tuple[str, str]) -> None:
    changed = [change for change in counters if change.verdict != count_changes.SAME]
    if changed:
        columns = (
            TableColumn("label", "variant"),
            TableColumn("site", "site"),
            TableColumn("a_value", sides[0], "{:,.0f}".format, is_number=True),
            TableColumn("b_value", sides[1], "{:,.0f}".format, is_number=True),
            TableColumn("shown_verdict", "verdict"),
        )
        rows = [
            {**asdict(change), "shown_verdict": count_changes.format_counter_verdict(change)}
            for change in changed
        ]
        print_rows(rows, columns, title="Exact counters that changed")


def _print_counts(counted: Sequence[CountPair], sides: tuple[str, str]) -> None:
    if not counted:
        return
    columns = change_columns(*sides)
    rows = [count_changes.flatten_change(pair.total) for pair in counted]
    click.echo()
    title = f"Instructions/event. {count_changes.NOT_TIME}"
    print_rows(rows, (TableColumn("label", "variant"), *columns), title=title)


def _verdict_columns(rows: Sequence[VerdictRow], names: Mapping[str, str]) -> list[TableColumn]:
    sides = verdict_text.side_names(rows[0], names)
    a, b = (verdict_text.title_side(rows, side, "\n") for side in sides)
    return [
        TableColumn("label", "variant"),
        TableColumn("site", "site"),
        TableColumn("metric", verdict_text.title_metrics(rows), verdict_text.title_metric),
        TableColumn("holds_for", "holds for", lambda text: text.removeprefix("on ")),
        TableColumn("shown_a", a, is_number=True),
        TableColumn("shown_b", b, is_number=True),
        TableColumn("effect", "change", verdict_text.format_effect, is_number=True),
        TableColumn("interval", "interval", is_number=True),
        TableColumn("shown_verdict", "verdict"),
    ]


def _print_verdicts(rows: Sequence[VerdictRow], columns: Sequence[TableColumn], title: str) -> None:
    def row(verdict: VerdictRow) -> dict[str, Any]:
        cells = {
            "interval": verdict_text.format_interval(verdict) or None,
            "shown_verdict": verdict_text.format_verdict(verdict),
            "holds_for": verdict_text.describe_scope(verdict),
        }
        flat = verdict_text.flatten_verdict(verdict)
        for side in "ab":
            value = flat[f"{side}_value"]
            cells[f"shown_{side}"] = (
                None
                if value is None
                else verdict_text.format_metric_value(verdict.metric, value, flat["unit"])
            )
        return {**flat, **cells}

    print_rows([row(verdict) for verdict in rows], columns, title=title)
