"""Changes over time: the list, the evidence of one, the week's digest, and a feed of regressions.

Charts show all releases as ratio to the pinned control, one for each test, with marked changes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from statistics import fmean
from xml.etree import ElementTree

import numpy as np
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.analysis.changes import WINDOW_DAYS, change_points, weekly_digest
from treehammer.analysis.changes.daily_series import (
    ChangeState,
    DailySeries,
    SeriesKind,
    pool_series,
)
from treehammer.analysis.changes.job_points import build_families
from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.conclusion import count_headline, describe_headline
from treehammer.analysis.statistics.estimates import estimate_mean
from treehammer.analysis.statistics.sample import HEADLINE_METRICS, natural_sort_key
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.model import COMMIT_AXIS
from treehammer.sql.core.evidence import ChangedSeries
from treehammer.sql.core.watch_rows import ChangePointRow
from treehammer.sql.read import stored_comparisons
from treehammer.sql.watch.alarms import (
    fetch_change_points,
    fetch_watched_days,
    fetch_watched_series,
    find_change_point,
)
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.text_formatting import SECOND_US
from treehammer.web.addresses import link_rows, link_to
from treehammer.web.core.responses import allow_any_text
from treehammer.web.display_formats import (
    day_from_number,
    day_number,
    format_day,
    format_time,
    today,
)
from treehammer.web.figures.figure_layout import choose_release_colors
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, DayAxis, LineChart
from treehammer.web.labels import head_column
from treehammer.web.page_query import PageOperation, PageQuery, PathText, Text
from treehammer.web.page_service import PageContext, PageModule, PageView
from treehammer.web.pages.common_tables import (
    build_change_point_table,
    comparison_columns,
    describe_comparison,
    list_recent_changes,
    load_campaign_names,
)

#: Entries of the feed.
MAX_ENTRIES = 50
#: Comparisons of commits that are listed.
MAX_COMMITS = 50
_ATOM = "http://www.w3.org/2005/Atom"

#: Releases in a chart: as many as there are colors.
MAX_RELEASES = 8
#: Series that an interval needs: that of two is thirty times as wide as their spread.
MIN_SERIES = 4


class ChangesQuery(PageQuery):
    """Parameters of the list."""

    site: Text = Field("", description="Changes of a site, as site of the jobs or storage.")
    release: Text = Field("", description="Changes of a ROOT release.")


class DigestQuery(PageQuery):
    """Parameters of the digest."""

    week: Text = Field("", description="Week such as 2026-W46, by default the last whole one.")


class ReleaseQuery(PageQuery):
    """Parameters of a release's page."""

    release: PathText = Field(description="The release.")
    metric: Text = Field(HEADLINE_METRICS[0], description="Metric of the ratios.")
    site: Text = Field("", description="Only series of this site.")
    variant: Text = Field("", description="Only series of the variant with this label.")

    def select(self, series: Iterable[DailySeries]) -> list[DailySeries]:
        """Select the series of the site and variant."""
        return [
            member
            for member in series
            if self.site in ("", member.place.site) and self.variant in ("", member.place.variant)
        ]


#: Content of the pages for programs.
OPERATIONS = (
    PageOperation(
        "/changes",
        "listChanges",
        "changes",
        "Steps in daily series of the last 90 days",
        {
            "changepoints": "changes, slower ones first, then newest first",
            "commits": "comparisons of a test's commits, newest first",
        },
        ChangesQuery,
    ),
)


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes of the pages."""
    return [
        context.page_route("/changes", changes_view, "changes"),
        context.page_route("/changes.atom", feed_view, "changes-feed"),
        context.page_route("/digest", digest_view, "digest"),
        context.page_route(allow_any_text("/changes/{change}"), change_view, "change"),
        context.page_route(allow_any_text("/releases/{release}"), release_view, "release"),
    ]


PAGES = PageModule(routes, position=40, menu={"changes": "Changes"}, operations=OPERATIONS)


def changes_view(store: Store, request: Request) -> PageView:
    """Collect the changes, of one site or release if the request names it."""
    names = ChangesQuery.parse(request).model_dump()
    changes = list_recent_changes(store, **names)
    table = build_change_point_table(changes)
    first = change_points.describe_change(changes[0]) if changes else ""
    commits = _build_commit_table(store)
    values = {"changepoints": table, "commits": commits, "names": names, "first": first}
    return PageView("changes.html.j2", "Changes over time", values, (table, commits))


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
    names = load_campaign_names(store, (summary.first_verdict for summary in comparisons))
    rows = [
        {
            **describe_comparison(summary.first_verdict, names),
            "compared": " against ".join(
                reversed(verdict_text.side_names(summary.first_verdict, names))
            ),
            "test": summary.first_verdict.evidence.of_a.get("test_name"),
            "measured": "by separate jobs"
            if summary.first_verdict.evidence.unpaired
            else "in turns",
            "headline": describe_headline(count_headline(summary.counts)),
        }
        for summary in comparisons
    ]
    columns = (
        TableColumn("test", "test"),
        *comparison_columns(),
        TableColumn("measured", "measured"),
        TableColumn("judged_us", "judged", format_time),
        TableColumn("headline", "variants", is_long=True),
    )
    return DataTable(
        "commits",
        "Commits of tests",
        columns,
        rows,
        empty_text="No commits of a test were compared in this period.",
    )


def change_view(store: Store, request: Request) -> PageView:
    """Collect the evidence of a change.

    Raises:
        NothingToDoError: it is unknown.
    """
    change = find_change_point(store, str(request.path_params["change"]))
    if change is None:
        raise NothingToDoError(
            "no such change", hint="Later days may not have supported a provisional one."
        )
    table = _build_place_table(change)
    releases = {row["release"] for row in table.rows if row["release"]}
    values = {
        "change": change,
        "sentence": change_points.describe_change(change),
        "places": table,
        "release": next(iter(releases)) if len(releases) == 1 else "",
        "facts": [
            ("first day after the change", change_points.format_day(change.day)),
            ("state", change.state),
            ("p-value of no change", f"{change.p_value:.1g}"),
            ("measured days before", change.days_before),
            ("measured days from the change on", change.days_after),
            ("a second detector finds it", "yes" if change.seconded else "no"),
            *(("nodes recognized by", name) for name in change_points.list_node_identities(change)),
        ],
    }
    return PageView("change.html.j2", change_points.name_subject(change), values, (table,))


def _build_place_table(change: ChangePointRow) -> DataTable:
    """Build the table of the series that changed."""
    columns = (
        TableColumn("site", "site", link=link_rows("site", site="site")),
        TableColumn("storage_site", "storage"),
        TableColumn("door", "door"),
        TableColumn("release", "ROOT"),
        TableColumn("variant", "variant", is_long=True),
        TableColumn("change", "its own change", is_number=True),
        TableColumn("error", "± standard error", is_number=True),
    )
    rows = [
        {
            **vars(series),
            "change": _format_optional(series.effect, "{:+.1%}"),
            "error": _format_optional(series.error, "{:.1%}"),
        }
        for series in change.evidence.series
    ]
    return DataTable("places", "Series that changed", columns, rows)


def _format_optional(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value).replace("%", " %")


def release_view(store: Store, request: Request) -> PageView:
    """Collect the changes of a release and of the control, and all releases by day.

    Raises:
        NothingToDoError: it was never related to a control.
    """
    query = ReleaseQuery.parse(request)
    release = query.release
    changes = list_recent_changes(store, release=release)
    choices = list_ratio_choices(store, release)
    for name, listed_values in choices.items():
        if name in query.model_fields_set:
            query.require_choice(name, listed_values)
    charts = build_ratio_charts(store, query, changes)
    if not choices["metric"] and not changes:
        raise NothingToDoError(
            f"nothing is known of ROOT {release} over time",
            hint="It needs jobs that it shares with a control release: treehammer changes --update.",
        )
    table = build_change_point_table(changes)
    ratios = build_ratio_table(charts)
    values = {
        "changepoints": table,
        "charts": charts,
        "ratios": ratios,
        "query": query,
        "has_ratios": bool(choices["metric"]),
        "form": query.list_inputs(
            metric={name: head_column(name) for name in choices["metric"]},
            site=choices["site"],
            variant=choices["variant"],
        ),
        "metric_title": head_column(query.metric),
    }
    drawings = {f"test-{number}": chart.drawing for number, chart in enumerate(charts, 1)}
    return PageView("release.html.j2", f"ROOT {release}", values, (table, ratios), charts=drawings)


def digest_view(store: Store, request: Request) -> PageView:
    """Collect the digest of a week.

    Raises:
        ConfigError: the request names no week.
    """
    week = DigestQuery.parse(request).week
    try:
        first = weekly_digest.parse_week(week) if week else weekly_digest.this_week(today())
        weeks = [_format_week(first + timedelta(days=days)) for days in (-7, 7)]
    except (ValueError, OverflowError):
        raise ConfigError(f"week must be like 2026-W46, not {week[:20]!r}") from None
    digest = weekly_digest.load_digest(store, first)
    values = {"digest": digest, "weeks": weeks, "root": request.scope.get("root_path", "")}
    return PageView("digest.html.j2", digest.title, values)


def _format_week(monday: date) -> str:
    year, week, _ = monday.isocalendar()
    return f"{year}-W{week:02}"


def feed_view(store: Store, request: Request) -> Response:
    """Answer with the confirmed regressions as an Atom feed, newest first."""
    confirmed = [
        change
        for change in fetch_change_points(store)
        if change_points.is_regression(change) and change.state == ChangeState.CONFIRMED
    ]
    newest = sorted(confirmed, key=lambda change: (-change.found_us, change.id))[:MAX_ENTRIES]
    return Response(_write_feed(newest, request), media_type="application/atom+xml")


def _write_feed(changes: Iterable[ChangePointRow], request: Request) -> bytes:
    base = str(request.base_url).rstrip("/")
    feed = ElementTree.Element("feed", xmlns=_ATOM)

    def add(parent: ElementTree.Element, name: str, text: str = "", **attributes: str) -> None:
        ElementTree.SubElement(parent, name, attributes).text = _drop_controls(text)

    entries = list(changes)
    add(feed, "title", "Treehammer: regressions")
    add(feed, "id", f"{base}/changes.atom")
    add(feed, "link", rel="self", href=f"{base}/changes.atom")
    add(feed, "updated", _format_time(max((change.found_us for change in entries), default=0)))
    for change in entries:
        entry = ElementTree.SubElement(feed, "entry")
        size = verdict_text.format_effect(change.effect)
        title = f"{change_points.name_subject(change)}: {change_points.describe_quantity(change)} {size}"
        add(entry, "title", title)
        address = base + link_to("change", change=change.id).removeprefix(
            request.scope.get("root_path", "")
        )
        add(entry, "id", address)
        add(entry, "link", href=address)
        add(entry, "updated", _format_time(change.found_us))
        author = ElementTree.SubElement(entry, "author")
        add(author, "name", "Treehammer")
        add(entry, "summary", change_points.describe_change(change))
    body: bytes = ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True)
    return body


def _drop_controls(text: str) -> str:
    """Replace characters that XML does not allow."""
    return "".join(
        character if character >= " " and character not in "\ufffe\uffff" else " "
        for character in text
    )


def _format_time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class RatioChart:
    """Chart of one test, and the changes that its marks number."""

    test: str
    control: str
    drawing: LineChart
    marks: Sequence[tuple[int, str]]

    @property
    def joined(self) -> bool:
        """Whether the points of each release are joined."""
        return all(line.joined for line in self.drawing.lines)


def list_ratio_choices(store: Store, release: str) -> dict[str, list[str]]:
    """List metrics, sites and variants of a release's ratios."""
    series = fetch_watched_series(store, kind=SeriesKind.RATIO.value, release=release)
    names = {"metric": "metric", "site": "site", "variant": "variant_label"}
    return {
        name: sorted({getattr(member, column) for member in series} - {""}, key=natural_sort_key)
        for name, column in names.items()
    }


def build_ratio_charts(
    store: Store, query: ReleaseQuery, changes: Sequence[ChangePointRow]
) -> list[RatioChart]:
    """Build a chart for each test that measured a release, with the other releases beside it."""
    release = query.release
    last = today()
    first = last - timedelta(days=WINDOW_DAYS - 1)
    selection = {"kind": SeriesKind.RATIO.value, "metric": query.metric}
    window = day_number(first), day_number(last)
    families = build_families(
        fetch_watched_series(store, **selection), fetch_watched_days(store, *window, **selection)
    )
    charts = []
    for family, members in sorted(families.items(), key=lambda item: item[0].test_name):
        series = query.select(members)
        if all(member.place.release != release for member in series):
            continue
        family_changes = sorted(
            (
                change
                for change in changes
                if (change.test_name, change.metric) == (family.test_name, query.metric)
            ),
            key=lambda change: change.day,
        )
        marks = [
            ChartMark(
                day_from_number(change.day),
                number,
                change_points.describe_change(change),
            )
            for number, change in enumerate(family_changes, 1)
            if first <= day_from_number(change.day) <= last
        ]
        drawing = LineChart(
            f"{head_column(query.metric)} of {family.test_name} relative to {family.control}, in "
            "per cent",
            _build_lines(
                series,
                release,
                dict(enumerate(family_changes, 1)),
                lambda day: link_to("day", day=day, query={"site": query.site}),
            ),
            DayAxis(first, last),
            marks,
        )
        texts = [(mark.number, mark.text) for mark in marks]
        charts.append(RatioChart(family.test_name, family.control, drawing, texts))
    return charts


def build_ratio_table(charts: Sequence[RatioChart]) -> DataTable:
    """Build the table of all drawn values."""
    rows = [
        {
            "test": chart.test,
            "release": line.name.partition(", ")[0],
            "series": line.name.partition(", ")[2],
            "day": dot.at.isoformat(),
            "ratio": dot.value,
            "error": dot.error,
        }
        for chart in charts
        for line in chart.drawing.lines
        for dot in line.dots
    ]
    columns = (
        TableColumn("test", "test", is_long=True),
        TableColumn("release", "ROOT"),
        TableColumn("series", "series", is_long=True),
        TableColumn("day", "day (UTC)"),
        TableColumn("ratio", "relative to the control, %", is_number=True),
        TableColumn("error", "half of the 95 % interval", is_number=True),
    )
    return DataTable("ratios", "Releases relative to the control by day", columns, rows)


def _build_lines(
    series: Sequence[DailySeries],
    release: str,
    changes: Mapping[int, ChangePointRow],
    link: Callable[[date], str],
) -> list[ChartLine]:
    """Build a line for each release, the chosen one first.

    Series that changed are apart from those that did not, so that the step of a line is the change
    that the page states; a mean over both would show a fraction of it.

    Args:
        series: of all releases.
        release: the chosen one.
        changes: the numbered changes of the test and metric.
        link: page of a day.
    """
    places = {
        number: change.evidence.series
        for number, change in changes.items()
        if change.kind == SeriesKind.RATIO
    }
    members: dict[str, dict[tuple[int, ...], list[DailySeries]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for member in series:
        numbers = [number for number, rows in places.items() if _is_among(member, rows)]
        members[member.place.release][tuple(numbers)].append(member)
    names = sorted(members, key=natural_sort_key)
    names.sort(key=lambda name: name != release)
    colors = choose_release_colors(members)
    return [
        ChartLine(
            _name_line(name, numbers, alone=len(members[name]) == 1),
            "own",
            _build_dots(name, group, link),
            round=bool(numbers) or len(members[name]) == 1,
            joined=_measure_the_same(group),
            color=colors[name],
        )
        for name in names[:MAX_RELEASES]
        for numbers, group in sorted(members[name].items(), reverse=True)
    ]


def _is_among(series: DailySeries, changed: Iterable[ChangedSeries]) -> bool:
    """Return whether a series is one of those that changed."""
    place = vars(series.place).items()
    return any(place <= vars(row).items() for row in changed)


def _name_line(release: str, numbers: Sequence[int], *, alone: bool) -> str:
    """Name a release's series by the changes that they share, unless they are all of its series."""
    if alone:
        return release
    if not numbers:
        return f"{release}, series without a change"
    noun = "change" if len(numbers) == 1 else "changes"
    return f"{release}, series of {noun} {' and '.join(map(str, numbers))}"


def _measure_the_same(members: Sequence[DailySeries]) -> bool:
    """Return whether all days measured the same variants: a mean over another mix would look like a change."""
    variants: dict[int, set[str]] = defaultdict(set)
    for member in members:
        for day in member.days:
            variants[int(day)].add(member.place.variant)
    return len({frozenset(day_variants) for day_variants in variants.values()}) < 2


def _build_dots(
    release: str, members: Sequence[DailySeries], link: Callable[[date], str]
) -> list[ChartDot]:
    """Average the series of a release by day, with 95 % intervals over series."""
    days, values = pool_series(members)
    level = fmean(float(member.values.mean()) for member in members)
    level -= float(np.mean(values))
    residuals: dict[int, list[float]] = defaultdict(list)
    for member in members:
        for day, value in zip(member.days, member.values - member.values.mean(), strict=True):
            residuals[int(day)].append(float(value))
    dots = []
    for day, value in zip(map(int, days), values, strict=True):
        enough = len(residuals[day]) >= MIN_SERIES
        estimate = estimate_mean(residuals[day]) if enough else None
        error = (estimate.interval()[1] - estimate.mean) * 100 if estimate else None
        size = 100 * math.expm1(level + float(value))
        calendar_day = date.fromordinal(day)
        text = f"{format_day(calendar_day)}: {release} {size:+.1f} %, {len(residuals[day])} series"
        dots.append(ChartDot(calendar_day, size, error, text, link=link(calendar_day)))
    return dots
