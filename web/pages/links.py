"""Where the rows of a figure's table lead: to sites, campaigns, jobs, and to the jobs behind a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from urllib.parse import quote, urlencode

from starlette.requests import Request

from treehammer.sql.figures import DAY, MONTH, WEEK
from treehammer.sql.selection import Scalar, Where, narrowed
from treehammer.web.pages import days
from treehammer.web.pages.asked import DIMENSIONS, MEANS, RMS, Asked
from treehammer.web.pages.context import link_to
from treehammer.web.pages.tables import Row
from treehammer.web.pages.variants import VARIANT

#: Column -> address of the page of its value ``-``.
_PAGES: Mapping[str, Callable[[Request], str]] = {
    "site": lambda request: link_to(request, "site", site="-"),
    "job_id": lambda request: link_to(request, "job", job_id="-"),
    "campaign_id": lambda request: link_to(request, "campaign", campaign_id="-"),
}
_JOB = "job_id"
_TO_SUNDAY = timedelta(days=6)
_LAST_MONDAY = date.max - _TO_SUNDAY


class Links:
    """The addresses of one figure's table.

    Args:
        request: under which the service is reached.
        asked: the figure.
    """

    def __init__(self, request: Request, asked: Asked) -> None:
        self._groups = asked.groups
        self._explore = link_to(request, "explore")
        # Looked up once: there may be many rows.
        self._bases = {
            name: page(request).removesuffix("-")
            for name, page in _PAGES.items()
            if name in asked.groups
        }
        jobs = {"by": _JOB, "colour": VARIANT, "panels": "", "view": MEANS, "bars": RMS}
        left = ("where", *(("kind",) if "kind" in asked.groups else ()))
        kept = [(name, jobs.get(name, value)) for name, value in asked.query if name not in left]
        self._kept = urlencode(kept)
        self._wheres = asked.wheres
        self._lead = _JOB not in asked.groups and {*asked.groups} <= {*DIMENSIONS}

    def of(self, name: str) -> Callable[[Row], str]:
        """The page of a value in this column, '' where it has none."""
        base = self._bases.get(name)
        if base is None:
            return lambda _: ""
        return lambda row: base + quote(str(row[name]), safe="") if row[name] else ""

    def jobs(self, row: Row) -> str:
        """The figure of the jobs behind a row, '' where rows are jobs, or no condition can tell them."""
        if not self._lead:
            return ""
        wheres = narrowed((*self._wheres, *self._conditions(row)))
        own = urlencode([("where", text) for where in wheres for text in where.texts])
        return f"{self._explore}?{self._kept}&{own}"

    def _conditions(self, row: Row) -> Iterator[Where]:
        for name in self._groups:
            value = row[name]
            if name in (WEEK, MONTH):
                first, last = _bounds(name, value)
                yield Where(DAY, ">=", first)
                yield Where(DAY, "<=", last)
            else:
                yield Where(name, "=", value)


def _bounds(name: str, value: Scalar) -> tuple[int, int]:
    """The first and last day of a week or month, as the database counts days."""
    number = value if isinstance(value, int) else 0
    if name == MONTH:
        return 100 * number, 100 * number + 99
    monday = days.of_number(number)
    # What is no day is in no week.
    return number, number if monday > _LAST_MONDAY else days.numbered(monday + _TO_SUNDAY)
