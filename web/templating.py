"""Templates of pages and reports: one environment, and how values are written for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from treehammer.analysis import wording
from treehammer.terminal import counted, duration


def environment(filters: Mapping[str, Callable[..., Any]] | None = None) -> Environment:
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
    made.filters.update({**FILTERS, **(filters or {})})
    return made


def moment(us: int) -> str:
    """Microseconds since 1970 as a minute, e.g. ``2026-03-01 12:30 UTC``."""
    # Whole seconds: as a float, the last of the year 9999 is one after it.
    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def cell(value: Any) -> str:
    """Any value in a table; a dash for what is not known."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


#: What templates call these functions.
FILTERS: Mapping[str, Callable[..., Any]] = {
    "time": moment,
    "cell": cell,
    "counted": counted,
    "duration": duration,
    "per_cent": wording.per_cent,
    "interval": wording.interval,
    "milliseconds": wording.milliseconds,
    "verdict": wording.verdict,
    "within": wording.within,
    "flat": wording.flat,
}
