"""Tables of pages: what people see, and the same as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from treehammer.web.display.template_environment import format_cell

Row = Mapping[str, Any]

#: Rows of a long table that a page shows; CSV and JSON have all.
MAX_SHOWN_ROWS = 250


@dataclass(frozen=True)
class TableColumn:
    """One column.

    Attributes:
        key: of the row's value, which programs get as it is.
        title: what people read above it.
        show: how the value is written for people.
        write: the same from the whole row, where the value alone does not tell.
        number: set flush right.
        long: text that may be folded.
        link: gives the address that the cell leads to, '' for none.
        look: gives a class of the style sheet for the cell, '' for none.
        hidden: for programs alone.
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
        """What people read in a row's cell."""
        return self.format_row(row) if self.format_row else self.format_value(row[self.key])


@dataclass(frozen=True)
class TableCell:
    """What a page shows of a row's value: text, the address it leads to, classes of the style sheet."""

    text: str
    link: str
    css_class: str


@dataclass(frozen=True)
class DataTable:
    """Rows with what they are called.

    Attributes:
        name: by which programs ask for it; unique on a page.
        caption: above it.
        columns: in their order; the first one names its row.
        rows: each has a value for the key of every column.
        empty: one sentence for people when there are no rows.
        note: beneath it, e.g. of a limit.
    """

    name: str
    caption: str
    columns: tuple[TableColumn, ...]
    rows: Sequence[Row]
    empty_text: str = "Nothing."
    note: str = ""

    @cached_property
    def shown_columns(self) -> tuple[TableColumn, ...]:
        """The columns that people see."""
        return tuple(column for column in self.columns if not column.hidden)

    def row_cells(self, row: Row) -> list[TableCell]:
        """What people see of a row."""
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
        """The columns that people see, with the classes that all their cells have."""
        return [
            (column, " ".join(["number"] * column.is_number + ["long"] * column.is_long))
            for column in self.shown_columns
        ]

    def plain_rows(self) -> list[dict[str, Any]]:
        """The rows for programs: values as they are, by key."""
        return [{column.key: row[column.key] for column in self.columns} for row in self.rows]

    def to_csv(self) -> str:
        """The same as CSV with a line of keys; lists and objects are JSON, what is not known is empty."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([column.key for column in self.columns])
        writer.writerows([_csv_value(value) for value in row.values()] for row in self.plain_rows())
        return stream.getvalue()


def _csv_value(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else value
