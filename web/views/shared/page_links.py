"""Links to the current page with other parameters."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from treehammer.sql.read.measurement_selection import Condition

#: Parameter that asks for a chart of the page as a file.
DRAWING = "drawing"
#: Parameters for parts of a page; links to the page leave them out.
PARTIAL_PARAMETERS = ("part", "version", DRAWING)


@lru_cache(maxsize=20_000)
def encode_condition(condition: Condition) -> str:
    """Write a condition as parameters of a URL; rows of a table share most of theirs."""
    return urlencode([("where", text) for text in condition.texts])


def link_to_same_page(request: Request, **changes: Any) -> str:
    """Return the URL of the current page with changed parameters; None removes a parameter."""
    removed = {*changes, *PARTIAL_PARAMETERS}
    unchanged = [
        (name, value) for name, value in request.query_params.multi_items() if name not in removed
    ]
    new = [(name, value) for name, value in changes.items() if value is not None]
    return f"?{urlencode([*unchanged, *new])}"
