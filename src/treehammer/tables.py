"""Tables shown on pages and exported as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

from markupsafe import Markup, escape

from treehammer.text_formatting import format_cell, pluralize

Row = Mapping[str, Any]

#: Rows of a long table shown on a page; CSV and JSON hold all.
MAX_SHOWN_ROWS = 100


@dataclass(frozen=True)
class TableColumn:
    """One column of a table.

    Attributes:
        key: key of the value in each row.
        title: column heading.
        format_value: formats the value for readers; of None they see a dash.
        format_row: formats the cell from the whole row instead.
        is_number: align right.
        is_long: allow line breaks.
        link: URL of a cell, '' for none.
        css_class: CSS class of a cell, '' for none.
        detail: second, quiet line of a cell, '' for none.
        bar: share from 0 to 1, drawn as a bar before the text; None for no bar.
        sort_key: key of the value to sort by, if ``key`` holds formatted text.
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
    detail: Callable[[Row], str] = field(default=lambda _: "")
    bar: Callable[[Row], float | None] = field(default=lambda _: None)
    sort_key: str = ""
    hidden: bool = False

    def cell_text(self, row: Row) -> str:
        """Return the text of a row's cell."""
        if self.format_row:
            return self.format_row(row)
        value = row[self.key]
        return "–" if value is None else self.format_value(value)

    def cell_class(self, row: Row) -> str:
        """Return the CSS classes of a row's cell."""
        zero = "zero" if self.is_number and row[self.key] == 0 else ""
        return " ".join(filter(None, (self.column_class, zero, self.css_class(row))))

    @cached_property
    def column_class(self) -> str:
        """CSS classes common to all cells of the column."""
        return " ".join(["number"] * self.is_number + ["long"] * self.is_long)

    def render_cell(self, row: Row, *, is_heading: bool = False) -> str:
        """Render a row's cell as HTML."""
        name, scope = ("th", ' scope="row"') if is_heading else ("td", "")
        css_class, link, detail, bar = (
            self.cell_class(row),
            self.link(row),
            self.detail(row),
            self.bar(row),
        )
        text = escape(self.cell_text(row))
        return "".join(
            (
                f"<{name}{scope}",
                f' class="{escape(css_class)}">' if css_class else ">",
                "" if bar is None else _BAR.format(bar),
                f'<a href="{escape(link)}">{text}</a>' if link else text,
                f'<span class="why">{escape(detail)}</span>' if detail else "",
                f"</{name}>",
            )
        )


def hidden_columns(*keys: str) -> tuple[TableColumn, ...]:
    """Build columns that are exported but not shown."""
    return tuple(TableColumn(key, hidden=True) for key in keys)


_BAR = '<progress max="1" value="{}" aria-hidden="true"></progress> '


class LazyRows(Sequence[Row]):
    """Rows that are built when they are read: pages show few of many.

    Args:
        items: one for each row.
        build_row: builds the row of an item.
    """

    def __init__(self, items: Sequence[Any], build_row: Callable[[Any], Row]) -> None:
        self._items = items
        self._build_row = build_row

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self._build_row(item) for item in self._items[index]]
        return self._build_row(self._items[index])


@dataclass(frozen=True)
class DataTable:
    """A table with its caption, columns and rows.

    Attributes:
        name: unique on a page; selects the table for export.
        caption: shown above the table.
        columns: in order; the first is the row heading.
        rows: with a value for every column's key.
        empty_text: sentence shown if the table has no rows.
        note: shown below.
        max_rows: rows shown on a page; CSV and JSON hold all.
        newest: show the last rows instead of the first ones, along a time axis.
        is_arrangeable: readers can sort and filter; not for one page of a longer list.
        arranged_from: all rows in the table's own order, if a reader arranged them.
    """

    name: str
    caption: str
    columns: tuple[TableColumn, ...]
    rows: Sequence[Row]
    empty_text: str = "No entries."
    note: str = ""
    max_rows: int | None = None
    newest: bool = False
    is_arrangeable: bool = True
    arranged_from: Sequence[Row] | None = None

    @property
    def count(self) -> int:
        """Number of rows before a reader's filter."""
        return len(self.rows if self.arranged_from is None else self.arranged_from)

    @cached_property
    def shown_rows(self) -> Sequence[Row]:
        """Rows shown on a page."""
        if self.max_rows is None or len(self.rows) <= self.max_rows:
            return self.rows
        from_end = self.newest and self.arranged_from is None
        return self.rows[-self.max_rows :] if from_end else self.rows[: self.max_rows]

    @property
    def shown_note(self) -> str:
        """Note with the number of rows that are not shown."""
        if len(self.shown_rows) == len(self.rows):
            return self.note
        end = "Last" if self.newest and self.arranged_from is None else "First"
        of_all = pluralize(len(self.rows), "row")
        return f"{self.note} {end} {self.max_rows} of {of_all}; CSV and JSON hold all.".strip()

    @cached_property
    def shown_columns(self) -> tuple[TableColumn, ...]:
        """Columns that are not hidden."""
        return tuple(column for column in self.columns if not column.hidden)

    def render_row(
        self, row: Row, beside: str = "", render_beside: Callable[[Row], str] | None = None
    ) -> Markup:
        """Render the shown cells of a row as HTML.

        In Python, because a template takes twice the time for thousands of cells.

        Args:
            row: one of the rows.
            beside: key of the column that has another cell beside it.
            render_beside: renders that cell.
        """
        cells = []
        for place, column in enumerate(self.shown_columns):
            cells.append(column.render_cell(row, is_heading=place == 0))
            if render_beside and column.key == beside:
                cells.append(render_beside(row))
        return Markup("\n".join(cells))  # noqa: S704

    def plain_rows(self) -> list[dict[str, Any]]:
        """Return rows for export: raw values by key."""
        return [{column.key: row[column.key] for column in self.columns} for row in self.rows]

    def to_csv(self) -> str:
        """Write the table as CSV, see :func:`format_csv`."""
        return format_csv(self.plain_rows(), [column.key for column in self.columns])


def format_csv(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """Write rows as CSV under the names of their keys; lists and mappings become JSON, None is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _csv_value(value) for key, value in row.items()} for row in rows)
    return stream.getvalue()


def _csv_value(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, Mapping | list | tuple) else value
