"""The digest of a week: sites that failed, and changes over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from html import escape
from urllib.parse import quote

from treehammer.analysis.changes.change_points import (
    describe_quantity,
    format_day,
    format_size,
    is_regression,
    title_subject,
)
from treehammer.analysis.changes.daily_series import Attribution, ChangeState
from treehammer.analysis.status.subject_state import WORST_FIRST, SiteState
from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.sql.core.watch_rows import ChangePointRow, StatusChangeRow
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch import alarms
from treehammer.sql.watch.state_history import CENTRAL, KIND_WORDS, list_state_changes
from treehammer.text_formatting import format_time, join_names

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


@dataclass(frozen=True)
class DigestLine:
    """One change in words, and the path of the page with its evidence."""

    text: str
    path: str


@dataclass(frozen=True)
class DigestSection:
    """Lines below a heading, the largest change first; ``more`` counts those left out."""

    title: str
    lines: Sequence[DigestLine]
    more: int
    empty: str

    @classmethod
    def cut(cls, title: str, lines: Sequence[DigestLine], empty: str) -> DigestSection:
        """Make a section of the first lines."""
        return cls(title, lines[:MAX_LINES], max(len(lines) - MAX_LINES, 0), empty)


@dataclass(frozen=True)
class WeeklyDigest:
    """Digest of the seven days from ``first``, a Monday."""

    first: date
    sections: Sequence[DigestSection]

    @property
    def title(self) -> str:
        """Title with the week and its days."""
        year, week, _ = self.first.isocalendar()
        last = self.first + timedelta(days=6)
        return f"Treehammer, week {year}-W{week:02}: {self.first} to {last}"

    def to_markdown(self, base_url: str) -> str:
        """Write the digest as Markdown; every line links to its evidence."""
        return "\n".join(self._list_markdown(base_url)) + "\n"

    def to_html(self, base_url: str) -> str:
        """Write the digest as a small HTML page for mail."""
        parts = [f"<h1>{escape(self.title)}</h1>"]
        for section in self.sections:
            parts.append(f"<h2>{escape(section.title)}</h2>")
            items = [
                f'<li>{escape(line.text)} <a href="{escape(base_url + line.path)}">evidence</a>'
                "</li>"
                for line in section.lines
            ]
            parts.append(f"<ul>{''.join(items)}</ul>" if items else f"<p>{section.empty}</p>")
            parts += [f"<p>{section.more} more.</p>"] if section.more else []
        return f"<!DOCTYPE html><html><body>{''.join(parts)}</body></html>\n"

    def _list_markdown(self, base_url: str) -> Iterator[str]:
        yield f"# {self.title}"
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


def last_whole_week(today: date) -> date:
    """Return the Monday of the last week that is over."""
    return today - timedelta(days=today.weekday() + 7)


def load_digest(store: ResultsReader, first_day: date) -> WeeklyDigest:
    """Load the digest of the week from ``first_day``, a Monday."""
    return build_digest(
        alarms.fetch_change_points(store),
        list_state_changes(store, since_us=_start_us(first_day)),
        first_day,
    )


def build_digest(
    changes: Iterable[ChangePointRow], states: Iterable[StatusChangeRow], first_day: date
) -> WeeklyDigest:
    """Build the digest of the week from ``first_day``.

    A change belongs to the week in which it was confirmed. Provisional ones are listed apart.
    Metrics of one change share a line, and all bad states of a site.
    """
    start_us = _start_us(first_day)
    end_us = start_us + 7 * DAY_US
    sections: dict[str, list[ChangePointRow]] = {title: [] for title in _EMPTY_SECTIONS}
    for change in changes:
        if start_us <= change.found_us < end_us:
            sections[_choose_section(change)].append(change)
    return WeeklyDigest(
        first_day,
        (
            _build_state_section([row for row in states if start_us <= row.since_us < end_us]),
            *(_build_section(title, rows) for title, rows in sections.items()),
        ),
    )


def _choose_section(change: ChangePointRow) -> str:
    if change.state == ChangeState.PROVISIONAL:
        return PROVISIONAL_SECTION
    return SLOWER_SECTION if is_regression(change) else FASTER_SECTION


def _start_us(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1e6)


def _build_state_section(states: Iterable[StatusChangeRow]) -> DigestSection:
    """List the sites with bad states, the critical ones first, each by its worst and first state."""
    by_site: dict[tuple[bool, str], list[StatusChangeRow]] = {}
    for row in states:
        if row.state in (SiteState.CRITICAL, SiteState.WARNING):
            by_site.setdefault((row.subject_kind != CENTRAL, row.site), []).append(row)
    worst = [min(rows, key=_order_state) for rows in by_site.values()]
    worst.sort(key=_order_state)
    groups: dict[str, list[StatusChangeRow]] = {}
    for row in worst:
        groups.setdefault(str(row.evidence.explanation or row.id), []).append(row)
    lines = [
        DigestLine(_describe_states(rows), f"/state-changes/{quote(rows[0].id, safe='')}")
        for rows in groups.values()
    ]
    return DigestSection.cut("Sites that failed", lines, "No site failed.")


def _order_state(row: StatusChangeRow) -> tuple[bool, int, int, str, str]:
    severity = WORST_FIRST.index(SiteState(row.state))
    return row.subject_kind != CENTRAL, severity, row.since_us, row.site, row.subject_kind


def _describe_states(rows: Sequence[StatusChangeRow]) -> str:
    """Describe states with the same explanation."""
    first = rows[0]
    names = [f"{row.site} ({KIND_WORDS[row.subject_kind]})" for row in rows]
    name = "All sites" if first.subject_kind == CENTRAL else join_names(names)
    since = format_time(min(row.since_us for row in rows))[:16]
    text = first.evidence.explanation or first.reason
    return f"{name}: {first.state} since {since} UTC: {text}"


def _build_section(title: str, changes: Sequence[ChangePointRow]) -> DigestSection:
    groups: dict[tuple[object, ...], list[ChangePointRow]] = {}
    for change in sorted(changes, key=lambda change: (-abs(change.effect), change.metric)):
        origin = (change.attribution, change.subject)
        key = (change.kind, change.test_name, change.control, *origin, change.day)
        is_known = change.subject or change.attribution == Attribution.CENTRAL
        groups.setdefault(key if is_known else (change.id,), []).append(change)
    lines = [
        DigestLine(_describe_group(group), f"/changes/{quote(group[0].id, safe='')}")
        for group in groups.values()
    ]
    return DigestSection.cut(title, lines, _EMPTY_SECTIONS[title])


def _describe_group(group: Sequence[ChangePointRow]) -> str:
    first = group[0]
    sizes = ", ".join(f"{describe_quantity(change)} {format_size(change)}" for change in group)
    causes = dict.fromkeys(change.cause for change in group if change.cause)
    cause = f"; changed on that day: {'; '.join(causes)}" if causes else ""
    since = f"{title_subject(first)} since {format_day(first.day)}"
    return f"{since}, test {first.test_name}: {sizes}{cause}"
