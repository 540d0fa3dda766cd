"""Content of pages for programs, under versioned paths, and operations of a load as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from treehammer.collectors.job_spec import API_PREFIX, CAMPAIGNS_PATH, MEASUREMENTS_PATH
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.core.measurement_columns import decode_latency
from treehammer.sql.read.measurement_queries import restore_operation
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.web.addresses import CSV, JSON
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.core.responses import allow_any_text
from treehammer.web.page import Page, PageOperation
from treehammer.web.page_query import PageQuery, PathText
from treehammer.web.page_service import PageContext, PageHandler, tables_response
from treehammer.web.pages import load_pages

#: Paths of operations that correspond to no page.
MEASUREMENT_PATH = f"{MEASUREMENTS_PATH}/{{measurement_id}}"
CAMPAIGN_OPERATIONS_PATH = f"{CAMPAIGNS_PATH}/{{campaign_id}}/operations"
TOKEN_PATH, HEALTH_PATH, LIVE_PATH, DESCRIPTION_PATH = (
    f"{API_PREFIX}/token",
    f"{API_PREFIX}/health",
    f"{API_PREFIX}/live",
    f"{API_PREFIX}/openapi.json",
)
#: Operations that return the content of pages.
OPERATIONS = tuple(operation for page in load_pages() for operation in page.operations)
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


class CampaignOperationsQuery(PageQuery):
    """Parameters of the stream of a campaign's operations."""

    campaign_id: PathText = Field(description="Identity.")


def routes(context: PageContext) -> list[BaseRoute]:
    """Return a route for each operation of the pages, and that of a campaign's operations."""
    return [_stream_route(context)] + [
        context.page_route(
            API_PREFIX + allow_any_text(operation.path),
            _page_data(context, page, operation),
            f"api-{operation.name}",
        )
        for page in load_pages()
        for operation in page.operations
    ]


def _page_data(context: PageContext, page: Page, operation: PageOperation) -> PageHandler:
    def answer(store: Store, request: Request) -> Response:
        operation.full_query.parse(request, strict=True)
        form = CSV if request.query_params.get("format") == CSV else JSON
        # Some pages return more to programs.
        text = request.scope["query_string"]
        if "format" not in request.query_params:
            text = b"&".join(part for part in (text, f"format={form}".encode()) if part)
        full_request = Request({**request.scope, "query_string": text}, request.receive)
        content = page.answer(store, full_request, context.resources)
        if isinstance(content, Response):
            return content
        if not content.about.keys() >= {*operation.about}:
            # Without a selection the compare page lists comparisons, which have their own operation.
            raise ConfigError(
                "the request compares nothing",
                hint="Give a and b, or axis=selection with where_a and where_b. Stored comparisons are "
                f"at {API_PREFIX}/comparisons.",
            )
        about = {name: content.about[name] for name in operation.about}
        return tables_response(content, request, form, about=about)

    return answer


def _stream_route(context: PageContext) -> BaseRoute:
    """Return the route of a campaign's operations."""
    limiter = anyio.CapacityLimiter(MAX_CONCURRENT_CHUNKS)

    def answer(store: Store, request: Request) -> Response:
        query = CampaignOperationsQuery.parse(request, strict=True)
        with store.snapshot() as snapshot:
            owners = snapshot.operation_owners(Selection((query.campaign_id,)), OWNER_COLUMNS)
        if not owners:
            raise NothingToDoError("no campaign with operations has this identity")
        lines = _stream_lines(context.resources.database, owners, limiter)
        return StreamingResponse(lines, media_type=JSON_LINES)

    path = allow_any_text(CAMPAIGN_OPERATIONS_PATH)
    return context.page_route(path, answer, "api-getCampaignOperations")


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
