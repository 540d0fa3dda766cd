"""Error pages."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from treehammer.web.core.responses import AsciiJSONResponse
from treehammer.web.views.shared.page_context import PageContext, PageView, wants_html
from treehammer.web.views.sign_in.sign_in_page import sign_in_view

_STATUS_REMEDIES = {
    400: "Correct the address, or start from the overview.",
    404: "Check the spelling, or start from the overview.",
    405: "Pages support GET only.",
    500: "Report the time and the address to the operator of this service; its log has the details.",
    503: "No data is lost. Try again in a few seconds.",
}


def error_response(
    context: PageContext, request: Request, status: int, sentence: str, headers: Mapping[str, str]
) -> Response:
    """Answer an error with a page for browsers, with JSON otherwise."""
    if not wants_html(request):
        return AsciiJSONResponse({"error": sentence}, status, headers)
    if status == 401:
        return sign_in_view(context, request, sentence, headers)
    title = _status_phrase(status)
    values = {"sentence": sentence, "number": status, "remedy": _STATUS_REMEDIES.get(status, "")}
    response = context.render_html(PageView("error.html.j2", title, values, status=status), request)
    response.headers.update(headers)
    return response


def _status_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
