"""Error pages, and signing in where reading requires a key."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from treehammer.web.core.auth import READER_COOKIE, require_read_grant
from treehammer.web.core.responses import AsciiJSONResponse, RequestRefusedError
from treehammer.web.views.shared.page_context import PageContext, PageView, wants_html

#: Larger forms are refused.
_MAX_FORM_BYTES = 8192
#: Seconds for which a browser keeps a token.
_COOKIE_AGE_S = 30 * 86400

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
        return _sign_in_page(
            context, request, sentence, headers, request.url.path, request.url.query
        )
    title = _status_phrase(status)
    values = {"sentence": sentence, "number": status, "remedy": _STATUS_REMEDIES.get(status, "")}
    response = context.render_html(PageView("error.html.j2", title, values, status=status), request)
    response.headers.update(headers)
    return response


def routes(context: PageContext) -> list[BaseRoute]:
    """Routes for signing in and out."""

    async def sign_in(request: Request) -> Response:
        form = await _read_form(request)
        target = _local_target(form.get("next", ""), request)
        try:
            require_read_grant(
                await context.access_control.grant_for_token(form.get("token", "").strip())
            )
        except RequestRefusedError as refusal:
            if refusal.status == 503:
                raise
            path, _, query = target.partition("?")
            sentence = str(refusal)
            return _sign_in_page(context, request, sentence, refusal.headers, path, query)
        response = RedirectResponse(target, 303, headers={"Cache-Control": "no-store"})
        response.set_cookie(
            READER_COOKIE,
            form["token"].strip(),
            max_age=_COOKIE_AGE_S,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
            path=request.scope.get("root_path", "") or "/",
        )
        return response

    async def sign_out(request: Request) -> Response:
        response = RedirectResponse(_local_target("", request), 303)
        response.delete_cookie(READER_COOKIE, path=request.scope.get("root_path", "") or "/")
        return response

    return [
        Route("/sign-in", sign_in, name="sign-in", methods=["POST"]),
        Route("/sign-out", sign_out, name="sign-out", methods=["POST"]),
    ]


def _sign_in_page(
    context: PageContext,
    request: Request,
    sentence: str,
    headers: Mapping[str, str],
    path: str,
    query: str,
) -> Response:
    values = {
        "sentence": sentence,
        "target": f"{path}?{query}" if query else path,
        "tried": request.method == "POST" or READER_COOKIE in request.cookies,
    }
    view = PageView("sign_in.html.j2", "Reading needs a key", values, status=401)
    response = context.render_html(view, request)
    response.headers.update(headers)
    return response


async def _read_form(request: Request) -> dict[str, str]:
    """Read a small URL-encoded form.

    Raises:
        RequestRefusedError: the form is too long or malformed.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_FORM_BYTES:
            raise RequestRefusedError(413, "the form is too long")
    try:
        fields = parse_qs(body.decode("ascii"), errors="strict", max_num_fields=10)
    except ValueError:
        raise RequestRefusedError(400, "the form cannot be read") from None
    return {name: values[0] for name, values in fields.items()}


def _local_target(target: str, request: Request) -> str:
    """Return ``target`` if it is a path on this service, otherwise the overview."""
    is_local = (
        target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    )
    return target if is_local else request.scope.get("root_path", "") + "/"


def _status_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
