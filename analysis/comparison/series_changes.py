"""Changes of exact counters and of phases of the read between two values of an axis.

Two reads of the same data with the same software give the same exact counters, so any difference is
a change of the software or of its configuration: one job decides. Phases tell which of them changed
the time: each pair of executions of one round gives the change of each phase, in shares of the base's
CPU time of the loop, so that the changes of the loop's phases add up to the loop's.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import fmean
from typing import Any

from treehammer.analysis.comparison.series_sides import SeriesSides, split_sides
from treehammer.analysis.statistics.estimates import (
    Estimate,
    adjust_benjamini_hochberg,
    estimate_over_hosts,
)
from treehammer.analysis.statistics.sample import (
    SAMPLE_COLUMNS,
    Sample,
    unify_hosts,
)
from treehammer.analysis.statistics.verdict import attach_to_series
from treehammer.collectors.record.metric_catalogue import (
    COUNTER_NAMES,
    EXACT_COUNTERS,
    METRICS_BY_NAME,
    find_access_mode,
)
from treehammer.hctests.definition.judged_metrics import is_hash
from treehammer.hctests.definition.model import Scalar
from treehammer.sql.core.rows import VerdictRow
from treehammer.text_formatting import format_counts, join_names, pluralize, write_minus

SAME, MORE, FEWER, VARIES = "same", "more", "fewer", "varies"
#: Verdict on a hash that changed.
OTHER = "other"
_CHANGED = (MORE, FEWER, OTHER)
#: Changes by at least this factor are shown as a ratio, smaller ones in percent.
SHOWN_AS_RATIO = 10
#: More different changes are listed in the table alone.
MAX_NAMED = 3
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
#: Columns of a measurement that a detailed sample is made of.
DETAIL_COLUMNS = tuple(dict.fromkeys((*SAMPLE_COLUMNS, *COUNTER_NAMES, *PHASE_COLUMNS)))


@dataclass(frozen=True)
class DetailedSample:
    """A measurement with its exact counters, and the seconds of CPU of its phases in one pass.

    ``declared`` maps counters that its test declares to their better direction, '' for none.
    ``phases`` is empty where they are unknown.
    """

    sample: Sample
    counters: Mapping[str, float]
    declared: Mapping[str, str]
    loop_s: float
    phases: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> DetailedSample:
        """Build one from a row of the store with :data:`DETAIL_COLUMNS`; those of counters may lack."""
        sample = Sample.from_row(row)
        declared = row.get("exact_metrics") or {}
        names = (*EXACT_COUNTERS.get(_find_mode(sample), ()), *declared)
        counters = {name: float(row[name]) for name in names if row.get(name) is not None}
        loop_s = row.get("loop_cpu_s") or 0.0
        return cls(sample, counters, declared, loop_s, _measure_phases(row, sample, loop_s))


def _find_mode(sample: Sample) -> str:
    return find_access_mode(dict(sample.variant.values), sample.door_protocol) or ""


def _measure_phases(row: Mapping[str, Any], sample: Sample, loop_s: float) -> dict[str, float]:
    if not loop_s:
        return {}
    # TTreePerfStats has wall clocks, which run on while the thread waits for a CPU.
    running = loop_s / (loop_s + (row.get("loop_run_queue_s") or 0.0))
    unzip_s = _find_cpu_time(row, "unzip", running)
    if unzip_s is None:
        return {}
    phases = {OPEN: math.fsum(row.get(name) or 0.0 for name in _OPENING_COLUMNS)}
    # Reads that do not come from the page cache mostly wait for storage.
    is_warm = _find_mode(sample).startswith("file") and sample.axis_value("cache") != "cold"
    read_s = _find_cpu_time(row, "read", running if is_warm else None)
    if read_s is not None:
        phases[READ] = read_s
    phases[DECOMPRESS] = unzip_s
    phases[DESERIALIZE] = loop_s - unzip_s - (read_s or 0.0)
    return phases


def _find_cpu_time(row: Mapping[str, Any], action: str, running: float | None) -> float | None:
    """Find the CPU seconds of an action: an RNTuple's own, or a share of TTreePerfStats' wall time.

    ``running`` is None where the wall time is not mostly CPU time.
    """
    if (of_ntuple := row.get(f"ntuple_{action}_cpu_s")) is not None:
        return float(of_ntuple)
    wall_s = row.get(f"perfstats_{action}_s")
    return None if wall_s is None or running is None else running * float(wall_s)


@dataclass(frozen=True)
class CounterChange:
    """Change of one counter of one series.

    ``verdict`` is ``same``, ``more``, ``fewer``, ``other`` for a hash, or ``varies`` where the executions of one side
    differ from each other; then ``a_value`` and ``b_value`` are the smallest ones. ``effect`` is
    ln(B/A), None where one side is 0 and for a hash. ``better`` is ``lower``, ``higher``, or '' for neither.
    """

    scope: str = field(default="counter", init=False)
    site: str
    label: str
    metric: str
    verdict: str
    a_value: float
    b_value: float
    effect: float | None
    jobs: int
    comparison_key: str = ""
    better: str = ""

    @property
    def has_changed(self) -> bool:
        """Whether the values differ: counts that vary within a side may still be as small on the other."""
        return self.a_value != self.b_value

    def is_regression(self, delta: float) -> bool:
        """Return whether B exceeds A by more than ``delta`` in ln, where less is better."""
        if (self.verdict, self.better) not in ((MORE, "lower"), (FEWER, "higher")):
            return False
        return self.effect is None or abs(self.effect) > delta


#: A series with its usable executions on both sides.
_UsableSides = tuple[SeriesSides, list[DetailedSample], list[DetailedSample]]


def _split_usable(
    samples: Iterable[DetailedSample], axis: str, a: Scalar, b: Scalar
) -> Iterator[_UsableSides]:
    """Split the executions that succeeded by series and side, in the order of labels."""
    details = {
        id(item.sample): item
        for item in samples
        if not item.sample.failure_class and item.sample.plausible
    }
    for series in split_sides([item.sample for item in details.values()], axis, a, b):
        of_a, of_b = ([details[id(sample)] for sample in side] for side in (series.a, series.b))
        yield replace(series, site="" if axis == "site" else series.site), of_a, of_b


def compare_counters(
    samples: Iterable[DetailedSample], axis: str, a: Scalar, b: Scalar
) -> list[CounterChange]:
    """Compare the exact counters of all series that have usable executions on both sides."""
    return [
        change
        for series, of_a, of_b in _split_usable(samples, axis, a, b)
        if of_a and of_b
        for change in _compare_sides(series, of_a, of_b)
    ]


def _compare_sides(
    series: SeriesSides, of_a: Sequence[DetailedSample], of_b: Sequence[DetailedSample]
) -> Iterator[CounterChange]:
    declared = {name: better for item in (*of_a, *of_b) for name, better in item.declared.items()}
    for name in (*COUNTER_NAMES, *sorted(declared)):
        values_a, values_b = _collect_values(of_a, name), _collect_values(of_b, name)
        if values_a and values_b:
            a, b = min(values_a), min(values_b)
            yield CounterChange(
                site=series.site,
                label=series.label,
                metric=name,
                verdict=_decide(name, values_a, values_b),
                a_value=a,
                b_value=b,
                effect=_find_effect(name, a, b),
                jobs=len({item.sample.job_id for item in (*of_a, *of_b)}),
                comparison_key=series.key,
                better=declared[name] if name in declared else METRICS_BY_NAME[name].better,
            )


def log_ratio(a: float, b: float) -> float | None:
    """Compute ln(B/A); None where a value is not positive."""
    return math.log(b / a) if a > 0 and b > 0 else None


def attach_counters(
    rows: Iterable[VerdictRow], changes: Iterable[CounterChange]
) -> tuple[VerdictRow, ...]:
    """Add the counters of each series to the evidence of its first row."""
    by_series: dict[str, dict[str, Sequence[str | float]]] = defaultdict(dict)
    for change in changes:
        by_series[change.comparison_key][change.metric] = (
            change.verdict,
            change.a_value,
            change.b_value,
            change.jobs,
            # The direction of other counters is in the catalogue.
            *((change.better,) if change.metric not in METRICS_BY_NAME else ()),
        )
    return attach_to_series(rows, "counters", by_series)


def stored_counters(rows: Iterable[VerdictRow]) -> list[CounterChange]:
    """Collect the changes that :func:`attach_counters` added to rows."""
    return [
        CounterChange(
            "" if row.axis == "site" else row.site,
            row.label,
            name,
            # Earlier versions stored hashes as amounts.
            OTHER if is_hash(name) and verdict in (MORE, FEWER) else str(verdict),
            float(a),
            float(b),
            _find_effect(name, float(a), float(b)),
            int(jobs),
            row.comparison_key,
            str(better[0]) if better else METRICS_BY_NAME[name].better,
        )
        for row in rows
        for name, (verdict, a, b, jobs, *better) in row.evidence.counters.items()
        if better or name in METRICS_BY_NAME
    ]


def _collect_values(side: Iterable[DetailedSample], name: str) -> set[float]:
    return {item.counters[name] for item in side if name in item.counters}


def _find_effect(name: str, a: float, b: float) -> float | None:
    return None if is_hash(name) else log_ratio(a, b)


def _decide(name: str, a: set[float], b: set[float]) -> str:
    if len(a) > 1 or len(b) > 1:
        return VARIES
    (value_a,), (value_b,) = a, b
    if value_a == value_b:
        return SAME
    return OTHER if is_hash(name) else MORE if value_b > value_a else FEWER


def format_counter_verdict(change: CounterChange) -> str:
    """Format a verdict, e.g. ``+1.0 % read calls`` or ``372.0 × the read calls``."""
    words = change.metric.replace("_", " ")
    if change.verdict in (SAME, VARIES) or change.effect is None:
        return f"{change.verdict} {words}"
    ratio = math.exp(change.effect)
    if ratio >= SHOWN_AS_RATIO:
        return f"{ratio:,.1f} × the {words}"
    if ratio <= 1 / SHOWN_AS_RATIO:
        return f"1/{1 / ratio:,.1f} of the {words}"
    return f"{_format_per_cent(ratio)} {words}"


def _format_per_cent(ratio: float) -> str:
    per_cent = 100 * (ratio - 1)
    number = f"{per_cent:+.1f}" if abs(per_cent) >= 1 else f"{per_cent:+.2g}"
    return f"{write_minus(number)} %"


def describe_changed_results(rows: Sequence[VerdictRow]) -> str:
    """Say that numbers which the test itself reports differ, e.g. ``pairs −18.2 %: the results differ.``

    '' if none does, or none is declared as exact.
    """
    changes = [
        change
        for change in stored_counters(rows)
        if change.metric not in METRICS_BY_NAME and change.verdict in _CHANGED
    ]
    texts = list(dict.fromkeys(map(_describe_result, changes)))
    if not texts:
        return ""
    return f"{join_names(texts, MAX_NAMED)}: the results differ."


def _describe_result(change: CounterChange) -> str:
    if change.verdict == OTHER:
        return f"{change.metric} changed"
    if change.effect is None:
        return write_minus(f"{change.metric} {change.a_value:,.15g} → {change.b_value:,.15g}")
    return f"{change.metric} {_format_per_cent(math.exp(change.effect))}"


#: Verdict -> words for several counters with it, in their order.
_COUNTED_AS: Mapping[str, str] = {
    **{verdict: verdict for verdict in (SAME, *_CHANGED)},
    VARIES: "that vary between executions",
}


def summarize_counters(changes: Sequence[CounterChange]) -> str:
    """Summarize at least one counter in one sentence that names a few changes."""
    counts = Counter(change.verdict for change in changes)
    sites = {change.site for change in changes}
    variants = pluralize(len({change.label for change in changes}), "variant")
    if len(sites) > 1:
        variants += f" at {len(sites):,} sites"
    verdicts = {word: counts[name] for name, word in _COUNTED_AS.items() if counts[name]}
    changed = (change for change in changes if change.verdict in _CHANGED)
    texts = dict.fromkeys(map(format_counter_verdict, changed))
    names = f" ({', '.join(texts)})" if 0 < len(texts) <= MAX_NAMED else ""
    return f"Exact counters of {variants}: {format_counts(verdicts)}{names}."


@dataclass(frozen=True)
class PhaseChange:
    """Change of one phase of one series.

    Attributes:
        site: of the series; '' where sites are compared.
        label: of its variant.
        phase: one of :data:`PHASES`.
        a_s: mean CPU seconds in one pass of side A.
        b_s: the same of side B.
        change: mean of B − A, as a share of A's CPU time of the loop; each host counts once.
        low: lower bound of its interval, adjusted for all phases of all series.
        high: upper bound.
        pairs: number of pairs of executions.
        comparison_key: of the series.
    """

    scope: str = field(default="phase", init=False)
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


#: Executions of sides A and B in one round.
_Pairs = list[tuple[DetailedSample, DetailedSample]]
#: Numbers of a change in the evidence of its series, in the order of its fields.
_STORED_FIELDS = attrgetter("a_s", "b_s", "change", "low", "high", "pairs")


def compare_phases(
    samples: Iterable[DetailedSample], axis: str, a: Scalar, b: Scalar
) -> list[PhaseChange]:
    """Compare the phases of all series with enough jobs or launches for a verdict."""
    measured: list[tuple[SeriesSides, _Pairs, str, Estimate]] = []
    phased = (item for item in samples if item.phases)
    for series, *sides in _split_usable(phased, axis, a, b):
        rounds_a, rounds_b = (
            {(*item.sample.unit, item.sample.round): item for item in side} for side in sides
        )
        pairs = [(item, rounds_b[key]) for key, item in rounds_a.items() if key in rounds_b]
        for phase in PHASES:
            if (estimate := _estimate_change(pairs, phase)) is not None:
                measured.append((series, pairs, phase, estimate))
    tests = adjust_benjamini_hochberg([estimate.p for *_, estimate in measured])
    changes = []
    for (series, pairs, phase, estimate), test in zip(measured, tests, strict=True):
        low, high = estimate.interval(test.level)
        changes.append(
            PhaseChange(
                site=series.site,
                label=series.label,
                phase=phase,
                a_s=fmean(a.phases[phase] for a, _ in pairs),
                b_s=fmean(b.phases[phase] for _, b in pairs),
                change=estimate.mean,
                low=low,
                high=high,
                pairs=len(pairs),
                comparison_key=series.key,
            )
        )
    return changes


def _estimate_change(pairs: _Pairs, phase: str) -> Estimate | None:
    """Estimate the change of a phase over the units of its series' verdict: launches or jobs, by host."""
    if not all(phase in side.phases for pair in pairs for side in pair):
        return None
    hosts: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (a, b), sample in zip(pairs, unify_hosts(a.sample for a, _ in pairs), strict=True):
        is_launch = a.sample.launch_ratios or b.sample.launch_ratios
        unit = b.sample.measurement_id if is_launch else b.sample.unit[0]
        hosts[sample.host][unit].append((b.phases[phase] - a.phases[phase]) / a.loop_s)
    return estimate_over_hosts(
        {host: [*map(fmean, units.values())] for host, units in hosts.items()}
    )


def attach_phases(
    rows: Sequence[VerdictRow], changes: Iterable[PhaseChange]
) -> tuple[VerdictRow, ...]:
    """Add the changes of each series' phases to the evidence of its first row, if its times count."""
    compared = {row.comparison_key for row in rows if row.effect is not None}
    by_series: dict[str, dict[str, tuple[float, ...]]] = defaultdict(dict)
    for change in changes:
        if change.comparison_key in compared:
            by_series[change.comparison_key][change.phase] = _STORED_FIELDS(change)
    return attach_to_series(rows, "phases", by_series)


def stored_phases(rows: Iterable[VerdictRow]) -> list[PhaseChange]:
    """Collect the changes that :func:`attach_phases` added to rows."""
    return [
        PhaseChange(site, row.label, phase, a_s, b_s, change, low, high, int(n), row.comparison_key)
        for row in rows
        for site in ["" if row.axis == "site" else row.site]
        for phase, (a_s, b_s, change, low, high, n) in row.evidence.phases.items()
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
    values = (change.change, change.low, change.high)
    size, low, high = (write_minus(f"{100 * value:+.2f}") for value in values)
    return f"{change.phase} {size} [{low}, {high}]"
