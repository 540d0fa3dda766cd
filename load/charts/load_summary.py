"""Summary of a load: which rates a storage keeps, with its table and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

from treehammer.analysis.statistics.metric_units import format_metric
from treehammer.analysis.status.day_outcomes import OperationsRule
from treehammer.collectors.record.latency_histograms import QUANTILES
from treehammer.collectors.record.operation_steps import CLIENT, FIGURE_NAMES
from treehammer.load.charts.load_charts import draw_levels, draw_sides, draw_steps, sort_levels
from treehammer.load.charts.load_levels import LoadDetails, LoadQuery, level_of, load_details
from treehammer.load.operation_figures import OperationGroup
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.text_formatting import format_cell, format_counts, format_share, format_significant
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to
from treehammer.web.columns import columns
from treehammer.web.report_figures import LoadSummary

#: Share of the attempted rate that a storage that carries it reaches.
_CARRIED_SHARE = 0.9


def summarize_load(snapshot: DatabaseSnapshot, campaign: CampaignRow) -> LoadSummary | None:
    """Summarize the operations of a campaign; None without any."""
    query = LoadQuery(campaign_id=campaign.id)
    details = load_details(snapshot, campaign, campaign.plan.definition.load_test, query)
    if details.selection is None:
        return None
    levels, steps = draw_figures(details, campaign.test_name)
    table = level_table(details, campaign.id)
    unlinked = tuple(
        replace(column, link=lambda _: "")
        for column in table.columns
        if any(row[column.key] is not None for row in table.rows)
    )
    return LoadSummary(
        conclude(details), list_limits(details), replace(table, columns=unlinked), [*levels, *steps]
    )


def list_limits(details: LoadDetails) -> list[str]:
    """Describe each similar load of which only lower bounds are known, and files left unread."""
    limits = [
        f"{details.label(level)}: {text}."
        for level in details.similar
        if (text := level.describe_limit())
    ]
    return [*limits, *details.unread]


def draw_figures(details: LoadDetails, test: str) -> tuple[list[ui.Figure], list[ui.Figure]]:
    """Draw the figures of all levels, and those of the chosen one over time."""
    selection = details.selection
    if selection is None:
        return [], []
    lines, line = details.group_by_line(), details.labels.label_series(level_of(selection))
    rule = OperationsRule()
    levels = draw_levels(lines, details.label, rule, test, selection.operation, line)
    sides = draw_sides(details.sides, details.points)
    return levels, [*sides, *draw_steps(details.steps, details.points)]


def conclude(details: LoadDetails) -> str:
    """Say which rates the storage of the chosen load keeps, and what happens above; '' if unknown."""
    selection = details.selection
    if selection is None:
        return ""
    rule = OperationsRule()
    lines = details.group_by_line()
    name = details.labels.label_series(level_of(selection))
    levels = sort_levels(lines[name])
    carried = list(takewhile(lambda level: _is_carried(level, rule), levels))
    parts = [*_describe_carried(carried[-1], selection.operation)] if carried else []
    parts += [_describe_excess(level, rule) for level in levels[len(carried) :][:1]]
    place = name if len(lines) > 1 else f"The storage of {level_of(selection).storage_site}"
    subject = place if carried else f"{place}, {selection.operation}:"
    return f"{subject} {'; '.join(parts)}." if parts else ""


def _describe_carried(level: OperationGroup, operation: str) -> Iterator[str]:
    """Say which rate the storage keeps, by the highest level that it carries."""
    least = "at least " if level.is_held else ""
    yield f"keeps {least}{format_significant(level.attempted_hz or 0.0)} {operation} operations/s"
    if level.is_held:
        yield _describe_ceiling(level)
    if failed_aside := sum(level.limited_failures.values()):
        yield f"{failed_aside:,} failed in steps left out"


def _describe_ceiling(level: OperationGroup) -> str:
    rate = level.observed_hz or level.least_hz or 0.0
    return f"at {format_significant(rate)}/s the door's ceiling was the limit"


def _describe_excess(level: OperationGroup, rule: OperationsRule) -> str:
    at = f"at {format_significant(level.attempted_hz or 0.0)}/s"
    if level.failed > rule.max_failed_per_success * level.done:
        return f"{at} {format_share(level.failed_fraction or 0.0)} fail"
    if level.is_held:
        return _describe_ceiling(level)
    return f"{at} {format_significant(level.observed_hz or 0.0)}/s succeed"


def _is_carried(level: OperationGroup, rule: OperationsRule) -> bool:
    """Whether few operations failed, as in the rule of states, and nearly all ended in time."""
    attempted, observed = level.attempted_hz or 0.0, level.observed_hz or 0.0
    is_failing = level.failed > rule.max_failed_per_success * level.done
    return not is_failing and level.done > 0 and observed >= _CARRIED_SHARE * attempted


def level_table(details: LoadDetails, campaign_id: str) -> DataTable:
    """Build the table of all levels, each with a link to its course."""

    def link_to_level(row: Row) -> str:
        query = {name: row[name] for name in ("operation", "side", "load")}
        return link_to("campaign-load", campaign_id=campaign_id, query=query) + "#time"

    rows = [
        {
            "load": level_of(level).id,
            "label": details.label(level),
            **{
                name: getattr(level_of(level), name) for name in ("storage_site", "door", "variant")
            },
            "jobs": level_of(level).jobs or None,
            **level.list_figures(),
            "net_mean_s": level.net_mean_s if level.side == CLIENT else None,
        }
        for level in details.levels
    ]
    table_columns = (
        TableColumn("label", "load", link=link_to_level),
        *hidden_columns("load", "storage_site", "door", "variant", "jobs"),
        *columns("operation", "side"),
        *figure_columns("operation", "side"),
        TableColumn(
            "net_mean_s",
            "mean without round trip",
            partial(format_metric, "net_mean_s", unit="s"),
            is_number=True,
        ),
    )
    empty = "No timed measurement of this campaign that is good has operations."
    return DataTable(
        "levels", "All loads", table_columns, rows, empty, details.labels.variants.note
    )


def figure_columns(*leading: str) -> Iterator[TableColumn]:
    """Build the columns of all figures but those shown already."""
    titles = {
        "active_clients": "clients",
        "attempted_hz": "attempted (1/s)",
        "observed_hz": "observed (1/s)",
        "failed_fraction": "failed",
        "bytes_per_s": "MB/s",
        **{name: name.removesuffix("_s") for name in QUANTILES},
        "failures": "failures",
        "steps": "rows",
        "limited_steps": "left out",
        "held_fraction": "held by ceiling",
        "least_hz": "at least (1/s)",
        "least_bytes_per_s": "at least (MB/s)",
    }
    formats: Mapping[str, Callable[[Any], str]] = {
        **dict.fromkeys(("failed_fraction", "held_fraction"), lambda share: format_share(share, 2)),
        **dict.fromkeys(("bytes_per_s", "least_bytes_per_s"), lambda rate: format_cell(rate / 1e6)),
        "least_hz": format_cell,
        "failures": format_counts,
        **{name: partial(format_metric, name, unit="s") for name in QUANTILES},
    }
    names = [*titles, *(name for name in FIGURE_NAMES if name not in titles)]
    for name in names:
        if name in leading:
            continue
        yield TableColumn(
            name,
            titles.get(name, name),
            formats.get(name, format_cell),
            is_number=name != "failures",
            is_long=name == "failures",
            hidden=name not in titles,
        )
