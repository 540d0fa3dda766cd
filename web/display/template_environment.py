"""Jinja environment and formatting filters of pages and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from treehammer.analysis.comparison.wording import verdict_text
from treehammer.text_formatting import format_cell, format_duration, pluralize
from treehammer.web.display.metric_titles import head_axis, head_column, title_column


@cache
def build_environment(**filters: Callable[..., Any]) -> Environment:
    """Create an environment with autoescaping and strict undefined variables.

    Templates are loaded from ``templates/`` and ``static/``, and each is compiled once per process.
    """
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("treehammer.web", folder) for folder in ("templates", "static")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"default": vars}  # of dataclasses
    environment.filters.update({**TEMPLATE_FILTERS, **filters})
    return environment


def format_time(us: int) -> str:
    """Format microseconds since 1970 as ``2026-03-01 12:30 UTC``."""
    # Integer division: as a float, the last microsecond of the year 9999 overflows.
    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")


#: Filters available in templates.
TEMPLATE_FILTERS: Mapping[str, Callable[..., Any]] = {
    "time": format_time,
    "cell": format_cell,
    "counted": pluralize,
    "column_title": title_column,
    "column_head": head_column,
    "axis_head": head_axis,
    "duration": format_duration,
    "per_cent": verdict_text.format_effect,
    "interval": verdict_text.format_interval,
    "scope": verdict_text.describe_scope,
    "verdict": verdict_text.format_verdict,
    "within": verdict_text.format_delta,
    "flat": verdict_text.flatten_verdict,
}
