"""``GET /api/v1/campaigns/ID/operations``: operations of a load campaign as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.core.packing import decode_latency
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.read.operation_queries import restore_operation
from treehammer.sql.write.store import Store
from treehammer.web.api.page_operations import CAMPAIGN_OPERATIONS_PATH
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.core.route_paths import allow_any_text
from treehammer.web.views.shared.page_context import PageContext

#: Media type of lines of JSON.
JSON_LINES = "application/x-ndjson"
#: Columns of the measurement in each line.
OWNER_COLUMNS = (
    "measurement_id",
    "job_id",
    "attempt",
    "site",
    "door",
    "variant",
    "kind",
    "failure_class",
    "plausible",
)
#: Measurements per query, and queries of all streams at a time.
CHUNK, MAX_CONCURRENT_CHUNKS = 50, 2

Owner = dict[str, Any]


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route; it comes before that of a campaign, whose identity may be any text."""
    limiter = anyio.CapacityLimiter(MAX_CONCURRENT_CHUNKS)

    def answer(store: Store, request: Request) -> Response:
        if request.query_params:
            raise ConfigError("this address has no parameters")
        owners = _list_owners(store, str(request.path_params["campaign_id"]))
        lines = _stream_lines(context.database, owners, limiter)
        return StreamingResponse(lines, media_type=JSON_LINES)

    path = allow_any_text(CAMPAIGN_OPERATIONS_PATH)
    return [context.page_route(path, answer, "api-getCampaignOperations")]


def _list_owners(store: Store, campaign_id: str) -> list[Owner]:
    with store.snapshot() as snapshot:
        owners = snapshot.operation_owners(Selection((campaign_id,)), OWNER_COLUMNS)
    if not owners:
        raise NothingToDoError("no campaign with operations has this identity")
    return owners


async def _stream_lines(
    database: LiveDatabase, owners: Sequence[Owner], limiter: anyio.CapacityLimiter
) -> AsyncIterator[str]:
    # In short queries, so that a slow reader holds no connection; stored operations never change.
    for start in range(0, len(owners), CHUNK):
        chunk = owners[start : start + CHUNK]
        yield await anyio.to_thread.run_sync(_write_lines, database, chunk, limiter=limiter)


def _write_lines(database: LiveDatabase, owners: Sequence[Owner]) -> str:
    with database.open_store() as store, store.snapshot() as snapshot:
        operations = snapshot.operations_of([owner["measurement_id"] for owner in owners])
    lines = []
    for owner in owners:
        for line, row in enumerate(operations[owner["measurement_id"]]):
            quantiles = decode_latency(str(row["latency"] or "")).list_quantiles()
            lines.append({**owner, "line": line, **restore_operation(row), **quantiles})
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
