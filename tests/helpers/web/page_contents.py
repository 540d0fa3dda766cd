"""Contents of pages and reports: texts, links, fields, tables by name, charts, and printed numbers.

Numbers are compared with exact values to the precision of what is printed.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any


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


@dataclass(frozen=True)
class PageElement:
    """An element with text: its tag, text and attributes."""

    tag: str
    text: str
    attributes: dict[str, str]


class _PageParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[PageTable] = []
        self.elements: list[PageElement] = []
        self.fields: dict[str, list[str]] = {}
        self.words: list[str] = []
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self._is_program = self._is_unseen = False
        self._select = self._part = self._column = ""
        self._cells: list[PageCell] = []
        self._cell = PageCell("")
        self._text: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        assert not any(name.startswith("on") for name in values), values
        if tag == "option":
            values["select"] = self._select
        if tag in _TEXT_TAGS:
            self._open.append((tag, values, []))
        if tag in ("script", "style", "title"):
            self._is_program = True
        elif tag == "select":
            self._select = values.get("name", "")
            self.fields.setdefault(self._select, [])
        elif tag == "input" and "name" in values:
            self.fields.setdefault(values["name"], []).append(values.get("value", ""))
        elif tag == "span":
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
            tooltip = values.get("title", self._cell.tooltip)
            self._cell = replace(self._cell, link=values["href"], tooltip=tooltip)

    def handle_data(self, data: str) -> None:
        if self._is_program:
            return
        self.words.append(data)
        for _, _, words in self._open:
            words.append(data)
        if self._text is not None and not self._is_unseen:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1][0] == tag:
            _, attributes, words = self._open.pop()
            self.elements.append(PageElement(tag, _join(words), attributes))
            if "selected" in attributes:
                self.fields[self._select].append(attributes.get("value", _join(words)))
        if tag in ("script", "style", "title"):
            self._is_program = False
        elif tag == "span":
            self._is_unseen = False
        elif tag in ("td", "th") and self._text is not None:
            text, self._text = _join(self._text), None
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


_TEXT_TAGS = ("a", "h1", "h2", "h3", "li", "option", "p", "section", "summary")


def _join(words: list[str]) -> str:
    return " ".join("".join(words).split())


@dataclass(frozen=True)
class PageContents:
    """A page as its readers see it.

    Attributes:
        text: of the whole page, with single spaces.
        elements: headings, paragraphs, links and items, each where it ends.
        fields: name -> value of each input and of each selected option.
        tables: by name.
        charts: specifications that the page passes to Vega.
    """

    text: str
    elements: list[PageElement]
    fields: dict[str, list[str]]
    tables: dict[str, PageTable]
    charts: list[dict[str, Any]]

    @classmethod
    def parse(cls, page: str) -> PageContents:
        """Read a page.

        Raises:
            ValueError: a row has more or fewer cells than its table has headings.
        """
        parser = _PageParser()
        parser.feed(page)
        names = [table.name for table in parser.tables]
        assert "" not in names, "a table was not made by the table component"
        assert len(names) == len({*names}), names
        tables = {table.name: table for table in parser.tables}
        text = _join(parser.words)
        return cls(text, parser.elements, parser.fields, tables, load_charts(page))

    def list_texts(self, tag: str, css_class: str = "") -> list[str]:
        """List the texts of the elements with a tag, and with a class if given."""
        return [
            element.text
            for element in self.elements
            if element.tag == tag and css_class in ("", element.attributes.get("class"))
        ]

    def list_choices(self, name: str) -> dict[str, str]:
        """List the texts of the options of a select by their values."""
        return {
            element.attributes.get("value", element.text): element.text
            for element in self.elements
            if element.attributes.get("select") == name
        }

    def list_links(self, pattern: str = "") -> list[str]:
        """List the addresses of links that match a pattern from their beginning."""
        addresses = (e.attributes.get("href", "") for e in self.elements if e.tag == "a")
        return [address for address in addresses if re.match(pattern, address)]


def read_tables(page: str) -> dict[str, PageTable]:
    """Read the tables of a page by name."""
    return PageContents.parse(page).tables


def load_charts(page: str) -> list[dict[str, Any]]:
    """Load the specifications that a page passes to Vega."""
    specifications = re.findall(
        r'<div class="plot">.*?<script type="application/json">(.*?)</script>', page, re.DOTALL
    )
    return [json.loads(text) for text in specifications]


def list_marks(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """List the rows that a chart draws."""
    marks: list[dict[str, Any]] = chart["datasets"]["marks"]
    return marks


def list_names(chart: dict[str, Any], kind: str) -> list[str]:
    """List the names of ``panels``, ``places`` or ``series``."""
    (values,) = [parameter["value"] for parameter in chart["params"] if parameter["name"] == kind]
    return list(values)


#: Symbol of a unit -> its size in the unit of the record.
UNIT_SIZES = {
    "ns": 1e-9,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "%": 0.01,
    "bytes": 1.0,
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "kHz": 1e3,
    "MHz": 1e6,
    "GHz": 1e9,
}
_NUMBER = re.compile(
    r"([+−-]?)([\d,]+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(bytes|min|[nµm]?s\b|%|[kMG]?B\b|[kMG]Hz)?"
)
_HEADING_UNIT = re.compile(r", (ms|s|MB|kB)(?:/event)?$|\((s|ms)\)$|^(?:difference|RMS), (%)$")


def find_heading_unit(heading: str) -> str:
    """Find the unit in a heading such as ``CPU, ms/event``; '' for none."""
    match = _HEADING_UNIT.search(heading)
    return next(filter(None, match.groups())) if match else ""


def parse_numbers(text: str, unit: str = "") -> list[tuple[float, float]]:
    """Parse all numbers of a text: value in the record's unit, and half of the last printed digit.

    Args:
        text: of a cell.
        unit: of numbers that are printed without one.
    """
    numbers = []
    for sign, digits, printed_unit in _NUMBER.findall(text):
        mantissa, _, exponent = digits.replace(",", "").partition("e")
        size = UNIT_SIZES[printed_unit or unit] if printed_unit or unit else 1.0
        step = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        value = float(mantissa) * 10.0 ** int(exponent or 0)
        numbers.append((size * (-value if sign in ("−", "-") else value), 0.5 * size * step))
    return numbers


def agrees_with(text: str, value: float | None, unit: str = "") -> bool:
    """Return whether the first number of a text is a value, rounded; a dash stands for None."""
    if value is None or math.isnan(value):
        return not parse_numbers(text) or text == "–"
    numbers = parse_numbers(text, unit)
    return bool(numbers) and abs(numbers[0][0] - value) <= numbers[0][1] + 1e-9 * abs(value)
