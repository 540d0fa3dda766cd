"""Findings of a comparison beside its conclusion: largest change, sites, CPU models, and its jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.comparison_notes import rank_sites
from treehammer.analysis.comparison.conclusion import WALL, select_headline
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.hctests.definition.model import RELEASE_AXIS
from treehammer.sql.core.rows import PairRow, VerdictRow
from treehammer.sql.read import overview_queries
from treehammer.sql.write.store import Store
from treehammer.text_formatting import pluralize
from treehammer.verticals import import_parts
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to

#: CPU models and jobs that are named.
MAX_MODELS, MAX_JOBS = 6, 3


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
    slower = [
        row
        for row in select_headline(rows)
        if row.verdict == Verdict.SLOWER and row.effect is not None
    ]
    if slower:
        metric = verdict_text.list_metrics(slower)[0]
        slower = [row for row in slower if row.metric == metric]
        largest = max(slower, key=lambda row: abs(row.effect or 0.0))
        text = verdict_text.describe_verdict(largest, names)
        variant = verdict_text.describe_variant(largest.label)
        yield ui.Paragraph(f"Largest: {variant}, {verdict_text.title_metric(metric)}: {text}")
    if rows[0].axis == RELEASE_AXIS:
        for part in import_parts("page_parts"):
            yield from part.list_regressions(store, rows[0].b)
    else:
        # Settings of reads change the wait for data rather than the CPU time.
        metrics = verdict_text.list_metrics(rows)
        metric = WALL if WALL in metrics else metrics[0]
        if sentence := rank_sites(rows, metric) if rows[0].axis != "site" else "":
            yield ui.Paragraph(f"{sentence}.")
    if slower and (sentence := _compare_models(store, slower, load_pairs())):
        yield ui.Paragraph(sentence)


def _compare_models(store: Store, slower: Sequence[VerdictRow], pairs: Sequence[PairRow]) -> str:
    """Say whether variants are slower on all CPU models, or whether that is not known."""
    metric, labels = slower[0].metric, {row.label for row in slower}
    pairs = [pair for pair in pairs if pair.metric == metric and pair.label in labels]
    models = overview_queries.load_cpu_models(store, {pair.host for pair in pairs})
    effects: dict[str, list[PairRow]] = defaultdict(list)
    for pair in pairs:
        if pair.host in models:
            effects[models[pair.host]].append(pair)
    if not effects:
        return ""
    described = [
        f"{model} {verdict_text.format_effect(fmean(pair.log_ratio for pair in of_model))} "
        f"({pluralize(len({pair.job_id for pair in of_model}), 'job')})"
        for model, of_model in sorted(effects.items(), key=lambda item: -len(item[1]))
    ]
    if len(described) == 1:
        return f"All on one CPU model, so others may differ: {described[0]}."
    rest = len(described) - MAX_MODELS
    more = f" and {rest} more" if rest > 0 else ""
    return f"Slower variants by CPU model: {', '.join(described[:MAX_MODELS])}{more}."


def link_job_outputs(
    store: Store, row: VerdictRow, pairs: Sequence[PairRow]
) -> ui.Paragraph | None:
    """Link to the output of the jobs of a series, the slowest first; None without jobs."""
    series = row.comparison_key, row.site, row.metric
    pairs = [pair for pair in pairs if (pair.comparison_key, pair.site, pair.metric) == series]
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
