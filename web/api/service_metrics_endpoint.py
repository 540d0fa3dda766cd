"""``/metrics/service``: metrics of this service process in the Prometheus text format."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treehammer.web.core.auth import AccessControl, require_read_grant
from treehammer.web.core.service_metrics import METRICS_MEDIA_TYPE, ServiceMetrics

PATH = "/metrics/service"
#: Seconds to wait for the size of the database.
SIZE_TIMEOUT_S = 3.0


def routes(
    access_control: AccessControl,
    metrics: ServiceMetrics,
    measure_size: Callable[[], tuple[str, int | None]],
) -> list[BaseRoute]:
    """Return the route, which always requires a key, also where reading is public.

    Args:
        access_control: authorizes tokens.
        metrics: to respond with.
        measure_size: returns the kind of the database and its bytes, None if they are unknown;
            called in a thread.
    """

    async def get_metrics(request: Request) -> Response:
        # Monitoring matters most while the database fails, when keys cannot be read anew.
        require_read_grant(await access_control.authenticate(request, accept_stale_keys=True))
        try:
            async with asyncio.timeout(SIZE_TIMEOUT_S):
                await asyncio.to_thread(metrics.update_database_size, measure_size)
        except TimeoutError:
            pass  # The other metrics do not need the database.
        headers = {"Cache-Control": "no-store"}
        return Response(metrics.format_text(), media_type=METRICS_MEDIA_TYPE, headers=headers)

    return [Route(PATH, get_metrics, name="service_metrics", methods=["GET"])]
