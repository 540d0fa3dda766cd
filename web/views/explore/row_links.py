"""Where the rows of a figure's table lead: to sites, campaigns, jobs, and to the jobs behind a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from urllib.parse import quote, urlencode

from starlette.requests import Request

from treehammer.sql.read.figure_query import DAY, MONTH, WEEK
from treehammer.sql.read.measurement_selection import Condition, Scalar, intersect_conditions
from treehammer.web.display import calendar_days
from treehammer.web.display.data_tables import Row
from treehammer.web.display.variant_labels import VARIANT_COLUMN
from treehammer.web.figures.explore_query import DIMENSIONS, MEANS, RMS, ExploreQuery
from treehammer.web.views.shared.page_context import link_to

#: Column -> address of the page of its value ``-``.
_PAGE_LINKS: Mapping[str, Callable[[Request], str]] = {
    "site": lambda request: link_to(request, "site", site="-"),
    "job_id": lambda request: link_to(request, "job", job_id="-"),
    "campaign_id": lambda request: link_to(request, "campaign", campaign_id="-"),
}
_JOB = "job_id"
_WEEK_LENGTH = timedelta(days=6)
_LAST_MONDAY = date.max - _WEEK_LENGTH


class RowLinks:
    """The addresses of one figure's table.

    Args:
        request: under which the service is reached.
        asked: the figure.
    """

    def __init__(self, request: Request, asked: ExploreQuery) -> None:
        self._groups = asked.group_columns
        self._explore = link_to(request, "explore")
        # Looked up once: there may be many rows.
        self._bases = {
            name: page(request).removesuffix("-")
            for name, page in _PAGE_LINKS.items()
            if name in asked.group_columns
        }
        jobs = {"by": _JOB, "colour": VARIANT_COLUMN, "panels": "", "view": MEANS, "bars": RMS}
        left = ("where", *(("kind",) if "kind" in asked.group_columns else ()))
        kept = [
            (name, jobs.get(name, value))
            for name, value in asked.query_parameters
            if name not in left
        ]
        self._kept = urlencode(kept)
        self._wheres = asked.conditions
        self._lead = _JOB not in asked.group_columns and {*asked.group_columns} <= {*DIMENSIONS}

    def value_link(self, name: str) -> Callable[[Row], str]:
        """The page of a value in this column, '' where it has none."""
        base = self._bases.get(name)
        if base is None:
            return lambda _: ""
        return lambda row: base + quote(str(row[name]), safe="") if row[name] else ""

    def jobs_link(self, row: Row) -> str:
        """The figure of the jobs behind a row, '' where rows are jobs, or no condition can tell them."""
        if not self._lead:
            return ""
        wheres = intersect_conditions((*self._wheres, *self._conditions(row)))
        own = urlencode([("where", text) for where in wheres for text in where.texts])
        return f"{self._explore}?{self._kept}&{own}"

    def _conditions(self, row: Row) -> Iterator[Condition]:
        for name in self._groups:
            value = row[name]
            if name in (WEEK, MONTH):
                first, last = _period_bounds(name, value)
                yield Condition(DAY, ">=", first)
                yield Condition(DAY, "<=", last)
            else:
                yield Condition(name, "=", value)


def _period_bounds(name: str, value: Scalar) -> tuple[int, int]:
    """The first and last day of a week or month, as the database counts days."""
    number = value if isinstance(value, int) else 0
    if name == MONTH:
        return 100 * number, 100 * number + 99
    monday = calendar_days.day_from_number(number)
    # What is no day is in no week.
    return number, number if monday > _LAST_MONDAY else calendar_days.day_number(
        monday + _WEEK_LENGTH
    )
