"""The pages: one module each, all on one :class:`~treehammer.web.pages.context.PageContext`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treehammer.config import Settings, load
from treehammer.web.doorkeeper import Doorkeeper
from treehammer.web.exports import Exports
from treehammer.web.live_database import LiveDatabase
from treehammer.web.pages import (
    campaign,
    campaigns,
    compare,
    data,
    day,
    errors,
    explore,
    job,
    metrics,
    overview,
    rootfile,
    site,
    sites,
)
from treehammer.web.pages.assets import Assets
from treehammer.web.pages.context import PageContext
from treehammer.web.templating import environment

STATIC = Path(__file__).parents[1] / "static"

#: Name of the route -> title, of the pages that every page leads to, in their order.
MENU = {
    "overview": "Overview",
    "explore": "Explore",
    "compare": "Compare",
    "campaigns": "Campaigns",
    "sites": "Sites",
    "rootfile": "ROOT file",
}


class Pages:
    """All pages, and the answer to whatever is refused.

    Args:
        reads: the database; only read.
        doorkeeper: tells who may read.
        settings: where the cache is; by default as it is set for this process.
    """

    def __init__(
        self, reads: LiveDatabase, doorkeeper: Doorkeeper, settings: Settings | None = None
    ) -> None:
        settings = settings or load()
        exports = Exports.of(settings.cache_dir, settings.software_dir)
        assets = Assets(STATIC)
        self._context = PageContext(reads, doorkeeper, environment(), assets, MENU)
        self.routes: list[BaseRoute] = [
            *overview.routes(self._context),
            *explore.routes(self._context),
            *compare.routes(self._context),
            *campaigns.routes(self._context),
            *campaign.routes(self._context),
            *job.routes(self._context),
            *sites.routes(self._context),
            *site.routes(self._context),
            *day.routes(self._context),
            *metrics.routes(self._context),
            *rootfile.routes(self._context, exports),
            *errors.routes(self._context),
            *data.routes(self._context, self._context.asks),
            Route("/static/{name:path}", assets.get, name="static", methods=["GET"]),
        ]

    def refuse(
        self, request: Request, status: int, sentence: str, headers: Mapping[str, str]
    ) -> Response:
        """The answer to a request that is not done: a page for people, JSON for programs."""
        return errors.answer(self._context, request, status, sentence, headers)
