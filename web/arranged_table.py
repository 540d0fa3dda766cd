"""Tables as their readers arrange them: order, filter and page number, by parameters of a URL."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.errors import ConfigError
from treehammer.sql.read.query_model import Condition
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.web import addresses

#: Shorter tables can be read without sorting.
MIN_SORTABLE_ROWS = 3
#: Shorter tables fit on a screen and need no filter.
MIN_FILTERED_ROWS = 16
_SORT, _FIND = "sort-", "find-"
_MAX_FILTER_LENGTH = 200


@dataclass(frozen=True)
class TableArrangement:
    """Requested order and filter of one table.

    Attributes:
        table: name of the table.
        key: key of the column to sort by; '' keeps the table's own order.
        descending: largest first.
        words: rows must contain all of them, in any column and case.
    """

    table: str
    key: str = ""
    descending: bool = False
    words: tuple[str, ...] = ()

    @classmethod
    def parse(cls, parameters: Mapping[str, str], table: str) -> TableArrangement:
        """Read the order (``sort-TABLE=[-]KEY``) and filter (``find-TABLE=WORDS``) of a table."""
        order = parameters.get(f"{_SORT}{table}", "")
        text = parameters.get(f"{_FIND}{table}", "")
        if len(text) > _MAX_FILTER_LENGTH:
            raise ConfigError(f"{_FIND}{table} must have at most {_MAX_FILTER_LENGTH} characters")
        words = tuple(text.casefold().split())
        return cls(table, order.removeprefix("-"), order.startswith("-"), words)

    def __bool__(self) -> bool:
        return bool(self.key or self.words)

    def apply(self, table: DataTable) -> DataTable:
        """Filter and sort all rows of a table; unknown columns are refused."""
        if not self or not table.is_arrangeable:
            return table
        columns = {column.key: column for column in table.text_columns}
        rows = _filter_rows(table.rows, columns.values(), self.words)
        if self.key and self.key not in columns:
            key, keys = self.key[:40], ", ".join(columns)
            raise ConfigError(f"{_SORT}{self.table} must be one of {keys}, not {key!r}")
        if self.key:
            rows = _sort_rows(rows, columns[self.key], descending=self.descending)
        return replace(table, rows=rows, arranged_from=table.rows)

    def next_order(self, column: TableColumn) -> str | None:
        """Return the order that a click on a heading requests; None for the table's own order.

        Numbers are sorted largest first unless small ones are worse, text alphabetically; the second
        click reverses the order, and the third restores the table's own.
        """
        first, second = column.key, f"-{column.key}"
        if column.is_number and not column.is_low_first:
            first, second = second, first
        if self.key != column.key:
            return first
        return second if self.descending == (first != column.key) else None

    def direction(self, column: TableColumn) -> str:
        """Return the value of ``aria-sort`` for a column's heading; '' if it is not sorted."""
        if column.key != self.key:
            return ""
        return "descending" if self.descending else "ascending"


def is_arrangement(parameter: str) -> bool:
    """Return whether a parameter of a page arranges one of its tables."""
    return parameter.startswith((_SORT, _FIND))


def _filter_rows(
    rows: Iterable[Row], columns: Collection[TableColumn], words: Iterable[str]
) -> list[Row]:
    """List the rows that contain all words."""
    matches = list(rows)
    for word in words:
        texts = (" ".join(column.cell_text(row) for column in columns) for row in matches)
        matches = [row for row, text in zip(matches, texts, strict=True) if word in text.casefold()]
    return matches


def _sort_rows(rows: Sequence[Row], column: TableColumn, *, descending: bool) -> list[Row]:
    """Sort rows by a column; rows without a value come last in either direction."""
    values = [(_sort_value(row, column), row) for row in rows]
    filled = [(value, row) for value, row in values if value is not None]
    filled.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in filled] + [row for value, row in values if value is None]


def _sort_value(row: Row, column: TableColumn) -> tuple[int, Any] | None:
    """Return the comparable value of a cell: numbers before text; None for an empty cell."""
    value = row[column.sort_key or column.key]
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, int | float):
        return 0, value
    return 1, natural_sort_key(column.cell_text(row).casefold())


@lru_cache(maxsize=20_000)
def encode_condition(condition: Condition) -> str:
    """Write a condition as parameters of a URL; rows of a table share most of theirs."""
    return urlencode([("where", text) for text in condition.texts])


def count_pages(count: int, size: int) -> int:
    """Return the number of pages for ``count`` items, at least one."""
    return max(-(-count // size), 1)


def past_last_page_text(page: int, last: int) -> str:
    """Return a sentence for a page number beyond the last page, '' otherwise."""
    return f"Page {page} does not exist; the last page is {last}." if page > last else ""


@dataclass(frozen=True)
class ArrangedTable:
    """A table with the rows in the requested order."""

    table: DataTable
    arrangement: TableArrangement

    @property
    def words(self) -> str:
        """Text of the filter."""
        return addresses.CURRENT_REQUEST.get().query_params.get(f"find-{self.table.name}", "")

    @property
    def other_parameters(self) -> list[tuple[str, str]]:
        """Parameters of the page that its filter form keeps."""
        removed = {f"find-{self.table.name}", *addresses.PARTIAL_PARAMETERS}
        items = addresses.CURRENT_REQUEST.get().query_params.multi_items()
        return [(name, value) for name, value in items if name not in removed]

    def heading(self, column: TableColumn) -> tuple[str, str]:
        """Return the link of a column's heading, and the direction in which the column is sorted."""
        changes = {f"sort-{self.table.name}": self.arrangement.next_order(column)}
        address = addresses.link_to_same_page(**changes)
        return address, self.arrangement.direction(column)


def arrange_table(table: DataTable) -> ArrangedTable:
    """Arrange a table as the parameters of the page request; unknown columns are refused."""
    arrangement = TableArrangement.parse(addresses.CURRENT_REQUEST.get().query_params, table.name)
    return ArrangedTable(arrangement.apply(table), arrangement)
