"""Links from the rows of a figure's table to sites, campaigns, jobs and the jobs of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request

from treehammer.sql.read.figure_query import DAY, MONTH, WEEK
from treehammer.sql.read.measurement_selection import Condition, Scalar, intersect_conditions
from treehammer.tables import Row
from treehammer.web.display import calendar_days
from treehammer.web.display.variant_labels import VARIANT_COLUMN
from treehammer.web.figures.explore_query import DIMENSIONS, MEANS, RMS, ExploreQuery
from treehammer.web.figures.figure_layout import GroupKeys
from treehammer.web.views.shared.page_context import link_to
from treehammer.web.views.shared.page_links import encode_condition

#: Column -> URL of the page of its value ``-``.
_PAGE_LINKS: Mapping[str, Callable[[Request], str]] = {
    "site": lambda request: link_to(request, "site", site="-"),
    "job_id": lambda request: link_to(request, "job", job_id="-"),
    "campaign_id": lambda request: link_to(request, "campaign", campaign_id="-"),
}
_JOB = "job_id"
_WEEK_LENGTH = timedelta(days=6)
_LAST_MONDAY = date.max - _WEEK_LENGTH


class RowLinks:
    """Links of the rows of one figure's table.

    Args:
        request: provides the root path.
        query: the figure's parameters.
    """

    def __init__(self, request: Request, query: ExploreQuery) -> None:
        self._groups = query.group_columns
        self._explore = link_to(request, "explore")
        # Resolved once, as there may be many rows.
        self._bases = {
            name: page(request).removesuffix("-")
            for name, page in _PAGE_LINKS.items()
            if name in query.group_columns
        }
        jobs = {"by": _JOB, "color": VARIANT_COLUMN, "panels": "", "view": MEANS, "bars": RMS}
        removed = ("where", *(("kind",) if "kind" in query.group_columns else ()))
        parameters = [
            (name, jobs.get(name, value))
            for name, value in query.query_parameters
            if name not in removed
        ]
        self._shared_parameters = urlencode(parameters)
        self._query_conditions = query.conditions
        self._links_to_jobs = _JOB not in query.group_columns and {*query.group_columns} <= {
            *DIMENSIONS
        }

    def value_link(self, name: str) -> Callable[[Row], str]:
        """Build a function that links to the page of a row's value; '' if it has none."""
        base = self._bases.get(name)
        if base is None:
            return lambda _: ""
        return lambda row: base + quote(str(row[name]), safe="") if row[name] else ""

    def jobs_link(self, row: Row) -> str:
        """Link to the figure of a row's jobs; '' if rows are jobs, or no condition can select them."""
        if not self._links_to_jobs:
            return ""
        conditions = intersect_conditions((*self._query_conditions, *self._conditions(row)))
        return f"{self._explore}?{self._shared_parameters}&{_encode_conditions(conditions)}"

    def mark_links(self, keys: GroupKeys) -> Mapping[str, Any] | None:
        """Start of the links of marks, and the part that each panel, place and series adds; may be None."""
        if not self._links_to_jobs:
            return None
        conditions = [
            condition
            for condition in self._query_conditions
            if condition.operator != "=" or condition.column not in self._groups
        ]
        parts = [
            [_encode_conditions(self._conditions(values)) for values in axis_keys]
            for axis_keys in keys
        ]
        encoded = _encode_conditions(conditions)
        base = f"{self._explore}?{self._shared_parameters}" + (f"&{encoded}" if encoded else "")
        return {"base": base, **dict(zip(("panels", "places", "series"), parts, strict=True))}

    def _conditions(self, row: Mapping[str, Any]) -> Iterator[Condition]:
        for name in self._groups:
            if name not in row:
                continue
            value = row[name]
            if name in (WEEK, MONTH):
                first, last = _period_bounds(name, value)
                yield Condition(DAY, ">=", first)
                yield Condition(DAY, "<=", last)
            else:
                yield Condition(name, "=", value)


def _encode_conditions(conditions: Iterable[Condition]) -> str:
    return "&".join(map(encode_condition, conditions))


def _period_bounds(name: str, value: Scalar) -> tuple[int, int]:
    """Return the first and last database day number of a week or month."""
    number = value if isinstance(value, int) else 0
    if name == MONTH:
        return 100 * number, 100 * number + 99
    monday = calendar_days.day_from_number(number)
    # The last days of the calendar have no complete week.
    return number, number if monday > _LAST_MONDAY else calendar_days.day_number(
        monday + _WEEK_LENGTH
    )
