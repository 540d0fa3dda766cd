"""Pages of the results service, answered in this process instead of through a port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.routing import Match, Route

from treehammer.collectors.job_spec import API_PREFIX
from treehammer.config import Settings
from treehammer.errors import StoreError
from treehammer.sql.core.access_keys import MasterKeys
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.core.responses import RequestRefusedError
from treehammer.web.pages import load_pages
from treehammer.web.service.app import PageRoutes

#: Seconds that the queries of a page may take: nobody waits for it.
_QUERY_SECONDS = 3600


@dataclass(frozen=True)
class PageReader:
    """Reads the pages of a database."""

    app: Starlette
    runner: asyncio.Runner

    def find_page(self, address: str) -> str:
        """Return the name of the page at an address; '' without one."""
        return self._match_route(address)[0]

    def read_document(self, address: str) -> dict[str, Any]:
        """Read the tables of a page, and the values beside them, as its operation returns them."""
        name, parts = self._match_route(address)
        operation = next(page for page in load_pages() if page.name == name).operations[0]
        path = operation.path
        for part, value in parts.items():
            path = path.replace(f"{{{part}}}", quote(str(value), safe=""))
        _, mark, query = address.partition("?")
        document: dict[str, Any] = json.loads(self.read(f"{API_PREFIX}{path}{mark}{query}"))
        return document

    def _match_route(self, address: str) -> tuple[str, Mapping[str, Any]]:
        """Return the name of the page at an address, and the parts of its path."""
        path = unquote(address.partition("?")[0])
        scope = {"type": "http", "method": "GET", "path": path, "root_path": ""}
        for route in self.app.routes:
            if isinstance(route, Route):
                match, child = route.matches(scope)
                if match is Match.FULL:
                    return route.name, child["path_params"]
        return "", {}

    def read(self, address: str) -> bytes:
        """Read the content at an address.

        Raises:
            StoreError: the page cannot be made.
        """
        try:
            status, body = self.runner.run(_answer(self.app, address))
        except RequestRefusedError as error:
            raise StoreError(f"this page cannot be made: {error}", where=address) from error
        if status != 200:
            raise StoreError(f"this page cannot be made: status {status}", where=address)
        return body


@contextmanager
def open_pages(url: str, settings: Settings) -> Iterator[PageReader]:
    """Open the pages of a database for reading."""
    database = LiveDatabase(url)
    # Pages neither link a manual nor look for one: a published site is complete by itself.
    settings = replace(settings, serve_query_seconds=_QUERY_SECONDS, serve_docs="")
    access = AccessControl(database.load_access, MasterKeys(b""), reading_open=True)
    app = Starlette(routes=PageRoutes(database, access, settings).routes)
    try:
        with asyncio.Runner() as runner:
            yield PageReader(app, runner)
    finally:
        database.close()


async def _answer(app: Starlette, address: str) -> tuple[int, bytes]:
    """Answer a request for an address; return the status and the body."""
    path, _, query = address.partition("?")
    messages: list[Mapping[str, Any]] = []
    requests = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in requests:
            return message
        await asyncio.Event().wait()  # Nobody disconnects.
        return {}

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote(path),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"accept", b"text/html")],
        "scheme": "https",
        "server": ("localhost", 443),
        "client": None,
        "http_version": "1.1",
    }
    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in messages)
    return int(messages[0]["status"]), body
