"""Compare: what two releases, or any two selections, differ by; where, and how certainly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis import wording
from treehammer.analysis.attribution import attributed
from treehammer.analysis.samples import CONTEXT_AXES, SELECTION, natural_order
from treehammer.analysis.verdict import DELTA, ONE_SIDED, RELEASE, SERIES, Evidence
from treehammer.errors import ConfigError, NothingToDo
from treehammer.sql import campaigns, overview
from treehammer.sql.overview import Compared
from treehammer.sql.rows import VerdictRow
from treehammer.sql.store import Store
from treehammer.web.pages import question
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
from treehammer.web.pages.tables import SHOWN, Column, Table
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
    if not asked.is_question:
        return _listing(store, request, asked)
    if not request.query_params.get("now") and (rows := question.kept(store, asked)):
        return _shown(store, request, rows, asked)
    try:
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
    rows = [_line(one) for one in overview.latest_comparisons(store, LISTED, (number - 1) * LISTED)]
    columns = (
        Column(
            "compared",
            "compared",
            long=True,
            link=lambda row: link_to(request, "comparison", comparison=row["comparison_id"]),
        ),
        Column("comparison_id", hidden=True),
        Column("judged_us", "judged", moment),
        Column("over_sites", "over all sites", tally, long=True),
        Column("by_site", "by site", tally, long=True),
    )
    listed = Table("comparisons", "Comparisons that were made, the newest first", columns, rows)
    values = {
        "listed": listed,
        "page": number,
        "pages": pages(count, LISTED),
        "count": count,
        "refused": "",
    }
    values |= _form(store, asked)
    return View("compare.html.j2", "Compare", values, (listed,))


def _line(one: Compared) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = {RELEASE: Counter(), SERIES: Counter()}
    for of_metric in one.counts.values():
        for scope, verdicts in of_metric.items():
            counts[scope].update(verdicts)
    return {
        "compared": title(one.first),
        "comparison_id": one.first.comparison_id,
        "judged_us": one.first.created_us,
        "over_sites": dict(counts[RELEASE].most_common()),
        "by_site": dict(counts[SERIES].most_common()),
    }


def title(row: VerdictRow) -> str:
    """What is compared, in words."""
    if row.axis == SELECTION:
        return f"{row.b} against {row.a}"
    return f"{row.axis} {row.b} against {row.a}"


def _form(store: Store, asked: Asked) -> dict[str, Any]:
    releases = sorted(overview.releases(store), key=natural_order)
    chosen = campaigns.newest(store, CAMPAIGNS)
    return {"asked": asked, "axes": AXES, "campaigns": chosen, "releases": releases}


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
    compared = _sorted([row for row in series if row not in missing])
    pooled = _sorted([row for row in rows if row.scope == RELEASE])
    people = form(request) == HTML
    one_host = len({row.site for row in series}) == 1 and max(row.hosts for row in series) <= 1
    said = live if live is not None else list(notes.told(rows, one_host=one_host))
    tables = [
        _table(request, "pooled", "Over all sites", _first(pooled, people), first, site=False),
        _table(request, "by_site", "By site", _first(compared, people), first),
        _missing(request, _first(missing, people), first),
    ]
    tables = [
        replace(table, note=_note(len(table.rows), len(rows)))
        for table, rows in zip(tables, (pooled, compared, missing), strict=True)
    ]
    if not people and live is None:
        tables.append(_pairs(store, first.comparison_id))
    values = {
        "tables": tables[:3],
        "lines": {
            "pooled": _lines(_first(pooled, people), rows),
            "by_site": _lines(_first(compared, people), rows),
        },
        "delta": Evidence.from_json(first.evidence).delta or DELTA,
        "reach": _reach(rows),
        "first": first,
        "counts": Counter(row.verdict for row in series).most_common(),
        "said": [*wording.not_pooled(pooled), *said],
        "attribution": attributed(rows),
        "live": live is not None,
        "command": asked.command if asked and live is not None else "",
        "address": link_to(request, "comparison", comparison=first.comparison_id),
    }
    if asked:
        values |= _form(store, asked)
    return View("comparison.html.j2", title(first), values, tuple(tables))


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


def _table(
    request: Request,
    name: str,
    caption: str,
    rows: Sequence[VerdictRow],
    first: VerdictRow,
    *,
    site: bool = True,
) -> Table:
    """One row a variant, site and time; programs get the evidence, too."""
    shown = [
        Column("label", "variant", long=True),
        *([Column("site", "site", link=lambda row: _site(request, row))] if site else []),
        Column("metric", "time", lambda metric: wording.METRIC_TITLES.get(metric, metric)),
        Column("change", "change", number=True),
        Column("interval", "interval", number=True),
        Column("shown_verdict", "verdict", look=lambda row: str(row["verdict"]).replace(" ", "-")),
        Column("jobs", "jobs on hosts", write=_extent, number=True),
        *([] if site else [Column("sites", "sites", lambda sites: str(len(sites)), number=True)]),
        *([_sides(first)] if site else []),
    ]
    flat = [_flat(row) for row in rows]
    keys = [column.key for column in shown]
    beside = [Column(key, hidden=True) for key in (flat[0] if flat else {}) if key not in keys]
    empty = "No series was measured on both sides." if site else "No effect over several sites."
    return Table(name, caption, (*shown, *beside), flat, empty=empty)


def _sides(first: VerdictRow) -> Column:
    """The times of both sides in one column, as people compare them."""

    def milliseconds(row: Mapping[str, Any]) -> str:
        values = (row["a_value"], row["b_value"])
        return " → ".join("–" if one is None else wording.milliseconds(one) for one in values)

    a, b = (first.a, first.b) if first.axis != SELECTION else ("A", "B")
    return Column("a_value", f"{a} → {b}, ms/event", write=milliseconds, number=True)


def _extent(row: Mapping[str, Any]) -> str:
    return f"{row['jobs']} on {row['hosts']}"


def _site(request: Request, row: Mapping[str, Any]) -> str:
    if row["axis"] == "site" or not row["site"]:
        return ""
    return link_to(request, "site", site=row["site"])


def _flat(row: VerdictRow) -> dict[str, Any]:
    return {
        **wording.flat(row),
        "change": wording.per_cent(row.effect) if row.effect is not None else "",
        "interval": wording.interval(row),
        "shown_verdict": wording.verdict(row),
    }


def _missing(request: Request, rows: Sequence[VerdictRow], first: VerdictRow) -> Table:
    columns = (
        Column("label", "variant", long=True),
        Column("site", "site", link=lambda row: _site(request, row)),
        Column("verdict", "verdict"),
        Column("metric", "time", lambda metric: wording.METRIC_TITLES.get(metric, metric)),
        Column("why", "why", long=True),
        Column("remedy", "what to do", long=True),
    )
    caption = f"On one side only (A: {first.a}, B: {first.b})"
    return Table("missing", caption, columns, [_flat(row) for row in rows])


def _pairs(store: Store, comparison: str) -> Table:
    """The pairs of jobs that the verdicts rest on, for programs."""
    rows = [asdict(row) for row in store.pairs(comparison)]
    columns = tuple(Column(key, key) for key in (rows[0] if rows else {}))
    return Table("pairs", "Pairs of jobs", columns, rows)


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
    """An effect with its interval between 0 and 100 along the drawn axis; None without one."""

    low: float
    high: float
    effect: float


def _lines(rows: Sequence[VerdictRow], everything: Sequence[VerdictRow]) -> list[Drawn | None]:
    reach = _reach(everything)

    def place(value: float) -> float:
        return round(50 + 50 * max(-1.0, min(1.0, value / reach)), 2)

    return [
        None
        if row.effect is None or row.low is None or row.high is None
        else Drawn(place(row.low), place(row.high), place(row.effect))
        for row in rows
    ]
