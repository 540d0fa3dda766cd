"""One campaign as one self-contained page: what was found, how certain it is, what ran, what failed."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from treehammer.analysis.comparison.comparison import Comparison, ComparisonQuery, compare_samples
from treehammer.analysis.descriptive.group_summary import Row
from treehammer.analysis.samples.sample import (
    BUILD_FACTS,
    SAMPLE_COLUMNS,
    Sample,
    find_bundled_axes,
    find_varying_axes,
    select_known_hosts,
)
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA
from treehammer.collectors.job_spec import TIMED
from treehammer.errors import NothingToDoError
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.measurement_selection import Selection
from treehammer.web.figures.inline_svg import InlineFigure
from treehammer.web.report.execution_cells import (
    AVERAGED_METRICS,
    ExecutionCell,
    summarize_executions,
)
from treehammer.web.report.report_figures import draw_efficiency_figure, draw_time_figure

NODE_COLUMNS = (
    "host",
    "cpu_model",
    "cores_online",
    "cores_allowed",
    "os_name",
    "kernel",
    "container",
)
BUILD_COLUMNS = ("root_version", "root_commit", "root_provider", *BUILD_FACTS)
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

#: The columns a report is made of, to ask the store for.
REPORT_COLUMNS: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *SAMPLE_COLUMNS,
            *AVERAGED_METRICS,
            *NODE_COLUMNS,
            *BUILD_COLUMNS,
            *LISTED_COLUMNS,
            "axis_root",
            "failure_kind",
            "failure_phase",
            "failure_message",
            "calibration_before_s",
        )
    )
)

#: Single measurements that a page lists; the export holds all.
MAX_LISTED = 500


@dataclass(frozen=True)
class CountedRow:
    """Rows of a table that differ in nothing shown, and how many there are."""

    count: int
    values: tuple[Any, ...]


@dataclass(frozen=True)
class CampaignReport:
    """Everything a page shows, computed; the template only lays it out."""

    campaign: CampaignRow
    created_us: int
    executions: int
    usable: int
    hosts: int
    sites: tuple[str, ...]
    datasets: tuple[str, ...]
    test_hashes: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    cells: tuple[ExecutionCell, ...]
    efficiency_figure: InlineFigure | None
    time_figure: InlineFigure | None
    builds: tuple[CountedRow, ...]
    nodes: tuple[CountedRow, ...]
    failures: tuple[CountedRow, ...]
    implausible: tuple[CountedRow, ...]
    listed: tuple[Row, ...]

    @property
    def missing_count(self) -> int:
        """Executions that were planned and have left no measurement."""
        return max(self.campaign.planned_measurements - self.executions, 0)

    @property
    def headline_sentences(self) -> tuple[str, ...]:
        """What the comparisons say, one sentence each."""
        return tuple(_comparison_sentence(one) for one in self.comparisons)


def build_report(
    campaign: CampaignRow, rows: Iterable[Row], *, made_us: int, delta: float = DEFAULT_DELTA
) -> CampaignReport:
    """Compute a report.

    Args:
        campaign: what was asked for.
        rows: its measurements with :data:`REPORT_COLUMNS`.
        made_us: time the report carries, microseconds since 1970 UTC.
        delta: effects within ±delta (in ln) count as none.
    """
    rows = list(rows)
    samples = [Sample.from_row(row) for row in rows]
    cells = summarize_executions(rows)
    of = Selection((campaign.id,))
    failed = [row for row in rows if row["failure_class"]]
    doubtful = [row for row in rows if not row["plausible"]]
    sites = _distinct_texts(rows, "site")
    return CampaignReport(
        campaign=campaign,
        created_us=made_us,
        executions=len(rows),
        usable=sum(cell.executions for cell in cells),
        hosts=sum(
            len(select_known_hosts(row["host"] for row in rows if row["site"] == site))
            for site in sites
        ),
        sites=sites,
        datasets=tuple(
            sorted({f"{s.dataset} ({s.dataset_hash[:12]})" for s in samples if s.dataset})
        ),
        test_hashes=_distinct_texts(rows, "test_hash"),
        comparisons=tuple(_compare_axes(samples, of, made_us, delta)),
        cells=tuple(cells),
        efficiency_figure=draw_efficiency_figure(cells),
        time_figure=draw_time_figure(cells),
        builds=_count_rows(rows, ("axis_root", *BUILD_COLUMNS)),
        nodes=_count_nodes(rows),
        failures=_count_rows(
            failed,
            ("failure_class", "failure_kind", "failure_phase", "failure_message", "site", "kind"),
        ),
        implausible=_count_rows(doubtful, ("implausible_reasons", "variant_label", "site", "host")),
        listed=tuple(rows[:MAX_LISTED]),
    )


def _compare_axes(
    samples: Sequence[Sample], of: Selection, made_us: int, delta: float
) -> Iterator[Comparison]:
    """Every value of a bundled axis (else of ``root``) against its first, in natural order."""
    timed = [sample for sample in samples if sample.kind == TIMED]
    varying = find_varying_axes(sample.variant for sample in timed)
    for axis in find_bundled_axes(timed) or ("root",):
        values = varying.get(axis, [])
        for other in values[1:]:
            try:
                yield compare_samples(
                    samples, ComparisonQuery(axis, values[0], other, delta, of), now_us=made_us
                )
            except NothingToDoError:
                continue


def _comparison_sentence(one: Comparison) -> str:
    question = one.query
    rows = one.verdicts_of_scope("series")
    counts = Counter(row.verdict for row in rows).most_common()
    if len(counts) == 1:
        said = f"all {len(rows)} results are “{counts[0][0]}”"
    else:
        said = ", ".join(f"{count} “{verdict}”" for verdict, count in counts)
        said = f"{said} of {len(rows)} results"
    illustration = " All ran on one host: an illustration, not a verdict." if one.one_host else ""
    return f"{question.axis} {question.b} against {question.a}: {said}.{illustration}"


def _distinct_texts(rows: Sequence[Row], name: str) -> tuple[str, ...]:
    return tuple(sorted({row[name] for row in rows if row[name]}))


def _count_rows(rows: Sequence[Row], names: Sequence[str]) -> tuple[CountedRow, ...]:
    counts = Counter(tuple(row[name] for name in names) for row in rows)
    ordered = sorted(counts.items(), key=lambda item: [str(value) for value in item[0]])
    return tuple(CountedRow(count, values) for values, count in ordered)


def _count_nodes(rows: Sequence[Row]) -> tuple[CountedRow, ...]:
    """Nodes with the median of their calibration loop: how fast each was for the same work."""
    found = []
    names = ("site", *NODE_COLUMNS)
    times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row["calibration_before_s"] is not None:
            times[tuple(row[name] for name in names)].append(row["calibration_before_s"])
    for group in _count_rows(rows, names):
        here = times.get(group.values)
        found.append(
            CountedRow(group.count, (*group.values, statistics.median(here) if here else None))
        )
    return tuple(found)
