"""How often the doorkeeper looks at the database."""

from __future__ import annotations

import asyncio

import pytest

from treehammer.errors import StoreError
from treehammer.sql.tokens import Access
from treehammer.web.doorkeeper import Doorkeeper


@pytest.mark.parametrize("answers", [True, False])
def test_many_unknown_keys_are_one_look(answers: bool) -> None:
    looks: list[int] = []

    def look() -> Access:
        looks.append(1)
        if not answers:
            raise StoreError("no answer")
        return Access({})

    async def work() -> None:
        doorkeeper = Doorkeeper(look, b"x" * 32)
        asked = [doorkeeper.refresh() for _ in range(200)]
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert {str(each) for each in told} == ({"None"} if answers else {"no answer"})
        assert len(looks) <= 2
        assert doorkeeper.knows is answers

    asyncio.run(asyncio.wait_for(work(), 30))


def test_after_a_failed_look_there_is_another() -> None:
    answers: list[StoreError | Access] = [StoreError("away"), Access({}), StoreError("away")]

    def look() -> Access:
        answer = answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def work() -> None:
        doorkeeper = Doorkeeper(look, b"x" * 32)
        with pytest.raises(StoreError):
            await doorkeeper.refresh()
        await doorkeeper.refresh()
        assert doorkeeper.knows
        with pytest.raises(StoreError):
            await doorkeeper.refresh()
        assert doorkeeper.knows, "what was seen just now counts still"

    asyncio.run(asyncio.wait_for(work(), 30))
