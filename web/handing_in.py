"""``POST /api/v1/campaigns``: submitters tell of their campaigns, jobs and attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from treehammer.errors import ContentError, StoreError
from treehammer.sql.handed_in import HandedIn, Taken
from treehammer.web.answers import JSONAnswer, Refusal, unavailable
from treehammer.web.bodies import Limits, Room, parse_json, read_body
from treehammer.web.campaign_document import Mistakes, count, read
from treehammer.web.doorkeeper import Doorkeeper

#: Rows of one request, and the bytes of all unpacked bodies that wait.
ROWS, WAITING_BYTES = 2000, 64_000_000
#: Reasons, and characters of one, that an answer tells.
TOLD = (20, 300)


class HandingIn:
    """The endpoint.

    Args:
        doorkeeper: tells what a token may do.
        write: stores what was handed in; when it returns that is safe.  Called in a thread.
        limits: of requests.
    """

    def __init__(
        self, doorkeeper: Doorkeeper, write: Callable[[HandedIn], Taken], limits: Limits
    ) -> None:
        self._doorkeeper = doorkeeper
        self._write = write
        self._limits = limits
        self._room = Room(WAITING_BYTES)
        self._one_at_a_time = asyncio.Lock()

    async def post(self, request: Request) -> Response:
        """Take in what is told of a campaign; the answer says what became of it."""
        grant = await self._doorkeeper.submitter(request)
        if grant.job_id is not None:
            raise Refusal(403, "a job's token is for its measurements alone")
        with self._room.lease() as lease:
            body = await read_body(request, self._limits, lease)
            try:
                async with asyncio.timeout(self._limits.answer_s):
                    async with self._one_at_a_time:
                        handed, taken = await asyncio.to_thread(self._take_in, body)
            except TimeoutError:
                raise unavailable("the database has taken too long; send the same again") from None
        request.state.note = f"{handed.rows} rows of campaign {handed.campaign.id} of {grant.name}"
        return JSONAnswer({"new": taken.new, "changed": taken.changed, "known": taken.known})

    def _take_in(self, body: bytes) -> tuple[HandedIn, Taken]:
        document = parse_json(body, self._limits.marks)
        if (rows := count(document)) > ROWS:
            raise Refusal(413, f"these are {rows} rows; send at most {ROWS} at a time")
        try:
            handed = read(document)
            return handed, self._write(handed)
        except Mistakes as error:
            raise _invalid([reason[: TOLD[1]] for reason in error.reasons[: TOLD[0]]]) from None
        except ContentError as error:
            raise _invalid([error.message[: TOLD[1]]]) from None
        except StoreError:
            raise unavailable("the database cannot be written now; send the same again") from None


def _invalid(reasons: list[str]) -> Refusal:
    sentence = f"the campaign cannot be taken, and nothing of this request was stored: {reasons[0]}"
    return Refusal(422, sentence, reasons=reasons)
