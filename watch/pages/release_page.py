"""Page of a release: all releases by day as ratio to the pinned control, with its changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pydantic import Field

from treehammer.analysis.statistics.sample import HEADLINE_METRICS, natural_sort_key
from treehammer.errors import NothingToDoError
from treehammer.sql.core.watch_rows import ChangePointRow
from treehammer.sql.read.overview_queries import list_values_by_column
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, build_table
from treehammer.text_formatting import format_signed
from treehammer.watch.changes import WINDOW_DAYS, change_points
from treehammer.watch.changes.daily_series import (
    DailySeries,
    SeriesKind,
    average_days,
    measure_the_same,
)
from treehammer.watch.changes.job_points import build_families
from treehammer.watch.pages.watch_tables import (
    build_change_point_table,
    build_check_table,
    list_recent_changes,
)
from treehammer.watch.store.alarms import (
    ReleaseCheckTable,
    load_watched_days,
    load_watched_series,
)
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to
from treehammer.web.columns import column
from treehammer.web.display_formats import day_from_number, day_number, today
from treehammer.web.figure_links import list_figure_links
from treehammer.web.figures.figure_layout import choose_release_colors
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, DayAxis, LineChart
from treehammer.web.labels import head_column
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import PageQuery, PathText, Text

#: Releases in a chart: as many as there are colors.
MAX_RELEASES = 8


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


@page(
    "/releases/{release:some}",
    "release",
    ReleaseQuery,
    position=42,
    help="changes",
    api=PageOperation(
        "getRelease",
        "Changes of a release, and all releases by day as ratio to the control",
        {
            "checks": "checks against earlier releases",
            "changepoints": "changes",
            "ratios": "drawn ratios by test, release and day",
        },
    ),
)
def release_page(request: PageRequest[ReleaseQuery]) -> PageContent:
    """Show the changes of a release and of the control, and all releases by day."""
    store, query = request.store, request.query
    changes = list_recent_changes(store, release=query.release)
    choices = list_ratio_choices(store, query.release)
    is_related = bool(choices["metric"] or changes)
    checks = build_check_table(ReleaseCheckTable(store).list_checks(release=query.release))
    releases = list_values_by_column(store, ["axis_root"])["axis_root"]
    is_measured = is_related or query.release in releases
    if not is_measured and not checks.rows:
        raise NothingToDoError(f"ROOT {query.release} was never measured")
    for name, values in choices.items():
        if name in query.model_fields_set:
            query.require_choice(name, values)
    charts = build_ratio_charts(store, query, changes)
    table, ratios = build_change_point_table(changes), build_ratio_table(charts)
    changes_shown = (table,) if is_related else _UNRELATED
    sections = (
        ui.Links(
            [
                *list_figure_links("release", store, {"axis_root": query.release}),
                ui.Link("Comparisons", link_to("compare")),
            ]
        ),
        ui.if_filled(checks),
        *(changes_shown if is_measured else ()),
        *(_show_form(query, choices, has_charts=bool(charts)) if choices["metric"] else ()),
        *(_show_ratios(query, chart, number) for number, chart in enumerate(charts, 1)),
        ui.table_of_values(ratios) if ratios.rows else None,
    )
    crumbs = [ui.Link("Changes over time", link_to("changes"))]
    return PageContent(f"ROOT {query.release}", sections, (checks, table, ratios), crumbs=crumbs)


def _show_form(
    query: ReleaseQuery, choices: Mapping[str, list[str]], *, has_charts: bool
) -> Iterator[ui.Section]:
    """Show the form that chooses series."""
    metrics = {name: head_column(name) for name in choices["metric"]}
    yield ui.Form(
        query.list_inputs(metric=metrics, site=choices["site"], variant=choices["variant"])
    )
    if not has_charts:
        yield ui.Paragraph("No ratios of these series in the last 90 days.")


_UNRELATED = (
    ui.Paragraph("It is not related to a control release yet, which needs jobs that they share:"),
    ui.Command("treehammer changes --update"),
)


def _show_ratios(query: ReleaseQuery, chart: RatioChart, number: int) -> ui.Titled:
    """Show the chart of a test, with the changes that its marks number."""
    series = "the chosen series" if query.site or query.variant else "all sites and variants"
    joined = all(line.joined for line in chart.drawing.lines)
    gaps = (
        " Points are not joined, because days measured different variants: choose one for its line."
    )
    caption = (
        f"{head_column(query.metric)} relative to ROOT {chart.control} in the same jobs, in per cent: "
        f"mean of {series} by day (UTC), with 95 % intervals over series. A change is the step of its "
        "series against the days before it, not their distance from the control; its series have a line "
        f"of their own.{'' if joined else gaps} Numbered lines are changes."
    )
    marks = chart.marks
    return ui.Titled(
        chart.test,
        ui.Figure(f"test-{number}", chart.drawing, caption),
        ui.Bullets([mark.text for mark in marks], first=marks[0].number if marks else 1),
        anchor=f"test{number}",
    )


@dataclass(frozen=True)
class RatioChart:
    """Chart of one test relative to its control, whose marks number the changes."""

    test: str
    control: str
    drawing: LineChart
    marks: Sequence[ChartMark]


def list_ratio_choices(store: Store, release: str) -> dict[str, list[str]]:
    """List metrics, sites and variants of a release's ratios."""
    series = load_watched_series(store, kind=SeriesKind.RATIO.value, release=release)
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
        load_watched_series(store, **selection), load_watched_days(store, *window, **selection)
    )
    charts = []
    for family, members in sorted(families.items(), key=lambda item: item[0].test_name):
        series = query.select(members)
        if all(member.place.release != release for member in series):
            continue
        subject = family.test_name, query.metric
        family_changes = [
            change for change in changes if (change.test_name, change.metric) == subject
        ]
        family_changes.sort(key=lambda change: change.day)
        marks = [
            ChartMark(day, number, change_points.describe_change(change))
            for number, change in enumerate(family_changes, 1)
            if first <= (day := day_from_number(change.day)) <= last
        ]
        drawing = LineChart(
            f"{head_column(query.metric)} of {family.test_name} relative to {family.control}, in "
            "per cent",
            _build_lines(series, query, family_changes),
            DayAxis(first, last),
            marks,
            values="change (%)",
        )
        charts.append(RatioChart(family.test_name, family.control, drawing, marks))
    return charts


def build_ratio_table(charts: Sequence[RatioChart]) -> DataTable:
    """Build the table of all drawn values."""
    items = [
        (chart, line, dot) for chart in charts for line in chart.drawing.lines for dot in line.dots
    ]
    columns = (
        column("test", is_long=True, value=lambda item: item[0].test),
        column("release", "ROOT", value=lambda item: item[1].name.partition(", ")[0]),
        column("series", is_long=True, value=lambda item: item[1].name.partition(", ")[2]),
        column("day", value=lambda item: item[2].at.isoformat()),
        column(
            "ratio", "relative to the control, %", is_number=True, value=lambda item: item[2].value
        ),
        column(
            "error", "half of the 95 % interval", is_number=True, value=lambda item: item[2].error
        ),
    )
    return build_table("ratios", "Releases relative to the control by day", columns, items)


def _build_lines(
    series: Sequence[DailySeries], query: ReleaseQuery, changes: Sequence[ChangePointRow]
) -> list[ChartLine]:
    """Build a line for each release, the chosen one first.

    Series that changed are apart from those that did not, so that the step of a line is the change
    that the page states; a mean over both would show a fraction of it.
    """
    places = {
        number: change.evidence.series
        for number, change in enumerate(changes, 1)
        if change.kind == SeriesKind.RATIO
    }
    members: dict[str, dict[tuple[int, ...], list[DailySeries]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for member in series:
        place = vars(member.place).items()
        numbers = [
            number
            for number, rows in places.items()
            if any(place <= vars(row).items() for row in rows)
        ]
        members[member.place.release][tuple(numbers)].append(member)
    names = sorted(members, key=natural_sort_key)
    names.sort(key=lambda name: name != query.release)
    colors = choose_release_colors(members)
    return [
        ChartLine(
            _name_line(name, numbers, alone=len(members[name]) == 1),
            "own",
            _build_dots(name, group, query.site),
            round=bool(numbers) or len(members[name]) == 1,
            joined=measure_the_same(group),
            color=colors[name],
        )
        for name in names[:MAX_RELEASES]
        for numbers, group in sorted(members[name].items(), reverse=True)
    ]


def _name_line(release: str, numbers: Sequence[int], *, alone: bool) -> str:
    """Name a release's series by the changes that they share, unless they are all of its series."""
    if alone:
        return release
    if not numbers:
        return f"{release}, series without a change"
    noun = "change" if len(numbers) == 1 else "changes"
    return f"{release}, series of {noun} {' and '.join(map(str, numbers))}"


def _build_dots(release: str, members: Sequence[DailySeries], site: str) -> list[ChartDot]:
    """Average the series of a release by day, with 95 % intervals over series."""
    dots = []
    for pooled in average_days(members):
        size, error = 100 * pooled.change, pooled.error and 100 * pooled.error
        text = f"{pooled.day}: {release} {format_signed(size)} %, {pooled.series} series"
        link = link_to("day", day=pooled.day, query={"site": site})
        dots.append(ChartDot(pooled.day, size, error, text, link=link))
    return dots
