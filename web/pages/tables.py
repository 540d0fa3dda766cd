"""Tables of pages: what people see, and the same as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from treehammer.web.templating import cell

Row = Mapping[str, Any]

#: Rows of a long table that a page shows; CSV and JSON have all.
SHOWN = 250


@dataclass(frozen=True)
class Column:
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
    show: Callable[[Any], str] = cell
    write: Callable[[Row], str] | None = None
    number: bool = False
    long: bool = False
    link: Callable[[Row], str] = field(default=lambda _: "")
    look: Callable[[Row], str] = field(default=lambda _: "")
    hidden: bool = False

    def text(self, row: Row) -> str:
        """What people read in a row's cell."""
        return self.write(row) if self.write else self.show(row[self.key])


@dataclass(frozen=True)
class Cell:
    """What a page shows of a row's value: text, the address it leads to, classes of the style sheet."""

    text: str
    link: str
    look: str


@dataclass(frozen=True)
class Table:
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
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    empty: str = "Nothing."
    note: str = ""

    @cached_property
    def shown(self) -> tuple[Column, ...]:
        """The columns that people see."""
        return tuple(column for column in self.columns if not column.hidden)

    def cells(self, row: Row) -> list[Cell]:
        """What people see of a row."""
        return [
            Cell(
                column.text(row),
                column.link(row),
                " ".join(filter(None, (fixed, column.look(row)))),
            )
            for column, fixed in self._fixed
        ]

    @cached_property
    def _fixed(self) -> list[tuple[Column, str]]:
        """The columns that people see, with the classes that all their cells have."""
        return [
            (column, " ".join(name for name in ("number", "long") if getattr(column, name)))
            for column in self.shown
        ]

    def plain(self) -> list[dict[str, Any]]:
        """The rows for programs: values as they are, by key."""
        return [{column.key: row[column.key] for column in self.columns} for row in self.rows]

    def csv(self) -> str:
        """The same as CSV with a line of keys; lists and objects are JSON, what is not known is empty."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([column.key for column in self.columns])
        writer.writerows([_csv_value(value) for value in row.values()] for row in self.plain())
        return stream.getvalue()


def _csv_value(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else value
