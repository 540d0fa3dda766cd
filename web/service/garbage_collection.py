"""Garbage collection between requests instead of within a page.

A page holds tens of thousands of objects with few reference cycles. A collection in the midst of it
would visit all of them for nothing, in up to 80 ms.
"""

from __future__ import annotations

import gc

from starlette.types import ASGIApp, Receive, Scope, Send

#: New objects after which garbage is collected: while no request is handled, and while one is.
IDLE_OBJECTS, BUSY_OBJECTS = 5_000, 200_000
#: Collections of a generation before one of the next.
_GENERATIONS = (20, 20)


class GarbageCollection:
    """Collects garbage while no request is handled, or after very many new objects.

    Args:
        app: handles the requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._active = 0
        # Loaded modules are never garbage: exempt them from collections.
        gc.collect()
        gc.freeze()
        gc.set_threshold(IDLE_OBJECTS, *_GENERATIONS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._active += 1
        gc.set_threshold(BUSY_OBJECTS, *_GENERATIONS)
        try:
            await self._app(scope, receive, send)
        finally:
            self._active -= 1
            if not self._active:
                gc.set_threshold(IDLE_OBJECTS, *_GENERATIONS)
