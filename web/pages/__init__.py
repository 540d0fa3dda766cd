"""Pages of the results service: the modules here, and those in ``pages`` of each vertical."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from treehammer.verticals import import_parts
from treehammer.web.page import Page


def load_pages() -> list[Page]:
    """Import the modules of these packages, and return the pages that they declare by position."""
    folders = {
        __name__: __path__,
        **{part.__name__: part.__path__ for part in import_parts("pages")},
    }
    modules = [
        import_module(f"{package}.{module.name}")
        for package, path in folders.items()
        for module in iter_modules(path)
    ]
    pages = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Page) and value.build.__module__ == module.__name__
    ]
    return sorted(pages, key=lambda page: page.position)
