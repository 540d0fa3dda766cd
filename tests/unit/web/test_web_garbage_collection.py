"""Garbage is collected between requests."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from treehammer.web.service.service_process import BUSY_OBJECTS, IDLE_OBJECTS, GarbageCollection


@pytest.fixture
def restored_collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("restored_collector")
@pytest.mark.parametrize("fails", [False, True])
def test_collections_wait_for_the_last_of_several_requests(fails: bool) -> None:
    found = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        await asyncio.sleep(0.01 * scope["number"])
        found.append(gc.get_threshold()[0])
        if fails:
            raise ValueError

    async def handle_two() -> None:
        collecting = GarbageCollection(app)
        found.append(gc.get_threshold()[0])
        await asyncio.gather(
            *(
                collecting({"type": "http", "number": number}, _nothing, _ignore)
                for number in range(2)
            ),
            return_exceptions=True,
        )

    async def _nothing() -> dict[str, object]:
        return {}

    async def _ignore(_message: object) -> None: ...

    asyncio.run(handle_two())
    assert [*found, gc.get_threshold()[0]] == [
        IDLE_OBJECTS,
        BUSY_OBJECTS,
        BUSY_OBJECTS,
        IDLE_OBJECTS,
    ]
