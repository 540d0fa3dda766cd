"""Links from pages to figures of their measurements, which verticals draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treehammer.sql.read.reader import ResultsReader
from treehammer.verticals import import_parts
from treehammer.web.sections import Link

#: What a page or row shows: columns with their values, ``campaign``, ``where``, ``metric``, ``from``, ``to``.
Shown = Mapping[str, Any]


def list_figure_links(page: str, store: ResultsReader, shown: Shown) -> list[Link]:
    """List the links of a page, named by its route, to figures of what it shows."""
    parts = import_parts("figure_links")
    return [link for part in parts for link in part.list_links(page, store, shown)]


def make_figure_linker() -> Callable[[Sequence[str], Shown], str]:
    """Make a function that links to measurements, grouped by one or two columns; '' without a figure."""
    for part in import_parts("figure_links"):
        link: Callable[[Sequence[str], Shown], str] = part.link_figure
        return link
    return lambda by, shown: ""
