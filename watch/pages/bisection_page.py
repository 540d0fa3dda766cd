"""Page of a search for the build that changed a metric, and the table of all searches."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from treehammer.analysis.comparison.verdict_text import format_effect
from treehammer.config import Settings
from treehammer.errors import NothingToDoError
from treehammer.tables import DataTable, hidden_columns
from treehammer.watch.bisection import bisection_report
from treehammer.watch.bisection.bisection_state import BisectionState, find_state, list_states
from treehammer.web import sections as ui
from treehammer.web.addresses import link_rows, link_to
from treehammer.web.columns import column, columns
from treehammer.web.display_formats import format_time
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import PageQuery, PathText


class BisectionQuery(PageQuery):
    """Parameters of the page of a search."""

    bisection: PathText = Field(description="Identity.")


@page(
    "/bisections/{bisection:some}",
    "bisection",
    BisectionQuery,
    position=42,
    help="changes",
    api=PageOperation(
        "getBisection",
        "A search for the build that changed a metric",
        {"probes": "measured builds, in the order of the search"},
        ("conclusion", "facts"),
    ),
)
def bisection_page(request: PageRequest[BisectionQuery]) -> PageContent:
    """Show the result of a search, and what each build measured; an unknown one is refused."""
    state = find_state(request.resources.settings, request.query.bisection)
    if state is None:
        raise NothingToDoError("no such search", hint="Start one: treehammer bisect")
    question = state.question
    conclusion, *details = bisection_report.describe_conclusion(state).splitlines()
    facts = [
        ("metric", question.metric),
        ("builds", f"{len(question.builds)}, {_describe_range(state)}"),
        ("jobs", state.jobs),
        ("started", format_time(state.started_us)),
        ("state", "finished" if state.is_finished else "unfinished"),
    ]
    table = _build_probe_table(state)
    sections = (
        ui.headline(conclusion),
        ui.Bullets([line for line in details if not line.startswith(f"{state.jobs} job")]),
        ui.Facts(facts),
        table,
    )
    about = {"conclusion": conclusion, "facts": dict(facts)}
    crumbs = [ui.Link("Changes over time", link_to("changes"))]
    return PageContent(f"Search over {_describe_range(state)}", sections, (table,), about, crumbs)


def build_bisection_table(settings: Settings) -> DataTable:
    """Build the table of all searches, the newest first."""
    states = sorted(
        list_states(settings.bisections_dir), key=lambda state: state.started_us, reverse=True
    )
    rows = [
        {
            "bisection": state.id,
            "builds": _describe_range(state),
            "metric": state.question.metric,
            "conclusion": bisection_report.describe_answer(state),
            "started_us": state.started_us,
        }
        for state in states
    ]
    table_columns = (
        column("builds", is_long=True, link=link_rows("bisection", bisection="bisection")),
        column("metric"),
        column("conclusion", is_long=True),
        column("started_us", "started", format_value=format_time),
        *hidden_columns("bisection"),
    )
    return DataTable("bisections", "Searches for the build", table_columns, rows, empty_text="")


def _describe_range(state: BisectionState) -> str:
    builds = state.question.builds
    return f"{builds[0].title} … {builds[-1].title}"


def _build_probe_table(state: BisectionState) -> DataTable:
    rows: list[dict[str, Any]] = [
        {
            "build": state.question.builds[probe.build].title,
            "state": probe.state,
            "effects": ", ".join(map(format_effect, probe.effects)),
            "value": probe.counter[1] if probe.counter else None,
            "good": probe.counter[0] if probe.counter else None,
            "reason": probe.reason,
            "campaign": probe.campaign,
        }
        for probe in state.probes
    ]
    is_exact = state.question.is_exact
    table_columns = (
        column("build", is_long=True, link=link_rows("campaign", campaign_id="campaign")),
        *columns("state"),
        column("effects", "change in each job", is_long=True, hidden=is_exact),
        column("value", is_number=True, hidden=not is_exact),
        column("good", "value of the first build", is_number=True, hidden=not is_exact),
        column("reason", is_long=True),
        *hidden_columns("campaign"),
    )
    return DataTable("probes", "Measured builds", table_columns, rows, empty_text="None yet.")
