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

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.descriptive.day_status import DayOutcomes, DayStatus
from treehammer.analysis.statistics.verdict import RELEASE_SCOPE, SERIES_SCOPE, Verdict
from treehammer.sql.read import overview_queries
from treehammer.sql.read.overview_queries import FirstMeasurement
from treehammer.sql.read.reader import MAX_IN_LIST
from treehammer.sql.write.store import Store
from treehammer.text_formatting import pluralize
from treehammer.web.display import calendar_days
from treehammer.web.views.compare import comparison_columns
from treehammer.web.views.shared.common_columns import format_counts
from treehammer.web.views.shared.page_context import link_to
from treehammer.web.views.shared.site_day_matrix import DayCell, SiteRow

#: Days among which the day before a change is looked for.
LOOKBACK_DAYS = 14
#: Lines that a page shows at once.
MAX_CHANGES = 10
_NO_SITE = "(no site)"


class ChangeSeverity(IntEnum):
    """How bad something is; the worst is the lowest."""

    SUMMARY = 0
    FAILING = 1
    QUIET = 2
    SLOWER = 3
    WORSE = 4
    BETTER = 5
    NEW = 6


@dataclass(frozen=True)
class TextPart:
    """Some words, and the address they lead to, '' for none."""

    text: str
    address: str = ""


@dataclass(frozen=True)
class Change:
    """One line.

    Attributes:
        gravity: how bad it is.
        parts: its words.
        status: what a site is now, where the line is about that.
        bad: the share of its measurements that is not good.
    """

    gravity: ChangeSeverity
    parts: tuple[TextPart, ...]
    status: DayStatus | None = None
    failing_share: float = 0.0

    @property
    def text(self) -> str:
        """All its words."""
        return "".join(part.text for part in self.parts)


def changes_since_yesterday(
    store: Store, request: Request, lines: Sequence[SiteRow], today: date, named: int | None
) -> list[Change]:
    """What is new since yesterday began, the worst first.

    Args:
        store: the database.
        request: under which the service is reached.
        lines: sites over the last :data:`DAYS` days, with today.
        today: what day it is (UTC).
        named: how many sites or campaigns a line names; None for all.
    """
    yesterday = today - timedelta(days=1)
    since_us = calendar_days.midnight_us(yesterday)
    found = [*_arrival_change(lines, yesterday)]
    for line in lines:
        found += _status_change(line, yesterday, request)
    found += _first_measurement_changes(
        overview_queries.list_first_measurements(store),
        calendar_days.day_number(yesterday),
        request,
        named,
    )
    found += _comparison_changes(store, since_us, request)
    found += _submission_changes(store, since_us, request, named)
    return sorted(found, key=lambda item: (item.gravity, -item.failing_share))


def _arrival_change(lines: Sequence[SiteRow], yesterday: date) -> Iterator[Change]:
    recent = [c.judged for line in lines for c in line.cells if c.day >= yesterday]
    names = (one.name for one in fields(DayOutcomes))
    whole = DayOutcomes(*(sum(getattr(one, name) for one in recent) for name in names))
    if whole.total:
        text = f"{pluralize(whole.total, 'measurement')} came in: {whole}."
        yield Change(ChangeSeverity.SUMMARY, (TextPart(text),))


def _status_change(line: SiteRow, yesterday: date, request: Request) -> Iterator[Change]:
    """The last change of a site's status since yesterday, held against the day measured before it."""
    measured = [cell for cell in line.cells if cell.judged.status is not DayStatus.NO_DATA]
    if not measured:
        return
    last = measured[-1]
    if last.day == yesterday - timedelta(days=1):
        text = f": nothing was measured since {calendar_days.format_day(last.day)}."
        yield Change(ChangeSeverity.QUIET, (_link_to_day(request, line, last), TextPart(text)))
    turns = [
        (was, now)
        for was, now in pairwise(measured)
        if now.day >= yesterday and now.judged.status is not was.judged.status
    ]
    if turns:
        was, now = turns[-1]
        judged = last.judged
        since = f" since {calendar_days.format_day(now.day)}" if now is not last else ""
        text = (
            f": {judged.status}{since} ({judged} on "
            f"{calendar_days.format_day(last.day)}); {was.judged.status} on {calendar_days.format_day(was.day)}."
        )
        parts = (_link_to_day(request, line, last), TextPart(text))
        bad = 1 - judged.good / judged.assessed
        yield Change(_status_severity(was, judged.status), parts, judged.status, bad)


def _status_severity(was: DayCell, now: DayStatus) -> ChangeSeverity:
    if now is DayStatus.FAILING:
        return ChangeSeverity.FAILING
    worse = now is DayStatus.WARNING and was.judged.status is DayStatus.GOOD
    return ChangeSeverity.WORSE if worse else ChangeSeverity.BETTER


def _link_to_day(request: Request, line: SiteRow, cell: DayCell) -> TextPart:
    """The site, which leads to what it did on a day."""
    address = link_to(request, "day", day=cell.day, query={"site": line.site})
    return TextPart(line.site or _NO_SITE, address)


def _first_measurement_changes(
    found: Sequence[FirstMeasurement], yesterday: int, request: Request, named: int | None
) -> Iterator[Change]:
    """Sites, and their releases and doors, of which nothing was ever measured before yesterday."""
    of_site: dict[str, int] = {}
    for one in found:
        of_site[one.site] = min(one.first_day, of_site.get(one.site, one.first_day))
    new = [site for site, first in of_site.items() if first >= yesterday]
    if new:
        yield _site_list_change("First measurements ever of", sorted(new), request, named)
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
            yield _site_list_change(text, sorted(where), request, named)


def _site_list_change(
    text: str, names: Sequence[str], request: Request, named: int | None
) -> Change:
    """A line that ends with names of sites, each a link to its page."""
    return Change(
        ChangeSeverity.NEW,
        (
            TextPart(f"{text} "),
            *_join_parts(
                [TextPart(name or _NO_SITE, link_to(request, "site", site=name)) for name in names],
                named,
            ),
        ),
    )


def _join_parts(parts: Sequence[TextPart], most: int | None) -> Iterator[TextPart]:
    """Names with commas between them, and how many more there are."""
    shown = parts[:most]
    for place, part in enumerate(shown):
        yield from (TextPart(", "), part) if place else (part,)
    more = len(parts) - len(shown)
    yield TextPart(f" and {more} more." if more else ".")


def _comparison_changes(store: Store, since_us: int, request: Request) -> Iterator[Change]:
    """Comparisons that were stored, with their verdicts over all sites, else by site."""
    found = overview_queries.list_latest_comparisons(store, MAX_IN_LIST, since_us=since_us)
    campaigns = comparison_columns.load_campaign_names(store, (one.first_verdict for one in found))
    for one in found:
        counts = [
            f"{verdict_text.METRIC_TITLES.get(metric, metric)} {format_counts(scopes.get(RELEASE_SCOPE) or scopes[SERIES_SCOPE])}"
            + ("" if scopes.get(RELEASE_SCOPE) else " by site")
            for metric, scopes in one.verdict_counts.items()
        ]
        slower = any(
            Verdict.SLOWER in verdicts
            for scopes in one.verdict_counts.values()
            for verdicts in scopes.values()
        )
        address = link_to(request, "comparison", comparison=one.first_verdict.comparison_id)
        parts = (
            TextPart(verdict_text.comparison_title(one.first_verdict, campaigns), address),
            TextPart(f": {'; '.join(counts)}."),
        )
        yield Change(ChangeSeverity.SLOWER if slower else ChangeSeverity.NEW, parts)


def _submission_changes(
    store: Store, since_us: int, request: Request, named: int | None
) -> Iterator[Change]:
    new = overview_queries.list_campaigns_since(store, since_us)
    if new:
        names = [
            TextPart(one.name or one.id, link_to(request, "campaign", campaign_id=one.id))
            for one in new
        ]
        text = f"{pluralize(len(new), 'campaign')} submitted: "
        yield Change(ChangeSeverity.NEW, (TextPart(text), *_join_parts(names, named)))
