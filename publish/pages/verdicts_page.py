"""First page of a published site: the newest verdicts with their sentences, and releases over time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from treehammer.analysis.comparison.conclusion import describe_conclusion, select_headline
from treehammer.analysis.comparison.verdict_text import describe_variant
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.hctests.definition.model import RELEASE_AXIS
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import stored_comparisons
from treehammer.sql.read.stored_comparisons import ReleaseComparison
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable
from treehammer.verticals import import_parts
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to
from treehammer.web.columns import column
from treehammer.web.figures.figure_chart import FigureChart
from treehammer.web.figures.figure_layout import (
    FigureLayout,
    FigureMark,
    FigurePanel,
    Kind,
    Scale,
    shorten_label,
    style_series,
)
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import PageQuery
from treehammer.web.pages import common_tables

#: Comparisons that are listed; the page of comparisons has all.
MAX_LISTED = 10
#: Variants of a test that are drawn, those that changed most first.
MAX_VARIANTS = 8
METRIC = "cpu_per_event_s"
_LIMIT_NOTE = f"; those are drawn that changed most, {MAX_VARIANTS} at most"


@page(
    "/verdicts",
    "verdicts",
    menu="Verdicts",
    position=15,
    help="publish",
    reads_measurements=False,
    api=PageOperation(
        "listVerdicts", "Newest comparisons with their conclusions", {"verdicts": "comparisons"}
    ),
)
def verdicts_page(request: PageRequest[PageQuery]) -> PageContent:
    """Show the newest comparisons with their sentences, and each release against the first one."""
    store = request.store
    summaries = stored_comparisons.list_latest_comparisons(store, MAX_LISTED)
    rows = []
    for described, summary in zip(
        common_tables.describe_comparisons(store, summaries), summaries, strict=True
    ):
        verdicts = store.verdicts(summary.first_verdict.comparison_id)
        names = common_tables.load_campaign_names(store, verdicts[:1])
        is_judged = any(Verdict(verdict.verdict).is_statistical for verdict in verdicts)
        conclusion = describe_conclusion(verdicts, names)
        rows.append({**described, "conclusion": conclusion, "is_judged": is_judged})
    table_columns = (
        *common_tables.comparison_columns(),
        column("conclusion", is_long=True, detail=lambda row: row["headline"]),
        column("judged_us"),
    )
    table = DataTable(
        "verdicts",
        "Newest comparisons",
        table_columns,
        rows,
        empty_text="No comparisons yet.",
        is_arrangeable=False,
    )
    of_releases = [row for row in rows if row["axis"] == RELEASE_AXIS]
    of_releases.sort(key=lambda row: (natural_sort_key(row["b"]), row["is_judged"]), reverse=True)
    newest = of_releases[0]["b"] if of_releases else ""
    news = [*_list_news(request, newest)]
    sections = (
        *(ui.headline(row["conclusion"]) for row in (of_releases or rows)[:1]),
        ui.Bullets(news) if news else None,
        table,
        ui.Paragraph(ui.Link("All comparisons", link_to("compare"))),
        ui.Titled("Releases", *_draw_trends(store), anchor="releases"),
    )
    return PageContent("Verdicts", sections, (table,), heading="Is it faster or slower?")


def _list_news(request: PageRequest[PageQuery], release: str) -> Iterator[ui.Paragraph]:
    """Name failing and slower releases, and the steps over time of the newest one."""
    for part in import_parts("page_parts"):
        yield from part.list_release_news(request.store, request.resources.settings)
        yield from part.list_regressions(request.store, release) if release else ()


def _draw_trends(store: Store) -> Iterator[ui.Figure]:
    """Draw the releases of each test against the base of most judged comparisons."""
    comparisons = stored_comparisons.list_release_comparisons(store, METRIC)
    for number, (test, base, ids) in enumerate(choose_bases(comparisons), 1):
        rows = [row for id_ in ids for row in select_headline(store.verdicts(id_))]
        if layout := lay_out_trend(rows, base):
            caption = (
                f"CPU time per event of each release against {base} on the same work, with the "
                "intervals at which they were judged. A line is a kind of read"
                f"{_LIMIT_NOTE if layout.left_out else ''}."
            )
            heading = f"{test or 'Several tests'}: releases against {base}"
            chart = FigureChart(replace(layout, left_out=""))
            yield ui.Figure(f"trend-{number}", chart, caption, heading, describe_trend(layout))


def choose_bases(comparisons: Iterable[ReleaseComparison]) -> Iterator[tuple[str, str, list[str]]]:
    """Choose the base of each test to which most changes were judged, with these comparisons."""
    by_test: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for comparison in comparisons:
        if any(Verdict(effect.verdict).is_statistical for effect in comparison.effects):
            by_test[comparison.test][comparison.a].append(comparison.comparison_id)
    for test, by_base in sorted(by_test.items()):
        base, ids = max(by_base.items(), key=lambda item: (len(item[1]), natural_sort_key(item[0])))
        yield test, base, ids


def lay_out_trend(rows: Sequence[VerdictRow], base: str) -> FigureLayout | None:
    """Lay out the change of each kind of read from release to release; None without a change.

    Args:
        rows: headlines of comparisons of releases with the same base.
        base: that release.
    """
    changes = _group_changes(rows)
    if not changes:
        return None
    sizes = {
        name: max(abs(row.effect or 0.0) for row in changes[name].values()) for name in changes
    }
    names = sorted(changes, key=lambda name: (-sizes[name], natural_sort_key(name)))
    releases = sorted({base}.union(*changes.values()), key=natural_sort_key)
    marks = [
        _make_mark(number, releases.index(release), row)
        for number, name in enumerate(names[:MAX_VARIANTS])
        for release, row in changes[name].items()
    ]
    marks += [
        FigureMark(number, releases.index(base), 0.0, None, None)
        for number, _ in enumerate(names[:MAX_VARIANTS])
    ]
    return FigureLayout(
        Kind.CURVES,
        x_title="ROOT release",
        y_title="change of CPU time per event (%)",
        groups=("", "release", "kind of read"),
        scale=Scale.LINEAR,
        places=tuple(releases),
        series=tuple(
            style_series([(shorten_label(name), name, "") for name in names[:MAX_VARIANTS]])
        ),
        panels=(FigurePanel("", tuple(marks)),),
        left_out=_LIMIT_NOTE if len(names) > MAX_VARIANTS else "",
        better="lower",
    )


def _group_changes(rows: Sequence[VerdictRow]) -> dict[str, dict[str, VerdictRow]]:
    """Group the judged changes by kind of read, with the site unless they hold over sites, and by release."""
    changes: dict[str, dict[str, VerdictRow]] = defaultdict(dict)
    several_sites = len({row.site for row in rows}) > 1
    for row in rows:
        is_judged = Verdict(row.verdict).is_statistical
        if row.metric == METRIC and is_judged and row.effect is not None:
            place = row.site if several_sites else ""
            name = " · ".join(filter(None, (describe_variant(row.label), place)))
            changes[name][row.b] = row
    return changes


def _make_mark(series: int, place: int, row: VerdictRow) -> FigureMark:
    effect, low, high = (
        None if value is None else 100 * math.expm1(value)
        for value in (row.effect, row.low, row.high)
    )
    return FigureMark(series, place, effect or 0.0, low, high)


def describe_trend(layout: FigureLayout) -> str:
    """Describe the figure for screen readers, with all points."""
    points = (
        f"{layout.series[mark.series].name}, {layout.places[mark.place]}: {mark.y:+.1f} %"
        for mark in layout.marks
    )
    return f"Change of CPU time per event. {'; '.join(points)}"
