"""What is otherwise than it was the day before yesterday (UTC), the worst first.

It is told of the same days whatever days the page shows, and from roll-ups, verdicts and campaigns
alone: versions of middleware, which only measurements know, are on the page of each site.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import date, timedelta
from enum import IntEnum
from itertools import pairwise

from starlette.requests import Request

from treehammer.analysis import wording
from treehammer.analysis.days import Judged, Status
from treehammer.analysis.verdict import RELEASE, SERIES, Verdict
from treehammer.sql import overview
from treehammer.sql.overview import Beginning
from treehammer.sql.store import IN_LIST, Store
from treehammer.terminal import counted
from treehammer.web.pages import compared, days
from treehammer.web.pages.columns import tally
from treehammer.web.pages.context import link_to
from treehammer.web.pages.matrix import Cell, Line

#: Days among which the day before a change is looked for.
DAYS = 14
#: Lines that a page shows at once.
SHOWN = 10
_NO_SITE = "(no site)"


class Gravity(IntEnum):
    """How bad something is; the worst is the lowest."""

    SUMMARY = 0
    FAILING = 1
    QUIET = 2
    SLOWER = 3
    WORSE = 4
    BETTER = 5
    NEW = 6


@dataclass(frozen=True)
class Part:
    """Some words, and the address they lead to, '' for none."""

    text: str
    address: str = ""


@dataclass(frozen=True)
class Item:
    """One line.

    Attributes:
        gravity: how bad it is.
        parts: its words.
        status: what a site is now, where the line is about that.
        bad: the share of its measurements that is not good.
    """

    gravity: Gravity
    parts: tuple[Part, ...]
    status: Status | None = None
    bad: float = 0.0

    @property
    def text(self) -> str:
        """All its words."""
        return "".join(part.text for part in self.parts)


def told(
    store: Store, request: Request, lines: Sequence[Line], today: date, named: int | None
) -> list[Item]:
    """What is new since yesterday began, the worst first.

    Args:
        store: the database.
        request: under which the service is reached.
        lines: sites over the last :data:`DAYS` days, with today.
        today: what day it is (UTC).
        named: how many sites or campaigns a line names; None for all.
    """
    yesterday = today - timedelta(days=1)
    since_us = days.midnight_us(yesterday)
    found = [*_came_in(lines, yesterday)]
    for line in lines:
        found += _changed(line, yesterday, request)
    found += _begun(overview.beginnings(store), days.numbered(yesterday), request, named)
    found += _compared(store, since_us, request)
    found += _submitted(store, since_us, request, named)
    return sorted(found, key=lambda item: (item.gravity, -item.bad))


def _came_in(lines: Sequence[Line], yesterday: date) -> Iterator[Item]:
    recent = [c.judged for line in lines for c in line.cells if c.day >= yesterday]
    names = (one.name for one in fields(Judged))
    whole = Judged(*(sum(getattr(one, name) for one in recent) for name in names))
    if whole.all:
        text = f"{counted(whole.all, 'measurement')} came in: {whole}."
        yield Item(Gravity.SUMMARY, (Part(text),))


def _changed(line: Line, yesterday: date, request: Request) -> Iterator[Item]:
    """The last change of a site's status since yesterday, held against the day measured before it."""
    measured = [cell for cell in line.cells if cell.judged.status is not Status.NO_DATA]
    if not measured:
        return
    last = measured[-1]
    if last.day == yesterday - timedelta(days=1):
        text = f": nothing was measured since {days.written(last.day)}."
        yield Item(Gravity.QUIET, (_day(request, line, last), Part(text)))
    turns = [
        (was, now)
        for was, now in pairwise(measured)
        if now.day >= yesterday and now.judged.status is not was.judged.status
    ]
    if turns:
        was, now = turns[-1]
        judged = last.judged
        since = f" since {days.written(now.day)}" if now is not last else ""
        text = (
            f": {judged.status}{since} ({judged} on "
            f"{days.written(last.day)}); {was.judged.status} on {days.written(was.day)}."
        )
        parts = (_day(request, line, last), Part(text))
        bad = 1 - judged.good / judged.judged
        yield Item(_gravity(was, judged.status), parts, judged.status, bad)


def _gravity(was: Cell, now: Status) -> Gravity:
    if now is Status.FAILING:
        return Gravity.FAILING
    worse = now is Status.WARNING and was.judged.status is Status.GOOD
    return Gravity.WORSE if worse else Gravity.BETTER


def _day(request: Request, line: Line, cell: Cell) -> Part:
    """The site, which leads to what it did on a day."""
    address = link_to(request, "day", day=cell.day, query={"site": line.site})
    return Part(line.site or _NO_SITE, address)


def _begun(
    found: Sequence[Beginning], yesterday: int, request: Request, named: int | None
) -> Iterator[Item]:
    """Sites, and their releases and doors, of which nothing was ever measured before yesterday."""
    of_site: dict[str, int] = {}
    for one in found:
        of_site[one.site] = min(one.first_day, of_site.get(one.site, one.first_day))
    new = [site for site, first in of_site.items() if first >= yesterday]
    if new:
        yield _listed("First measurements ever of", sorted(new), request, named)
    of_things: dict[str, dict[str, int]] = defaultdict(dict)
    for one in found:
        for thing in (one.root and f"ROOT {one.root}", one.door and f"door {one.door}"):
            if thing:
                first_days = of_things[thing]
                first_days[one.site] = min(one.first_day, first_days.get(one.site, one.first_day))
    for thing, first_days in sorted(of_things.items()):
        where = [
            site
            for site, first in first_days.items()
            if first >= yesterday and of_site[site] < yesterday
        ]
        if where:
            text = f"{thing}: first measurements ever at"
            yield _listed(text, sorted(where), request, named)


def _listed(text: str, names: Sequence[str], request: Request, named: int | None) -> Item:
    """A line that ends with names of sites, each a link to its page."""
    return Item(
        Gravity.NEW,
        (
            Part(f"{text} "),
            *_joined(
                [Part(name or _NO_SITE, link_to(request, "site", site=name)) for name in names],
                named,
            ),
        ),
    )


def _joined(parts: Sequence[Part], most: int | None) -> Iterator[Part]:
    """Names with commas between them, and how many more there are."""
    shown = parts[:most]
    for place, part in enumerate(shown):
        yield from (Part(", "), part) if place else (part,)
    more = len(parts) - len(shown)
    yield Part(f" and {more} more." if more else ".")


def _compared(store: Store, since_us: int, request: Request) -> Iterator[Item]:
    """Comparisons that were stored, with their verdicts over all sites, else by site."""
    found = overview.latest_comparisons(store, IN_LIST, since_us=since_us)
    campaigns = compared.campaign_names(store, (one.first for one in found))
    for one in found:
        counts = [
            f"{wording.METRIC_TITLES.get(metric, metric)} {tally(scopes.get(RELEASE) or scopes[SERIES])}"
            + ("" if scopes.get(RELEASE) else " by site")
            for metric, scopes in one.counts.items()
        ]
        slower = any(
            Verdict.SLOWER in verdicts
            for scopes in one.counts.values()
            for verdicts in scopes.values()
        )
        address = link_to(request, "comparison", comparison=one.first.comparison_id)
        parts = (
            Part(wording.title(one.first, campaigns), address),
            Part(f": {'; '.join(counts)}."),
        )
        yield Item(Gravity.SLOWER if slower else Gravity.NEW, parts)


def _submitted(store: Store, since_us: int, request: Request, named: int | None) -> Iterator[Item]:
    new = overview.campaigns_since(store, since_us)
    if new:
        names = [
            Part(one.name or one.id, link_to(request, "campaign", campaign_id=one.id))
            for one in new
        ]
        text = f"{counted(len(new), 'campaign')} submitted: "
        yield Item(Gravity.NEW, (Part(text), *_joined(names, named)))
