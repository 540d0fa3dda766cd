"""Tables of pages and reports, read by the names of their columns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html.parser import HTMLParser


@dataclass(frozen=True)
class PageCell:
    """A cell: its text, CSS classes, the address of its link and its tooltip; '' for none."""

    text: str
    css_class: str = ""
    link: str = ""
    tooltip: str = ""


@dataclass
class PageTable:
    """A table of a page.

    Attributes:
        name: name of the table.
        columns: name of each column and its heading.
        cells: cells of each row by the name of their column, without text for screen readers.
    """

    name: str
    columns: dict[str, str] = field(default_factory=dict)
    cells: list[dict[str, PageCell]] = field(default_factory=list)

    @property
    def rows(self) -> list[dict[str, str]]:
        """Texts of each row by the name of their column."""
        return [{name: cell.text for name, cell in row.items()} for row in self.cells]

    def column(self, name: str) -> list[str]:
        """Return the texts of a column."""
        return [row[name] for row in self.rows]


class _TableParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[PageTable] = []
        self._cells: list[PageCell] = []
        self._part = self._column = ""
        self._cell = PageCell("")
        self._text: list[str] | None = None
        self._is_unseen = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "span":
            self._is_unseen = values.get("class") == "unseen"
        elif tag == "table":
            self.tables.append(PageTable(values.get("data-table", "")))
        elif tag in ("thead", "tbody"):
            self._part = tag
        elif tag == "tr":
            self._cells = []
        elif tag in ("td", "th"):
            self._text, self._column = [], values.get("data-column", "")
            self._cell = PageCell("", values.get("class", ""), "", values.get("title", ""))
        elif tag == "a" and self._text is not None:
            self._cell = replace(
                self._cell,
                link=values["href"],
                tooltip=values.get("title", self._cell.tooltip),
            )

    def handle_data(self, data: str) -> None:
        if self._text is not None and not self._is_unseen:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self._is_unseen = False
        elif tag in ("td", "th") and self._text is not None:
            text, self._text = " ".join("".join(self._text).split()), None
            if self._part == "thead" and self._column:
                assert self._column not in self.tables[-1].columns, self._column
                self.tables[-1].columns[self._column] = text
            elif self._part == "tbody":
                self._cells.append(replace(self._cell, text=text))
        elif tag == "tr" and self._part == "tbody":
            table = self.tables[-1]
            # A single cell holds the sentence that no row matches a filter.
            if len(self._cells) > 1 or len(table.columns) == 1:
                table.cells.append(dict(zip(table.columns, self._cells, strict=True)))


def read_tables(page: str) -> dict[str, PageTable]:
    """Read the tables of a page by name.

    Raises:
        ValueError: a row has more or fewer cells than the table has headings.
    """
    parser = _TableParser()
    parser.feed(page)
    names = [table.name for table in parser.tables]
    assert "" not in names, "a table was not made by the table component"
    assert len(names) == len({*names}), names
    return {table.name: table for table in parser.tables}
