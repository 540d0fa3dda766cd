"""Pages of the results service."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treehammer.web.pages.page_context import PageModule


def load_pages() -> list[PageModule]:
    """Import the modules of this package, and return those with pages by position."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    pages = [module.PAGES for module in modules if hasattr(module, "PAGES")]
    return sorted(pages, key=lambda page: page.position)
