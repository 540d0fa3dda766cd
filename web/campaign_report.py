"""Campaign report: comparisons or load, efficiencies, provenance and failures, as one HTML document."""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from treehammer.analysis.comparison.comparison import Comparison
from treehammer.analysis.comparison.comparison_notes import attribute_rows
from treehammer.analysis.comparison.comparison_result import (
    CampaignVerdict,
    ComparisonResult,
    judge_campaign,
)
from treehammer.analysis.comparison.conclusion import describe_conclusion
from treehammer.analysis.comparison.limit_outcomes import LimitReport, judge_limits
from treehammer.analysis.comparison.limit_text import make_limit_table
from treehammer.analysis.comparison.series_changes import DETAIL_COLUMNS
from treehammer.analysis.comparison.verdict_text import comparison_title
from treehammer.analysis.descriptive.efficiency_diagnosis import DIAGNOSIS_COLUMNS
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.job_pairs import Row
from treehammer.analysis.statistics.sample import BUILD_FACTS, count_hosts, natural_sort_key
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.collectors.shared_files import write_atomically
from treehammer.errors import ConfigError, NothingToDoError, explain_missing_extra
from treehammer.hctests.definition.model import RELEASE_AXIS
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.campaign_counts import select_counted
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.text_formatting import format_share, pluralize
from treehammer.version import __version__
from treehammer.verticals import import_parts
from treehammer.web import report_figures
from treehammer.web.display_formats import (
    EfficiencyExplanation,
    build_environment,
    explain_efficiency,
)

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
LISTED_COLUMNS = (
    "site",
    "host",
    "door",
    "variant_label",
    "repeat",
    "attempt",
    "round",
    "position",
    "cpu_per_event_s",
    "wall_per_event_s",
    "eff_job",
    "failure_class",
)

#: Columns to read from the store for a report.
REPORT_COLUMNS: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *DETAIL_COLUMNS,
            *(column.key for column in report_figures.MEAN_COLUMNS),
            *NODE_COLUMNS,
            *BUILD_COLUMNS,
            *LISTED_COLUMNS,
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
#: Individual measurements listed; the export holds all.
MAX_LISTED = 500
_FILTERS: Mapping[str, Callable[..., Any]] = {
    "attributed": attribute_rows,
    "effect_tables": report_figures.make_effect_tables,
    "limit_table": make_limit_table,
    "share": format_share,
    # Safe: the figure's texts are escaped where its SVG is drawn.
    "inline": lambda drawing: Markup(drawing.svg),  # noqa: S704
    "drawn": report_figures.draw_section,
}


@dataclass(frozen=True)
class CampaignReport:
    """All data of a report, ready for the template."""

    campaign: CampaignRow
    created_us: int
    executions: int
    usable: int
    hosts: int
    sites: tuple[str, ...]
    datasets: tuple[str, ...]
    releases: tuple[str, ...]
    test_hashes: tuple[str, ...]
    verdict: CampaignVerdict
    axis: str
    cells: tuple[report_figures.ExecutionCell, ...]
    undisturbed: tuple[report_figures.ExecutionCell, ...]
    explanations: tuple[EfficiencyExplanation, ...]
    forest_figures: tuple[report_figures.InlineFigure, ...]
    efficiency_figure: report_figures.InlineFigure | None
    time_figure: report_figures.InlineFigure | None
    builds: tuple[Row, ...]
    nodes: tuple[Row, ...]
    failures: tuple[Row, ...]
    implausible: tuple[Row, ...]
    first_rows: tuple[Row, ...]
    load: report_figures.LoadSummary | None = None
    limits: LimitReport | None = None
    cache_sections: tuple[report_figures.CacheSection, ...] = ()

    @property
    def missing_count(self) -> int:
        """Planned executions without a measurement."""
        return max(self.campaign.planned_measurements - self.executions, 0)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """What the campaign compared, without counters and instructions."""
        return tuple(result.comparison for result in self.verdict.results)

    @property
    def compared(self) -> tuple[str, ...]:
        """Sides of each comparison."""
        titles = (comparison_title(comparison.verdicts[0]) for comparison in self.comparisons)
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
        places = pluralize(len(self.sites), "site")
        if self.efficiency is not None:
            share = format_share(self.efficiency)
            return f"CPU efficiency {share} at {places}, test {self.campaign.test_name}"
        return first or f"{self.usable:,} of {self.executions:,} executions usable at {places}"

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


def build_report(
    campaign: CampaignRow,
    rows: Iterable[Row],
    verdict: CampaignVerdict,
    *,
    made_us: int,
    undisturbed: Iterable[Row] = (),
    load: report_figures.LoadSummary | None = None,
    limits: LimitReport | None = None,
    cache_sections: Sequence[report_figures.CacheSection] = (),
) -> CampaignReport:
    """Compute a report.

    Args:
        rows: its measurements with :data:`REPORT_COLUMNS`.
        verdict: what it compared.
        made_us: time of the report, microseconds since 1970 UTC.
        undisturbed: measurements of further campaigns, for CPU efficiencies.
        load: operations of a load test.
        limits: outcomes of the limits that the test states; None for a test without any.
        cache_sections: its reads through caches.
    """
    rows = select_counted([*rows])
    solo_rows = [*rows, *select_counted([*undisturbed])]
    queries = [result.comparison.query for result in verdict.results]
    axis = queries[0].axis if queries else RELEASE_AXIS
    cells = report_figures.summarize_executions(rows, axis)
    undisturbed_cells = report_figures.summarize_executions(solo_rows, axis)
    failed = [row for row in rows if row["failure_class"]]
    implausible = [row for row in rows if not row["plausible"]]
    sites = _distinct_texts(solo_rows, "site")
    rows_by_site = {site: [row for row in solo_rows if row["site"] == site] for site in sites}
    explanations = [explain_efficiency(site, of_site) for site, of_site in rows_by_site.items()]
    datasets = {
        f"{row['dataset']} ({(row['dataset_hash'] or '')[:12]})" for row in rows if row["dataset"]
    }
    return CampaignReport(
        campaign=campaign,
        created_us=made_us,
        executions=len(rows),
        usable=sum(cell.executions for cell in cells),
        hosts=sum(map(count_hosts, rows_by_site.values())),
        sites=sites,
        datasets=tuple(sorted(datasets)),
        releases=_distinct_texts(rows, "root_version"),
        test_hashes=_distinct_texts(rows, "test_hash"),
        verdict=verdict,
        axis=axis,
        cells=tuple(cells),
        undisturbed=tuple(undisturbed_cells),
        explanations=()
        if load
        else tuple(explanation for explanation in explanations if explanation.sentences),
        forest_figures=tuple(_draw_forests(verdict.results)),
        efficiency_figure=None
        if load
        else report_figures.draw_efficiency_figure(undisturbed_cells, axis),
        time_figure=report_figures.draw_time_figure(cells, axis),
        builds=_count_rows(rows, ("axis_root", *BUILD_COLUMNS)),
        nodes=_count_nodes(rows),
        failures=_count_rows(failed, FAILURE_COLUMNS),
        implausible=_count_rows(implausible, IMPLAUSIBLE_COLUMNS),
        first_rows=tuple(rows[:MAX_LISTED]),
        load=load,
        limits=limits if limits and limits.outcomes else None,
        cache_sections=tuple(cache_sections),
    )


def _draw_forests(
    results: Iterable[ComparisonResult],
) -> Iterator[report_figures.InlineFigure]:
    by_axis: dict[str, list[Comparison]] = defaultdict(list)
    for result in results:
        by_axis[result.comparison.query.axis].append(result.comparison)
    for number, of_axis in enumerate(by_axis.values(), 1):
        verdicts = [comparison.verdicts for comparison in of_axis]
        figure = report_figures.draw_forest(verdicts, of_axis[0].query.delta, f"changes{number}")
        if figure:
            yield figure


def _distinct_texts(rows: Sequence[Row], name: str) -> tuple[str, ...]:
    return tuple(sorted({row[name] for row in rows if row[name]}, key=natural_sort_key))


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


def render_report(report: CampaignReport) -> str:
    """Render a report as one HTML document without external resources and scripts."""
    builds = {
        "axis_root": "asked for",
        **{name: report_figures.title_column(name) for name in BUILD_COLUMNS},
    }
    nodes = {"site": "site", **{name: report_figures.title_column(name) for name in NODE_COLUMNS}}
    nodes["calibration_s"] = "calibration loop (s)"
    implausible = "Implausible executions: stored, never averaged"
    tables = (
        report_figures.make_means_table(report.cells, report.axis),
        report_figures.make_counted_table("builds", "ROOT builds", report.builds, builds),
        report_figures.make_counted_table("nodes", "Nodes", report.nodes, nodes),
        report_figures.make_counted_table(
            "failures", "Failed executions", report.failures, FAILURE_COLUMNS
        ),
        report_figures.make_counted_table(
            "implausible", implausible, report.implausible, IMPLAUSIBLE_COLUMNS
        ),
        report_figures.make_measurement_table(report.first_rows, LISTED_COLUMNS),
    )
    template = build_environment(**_FILTERS).get_template("report.html.j2")
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


def write_report(database: str, references: Sequence[str], output: Path) -> None:
    """Write the report of a campaign to ``output``, as PDF by its suffix.

    Args:
        references: identity or name of the campaign, or ``last``, then of campaigns whose CPU
            efficiencies are added.
    """
    with Store.open(database, create=False) as store:
        campaign, *rest = (store.campaign(reference) for reference in references)
        selection = Selection(campaigns=(campaign.id,))
        rows = load_headline_rows(store, selection, REPORT_COLUMNS)
        if not rows:
            raise NothingToDoError(
                "this campaign has no measurements yet",
                where=campaign.name,
                hint="Wait for its jobs (treehammer status) and collect them (treehammer collect).",
            )
        made_us = time.time_ns() // 1000
        extra = Selection(campaigns=tuple(other.id for other in rest))
        load: report_figures.LoadSummary | None = None
        caches: Sequence[report_figures.CacheSection] = ()
        with store.snapshot() as snapshot:
            for part in import_parts("report"):
                load, caches = part.describe_campaign(snapshot, campaign)
        axes = campaign.plan.definition.compared_axes
        if caches:  # other axes change the work
            axes = {axis: values for axis, values in axes.items() if axis == "door"}
        report = build_report(
            campaign,
            rows,
            judge_campaign(store, campaign, rows, axes=axes),
            made_us=made_us,
            undisturbed=load_headline_rows(store, extra, REPORT_COLUMNS) if rest else (),
            load=load,
            limits=judge_limits(store, campaign, made_us),
            cache_sections=caches,
        )
    page = render_report(report)
    content = _print_pdf(page) if output.suffix.lower() == ".pdf" else page
    try:
        write_atomically(output, content)
    except OSError as error:
        raise ConfigError(f"cannot be written ({error.strerror})", where=str(output)) from error
