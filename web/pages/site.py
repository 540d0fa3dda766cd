"""Sites: all of them, and one with its series beside similar sites and what changed there."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from treehammer.analysis import peers
from treehammer.analysis.days import RULE, Judged
from treehammer.analysis.peers import Point
from treehammer.collectors.metrics import BY_NAME
from treehammer.errors import ConfigError, NothingToDo, did_you_mean
from treehammer.sql import overview, site_history
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
from treehammer.web.pages.units import Unit, aligned
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
    "variant": "variant_label",
    "root": "axis_root",
    "protocol": "door_protocol",
}
_NOT_TOLD = "It is told by the measurements; nothing was told in these days."


def routes(context: PageContext) -> list[BaseRoute]:
    """The list of sites, and each of them."""
    return [
        context.page("/sites", listing, "sites"),
        context.page(any_text("/sites/{site}"), view, "site"),
    ]


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


def listing(store: Store, request: Request) -> View:
    """Every site, with what came back in the last days."""
    today = days.today()
    first = today - timedelta(days=USUAL - 1)
    outcomes: dict[str, Counter[str]] = {}
    last: dict[str, int] = {}
    for one in overview.site_days(store, days.numbered(first), days.numbered(today)):
        outcomes.setdefault(one.site, Counter()).update(one.outcomes)
        last[one.site] = max(one.day, last.get(one.site, 0))
    figure = Figure((METRIC,), ("site",), first_day=days.numbered(first))
    means = {group.by["site"] or "": group.metrics[METRIC] for group in store.figure(figure).groups}
    rows: list[dict[str, Any]] = []
    for name in overview.sites(store):
        judged = Judged.of(outcomes.get(name, {}))
        moments = means.get(name)
        rows.append(
            {
                "site": name,
                "last_day": days.of_number(last[name]).isoformat() if name in last else None,
                "status": judged.status.value,
                "good": judged.good,
                "failed": judged.failed,
                "implausible": judged.implausible,
                "not_supported": judged.unsupported,
                METRIC: moments and moments.mean,
            }
        )
    efficiency = aligned((row[METRIC] for row in rows), Unit(""))
    columns = (
        Column("site", "site", link=lambda row: link_to(request, "site", site=row["site"])),
        Column("status", "status", look=_look),
        *number_columns("good", "failed", "implausible"),
        Column("not_supported", "not supported", number=True),
        Column(METRIC, "mean CPU efficiency of the job", efficiency, number=True),
        Column("last_day", "last measured", lambda day: day or f"over {USUAL} days ago"),
    )
    table = Table("sites", f"Sites, and their last {USUAL} days", columns, rows)
    return View("sites.html.j2", "Sites", {"sites": table, "rule": RULE}, (table,))


def _look(row: Row) -> str:
    return str(row["status"]).replace(" ", "-")


def view(store: Store, request: Request) -> View | Response:
    """One site."""
    site = str(request.path_params["site"])
    works = site_history.works(store, site)
    if not works:
        if not site and for_people(request):
            return RedirectResponse(link_to(request, "sites"))
        near = did_you_mean(site, overview.sites(store))
        raise NothingToDo(f"there is no site {site[:100]!r} that has measured anything", hint=near)
    asked = _asked(request, site)
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
        _state(history),
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
        "filters": {name: _options(works, name) for name in FILTERS},
        "similar": peers.SIMILAR,
        "weekly": asked.time == WEEK,
        "alone": not any(point.sites for point in points),
        "comparable": any(point.sites for point in points),
    }
    return View("site.html.j2", site or "(no site)", values, tables)


def _asked(request: Request, site: str) -> Asked:
    """Read the address.

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
    return Asked(site, metric, shown[0], shown[-1], int(count), filters)


def _options(works: Sequence[Work], name: str) -> list[str]:
    return sorted({text for work in works if (text := getattr(work, name))})


def _series(points: Sequence[Point], asked: Asked) -> Table:
    rows = [
        {
            asked.time: days.of_number(point.time).isoformat(),
            "measurements": point.number,
            "mean": point.mean,
            "compared": point.compared,
            "own": point.own,
            "error": point.error,
            "median": point.median,
            "difference": point.difference,
            "sites": point.sites,
        }
        for point in points
    ]
    columns = (
        Column(asked.time, "week of" if asked.time == WEEK else "day (UTC)"),
        Column("measurements", "measurements", number=True),
        Column("mean", "mean of all", number=True),
        Column("compared", "compared", number=True),
        Column("own", "their mean", number=True),
        Column("error", "± standard error", number=True),
        Column("median", "median of similar sites", number=True),
        Column("difference", "difference", _per_cent, number=True),
        Column("sites", "similar sites", number=True),
    )
    caption = f"{asked.metric} by {asked.time}, and the median of similar sites"
    return Table("series", caption, columns, rows)


def _per_cent(share: float | None) -> str:
    return "–" if share is None else f"{share:+.1%}".replace("-", "−").replace("%", " %")


def _texts(found: Sequence[str]) -> str:
    return ", ".join(found)


def _state(history: History) -> Table:
    """What everything was last, and since when."""
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
                "last": days.of_number(numbers[-1]).isoformat(),
            }
        )
    columns = (
        Column("thing", "what"),
        Column("what", "aspect"),
        Column("value", "is", _texts, long=True),
        Column("since", "seen since"),
        Column("last", "last seen"),
    )
    return Table("state", "Doors, middleware and releases", columns, rows, empty=_NOT_TOLD)


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
        Column("status", "status", look=_look),
        *number_columns(GOOD, IMPLAUSIBLE, *classes),
    )
    empty = "Nothing was measured in these days."
    return Table("outcomes", "What came back, by day", columns, rows, empty=empty)


def _work(works: Sequence[Work]) -> Table:
    rows = [{name: getattr(work, name) for name in Work.__annotations__} for work in works]
    columns = (
        Column("test", "test"),
        variant_column("variant"),
        Column("root", "ROOT"),
        Column("dataset", "dataset"),
        Column("door", "door"),
        Column("protocol", "protocol"),
    )
    return Table("work", "What was ever measured here", columns, rows)


def _chart(points: Sequence[Point], changes: Sequence[Row], asked: Asked) -> Chart:
    def about(point: Point, value: float, what: str) -> str:
        return f"{days.written(days.of_number(point.time))}: {what} {cell(value)}"

    own = [
        Dot(
            days.of_number(point.time),
            point.shown,
            point.error,
            f"{about(point, point.shown, asked.site)}, {point.number} measurements",
            hollow=point.own is None,
        )
        for point in points
    ]
    median = [
        Dot(
            days.of_number(point.time),
            point.median,
            text=f"{about(point, point.median, 'median')} of {point.sites} sites",
        )
        for point in points
        if point.median is not None
    ]
    lines = [Line(asked.site or "this site", "own", own)]
    lines += [Line("median of similar sites", "median", median, round=False)] if median else []
    marks: dict[str, Mark] = {}
    for change in changes:
        text = f"{change['thing']}: {change['what']} {_texts(change['after'])}"
        before = f"{marks[change['day']].text}; " if change["day"] in marks else ""
        day = date.fromisoformat(change["day"])
        marks[change["day"]] = Mark(day, str(change["mark"]), before + text)
    # The Monday of the first week may be before the first day.
    first = min(asked.first, days.of_number(points[0].time))
    return Chart(
        f"{asked.metric} at {asked.site} by {asked.time}, from {days.written(first)} to "
        f"{days.written(asked.until)}",
        lines,
        list(marks.values()),
        first,
        asked.until,
    )
