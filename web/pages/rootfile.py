"""ROOT files in the browser: the measurements of a campaign as a TTree, browsed with JSROOT."""

from __future__ import annotations

from typing import Any

import anyio
import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute

from treehammer.errors import ConfigError, NothingToDo
from treehammer.sql.rows import CampaignRow
from treehammer.sql.schema import campaign
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.sql.tables import fetch
from treehammer.web.exports import MOST, Exports, selected
from treehammer.web.pages.context import PageContext, View, link_to
from treehammer.web.pages.tables import Column, Table
from treehammer.web.templating import moment

#: Campaigns that the form names, the newest.
NAMED = 200


def routes(context: PageContext, exports: Exports) -> list[BaseRoute]:
    """The page, and the files it asks for."""

    def page(store: Store, request: Request) -> View:
        return view(store, request, exports)

    def file(store: Store, request: Request) -> Response:
        selection = _selection(store, request)
        key = str(request.path_params["key"])
        if len(key) != 32 or not set(key) <= set("0123456789abcdef"):
            raise NothingToDo("there is no file of this name")
        found = exports.file(store, selection, key)
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, max-age=3600"}
        name = f"treehammer-{key[:8]}.root"
        return FileResponse(found, headers=headers, filename=name, media_type="application/x-root")

    # One at a time: others wait here, not where pages are asked for.
    room = anyio.CapacityLimiter(1)
    return [
        context.page("/root-file", page, "rootfile"),
        context.page("/root-file/{key}.root", file, "rootfile-data", packed=False, room=room),
    ]


def view(store: Store, request: Request, exports: Exports) -> View:
    """A campaign is chosen, and browsed."""
    asked = request.query_params
    campaigns = _campaigns(store)
    chosen = asked.get("campaign", "")
    wheres = [text for text in asked.getlist("where") if text.strip()]
    values: dict[str, Any] = {
        "campaigns": [
            (one.id, f"{one.name or one.id}, {moment(one.created_us)}") for one in campaigns
        ],
        "chosen": chosen,
        "wheres": wheres,
        "most": MOST,
        "possible": exports.possible,
        "rows": None,
        "file": "",
    }
    if chosen:
        selection = _selection(store, request)
        # The form shows what was meant by a prefix or 'last'.
        values["chosen"] = selection.campaigns[0]
        content = selected(store, selection)
        values["rows"] = content.rows
        if 0 < content.rows <= MOST and exports.possible:
            key = exports.key(store, selection, content)
            query = {"campaign": selection.campaigns[0], "where": wheres}
            values["file"] = link_to(request, "rootfile-data", query=query, key=key)
        known = {one.id for one in campaigns}
        if values["chosen"] not in known:
            values["campaigns"].append((values["chosen"], values["chosen"]))
    table = _table(campaigns)
    return View("rootfile.html.j2", "ROOT file", values, (table,), inline_styles=True)


def _table(campaigns: list[CampaignRow]) -> Table:
    rows = [
        {"campaign": one.id, "name": one.name, "submitted_us": one.created_us} for one in campaigns
    ]
    columns = (Column("campaign", "campaign"), Column("name", "name"), Column("submitted_us"))
    return Table("campaigns", "Campaigns that can be browsed", columns, rows)


def _campaigns(store: Store) -> list[CampaignRow]:
    query = sa.select(campaign).order_by(campaign.c.created_us.desc(), campaign.c.id).limit(NAMED)
    with store.connection() as connection:
        return fetch(connection, CampaignRow, query)


def _selection(store: Store, request: Request) -> Selection:
    """What the address selects.

    Raises:
        ConfigError: it names no campaign, one that there is not, or a wrong condition.
    """
    asked = request.query_params
    chosen = asked.get("campaign", "")
    if not chosen:
        raise ConfigError("campaign is missing: a file holds measurements of one")
    wheres = [text for text in asked.getlist("where") if text.strip()]
    return Selection.of([store.campaign(chosen).id], wheres)
