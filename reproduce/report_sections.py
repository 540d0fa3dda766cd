"""What a report says of published results among its campaigns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treehammer.errors import ConfigError
from treehammer.reproduce.agreement import Agreement, Reproduction, judge
from treehammer.reproduce.figure import CAPTION, PrintFigure
from treehammer.reproduce.output import COLUMNS
from treehammer.reproduce.published_result import CAMPAIGN_PREFIX, find_results
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable
from treehammer.web.report_figures import InlineFigure, ReportSection, draw_inline


def list_sections(store: Store, campaigns: Sequence[CampaignRow]) -> Iterator[ReportSection]:
    """Judge the campaigns that measured published results; nothing without any."""
    reproductions = [*_judge_campaigns(store, campaigns)]
    if not reproductions:
        return
    measured = [item for item in reproductions if item.measured]
    chart, heading = PrintFigure(measured), "In print, and here"
    drawing = draw_inline(chart.specification, "print", chart.title) if measured else ""
    yield ReportSection(
        heading,
        [*map(_describe, reproductions)],
        {heading: InlineFigure(drawing, CAPTION)} if measured else {},
        DataTable("published", "", COLUMNS, [item.to_row() for item in reproductions]),
        {reproduction.campaign for reproduction in reproductions},
    )


def _judge_campaigns(store: Store, campaigns: Sequence[CampaignRow]) -> Iterator[Reproduction]:
    for campaign in campaigns:
        name = campaign.name.removeprefix(CAMPAIGN_PREFIX)
        if name == campaign.name:
            continue
        try:
            (result,) = find_results((name,))
        except ConfigError:  # of another installation
            continue
        yield judge(store, result, campaign)


def _describe(reproduction: Reproduction) -> str:
    """Say what is in print and what was measured, in a sentence."""
    published, measured = reproduction.result.published, reproduction.measured
    if measured is None:
        return f"{published.title}: {reproduction.reason}."
    verdict = "" if reproduction.agreement is Agreement.AGREES else f" ({reproduction.agreement})"
    return f"{published.title}. Here {measured.value:.3g} times{verdict}."
