"""Links to Explore and study S0 from pages and rows: figures of the measurements that they show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

from treehammer.analysis.statistics.sample import HEADLINE_METRICS
from treehammer.explore.explore_query import View
from treehammer.explore.explore_result import S0_TITLE
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.read.site_history import list_recorded_variants
from treehammer.web.addresses import link_to
from treehammer.web.display_formats import days_until, today
from treehammer.web.figure_links import FigureParameters
from treehammer.web.labels import VARIANT_COLUMN, head_column
from treehammer.web.sections import Link

_CPU = {"metric": HEADLINE_METRICS[0]}
_LATENCY = {"metric": "read_latency_p95_s"}
_BY_RELEASE = {"color": "axis_root"}


def link_figure(by: Sequence[str], parameters: FigureParameters) -> str:
    """Link to measurements by a column and the color of another; without that, none are told apart."""
    first, color = (*by, "")[:2]
    query = {"by": first, "color": color, **parameters}
    if first == "day":
        # Days differ in their mix of work.
        query["view"] = View.RELATIVE
    return f"{link_to('explore')}?{urlencode(query, doseq=True)}"


def list_links(page: str, store: ResultsReader, parameters: FigureParameters) -> Iterator[Link]:
    """List the links of a page to figures of what it shows."""
    for title, query in _list_figures(page, store, parameters):
        route = "explore" if query else "s0"
        yield Link(title, link_to(route, query={**parameters, **query}))


def _list_figures(
    page: str, store: ResultsReader, parameters: FigureParameters
) -> Iterator[tuple[str, FigureParameters]]:
    """List titles and parameters of a page's figures; S0's has none of its own."""
    match page:
        case "overview":
            yield S0_TITLE, {}
            yield "Trend by day", {"by": "day", "color": "site", "view": View.RELATIVE}
            # Roll-ups have no quantiles: a month of measurements of all sites would be too many.
            week = {"by": "site", "from": days_until(today(), 7)[0]}
            yield "Read latency by site", {**_LATENCY, **week}
        case "campaign":
            yield "CPU efficiency by site", {}
            yield "CPU time per event", {**_CPU, **_BY_RELEASE, "by": VARIANT_COLUMN}
            yield "Read latency", {**_LATENCY, **_BY_RELEASE, "by": "site"}
        case "day":
            yield (
                "CPU efficiency by variant",
                {**_BY_RELEASE, "metric": "eff_job", "by": VARIANT_COLUMN},
            )
            yield "CPU time per event by host", {**_CPU, **_BY_RELEASE, "by": "host"}
            yield "Read latency by door", {**_LATENCY, **_BY_RELEASE, "by": "door"}
        case "release":
            yield "Trend by day", {"by": "day", "view": View.RELATIVE}
            yield "CPU time per event by site", {**_CPU, "by": "site", "view": View.MEANS}
        case "site":
            metric = head_column(parameters["metric"])
            yield f"{metric} by variant", {**_BY_RELEASE, "by": VARIANT_COLUMN}
            by_day = {"by": "day", "view": View.RELATIVE}
            yield f"{metric} by day and release", {**_BY_RELEASE, **by_day}
            yield "Read latency by door", {**_LATENCY, **_BY_RELEASE, "by": "door"}
        case "job":
            yield from _list_figures_of_job(store, parameters)


def _list_figures_of_job(
    store: ResultsReader, parameters: FigureParameters
) -> Iterator[tuple[str, FigureParameters]]:
    """Compare a job's work with that of its campaign, and of its site on other days."""
    elsewhere = {"by": "site", "site": None, "door": None}
    for title, site, changes in (
        ("The same work at all sites of the campaign", None, elsewhere),
        ("The same work at this site by day", parameters["site"], {"by": "day", "campaign": None}),
    ):
        variants = list_recorded_variants(store, parameters[VARIANT_COLUMN], site)
        yield title, {**_CPU, **_BY_RELEASE, VARIANT_COLUMN: variants, **changes}
