"""Measurements, failures and jobs of one site on one day."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import Any

from pydantic import Field

from treehammer.analysis.statistics.metric_units import find_display_unit
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.status.day_outcomes import DayOutcomes, describe_daily_rule
from treehammer.analysis.status.failure_explanation import explain_period
from treehammer.collectors.record.outcome import UNSUPPORTED_LABELS, Outcome
from treehammer.sql.read import overview_queries, query_model
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.read.site_history import common_label
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, build_table
from treehammer.text_formatting import format_counts, pluralize
from treehammer.web import columns, display_formats
from treehammer.web import sections as ui
from treehammer.web.addresses import link_rows, link_to
from treehammer.web.figure_links import list_figure_links, make_figure_linker
from treehammer.web.labels import VARIANT_COLUMN, VariantLabels, label_variants
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import Day, PageQuery, TextOrBlank
from treehammer.web.pages.common_tables import count_messages

_GROUP_COLUMNS = ("test_name", VARIANT_COLUMN, "axis_root", "door", "kind")
#: Outcomes counted by name; all others are failure classes.
_OUTCOMES = (Outcome.GOOD.value, Outcome.IMPLAUSIBLE.value, *UNSUPPORTED_LABELS.values())
_METRICS = ("eff_job", "cpu_per_event_s", "wall_per_event_s")


class DayQuery(PageQuery):
    """Parameters of the page."""

    day: Day = Field(description="Day (UTC).")
    site: TextOrBlank = Field(description="Site; empty for measurements without a site.")


@page(
    # The site is a query parameter, as it may be any text.
    "/days/{day}",
    "day",
    DayQuery,
    position=15,
    api=PageOperation(
        "getDay",
        "Measurements and failures of a site on a day",
        {
            "measured": "measurements by test, variant and door",
            "failing": "failures",
            "jobs": "jobs with measurements, and their campaigns",
        },
        ("status", "counts", "classes"),
    ),
)
def day_page(request: PageRequest[DayQuery]) -> PageContent:
    """Build the page; a site that has never measured anything is refused."""
    store, day, site = request.store, request.query.day, request.query.site
    number = display_formats.day_number(day)
    outcomes = _load_outcomes(store, site, number)
    groups = _load_groups(store, site, number)
    variants = label_variants(
        (str(group.by[VARIANT_COLUMN] or "") for group in groups), hide_release=True
    )
    tables = (
        _build_measured_table(store, groups, variants, site, day),
        _build_failure_table(store, site, number, variants),
        _build_job_table(store, site, number),
    )
    judged = DayOutcomes.from_outcomes(outcomes)
    failures = Counter({name: n for name, n in outcomes.items() if name not in _OUTCOMES})
    classes = dict(failures.most_common())
    heading = ui.Paragraph(ui.Styled(site or "No site", "name"), f" on {day}")
    suffix = f" ({format_counts(classes)})" if classes else ""
    parameters = {"site": site, "from": day, "to": day}
    explanation = explain_period(store, site, Period.of_day(display_formats.midnight_us(day)))
    sections = (
        ui.headline(f"{explanation or ''}"),
        ui.Paragraph(ui.Badge(judged.grade, judged.status.value), f" {judged}{suffix}"),
        ui.quiet(describe_daily_rule()),
        _link_neighbors(day, site),
        ui.Links(list_figure_links("day", store, parameters)) if judged.total else None,
        *_show_tables(*tables, is_measured=judged.total > 0),
    )
    crumbs = [ui.Link("Sites by day", f"{link_to('overview')}#days")]
    crumbs += [ui.Link(site, link_to("site", site=site))] if site else []
    about = {"status": judged.grade, "counts": columns.outcome_counts(judged), "classes": classes}
    return PageContent(f"{site or 'No site'} on {day}", sections, tables, about, crumbs, heading)


def _load_outcomes(store: Store, site: str, day: int) -> Mapping[str, int]:
    """Load the outcomes of a site on a day; a site that has never measured anything is refused."""
    site_days = overview_queries.list_site_days(store, day, day)
    outcomes = next((row.outcomes for row in site_days if row.site == site), {})
    if not outcomes and site not in overview_queries.list_sites(store):
        raise overview_queries.build_unknown_site_error(store, site)
    return outcomes


def _show_tables(
    measured: DataTable, failing: DataTable, jobs: DataTable, *, is_measured: bool
) -> Iterator[ui.Section]:
    yield ui.Titled("Measurements", measured)
    if not is_measured:
        return
    failures: list[ui.Section] = [failing]
    if failing.rows:
        messages = count_messages(
            {**row, "failure_message": row["message"], "implausible_reasons": ""}
            for row in failing.rows
        )
        failures = [messages, ui.Folded(pluralize(len(failing.rows), "measurement"), failing)]
    yield ui.Titled("Failures", *failures)
    yield ui.Titled("Jobs", jobs)


def _link_neighbors(day: date, site: str) -> ui.Pager:
    links: list[ui.Link | str] = []
    for step, word in ((-1, "day before"), (1, "day after")):
        with suppress(OverflowError):
            other = day + timedelta(days=step)
            links.append(ui.Link(word, link_to("day", day=other, query={"site": site})))
    return ui.Pager(links, "Other days")


def _load_groups(
    store: Store, site: str, day: int, metrics: tuple[str, ...] = _METRICS, *more_columns: str
) -> Sequence[query_model.FigureGroup]:
    """Load outcomes and means by test, variant, release, door and kind."""
    selection = query_model.Selection(
        conditions=(query_model.Condition("site", "=", site or None),)
    )
    figure = query_model.FigureQuery(
        metrics, (*_GROUP_COLUMNS, *more_columns), selection, first_day=day, last_day=day, kind=None
    )
    return store.load_figure(figure).groups


def _group_key(group: query_model.FigureGroup) -> tuple[query_model.Scalar, ...]:
    return tuple(group.by[name] for name in _GROUP_COLUMNS)


def _build_measured_table(
    store: Store,
    groups: Sequence[query_model.FigureGroup],
    variants: VariantLabels,
    site: str,
    day: date,
) -> DataTable:
    labels, link_figure = _load_labels(store, site, day), make_figure_linker()

    def sort_key(group: query_model.FigureGroup) -> tuple[Any, ...]:
        test, variant, *remaining = (str(value or "") for value in _group_key(group))
        return test, variants.place(variant), *map(natural_sort_key, remaining)

    def link_to_hosts(row: Row) -> str:
        """Link to a figure of the same measurements by host and job."""
        parameters = {"metric": "cpu_per_event_s", "site": site, "from": day, "to": day}
        group = {name: row[name] for name in _GROUP_COLUMNS if row[name]}
        return link_figure(("host", "job_id"), {**parameters, **group})

    rows = [
        {
            **group.by,
            "variant_label": labels.get(_group_key(group), ""),
            **columns.outcome_counts(DayOutcomes.from_outcomes(group.outcomes)),
            **{f"{name}_mean": group.metrics[name].mean for name in _METRICS},
            **{f"{name}_rms": group.metrics[name].rms for name in _METRICS},
        }
        for group in sorted(groups, key=sort_key)
    ]
    table_columns = (
        columns.column("test_name"),
        columns.variant_column(variants, link=link_to_hosts),
        columns.hidden("variant_label"),
        *columns.columns("axis_root", "door", "kind"),
        *columns.outcome_columns(),
        *(column for name in _METRICS for column in _metric_columns(name)),
    )
    caption, empty = "Means ± RMS of good measurements", "No measurements."
    return DataTable("measured", caption, table_columns, rows, empty, variants.note)


def _load_labels(
    store: Store, site: str, day: date
) -> Mapping[tuple[query_model.Scalar, ...], str]:
    """Load the common label of the measurements of each group, '' if they differ."""
    texts: dict[tuple[query_model.Scalar, ...], set[str]] = defaultdict(set)
    for group in _load_groups(store, site, display_formats.day_number(day), (), "variant_label"):
        texts[_group_key(group)].add(str(group.by["variant_label"] or ""))
    return {key: common_label(group_texts) for key, group_texts in texts.items()}


def _metric_columns(name: str) -> tuple[TableColumn, TableColumn]:
    """Build the columns of a metric's mean and RMS, shown together."""
    mean, rms, unit = f"{name}_mean", f"{name}_rms", find_display_unit(name)

    def write(row: Row) -> str:
        if row[mean] is None:
            return "–"
        return display_formats.format_mean_and_rms(*map(unit.convert, (row[mean], row[rms] or 0)))

    heading = columns.column(name).title
    return TableColumn(mean, heading, format_row=write, is_number=True), columns.hidden(rms)


def _build_failure_table(store: Store, site: str, day: int, variants: VariantLabels) -> DataTable:
    failures = overview_queries.list_bad_measurements(store, site, day)
    return build_table(
        "failing",
        "Measurements that are not good",
        (
            columns.column(
                "failure_class", value=lambda item: item.failure_class or Outcome.IMPLAUSIBLE.value
            ),
            *columns.columns("failure_kind", "failure_phase"),
            columns.column(
                "message", value=lambda item: item.failure_message or item.implausible_reasons
            ),
            columns.column("test_name"),
            columns.variant_column(variants),
            columns.hidden("variant_label"),
            *columns.columns("axis_root", "host"),
            columns.job_column(failure.job_id for failure in failures),
            columns.hidden("campaign_id"),
        ),
        failures,
        empty_text="All measurements are good.",
        note=_describe_limit(failures, overview_queries.MAX_BAD_MEASUREMENTS),
    )


def _build_job_table(store: Store, site: str, day: int) -> DataTable:
    jobs = overview_queries.list_measured_jobs(store, site, day)
    return build_table(
        "jobs",
        "Jobs with measurements",
        (
            columns.job_column(job.job_id for job in jobs),
            columns.column(
                "campaign_id",
                "campaign",
                format_row=lambda row: row["campaign_name"] or row["campaign_id"],
                link=link_rows("campaign", campaign_id="campaign_id"),
                is_long=True,
            ),
            columns.hidden("campaign_name"),
            *columns.columns("measurements", "good"),
        ),
        jobs,
        note=_describe_limit(jobs, overview_queries.MAX_MEASURED_JOBS),
    )


def _describe_limit(items: Sequence[Any], limit: int) -> str:
    is_limited = len(items) == limit
    return f"The first {limit}; the campaigns' pages list all." if is_limited else ""
