"""Browser of a campaign's measurements as a ROOT file, with JSROOT."""

from __future__ import annotations

from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute

from treehammer.errors import ConfigError
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_queries import CampaignTitle
from treehammer.sql.read.measurement_selection import Selection, parse_alternatives
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.web.core.responses import RequestRefusedError
from treehammer.web.core.root_exports import MAX_MEASUREMENTS, RootExports, fingerprint_selection
from treehammer.web.display.template_environment import format_time
from treehammer.web.views.shared.page_context import (
    PageContext,
    PageView,
    QueryPool,
    error_sentence,
    link_to,
    wants_html,
)

#: Newest campaigns listed in the form.
MAX_CAMPAIGN_CHOICES = 200


def routes(context: PageContext, exports: RootExports) -> list[BaseRoute]:
    """Return the routes of the page and of its files."""

    def page(store: Store, request: Request) -> PageView:
        return root_file_view(store, request, exports)

    def file(store: Store, request: Request) -> Response:
        selection = _parse_selection(store, request)
        key = _parse_key(request)
        path = exports.get_file(store, selection, key)
        headers = {"Cache-Control": "private, max-age=3600"}
        name = f"treehammer-{key[:8]}.root"
        return FileResponse(path, headers=headers, filename=name, media_type="application/x-root")

    def is_cached(request: Request) -> bool:
        return exports.has(_parse_key(request))

    # Files are written one at a time; waiting requests must not block other pages.
    pool = QueryPool(anyio.CapacityLimiter(1), is_cached)
    return [
        context.page_route("/root-file", page, "rootfile"),
        context.page_route(
            "/root-file/{key}.root", file, "rootfile-data", compress=False, pool=pool
        ),
    ]


def _parse_key(request: Request) -> str:
    """Read the key of a file from the URL.

    Raises:
        RequestRefusedError: it is not a valid key.
    """
    key = str(request.path_params["key"])
    if len(key) != 32 or not set(key) <= set("0123456789abcdef"):
        raise RequestRefusedError(404, "this file does not exist")
    return key


def root_file_view(store: Store, request: Request, exports: RootExports) -> PageView:
    """Collect the data of the page."""
    campaigns = campaign_queries.list_newest_campaigns(store, MAX_CAMPAIGN_CHOICES)
    chosen = request.query_params.get("campaign", "")
    values: dict[str, Any] = {
        "campaigns": [
            (campaign.id, f"{campaign.name}, {format_time(campaign.created_us)}")
            for campaign in campaigns
        ],
        "chosen": chosen,
        "wheres": _parse_conditions(request),
        "max_measurements": MAX_MEASUREMENTS,
        "can_write": exports.can_write,
        "rows": None,
        "file": "",
        "error": "",
    }
    if chosen:
        try:
            # The form shows the campaign that a prefix or 'last' stands for.
            values["chosen"] = store.campaign(chosen).id
            if values["chosen"] not in {campaign.id for campaign in campaigns}:
                values["campaigns"].append((values["chosen"], values["chosen"]))
            values |= _file_values(
                store, _campaign_selection(values["chosen"], request), request, exports
            )
        except ConfigError as error:
            if not wants_html(request):
                raise
            values["error"] = error_sentence(error)
    table = _campaign_table(campaigns)
    status = 400 if values["error"] else 200
    return PageView(
        "rootfile.html.j2", "ROOT file", values, (table,), inline_styles=True, status=status
    )


def _file_values(
    store: Store, selection: Selection, request: Request, exports: RootExports
) -> dict[str, Any]:
    """Count the selected measurements; also return their file's URL if it can be written."""
    content = fingerprint_selection(store, selection)
    if not (0 < content.rows <= MAX_MEASUREMENTS and exports.can_write):
        return {"rows": content.rows}
    query = {"campaign": selection.campaigns[0], "where": _parse_conditions(request)}
    key = exports.content_key(store, selection, content)
    return {
        "rows": content.rows,
        "file": link_to(request, "rootfile-data", query=query, key=key),
    }


def _campaign_table(campaigns: list[CampaignTitle]) -> DataTable:
    rows = [
        {"campaign": campaign.id, "name": campaign.name, "submitted_us": campaign.created_us}
        for campaign in campaigns
    ]
    columns = (
        TableColumn("campaign", "campaign"),
        TableColumn("name", "name"),
        TableColumn("submitted_us"),
    )
    return DataTable("campaigns", "Campaigns that can be browsed", columns, rows)


def _parse_selection(store: Store, request: Request) -> Selection:
    """Read the selection from the URL.

    Raises:
        ConfigError: no campaign is named, or it does not exist, or a condition is invalid.
    """
    chosen = request.query_params.get("campaign", "")
    if not chosen:
        raise ConfigError(
            "campaign is missing", hint="A file holds the measurements of one campaign."
        )
    return _campaign_selection(store.campaign(chosen).id, request)


def _campaign_selection(campaign_id: str, request: Request) -> Selection:
    """Select measurements of a campaign by the URL's conditions.

    Raises:
        ConfigError: a condition is invalid.
    """
    return Selection((campaign_id,), parse_alternatives(_parse_conditions(request)))


def _parse_conditions(request: Request) -> list[str]:
    return [text for text in request.query_params.getlist("where") if text.strip()]
