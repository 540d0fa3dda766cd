"""ROOT files in the browser: the measurements of a campaign as a TTree, browsed with JSROOT."""

from __future__ import annotations

from typing import Any

import anyio
import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute

from treehammer.errors import ConfigError
from treehammer.sql.rows import CampaignRow
from treehammer.sql.schema import campaign
from treehammer.sql.selection import Selection, alternatives
from treehammer.sql.store import Store
from treehammer.sql.tables import fetch
from treehammer.web.answers import Refusal
from treehammer.web.exports import MOST, Exports, selected
from treehammer.web.pages.context import PageContext, Room, View, for_people, link_to, sentence
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
        key = _key(request)
        found = exports.file(store, selection, key)
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, max-age=3600"}
        name = f"treehammer-{key[:8]}.root"
        return FileResponse(found, headers=headers, filename=name, media_type="application/x-root")

    def is_there(request: Request) -> bool:
        return exports.has(_key(request))

    # Made one at a time: others wait here, not where pages are asked for.
    room = Room(anyio.CapacityLimiter(1), is_there)
    return [
        context.page("/root-file", page, "rootfile"),
        context.page("/root-file/{key}.root", file, "rootfile-data", packed=False, room=room),
    ]


def _key(request: Request) -> str:
    """The key of a file in its address.

    Raises:
        Refusal: it is none.
    """
    key = str(request.path_params["key"])
    if len(key) != 32 or not set(key) <= set("0123456789abcdef"):
        raise Refusal(404, "there is no file of this name")
    return key


def view(store: Store, request: Request, exports: Exports) -> View:
    """A campaign is chosen, and browsed."""
    campaigns = _campaigns(store)
    chosen = request.query_params.get("campaign", "")
    values: dict[str, Any] = {
        "campaigns": [
            (one.id, f"{one.name or one.id}, {moment(one.created_us)}") for one in campaigns
        ],
        "chosen": chosen,
        "wheres": _conditions(request),
        "most": MOST,
        "possible": exports.possible,
        "rows": None,
        "file": "",
        "refused": "",
    }
    if chosen:
        try:
            # The form shows what was meant by a prefix or 'last'.
            values["chosen"] = store.campaign(chosen).id
            if values["chosen"] not in {one.id for one in campaigns}:
                values["campaigns"].append((values["chosen"], values["chosen"]))
            values |= _found(store, _of(values["chosen"], request), request, exports)
        except ConfigError as error:
            if not for_people(request):
                raise
            values["refused"] = sentence(error)
    table = _table(campaigns)
    status = 400 if values["refused"] else 200
    return View(
        "rootfile.html.j2", "ROOT file", values, (table,), inline_styles=True, status=status
    )


def _found(
    store: Store, selection: Selection, request: Request, exports: Exports
) -> dict[str, Any]:
    """How much is selected, and the address of its file where there can be one."""
    content = selected(store, selection)
    if not (0 < content.rows <= MOST and exports.possible):
        return {"rows": content.rows}
    query = {"campaign": selection.campaigns[0], "where": _conditions(request)}
    key = exports.key(store, selection, content)
    return {
        "rows": content.rows,
        "file": link_to(request, "rootfile-data", query=query, key=key),
    }


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
    chosen = request.query_params.get("campaign", "")
    if not chosen:
        raise ConfigError("campaign is missing: a file holds measurements of one")
    return _of(store.campaign(chosen).id, request)


def _of(campaign_id: str, request: Request) -> Selection:
    """The measurements of a campaign that meet the conditions asked for.

    Raises:
        ConfigError: one of them is wrong.
    """
    return Selection((campaign_id,), alternatives(_conditions(request)))


def _conditions(request: Request) -> list[str]:
    return [text for text in request.query_params.getlist("where") if text.strip()]
