"""Refresh of keys and revocations by the access control."""

from __future__ import annotations

import asyncio

import pytest

from treehammer.errors import StoreError
from treehammer.sql.auth.access_keys import AccessList, MasterKeys
from treehammer.web.core.auth import AccessControl


@pytest.mark.parametrize("answers", [True, False])
def test_concurrent_refreshes_share_one_query(answers: bool) -> None:
    queries: list[int] = []

    def load_access() -> AccessList:
        queries.append(1)
        if not answers:
            raise StoreError("no answer")
        return AccessList({})

    async def work() -> None:
        access_control = AccessControl(load_access, MasterKeys(b"x" * 32))
        refreshes = [access_control.refresh() for _ in range(200)]
        outcomes = await asyncio.gather(*refreshes, return_exceptions=True)
        assert {str(one) for one in outcomes} == ({"None"} if answers else {"no answer"})
        assert len(queries) <= 2
        assert access_control.is_fresh is answers

    asyncio.run(asyncio.wait_for(work(), 30))


def test_refresh_after_failure_queries_again() -> None:
    answers: list[StoreError | AccessList] = [
        StoreError("away"),
        AccessList({}),
        StoreError("away"),
    ]

    def load_access() -> AccessList:
        answer = answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def work() -> None:
        access_control = AccessControl(load_access, MasterKeys(b"x" * 32))
        with pytest.raises(StoreError):
            await access_control.refresh()
        await access_control.refresh()
        assert access_control.is_fresh
        with pytest.raises(StoreError):
            await access_control.refresh()
        assert access_control.is_fresh, "recent keys stay valid after a failure"

    asyncio.run(asyncio.wait_for(work(), 30))
