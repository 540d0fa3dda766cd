"""The digest of a week for somebody with an hour: states, new failures, changes, comparisons, campaigns, cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from html import escape
from urllib.parse import quote, urlencode

from treehammer.analysis.comparison.conclusion import (
    count_headline,
    count_slower,
    describe_headline,
)
from treehammer.analysis.comparison.verdict_text import comparison_title
from treehammer.analysis.status.failure_explanation import BAD_STATES
from treehammer.collectors.job_spec import OPEN_JOB_STATES
from treehammer.collectors.record.day_numbers import DAY_US, day_to_number
from treehammer.collectors.record.outcome import Outcome, describe_outcomes, is_failure
from treehammer.sql.core.subjects import CENTRAL, KIND_WORDS
from treehammer.sql.core.watch_rows import ChangePointRow, StatusChangeRow
from treehammer.sql.read.campaign_queries import load_distinct_names
from treehammer.sql.read.cost_queries import UsedCost, load_site_costs
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.read.overview_queries import (
    list_campaigns_since,
    load_campaign_states,
)
from treehammer.sql.read.query_model import FigureQuery
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.read.stored_comparisons import MAX_COMPARISONS, list_latest_comparisons
from treehammer.text_formatting import format_time, join_names, pluralize
from treehammer.verticals import has_vertical
from treehammer.watch.changes.change_points import (
    describe_quantity,
    describe_time,
    format_change,
    is_regression,
    title_subject,
)
from treehammer.watch.changes.daily_series import Attribution, ChangeState
from treehammer.watch.states.site_status import order_state
from treehammer.watch.states.state_timeline import CENTRAL_CAUSE
from treehammer.watch.store import alarms
from treehammer.watch.store.state_history import list_current_states, list_state_changes

SLOWER_SECTION, FASTER_SECTION = "Slower", "Faster"
PROVISIONAL_SECTION = "Provisional, to be confirmed by the next days"
#: Sections of changes in a digest -> their text without any.
_EMPTY_SECTIONS = {
    SLOWER_SECTION: "Nothing became slower.",
    FASTER_SECTION: "Nothing became faster.",
    PROVISIONAL_SECTION: "Nothing.",
}
#: Lines of a section; the rest is counted.
MAX_LINES = 12
#: A failure is new if its test did not have it in so many days before the week.
QUIET_DAYS = 28
WEEK_DAYS = 7


@dataclass(frozen=True)
class DigestLine:
    """One fact in words, and the path of the page with its evidence."""

    text: str
    path: str


@dataclass(frozen=True)
class DigestSection:
    """Lines below a heading, the most important first; ``more`` counts those left out."""

    title: str
    lines: Sequence[DigestLine]
    more: int
    empty: str

    @classmethod
    def cut(cls, title: str, lines: Sequence[DigestLine], empty: str) -> DigestSection:
        """Make a section of the first lines."""
        return cls(title, lines[:MAX_LINES], max(len(lines) - MAX_LINES, 0), empty)

    @property
    def count(self) -> int:
        """Number of lines with those left out."""
        return len(self.lines) + self.more


@dataclass(frozen=True)
class WeeklyDigest:
    """Digest of the seven days from ``first``, a Monday; ``headline`` is one sentence of it."""

    first: date
    sections: Sequence[DigestSection]
    headline: str = ""

    @property
    def title(self) -> str:
        """Title with the week and its days."""
        year, week, _ = self.first.isocalendar()
        last = self.first + timedelta(days=WEEK_DAYS - 1)
        return f"Treehammer, week {year}-W{week:02}: {self.first} to {last}"

    def to_markdown(self, base_url: str) -> str:
        """Write the digest as Markdown; every line links to its evidence."""
        return "\n".join(self._list_markdown(base_url)) + "\n"

    def to_html(self, base_url: str) -> str:
        """Write the digest as a small HTML page for mail."""
        parts = [f"<h1>{escape(self.title)}</h1><p><strong>{escape(self.headline)}</strong></p>"]
        for section in self.sections:
            parts.append(f"<h2>{escape(section.title)}</h2>")
            items = [
                f'<li>{escape(line.text)} <a href="{escape(base_url + line.path)}">evidence</a>'
                "</li>"
                for line in section.lines
            ]
            parts.append(f"<ul>{''.join(items)}</ul>" if items else f"<p>{section.empty}</p>")
            parts += [f"<p>{section.more} more.</p>"] if section.more else []
        head = '<!DOCTYPE html><html><head><meta charset="utf-8"></head>'
        return f"{head}<body>{''.join(parts)}</body></html>\n"

    def _list_markdown(self, base_url: str) -> Iterator[str]:
        yield f"# {self.title}"
        if self.headline:
            yield f"\n**{self.headline}**"
        for section in self.sections:
            yield f"\n## {section.title}\n"
            for line in section.lines:
                yield f"- {line.text} ([evidence]({base_url}{line.path}))"
            if section.more:
                yield f"- {section.more} more"
            if not section.lines:
                yield section.empty


def parse_week(text: str) -> date:
    """Parse a week such as ``2026-W46``; return its Monday.

    Raises:
        ValueError: it is not a week.
    """
    year, _, week = text.partition("-W")
    return date.fromisocalendar(int(year), int(week), 1)


def this_week(today: date) -> date:
    """Return the Monday of a day's week."""
    return today - timedelta(days=today.weekday())


def default_week(today: date) -> date:
    """Return the Monday of yesterday's week: on a Monday, the week that is over."""
    return this_week(today - timedelta(days=1))


def load_digest(store: ResultsReader, first_day: date) -> WeeklyDigest:
    """Load the digest of the week from ``first_day``, a Monday, until now."""
    start_us = (first_day - date(1970, 1, 1)).days * DAY_US
    period = Period(start_us, start_us + WEEK_DAYS * DAY_US - 1)
    states = _build_state_section(
        [
            *list_current_states(store, at_us=start_us),
            *(
                row
                for row in list_state_changes(store, since_us=start_us)
                if period.covers(row.since_us)
            ),
        ],
        _index_states(list_current_states(store, at_us=period.to_us)),
        _index_states(list_current_states(store)),
    )
    failures = _build_failure_section(store, first_day)
    changes = _build_change_sections(alarms.load_change_points(store), period)
    comparisons = _build_comparison_section(store, period)
    campaigns = _build_campaign_section(store, period)
    total, costs = _build_cost_section(store, period)
    titles = (
        (states, "bad state", "bad states"),
        (failures, "new failure", "new failures"),
        (changes[0], "slowdown", "slowdowns"),
        (comparisons, "comparison", "comparisons"),
        (campaigns, "campaign", "campaigns"),
    )
    counts = ", ".join(pluralize(section.count, *nouns) for section, *nouns in titles)
    headline = f"{counts}; {total}."
    return WeeklyDigest(
        first_day, (states, failures, *changes, comparisons, campaigns, costs), headline
    )


def _build_change_sections(
    changes: Iterable[ChangePointRow], period: Period
) -> list[DigestSection]:
    """Build the sections of changes over time; metrics of one change share a line.

    A change belongs to the week in which it was confirmed. Provisional ones are listed apart.
    """
    sections: dict[str, list[ChangePointRow]] = {title: [] for title in _EMPTY_SECTIONS}
    for change in changes:
        if period.covers(change.found_us):
            title = SLOWER_SECTION if is_regression(change) else FASTER_SECTION
            is_provisional = change.state == ChangeState.PROVISIONAL
            sections[PROVISIONAL_SECTION if is_provisional else title].append(change)
    return [_build_section(title, rows) for title, rows in sections.items()]


#: Kind and name of a subject -> its state.
_States = Mapping[tuple[str, str], StatusChangeRow]


def _index_states(states: Iterable[StatusChangeRow]) -> _States:
    return {(row.subject_kind, row.site): row for row in states}


def _build_state_section(
    changes: Iterable[StatusChangeRow], last: _States, present: _States
) -> DigestSection:
    """List the sites that had bad states, the critical ones first.

    Each is listed by its state at the end of the week, with the time since which every page shows
    it; one that had recovered by its worst and first state.

    Args:
        changes: states at the beginning of the week, and changes in it.
        last: states at the end of the week.
        present: states now.
    """
    by_site: dict[tuple[bool, str], list[StatusChangeRow]] = {}
    for row in changes:
        if row.state in BAD_STATES:
            standing = last.get((row.subject_kind, row.site), row)
            entry = standing if standing.state in BAD_STATES else row
            by_site.setdefault((row.subject_kind != CENTRAL, row.site), []).append(entry)
    worst = [min(rows, key=_order_state) for rows in by_site.values()]
    worst.sort(key=_order_state)
    groups: dict[tuple[str, str], list[StatusChangeRow]] = {}
    for row in worst:
        state_now = present.get((row.subject_kind, row.site), row).state
        # A central event is one fact, however many sites it hits.
        other = row.cause if row.cause == CENTRAL_CAUSE else row.id
        groups.setdefault((str(row.evidence.explanation or other), state_now), []).append(row)
    lines = [
        DigestLine(_describe_states(rows, now), f"/state-changes/{quote(rows[0].id, safe='')}")
        for (_, now), rows in groups.items()
    ]
    return DigestSection.cut("Sites that failed", lines, "No site failed.")


def _build_failure_section(store: ResultsReader, first_day: date) -> DigestSection:
    """List the classes of failures that a test did not have before, the most frequent first."""
    last_day = first_day + timedelta(days=WEEK_DAYS - 1)
    earlier_day = first_day - timedelta(days=QUIET_DAYS)
    earlier_failures = _count_failures(store, earlier_day, first_day - timedelta(days=1)).keys()
    new = {
        key: sites
        for key, sites in _count_failures(store, first_day, last_day).items()
        if key not in earlier_failures
    }
    lines = [
        DigestLine(
            f"{test}: {pluralize(sites.total(), 'measurement')} failed with {name!r} at "
            f"{join_names([site for site, _ in sites.most_common()])}; none in the "
            f"{QUIET_DAYS} days before",
            _find_evidence(
                sites.most_common(1)[0][0],
                {"by": "site", "test_name": test, "from": first_day, "to": last_day},
            ),
        )
        for (test, name), sites in sorted(new.items(), key=lambda item: (-item[1].total(), item[0]))
    ]
    return DigestSection.cut("New failures", lines, "No test failed in a new way.")


def _find_evidence(site: str, figure: Mapping[str, object]) -> str:
    """Return the path of a figure, or, where no vertical draws any, of a site."""
    if has_vertical("explore"):
        return f"/explore?{urlencode(figure)}"
    return f"/sites/{quote(site, safe='')}"


def _count_failures(
    store: ResultsReader, first: date, last: date
) -> dict[tuple[str, str], Counter[str]]:
    """Count failed measurements by site, for each test and class of failure."""
    first_day, last_day = day_to_number(first), day_to_number(last)
    query = FigureQuery(
        (), ("test_name", "site"), first_day=first_day, last_day=last_day, kind=None
    )
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for group in store.load_figure(query).groups:
        test, site = str(group.by["test_name"] or ""), str(group.by["site"] or "(no site)")
        for name in filter(is_failure, group.outcomes):
            counts[test, name][site] += group.outcomes[name]
    return counts


def _build_comparison_section(store: ResultsReader, period: Period) -> DigestSection:
    """List the comparisons of the week with their verdicts, those with slower variants first."""
    summaries = [
        summary
        for summary in list_latest_comparisons(store, MAX_COMPARISONS, since_us=period.from_us)
        if period.covers(summary.first_verdict.created_us)
    ]
    ids = {id_ for summary in summaries for id_ in summary.first_verdict.evidence.campaigns or ()}
    names = load_distinct_names(store, ids)
    summaries.sort(key=lambda summary: -count_slower(summary.counts)[0])
    lines = [
        DigestLine(
            f"{comparison_title(summary.first_verdict, names)}: "
            f"{describe_headline(count_headline(summary.counts))}",
            f"/compare/{quote(summary.first_verdict.comparison_id, safe='')}",
        )
        for summary in summaries
    ]
    return DigestSection.cut("Comparisons", lines, "Nothing was compared.")


def _build_campaign_section(store: ResultsReader, period: Period) -> DigestSection:
    """List the campaigns submitted in the week, those with the most failures first."""
    ids = [
        row.id
        for row in list_campaigns_since(store, period.from_us)
        if period.covers(row.created_us)
    ]
    states = load_campaign_states(store, ids)
    states.sort(key=lambda state: -state.outcomes.get(Outcome.FAILED, 0))
    lines = []
    for state in states:
        row = state.campaign
        running = sum(state.jobs.get(name, 0) for name in OPEN_JOB_STATES)
        parts = [
            f"{state.recorded:,} of {row.planned_measurements:,} measured",
            *describe_outcomes(state.outcomes),
            *([f"{pluralize(running, 'job')} unfinished"] if running and not state.is_over else []),
        ]
        text = f"{row.name or row.id} ({row.test_name}): {', '.join(parts)}"
        lines.append(DigestLine(text, f"/campaigns/{quote(row.id, safe='')}"))
    return DigestSection.cut("Campaigns", lines, "No campaign was submitted.")


def _build_cost_section(store: ResultsReader, period: Period) -> tuple[UsedCost, DigestSection]:
    """Add up what ended in the week, and list it by site, the dearest first."""
    costs = load_site_costs(store, period)
    dearest = sorted(costs.items(), key=lambda item: -item[1].cpu_s)
    first_day, last_day = (format_time(time_us)[:10] for time_us in (period.from_us, period.to_us))
    lines = [
        DigestLine(
            f"{site or '(no site)'}: {cost}",
            _find_evidence(
                site, {"by": "test_name", "site": site, "from": first_day, "to": last_day}
            ),
        )
        for site, cost in dearest
    ]
    section = DigestSection.cut("Cost by site", lines, "Nothing ended.")
    return sum(costs.values(), UsedCost()), section


def _order_state(row: StatusChangeRow) -> tuple[bool, int, int, str, str]:
    return row.subject_kind != CENTRAL, *order_state(row), row.site, row.subject_kind


def _describe_states(rows: Sequence[StatusChangeRow], present: str) -> str:
    """Describe states with the same explanation, which are the same at present."""
    first = rows[0]
    names = [f"{row.site} ({KIND_WORDS[row.subject_kind]})" for row in rows]
    name = "All sites" if first.subject_kind == CENTRAL else join_names(names)
    since = format_time(min(row.since_us for row in rows))[:16]
    text = first.evidence.explanation or first.reason
    now = "" if present == first.state else f"; now {present}"
    return f"{name}: {first.state} since {since} UTC{now}: {text}"


def _build_section(title: str, changes: Sequence[ChangePointRow]) -> DigestSection:
    groups: dict[tuple[object, ...], list[ChangePointRow]] = {}
    for change in sorted(changes, key=lambda change: (-abs(change.effect), change.metric)):
        origin = (change.attribution, change.subject)
        day = None if change.until_day else change.day
        key = (change.kind, change.test_name, change.control, *origin, day)
        is_known = change.subject or change.attribution == Attribution.CENTRAL
        groups.setdefault(key if is_known else (change.id,), []).append(change)
    lines = []
    for first, *further in groups.values():
        group = [first, *further]
        sizes = ", ".join(f"{describe_quantity(row)} {format_change(row)}" for row in group)
        causes = dict.fromkeys(row.cause for row in group if row.cause)
        cause = f"; changed on that day: {'; '.join(causes)}" if causes else ""
        since = f"{title_subject(first)} {describe_time(first)}"
        text = f"{since}, test {first.test_name}: {sizes}{cause}"
        lines.append(DigestLine(text, f"/changes/{quote(first.id, safe='')}"))
    return DigestSection.cut(title, lines, _EMPTY_SECTIONS[title])
