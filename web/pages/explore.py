"""Explore: any metric against any dimension, as a figure, as tables and as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

import anyio
import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.analysis.samples import natural_order
from treehammer.collectors.job import KINDS
from treehammer.collectors.metrics import BY_NAME
from treehammer.errors import ConfigError
from treehammer.sql import campaigns
from treehammer.sql.figures import ROLLED_BY, TIMES
from treehammer.sql.rollups import HISTOGRAM
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
    DISTRIBUTION,
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
    Room,
    View,
    for_people,
    form,
    link_to,
    sentence,
)
from treehammer.web.pages.files import AT_ONCE, Files
from treehammer.web.pages.links import Links
from treehammer.web.pages.picture import Picture
from treehammer.web.pages.points import Points, find
from treehammer.web.pages.tables import SHOWN, Table
from treehammer.web.pages.variants import VARIANT, told_apart

#: Values that a list to choose from has; others can be typed.
CHOICES = 300
#: Campaigns to choose from, the newest.
CAMPAIGNS = 100

#: Study S0's figure: CPU efficiency by site, with the RMS of repeated executions.
S0 = Asked(metric="eff_job", by="site", colour=VARIANT)
S0_TITLE = "CPU efficiency by site (study S0)"


@dataclass(frozen=True)
class _Kind:
    """A figure with an address of its own.

    Attributes:
        default: what it shows when nothing is said.
        title: of what it shows then.
        apart: columns that are told apart where several values are selected.
    """

    default: Asked
    title: str = ""
    apart: tuple[str, ...] = ()

    def titled(self, asked: Asked) -> str:
        """What the figure is called: by its own name only as long as it is that figure."""
        own = all(getattr(asked, name) == getattr(self.default, name) for name in _CHOSEN)
        return self.title if self.title and own else captions.heading(asked)


#: What makes a figure another one.
_CHOSEN = ("metric", "by", "colour", "panels", "view")
_KINDS = {"explore": _Kind(Asked()), "s0": _Kind(S0, S0_TITLE, ("test_name", "dataset"))}


@dataclass(frozen=True)
class _Found:
    """What was asked for and found; ``refused`` says why nothing was, '' otherwise."""

    asked: Asked
    points: Points
    title: str
    refused: str = ""

    def picture(self) -> Picture | None:
        """The figure; None when there is nothing to draw."""
        lay_out = latencies.picture if self.asked.view == LATENCY else spreads.picture
        return lay_out(self.asked, self.points, self.title)

    def table(self, links: Links) -> Table:
        """Its groups."""
        table = latencies.table if self.asked.view == LATENCY else spreads.table
        return table(self.asked, self.points, links)

    @property
    def about(self) -> Mapping[str, Any]:
        """What the page tells beside its tables."""
        asked = self.asked
        metric = BY_NAME.get(asked.metric)
        of_metric = {"metric": asked.metric, "unit": metric.unit if metric else ""}
        return {
            **(of_metric if asked.view != LATENCY else {"metric": HISTOGRAM, "unit": "reads"}),
            "meaning": captions.meaning(asked),
            "bars": captions.bars(asked),
            "caption": captions.caption(asked),
            "selection": captions.selection(asked, self.points.points),
            "from": asked.first.isoformat() if asked.first else None,
            "to": asked.last.isoformat() if asked.last else None,
            "kind": asked.kind or None,
            "groups": list(asked.groups),
            "mixed": self.points.mix.words(asked.groups),
            "mixed_most": self.points.mix.most,
            "source": self.points.source,
        }


def routes(context: PageContext) -> list[BaseRoute]:
    """Explore, study S0's figure, and both as files."""
    files = Files()
    # Drawing takes seconds: who waits for it does so here, not where pages are asked for.
    room = Room(anyio.CapacityLimiter(AT_ONCE))
    found: list[BaseRoute] = []
    for name, path in (("explore", "/explore"), ("s0", "/figures/s0")):
        found.append(context.page(path, _page(name), name))
        drawn = _file(name, files)
        found.append(context.page(f"{path}/figure.{{form}}", drawn, f"{name}-file", room=room))
    return found


def _find(store: Store, request: Request, kind: _Kind) -> _Found:
    """Ask the database.

    Raises:
        ConfigError: a program asks for what there is not; people are told so beside the form.
    """
    asked: Asked | None = None
    try:
        asked = asking.read(request, store, kind.default)
        found = find(store, asked)
        several = [name for name in kind.apart if found.mix.whole.get(name, 0) > 1]
        if apart := tuple(name for name in several if name not in asked.groups):
            asked = replace(asked, apart=apart)
            found = find(store, asked)
    except ConfigError as error:
        if not for_people(request):
            raise
        asked = asked or asking.forgiving(request, store, kind.default)
        return _Found(asked, Points((), ""), kind.titled(asked), sentence(error))
    return _Found(asked, found, kind.titled(asked))


def _page(name: str) -> Callable[[Store, Request], View]:
    kind = _KINDS[name]

    def view(store: Store, request: Request) -> View:
        found = _find(store, request, kind)
        asked, points = found.asked, found.points
        links = Links(request, asked)
        whole = found.table(links)
        quantiles = latencies.quantiles(asked, points, links)
        if form(request) != HTML:
            tables = (whole, quantiles)
            return View("explore.html.j2", found.title, {**found.about}, tables=tables)
        picture = found.picture()
        values = {
            "asked": asked,
            "refused": found.refused,
            "picture": picture,
            "shared": points.variants.note,
            "nothing": ""
            if picture or not points.points
            else captions.nothing(asked, points.points),
            "about": found.about,
            "shown": [_short(table, asked) for table in (quantiles, whole) if table.rows],
            "file": lambda form: _address(request, f"{name}-file", asked, form=form),
            "permanent": _address(request, name, asked),
            "presets": list(_presets(request, asked, name)),
            "form": _form(store, asked),
            "forms": [form for form in FORMS if form != "root"] if picture else [],
        }
        status = 400 if found.refused else 200
        return View("explore.html.j2", found.title, values, inline_styles=True, status=status)

    return view


def _file(name: str, files: Files) -> Callable[[Store, Request], Response]:
    kind = _KINDS[name]

    def answer(store: Store, request: Request) -> Response:
        form = request.path_params["form"]
        if form not in FORMS:
            raise Refusal(404, f"there is no {form[:20]!r}; a figure is made as {', '.join(FORMS)}")
        found = _find(store, request, kind)
        if found.refused:
            raise Refusal(400, found.refused)
        wanted: dict[str, Any]
        if form == "root":
            whole = found.table(Links(request, found.asked))
            wanted = {
                "columns": _types(found.asked, whole),
                "rows": whole.plain(),
                "title": _told(found),
            }
        else:
            drawn = found.picture()
            if drawn is None:
                raise Refusal(404, captions.nothing(found.asked, found.points.points))
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


def _told(found: _Found) -> str:
    """What a TTree is of, in its title."""
    about = found.about
    said = (found.title, about["bars"], about["selection"], about["mixed"])
    return ". ".join(text.rstrip(".") for text in said if text)


def _short(whole: Table, asked: Asked) -> Table:
    """What the page shows: of times the newest."""
    if len(whole.rows) <= SHOWN:
        return whole
    newest = asked.groups[0] in TIMES
    rows = whole.rows[-SHOWN:] if newest else whole.rows[:SHOWN]
    which = "last" if newest else "first"
    note = f"The {which} {SHOWN} of {counted(len(whole.rows), 'row')}; CSV and JSON have all."
    return replace(whole, rows=rows, note=f"{whole.note} {note}".strip())


def _types(asked: Asked, whole: Table) -> list[dict[str, str]]:
    """The columns with the types that a TTree gives them."""
    counts = ("good", "failed", "implausible", "not_supported", "number", "jobs", "reads", *TIMES)
    found = []
    for column in whole.columns:
        kind = "int" if column.key in counts else "text" if column.key == "mixes" else "float"
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
    s0 = {"title": S0_TITLE, "address": f"{link_to(request, 's0')}?{urlencode(kept)}"}
    # Each tells variants apart: a mean over several would be one of their mix.
    return [
        *([s0] if here != "s0" else []),
        one("Trend by day", metric=metric, by="day", colour="site", panels=VARIANT),
        one(
            "Distribution by site",
            metric=metric,
            by="site",
            colour="axis_root",
            panels=VARIANT,
            view=DISTRIBUTION,
        ),
        one("Read latency by variant", metric=metric, by=VARIANT, colour="axis_root", view=LATENCY),
        one(
            "Small multiples by site",
            metric=metric,
            by=VARIANT,
            colour="axis_root",
            panels="site",
        ),
        one(
            "Trend by day, a panel per site",
            metric=metric,
            by="day",
            colour=VARIANT,
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
        "kinds": KINDS,
        "filters": [(name, *_choices(store, asked, name)) for name in FILTERS],
        "campaigns": campaigns.to_choose(store, CAMPAIGNS, asked.campaigns),
        "filtered": bool(asked.wheres or asked.wrong or asked.campaigns),
    }


def _choices(store: Store, asked: Asked, name: str) -> tuple[list[tuple[str, str, bool]], int]:
    """Values of a column: each with its text, and whether it is chosen.

    And how many they were cut to, the first in the order of the database; 0 where all are there.
    """
    column = dimension_tables["subject"].c[name]
    query = sa.select(column).where(column.is_not(None)).distinct().order_by(column)
    with store.connection() as connection:
        known = [str(value) for value in connection.scalars(query.limit(CHOICES + 1))]
    chosen = asked.chosen(name)
    values = {*known[:CHOICES], *chosen} - {""}
    cut = CHOICES if len(known) > CHOICES else 0
    if name == VARIANT:
        names = told_apart(values).names
        return [(one, text, one in chosen) for one, text in names.items()], cut
    ordered = sorted(values, key=natural_order)
    return [(value, value, value in chosen) for value in ordered], cut
