"""One campaign as one self-contained page: what was found, how certain it is, what ran, what failed."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from treehammer.analysis import wording
from treehammer.analysis.attribution import attributed
from treehammer.analysis.compare import Comparison, Question, compare
from treehammer.analysis.samples import (
    BUILD_FACTS,
    COLUMNS,
    Sample,
    bundled_axes,
    known_hosts,
    varying_axes,
)
from treehammer.analysis.summary import Row
from treehammer.analysis.verdict import DELTA
from treehammer.collectors.job import TIMED
from treehammer.errors import NothingToDo
from treehammer.sql.rows import CampaignRow
from treehammer.sql.selection import Selection
from treehammer.version import __version__
from treehammer.web.figures import Drawing, efficiency_figure, time_figure
from treehammer.web.summary import AVERAGED, Cell, summarise
from treehammer.web.templating import environment

_NODE = ("host", "cpu_model", "cores_online", "cores_allowed", "os_name", "kernel", "container")
_BUILD = ("root_version", "root_commit", "root_provider", *BUILD_FACTS)
_RAW = (
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
            *COLUMNS,
            *AVERAGED,
            *_NODE,
            *_BUILD,
            *_RAW,
            "axis_root",
            "failure_kind",
            "failure_phase",
            "failure_message",
            "calibration_before_s",
        )
    )
)

#: Single measurements that a page lists; the export holds all.
MOST_LISTED = 500


@dataclass(frozen=True)
class Group:
    """Rows of a table that differ in nothing shown, and how many there are."""

    count: int
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Report:
    """Everything a page shows, computed; the template only lays it out."""

    campaign: CampaignRow
    made_us: int
    executions: int
    usable: int
    hosts: int
    sites: tuple[str, ...]
    datasets: tuple[str, ...]
    test_hashes: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    cells: tuple[Cell, ...]
    efficiency: Drawing | None
    times: Drawing | None
    builds: tuple[Group, ...]
    nodes: tuple[Group, ...]
    failures: tuple[Group, ...]
    implausible: tuple[Group, ...]
    listed: tuple[Row, ...]

    @property
    def missing(self) -> int:
        """Executions that were planned and have left no measurement."""
        return max(self.campaign.planned_measurements - self.executions, 0)

    @property
    def headline(self) -> tuple[str, ...]:
        """What the comparisons say, one sentence each."""
        return tuple(_sentence(one) for one in self.comparisons)


def build_report(
    campaign: CampaignRow, rows: Iterable[Row], *, made_us: int, delta: float = DELTA
) -> Report:
    """Compute a report.

    Args:
        campaign: what was asked for.
        rows: its measurements with :data:`REPORT_COLUMNS`.
        made_us: time the report carries, microseconds since 1970 UTC.
        delta: effects within ±delta (in ln) count as none.
    """
    rows = list(rows)
    samples = [Sample.from_row(row) for row in rows]
    cells = summarise(rows)
    of = Selection((campaign.id,))
    failed = [row for row in rows if row["failure_class"]]
    doubtful = [row for row in rows if not row["plausible"]]
    sites = _texts(rows, "site")
    return Report(
        campaign=campaign,
        made_us=made_us,
        executions=len(rows),
        usable=sum(cell.executions for cell in cells),
        hosts=sum(
            len(known_hosts(row["host"] for row in rows if row["site"] == site)) for site in sites
        ),
        sites=sites,
        datasets=tuple(
            sorted({f"{s.dataset} ({s.dataset_hash[:12]})" for s in samples if s.dataset})
        ),
        test_hashes=_texts(rows, "test_hash"),
        comparisons=tuple(_comparisons(samples, of, made_us, delta)),
        cells=tuple(cells),
        efficiency=efficiency_figure(cells),
        times=time_figure(cells),
        builds=_groups(rows, ("axis_root", *_BUILD)),
        nodes=_node_groups(rows),
        failures=_groups(
            failed,
            ("failure_class", "failure_kind", "failure_phase", "failure_message", "site", "kind"),
        ),
        implausible=_groups(doubtful, ("implausible_why", "variant_label", "site", "host")),
        listed=tuple(rows[:MOST_LISTED]),
    )


def _comparisons(
    samples: Sequence[Sample], of: Selection, made_us: int, delta: float
) -> Iterator[Comparison]:
    """Every value of a bundled axis (else of ``root``) against its first, in natural order."""
    timed = [sample for sample in samples if sample.kind == TIMED]
    varying = varying_axes(sample.variant for sample in timed)
    for axis in bundled_axes(timed) or ("root",):
        values = varying.get(axis, [])
        for other in values[1:]:
            try:
                yield compare(samples, Question(axis, values[0], other, delta, of), now_us=made_us)
            except NothingToDo:
                continue


def _sentence(one: Comparison) -> str:
    question = one.question
    rows = one.of_scope("series")
    counts = Counter(row.verdict for row in rows).most_common()
    if len(counts) == 1:
        said = f"all {len(rows)} results are “{counts[0][0]}”"
    else:
        said = ", ".join(f"{count} “{verdict}”" for verdict, count in counts)
        said = f"{said} of {len(rows)} results"
    illustration = " All ran on one host: an illustration, not a verdict." if one.one_host else ""
    return f"{question.axis} {question.b} against {question.a}: {said}.{illustration}"


def _texts(rows: Sequence[Row], name: str) -> tuple[str, ...]:
    return tuple(sorted({row[name] for row in rows if row[name]}))


def _groups(rows: Sequence[Row], names: Sequence[str]) -> tuple[Group, ...]:
    counts = Counter(tuple(row[name] for name in names) for row in rows)
    ordered = sorted(counts.items(), key=lambda item: [str(value) for value in item[0]])
    return tuple(Group(count, values) for values, count in ordered)


def _node_groups(rows: Sequence[Row]) -> tuple[Group, ...]:
    """Nodes with the median of their calibration loop: how fast each was for the same work."""
    found = []
    names = ("site", *_NODE)
    times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row["calibration_before_s"] is not None:
            times[tuple(row[name] for name in names)].append(row["calibration_before_s"])
    for group in _groups(rows, names):
        here = times.get(group.values)
        found.append(Group(group.count, (*group.values, statistics.median(here) if here else None)))
    return tuple(found)


def render(report: Report) -> str:
    """The page: one HTML document that asks for nothing outside itself and needs no script."""
    return (
        environment(_FILTERS)
        .get_template("report.html.j2")
        .render(
            report=report,
            version=__version__,
            build_titles=["asked for", *map(_title, _BUILD)],
            node_titles=["site", *map(_title, _NODE), "calibration loop (s)"],
            raw=_RAW,
            metric_titles=wording.METRIC_TITLES,
        )
    )


def _title(name: str) -> str:
    return name.removeprefix("root_").replace("_", " ")


def _spread(cell: Cell, name: str, scale: float = 1.0) -> str:
    """Mean ± RMS to the RMS's second digit; four digits of the mean where that is a thousandth."""
    spread = cell.spreads.get(name)
    if spread is None:
        return "–"
    mean, rms = scale * spread.mean, scale * spread.rms
    if rms <= 1e-3 * abs(mean):
        return f"{mean:.4g}" if rms == 0 else f"{mean:.4g} ± {rms:.1g}"
    decimals = wording.decimals(rms)
    return f"{mean:.{decimals}f} ± {rms:.{decimals}f}"


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "attributed": attributed,
    "spread": _spread,
    "title_of": _title,
    # Our own figure, whose text matplotlib and ElementTree have escaped.
    "inline": lambda drawing: Markup(drawing.svg),  # noqa: S704
}
