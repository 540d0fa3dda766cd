"""``POST /api/v1/campaigns``: upload of campaigns, jobs and attempts by their submitters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request
from starlette.responses import Response

from treehammer.errors import ForeignCampaignError, StoreError, UnstorableContentError
from treehammer.sql.write.ownership import Sender
from treehammer.sql.write.uploaded_campaigns import CampaignUpload, UploadResult
from treehammer.web.api.campaign_document import (
    CampaignDocumentError,
    count_rows,
    parse_campaign_document,
)
from treehammer.web.api.response_models import CampaignStored
from treehammer.web.core.auth import AccessControl, make_sender
from treehammer.web.core.request_bodies import (
    BodyBudget,
    RequestLimits,
    list_shares,
    parse_json,
    read_body,
)
from treehammer.web.core.responses import (
    AsciiJSONResponse,
    RequestRefusedError,
    service_unavailable,
)

#: Rows per request, and bytes of all decompressed bodies in progress.
MAX_ROWS, MAX_WAITING_BYTES = 2000, 64_000_000
#: Reasons per response, and characters per reason.
MAX_REASONS, MAX_REASON_CHARS = 20, 300


class CampaignIngest:
    """The endpoint.

    Args:
        access_control: authorizes tokens.
        write: stores an upload of a sender, durably when it returns; called in a thread.
        limits: of requests.
    """

    def __init__(
        self,
        access_control: AccessControl,
        write: Callable[[CampaignUpload, Sender], UploadResult],
        limits: RequestLimits,
    ) -> None:
        self._access_control = access_control
        self._write = write
        self._limits = limits
        self._budget = BodyBudget(MAX_WAITING_BYTES)
        # A transaction that takes too long ends in its thread, and later ones wait for it even if its
        # client has left.
        self._thread = ThreadPoolExecutor(1, "campaigns")

    async def post_campaign(self, request: Request) -> Response:
        """Store an uploaded campaign and respond with the outcome."""
        grant = await self._access_control.require_submitter(request)
        if grant.job_id is not None:
            raise RequestRefusedError(403, "the token of a job permits only its measurements")
        with self._budget.open_lease(list_shares(grant)) as lease:
            body = await read_body(request, self._limits, lease)
            try:
                async with asyncio.timeout(self._limits.response_s):
                    upload, result = await asyncio.get_running_loop().run_in_executor(
                        self._thread, self._store_document, body, make_sender(request, grant)
                    )
            except TimeoutError:
                raise service_unavailable(
                    "the database took too long; repeat the same request"
                ) from None
        request.state.note = (
            f"{upload.row_count} rows of campaign {upload.campaign.id} from {grant.name}"
        )
        stored = CampaignStored(new=result.new, changed=result.changed, known=result.known)
        return AsciiJSONResponse(stored.model_dump())

    def _store_document(self, body: bytes, sender: Sender) -> tuple[CampaignUpload, UploadResult]:
        document = parse_json(body, self._limits.json_marks)
        if (rows := count_rows(document)) > MAX_ROWS:
            raise RequestRefusedError(413, f"{rows} rows in one request; send at most {MAX_ROWS}")
        try:
            upload = parse_campaign_document(document)
            return upload, self._write(upload, sender)
        except CampaignDocumentError as error:
            raise _invalid_campaign(error.reasons[:MAX_REASONS]) from None
        except ForeignCampaignError as error:
            raise RequestRefusedError(403, error.message) from None
        except UnstorableContentError as error:
            raise _invalid_campaign([error.message]) from None
        except StoreError:
            raise service_unavailable(
                "the database cannot be written to now; repeat the same request"
            ) from None


def _invalid_campaign(reasons: Sequence[str]) -> RequestRefusedError:
    short = [reason[:MAX_REASON_CHARS] for reason in reasons]
    sentence = f"the campaign is invalid and nothing of this request was stored: {short[0]}"
    return RequestRefusedError(422, sentence, reasons=short)
