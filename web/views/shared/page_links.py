"""Links to the current page with other parameters."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

#: Parameter that asks for a chart of the page as a file.
DRAWING = "drawing"
#: Parameters for parts of a page; links to the page leave them out.
PARTIAL_PARAMETERS = ("part", "version", DRAWING)


def link_to_same_page(request: Request, **changes: Any) -> str:
    """URL of the current page with changed parameters; None removes a parameter."""
    removed = {*changes, *PARTIAL_PARAMETERS}
    kept = [
        (name, value) for name, value in request.query_params.multi_items() if name not in removed
    ]
    new = [(name, value) for name, value in changes.items() if value is not None]
    return f"?{urlencode([*kept, *new])}"
