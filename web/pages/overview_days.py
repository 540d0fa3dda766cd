"""Sites by day: the grade of each site's measurements on each day, and changes since yesterday (UTC).

Changes are derived from roll-ups and campaigns alone, and do not depend on the days shown on the page.
Middleware versions, which only measurements record, are on the sites' pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import date, timedelta
from enum import IntEnum
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Generic, Protocol, TypeVar

from treehammer.analysis.descriptive.peer_comparison import COMPARED_DAYS, PeerComparison
from treehammer.analysis.status.day_outcomes import DayOutcomes
from treehammer.analysis.status.site_uses import WORST_FIRST, SiteState
from treehammer.sql.read import overview_queries
from treehammer.sql.read.overview_queries import JOB_SITE, FirstMeasurement
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.text_formatting import format_share, pluralize
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to
from treehammer.web.columns import HeatCell, SparkCell
from treehammer.web.display_formats import day_number, format_per_cent, midnight_us
from treehammer.web.figures.figure_layout import shorten_label

#: Days searched for the last grade before a change.
LOOKBACK_DAYS = 14
#: Changes shown before the rest is folded.
MAX_CHANGES = 10
#: Sites named of those that stopped reporting; without any data, all sites did.
MAX_QUIET_SITES = 6
#: Characters of a site's name in the tooltip of each of its days.
MAX_TOOLTIP_NAME = 40
_NO_SITE = "(no site)"
#: A day of each grade, the best first.
EXAMPLE_DAYS = (
    DayOutcomes(1, 0, 0),
    DayOutcomes(1, 1, 0),
    DayOutcomes(0, 1, 0),
    DayOutcomes(0, 0, 0),
)


class JudgedDay(Protocol):
    """What is known of a site on one day."""

    @property
    def status(self) -> SiteState:
        """Status of the site."""


Judged = TypeVar("Judged", bound=JudgedDay)


@dataclass(frozen=True)
class SiteDays(Generic[Judged]):
    """Outcomes of one site by day."""

    site: str
    days: Mapping[date, Judged]

    @cached_property
    def measured(self) -> list[tuple[date, Judged]]:
        """Days with measurements."""
        return [item for item in self.days.items() if item[1].status is not SiteState.UNKNOWN]

    @property
    def latest(self) -> Judged:
        """Outcomes of the last day with measurements, or of the last day without any."""
        days = self.measured or list(self.days.items())
        return days[-1][1]


def load_site_days(
    store: Store, days: Sequence[date], by: str = JOB_SITE
) -> list[SiteDays[DayOutcomes]]:
    """Load the daily outcomes of all sites that measured, or were read, on these days."""
    window = day_number(days[0]), day_number(days[-1])
    judged = {
        (row.site, row.day): DayOutcomes.from_outcomes(row.outcomes)
        for row in overview_queries.list_site_days(store, *window, by)
    }
    return arrange_by_site(judged, DayOutcomes(0, 0, 0), days)


def arrange_by_site(
    judged: Mapping[tuple[str, int], Judged], empty: Judged, days: Sequence[date]
) -> list[SiteDays[Judged]]:
    """Arrange days by site; ``empty`` is a day without data."""
    sites = dict.fromkeys(site for site, _ in judged)
    return [
        SiteDays(site, {day: judged.get((site, day_number(day)), empty) for day in days})
        for site in sites
    ]


def select_days(
    lines: Sequence[SiteDays[DayOutcomes]], days: Sequence[date]
) -> list[SiteDays[DayOutcomes]]:
    """Select some days, and the sites with measurements in them."""
    selected = (SiteDays(line.site, {day: line.days[day] for day in days}) for line in lines)
    return [line for line in selected if any(judged.total for judged in line.days.values())]


def sum_outcomes(outcomes: Iterable[DayOutcomes]) -> DayOutcomes:
    """Add up outcomes."""
    rows = [astuple(day) for day in (DayOutcomes(0, 0, 0), *outcomes)]
    return DayOutcomes(*map(sum, zip(*rows, strict=True)))


def sort_worst_first(
    lines: Sequence[SiteDays[DayOutcomes]],
    states: Mapping[str, SiteState],
    inefficient: Sequence[str],
) -> list[SiteDays[DayOutcomes]]:
    """Sort sites by their state, their latest day, severe warnings first, inefficiency and name."""

    def key(line: SiteDays[DayOutcomes]) -> tuple[int, int, int, int, str]:
        latest, state = line.latest, states.get(line.site)
        place = WORST_FIRST.index(state) if state else len(WORST_FIRST)
        order = inefficient.index(line.site) if line.site in inefficient else len(inefficient)
        return place, WORST_FIRST.index(latest.status), -latest.severity, order, line.site

    return sorted(lines, key=key)


def make_day_table(
    name: str,
    caption: str,
    lines: Sequence[SiteDays[Any]],
    address: Callable[[SiteDays[Any], date], str],
    columns: Sequence[TableColumn] = (),
    site_address: Callable[[str], str] = lambda _: "",
) -> DataTable:
    """Make the table of sites by day, with a letter and a color for each grade.

    ``address`` leads to a site's day, ``site_address`` to a site; '' for none. ``columns`` stand between
    the site and its days; their rows hold the site's days under the key ``line``.
    """
    days = list(lines[0].days) if lines else []
    first = (TableColumn("site", "site", link=lambda row: site_address(row["site"])), *columns)
    months = [(month, len(list(of_month))) for month, of_month in groupby(days, "{:%B %Y}".format)]
    return DataTable(
        name,
        f"{caption} (UTC)",
        (*first, *(_make_day_column(day, address) for day in days)),
        [{"site": line.site, "line": line} for line in lines],
        is_arrangeable=False,
        look="matrix",
        groups=(("", len(first)), *months),
    )


def _make_day_column(day: date, address: Callable[[SiteDays[Any], date], str]) -> TableColumn:
    name = str(day)

    def color(row: Row) -> str:
        judged = row["line"].days[day]
        severity = getattr(judged, "severity", 0)
        return f"{judged.status} severity-{severity}" if severity > 1 else str(judged.status)

    def draw(row: Row) -> HeatCell:
        judged = row["line"].days[day]
        link = address(row["line"], day) if judged.total else ""
        title = f"{shorten_label(row['site'], MAX_TOOLTIP_NAME)}, {name}: {judged.grade}, {judged}"
        return HeatCell(judged.letter, judged.grade, address=link, tooltip=title, is_symbol=True)

    return TableColumn(day.isoformat(), str(day.day), tooltip=name, css_class=color, draw=draw)


def make_efficiency_column(
    comparisons: Mapping[str, PeerComparison], outliers: Collection[str]
) -> TableColumn:
    """Make the column of CPU efficiency, in which outliers stand out."""

    def draw(row: Row) -> ui.Styled:
        comparison = comparisons.get(row["site"])
        if comparison is None or comparison.own_mean is None:
            return ui.Styled("–")
        efficiency = format_share(comparison.own_mean)
        if comparison.difference is None:
            return ui.Styled(efficiency)
        title = (
            f"{format_per_cent(comparison.difference)} against similar sites on the same work, whose "
            f"median is {format_share(comparison.peer_median or 0)}"
        )
        return ui.Styled(efficiency, "badge warning" if row["site"] in outliers else "", title)

    return TableColumn(
        "efficiency",
        "CPU eff.",
        tooltip=f"CPU efficiency of jobs over {COMPARED_DAYS} days on the work of similar sites",
        css_class=lambda _: "number",
        draw=draw,
    )


#: Good measurements by day, as a small drawing.
GOOD_COLUMN = TableColumn(
    "good",
    "good",
    tooltip="good measurements by day, relative to the site's best day",
    css_class=lambda _: "spark",
    draw=lambda row: SparkCell([judged.good for judged in row["line"].days.values()]),
)


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
        judged: the site's last day, for changes of its grade.
        failing_share: share of the site's measurements that are not good.
        explanation: who and why, which several sites may share.
    """

    severity: ChangeSeverity
    parts: tuple[ui.Link | str, ...]
    judged: DayOutcomes | None = None
    failing_share: float = 0.0
    explanation: str = ""

    @property
    def text(self) -> str:
        """The whole sentence."""
        return "".join(part if isinstance(part, str) else str(part.text) for part in self.parts)

    @property
    def paragraph(self) -> ui.Paragraph:
        """The sentence with links, after the grade of the site's last day."""
        day = self.judged
        grade = (ui.Badge(day.grade, day.status.value), " ") if day else ()
        return ui.Paragraph(*grade, *self.parts)


def changes_since_yesterday(
    store: Store,
    sites: Sequence[SiteDays[DayOutcomes]],
    explanations: Mapping[str, str],
    today: date,
    max_named: int | None,
) -> Iterator[ChangeSentence]:
    """Yield changes since the start of yesterday, most severe first.

    Args:
        sites: sites over the last :data:`LOOKBACK_DAYS` days including today.
        explanations: of new failures, by site.
        max_named: maximum number of sites or campaigns named per change; None for all.
    """
    yesterday = today - timedelta(days=1)
    max_quiet = None if max_named is None else MAX_QUIET_SITES
    changes = [
        *_find_quiet_sites(sites, yesterday - timedelta(days=1), max_quiet),
        *_summarize_arrivals(sites, yesterday),
    ]
    for site in sites:
        changes += _find_grade_change(site, explanations.get(site.site, ""), yesterday)
    first = overview_queries.list_first_measurements(store)
    changes += _find_first_measurements(first, day_number(yesterday), max_named)
    if new := overview_queries.list_campaigns_since(store, midnight_us(yesterday)):
        names = [
            ui.Link(campaign.name or campaign.id, link_to("campaign", campaign_id=campaign.id))
            for campaign in new
        ]
        text = f"{pluralize(len(new), 'campaign')} submitted: "
        changes.append(_end_with_names(ChangeSeverity.NEW, text, names, max_named))
    changes.sort(key=lambda change: (change.severity, -change.failing_share))
    written = {""}
    for change in changes:
        # The first of the changes that share an explanation has it.
        is_new = change.explanation not in written
        written.add(change.explanation)
        yield replace(change, parts=(*change.parts, f" {change.explanation}")) if is_new else change


def _summarize_arrivals(
    sites: Sequence[SiteDays[DayOutcomes]], yesterday: date
) -> Iterator[ChangeSentence]:
    received = sum_outcomes(
        judged for site in sites for day, judged in site.days.items() if day >= yesterday
    )
    if received.total:
        text = f"{pluralize(received.total, 'measurement')} received: {received}."
        yield ChangeSentence(ChangeSeverity.SUMMARY, (text,))


def _find_quiet_sites(
    sites: Iterable[SiteDays[DayOutcomes]], day: date, max_named: int | None
) -> Iterator[ChangeSentence]:
    """Name the sites whose last measurements are of a day."""
    names = [
        _link_to_day(site, day) for site in sites if site.measured and site.measured[-1][0] == day
    ]
    since = str(day)
    if len(names) == 1:
        parts = (names[0], f": no measurements since {since}.")
        yield ChangeSentence(ChangeSeverity.QUIET, parts)
    elif names:
        text = f"No measurements since {since}: "
        yield _end_with_names(ChangeSeverity.QUIET, text, names, max_named)


def _find_grade_change(
    site: SiteDays[DayOutcomes], explanation: str, yesterday: date
) -> Iterator[ChangeSentence]:
    """Find the latest change of a site's grade since yesterday, with its explanation."""
    transitions = [
        (before, now)
        for before, now in pairwise(site.measured)
        if now[0] >= yesterday and now[1].status is not before[1].status
    ]
    if not transitions:
        return
    (before_day, before), (change_day, _) = transitions[-1]
    last_day, judged = site.measured[-1]
    since = f" since {change_day}" if change_day != last_day else ""
    text = f": {judged.grade}{since} ({judged} on {last_day}); {before.grade} on {before_day}."
    severity = ChangeSeverity.BETTER
    if judged.status is SiteState.CRITICAL:
        severity = ChangeSeverity.CRITICAL
    elif judged.status is SiteState.WARNING and before.status is SiteState.OK:
        severity = ChangeSeverity.WORSE
    is_worse = severity is not ChangeSeverity.BETTER
    parts = (_link_to_day(site, last_day), text)
    bad_share = 1 - judged.good / judged.assessed
    yield ChangeSentence(severity, parts, judged, bad_share, explanation if is_worse else "")


def _link_to_day(site: SiteDays[DayOutcomes], day: date) -> ui.Link:
    """Name of the site, linked to its page of the day."""
    return ui.Link(site.site or _NO_SITE, link_to("day", day=day, query={"site": site.site}))


def _find_first_measurements(
    records: Sequence[FirstMeasurement], yesterday: int, max_named: int | None
) -> Iterator[ChangeSentence]:
    """Name the new sites, and the known sites at which releases and doors are new."""
    earlier = [record for record in records if record.first_day < yesterday]
    new_sites = {record.site for record in records} - {record.site for record in earlier}
    sites_by_text: dict[str, list[str]] = defaultdict(list)
    if new_sites:
        sites_by_text["First measurements from "] = sorted(new_sites)
    for feature, site in sorted(_measured_features(records) - _measured_features(earlier)):
        if site not in new_sites:
            sites_by_text[f"{feature}: first measurements at "].append(site)
    for text, sites in sites_by_text.items():
        names = [ui.Link(site or _NO_SITE, link_to("site", site=site)) for site in sites]
        yield _end_with_names(ChangeSeverity.NEW, text, names, max_named)


def _measured_features(records: Iterable[FirstMeasurement]) -> set[tuple[str, str]]:
    """Return the releases and doors that were measured, each with the site."""
    releases = {(f"ROOT {record.root}", record.site) for record in records if record.root}
    return releases | {(f"door {record.door}", record.site) for record in records if record.door}


def _end_with_names(
    severity: ChangeSeverity, text: str, names: Sequence[ui.Link], max_named: int | None
) -> ChangeSentence:
    """Build a sentence that ends with names, joined by commas, and the number of further ones."""
    unnamed_count = len(names) - len(names[:max_named])
    end = f" and {unnamed_count} more." if unnamed_count else "."
    return ChangeSentence(severity, (text, *ui.separate(names[:max_named], ", "), end))
