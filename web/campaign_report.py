"""Campaign report: comparisons, efficiencies, provenance and failures, as one HTML document."""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from treehammer.analysis.comparison.comparison import (
    Comparison,
    compare_together,
    compare_with_first,
)
from treehammer.analysis.comparison.comparison_notes import attribute_rows
from treehammer.analysis.comparison.conclusion import describe_conclusion
from treehammer.analysis.comparison.limit_outcomes import LimitReport, judge_limits
from treehammer.analysis.comparison.limit_text import make_limit_table
from treehammer.analysis.comparison.series_changes import (
    PHASE_COLUMNS,
    DetailedSample,
    compare_phases,
    describe_phases,
)
from treehammer.analysis.descriptive.cache_reads import (
    CacheRead,
)
from treehammer.analysis.descriptive.efficiency_diagnosis import DIAGNOSIS_COLUMNS
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.job_pairs import Row
from treehammer.analysis.statistics.sample import (
    BUILD_FACTS,
    SAMPLE_COLUMNS,
    Sample,
    count_hosts,
    find_bundled_axes,
    find_varying_axes,
    natural_sort_key,
)
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA
from treehammer.collectors.job_spec import TIMED, Scalar
from treehammer.collectors.record.operation_steps import CLIENT
from treehammer.collectors.shared_files import write_atomically
from treehammer.errors import ConfigError, NothingToDoError, explain_missing_extra
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.campaign_counts import select_counted
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.operation_figures import fetch_operations
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.text_formatting import pluralize
from treehammer.version import __version__
from treehammer.web import report_figures
from treehammer.web.display_formats import (
    EfficiencyExplanation,
    build_environment,
    explain_efficiency,
)
from treehammer.web.figures.cache_figures import load_cache_reads

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
            *SAMPLE_COLUMNS,
            *PHASE_COLUMNS,
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
    # Safe: the figure's texts are escaped where its SVG is drawn.
    "inline": lambda drawing: Markup(drawing.svg),  # noqa: S704
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
    test_hashes: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    cells: tuple[report_figures.ExecutionCell, ...]
    explanations: tuple[EfficiencyExplanation, ...]
    forest_figures: tuple[report_figures.InlineFigure, ...]
    efficiency_figure: report_figures.InlineFigure | None
    time_figure: report_figures.InlineFigure | None
    builds: tuple[Row, ...]
    nodes: tuple[Row, ...]
    failures: tuple[Row, ...]
    implausible: tuple[Row, ...]
    listed: tuple[Row, ...]
    limited_loads: tuple[str, ...] = ()
    limits: LimitReport | None = None
    cache_sections: tuple[report_figures.CacheSection, ...] = ()

    @property
    def missing_count(self) -> int:
        """Planned executions without a measurement."""
        return max(self.campaign.planned_measurements - self.executions, 0)

    @property
    def conclusions(self) -> tuple[str, ...]:
        """Conclusion of each comparison in plain sentences, without that of the title."""
        _, *following = self._first_sentences
        if self.cache_sections:
            following = self._first_sentences
        others = (describe_conclusion(other.verdicts) for other in self.comparisons[1:])
        return tuple(filter(None, (" ".join(following), *others)))

    @property
    def title(self) -> str:
        """The verdict: first sentence of the first conclusion, else the efficiency or the outcome."""
        if self.cache_sections:
            return self.cache_sections[0].sentences[0].partition(". ")[0].removesuffix(".")
        if verdict := self._first_sentences[0]:
            return verdict.removesuffix(".")
        places = pluralize(len(self.sites), "site")
        if self.efficiency is not None:
            return (
                f"CPU efficiency {self.efficiency:.0%} at {places}, test {self.campaign.test_name}"
            )
        return f"{self.usable:,} of {self.executions:,} executions usable at {places}"

    @property
    def _first_sentences(self) -> list[str]:
        if not self.comparisons:
            return [""]
        return _SENTENCE_END.split(describe_conclusion(self.comparisons[0].verdicts))

    @property
    def efficiency(self) -> float | None:
        """Mean CPU efficiency of jobs over usable executions; None if none recorded it."""
        spreads = [cell.spreads["eff_job"] for cell in self.cells if "eff_job" in cell.spreads]
        count = sum(spread.n for spread in spreads)
        return sum(spread.n * spread.mean for spread in spreads) / count if count else None

    @property
    def releases(self) -> tuple[str, ...]:
        """Measured releases of ROOT."""
        return tuple(dict.fromkeys(cell.release for cell in self.cells if cell.release))


def list_limited_loads(snapshot: DatabaseSnapshot, selection: Selection) -> list[str]:
    """Describe each load of which only lower bounds are known, because its generator was the limit."""
    groups = fetch_operations(
        snapshot,
        selection,
        columns=("site", "variant_label"),
        key=lambda row: (row["site"] or "", row["variant_label"] or ""),
    )
    groups.sort(key=lambda group: (str(group.key), group.operation, group.side))
    texts = []
    for group in groups:
        key: Any = group.key
        names = (*key, group.operation, group.side if group.side != CLIENT else "")
        if limit := group.describe_limit():
            texts.append(f"{', '.join(filter(None, names))}: {limit}.")
    return texts


def build_report(
    campaign: CampaignRow,
    rows: Iterable[Row],
    *,
    made_us: int,
    limited_loads: Iterable[str] = (),
    limits: LimitReport | None = None,
    cache_reads: Sequence[CacheRead] = (),
) -> CampaignReport:
    """Compute a report.

    Args:
        rows: its measurements with :data:`REPORT_COLUMNS`.
        made_us: time of the report, microseconds since 1970 UTC.
        limited_loads: from :func:`list_limited_loads`.
        limits: outcomes of the limits that the test states; None for a test without any.
        cache_reads: its reads through caches, and the direct ones.
    """
    rows = list(rows)
    detailed = [DetailedSample.from_row(row) for row in rows]
    samples = [item.sample for item in detailed]
    rows = select_counted(rows)
    cells = report_figures.summarize_executions(rows)
    selection = Selection((campaign.id,))
    failed = [row for row in rows if row["failure_class"]]
    implausible = [row for row in rows if not row["plausible"]]
    sites = _distinct_texts(rows, "site")
    rows_by_site = {site: [row for row in rows if row["site"] == site] for site in sites}
    explanations = [explain_efficiency(site, of_site) for site, of_site in rows_by_site.items()]
    axes = _list_doors(cache_reads) or _list_bundled_values(samples)
    comparisons = tuple(_compare_axes(detailed, selection, made_us, axes))
    return CampaignReport(
        campaign=campaign,
        created_us=made_us,
        executions=len(rows),
        usable=sum(cell.executions for cell in cells),
        hosts=sum(map(count_hosts, rows_by_site.values())),
        sites=sites,
        datasets=tuple(
            sorted({f"{s.dataset} ({s.dataset_hash[:12]})" for s in samples if s.dataset})
        ),
        test_hashes=_distinct_texts(rows, "test_hash"),
        comparisons=comparisons,
        cells=tuple(cells),
        explanations=tuple(filter(lambda explanation: explanation.sentences, explanations)),
        forest_figures=tuple(_draw_forests(comparisons)),
        efficiency_figure=report_figures.draw_efficiency_figure(cells),
        time_figure=report_figures.draw_time_figure(cells),
        builds=_count_rows(rows, ("axis_root", *BUILD_COLUMNS)),
        nodes=_count_nodes(rows),
        failures=_count_rows(failed, FAILURE_COLUMNS),
        implausible=_count_rows(implausible, IMPLAUSIBLE_COLUMNS),
        listed=tuple(rows[:MAX_LISTED]),
        limited_loads=tuple(limited_loads),
        limits=limits if limits and limits.outcomes else None,
        cache_sections=tuple(report_figures.draw_cache_reads(cache_reads)),
    )


def _list_doors(cache_reads: Iterable[CacheRead]) -> Mapping[str, Sequence[Scalar]]:
    """List the doors of reads through caches, the direct ones first: other axes change the work."""
    doors = {read.door: bool(read.state) for read in cache_reads}
    ordered = sorted(doors, key=lambda door: (doors[door], door))
    return {"door": ordered} if doors else {}


def _list_bundled_values(samples: Iterable[Sample]) -> Mapping[str, Sequence[Scalar]]:
    """List the values of each bundled axis, else of ``root``, in natural order."""
    timed = [sample for sample in samples if sample.kind == TIMED]
    varying = find_varying_axes(sample.variant for sample in timed)
    return {axis: varying.get(axis, []) for axis in find_bundled_axes(timed) or ("root",)}


def _compare_axes(
    detailed: Sequence[DetailedSample],
    selection: Selection,
    made_us: int,
    axes: Mapping[str, Sequence[Scalar]],
) -> Iterator[Comparison]:
    """Compare every value of each axis with its first one."""
    samples = [item.sample for item in detailed]
    for axis, values in axes.items():
        questions = compare_with_first(axis, values, delta=DEFAULT_DELTA, selection=selection)
        if questions:
            with suppress(NothingToDoError):
                for comparison in compare_together(samples, questions, now_us=made_us):
                    query = comparison.query
                    phases = describe_phases(compare_phases(detailed, query.axis, query.a, query.b))
                    yield replace(comparison, notes=(*phases, *comparison.notes))


def _draw_forests(comparisons: Iterable[Comparison]) -> Iterator[report_figures.InlineFigure]:
    by_axis: dict[str, list[Comparison]] = defaultdict(list)
    for comparison in comparisons:
        by_axis[comparison.query.axis].append(comparison)
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
        report_figures.make_means_table(report.cells),
        report_figures.make_counted_table("builds", "ROOT builds", report.builds, builds),
        report_figures.make_counted_table("nodes", "Nodes", report.nodes, nodes),
        report_figures.make_counted_table(
            "failures", "Failed executions", report.failures, FAILURE_COLUMNS
        ),
        report_figures.make_counted_table(
            "implausible", implausible, report.implausible, IMPLAUSIBLE_COLUMNS
        ),
        report_figures.make_measurement_table(report.listed, LISTED_COLUMNS),
    )
    template = build_environment(**_FILTERS).get_template("report.html.j2")
    named = {table.name: table for table in tables}
    return template.render(report=report, version=__version__, **named)


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


def write_report(database: str, campaign: str, output: Path) -> None:
    """Write the report of a campaign (identity, name or ``last``) to ``output``, as PDF by its suffix."""
    with Store.open(database, create=False) as store:
        row = store.campaign(campaign)
        selection = Selection(campaigns=(row.id,))
        measurements = load_headline_rows(store, selection, REPORT_COLUMNS)
        made_us = time.time_ns() // 1000
        limits = judge_limits(store, row, made_us)
        with store.snapshot() as snapshot:
            limited = list_limited_loads(snapshot, selection)
            cache_reads = load_cache_reads(snapshot, selection.campaigns)
    if not measurements:
        raise NothingToDoError(
            "this campaign has no measurements yet",
            where=row.name,
            hint="Wait for its jobs (treehammer status) and collect them (treehammer collect).",
        )
    report = build_report(
        row,
        measurements,
        made_us=made_us,
        limited_loads=limited,
        limits=limits,
        cache_reads=cache_reads,
    )
    page = render_report(report)
    content = _print_pdf(page) if output.suffix.lower() == ".pdf" else page
    try:
        write_atomically(output, content)
    except OSError as error:
        raise ConfigError(f"cannot be written ({error.strerror})", where=str(output)) from error
