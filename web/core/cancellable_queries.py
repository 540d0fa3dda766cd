"""Queries of requests, cancelled when they take too long or the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import anyio
from starlette.requests import Request

from treehammer.sql.engine.query_limits import QueryGroup
from treehammer.web.core.responses import RequestRefusedError, service_unavailable

Result = TypeVar("Result")

#: Seconds between two attempts to cancel a query.
_REPEAT_CANCEL_S = 0.2


async def run_queries(work: Callable[[], Result], request: Request, seconds: float) -> Result:
    """Call a function with queries in a thread.

    Raises:
        RequestRefusedError: it took too long, or the client has gone.
    """
    group = QueryGroup()
    running = asyncio.ensure_future(anyio.to_thread.run_sync(group.run, work))
    disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait(
            {running, disconnected}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if running.done():
            return await running
        is_disconnected = disconnected.done()
    finally:
        disconnected.cancel()
        # Also after a cancellation: the slot of the query is free when its thread has ended.
        await asyncio.shield(_cancel_until_done(group, running))
    if is_disconnected:
        raise service_unavailable("the client has closed the connection", "client gone")
    raise _took_too_long(seconds)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel_until_done(group: QueryGroup, running: asyncio.Future[Result]) -> None:
    while not running.done():
        await anyio.to_thread.run_sync(group.cancel)
        await asyncio.wait({running}, timeout=_REPEAT_CANCEL_S)
    if not running.cancelled():
        running.exception()  # Its outcome does not matter any more.


def _took_too_long(seconds: float) -> RequestRefusedError:
    return service_unavailable(
        f"the query took longer than {seconds:.0f} s; select less", "slow query"
    )
