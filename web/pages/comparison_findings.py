"""Findings beside conclusions: largest change, sites, CPU models, jobs of a comparison; the best door."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.comparison_notes import rank_sites
from treehammer.analysis.comparison.conclusion import WALL, select_headline
from treehammer.analysis.comparison.series_effects import group_by_host
from treehammer.analysis.descriptive.door_comparison import (
    DoorComparison,
    DoorContrast,
    compare_doors,
    list_door_means,
)
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.hctests.definition.model import RELEASE_AXIS
from treehammer.sql.core.rows import PairRow, VerdictRow
from treehammer.sql.read import overview_queries
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.query_model import DAY, MAX_READ, FigureQuery, Selection
from treehammer.sql.read.site_history import WORKLOAD_COLUMNS
from treehammer.sql.write.store import Store
from treehammer.text_formatting import join_names, pluralize
from treehammer.verticals import import_parts
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to
from treehammer.web.display_formats import day_from_number, day_number, days_until
from treehammer.web.labels import title_column

#: CPU models and jobs that are named.
MAX_MODELS, MAX_JOBS = 6, 3
#: Kinds of doors that are compared, by their columns.
DOORS = {"door": "doors", "door_protocol": "protocols"}
_READS = "reads of few branches"
#: Days up to the last one with measurements.
_DOOR_DAYS = 30


def list_findings(
    store: Store,
    rows: Sequence[VerdictRow],
    names: Mapping[str, str],
    load_pairs: Callable[[], Sequence[PairRow]],
) -> Iterator[ui.Paragraph]:
    """List the largest regression, since when it is known, the sites and the CPU models.

    Args:
        rows: all verdicts of the comparison.
        names: of its campaigns, by identity.
        load_pairs: loads its pairs of jobs.
    """
    slower = _select_slower(rows)
    if slower:
        largest = max(slower, key=lambda row: abs(row.effect or 0.0))
        text = verdict_text.describe_verdict(largest, names)
        variant = verdict_text.describe_variant(largest.label)
        title = verdict_text.title_metric(largest.metric)
        yield ui.Paragraph(f"Largest: {variant}, {title}: {text}")
    if rows[0].axis == RELEASE_AXIS:
        for part in import_parts("page_parts"):
            yield from part.list_regressions(store, rows[0].b)
    elif rows[0].axis != "site":
        # Settings of reads change the wait for data rather than the CPU time.
        metrics = verdict_text.list_metrics(rows)
        if sentence := rank_sites(rows, WALL if WALL in metrics else metrics[0]):
            yield ui.Paragraph(f"{sentence}.")
    if slower and (sentence := _compare_models(store, slower, load_pairs())):
        yield ui.Paragraph(sentence)


def _select_slower(rows: Sequence[VerdictRow]) -> list[VerdictRow]:
    """Select the slower variants, of the first metric with any."""
    slower = [
        row
        for row in select_headline(rows)
        if row.verdict == Verdict.SLOWER and row.effect is not None
    ]
    return [row for row in slower if row.metric in verdict_text.list_metrics(slower)[:1]]


def _compare_models(store: Store, slower: Sequence[VerdictRow], pairs: Sequence[PairRow]) -> str:
    """Say whether variants are slower on all CPU models; '' if their models are not known."""
    series = {(row.metric, row.label) for row in slower}
    pairs = [pair for pair in pairs if (pair.metric, pair.label) in series]
    models = overview_queries.load_cpu_models(store, {pair.host for pair in pairs})
    effects: dict[str, list[PairRow]] = defaultdict(list)
    for pair in pairs:
        if pair.host in models:
            effects[models[pair.host]].append(pair)
    by_launch = bool(slower[0].evidence.launches)
    sizes = [
        f"{model} {_describe_effect(of_model, by_launch=by_launch)}"
        for model, of_model in sorted(effects.items(), key=lambda item: -len(item[1]))
    ]
    if len(sizes) > 1:
        return f"Slower variants by CPU model: {join_names(sizes, MAX_MODELS)}."
    return f"All on one CPU model, so others may differ: {sizes[0]}." if sizes else ""


def _describe_effect(pairs: Sequence[PairRow], *, by_launch: bool) -> str:
    """Describe an effect as in the verdict: the mean over hosts, of their launches or else of their jobs."""
    hosts = group_by_host(pairs, lambda pair: [pair.log_ratio] * (pair.rounds if by_launch else 1))
    mean = verdict_text.format_effect(fmean(map(fmean, hosts.values())))
    return f"{mean} ({pluralize(len({pair.job_id for pair in pairs}), 'job')})"


def select_pairs(row: VerdictRow, pairs: Sequence[PairRow]) -> list[PairRow]:
    """Select the pairs of jobs of a series."""
    series = row.comparison_key, row.site, row.metric
    return [pair for pair in pairs if (pair.comparison_key, pair.site, pair.metric) == series]


def link_job_outputs(
    store: Store, row: VerdictRow, pairs: Sequence[PairRow]
) -> ui.Paragraph | None:
    """Link to the output of the jobs of a series, the slowest first; None without jobs."""
    pairs = select_pairs(row, pairs)
    if not pairs:
        return None
    models = overview_queries.load_cpu_models(store, {pair.host for pair in pairs})
    pairs = sorted(pairs, key=lambda pair: -pair.log_ratio)[:MAX_JOBS]
    links = (
        ui.Link(
            f"{pair.host}{', ' + models[pair.host] if pair.host in models else ''} "
            f"({verdict_text.format_effect(pair.log_ratio)})",
            f"{link_to('job', job_id=pair.job_id)}#output",
        )
        for pair in pairs
    )
    return ui.Paragraph("Output of the slowest jobs: ", *ui.separate(links, "; "), ".")


def answer_doors(store: Store, selection: Selection) -> Iterator[str]:
    """Answer which door, and which protocol, is best for reads of few branches in the last days."""
    newest = overview_queries.find_last_day(store)
    has_days = any(condition.column == DAY for condition in selection.conditions)
    first_day = None
    if newest and not has_days:
        first_day = day_number(days_until(day_from_number(newest), _DOOR_DAYS)[0])
    for by, plural in DOORS.items():
        columns = tuple(dict.fromkeys(("site", DAY, by, *WORKLOAD_COLUMNS)))
        figure = FigureQuery((WALL,), columns, selection, first_day=first_day)
        with store.connection() as connection:
            groups = DatabaseSnapshot(connection).load_figure(figure, MAX_READ).groups
        comparison = compare_doors(list_door_means(groups, by, WALL))
        yield _answer(comparison, title_column(by), plural)


def _answer(comparison: DoorComparison, noun: str, plural: str) -> str:
    """Answer in a sentence which door is best, or why none can be named."""
    if not comparison.best:
        return f"No {noun} can be named: {_explain_missing(comparison, noun, plural)}"
    certain = [
        contrast
        for contrast in comparison.contrasts
        if contrast.estimate
        # The interval excludes zero.
        and math.prod(contrast.estimate.interval(comparison.level)) > 0
    ]
    if not certain:
        return (
            f"No {noun} is certainly the best for {_READS}: {comparison.best} has the best mean, but "
            f"{_describe(comparison.contrasts[0], comparison)}."
        )
    doubtful = [contrast.door for contrast in comparison.contrasts if contrast not in certain]
    contrasts = "; ".join(_describe(contrast, comparison) for contrast in certain)
    rest = f"; not certainly different: {', '.join(doubtful)}" if doubtful else ""
    return f"{comparison.best} is the best {noun} for {_READS}: {contrasts}{rest}."


def _explain_missing(comparison: DoorComparison, noun: str, plural: str) -> str:
    """Explain why no door is the best."""
    if not comparison.means:
        return f"there are no {_READS} in this selection."
    if len(comparison.doors) == 1:
        return f"all {_READS} went through {comparison.doors[0]}."
    ties = comparison.list_ties()
    tied = (
        f" Each {' and each '.join(ties)} has one {noun} only, so a difference between {plural} "
        f"could as well come from the {' and '.join(ties)}."
    )
    return (
        f"no site did the same {_READS} through two {plural} on the same day.{tied if ties else ''} "
        f"To compare them, run the same variants through several {plural} of a site."
    )


def _describe(contrast: DoorContrast, comparison: DoorComparison) -> str:
    """Describe a difference with its interval and amount of data."""
    amount = f"n = {pluralize(contrast.days, 'day')} with both at {pluralize(len(contrast.by_site), 'site')}"
    if contrast.estimate is None:
        return f"{contrast.door} has too few days beside it ({amount})"
    change = verdict_text.describe_change(contrast.estimate.mean, WALL, "lower")
    interval = verdict_text.format_change_interval(*contrast.estimate.interval(comparison.level))
    confidence = f"{100 * (1 - comparison.level):.3g} % interval {interval} %"
    return f"{contrast.door} is {change} in {title_column(WALL)} ({confidence}; {amount})"
