"""Responses with figures as files."""

from __future__ import annotations

from starlette.responses import Response

from treehammer.web.figures.drawing import FIGURE_FORMATS


def make_figure_response(name: str, form: str, content: bytes) -> Response:
    """Make the response of a file; pictures are shown, other formats downloaded."""
    disposition = "inline" if form in ("png", "svg") else "attachment"
    headers = {
        "Content-Disposition": f'{disposition}; filename="{name}.{form}"',
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
        "Cache-Control": "no-store",
    }
    return Response(content, headers=headers, media_type=FIGURE_FORMATS[form])
