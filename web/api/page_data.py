"""What the pages show, for programs: the same questions at addresses that have a version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.collectors.service_spec import API_PREFIX
from treehammer.errors import ConfigError, suggest_word
from treehammer.sql.write.store import Store
from treehammer.web.api.operations import OPERATIONS, Operation
from treehammer.web.core.route_paths import allow_any_text
from treehammer.web.views.shared.page_context import (
    CSV,
    JSON,
    PageContext,
    PageQuery,
    PageView,
    tables_response,
)


def routes(context: PageContext, asks: Mapping[str, PageQuery]) -> list[BaseRoute]:
    """An address for each operation; ``asks`` are the questions of pages by name of the route."""
    return [
        context.page_route(
            API_PREFIX + allow_any_text(one.path),
            _page_data(asks[one.page_route], one),
            f"api-{one.name}",
        )
        for one in OPERATIONS
    ]


def _page_data(ask: PageQuery, operation: Operation) -> PageQuery:
    def answer(store: Store, request: Request) -> Response:
        _check_parameters(request, operation)
        wanted = CSV if request.query_params.get("format") == CSV else JSON
        view = ask(store, _as_table_request(request, wanted))
        assert isinstance(view, PageView)
        return tables_response(view, request, wanted, about=_about_values(view, operation))

    return answer


def _as_table_request(request: Request, wanted: str) -> Request:
    """The request as a page gets it that is asked for tables: then some tell more."""
    query = request.scope["query_string"]
    if "format" not in request.query_params:
        query = b"&".join(part for part in (query, f"format={wanted}".encode()) if part)
    return Request({**request.scope, "query_string": query}, request.receive)


def _check_parameters(request: Request, operation: Operation) -> None:
    """Hold the address against the description: a word that is spelt wrong would change the answer.

    Raises:
        ConfigError: it has a parameter that there is not, one twice, or another value than is described.
    """
    known = {one.name: one for one in operation.all_parameters if not one.in_path}
    sent = request.query_params
    for name, value in sent.multi_items():
        one = known.get(name)
        if one is None:
            words = [one.name for one in operation.named_parameters if not one.in_path]
            words += ["any column of the catalogue"] if operation.filters else []
            hint = f"{suggest_word(name, known)}It has {', '.join(words)}."
            raise ConfigError(f"there is no parameter {name[:40]!r}", hint=hint)
        if len(sent.getlist(name)) > 1 and not one.repeatable:
            raise ConfigError(f"{name} is said more than once")
        if not one.allows(value):
            raise ConfigError(f"{name} cannot be {value[:40]!r}", hint=one.description)


def _about_values(view: PageView, operation: Operation) -> dict[str, Any]:
    """What the page tells beside its tables.

    Raises:
        ConfigError: it has not been asked anything.
    """
    if not view.values.keys() >= set(operation.about):
        # Compare without a question is the list of comparisons, which has an address of its own.
        raise ConfigError(
            "nothing is compared",
            hint="Give a and b, or axis=selection with where_a and where_b; what was compared is "
            f"at {API_PREFIX}/comparisons.",
        )
    about = {name: view.values[name] for name in operation.about}
    if "facts" in about:
        about["facts"] = dict(about["facts"])
    if "news" in about:
        about["news"] = [one.text for one in about["news"]]
    if "progress" in about:
        about["progress"] = about["progress"].as_dict()
    return about
