"""Changes in words, their selection by site and release, and the digest of a week."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from html import escape
from typing import Any
from urllib.parse import quote

from treehammer.analysis.changes.daily_series import (
    Attribution,
    ChangeState,
    NodeIdentity,
    SeriesKind,
)
from treehammer.analysis.comparison.verdict_text import format_effect, title_metric
from treehammer.analysis.status.subject_state import WORST_FIRST, SiteState
from treehammer.collectors.record.day_numbers import DAY_US, number_to_day
from treehammer.sql.core.watch_rows import ChangePointRow, StatusChangeRow
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch.alarms import fetch_change_points
from treehammer.sql.watch.state_history import CENTRAL, KIND_WORDS, list_state_changes
from treehammer.text_formatting import format_time, join_names

#: Attribution -> its wording; ``{}`` is the subject.
_SUBJECTS: Mapping[str, str] = {
    Attribution.SITE: "site {}",
    Attribution.RELEASE: "ROOT {}",
    Attribution.STORAGE: "storage {}",
    Attribution.CENTRAL: "everywhere",
    Attribution.UNKNOWN: "cause unknown",
}


def name_subject(change: ChangePointRow) -> str:
    """Name the subject to which a change is attributed."""
    return _SUBJECTS.get(change.attribution, "{}").format(change.subject)


def format_day(day: int) -> str:
    """Format a day number as an ISO date."""
    date_ = number_to_day(day)
    return date_.isoformat() if date_ else str(day)


def format_interval(change: ChangePointRow) -> str:
    """Format the 95 % interval of the size."""
    return f"{format_effect(change.low)} to {format_effect(change.high)}"


def describe_quantity(change: ChangePointRow) -> str:
    """Describe the quantity that changed, and how nodes are identified if not by name."""
    metric = title_metric(change.metric)
    if change.kind == SeriesKind.LEVEL:
        properties = [name for name in list_node_identities(change) if name != NodeIdentity.HOST]
        nodes = f" (nodes by {' and '.join(properties)})" if properties else ""
        return f"{metric} of {change.control}{nodes}"
    return f"{metric} relative to {change.control}"


def describe_change(change: ChangePointRow) -> str:
    """Describe a change in one sentence."""
    state = ", provisional" if change.state == ChangeState.PROVISIONAL else ""
    where = _describe_places(change) if change.attribution == Attribution.UNKNOWN else ""
    cause = f"; changed on that day: {change.cause}" if change.cause else ""
    name = name_subject(change)
    return (
        f"{name[0].upper()}{name[1:]}{where}: {describe_quantity(change)} of {change.test_name} "
        f"{format_effect(change.effect)} ({format_interval(change)}) since {format_day(change.day)}"
        f"{state}{cause}"
    )


def _describe_places(change: ChangePointRow) -> str:
    sites = _list_sites(change)
    return f", at {', '.join(sites[:3])}{f' and {len(sites) - 3} more' if len(sites) > 3 else ''}"


def _list_sites(change: ChangePointRow) -> list[str]:
    return sorted({series.site for series in change.evidence.series if series.site})


def is_regression(change: ChangePointRow) -> bool:
    """Return whether a change made reading slower."""
    return change.effect > 0


def list_node_identities(change: ChangePointRow) -> list[str]:
    """List the properties by which nodes were recognized; none for ratios."""
    names = {series.nodes_by for series in change.evidence.series}
    return [name.value for name in NodeIdentity if name in names]


def select_changes(
    changes: Iterable[ChangePointRow], site: str = "", release: str = ""
) -> list[ChangePointRow]:
    """Select the changes of a site (as site or storage) and of a release.

    A change everywhere is one of each site. Levels concern the control release alone.
    """
    return [
        change
        for change in changes
        if (not site or _concerns_site(change, site))
        and (not release or _concerns_release(change, release))
    ]


def _concerns_site(change: ChangePointRow, site: str) -> bool:
    return any(site in (series.site, series.storage_site) for series in change.evidence.series)


def _concerns_release(change: ChangePointRow, release: str) -> bool:
    if change.kind == SeriesKind.LEVEL:
        return change.control == release
    return any(series.release == release for series in change.evidence.series)


def make_change_record(change: ChangePointRow) -> dict[str, Any]:
    """Make the record of a change for tables, pages and programs."""
    return {
        "id": change.id,
        "since": format_day(change.day),
        "state": change.state,
        "points_at": name_subject(change),
        "attribution": change.attribution,
        "subject": change.subject,
        "quantity": describe_quantity(change),
        "kind": change.kind,
        "metric": change.metric,
        "test": change.test_name,
        "control": change.control,
        "change": format_effect(change.effect),
        "interval": format_interval(change),
        "effect": change.effect,
        "low": change.low,
        "high": change.high,
        "p": change.p_value,
        "days_before": change.days_before,
        "days_after": change.days_after,
        "seconded": change.seconded,
        "cause": change.cause,
        "sites": _list_sites(change),
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
        fetch_change_points(store),
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
    found_in_week = [change for change in changes if start_us <= change.found_us < end_us]
    slower: list[ChangePointRow] = []
    faster: list[ChangePointRow] = []
    provisional: list[ChangePointRow] = []
    for change in found_in_week:
        if change.state == ChangeState.PROVISIONAL:
            provisional.append(change)
        elif change.state == ChangeState.CONFIRMED:
            (slower if is_regression(change) else faster).append(change)
    return WeeklyDigest(
        first_day,
        (
            _build_state_section([row for row in states if start_us <= row.since_us < end_us]),
            _build_section("Slower", slower, "Nothing became slower."),
            _build_section("Faster", faster, "Nothing became faster."),
            _build_section(
                "Provisional, to be confirmed by the next days", provisional, "Nothing."
            ),
        ),
    )


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
    empty = "No site failed."
    return DigestSection(
        "Sites that failed", lines[:MAX_LINES], max(len(lines) - MAX_LINES, 0), empty
    )


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


def _build_section(title: str, changes: Sequence[ChangePointRow], empty: str) -> DigestSection:
    groups: dict[tuple[object, ...], list[ChangePointRow]] = {}
    for change in sorted(changes, key=lambda change: (-abs(change.effect), change.metric)):
        subject = (
            change.kind,
            change.test_name,
            change.control,
            change.attribution,
            change.subject,
        )
        key = (
            (*subject, change.day)
            if change.subject or change.attribution == "central"
            else (change.id,)
        )
        groups.setdefault(key, []).append(change)
    lines = [
        DigestLine(_describe_group(group), f"/changes/{quote(group[0].id, safe='')}")
        for group in groups.values()
    ]
    return DigestSection(title, lines[:MAX_LINES], max(len(lines) - MAX_LINES, 0), empty)


def _describe_group(group: Sequence[ChangePointRow]) -> str:
    first = group[0]
    sizes = ", ".join(
        f"{describe_quantity(change)} {format_effect(change.effect)} ({format_interval(change)})"
        for change in group
    )
    causes = dict.fromkeys(change.cause for change in group if change.cause)
    cause = f"; changed on that day: {'; '.join(causes)}" if causes else ""
    name = name_subject(first)
    return f"{name[0].upper()}{name[1:]} since {format_day(first.day)}, test {first.test_name}: {sizes}{cause}"
