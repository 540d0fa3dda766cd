"""One site: its series beside similar sites, what changed there, and what came back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from treehammer.analysis import peers
from treehammer.analysis.days import Judged
from treehammer.analysis.peers import Point
from treehammer.collectors.metrics import BY_NAME
from treehammer.errors import ConfigError, did_you_mean
from treehammer.hctests.identity import unreleased
from treehammer.sql import overview, site_history
from treehammer.sql.contradictions import is_variant
from treehammer.sql.figures import DAY, WEEK, Figure, coarser
from treehammer.sql.rollups import GOOD, IMPLAUSIBLE
from treehammer.sql.schema import ROLLED
from treehammer.sql.selection import Selection, Where
from treehammer.sql.site_history import History, Work
from treehammer.sql.store import Store
from treehammer.web.addresses import any_text
from treehammer.web.pages import days
from treehammer.web.pages.chart import Chart, Dot, Line, Mark
from treehammer.web.pages.columns import number_columns, variant_column
from treehammer.web.pages.context import PageContext, View, for_people, link_to
from treehammer.web.pages.tables import Column, Row, Table
from treehammer.web.pages.variants import VARIANT, told_apart
from treehammer.web.templating import cell

#: Days that may be shown, and those that are when nothing is said.
CHOICES, USUAL = (14, 30, 90, 180), 30
#: Days from which on a point is a week.
WEEKLY = 90
#: The metric that is shown when nothing is said, and that of the list.
METRIC = "eff_job"
#: Filters of the address -> column of a work.
FILTERS = {
    "test": "test_name",
    "variant": VARIANT,
    "root": "axis_root",
    "protocol": "door_protocol",
}
_NOT_TOLD = "It is told by the measurements; nothing was told in these days."


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the page."""
    return [context.page(any_text("/sites/{site}"), view, "site")]


@dataclass(frozen=True)
class Asked:
    """What the address asks for."""

    site: str
    metric: str
    first: date
    until: date
    count: int
    filters: dict[str, str]

    @property
    def time(self) -> str:
        """The column of time that makes a point."""
        return WEEK if self.count >= WEEKLY else DAY


def look(row: Row) -> str:
    """The class of the style sheet for a row's status."""
    return str(row["status"]).replace(" ", "-")


def view(store: Store, request: Request) -> View | Response:
    """One site."""
    site = str(request.path_params["site"])
    works = site_history.works(store, site)
    if not works:
        if not site and for_people(request):
            return RedirectResponse(link_to(request, "sites"))
        raise overview.no_site(store, site)
    asked = _asked(request, site, works)
    dailies = site_history.dailies(
        store,
        asked.metric,
        days.numbered(asked.first),
        days.numbered(asked.until),
        {FILTERS[name]: text for name, text in asked.filters.items()},
    )
    points = peers.points(
        dailies, site, lambda day: coarser(WEEK, day) if asked.time == WEEK else day
    )
    history = site_history.history(
        store,
        site,
        days.numbered(asked.first),
        days.numbered(asked.until),
    )
    changed = list(_changes(history))
    number = {day: place for place, day in enumerate(sorted({one["day"] for one in changed}), 1)}
    for change in changed:
        change["mark"] = number[change["day"]]
    tables = (
        _series(points, asked),
        _state(history, earlier=_measured_before(store, asked)),
        _changed(sorted(changed, key=lambda change: change["mark"])),
        _failures(store, asked, request),
        _work(works),
    )
    values = {
        "asked": asked,
        "chart": _chart(points, tables[2].rows, asked) if points else None,
        "series": tables[0],
        "state": tables[1],
        "changes": tables[2],
        "failures": tables[3],
        "works": tables[4],
        "metrics": [BY_NAME[name] for name in ROLLED],
        "metric": BY_NAME[asked.metric],
        "choices": CHOICES,
        "filters": {name: _options(works, name, asked.filters.get(name)) for name in FILTERS},
        "similar": peers.SIMILAR,
        "weekly": asked.time == WEEK,
        "further": list(_further(store, asked, request)),
        "alone": not any(point.sites for point in points),
        "comparable": any(point.sites for point in points),
    }
    return View("site.html.j2", site or "(no site)", values, tables)


def _asked(request: Request, site: str, works: Sequence[Work]) -> Asked:
    """Read the address, which may name what the site measured.

    Raises:
        ConfigError: it asks for what there is not.
    """
    asked = request.query_params
    until = days.asked(asked["until"], "until") if asked.get("until") else days.today()
    count = asked.get("days", str(USUAL))
    if count not in map(str, CHOICES):
        raise ConfigError(f"days must be one of {', '.join(map(str, CHOICES))}, not {count[:40]!r}")
    metric = asked.get("metric", METRIC)
    if metric not in ROLLED:
        raise ConfigError(
            f"there is no daily {metric[:40]!r}", hint=did_you_mean(metric, ROLLED).strip()
        )
    shown = days.until(until, int(count))
    filters = {name: asked[name] for name in FILTERS if asked.get(name)}
    if variant := filters.get("variant"):
        if not is_variant(variant) and variant not in {work.variant for work in works}:
            raise ConfigError(
                f"variant must be axes and their values as JSON, not {variant[:40]!r}",
                hint="The page of the site has those that it measured.",
            )
        filters["variant"] = unreleased(variant)
    return Asked(site, metric, shown[0], shown[-1], int(count), filters)


def _further(store: Store, asked: Asked, request: Request) -> Iterator[tuple[str, str]]:
    """Explore with what the page shows: its metric, filters and days."""
    only: dict[str, Any] = {FILTERS[name]: text for name, text in asked.filters.items()}
    only |= {"site": asked.site, "from": str(asked.first), "to": str(asked.until)}
    if chosen := asked.filters.get("variant"):
        only["variant"] = site_history.recorded(store, [chosen], asked.site) or chosen
    metric = {"metric": asked.metric}
    for title, more in (
        (f"{asked.metric} by variant", {**metric, "by": VARIANT}),
        (f"{asked.metric} by day and release", {**metric, "by": "day"}),
        ("Read latency by door", {"view": "latency", "by": "door"}),
    ):
        yield title, link_to(request, "explore", query={**more, "colour": "axis_root", **only})


def _measured_before(store: Store, asked: Asked) -> bool:
    first = site_history.first_day(store, asked.site)
    return first is not None and first < days.numbered(asked.first)


def _options(works: Sequence[Work], name: str, chosen: str | None) -> list[tuple[str, str]]:
    """What a filter can have and what is chosen, each with its text."""
    values = {value for value in (chosen, *(getattr(work, name) for work in works)) if value}
    if name == "variant":
        return [*told_apart(map(unreleased, values)).names.items()]
    return [(value, value) for value in sorted(values)]


def _series(points: Sequence[Point], asked: Asked) -> Table:
    rows = [
        {
            asked.time: days.of_number(point.time).isoformat(),
            "measurements": point.number,
            "mean": point.mean,
            "compared": point.compared,
            "own": point.own,
            "rms": point.rms,
            "error": point.error,
            "median": point.median,
            "difference": point.difference,
            "sites": point.sites,
        }
        for point in points
    ]
    columns = (
        Column(asked.time, "week of" if asked.time == WEEK else "day (UTC)"),
        Column("measurements", "timed and good", number=True),
        Column("mean", "mean of all", number=True),
        Column("compared", "compared", number=True),
        Column("own", "their mean", number=True),
        Column("rms", "± RMS", number=True),
        Column("error", hidden=True),
        Column("median", "median of similar sites", number=True),
        Column("difference", "difference", per_cent, number=True),
        Column("sites", "similar sites", number=True),
    )
    caption = f"{asked.metric} by {asked.time}, and the median of similar sites"
    return Table("series", caption, columns, rows)


def per_cent(share: float | None) -> str:
    """A signed share in per cent; a dash for what is not known."""
    return "–" if share is None else f"{share:+.1%}".replace("-", "−").replace("%", " %")


def _texts(found: Sequence[str]) -> str:
    return ", ".join(found)


def _state(history: History, *, earlier: bool) -> Table:
    """What everything was last, and since when.

    Of what was so on the first of these days that knows it, where the site had measured ``earlier``,
    the beginning is not among them.
    """
    rows = []
    for aspect, by_day in history.items():
        numbers = list(by_day)
        now = by_day[numbers[-1]]
        since = numbers[-1]
        for number in reversed(numbers):
            if by_day[number] != now:
                break
            since = number
        rows.append(
            {
                "thing": aspect.thing,
                "what": aspect.what,
                "value": sorted(now),
                "since": days.of_number(since).isoformat(),
                "since_known": not earlier or since != numbers[0],
                "last": days.of_number(numbers[-1]).isoformat(),
            }
        )
    columns = (
        Column("thing", "what"),
        Column("what", "aspect"),
        Column("value", "is", _texts, long=True),
        Column("since", "seen since", write=_since),
        Column("since_known", hidden=True),
        Column("last", "last seen"),
    )
    return Table("state", "Doors, middleware and releases", columns, rows, empty=_NOT_TOLD)


def _since(row: Row) -> str:
    return str(row["since"]) if row["since_known"] else f"{row['since']} or before"


def _changes(history: History) -> Iterator[dict[str, Any]]:
    for aspect, by_day in history.items():
        numbers = list(by_day)
        for before, after in itertools.pairwise(numbers):
            if by_day[before] != by_day[after]:
                yield {
                    "day": days.of_number(after).isoformat(),
                    "thing": aspect.thing,
                    "what": aspect.what,
                    "before": sorted(by_day[before]),
                    "after": sorted(by_day[after]),
                }


def _changed(rows: Sequence[Row]) -> Table:
    columns = (
        Column("mark", "mark"),
        Column("day", "day (UTC)"),
        Column("thing", "what"),
        Column("what", "aspect"),
        Column("before", "was", _texts, long=True),
        Column("after", "is", _texts, long=True),
    )
    return Table("changes", "Changes", columns, rows, empty="Nothing changed in these days.")


def _failures(store: Store, asked: Asked, request: Request) -> Table:
    """What came back by day and outcome."""
    mine = Selection(wheres=(Where("site", "=", asked.site or None),))
    first, last = days.numbered(asked.first), days.numbered(asked.until)
    groups = store.figure(Figure((), (DAY,), mine, first, last, kind=None)).groups
    classes = sorted({name for group in groups for name in group.outcomes} - {GOOD, IMPLAUSIBLE})
    rows = [
        {
            "day": days.of_number(int(group.by[DAY] or 0)).isoformat(),
            "status": Judged.of(group.outcomes).status.value,
            **{name: group.outcomes.get(name, 0) for name in (GOOD, IMPLAUSIBLE, *classes)},
        }
        for group in reversed(groups)
    ]
    columns = (
        Column(
            "day",
            "day (UTC)",
            link=lambda row: link_to(request, "day", day=row["day"], query={"site": asked.site}),
        ),
        Column("status", "status", look=look),
        *number_columns(GOOD, IMPLAUSIBLE, *classes),
    )
    empty = "Nothing was measured in these days."
    return Table(
        "outcomes", "What came back, by day, of all kinds of execution", columns, rows, empty=empty
    )


def _work(works: Sequence[Work]) -> Table:
    rows = [{name: getattr(work, name) for name in Work.__annotations__} for work in works]
    variants = told_apart((work.variant for work in works), release_told=True)
    columns = (
        Column("test", "test"),
        variant_column(variants),
        Column("variant_label", hidden=True),
        Column("root", "ROOT"),
        Column("dataset", "dataset"),
        Column("door", "door"),
        Column("protocol", "protocol"),
    )
    return Table("work", "What was ever measured here", columns, rows, note=variants.note)


def _chart(points: Sequence[Point], changes: Sequence[Row], asked: Asked) -> Chart:
    def about(point: Point, value: float, what: str) -> str:
        when = days.written(days.of_number(point.time))
        return f"{'week of ' if asked.time == WEEK else ''}{when}: {what} {cell(value)}"

    own = [
        Dot(
            _middle(point, asked),
            point.shown,
            point.rms,
            f"{about(point, point.shown, asked.site)}, {point.number} timed measurements",
            hollow=point.own is None,
        )
        for point in points
    ]
    median = [
        Dot(
            _middle(point, asked),
            point.median,
            text=f"{about(point, point.median, 'median')} of {point.sites} sites",
        )
        for point in points
        if point.median is not None
    ]
    lines = [Line(asked.site or "this site", "own", own)]
    lines += [Line("median of similar sites", "median", median, round=False)] if median else []
    return Chart(
        f"{asked.metric} at {asked.site} by {asked.time}, from {days.written(asked.first)} to "
        f"{days.written(asked.until)}",
        lines,
        _marks(changes),
        asked.first,
        asked.until,
    )


def _middle(point: Point, asked: Asked) -> date:
    """The day that a point stands at: of a week the middle of its days that are shown."""
    day = days.of_number(point.time)
    if asked.time != WEEK:
        return day
    first, last = max(day, asked.first), min(day + timedelta(days=6), asked.until)
    return first + (last - first) / 2


def _marks(changes: Sequence[Row]) -> list[Mark]:
    """One a day, with all that changed on it."""
    texts: dict[tuple[str, int], list[str]] = {}
    for change in changes:
        text = f"{change['thing']}: {change['what']} {_texts(change['after'])}"
        texts.setdefault((change["day"], change["mark"]), []).append(text)
    return [
        Mark(date.fromisoformat(day), number, "; ".join(found))
        for (day, number), found in texts.items()
    ]
