"""Tables shown on pages and exported as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from treehammer.text_formatting import pluralize
from treehammer.web.display.template_environment import format_cell

Row = Mapping[str, Any]

#: Rows of a long table shown on a page; CSV and JSON hold all.
MAX_SHOWN_ROWS = 250


@dataclass(frozen=True)
class TableColumn:
    """One column of a table.

    Attributes:
        key: key of the value in each row.
        title: column heading.
        format_value: formats the value for readers.
        format_row: formats the cell from the whole row instead.
        is_number: align right.
        is_long: allow line breaks.
        link: URL of a cell, '' for none.
        css_class: CSS class of a cell, '' for none.
        hidden: exported but not shown.
    """

    key: str
    title: str = ""
    format_value: Callable[[Any], str] = format_cell
    format_row: Callable[[Row], str] | None = None
    is_number: bool = False
    is_long: bool = False
    link: Callable[[Row], str] = field(default=lambda _: "")
    css_class: Callable[[Row], str] = field(default=lambda _: "")
    hidden: bool = False

    def cell_text(self, row: Row) -> str:
        """Text of a row's cell."""
        return self.format_row(row) if self.format_row else self.format_value(row[self.key])


@dataclass(frozen=True)
class TableCell:
    """Text, link and CSS classes of a shown cell."""

    text: str
    link: str
    css_class: str


@dataclass(frozen=True)
class DataTable:
    """A table with its caption, columns and rows.

    Attributes:
        name: unique on a page; selects the table for export.
        caption: shown above the table.
        columns: in order; the first is the row heading.
        rows: with a value for every column's key.
        empty_text: sentence shown if the table has no rows.
        note: shown below, e.g. about truncation.
    """

    name: str
    caption: str
    columns: tuple[TableColumn, ...]
    rows: Sequence[Row]
    empty_text: str = "No entries."
    note: str = ""

    @cached_property
    def shown_columns(self) -> tuple[TableColumn, ...]:
        """Columns that are not hidden."""
        return tuple(column for column in self.columns if not column.hidden)

    def row_cells(self, row: Row) -> list[TableCell]:
        """Shown cells of a row."""
        return [
            TableCell(
                column.cell_text(row),
                column.link(row),
                " ".join(filter(None, (fixed, column.css_class(row)))),
            )
            for column, fixed in self._columns_with_classes
        ]

    @cached_property
    def _columns_with_classes(self) -> list[tuple[TableColumn, str]]:
        """Shown columns with the CSS classes common to all their cells."""
        return [
            (column, " ".join(["number"] * column.is_number + ["long"] * column.is_long))
            for column in self.shown_columns
        ]

    def truncate(self, most: int, *, newest: bool = False) -> DataTable:
        """Keep the first or, along a time axis, the last rows, for a page."""
        if len(self.rows) <= most:
            return self
        rows = self.rows[-most:] if newest else self.rows[:most]
        of_all = pluralize(len(self.rows), "row")
        note = f"{'Last' if newest else 'First'} {most} of {of_all}; CSV and JSON hold all."
        return replace(self, rows=rows, note=f"{self.note} {note}".strip())

    def plain_rows(self) -> list[dict[str, Any]]:
        """Return rows for export: raw values by key."""
        return [{column.key: row[column.key] for column in self.columns} for row in self.rows]

    def to_csv(self) -> str:
        """Write the table as CSV; lists and mappings become JSON, None is empty."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([column.key for column in self.columns])
        writer.writerows([_csv_value(value) for value in row.values()] for row in self.plain_rows())
        return stream.getvalue()


def _csv_value(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else value
