"""Page numbers of long lists."""

from __future__ import annotations

import re

from starlette.requests import Request

from treehammer.errors import ConfigError


def parse_page_number(request: Request) -> int:
    """Read the page number, counted from 1, from a request.

    Raises:
        ConfigError: it is not a positive number of at most six digits.
    """
    text = request.query_params.get("page", "1")
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise ConfigError(f"page must be a positive number, not {text[:40]!r}")
    return int(text)


def count_pages(count: int, size: int) -> int:
    """Return the number of pages for ``count`` items, at least one."""
    return max(-(-count // size), 1)


def past_last_page_text(page: int, last: int) -> str:
    """Return a sentence for a page number beyond the last page, '' otherwise."""
    return f"Page {page} does not exist; the last page is {last}." if page > last else ""
