"""Pages of the results service."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from treehammer.web.page import Page
from treehammer.web.page_query import PageOperation
from treehammer.web.page_service import PageModule


def load_pages() -> list[PageModule]:
    """Import the modules of this package, and return their pages by position."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    pages = [page for module in modules for page in _list_pages(module)]
    return sorted(pages, key=lambda page: page.position)


def _list_pages(module: ModuleType) -> Iterator[PageModule]:
    if hasattr(module, "PAGES"):
        yield module.PAGES
    for page in vars(module).values():
        if isinstance(page, Page) and page.build.__module__ == module.__name__:
            operations = tuple(
                PageOperation(
                    item.path,
                    item.name,
                    page.name,
                    item.summary,
                    item.tables,
                    item.query,
                    item.about,
                    item.always_about,
                )
                for item in page.operations
            )
            menu = {page.name: page.menu} if page.menu else {}

            def make_routes(context, page=page):  # type: ignore[no-untyped-def]
                return [context.declared_route(page)]

            yield PageModule(make_routes, page.position, menu, operations)
