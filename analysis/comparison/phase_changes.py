"""Changes of the phases of a read between two values of an axis: which of them changed the time.

Each pair of executions of one round gives the change of each phase, in shares of the base's CPU time
of the loop, so that the changes of the loop's phases add up to the loop's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from treehammer.analysis.statistics.sample import Sample, comparison_key, find_varying_axes
from treehammer.analysis.statistics.verdict import attach_to_series
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.metric_catalogue import find_access_mode
from treehammer.hctests.definition.model import Scalar
from treehammer.sql.core.rows import VerdictRow

OPEN, READ, DECOMPRESS, DESERIALIZE = "open", "read", "decompress", "deserialize"
#: Phases in the order of a table.
PHASES = (OPEN, READ, DECOMPRESS, DESERIALIZE)
_OPENING_COLUMNS = tuple(
    f"{phase}_{clock}_s" for phase in ("open", "get_tree", "prepare") for clock in ("user", "sys")
)
#: Columns of a measurement from which its phases are computed.
PHASE_COLUMNS = (
    *_OPENING_COLUMNS,
    "loop_run_queue_s",
    "perfstats_read_s",
    "perfstats_unzip_s",
    "ntuple_read_cpu_s",
    "ntuple_unzip_cpu_s",
)
#: Pairs that an interval needs.
MIN_PAIRS = 3
#: Confidence of all intervals of one series together.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class PhasedSample:
    """A measurement with the seconds of CPU of its phases in one pass; empty where they are unknown."""

    sample: Sample
    loop_s: float
    phases: Mapping[str, float]

    @classmethod
    def from_row(cls, row: Mapping[str, Any], sample: Sample) -> PhasedSample:
        """Build one from a row of the store with the columns of a sample and PHASE_COLUMNS."""
        loop_s = row.get("loop_cpu_s") or 0.0
        # TTreePerfStats has wall clocks, which run on while the thread waits for a CPU.
        running = loop_s / (loop_s + (row.get("loop_run_queue_s") or 0.0)) if loop_s else 0.0
        unzip_s = _find_cpu_time(row, "unzip", running)
        if not loop_s or unzip_s is None:
            return cls(sample, loop_s, {})
        phases = {OPEN: math.fsum(row.get(name) or 0.0 for name in _OPENING_COLUMNS)}
        read_s = _find_cpu_time(row, "read", running if _is_warm_file(sample) else None)
        if read_s is not None:
            phases[READ] = read_s
        phases[DECOMPRESS] = unzip_s
        phases[DESERIALIZE] = loop_s - unzip_s - (read_s or 0.0)
        return cls(sample, loop_s, phases)


def _find_cpu_time(row: Mapping[str, Any], action: str, running: float | None) -> float | None:
    """Find the CPU seconds of an action: an RNTuple's own, or a share of TTreePerfStats' wall time.

    ``running`` is None where the wall time is not mostly CPU time.
    """
    if (of_ntuple := row.get(f"ntuple_{action}_cpu_s")) is not None:
        return float(of_ntuple)
    wall_s = row.get(f"perfstats_{action}_s")
    return None if wall_s is None or running is None else running * float(wall_s)


def _is_warm_file(sample: Sample) -> bool:
    """Return whether reads come from the page cache; others mostly wait for storage."""
    axes = dict(sample.variant.values)
    mode = find_access_mode(axes, sample.door_protocol) or ""
    return mode.startswith("file") and axes.get("cache") != "cold"


@dataclass(frozen=True)
class PhaseChange:
    """Change of one phase of one series.

    Attributes:
        scope: ``phase``.
        site: of the series; '' where sites are compared.
        label: of its variant.
        phase: one of :data:`PHASES`.
        a_s: mean CPU seconds in one pass of side A.
        b_s: the same of side B.
        change: mean of B − A, as a share of A's CPU time of the loop.
        low: lower bound of its interval, with the other phases' at :data:`CONFIDENCE`.
        high: upper bound.
        pairs: number of pairs of executions.
        comparison_key: of the series.
    """

    scope: str
    site: str
    label: str
    phase: str
    a_s: float
    b_s: float
    change: float
    low: float
    high: float
    pairs: int
    comparison_key: str = ""

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def compare_phases(
    measured: Iterable[PhasedSample], axis: str, a: Scalar, b: Scalar
) -> list[PhaseChange]:
    """Compare the phases of all series with enough pairs of executions in one round of a job."""
    usable = [
        item
        for item in measured
        if item.phases and item.sample.axis_value(axis) in (a, b) and _is_usable(item.sample)
    ]
    varying = find_varying_axes(item.sample.variant for item in usable)
    axes = tuple(name for name in varying if name != axis)
    series: dict[tuple[str, str], dict[tuple[str, int, int], dict[bool, PhasedSample]]] = (
        defaultdict(lambda: defaultdict(dict))
    )
    for item in usable:
        sample = item.sample
        key = (comparison_key(sample, axis), "" if axis == "site" else sample.site)
        pair = series[key][sample.job_id, sample.attempt, sample.round]
        pair[sample.axis_value(axis) == b] = item
    changes: list[PhaseChange] = []
    for rounds in series.values():
        pairs = [(pair[False], pair[True]) for pair in rounds.values() if len(pair) == 2]
        if len(pairs) >= MIN_PAIRS:
            changes += _compare_pairs(pairs, axis, axes)
    return sorted(changes, key=lambda change: (change.label, change.site))


def _is_usable(sample: Sample) -> bool:
    return sample.kind == TIMED and not sample.failure_class and sample.plausible


def _compare_pairs(
    pairs: Sequence[tuple[PhasedSample, PhasedSample]], axis: str, axes: tuple[str, ...]
) -> list[PhaseChange]:
    # Loads NumPy, for which the start of a command need not wait.
    from treehammer.analysis.statistics.estimates import load_special

    first = pairs[0][0].sample
    phases = [
        name for name in PHASES if all(name in side.phases for pair in pairs for side in pair)
    ]
    level = 1 - (1 - CONFIDENCE) / len(phases) / 2
    width = float(load_special().stdtrit(len(pairs) - 1, level)) / math.sqrt(len(pairs))
    changes = []
    for name in phases:
        shares = [(b.phases[name] - a.phases[name]) / a.loop_s for a, b in pairs]
        mean, spread = fmean(shares), width * stdev(shares)
        changes.append(
            PhaseChange(
                scope="phase",
                site="" if axis == "site" else first.site,
                label=first.variant.label(axes) if axes else first.test_name,
                phase=name,
                a_s=fmean(a.phases[name] for a, _ in pairs),
                b_s=fmean(b.phases[name] for _, b in pairs),
                change=mean,
                low=mean - spread,
                high=mean + spread,
                pairs=len(pairs),
                comparison_key=comparison_key(first, axis),
            )
        )
    return changes


def attach_phases(
    rows: Iterable[VerdictRow], changes: Iterable[PhaseChange]
) -> tuple[VerdictRow, ...]:
    """Add the changes of each series' phases to the evidence of its first row."""
    by_series: dict[str, dict[str, tuple[float, ...]]] = defaultdict(dict)
    for change in changes:
        by_series[change.comparison_key][change.phase] = (
            change.a_s,
            change.b_s,
            change.change,
            change.low,
            change.high,
            change.pairs,
        )
    return attach_to_series(rows, "phases", by_series)


def stored_phases(rows: Iterable[VerdictRow]) -> list[PhaseChange]:
    """Collect the changes that :func:`attach_phases` added to rows."""
    return [
        PhaseChange(
            scope="phase",
            site="" if row.axis == "site" else row.site,
            label=row.label,
            phase=phase,
            a_s=a_s,
            b_s=b_s,
            change=change,
            low=low,
            high=high,
            pairs=int(pairs),
            comparison_key=row.comparison_key,
        )
        for row in rows
        for phase, values in row.evidence.phases.items()
        for a_s, b_s, change, low, high, pairs in (values,)
    ]


def describe_phases(changes: Sequence[PhaseChange]) -> list[str]:
    """Name the phases that certainly changed, in one sentence for each series that has any."""
    series: dict[tuple[str, str], list[PhaseChange]] = defaultdict(list)
    for change in changes:
        series[change.label, change.site].append(change)
    sentences = []
    for (label, site), phases in series.items():
        certain = [_describe_change(change) for change in phases if change.is_certain]
        if certain:
            uncertain = [change.phase for change in phases if not change.is_certain]
            unchanged = f"; no certain change of {', '.join(uncertain)}" if uncertain else ""
            series_name = f"{label} at {site}" if site else label
            sentences.append(
                f"{series_name}, by phase, in % of the loop's CPU: {', '.join(certain)}{unchanged}."
            )
    return sentences


def _describe_change(change: PhaseChange) -> str:
    numbers = (f"{100 * value:+.2f}" for value in (change.change, change.low, change.high))
    text = "{} {} [{}, {}]".format(change.phase, *numbers)
    return text.replace("-", "−")
