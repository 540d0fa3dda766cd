"""Campaign report: comparisons or load, efficiencies, provenance and failures, as one HTML document."""

from __future__ import annotations

import logging
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.comparison import Comparison
from treehammer.analysis.comparison.comparison_notes import attribute_rows
from treehammer.analysis.comparison.comparison_result import CampaignVerdict, judge_campaign
from treehammer.analysis.comparison.conclusion import describe_conclusion
from treehammer.analysis.comparison.limit_outcomes import LimitReport, judge_limits
from treehammer.analysis.comparison.limit_text import make_limit_table
from treehammer.analysis.comparison.series_changes import DETAIL_COLUMNS
from treehammer.analysis.descriptive.efficiency_diagnosis import DIAGNOSIS_COLUMNS
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.job_pairs import Row
from treehammer.analysis.statistics.sample import BUILD_FACTS, count_hosts, natural_sort_key
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.collectors.job_spec import CHECKSUM
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.shared_files import write_atomically
from treehammer.errors import ConfigError, NothingToDoError, explain_missing_extra
from treehammer.hctests.definition.model import RELEASE_AXIS, Scalar
from treehammer.program_output import explain_write_errors
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.campaign_counts import select_counted
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable
from treehammer.text_formatting import format_share, pluralize
from treehammer.version import __version__
from treehammer.verticals import import_parts
from treehammer.web import report_figures
from treehammer.web.display_formats import (
    EfficiencyExplanation,
    build_environment,
    explain_efficiency,
)
from treehammer.web.pages import effect_tables

NODE_COLUMNS = (
    "host",
    "machine",
    "cpu_model",
    "architecture",
    "cores_online",
    "cores_allowed",
    "os_name",
    "kernel",
    "container",
)
BUILD_COLUMNS = ("root_version", "root_commit", "root_provider", *BUILD_FACTS)
FAILURE_COLUMNS: Mapping[str, str] = {
    "failure_class": "class",
    "failure_kind": "kind",
    "failure_phase": "phase",
    "failure_message": "message",
    "site": "site",
    "kind": "execution",
}
IMPLAUSIBLE_COLUMNS: Mapping[str, str] = {
    "implausible_reasons": "rule",
    "variant_label": "variant",
    "site": "site",
    "host": "host",
}
#: Columns to read from the store for a report.
REPORT_COLUMNS: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *DETAIL_COLUMNS,
            *report_figures.MEAN_TITLES,
            *NODE_COLUMNS,
            *BUILD_COLUMNS,
            *DIAGNOSIS_COLUMNS,
            "axis_root",
            *FAILURE_COLUMNS,
            *IMPLAUSIBLE_COLUMNS,
            "calibration_before_s",
        )
    )
)

#: Where a sentence of a conclusion ends and the next one begins.
_SENTENCE_END = re.compile(r"(?<=\.)\s+(?=[A-Z])")


def _distinct_texts(rows: Sequence[Row], name: str) -> tuple[str, ...]:
    return tuple(sorted({row[name] for row in rows if row[name]}, key=natural_sort_key))


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "distinct": _distinct_texts,
    "attributed": attribute_rows,
    "limit_table": make_limit_table,
    "share": format_share,
    # Safe: the figure's texts are escaped where its SVG is drawn.
    "inline": lambda drawing: Markup(drawing.svg),  # noqa: S704
    "drawn": report_figures.draw_section,
}


@dataclass(frozen=True)
class CampaignReport:
    """Content of a report.

    Attributes:
        measured: measurements of the campaign with :data:`REPORT_COLUMNS`.
        verdict: what it compared.
        created_us: time of the report, microseconds since 1970 UTC.
        further: measurements of further campaigns, for CPU efficiencies.
        load: operations of a load test.
        limits: outcomes of the limits that the test states; None for a test without any.
        sections: what verticals say of it, and of further campaigns.
        cache_sections: its reads through caches.
    """

    campaign: CampaignRow
    measured: Sequence[Row]
    verdict: CampaignVerdict
    created_us: int
    further: Sequence[Row] = ()
    load: report_figures.LoadSummary | None = None
    limits: LimitReport | None = None
    sections: Sequence[report_figures.ReportSection] = ()
    cache_sections: Sequence[report_figures.ReportSection] = ()

    @cached_property
    def rows(self) -> Sequence[Row]:
        """Measurements that count."""
        return select_counted([*self.measured])

    @cached_property
    def solo_rows(self) -> Sequence[Row]:
        """Measurements that count, with those of further campaigns."""
        return [*self.rows, *select_counted([*self.further])]

    @property
    def axis(self) -> str:
        """Axis of the first comparison."""
        return self.comparisons[0].query.axis if self.comparisons else RELEASE_AXIS

    @cached_property
    def cells(self) -> Sequence[report_figures.ExecutionCell]:
        """Usable executions by place, variant and compared value."""
        return report_figures.summarize_executions(self.rows, self.axis)

    @cached_property
    def undisturbed(self) -> Sequence[report_figures.ExecutionCell]:
        """Usable executions with those of further campaigns."""
        return report_figures.summarize_executions(self.solo_rows, self.axis)

    @property
    def usable(self) -> int:
        """Number of usable executions."""
        return sum(cell.executions for cell in self.cells)

    @property
    def rows_by_site(self) -> Mapping[str, Sequence[Row]]:
        """Measurements of each site."""
        sites = _distinct_texts(self.solo_rows, "site")
        return {site: [row for row in self.solo_rows if row["site"] == site] for site in sites}

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return count_hosts(self.rows)

    @property
    def datasets(self) -> Sequence[str]:
        """Datasets with the beginning of their hashes."""
        return sorted(
            {
                f"{row['dataset']} ({(row['dataset_hash'] or '')[:12]})"
                for row in self.rows
                if row["dataset"]
            }
        )

    @cached_property
    def failures(self) -> Sequence[Row]:
        """Failures with their number."""
        return _count_rows((row for row in self.rows if row["failure_class"]), FAILURE_COLUMNS)

    @cached_property
    def implausible(self) -> Sequence[Row]:
        """Broken rules with their number."""
        return _count_rows((row for row in self.rows if not row["plausible"]), IMPLAUSIBLE_COLUMNS)

    @cached_property
    def explanations(self) -> Sequence[EfficiencyExplanation]:
        """Why the CPU efficiency of each site is low; none for loads."""
        explanations = [explain_efficiency(*item) for item in self.rows_by_site.items()]
        return [item for item in explanations if item.sentences and not self.load]

    @cached_property
    def efficiency_figure(self) -> report_figures.InlineFigure | None:
        """Figure of study S0; None for loads."""
        if self.load:
            return None
        return report_figures.draw_efficiency_figure(self.undisturbed, self.axis)

    @property
    def forest_figures(self) -> Iterator[report_figures.InlineFigure]:
        """Changes with their intervals, a figure for each axis."""
        by_axis: dict[str, list[Comparison]] = defaultdict(list)
        for comparison in self.comparisons:
            by_axis[comparison.query.axis].append(comparison)
        for number, of_axis in enumerate(by_axis.values(), 1):
            verdicts = [comparison.verdicts for comparison in of_axis]
            figure = report_figures.draw_forest(
                verdicts, of_axis[0].query.delta, f"changes{number}"
            )
            if figure:
                yield figure

    @property
    def missing_count(self) -> int:
        """Planned executions without a measurement."""
        return max(self.campaign.planned_measurements - len(self.rows), 0)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """What the campaign compared, without counters and instructions."""
        return tuple(result.comparison for result in self.verdict.results)

    @property
    def compared(self) -> tuple[str, ...]:
        """Sides of each comparison."""
        titles = (
            verdict_text.comparison_title(comparison.verdicts[0]) for comparison in self.comparisons
        )
        return tuple(title.partition(", ")[0] for title in titles)

    @property
    def conclusions(self) -> tuple[str, ...]:
        """Conclusion of each comparison in plain sentences, without that of the title."""
        first, *following = self._first_sentences
        if first.removesuffix(".") != self.title:
            following = self._first_sentences
        sentences = (describe_conclusion(other.verdicts) for other in self.comparisons[1:])
        return tuple(filter(None, (" ".join(following), *sentences)))

    @property
    def title(self) -> str:
        """What the campaign found: caches, load, verdict, else the efficiency or the outcome."""
        if self.cache_sections:
            return self.cache_sections[0].sentences[0].partition(". ")[0].removesuffix(".")
        if self.load and self.load.conclusion:
            return self.load.conclusion.removesuffix(".")
        first = self._first_sentences[0].removesuffix(".")
        rows = self.comparisons[0].verdicts if self.comparisons else ()
        if any(Verdict(row.verdict).is_statistical for row in rows):
            return first
        places = pluralize(len(self.rows_by_site), "site")
        if self.efficiency is not None:
            share = format_share(self.efficiency)
            return f"CPU efficiency {share} at {places}, test {self.campaign.test_name}"
        return first or f"{self.usable:,} of {len(self.rows):,} executions usable at {places}"

    @property
    def _first_sentences(self) -> list[str]:
        if not self.comparisons:
            return [""]
        return _SENTENCE_END.split(describe_conclusion(self.comparisons[0].verdicts))

    @property
    def efficiency(self) -> float | None:
        """Mean CPU efficiency of undisturbed jobs; None if none recorded it, and for loads."""
        if self.load:
            return None
        spreads = [
            cell.spreads["eff_job"] for cell in self.undisturbed if "eff_job" in cell.spreads
        ]
        count = sum(spread.n for spread in spreads)
        return sum(spread.n * spread.mean for spread in spreads) / count if count else None


def _count_rows(rows: Iterable[Row], names: Collection[str]) -> tuple[Row, ...]:
    """Return the distinct values of some columns with the number of their executions."""
    counts = Counter(tuple(row[name] for name in names) for row in rows)
    ordered = sorted(
        counts.items(), key=lambda item: [natural_sort_key(str(value)) for value in item[0]]
    )
    return tuple(
        {**dict(zip(names, values, strict=True)), "executions": count} for values, count in ordered
    )


def _count_nodes(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the nodes with the median time of their calibration loop, a measure of their speed."""
    names = ("site", *NODE_COLUMNS)
    times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row["calibration_before_s"] is not None:
            times[tuple(row[name] for name in names)].append(row["calibration_before_s"])
    medians = {node: statistics.median(calibration_s) for node, calibration_s in times.items()}
    return tuple(
        {**node, "calibration_s": medians.get(tuple(node[name] for name in names))}
        for node in _count_rows(rows, names)
    )


def _make_effect_tables(comparison: Comparison) -> list[DataTable]:
    """Make the tables of a comparison's page: over all sites if there are effects, and by site."""
    first, query = comparison.verdicts[0], comparison.query
    a, b = verdict_text.side_names(first, {})
    titled = replace(first, a=a, b=b)
    bars = effect_tables.make_bar_column(comparison.verdicts, query.delta)
    tables = {"by site": effect_tables.site_table(comparison.of_series, titled, bars)}
    if any(row.effect is not None for row in comparison.over_sites):
        pooled = effect_tables.pooled_table(comparison.over_sites, titled, bars)
        # Values are those of single sites.
        columns = [item for item in pooled.columns if not item.key.endswith("_value")]
        pooled = replace(pooled, columns=tuple(columns))
        tables = {"over all sites": pooled, **tables}
    title = verdict_text.comparison_title(first).partition(", ")[0]
    return [
        replace(
            table,
            name=f"{table.name} {query.axis}={query.b}",
            caption=f"{title}, {scope}",
            # The report has no page to link to.
            columns=tuple(replace(column, link=lambda _: "") for column in table.text_columns),
            max_rows=len(table.rows),
        )
        for scope, table in tables.items()
    ]


def render_report(report: CampaignReport) -> str:
    """Render a report as one HTML document without external resources and scripts."""
    builds, nodes = (
        {name: name.removeprefix("root_").replace("_", " ") for name in names}
        for names in (("axis_root", *BUILD_COLUMNS), ("site", *NODE_COLUMNS))
    )
    builds["axis_root"] = "asked for"
    nodes["calibration_s"] = "calibration loop (s)"
    implausible = "Implausible executions: stored, never averaged"
    work = report.campaign.plan.definition.work
    reads = [row for row in report.rows if row["kind"] != CHECKSUM and row["axis_root"] != "none"]
    tables = (
        report_figures.make_means_table(report.cells, report.axis, work),
        report_figures.make_counted_table(
            "builds", "ROOT builds", _count_rows(reads, builds), builds
        ),
        report_figures.make_counted_table("nodes", "Nodes", _count_nodes(report.rows), nodes),
        report_figures.make_counted_table(
            "failures", "Failed executions", report.failures, FAILURE_COLUMNS
        ),
        report_figures.make_counted_table(
            "implausible", implausible, report.implausible, IMPLAUSIBLE_COLUMNS
        ),
    )
    filters = {**_FILTERS, "effect_tables": _make_effect_tables}
    template = build_environment(**filters).get_template("report.html.j2")
    tables_by_name = {table.name: table for table in tables}
    return template.render(report=report, version=__version__, **tables_by_name)


def _print_pdf(page: str) -> bytes:
    """Print a report as PDF, with sheets of A4 in landscape.

    Raises:
        MissingExtraError: WeasyPrint is not installed.
        ConfigError: Pango, which it needs, is not.
    """
    with explain_missing_extra():
        try:
            import weasyprint
        except OSError as error:
            raise ConfigError(
                "PDF needs the library Pango, which is not installed",
                hint="Install it (Debian: apt install libpangoft2-1.0-0 libharfbuzz-subset0), or write HTML.",
            ) from error
    # Nothing of a report is fetched; warnings are about styles for screens.
    logging.getLogger("weasyprint").setLevel(logging.ERROR)
    return bytes(weasyprint.HTML(string=page).write_pdf())


def _load_report(store: Store, campaign: CampaignRow, *further: CampaignRow) -> CampaignReport:
    """Load the report of a campaign; of further ones the CPU efficiencies, or a section of their own."""
    rows = load_headline_rows(store, Selection((campaign.id,)), REPORT_COLUMNS)
    if not rows:
        raise NothingToDoError(
            "this campaign has no measurements yet",
            where=campaign.name,
            hint="Wait for its jobs (treehammer status) and collect them (treehammer collect).",
        )
    created_us = current_us()
    sections: list[report_figures.ReportSection] = []
    for part in import_parts("report_sections"):
        sections += part.list_sections(store, (campaign, *further))
    described = frozenset[str]().union(*(section.campaigns for section in sections))
    further_ids = tuple(other.id for other in further if other.id not in described)
    load: report_figures.LoadSummary | None = None
    caches: Sequence[report_figures.ReportSection] = ()
    with store.snapshot() as snapshot:
        for part in import_parts("report"):
            load, caches = part.describe_campaign(snapshot, campaign)
    limits = judge_limits(store, campaign, created_us)
    return CampaignReport(
        campaign,
        rows,
        judge_campaign(store, campaign, rows, axes=_select_axes(campaign, has_caches=bool(caches))),
        created_us,
        load_headline_rows(store, Selection(further_ids), REPORT_COLUMNS) if further_ids else (),
        load,
        limits if limits.outcomes else None,
        sections,
        caches,
    )


def _select_axes(campaign: CampaignRow, *, has_caches: bool) -> Mapping[str, Sequence[Scalar]]:
    """Select the axes to compare: of reads through caches, others than the door change the work."""
    axes = campaign.plan.definition.compared_axes
    return {axis: values for axis, values in axes.items() if axis == "door" or not has_caches}


def write_report(database: str, references: Sequence[str], output: Path) -> None:
    """Write the report of a campaign to ``output``, as PDF by its suffix.

    Args:
        references: identity or name of the campaign, or ``last``, then of campaigns whose CPU
            efficiencies are added.
    """
    with Store.open(database, create=False) as store:
        campaigns = [store.campaign(reference) for reference in references]
        page = render_report(_load_report(store, *campaigns))
    content = _print_pdf(page) if output.suffix.lower() == ".pdf" else page
    with explain_write_errors(output):
        write_atomically(output, content)
