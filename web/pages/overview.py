"""The first page: what runs now, what changed since yesterday, the latest verdicts, days of sites."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis import wording
from treehammer.analysis.days import RULE, Status
from treehammer.analysis.verdict import RELEASE, SERIES, Verdict
from treehammer.errors import ConfigError
from treehammer.sql import overview
from treehammer.sql.overview import Compared
from treehammer.sql.rows import VerdictRow
from treehammer.sql.store import Store
from treehammer.submit.batch.base import JobState
from treehammer.web.pages import compared, days, news
from treehammer.web.pages.campaigns import campaign_table
from treehammer.web.pages.columns import tally
from treehammer.web.pages.context import HTML, PageContext, View, form, link_to
from treehammer.web.pages.matrix import Line, matrix
from treehammer.web.pages.tables import Column, Table
from treehammer.web.templating import moment

#: Days that the matrix has, and those it may be asked for.
DAYS, CHOICES = 14, (7, 14, 30, 60)
#: The latest comparisons that are shown.
COMPARISONS = 5
#: Sites and campaigns that are named one by one.
NAMED = 10

_OPEN = [state.value for state in JobState if not state.final]


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
    people = form(request) == HTML
    if until == today and count >= news.DAYS:
        recent = [replace(line, cells=line.cells[-news.DAYS :]) for line in lines]
    else:
        recent = matrix(store, days.until(today, news.DAYS))
    quiet = sorted({*overview.sites(store)} - {line.site for line in lines})
    values = {
        "now": time.time_ns() // 1000,
        "running": running,
        "news": news.told(store, request, recent, today, NAMED if people else None),
        "told_at_once": news.SHOWN,
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
    told = _site_days(() if people else lines)
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
    latest = overview.latest_comparisons(store, COMPARISONS)
    names = compared.campaign_names(store, (one.first for one in latest))
    certain = (Verdict.FASTER.value, Verdict.SLOWER.value)
    largest = overview.largest(store, [one.first.comparison_id for one in latest], certain)
    rows = [_compared(one, metric, names, largest) for one in latest for metric in one.counts]
    columns = (
        *compared.columns(request),
        Column("metric", "time", lambda metric: wording.METRIC_TITLES.get(metric, metric)),
        Column("over_sites", "variants over all sites", tally, long=True),
        Column("by_site", "variants by site", tally, long=True),
        Column("largest", "largest certain effect", long=True),
        Column("judged_us", "judged", moment),
    )
    return Table("verdicts", f"The latest comparisons, {COMPARISONS} at most", columns, rows)


def _compared(
    one: Compared,
    metric: str,
    names: Mapping[str, str],
    largest: Mapping[tuple[str, str], VerdictRow],
) -> dict[str, Any]:
    first, counts = one.first, one.counts[metric]
    return {
        **compared.described(first, names),
        "metric": metric,
        "over_sites": dict(counts.get(RELEASE, {})),
        "by_site": dict(counts.get(SERIES, {})),
        "largest": _told(largest.get((first.comparison_id, metric))),
    }


def _told(row: VerdictRow | None) -> str:
    if row is None:
        return "none"
    where = row.site if row.scope == SERIES else "all sites"
    effect = wording.per_cent(row.effect or 0.0)
    return f"{row.verdict} by {effect} ({wording.interval(row)}): {row.label}, {where}"


def _named(sites: Sequence[str]) -> str:
    more = f" and {len(sites) - NAMED} more" if len(sites) > NAMED else ""
    return ", ".join(sites[:NAMED]) + more
