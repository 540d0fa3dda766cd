"""The first page: what runs now, what changed since yesterday, the latest verdicts, days of sites."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis import wording
from treehammer.analysis.days import RULE, Judged, Status
from treehammer.analysis.verdict import RELEASE, SERIES, Verdict
from treehammer.errors import ConfigError
from treehammer.sql import overview
from treehammer.sql.overview import Compared
from treehammer.sql.rows import VerdictRow
from treehammer.sql.store import Store
from treehammer.submit.batch.base import JobState
from treehammer.terminal import counted
from treehammer.web.pages import days
from treehammer.web.pages.campaigns import campaign_table
from treehammer.web.pages.columns import tally
from treehammer.web.pages.context import HTML, PageContext, View, form, link_to
from treehammer.web.pages.tables import Column, Table
from treehammer.web.templating import moment

#: Days that the matrix has, and those it may be asked for.
DAYS, CHOICES = 14, (7, 14, 30, 60)
#: The latest comparisons that are shown.
COMPARISONS = 5
#: Campaigns and sites that are named one by one.
NAMED = 10

_OPEN = [state.value for state in JobState if not state.final]


@dataclass(frozen=True)
class Cell:
    """A site on a day."""

    day: date
    judged: Judged


@dataclass(frozen=True)
class Line:
    """A site over the days of the matrix."""

    site: str
    cells: tuple[Cell, ...]

    @property
    def query(self) -> str:
        """What names the site in an address."""
        return urlencode({"site": self.site})


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the overview."""
    return [context.page("/", view, "overview")]


def view(store: Store, request: Request) -> View:
    """What the overview shows."""
    today = days.today()
    until, count = _window(request, today)
    shown = days.until(until, count)
    lines = matrix(store, shown)
    newest = overview.last_day(store)
    running = campaign_table(
        "running",
        "Campaigns with jobs that are not over",
        overview.under_way(store, _OPEN),
        request,
    )
    verdicts = _verdicts(store, request)
    recent = lines if shown[-1] == today else matrix(store, days.until(today, DAYS))
    quiet = sorted({*overview.sites(store)} - {line.site for line in lines})
    values = {
        "now": time.time_ns() // 1000,
        "running": running,
        "news": list(_news(store, recent, today)),
        "verdicts": verdicts,
        "days": shown,
        "months": [(text, len(list(group))) for text, group in _months(shown)],
        "lines": lines,
        "count": count,
        "choices": CHOICES,
        "until": until,
        "is_now": until == today,
        "newest": days.of_number(newest) if newest else None,
        "quiet": _named(quiet),
        "rule": RULE,
        "statuses": list(Status),
        "written": days.written,
        # Made once, and not for each of a thousand cells.
        "looks": {status: status.replace(" ", "-") for status in Status},
        "addresses": {day: link_to(request, "day", day=day) for day in shown},
        "day_names": {day: days.written(day) for day in shown},
    }
    told = _site_days(() if form(request) == HTML else lines)
    return View("overview.html.j2", "Overview", values, (told, running, verdicts))


def _window(request: Request, today: date) -> tuple[date, int]:
    """The last day of the matrix, and how many it has.

    Raises:
        ConfigError: the address asks for what is no day, or for too many.
    """
    asked = request.query_params
    until = days.asked(asked["until"], "until") if asked.get("until") else today
    text = asked.get("days", str(DAYS))
    if text not in map(str, CHOICES):
        raise ConfigError(f"days must be one of {', '.join(map(str, CHOICES))}, not {text[:40]!r}")
    return until, int(text)


def matrix(store: Store, shown: Sequence[date]) -> list[Line]:
    """The sites that measured something on these days, and what each day was."""
    found = overview.site_days(store, days.numbered(shown[0]), days.numbered(shown[-1]))
    by_place = {(one.site, one.day): Judged.of(one.outcomes) for one in found}
    nothing = Judged(0, 0, 0)
    return [
        Line(
            site,
            tuple(Cell(day, by_place.get((site, days.numbered(day)), nothing)) for day in shown),
        )
        for site in dict.fromkeys(one.site for one in found)
    ]


def _months(shown: Sequence[date]) -> list[tuple[str, list[date]]]:
    found: dict[str, list[date]] = {}
    for day in shown:
        found.setdefault(f"{day:%B} {day.year}", []).append(day)
    return list(found.items())


def _site_days(lines: Sequence[Line]) -> Table:
    rows = [
        {
            "site": line.site,
            "day": cell.day.isoformat(),
            "status": cell.judged.status.value,
            "good": cell.judged.good,
            "failed": cell.judged.failed,
            "implausible": cell.judged.implausible,
            "not_supported": cell.judged.unsupported,
        }
        for line in lines
        for cell in line.cells
    ]
    keys = ("site", "day", "status", "good", "failed", "implausible", "not_supported")
    return Table("site_days", "Sites by day", tuple(Column(key, key) for key in keys), rows)


def _verdicts(store: Store, request: Request) -> Table:
    """One row a comparison and metric: what was concluded how often, and the largest effect."""
    rows = [
        _compared(store, one, metric)
        for one in overview.latest_comparisons(store, COMPARISONS)
        for metric in one.counts
    ]
    columns = (
        Column(
            "compared",
            "compared",
            link=lambda row: link_to(request, "comparison", comparison=row["comparison_id"]),
        ),
        Column("comparison_id", hidden=True),
        Column("metric", "time", lambda metric: wording.METRIC_TITLES.get(metric, metric)),
        Column("over_sites", "variants over all sites", tally, long=True),
        Column("by_site", "variants by site", tally, long=True),
        Column("largest", "largest certain effect", long=True),
        Column("judged_us", "judged", moment),
    )
    return Table("verdicts", f"The latest comparisons, {COMPARISONS} at most", columns, rows)


def _compared(store: Store, one: Compared, metric: str) -> dict[str, Any]:
    first, counts = one.first, one.counts[metric]
    certain = (Verdict.FASTER.value, Verdict.SLOWER.value)
    return {
        "compared": f"{first.axis} {first.b} against {first.a}",
        "comparison_id": first.comparison_id,
        "metric": metric,
        "over_sites": dict(counts.get(RELEASE, {})),
        "by_site": dict(counts.get(SERIES, {})),
        "largest": _told(overview.largest(store, first.comparison_id, metric, certain)),
        "judged_us": first.created_us,
    }


def _told(row: VerdictRow | None) -> str:
    if row is None:
        return "none"
    where = row.site if row.scope == SERIES else "all sites"
    effect = wording.per_cent(row.effect or 0.0)
    return f"{row.verdict} by {effect} ({wording.interval(row)}): {row.label}, {where}"


def _news(store: Store, lines: Sequence[Line], today: date) -> Iterator[dict[str, Any]]:
    """What is otherwise since yesterday (UTC), a sentence each with what it leads to."""
    yesterday = today - timedelta(days=1)
    new = overview.campaigns_since(store, days.midnight_us(yesterday))
    recent = [c.judged for line in lines for c in line.cells if c.day >= yesterday]
    names = (one.name for one in fields(Judged))
    whole = Judged(*(sum(getattr(one, name) for one in recent) for name in names))
    if whole.all:
        yield {"text": f"{counted(whole.all, 'measurement')} came in: {whole}."}
    if new:
        yield {
            "text": f"{counted(len(new), 'campaign')} submitted:",
            "campaigns": new[:NAMED],
            "more": len(new[NAMED:]),
        }
    first = [line.site for line in lines if _begins(line, yesterday)]
    if first:
        yield {"text": f"First measurements in {len(lines[0].cells)} days: {_named(first)}."}
    for line in lines:
        yield from _changed(line, yesterday)


def _named(sites: Sequence[str]) -> str:
    more = f" and {len(sites) - NAMED} more" if len(sites) > NAMED else ""
    return ", ".join(sites[:NAMED]) + more


def _begins(line: Line, yesterday: date) -> bool:
    """Whether all that a site has measured is of yesterday and today."""
    return all(cell.day >= yesterday for cell in line.cells if cell.judged.all)


def _changed(line: Line, yesterday: date) -> Iterator[dict[str, Any]]:
    measured = [cell for cell in line.cells if cell.judged.status is not Status.NO_DATA]
    before = [cell for cell in measured if cell.day < yesterday]
    since = [cell for cell in measured if cell.day >= yesterday]
    if before and not since and before[-1].day == yesterday - timedelta(days=1):
        yield {
            "text": f"{line.site}: nothing was measured, after daily measurements until {days.written(before[-1].day)}."
        }
    if before and since and before[-1].judged.status != since[-1].judged.status:
        was, now = before[-1], since[-1]
        yield {
            "site": line.site,
            "day": now.day,
            "status": now.judged.status,
            "text": f"{line.site}: {now.judged.status} on {days.written(now.day)} ({now.judged}), "
            f"{was.judged.status} on {days.written(was.day)}.",
        }
