"""Tables of pages, reports, terminal and exports.

A column owns its heading, format and cell, so that no heading can stand over another column's cells.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, overload

from markupsafe import Markup, escape

from treehammer.text_formatting import format_cell, pluralize

Row = Mapping[str, Any]

#: Rows of a long table shown on a page, and of any table; CSV and JSON hold all.
MAX_SHOWN_ROWS, MAX_PAGE_ROWS = 100, 500


@dataclass(frozen=True)
class TableColumn:
    """One column of a table.

    Attributes:
        key: key of the value in each row.
        title: column heading.
        address: URL of the heading, '' for none; tables that readers can sort use their own.
        tooltip: of the heading; '' names the key if the title is another.
        format_value: formats the value for readers; of None they see a dash.
        format_row: formats the cell from the whole row instead.
        is_number: align right.
        is_long: allow line breaks.
        link: URL of a cell, '' for none.
        css_class: CSS class of a cell, '' for none.
        detail: second, quiet line of a cell, '' for none.
        bar: share from 0 to 1, drawn as a bar before the text; None for no bar.
        cell_tooltip: tooltip of a cell, '' for none.
        draw: returns an object that renders a cell as HTML, in place of its text; such a column is not
            exported.
        is_low_first: the first click on the heading sorts the smallest number first, as it is the worst.
        sort_key: key of the value to sort by, if ``key`` holds formatted text.
        hidden: exported but not shown.
        value: gets the value of an item, or names its attribute such as ``name`` or ``entry.name``, for
            :func:`build_table`; by default the attribute of the key.
    """

    key: str
    title: str = ""
    value: str | Callable[[Any], Any] = field(default="", kw_only=True)
    address: str = field(default="", kw_only=True)
    tooltip: str = field(default="", kw_only=True)
    format_value: Callable[[Any], str] = format_cell
    format_row: Callable[[Row], str] | None = None
    is_number: bool = False
    is_long: bool = False
    link: Callable[[Row], str] = field(default=lambda _: "")
    css_class: Callable[[Row], str] = field(default=lambda _: "")
    detail: Callable[[Row], str] = field(default=lambda _: "")
    bar: Callable[[Row], float | None] = field(default=lambda _: None)
    cell_tooltip: Callable[[Row], str] = field(default=lambda _: "")
    draw: Callable[[Row], Any] | None = None
    is_low_first: bool = False
    sort_key: str = ""
    hidden: bool = False

    def get_value(self, item: Any) -> Any:
        """Return the value of an item."""
        return (self.value if callable(self.value) else attrgetter(self.value or self.key))(item)

    def cell_text(self, row: Row) -> str:
        """Return the text of a row's cell."""
        if self.format_row:
            return self.format_row(row)
        value = row[self.key]
        return "–" if value is None else self.format_value(value)

    @cached_property
    def column_class(self) -> str:
        """CSS classes common to all cells of the column."""
        classes = {"number": self.is_number, "long": self.is_long}
        return " ".join(name for name, applies in classes.items() if applies)

    def render_cell(self, row: Row, *, is_heading: bool) -> str:
        """Render a row's cell as HTML."""
        name, scope = ("th", ' scope="row"') if is_heading else ("td", "")
        zero = "zero" if self.is_number and row[self.key] == 0 else ""
        css_class = " ".join(filter(None, (self.column_class, zero, self.css_class(row))))
        tooltip = self.cell_tooltip(row)
        return "".join(
            (
                f"<{name}{scope}",
                f' class="{escape(css_class)}"' if css_class else "",
                f' title="{escape(tooltip)}">' if tooltip else ">",
                escape(self.draw(row)) if self.draw else self._render_text(row),
                f"</{name}>",
            )
        )

    def _render_text(self, row: Row) -> str:
        link, detail, bar = self.link(row), self.detail(row), self.bar(row)
        text: str = escape(self.cell_text(row))
        if link:
            text = f'<a href="{escape(link)}">{text}</a>'
        why = f'<span class="why">{escape(detail)}</span>' if detail else ""
        return f"{'' if bar is None else _BAR.format(bar)}{text}{why}"


def format_finding(row: Row) -> str:
    """Format the finding of a check with its remedy."""
    finding, remedy = str(row["finding"]), row["remedy"]
    return f"{finding.rstrip('.')}. {remedy}" if remedy else finding


def titled_columns(**titles: str) -> tuple[TableColumn, ...]:
    """Build columns by key with their titles."""
    return tuple(TableColumn(key, title) for key, title in titles.items())


def hidden_columns(*keys: str) -> tuple[TableColumn, ...]:
    """Build columns that are exported but not shown."""
    return tuple(TableColumn(key, hidden=True) for key in keys)


_BAR = '<progress max="1" value="{}" aria-hidden="true"></progress> '


@dataclass(frozen=True, eq=False)
class LazyRows(Sequence[Row]):
    """Rows that are built, each of one item, when they are read: pages show few of many."""

    items: Sequence[Any]
    build_row: Callable[[Any], Row]

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self.build_row(item) for item in self.items[index]]
        return self.build_row(self.items[index])


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
        is_exported: the page offers it as CSV and JSON.
        look: CSS classes: of a list, or of a matrix of small cells.
        groups: headings above those of the columns, each with the number of columns it spans.
    """

    name: str
    caption: str
    columns: tuple[TableColumn, ...]
    rows: Sequence[Row]
    empty_text: str = "No entries."
    note: str = ""
    max_rows: int = MAX_PAGE_ROWS
    newest: bool = False
    is_arrangeable: bool = True
    arranged_from: Sequence[Row] | None = None
    is_exported: bool = True
    look: str = "listing"
    groups: Sequence[tuple[str, int]] = ()

    @property
    def count(self) -> int:
        """Number of rows before a reader's filter."""
        return len(self.rows if self.arranged_from is None else self.arranged_from)

    @cached_property
    def shown_rows(self) -> Sequence[Row]:
        """Rows shown on a page."""
        if len(self.rows) <= self.max_rows:
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

    @property
    def text_columns(self) -> tuple[TableColumn, ...]:
        """Columns that readers can sort and filter by."""
        return tuple(column for column in self.shown_columns if not column.draw)

    def render_row(self, row: Row) -> Markup:
        """Render the shown cells of a row as HTML.

        In Python, because a template takes twice the time for thousands of cells.
        """
        cells = (
            column.render_cell(row, is_heading=place == 0)
            for place, column in enumerate(self.shown_columns)
        )
        return Markup("\n".join(cells))  # noqa: S704

    def plain_rows(self) -> list[dict[str, Any]]:
        """Return rows for export: raw values by key."""
        keys = self._exported_keys
        return [{key: row[key] for key in keys} for row in self.rows]

    def to_csv(self) -> str:
        """Write the table as CSV, see :func:`format_csv`."""
        return format_csv(self.plain_rows(), self._exported_keys)

    @property
    def _exported_keys(self) -> list[str]:
        return [column.key for column in self.columns if not column.draw]


def build_table(
    name: str, caption: str, columns: Sequence[TableColumn], items: Iterable[Any], **options: Any
) -> DataTable:
    """Build a table with a row for each item, whose values the columns get.

    Args:
        name: of the table.
        caption: of the table.
        columns: in order; columns that are drawn get no value.
        items: of any type.
        options: further attributes of :class:`DataTable`.
    """
    valued = [column for column in columns if not column.draw]
    rows = [{column.key: column.get_value(item) for column in valued} for item in items]
    return DataTable(name, caption, tuple(columns), rows, **options)


def format_csv(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """Write rows as CSV under the names of their keys; lists and mappings become JSON, None is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, keys, lineterminator="\n")
    writer.writeheader()
    nested = (Mapping, list, tuple)
    for row in rows:
        writer.writerow(
            {k: json.dumps(v, default=str) if isinstance(v, nested) else v for k, v in row.items()}
        )
    return stream.getvalue()
