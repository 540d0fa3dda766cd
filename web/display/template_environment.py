"""Templates of pages and reports: one environment, and how values are written for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from treehammer.analysis.comparison import verdict_text
from treehammer.text_formatting import format_duration, pluralize


def build_environment(filters: Mapping[str, Callable[..., Any]] | None = None) -> Environment:
    """An environment in which all that is filled in is text, and what does not exist is an error.

    Its templates are those of ``templates/`` and the files of ``static/``.
    """
    made = Environment(
        loader=ChoiceLoader(
            [PackageLoader("treehammer.web", of) for of in ("templates", "static")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"sort_keys": True, "default": vars}  # of dataclasses
    made.filters.update({**TEMPLATE_FILTERS, **(filters or {})})
    return made


def format_time(us: int) -> str:
    """Microseconds since 1970 as a minute, e.g. ``2026-03-01 12:30 UTC``."""
    # Whole seconds: as a float, the last of the year 9999 is one after it.
    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_cell(value: Any) -> str:
    """Any value in a table; a dash for what is not known."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


#: What templates call these functions.
TEMPLATE_FILTERS: Mapping[str, Callable[..., Any]] = {
    "time": format_time,
    "cell": format_cell,
    "counted": pluralize,
    "duration": format_duration,
    "per_cent": verdict_text.format_effect,
    "interval": verdict_text.format_interval,
    "milliseconds": verdict_text.format_milliseconds,
    "verdict": verdict_text.format_verdict,
    "within": verdict_text.format_delta,
    "flat": verdict_text.flatten_verdict,
}
