"""Rendering of a campaign report as one HTML document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from treehammer.analysis.comparison.wording import verdict_text
from treehammer.analysis.comparison.wording.attribution import attribute_rows
from treehammer.version import __version__
from treehammer.web.display.display_units import format_mean_and_rms
from treehammer.web.display.template_environment import build_environment
from treehammer.web.report.campaign_report import (
    BUILD_COLUMNS,
    LISTED_COLUMNS,
    NODE_COLUMNS,
    CampaignReport,
)
from treehammer.web.report.execution_cells import ExecutionCell


def render_report(report: CampaignReport) -> str:
    """Render a report as one HTML document without external resources and scripts."""
    return (
        build_environment(**_FILTERS)
        .get_template("report.html.j2")
        .render(
            report=report,
            version=__version__,
            build_titles=["asked for", *map(_column_title, BUILD_COLUMNS)],
            node_titles=["site", *map(_column_title, NODE_COLUMNS), "calibration loop (s)"],
            raw=LISTED_COLUMNS,
        )
    )


def _column_title(name: str) -> str:
    return name.removeprefix("root_").replace("_", " ")


def _format_spread(cell: ExecutionCell, name: str, scale: float = 1.0) -> str:
    """Format mean ± RMS of a metric; a dash without values."""
    spread = cell.spreads.get(name)
    if spread is None:
        return "–"
    return format_mean_and_rms(scale * spread.mean, scale * spread.rms)


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "attributed": attribute_rows,
    "spread": _format_spread,
    "title_of": _column_title,
    "metric_title": verdict_text.title_metric,
    "metrics_title": verdict_text.title_metrics,
    "metric_value": verdict_text.format_metric_value,
    "side_title": lambda rows, side: verdict_text.title_side(rows, side, ", "),
    # Safe: matplotlib and ElementTree escape the figure's texts.
    "inline": lambda drawing: Markup(drawing.svg),  # noqa: S704
}
