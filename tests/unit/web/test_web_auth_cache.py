"""How often the access_control looks at the database."""

from __future__ import annotations

import asyncio

import pytest

from treehammer.errors import StoreError
from treehammer.sql.auth.tokens import AccessList
from treehammer.web.core.auth import AccessControl


@pytest.mark.parametrize("answers", [True, False])
def test_many_unknown_keys_are_one_look(answers: bool) -> None:
    looks: list[int] = []

    def look() -> AccessList:
        looks.append(1)
        if not answers:
            raise StoreError("no answer")
        return AccessList({})

    async def work() -> None:
        access_control = AccessControl(look, b"x" * 32)
        asked = [access_control.refresh() for _ in range(200)]
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert {str(each) for each in told} == ({"None"} if answers else {"no answer"})
        assert len(looks) <= 2
        assert access_control.is_fresh is answers

    asyncio.run(asyncio.wait_for(work(), 30))


def test_after_a_failed_look_there_is_another() -> None:
    answers: list[StoreError | AccessList] = [
        StoreError("away"),
        AccessList({}),
        StoreError("away"),
    ]

    def look() -> AccessList:
        answer = answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def work() -> None:
        access_control = AccessControl(look, b"x" * 32)
        with pytest.raises(StoreError):
            await access_control.refresh()
        await access_control.refresh()
        assert access_control.is_fresh
        with pytest.raises(StoreError):
            await access_control.refresh()
        assert access_control.is_fresh, "what was seen just now counts still"

    asyncio.run(asyncio.wait_for(work(), 30))
