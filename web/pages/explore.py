"""Explore: any metric against any dimension, as a figure, as tables and as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.analysis.samples import natural_order
from treehammer.collectors.metrics import BY_NAME
from treehammer.errors import ConfigError
from treehammer.sql import campaigns
from treehammer.sql.figures import ROLLED_BY
from treehammer.sql.schema import ROLLED, dimension_tables
from treehammer.sql.store import Store
from treehammer.terminal import counted
from treehammer.web.answers import Refusal
from treehammer.web.drawing import FORMS
from treehammer.web.pages import asked as asking
from treehammer.web.pages import captions, latencies, spreads
from treehammer.web.pages.asked import (
    BARS,
    DIMENSIONS,
    FILTERS,
    LATENCY,
    METRICS,
    SCALES,
    VIEWS,
    Asked,
)
from treehammer.web.pages.context import (
    HTML,
    PageContext,
    View,
    for_people,
    form,
    link_to,
    sentence,
)
from treehammer.web.pages.files import Files
from treehammer.web.pages.points import Points, find
from treehammer.web.pages.tables import SHOWN, Table

#: Values that a list to choose from has; others can be typed.
CHOICES = 300
#: Campaigns to choose from, the newest.
CAMPAIGNS = 100

#: Study S0's figure: CPU efficiency by site, with the RMS of repeated executions.
S0 = Asked(metric="eff_job", by="site", colour="variant_label")
S0_TITLE = "CPU efficiency by site (study S0)"


@dataclass(frozen=True)
class _Kind:
    """A figure with an address of its own."""

    default: Asked
    title: str = ""


_KINDS = {"explore": _Kind(Asked()), "s0": _Kind(S0, S0_TITLE)}


def routes(context: PageContext) -> list[BaseRoute]:
    """Explore, study S0's figure, and both as files."""
    files = Files()
    found: list[BaseRoute] = []
    for name, path in (("explore", "/explore"), ("s0", "/figures/s0")):
        found.append(context.page(path, _page(name), name))
        found.append(context.page(f"{path}/figure.{{form}}", _file(name, files), f"{name}-file"))
    return found


def _page(name: str) -> Callable[[Store, Request], View]:
    kind = _KINDS[name]

    def view(store: Store, request: Request) -> View:
        asked = asking.read(request, store, kind.default)
        refused = ""
        try:
            found = find(store, asked)
        except ConfigError as error:
            if not for_people(request):
                raise
            # With the form, in which it can be asked for otherwise.
            found, refused = Points((), ""), sentence(error)
        laid = latencies if asked.view == LATENCY else spreads
        whole, quantiles = laid.table(asked, found), latencies.quantiles(asked, found)
        title = kind.title or captions.heading(asked)
        if form(request) != HTML:
            return View("explore.html.j2", title, tables=(whole, quantiles))
        values = {
            "asked": asked,
            "refused": refused,
            "picture": laid.picture(asked, found.points, kind.title),
            "meaning": captions.meaning(asked),
            "shown": [_short(table) for table in (quantiles, whole) if table.rows],
            "source": found.source,
            "file": lambda form: _address(request, f"{name}-file", asked, form=form),
            "permanent": _address(request, name, asked),
            "presets": list(_presets(request, asked, name)),
            "form": _form(store, asked),
            "here_name": name,
            "forms": [form for form in FORMS if form != "root"],
        }
        status = 400 if refused else 200
        return View("explore.html.j2", title, values, inline_styles=True, status=status)

    return view


def _file(name: str, files: Files) -> Callable[[Store, Request], Response]:
    kind = _KINDS[name]

    def answer(store: Store, request: Request) -> Response:
        form = request.path_params["form"]
        if form not in FORMS:
            raise Refusal(404, f"there is no {form[:20]!r}; a figure is made as {', '.join(FORMS)}")
        asked = asking.read(request, store, kind.default)
        found = find(store, asked)
        laid = latencies if asked.view == LATENCY else spreads
        wanted: dict[str, Any]
        if form == "root":
            whole = laid.table(asked, found)
            wanted = {"columns": _types(asked, whole), "rows": whole.plain()}
        else:
            drawn = laid.picture(asked, found.points, kind.title)
            if drawn is None:
                raise Refusal(404, "there is nothing to draw: no good execution has this metric")
            wanted = {"picture": asdict(drawn)}
        made = files.make(form, wanted)
        shows = "inline" if form in ("png", "svg") else "attachment"
        headers = {
            "Content-Disposition": f'{shows}; filename="{name}.{form}"',
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return Response(made, headers=headers, media_type=FORMS[form])

    return answer


def _short(whole: Table) -> Table:
    if len(whole.rows) <= SHOWN:
        return whole
    note = f"The first {SHOWN} of {counted(len(whole.rows), 'row')}; CSV and JSON have all."
    return replace(whole, rows=whole.rows[:SHOWN], note=f"{whole.note} {note}".strip())


def _types(asked: Asked, whole: Table) -> list[dict[str, str]]:
    """The columns with the types that a TTree gives them."""
    counts = ("good", "failed", "implausible", "number", "jobs", "reads", "day", "week", "month")
    found = []
    for column in whole.columns:
        kind = "int" if column.key in counts else "float"
        if column.key in asked.groups and column.key in BY_NAME:
            kind = BY_NAME[column.key].type
        found.append({"name": column.key, "type": kind})
    return found


def _address(request: Request, name: str, asked: Asked, **parts: Any) -> str:
    return f"{link_to(request, name, **parts)}?{urlencode(asked.query)}"


def _presets(request: Request, asked: Asked, here: str) -> Sequence[Mapping[str, Any]]:
    """Other looks at the same selection, one click away."""
    kept = [(n, v) for n, v in asked.query if n in ("from", "to", "campaign", "where", "kind")]

    def one(title: str, **said: str) -> Mapping[str, Any]:
        query = urlencode([*said.items(), *kept])
        return {"title": title, "address": f"{link_to(request, 'explore')}?{query}"}

    metric = asked.metric
    by_site = {"metric": metric, "by": "site"}
    s0 = {"title": S0_TITLE, "address": f"{link_to(request, 's0')}?{urlencode(kept)}"}
    return [
        *([s0] if here != "s0" else []),
        one("Trend by day", metric=metric, by="day", colour="site"),
        one("Distribution by site", **by_site, colour="axis_root", view="distribution"),
        one("Read latency by site", **by_site, colour="axis_root", view=LATENCY),
        one(
            "Small multiples by site",
            metric=metric,
            by="variant_label",
            colour="axis_root",
            panels="site",
        ),
        one(
            "Trend by day, a panel per site",
            metric=metric,
            by="day",
            colour="axis_root",
            panels="site",
        ),
    ]


def _form(store: Store, asked: Asked) -> Mapping[str, Any]:
    """What the form offers."""
    rolled = [m for m in METRICS if m.name in ROLLED]
    others = [m for m in METRICS if m.name not in ROLLED]
    known = {m.name for m in METRICS}
    quick = [name for name in DIMENSIONS if name in ROLLED_BY]
    slow = [name for name in DIMENSIONS if name not in ROLLED_BY]
    return {
        "metrics": (("summed up by day", rolled), ("read one by one", others)),
        "own_metric": asked.metric if asked.metric not in known else "",
        "dimensions": (("summed up by day", quick), ("read one by one", slow)),
        "views": VIEWS,
        "bars": BARS,
        "scales": SCALES,
        "filters": [(name, _choices(store, asked, name)) for name in FILTERS],
        "campaigns": campaigns.newest(store, CAMPAIGNS),
        "filtered": bool(asked.wheres),
    }


def _choices(store: Store, asked: Asked, name: str) -> list[tuple[str, bool]]:
    column = dimension_tables["subject"].c[name]
    query = sa.select(column).where(column.is_not(None)).distinct().limit(CHOICES)
    with store.connection() as connection:
        known = {str(value) for value in connection.scalars(query)}
    chosen = asked.chosen(name)
    return [
        (value, value in chosen) for value in sorted(known | (chosen - {""}), key=natural_order)
    ]
