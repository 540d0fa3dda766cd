"""Pages of the results service."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from treehammer.web.page import Page


def load_pages() -> list[Page]:
    """Import the modules of this package, and return the pages that they declare by position."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    pages = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Page) and value.build.__module__ == module.__name__
    ]
    return sorted(pages, key=lambda page: page.position)
