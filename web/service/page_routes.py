"""Routes of all pages, their API operations and static files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treehammer.config import Settings, load_settings
from treehammer.web.api import operation_stream, page_data, prometheus, reference_page
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.core.root_exports import RootExports
from treehammer.web.display.template_environment import build_environment
from treehammer.web.views import (
    alarms_page,
    day_page,
    error_pages,
    patrol_page,
    root_file_page,
    search_page,
)
from treehammer.web.views.campaign import (
    campaign_list_page,
    campaign_page,
    job_page,
    measurement_page,
)
from treehammer.web.views.campaign.whole_logs import find_output_folders
from treehammer.web.views.changes import changes_page
from treehammer.web.views.compare import compare_page
from treehammer.web.views.explore import explore_page
from treehammer.web.views.load import load_page
from treehammer.web.views.overview import overview_page
from treehammer.web.views.shared.page_context import PageContext
from treehammer.web.views.shared.static_assets import StaticAssets
from treehammer.web.views.sign_in import openid_sign_in, sign_in_page
from treehammer.web.views.sign_in.openid_settings import OpenIdSettings
from treehammer.web.views.site import site_list_page, site_page, state_change_page

STATIC_DIR = Path(__file__).parents[1] / "static"

#: Titles of the pages in the menu by name of the route, in order.
MENU = {
    "overview": "Overview",
    "explore": "Explore",
    "compare": "Compare",
    "changes": "Changes",
    "campaigns": "Campaigns",
    "sites": "Sites",
    "alarms": "Alarms",
    "patrol": "Patrol",
    "rootfile": "ROOT file",
}


class PageRoutes:
    """All pages, and the response to a refused request.

    Args:
        database: only read.
        access_control: authorizes readers.
        settings: locates cache and job folders; by default the settings of this process.
    """

    def __init__(
        self,
        database: LiveDatabase,
        access_control: AccessControl,
        settings: Settings | None = None,
    ) -> None:
        settings = settings or load_settings()
        exports = RootExports.in_cache(settings.cache_dir, settings.software_dir)
        assets = StaticAssets(STATIC_DIR)
        openid = OpenIdSettings.from_settings(settings)
        self._context = PageContext(
            database,
            access_control,
            build_environment(),
            assets,
            MENU,
            query_seconds=settings.serve_query_seconds,
            provider_name=openid.issuer if openid else "",
        )
        self.routes: list[BaseRoute] = [
            *overview_page.routes(self._context),
            *explore_page.routes(self._context),
            *compare_page.routes(self._context),
            *changes_page.routes(self._context),
            *campaign_list_page.routes(self._context),
            *load_page.routes(self._context),
            *campaign_page.routes(self._context),
            *job_page.routes(self._context, find_output_folders(settings)),
            *measurement_page.routes(self._context),
            *site_list_page.routes(self._context),
            *site_page.routes(self._context),
            *state_change_page.routes(self._context),
            *day_page.routes(self._context),
            *alarms_page.routes(self._context),
            *patrol_page.routes(self._context),
            *prometheus.routes(self._context),
            *search_page.routes(self._context),
            *root_file_page.routes(self._context, exports),
            *sign_in_page.routes(self._context),
            *openid_sign_in.routes(self._context, openid),
            *operation_stream.routes(self._context),
            *reference_page.routes(self._context),
            *page_data.routes(self._context, self._context.queries),
            Route("/static/{name:path}", assets.serve, name="static", methods=["GET"]),
        ]

    def render_refusal(
        self, request: Request, status: int, sentence: str, headers: Mapping[str, str]
    ) -> Response:
        """Respond to a refused request with a page for browsers and JSON for programs."""
        return error_pages.error_response(self._context, request, status, sentence, headers)
