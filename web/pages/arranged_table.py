"""Tables as their readers arranged them: links that change order, filter and page number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from treehammer.errors import ConfigError
from treehammer.sql.read.measurement_selection import Condition
from treehammer.tables import DataTable, TableColumn
from treehammer.web.core.request_checks import requested_path
from treehammer.web.table_arrangement import TableArrangement

#: Parameter that asks for a chart of the page as a file.
DRAWING = "drawing"
#: Parameters for parts of a page; links to the page leave them out.
PARTIAL_PARAMETERS = ("part", "version", DRAWING)


@lru_cache(maxsize=20_000)
def encode_condition(condition: Condition) -> str:
    """Write a condition as parameters of a URL; rows of a table share most of theirs."""
    return urlencode([("where", text) for text in condition.texts])


def link_to_same_page(request: Request, **changes: Any) -> str:
    """Return the URL of the current page with changed parameters; None removes a parameter."""
    removed = {*changes, *PARTIAL_PARAMETERS}
    unchanged = [
        (name, value) for name, value in request.query_params.multi_items() if name not in removed
    ]
    new = [(name, value) for name, value in changes.items() if value is not None]
    return f"?{urlencode([*unchanged, *new])}"


def parse_page_number(request: Request) -> int:
    """Read the page number, counted from 1, from a request.

    Raises:
        ConfigError: it is not a positive number of at most six digits.
    """
    text = request.query_params.get("page", "1")
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise ConfigError(f"page must be a positive number, not {text[:40]!r}")
    return int(text)


def count_pages(count: int, size: int) -> int:
    """Return the number of pages for ``count`` items, at least one."""
    return max(-(-count // size), 1)


def past_last_page_text(page: int, last: int) -> str:
    """Return a sentence for a page number beyond the last page, '' otherwise."""
    return f"Page {page} does not exist; the last page is {last}." if page > last else ""


@dataclass(frozen=True)
class HeadingLink:
    """Link of a column's heading and the direction in which the column is sorted now."""

    address: str
    direction: str


@dataclass(frozen=True)
class ArrangedTable:
    """A filtered and sorted table.

    Attributes:
        table: with the rows in the requested order.
        arrangement: requested order and filter.
        request: of the page.
    """

    table: DataTable
    arrangement: TableArrangement
    request: Request

    @property
    def words(self) -> str:
        """Text of the filter."""
        return self.request.query_params.get(f"find-{self.table.name}", "")

    @property
    def page_address(self) -> str:
        """Address of the page without parameters."""
        return requested_path(self.request)

    @property
    def other_parameters(self) -> list[tuple[str, str]]:
        """Parameters of the page that its filter form keeps."""
        removed = {f"find-{self.table.name}", *PARTIAL_PARAMETERS}
        items = self.request.query_params.multi_items()
        return [(name, value) for name, value in items if name not in removed]

    def heading(self, column: TableColumn) -> HeadingLink:
        """Build the link of a column's heading."""
        changes = {f"sort-{self.table.name}": self.arrangement.next_order(column)}
        address = link_to_same_page(self.request, **changes)
        return HeadingLink(address, self.arrangement.direction(column))


def arrange_table(table: DataTable, request: Request) -> ArrangedTable:
    """Arrange a table as the parameters of the page request.

    Raises:
        ConfigError: the request names an unknown column.
    """
    arrangement = TableArrangement.parse(request.query_params, table.name)
    return ArrangedTable(arrangement.apply(table), arrangement, request)
