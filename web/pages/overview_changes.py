"""Changes since the start of yesterday (UTC), most severe first.

The period does not depend on the days shown on the page. Changes are derived from roll-ups and
campaigns alone; middleware versions, which only measurements record, are on the sites' pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from enum import IntEnum
from itertools import pairwise

from treehammer.analysis.status.rule_judgements import DayOutcomes
from treehammer.analysis.status.subject_state import SiteState
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.read import overview_queries
from treehammer.sql.read.overview_queries import FirstMeasurement
from treehammer.sql.write.store import Store
from treehammer.text_formatting import pluralize
from treehammer.web.addresses import link_to
from treehammer.web.display_formats import day_number, format_day, midnight_us
from treehammer.web.pages.overview_tiles import DayCell, SiteRow, sum_outcomes
from treehammer.web.sections import Badge, Link, Paragraph

#: Days searched for the last status before a change.
LOOKBACK_DAYS = 14
#: Changes shown before the rest is folded.
MAX_CHANGES = 10
#: Sites named of those that stopped reporting; without any data, all sites did.
MAX_QUIET_SITES = 6
_NO_SITE = "(no site)"


class ChangeSeverity(IntEnum):
    """Severity of a change, most severe first."""

    SUMMARY = 0
    CRITICAL = 1
    QUIET = 2
    WORSE = 3
    BETTER = 4
    NEW = 5


@dataclass(frozen=True)
class ChangeSentence:
    """One change as a sentence.

    Attributes:
        severity: how severe it is.
        parts: parts of the sentence.
        status: current status of the site, for changes of a status.
        failing_share: share of the site's measurements that are not good.
        explanation: who and why, which several sites may share.
    """

    severity: ChangeSeverity
    parts: tuple[Link | str, ...]
    status: SiteState | None = None
    failing_share: float = 0.0
    explanation: str = ""

    @property
    def text(self) -> str:
        """The whole sentence."""
        return "".join(part if isinstance(part, str) else str(part.text) for part in self.parts)

    @property
    def paragraph(self) -> Paragraph:
        """The sentence with links, after the status."""
        status = (Badge(self.status.value), " ") if self.status else ()
        return Paragraph(*status, *self.parts)


def changes_since_yesterday(
    store: Store,
    sites: Sequence[SiteRow[DayOutcomes]],
    states: Mapping[str, StatusChangeRow],
    today: date,
    max_named: int | None,
) -> list[ChangeSentence]:
    """List changes since the start of yesterday, most severe first.

    Args:
        store: the database.
        sites: sites over the last :data:`LOOKBACK_DAYS` days including today.
        states: current state of the jobs of each site, which explains new failures.
        today: current day (UTC).
        max_named: maximum number of sites or campaigns named per change; None for all.
    """
    yesterday = today - timedelta(days=1)
    since_us = midnight_us(yesterday)
    changes = [*_arrival_change(sites, yesterday)]
    max_quiet = None if max_named is None else MAX_QUIET_SITES
    changes += _quiet_change(sites, yesterday - timedelta(days=1), max_quiet)
    for site in sites:
        changes += _status_change(site, states.get(site.site), yesterday)
    changes += _first_measurement_changes(
        overview_queries.list_first_measurements(store),
        day_number(yesterday),
        max_named,
    )
    changes += _submission_changes(store, since_us, max_named)
    changes.sort(key=lambda change: (change.severity, -change.failing_share))
    return [*_add_explanations(changes)]


def _add_explanations(changes: Iterable[ChangeSentence]) -> Iterator[ChangeSentence]:
    """Add each explanation to the first of the changes that share it."""
    added = {""}
    for change in changes:
        is_new = change.explanation not in added
        added.add(change.explanation)
        parts = (*change.parts, f" {change.explanation}") if is_new else change.parts
        yield replace(change, parts=parts)


def _arrival_change(
    sites: Sequence[SiteRow[DayOutcomes]], yesterday: date
) -> Iterator[ChangeSentence]:
    recent = [cell.judged for site in sites for cell in site.cells if cell.day >= yesterday]
    total = sum_outcomes(recent) if recent else DayOutcomes(0, 0, 0)
    if total.total:
        text = f"{pluralize(total.total, 'measurement')} received: {total}."
        yield ChangeSentence(ChangeSeverity.SUMMARY, (text,))


def _quiet_change(
    sites: Iterable[SiteRow[DayOutcomes]], day: date, max_named: int | None
) -> Iterator[ChangeSentence]:
    """Name the sites whose last measurements are of a day."""
    last_days = [(site, _list_measured_days(site)[-1:]) for site in sites]
    names = [
        _link_to_day(site, last) for site, days in last_days for last in days if last.day == day
    ]
    since = format_day(day)
    if len(names) == 1:
        text = f": no measurements since {since}."
        yield ChangeSentence(ChangeSeverity.QUIET, (*names, text))
    elif names:
        text = f"No measurements since {since}: "
        parts = (text, *_join_parts(names, max_named))
        yield ChangeSentence(ChangeSeverity.QUIET, parts)


def _list_measured_days(site: SiteRow[DayOutcomes]) -> list[DayCell[DayOutcomes]]:
    return [cell for cell in site.cells if cell.judged.status is not SiteState.UNKNOWN]


def _status_change(
    site: SiteRow[DayOutcomes],
    state: StatusChangeRow | None,
    yesterday: date,
) -> Iterator[ChangeSentence]:
    """Find the latest change of a site's status since the previous measured day, with its explanation."""
    measured = _list_measured_days(site)
    transitions = [
        (before, now)
        for before, now in pairwise(measured)
        if now.day >= yesterday and now.judged.status is not before.judged.status
    ]
    if transitions:
        before, now = transitions[-1]
        last = measured[-1]
        judged = last.judged
        since = f" since {format_day(now.day)}" if now is not last else ""
        text = (
            f": {judged.status}{since} ({judged} on "
            f"{format_day(last.day)}); {before.judged.status} on {format_day(before.day)}."
        )
        severity = _status_severity(before, judged.status)
        is_worse = severity in (ChangeSeverity.CRITICAL, ChangeSeverity.WORSE)
        explanation = state.evidence.explanation if state and is_worse else None
        parts = (_link_to_day(site, last), text)
        bad = 1 - judged.good / judged.assessed
        yield ChangeSentence(severity, parts, judged.status, bad, str(explanation or ""))


def _status_severity(before: DayCell[DayOutcomes], now: SiteState) -> ChangeSeverity:
    if now is SiteState.CRITICAL:
        return ChangeSeverity.CRITICAL
    worse = now is SiteState.WARNING and before.judged.status is SiteState.OK
    return ChangeSeverity.WORSE if worse else ChangeSeverity.BETTER


def _link_to_day(site: SiteRow[DayOutcomes], cell: DayCell[DayOutcomes]) -> Link:
    """Name of the site, linked to its page of the day."""
    address = link_to("day", day=cell.day, query={"site": site.site})
    return Link(site.site or _NO_SITE, address)


def _first_measurement_changes(
    records: Sequence[FirstMeasurement], yesterday: int, max_named: int | None
) -> Iterator[ChangeSentence]:
    """Return the new sites, and releases and doors that are new at known sites."""
    earlier = [record for record in records if record.first_day < yesterday]
    new_sites = {record.site for record in records} - {record.site for record in earlier}
    if new_sites:
        yield _site_list_change("First measurements from", sorted(new_sites), max_named)
    at_known_sites = [record for record in records if record.site not in new_sites]
    sites_by_feature: dict[str, list[str]] = defaultdict(list)
    for feature, site in sorted(_measured_features(at_known_sites) - _measured_features(earlier)):
        sites_by_feature[feature].append(site)
    for feature, sites in sites_by_feature.items():
        yield _site_list_change(f"{feature}: first measurements at", sites, max_named)


def _measured_features(records: Iterable[FirstMeasurement]) -> set[tuple[str, str]]:
    """Return the releases and doors that were measured, each with the site."""
    releases = {(f"ROOT {record.root}", record.site) for record in records if record.root}
    return releases | {(f"door {record.door}", record.site) for record in records if record.door}


def _site_list_change(text: str, names: Sequence[str], max_named: int | None) -> ChangeSentence:
    """Build a sentence that ends with names of sites, linked to their pages."""
    return ChangeSentence(
        ChangeSeverity.NEW,
        (
            f"{text} ",
            *_join_parts(
                [Link(name or _NO_SITE, link_to("site", site=name)) for name in names],
                max_named,
            ),
        ),
    )


def _join_parts(parts: Sequence[Link], max_named: int | None) -> Iterator[Link | str]:
    """Join names by commas, with the number of further ones."""
    named = parts[:max_named]
    for place, part in enumerate(named):
        yield from (", ", part) if place else (part,)
    unnamed_count = len(parts) - len(named)
    yield f" and {unnamed_count} more." if unnamed_count else "."


def _submission_changes(
    store: Store, since_us: int, max_named: int | None
) -> Iterator[ChangeSentence]:
    new = overview_queries.list_campaigns_since(store, since_us)
    if new:
        names = [
            Link(campaign.name or campaign.id, link_to("campaign", campaign_id=campaign.id))
            for campaign in new
        ]
        text = f"{pluralize(len(new), 'campaign')} submitted: "
        yield ChangeSentence(ChangeSeverity.NEW, (text, *_join_parts(names, max_named)))
