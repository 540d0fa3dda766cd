"""A table as its reader arranged it, with the links that change its order and filter."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from treehammer.tables import DataTable, TableColumn
from treehammer.web.core.local_addresses import requested_path
from treehammer.web.display.table_arrangement import TableArrangement
from treehammer.web.views.shared.page_links import PARTIAL_PARAMETERS, link_to_same_page


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
