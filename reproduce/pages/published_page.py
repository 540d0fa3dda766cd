"""Page of published results: ratios in print beside those of the newest campaigns here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from treehammer.reproduce.agreement import Agreement, load_latest
from treehammer.reproduce.figure import CAPTION, PrintFigure
from treehammer.reproduce.output import COLUMNS
from treehammer.reproduce.published_result import find_results
from treehammer.tables import DataTable, Row
from treehammer.text_formatting import pluralize
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import PageQuery

_TABLES = {"results": "published results with the ratio measured here, if any"}


def _link_campaign(row: Row) -> str:
    return link_to("campaign", campaign_id=row["campaign"]) if row["campaign"] else ""


@page(
    "/published",
    "published",
    menu="In print",
    position=45,
    help="reproduce",
    reads_measurements=True,
    api=PageOperation(
        "listPublishedResults", "Published results beside those measured here", _TABLES
    ),
)
def published_page(request: PageRequest[PageQuery]) -> PageContent:
    """Show each published result with what the newest campaign here says of it."""
    reproductions = [*load_latest(request.store, find_results(()))]
    measured = [reproduction for reproduction in reproductions if reproduction.measured]
    first, *further_columns = COLUMNS
    columns = (
        replace(first, detail=lambda row: str(row["title"])),
        *(
            replace(column, link=_link_campaign, detail=lambda row: str(row["reason"]))
            if column.key == "verdict"
            else column
            for column in further_columns
        ),
    )
    table = DataTable(
        "results", "Published results", columns, [item.to_row() for item in reproductions]
    )
    counts = Counter(item.agreement for item in reproductions)
    agreeing, differing = counts[Agreement.AGREES], counts[Agreement.DIFFERS]
    conclusion = (
        f"{agreeing} of {pluralize(len(reproductions), 'published result')} "
        f"{'agrees' if agreeing == 1 else 'agree'} with what was measured here, {differing} "
        f"{'differs' if differing == 1 else 'differ'}, {counts[Agreement.UNJUDGED]} could not be judged."
    )
    sections = (
        ui.headline(conclusion),
        ui.Figure("published", PrintFigure(measured), CAPTION) if measured else None,
        table,
        *ui.suggest("Measure those that are missing:", "treehammer reproduce --quick"),
    )
    return PageContent("In print, and here", sections, (table,))
