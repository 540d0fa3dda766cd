"""``POST /api/v1/campaigns``: submitters tell of their campaigns, jobs and attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from treehammer.errors import StoreError, UnstorableContentError
from treehammer.sql.write.uploaded_campaigns import CampaignUpload, UploadResult
from treehammer.web.api.campaign_document import (
    CampaignDocumentError,
    count_rows,
    parse_campaign_document,
)
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.request_bodies import BodyBudget, RequestLimits, parse_json, read_body
from treehammer.web.core.responses import (
    AsciiJSONResponse,
    RequestRefusedError,
    service_unavailable,
)

#: Rows of one request, and the bytes of all unpacked bodies that wait.
MAX_ROWS, MAX_WAITING_BYTES = 2000, 64_000_000
#: Reasons, and characters of one, that an answer tells.
MAX_REASONS_AND_CHARS = (20, 300)


class CampaignIngest:
    """The endpoint.

    Args:
        doorkeeper: tells what a token may do.
        write: stores what was handed in; when it returns that is safe.  Called in a thread.
        limits: of requests.
    """

    def __init__(
        self,
        doorkeeper: AccessControl,
        write: Callable[[CampaignUpload], UploadResult],
        limits: RequestLimits,
    ) -> None:
        self._doorkeeper = doorkeeper
        self._write = write
        self._limits = limits
        self._room = BodyBudget(MAX_WAITING_BYTES)
        self._one_at_a_time = asyncio.Lock()

    async def post_campaign(self, request: Request) -> Response:
        """Take in what is told of a campaign; the answer says what became of it."""
        grant = await self._doorkeeper.require_submitter(request)
        if grant.job_id is not None:
            raise RequestRefusedError(403, "a job's token is for its measurements alone")
        with self._room.open_lease() as lease:
            body = await read_body(request, self._limits, lease)
            try:
                async with asyncio.timeout(self._limits.response_s):
                    async with self._one_at_a_time:
                        handed, taken = await asyncio.to_thread(self._store_document, body)
            except TimeoutError:
                raise service_unavailable(
                    "the database has taken too long; send the same again"
                ) from None
        request.state.note = (
            f"{handed.row_count} rows of campaign {handed.campaign.id} of {grant.name}"
        )
        return AsciiJSONResponse({"new": taken.new, "changed": taken.changed, "known": taken.known})

    def _store_document(self, body: bytes) -> tuple[CampaignUpload, UploadResult]:
        document = parse_json(body, self._limits.json_marks)
        if (rows := count_rows(document)) > MAX_ROWS:
            raise RequestRefusedError(
                413, f"these are {rows} rows; send at most {MAX_ROWS} at a time"
            )
        try:
            handed = parse_campaign_document(document)
            return handed, self._write(handed)
        except CampaignDocumentError as error:
            raise _invalid_campaign(
                [
                    reason[: MAX_REASONS_AND_CHARS[1]]
                    for reason in error.reasons[: MAX_REASONS_AND_CHARS[0]]
                ]
            ) from None
        except UnstorableContentError as error:
            raise _invalid_campaign([error.message[: MAX_REASONS_AND_CHARS[1]]]) from None
        except StoreError:
            raise service_unavailable(
                "the database cannot be written now; send the same again"
            ) from None


def _invalid_campaign(reasons: list[str]) -> RequestRefusedError:
    sentence = f"the campaign cannot be taken, and nothing of this request was stored: {reasons[0]}"
    return RequestRefusedError(422, sentence, reasons=reasons)
