"""Links from pages to figures of their measurements, which verticals draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treehammer.sql.read.reader import ResultsReader
from treehammer.verticals import import_parts
from treehammer.web.sections import Link

#: Measurements of a page or row: columns with their values, ``campaign``, ``where``, ``metric``, ``from``, ``to``.
FigureParameters = Mapping[str, Any]


def list_figure_links(page: str, store: ResultsReader, parameters: FigureParameters) -> list[Link]:
    """List the links of a page, named by its route, to figures of what it shows."""
    parts = import_parts("figure_links")
    return [link for part in parts for link in part.list_links(page, store, parameters)]


def make_figure_linker() -> Callable[[Sequence[str], FigureParameters], str]:
    """Make a function that links to measurements, grouped by one or two columns; '' without a figure."""
    for part in import_parts("figure_links"):
        link: Callable[[Sequence[str], FigureParameters], str] = part.link_figure
        return link
    return lambda by, parameters: ""
