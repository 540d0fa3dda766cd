"""Changes over time: the list, the evidence of one, the week's digest, and a feed of regressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from xml.etree import ElementTree

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.analysis.changes import change_text
from treehammer.analysis.changes.daily_series import WINDOW_DAYS, ChangeState
from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.conclusion import count_headline, describe_headline
from treehammer.analysis.statistics.sample import HEADLINE_METRICS
from treehammer.analysis.statistics.verdict import VerdictEvidence
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.model import COMMIT_AXIS
from treehammer.sql.core.watch_rows import ChangePointRow
from treehammer.sql.read import overview_queries
from treehammer.sql.watch.alarms import fetch_change_points, find_change_point
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.text_formatting import SECOND_US
from treehammer.web import display_formats
from treehammer.web.core.request_checks import allow_any_text
from treehammer.web.display_formats import format_time
from treehammer.web.labels import head_column
from treehammer.web.pages.common_tables import (
    build_change_point_table,
    comparison_columns,
    describe_comparison,
    list_recent_changes,
    load_campaign_names,
)
from treehammer.web.pages.page_context import PageContext, PageView, link_to
from treehammer.web.pages.ratio_chart import (
    RatioQuery,
    build_ratio_charts,
    build_ratio_table,
    list_ratio_choices,
)

#: Entries of the feed.
MAX_ENTRIES = 50
#: Comparisons of commits that are listed.
MAX_COMMITS = 50
_ATOM = "http://www.w3.org/2005/Atom"


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes of the pages."""
    return [
        context.page_route("/changes", changes_view, "changes"),
        context.page_route("/changes.atom", feed_view, "changes-feed"),
        context.page_route("/digest", digest_view, "digest"),
        context.page_route(allow_any_text("/changes/{change}"), change_view, "change"),
        context.page_route(allow_any_text("/releases/{release}"), release_view, "release"),
    ]


def changes_view(store: Store, request: Request) -> PageView:
    """Collect the changes, of one site or release if the request names it."""
    names = {name: request.query_params.get(name, "") for name in ("site", "release")}
    changes = list_recent_changes(store, **names)
    table = build_change_point_table(changes, request)
    first = change_text.describe_change(changes[0]) if changes else ""
    commits = _build_commit_table(store, request)
    values = {"changepoints": table, "commits": commits, "names": names, "first": first}
    return PageView("changes.html.j2", "Changes over time", values, (table, commits))


def _build_commit_table(store: Store, request: Request) -> DataTable:
    """Build the table of the newest comparisons of a test's commits, without working trees."""
    first = datetime.now(UTC) - timedelta(days=WINDOW_DAYS)
    comparisons = [
        summary
        for summary in overview_queries.list_latest_comparisons(
            store, MAX_COMMITS, since_us=round(first.timestamp()) * SECOND_US, axis=COMMIT_AXIS
        )
        if not {"+"} & {*summary.first_verdict.a, *summary.first_verdict.b}
    ]
    names = load_campaign_names(store, (summary.first_verdict for summary in comparisons))
    evidence = [
        VerdictEvidence.from_json(summary.first_verdict.evidence) for summary in comparisons
    ]
    rows = [
        {
            **describe_comparison(summary.first_verdict, names),
            "compared": " against ".join(
                reversed(verdict_text.side_names(summary.first_verdict, names))
            ),
            "test": first.of_a.get("test_name"),
            "measured": "by separate jobs" if first.unpaired else "in turns",
            "headline": describe_headline(count_headline(summary.counts)),
        }
        for summary, first in zip(comparisons, evidence, strict=True)
    ]
    columns = (
        TableColumn("test", "test"),
        *comparison_columns(request),
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
    table = _build_place_table(change, request)
    releases = {row["release"] for row in table.rows if row["release"]}
    values = {
        "change": change,
        "sentence": change_text.describe_change(change),
        "places": table,
        "release": next(iter(releases)) if len(releases) == 1 else "",
        "facts": [
            ("first day after the change", change_text.format_day(change.day)),
            ("state", change.state),
            ("p-value of no change", f"{change.p_value:.1g}"),
            ("measured days before", change.days_before),
            ("measured days from the change on", change.days_after),
            ("a second detector finds it", "yes" if change.seconded else "no"),
            *(("nodes recognized by", name) for name in change_text.list_node_identities(change)),
        ],
    }
    return PageView("change.html.j2", change_text.name_subject(change), values, (table,))


def _build_place_table(change: ChangePointRow, request: Request) -> DataTable:
    """Build the table of the series that changed."""
    columns = (
        TableColumn("site", "site", link=lambda row: link_to(request, "site", site=row["site"])),
        TableColumn("storage_site", "storage"),
        TableColumn("door", "door"),
        TableColumn("release", "ROOT"),
        TableColumn("variant", "variant", is_long=True),
        TableColumn("change", "its own change", is_number=True),
        TableColumn("error", "± standard error", is_number=True),
    )
    rows = [
        {
            **{name: str(place.get(name) or "") for name in ("site", "storage_site", "door")},
            **{name: str(place.get(name) or "") for name in ("release", "variant")},
            "change": _format_optional(place.get("effect"), "{:+.1%}"),
            "error": _format_optional(place.get("error"), "{:.1%}"),
        }
        for place in change_text.list_places(change)
    ]
    return DataTable("places", "Series that changed", columns, rows)


def _format_optional(value: object, form: str) -> str:
    return form.format(value).replace("%", " %") if isinstance(value, int | float) else "–"


def release_view(store: Store, request: Request) -> PageView:
    """Collect the changes of a release and of the control, and all releases by day.

    Raises:
        NothingToDoError: it was never related to a control.
    """
    release = str(request.path_params["release"])
    changes = list_recent_changes(store, release=release)
    choices = list_ratio_choices(store, release)
    query = _parse_ratio_query(request, release, choices)
    charts = build_ratio_charts(store, query, changes, request)
    if not choices["metric"] and not changes:
        raise NothingToDoError(
            f"nothing is known of ROOT {release} over time",
            hint="It needs jobs that it shares with a control release: treehammer changes --update.",
        )
    table = build_change_point_table(changes, request)
    ratios = build_ratio_table(charts)
    values = {
        "changepoints": table,
        "charts": charts,
        "ratios": ratios,
        "choices": choices,
        "chosen": {"metric": query.metric, **query.places},
        "metric_title": head_column(query.metric),
        "titles": {name: head_column(name) for name in choices["metric"]},
    }
    drawings = {f"test-{number}": chart.drawing for number, chart in enumerate(charts, 1)}
    return PageView("release.html.j2", f"ROOT {release}", values, (table, ratios), charts=drawings)


def _parse_ratio_query(
    request: Request, release: str, choices: Mapping[str, Sequence[str]]
) -> RatioQuery:
    """Parse the choices of a release's charts.

    Raises:
        ConfigError: a value is not among them.
    """
    chosen = {name: request.query_params.get(name, "") for name in choices}
    for name, value in chosen.items():
        if value and value not in choices[name]:
            raise ConfigError(f"ROOT {release} has no daily ratios with {name} {value[:60]!r}")
    metric = chosen.pop("metric") or HEADLINE_METRICS[0]
    return RatioQuery(release, metric, chosen)


def digest_view(store: Store, request: Request) -> PageView:
    """Collect the digest of a week.

    Raises:
        ConfigError: the request names no week.
    """
    week = request.query_params.get("week", "")
    try:
        today = display_formats.today()
        first = change_text.parse_week(week) if week else change_text.last_whole_week(today)
        weeks = [_format_week(first + timedelta(days=days)) for days in (-7, 7)]
    except (ValueError, OverflowError):
        raise ConfigError(f"week must be like 2026-W46, not {week[:20]!r}") from None
    digest = change_text.load_digest(store, first)
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
        if change_text.is_regression(change) and change.state == ChangeState.CONFIRMED
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
        title = (
            f"{change_text.name_subject(change)}: {change_text.describe_quantity(change)} {size}"
        )
        add(entry, "title", title)
        address = base + link_to(request, "change", change=change.id).removeprefix(
            request.scope.get("root_path", "")
        )
        add(entry, "id", address)
        add(entry, "link", href=address)
        add(entry, "updated", _format_time(change.found_us))
        author = ElementTree.SubElement(entry, "author")
        add(author, "name", "Treehammer")
        add(entry, "summary", change_text.describe_change(change))
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
