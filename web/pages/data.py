"""What the pages show, for programs: the same questions at addresses that have a version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.collectors.service import API
from treehammer.errors import ConfigError, did_you_mean
from treehammer.sql.store import Store
from treehammer.web.addresses import any_text
from treehammer.web.api import OPERATIONS, Operation
from treehammer.web.pages.context import CSV, JSON, Ask, PageContext, View, tables_answer


def routes(context: PageContext, asks: Mapping[str, Ask]) -> list[BaseRoute]:
    """An address for each operation; ``asks`` are the questions of pages by name of the route."""
    return [
        context.page(API + any_text(one.address), _data(asks[one.page], one), f"api-{one.name}")
        for one in OPERATIONS
    ]


def _data(ask: Ask, operation: Operation) -> Ask:
    def answer(store: Store, request: Request) -> Response:
        _check(request, operation)
        wanted = CSV if request.query_params.get("format") == CSV else JSON
        view = ask(store, _for_programs(request, wanted))
        assert isinstance(view, View)
        return tables_answer(view, request, wanted, about=_about(view, operation))

    return answer


def _for_programs(request: Request, wanted: str) -> Request:
    """The request as a page gets it that is asked for tables: then some tell more."""
    query = request.scope["query_string"]
    if "format" not in request.query_params:
        query = b"&".join(part for part in (query, f"format={wanted}".encode()) if part)
    return Request({**request.scope, "query_string": query}, request.receive)


def _check(request: Request, operation: Operation) -> None:
    """Hold the address against the description: a word that is spelt wrong would change the answer.

    Raises:
        ConfigError: it has a parameter that there is not, one twice, or another value than is described.
    """
    known = {one.name: one for one in operation.all_parameters if not one.path}
    sent = request.query_params
    for name, value in sent.multi_items():
        one = known.get(name)
        if one is None:
            words = [one.name for one in operation.named if not one.path]
            words += ["any column of the catalogue"] if operation.filters else []
            hint = f"{did_you_mean(name, known)}It has {', '.join(words)}."
            raise ConfigError(f"there is no parameter {name[:40]!r}", hint=hint)
        if len(sent.getlist(name)) > 1 and not one.many:
            raise ConfigError(f"{name} is said more than once")
        if not one.allows(value):
            raise ConfigError(f"{name} cannot be {value[:40]!r}", hint=one.meaning)


def _about(view: View, operation: Operation) -> dict[str, Any]:
    """What the page tells beside its tables.

    Raises:
        ConfigError: it has not been asked anything.
    """
    if not view.values.keys() >= set(operation.about):
        # Compare without a question is the list of comparisons, which has an address of its own.
        raise ConfigError(
            "nothing is compared",
            hint="Give a and b, or axis=selection with where_a and where_b; what was compared is "
            f"at {API}/comparisons.",
        )
    about = {name: view.values[name] for name in operation.about}
    if "facts" in about:
        about["facts"] = dict(about["facts"])
    if "news" in about:
        about["news"] = [one.text for one in about["news"]]
    if "progress" in about:
        about["progress"] = about["progress"].plain()
    return about
