"""Rendering of a campaign report as one HTML document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from treehammer.analysis.comparison.wording.attribution import attribute_rows
from treehammer.analysis.comparison.wording.limit_text import make_limit_table
from treehammer.version import __version__
from treehammer.web.display.template_environment import build_environment
from treehammer.web.report import report_tables
from treehammer.web.report.campaign_report import (
    BUILD_COLUMNS,
    FAILURE_COLUMNS,
    IMPLAUSIBLE_COLUMNS,
    LISTED_COLUMNS,
    NODE_COLUMNS,
    CampaignReport,
)


def render_report(report: CampaignReport) -> str:
    """Render a report as one HTML document without external resources and scripts."""
    titles = {name: report_tables.title_column(name) for name in (*BUILD_COLUMNS, *NODE_COLUMNS)}
    counted = report_tables.make_counted_table
    return (
        build_environment(**_FILTERS)
        .get_template("report.html.j2")
        .render(
            report=report,
            version=__version__,
            means=report_tables.make_means_table(report.cells),
            builds=counted(
                "builds",
                "ROOT builds",
                report.builds,
                [("axis_root", "asked for"), *((name, titles[name]) for name in BUILD_COLUMNS)],
            ),
            nodes=counted(
                "nodes",
                "Nodes",
                report.nodes,
                [
                    ("site", "site"),
                    *((name, titles[name]) for name in NODE_COLUMNS),
                    ("calibration_s", "calibration loop (s)"),
                ],
            ),
            failures=counted(
                "failures", "Failed executions", report.failures, [*FAILURE_COLUMNS.items()]
            ),
            implausible=counted(
                "implausible",
                "Implausible executions: stored, never averaged",
                report.implausible,
                [*IMPLAUSIBLE_COLUMNS.items()],
            ),
            measurements=report_tables.make_measurement_table(report.listed, LISTED_COLUMNS),
        )
    )


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "attributed": attribute_rows,
    "effect_tables": report_tables.make_effect_tables,
    "limit_table": make_limit_table,
    # Safe: the figure's texts are escaped where its SVG is drawn.
    "inline": lambda drawing: Markup(drawing.svg),  # noqa: S704
}
