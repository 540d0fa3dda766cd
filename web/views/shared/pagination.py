"""Page numbers of long lists."""

from __future__ import annotations

import re

from starlette.requests import Request

from treehammer.errors import ConfigError


def parse_page_number(request: Request) -> int:
    """Which page of a long list is asked for, from 1.

    Raises:
        ConfigError: it is no such number.
    """
    text = request.query_params.get("page", "1")
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise ConfigError(f"page must be a number from 1 on, not {text[:40]!r}")
    return int(text)


def count_pages(count: int, each: int) -> int:
    """How many pages there are, at least one."""
    return max(-(-count // each), 1)


def past_last_page_text(page: int, many: int) -> str:
    """A sentence for a page after the last one; '' for one that there is."""
    return f"There is no page {page}; the last one is page {many}." if page > many else ""
