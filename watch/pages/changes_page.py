"""Changes over time: the list, the evidence of one, the week's digest, and a feed of regressions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import starmap

from pydantic import Field
from starlette.responses import Response

from treehammer.analysis.comparison import verdict_text
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.model import COMMIT_AXIS
from treehammer.sql.core.watch_rows import ChangePointRow, ReleaseCheck
from treehammer.sql.read import stored_comparisons
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn, build_table
from treehammer.text_formatting import SECOND_US, format_share
from treehammer.watch.alarms import alarm_overview
from treehammer.watch.alarms.alarm_overview import CheckState
from treehammer.watch.changes import WINDOW_DAYS, change_points, weekly_digest
from treehammer.watch.changes.daily_series import ChangeState
from treehammer.watch.pages import watch_tables
from treehammer.watch.pages.bisection_page import build_bisection_table
from treehammer.watch.store.alarms import find_change_point, load_change_points
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to
from treehammer.web.columns import column, columns
from treehammer.web.display_formats import day_from_number, day_number, today
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, DayAxis, LineChart
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import PageQuery, PathText, Text
from treehammer.web.page_service import FeedEntry, write_feed
from treehammer.web.pages import common_tables

#: Rows of series that a change's page shows, and days drawn before and after the change.
MAX_PLACES, DRAWN_DAYS = 20, 30
#: Comparisons of commits that are listed.
MAX_COMMITS = 50


class ChangesQuery(PageQuery):
    """Parameters of the list."""

    site: Text = Field("", description="Changes of a site, as site of the jobs or storage.")
    release: Text = Field("", description="Changes of a ROOT release.")


class ChangeQuery(PageQuery):
    """Parameters of the page of a change."""

    change: PathText = Field(description="Identity.")


class DigestQuery(PageQuery):
    """Parameters of the digest."""

    week: Text = Field(
        "",
        description="Week such as 2026-W46, by default yesterday's.",
        json_schema_extra={"pattern": r"^[12]\d{3}-W(0[1-9]|[1-4]\d|5[0-3])$"},
    )


@page(
    "/changes",
    "changes",
    ChangesQuery,
    menu="Changes",
    position=40,
    help="changes",
    api=PageOperation(
        "listChanges",
        "Steps in daily series of the last 90 days",
        {
            "changepoints": "changes, slower ones first, then newest first",
            "commits": "comparisons of a test's commits, newest first",
            "bisections": "searches for the build that changed a metric, newest first",
        },
    ),
)
def changes_page(request: PageRequest[ChangesQuery]) -> PageContent:
    """List the changes, of one site or release if the request names it."""
    query = request.query
    changes = watch_tables.list_recent_changes(request.store, **query.model_dump())
    of_site = f", at {query.site}" if query.site else ""
    of_release = f", of ROOT {query.release}" if query.release else ""
    tables = (
        watch_tables.build_change_point_table(changes),
        _build_commit_table(request.store),
        build_bisection_table(request.resources.settings),
    )
    steps, commits, searches = tables
    sections = (
        ui.headline(f"{change_points.describe_change(changes[0])}." if changes else ""),
        ui.Paragraph(
            f"Steps and drifts of the last 90 days, slower ones first{of_site}{of_release}. ",
            ui.Link("Digest of the week", link_to("digest")),
            " · ",
            ui.Link("Feed of regressions", link_to("changes-feed")),
        ),
        steps,
        ui.quiet(
            "Each release is related to a pinned control release in the same jobs; the control's own "
            "time shows what changes a site, a storage or everything. A change is provisional until "
            "five measured days on each side support it."
        ),
        commits,
        ui.if_filled(searches),
    )
    return PageContent("Changes over time", sections, tables, feed=link_to("changes-feed"))


def _build_commit_table(store: Store) -> DataTable:
    """Build the table of the newest comparisons of a test's commits, without working trees."""
    first = datetime.now(UTC) - timedelta(days=WINDOW_DAYS)
    comparisons = [
        summary
        for summary in stored_comparisons.list_latest_comparisons(
            store, MAX_COMMITS, since_us=round(first.timestamp()) * SECOND_US, axis=COMMIT_AXIS
        )
        if not {"+"} & {*summary.first_verdict.a, *summary.first_verdict.b}
    ]
    rows = [
        {
            **described,
            "compared": " against ".join(reversed(verdict_text.side_names(first_verdict, {}))),
            "test": first_verdict.evidence.of_a.get("test_name"),
            "measured": "by separate jobs" if first_verdict.evidence.unpaired else "in turns",
        }
        for described, summary in zip(
            common_tables.describe_comparisons(store, comparisons), comparisons, strict=True
        )
        for first_verdict in [summary.first_verdict]
    ]
    table_columns = (
        column("test"),
        *common_tables.comparison_columns(),
        *columns("measured", "judged_us"),
        column("headline", "verdicts", is_long=True),
    )
    empty = "No commits of a test were compared in this period."
    return DataTable("commits", "Commits of tests", table_columns, rows, empty_text=empty)


@page(
    "/changes/{change:some}",
    "change",
    ChangeQuery,
    position=41,
    api=PageOperation(
        "getChange",
        "Evidence of a change",
        {"places": "series that changed"},
        ("conclusion", "facts"),
    ),
)
def change_page(request: PageRequest[ChangeQuery]) -> PageContent:
    """Show the evidence of a change; an unknown one is refused."""
    change = find_change_point(request.store, request.query.change)
    if change is None:
        raise NothingToDoError(
            "no such change", hint="Later days may not have supported a provisional one."
        )
    table = _build_place_table(change)
    releases = {row["release"] for row in table.rows if row["release"]}
    facts = [
        ("time", change_points.describe_time(change)),
        ("state", change.state),
        ("p-value of no change", f"{change.p_value:.1g}"),
        ("measured days before, or in the first half", change.days_before),
        ("measured days from the change on, or in the second half", change.days_after),
        ("a second detector finds it", "yes" if change.seconded else "no"),
        *(("nodes recognized by", name) for name in change_points.list_node_identities(change)),
    ]
    by_day = [
        ui.Link(f"ROOT {release} by day", link_to("release", release=release))
        for release in releases
    ]
    conclusion = f"{change_points.describe_change(change)}."
    sections = (
        ui.headline(conclusion),
        ui.Paragraph(*by_day) if len(by_day) == 1 else None,
        _draw_change(request.store, change),
        ui.Facts(facts),
        table,
    )
    about = {"conclusion": conclusion, "facts": dict(facts)}
    crumbs = [ui.Link("Changes over time", link_to("changes"))]
    return PageContent(change_points.name_subject(change), sections, about=about, crumbs=crumbs)


def _build_place_table(change: ChangePointRow) -> DataTable:
    """Build the table of the series that changed."""
    return build_table(
        "places",
        "Series that changed",
        (
            *columns("site", "storage_site", "door"),
            column("release", "ROOT"),
            column("variant", is_long=True),
            column(
                "change",
                "its own change",
                is_number=True,
                value=lambda series: _write_optional(series.effect, verdict_text.format_effect),
            ),
            column(
                "error",
                "± standard error",
                is_number=True,
                value=lambda series: _write_optional(
                    series.error, partial(format_share, decimals=1)
                ),
            ),
        ),
        sorted(change.evidence.series, key=lambda series: -abs(series.effect or 0.0)),
        max_rows=MAX_PLACES,
    )


def _draw_change(store: Store, change: ChangePointRow) -> ui.Figure | None:
    """Draw the mean of the changed series by day, each relative to its own mean before the change."""
    day = day_from_number(change.day)
    first, last = day - timedelta(days=DRAWN_DAYS), day + timedelta(days=DRAWN_DAYS)
    if change.until_day:
        first, last = day, day_from_number(change.until_day)
    steps = change_points.average_steps(store, change, day_number(first), day_number(last))
    if len(steps) < 2:
        return None
    dots = [
        ChartDot(day_from_number(number), 100 * math.expm1(step), text=text)
        for number, step in steps.items()
        for text in [f"{day_from_number(number)}: {verdict_text.format_effect(step)}"]
    ]
    title = f"{change_points.describe_quantity(change)} by day"
    mark = ChartMark(day, 1, change_points.format_day(change.day))
    line = ChartLine("series that changed", "own", dots)
    axis = DayAxis(dots[0].at, dots[-1].at)
    chart = LineChart(title, [line], axis, [mark], values="change (%)")
    base = "start of the drift" if change.until_day else "mean before the change"
    caption = f"{title}, against the {base}, in per cent"
    return ui.Figure("course", chart, caption, is_caption_first=True)


def _write_optional(value: float | None, form: Callable[[float], str]) -> str:
    """Write a value, a dash for none."""
    return "–" if value is None else form(value)


@page(
    "/digest",
    "digest",
    DigestQuery,
    position=43,
    help="changes",
    api=PageOperation(
        "getDigest",
        "Digest of a week",
        {"lines": "its lines by section, with the page of their evidence"},
        ("conclusion",),
    ),
)
def digest_page(request: PageRequest[DigestQuery]) -> PageContent:
    """Show the digest of a week."""
    first, neighbors = _read_week(request.query.week)
    digest = weekly_digest.load_digest(request.store, first)
    weeks = [
        ui.Link(f"week {word}", link_to("digest", query={"week": week}))
        for word, week in neighbors.items()
    ]
    root = request.raw.scope.get("root_path", "")

    def cite(text: str, path: str) -> ui.Paragraph:
        return ui.Paragraph(f"{text} – ", ui.Link("evidence", f"{root}{path}", f"Evidence: {text}"))

    sections: list[ui.Section] = [
        ui.headline(digest.headline),
        ui.Paragraph(*ui.separate((*weeks, ui.Link("all changes", link_to("changes"))), " · ")),
        *(
            ui.Titled(
                section.title,
                ui.Bullets([cite(line.text, line.path) for line in section.lines]),
                ui.Paragraph(f"{section.more} more." if section.lines and section.more else ""),
                None if section.lines else ui.Paragraph(section.empty),
            )
            for section in digest.sections
        ),
    ]
    lines = [
        {"section": section.title, "text": line.text, "evidence": line.path}
        for section in digest.sections
        for line in section.lines
    ]
    table_columns = tuple(TableColumn(key, key) for key in ("section", "text", "evidence"))
    table = DataTable("lines", digest.title, table_columns, lines)
    return PageContent(digest.title, sections, (table,), {"conclusion": digest.headline})


def _read_week(text: str) -> tuple[date, dict[str, str]]:
    """Return the first day of a week, by default the last one, and the weeks before and after.

    Raises:
        ConfigError: it is no week.
    """
    try:
        first = weekly_digest.parse_week(text) if text else weekly_digest.default_week(today())
        neighbors = {"before": first - timedelta(days=7), "after": first + timedelta(days=7)}
        return first, {word: f"{day:%G-W%V}" for word, day in neighbors.items()}
    except (ValueError, OverflowError):
        raise ConfigError(f"week must be like 2026-W46, not {text[:20]!r}") from None


@page("/changes.atom", "changes-feed", position=44)
def feed_page(request: PageRequest[PageQuery]) -> Response:
    """Answer with the confirmed regressions and failing releases as an Atom feed, newest first."""
    confirmed = [
        change
        for change in load_change_points(request.store)
        if change_points.is_regression(change) and change.state == ChangeState.CONFIRMED
    ]
    failing: dict[str, list[ReleaseCheck]] = defaultdict(list)
    for check in alarm_overview.list_announced(request.store):
        if check.state == CheckState.FAILED:
            failing[check.b].append(check)
    entries = [*map(_describe_change, confirmed), *starmap(_describe_failure, failing.items())]
    entries.sort(key=lambda entry: entry.path)
    # Readers of feeds know entries by their addresses, which need a host.
    base = request.resources.settings.serve_url or str(request.raw.base_url).rstrip("/")
    feed = write_feed("Treehammer: regressions", "/changes.atom", base, entries)
    return Response(feed, media_type="application/atom+xml")


def _describe_change(change: ChangePointRow) -> FeedEntry:
    size = verdict_text.format_effect(change.effect)
    subject, quantity = change_points.name_subject(change), change_points.describe_quantity(change)
    summary = change_points.describe_change(change)
    path = link_to("change", change=change.id)
    return FeedEntry(f"{subject}: {quantity} {size}", path, change.found_us, summary)


def _describe_failure(release: str, checks: Sequence[ReleaseCheck]) -> FeedEntry:
    tests = ", ".join(dict.fromkeys(check.test_name for check in checks))
    messages = dict.fromkeys(check.text.partition("\n")[0] for check in checks)
    path = link_to("release", release=release)
    found_us = max(check.checked_us for check in checks)
    return FeedEntry(f"ROOT {release} fails: {tests}", path, found_us, "; ".join(messages))
