"""What the report of a campaign says about its load, or about its reads through caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from treehammer.load.analysis.cache_cost import CacheComparison, conclude
from treehammer.load.analysis.cache_reads import CacheRead, list_setups, shorten_setups
from treehammer.load.charts.cache_figures import lay_out_figures, load_cache_reads
from treehammer.load.charts.load_summary import summarize_load
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.web.figures.figure_chart import chart_figure
from treehammer.web.report_figures import InlineFigure, LoadSummary, ReportSection, draw_inline


def describe_campaign(
    snapshot: DatabaseSnapshot, campaign: CampaignRow
) -> tuple[LoadSummary | None, list[ReportSection]]:
    """Summarize the load of a campaign, and draw its reads through caches."""
    reads = load_cache_reads(snapshot, (campaign.id,))
    return None if reads else summarize_load(snapshot, campaign), [*draw_cache_reads(reads)]


def draw_cache_reads(reads: Sequence[CacheRead]) -> Iterator[ReportSection]:
    """Draw rates and costs of reads through caches (study S5), a section for each setup."""
    setups = shorten_setups(list_setups(reads))
    for number, (setup, name) in enumerate(setups.items(), 1):
        comparison = CacheComparison(read for read in reads if read.setup == setup)
        figures = [*lay_out_figures(comparison)]
        yield ReportSection(
            f"Reads through caches: {name}",
            [conclude(comparison)],
            {
                figure.heading: InlineFigure(
                    draw_inline(
                        chart_figure(replace(figure.layout, title="")),
                        f"{figure.name}{number}",
                        f"{figure.heading}. {conclude(comparison)}",
                    ),
                    figure.caption,
                )
                for figure in figures
            },
        )
