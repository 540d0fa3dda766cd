"""Compare: what two releases, or any two selections, differ by; where, and how certainly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis import wording
from treehammer.analysis.attribution import concluded
from treehammer.analysis.samples import CONTEXT_AXES, SELECTION, natural_order
from treehammer.analysis.verdict import DELTA, ONE_SIDED, RELEASE, SERIES
from treehammer.errors import ConfigError, NothingToDo
from treehammer.sql import campaigns, overview
from treehammer.sql.overview import Compared
from treehammer.sql.rows import VerdictRow
from treehammer.sql.store import Store
from treehammer.web.pages import compared, effects, question
from treehammer.web.pages.campaigns import page_number, pages
from treehammer.web.pages.columns import tally
from treehammer.web.pages.context import (
    HTML,
    PageContext,
    View,
    for_people,
    form,
    link_to,
    sentence,
)
from treehammer.web.pages.question import Asked
from treehammer.web.pages.tables import SHOWN, Column, Row, Table
from treehammer.web.templating import moment

#: Stored comparisons on a page of their list.
LISTED = 20
#: Axes that every test has; others can be typed.
AXES = (
    "root",
    *CONTEXT_AXES,
    "branches",
    "cache_mb",
    "events",
    "access",
    "cache",
    "format",
    SELECTION,
)
#: Campaigns to choose from, the newest.
CAMPAIGNS = 100
#: How far the drawn axis reaches at most, in ln.
_FURTHEST = 2.5


def routes(context: PageContext) -> list[BaseRoute]:
    """Comparisons that were stored, one of them, and those that are made when they are asked for."""
    return [
        context.page("/compare", view, "compare"),
        context.page("/compare/{comparison}", stored, "comparison"),
    ]


def view(store: Store, request: Request) -> View:
    """The list of comparisons, or the one that the address asks for."""
    asked = question.read(request, store)
    if not asked.is_begun:
        return _listing(store, request, asked)
    try:
        asked.require_whole()
        if not request.query_params.get("now") and (rows := question.kept(store, asked)):
            return _shown(store, request, rows, asked)
        rows, notes = question.made(store, asked)
    except (ConfigError, NothingToDo) as error:
        if not for_people(request):
            raise
        # With the form, in which it can be asked for otherwise.
        listing = _listing(store, request, asked)
        status = 404 if isinstance(error, NothingToDo) else 400
        values = {**listing.values, "refused": sentence(error)}
        return replace(listing, values=values, status=status)
    return _shown(store, request, rows, asked, notes)


def stored(store: Store, request: Request) -> View:
    """One that was stored.

    Raises:
        NothingToDo: there is none of this identity.
    """
    identity = request.path_params["comparison"]
    rows = store.verdicts(identity) if len(identity) <= 64 and identity.isprintable() else []
    if not rows:
        raise NothingToDo("there is no such comparison", hint="It may have been made anew.")
    return _shown(store, request, rows, None)


def _listing(store: Store, request: Request, asked: Asked) -> View:
    number, count = page_number(request), overview.comparisons(store)
    found = overview.latest_comparisons(store, LISTED, (number - 1) * LISTED)
    names = compared.campaign_names(store, (one.first for one in found))
    columns = (
        *compared.columns(request),
        Column("judged_us", "judged", moment),
        Column("over_sites", "over all sites", write=_tallied(RELEASE), long=True),
        Column("by_site", "by site", write=_tallied(SERIES), long=True),
        Column("verdicts", hidden=True),
    )
    listed = Table(
        "comparisons",
        "Comparisons that were made, the newest first",
        columns,
        [_line(one, names) for one in found],
    )
    values = {
        "listed": listed,
        "page": number,
        "pages": pages(count, LISTED),
        "count": count,
        "refused": "",
    }
    values |= _form(store, asked)
    return View("compare.html.j2", "Compare", values, (listed,))


def _line(one: Compared, names: Mapping[str, str]) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = {RELEASE: Counter(), SERIES: Counter()}
    for of_metric in one.counts.values():
        for scope, verdicts in of_metric.items():
            counts[scope].update(verdicts)
    return {
        **compared.described(one.first, names),
        "over_sites": dict(counts[RELEASE].most_common()),
        "by_site": dict(counts[SERIES].most_common()),
        "verdicts": one.counts,
    }


def _tallied(scope: str) -> Callable[[Row], str]:
    def write(row: Row) -> str:
        return _times({metric: of.get(scope, {}) for metric, of in row["verdicts"].items()})

    return write


def _times(counts: Mapping[str, Mapping[str, int]]) -> str:
    """How often each verdict was given, of CPU and of wall time apart: both are of the same jobs."""
    told = (
        f"{wording.METRIC_TITLES.get(metric, metric)}: {tally(of)}"
        for metric, of in counts.items()
        if of
    )
    return "; ".join(told) or "–"


def _form(store: Store, asked: Asked) -> dict[str, Any]:
    releases = sorted(overview.releases(store), key=natural_order)
    known = campaigns.to_choose(store, CAMPAIGNS, asked.campaigns)
    return {"asked": asked, "axes": AXES, "campaigns": known, "releases": releases}


def _shown(
    store: Store,
    request: Request,
    rows: Sequence[VerdictRow],
    asked: Asked | None,
    live: Sequence[str] | None = None,
) -> View:
    """A comparison: ``live`` holds the notes of one that was made just now."""
    from treehammer.analysis import notes

    first = rows[0]
    series = [row for row in rows if row.scope == SERIES]
    missing = [row for row in series if row.verdict in ONE_SIDED]
    both = _sorted([row for row in series if row not in missing])
    pooled = _sorted([row for row in rows if row.scope == RELEASE])
    people = form(request) == HTML
    one_host = len({row.site for row in series}) == 1 and max(row.hosts for row in series) <= 1
    said = live if live is not None else list(notes.told(rows, one_host=one_host))
    names = compared.campaign_names(store, [first])
    a, b = wording.called(first, names)
    headed = replace(first, a=a, b=b)
    made = (
        (effects.pooled, pooled),
        (effects.by_site, both),
        (effects.missing, missing),
    )
    tables = [
        replace(
            table(request, _first(some, people), headed),
            note=_note(len(_first(some, people)), len(some)),
        )
        for table, some in made
    ]
    if not people and live is None:
        tables.append(effects.pairs(store, first.comparison_id))
    described = compared.described(first, names)
    values = {
        "tables": tables[:3],
        "lines": {
            "pooled": _lines(_first(pooled, people), rows),
            "by_site": _lines(_first(both, people), rows),
        },
        "delta": described["delta"] or DELTA,
        "reach": _reach(rows),
        "first": first,
        "counts": _counted(series),
        "notes": [*wording.not_pooled(pooled), *said],
        "attribution": concluded(rows, names),
        "asked_of": described,
        "campaign_names": names,
        "live": live is not None,
        "command": asked.command if asked and live is not None else "",
        "address": link_to(request, "comparison", comparison=first.comparison_id),
    }
    if asked:
        values |= _form(store, asked)
    return View("comparison.html.j2", described["compared"], values, tuple(tables))


def _counted(series: Sequence[VerdictRow]) -> str:
    counts: dict[str, Counter[str]] = {}
    for row in series:
        counts.setdefault(row.metric, Counter())[row.verdict] += 1
    return _times({metric: dict(of.most_common()) for metric, of in counts.items()})


def _first(rows: Sequence[VerdictRow], people: bool) -> Sequence[VerdictRow]:
    """What people see of the rows; programs get all."""
    return rows[:SHOWN] if people else rows


def _note(shown: int, of: int) -> str:
    return f"The first {shown} of {of:,} rows; CSV and JSON have all." if shown < of else ""


def weight(row: VerdictRow) -> float:
    """|effect| ÷ width of the interval: what stands out is first; below 0 where there is none."""
    if row.effect is None or row.low is None or row.high is None:
        return -1.0
    return abs(row.effect) / max(row.high - row.low, 1e-12)


def _sorted(rows: Sequence[VerdictRow]) -> list[VerdictRow]:
    return sorted(rows, key=weight, reverse=True)


def _reach(rows: Sequence[VerdictRow]) -> float:
    """How far the drawn axis reaches to either side, in ln."""
    ends = sorted(
        max(abs(row.low), abs(row.high))
        for row in rows
        if row.low is not None and row.high is not None
    )
    # Some wide intervals may leave the picture, so that the others can be told apart.
    usual = ends[int(0.9 * (len(ends) - 1))] if ends else DELTA
    return min(max(1.1 * usual, 2 * DELTA), _FURTHEST)


@dataclass(frozen=True)
class Drawn:
    """An effect with its interval between 0 and 100 along the drawn axis.

    Attributes:
        low: where the interval begins, at most as far as the axis reaches.
        high: where it ends.
        effect: None where it lies beyond the axis.
        before: whether the interval begins before the axis.
        beyond: whether it goes on after the axis.
    """

    low: float
    high: float
    effect: float | None
    before: bool
    beyond: bool


def _lines(rows: Sequence[VerdictRow], everything: Sequence[VerdictRow]) -> list[Drawn | None]:
    """What is drawn of each row; None where there is no interval."""
    reach = _reach(everything)
    return [_drawn(row, reach) for row in rows]


def _drawn(row: VerdictRow, reach: float) -> Drawn | None:
    if row.effect is None or row.low is None or row.high is None:
        return None

    def place(value: float) -> float:
        return round(50 + 50 * max(-1.0, min(1.0, value / reach)), 2)

    return Drawn(
        place(row.low),
        place(row.high),
        place(row.effect) if abs(row.effect) <= reach else None,
        row.low < -reach,
        row.high > reach,
    )
