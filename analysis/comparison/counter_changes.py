"""Changes of exact counters between two values of an axis: one job decides, without a test.

Two reads of the same data with the same software give the same exact counters, so any difference is
a change of the software or of its configuration.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from treehammer.analysis.samples.sample import Sample, comparison_key, find_varying_axes
from treehammer.analysis.statistics.verdict import SERIES_SCOPES, VerdictEvidence
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.exact_counters import (
    COUNTER_NAMES,
    EXACT_COUNTERS,
    find_access_mode,
)
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.hctests.matrix.definition import Scalar
from treehammer.sql.core.rows import VerdictRow
from treehammer.text_formatting import pluralize

COUNTER_SCOPE = "counter"
SAME, MORE, FEWER, VARIES = "same", "more", "fewer", "varies"
#: Changes by at least this factor are shown as a ratio, smaller ones in percent.
SHOWN_AS_RATIO = 10
#: More different changes are listed in the table alone.
MAX_NAMED = 3


@dataclass(frozen=True)
class CountedSample:
    """A measurement with its exact counters.

    ``declared`` maps those that its test declares to their better direction, '' for none.
    """

    sample: Sample
    counters: Mapping[str, float]
    declared: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> CountedSample:
        """Build one from a row of the store with the columns of a sample and COUNTER_NAMES."""
        sample = Sample.from_row(row)
        mode = find_access_mode(dict(sample.variant.values), sample.door_protocol)
        declared = row.get("exact_metrics") or {}
        names = (*EXACT_COUNTERS.get(mode or "", ()), *declared)
        counters = {name: float(row[name]) for name in names if row.get(name) is not None}
        return cls(sample, counters, declared)


@dataclass(frozen=True)
class CounterChange:
    """Change of one counter of one series.

    ``verdict`` is ``same``, ``more``, ``fewer``, or ``varies`` where the executions of one side
    differ from each other; then ``a_value`` and ``b_value`` are the smallest ones. ``effect`` is
    ln(B/A), None where one side is 0. ``better`` is ``lower``, ``higher``, or '' for neither.
    """

    scope: str
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

    def is_regression(self, delta: float) -> bool:
        """Return whether B exceeds A by more than ``delta`` in ln, where less is better."""
        if (self.verdict, self.better) not in ((MORE, "lower"), (FEWER, "higher")):
            return False
        return self.effect is None or abs(self.effect) > delta


def compare_counters(
    counted: Iterable[CountedSample], axis: str, a: Scalar, b: Scalar
) -> list[CounterChange]:
    """Compare the exact counters of all series that have usable executions on both sides."""
    usable = [
        item
        for item in counted
        if item.sample.axis_value(axis) in (a, b) and _is_usable(item.sample)
    ]
    shown_axes = tuple(
        name for name in find_varying_axes(item.sample.variant for item in usable) if name != axis
    )
    changes = [
        change
        for of_a, of_b in _group_sides(usable, axis, b)
        for change in _compare_sides(of_a, of_b, axis, shown_axes)
    ]
    return sorted(changes, key=lambda change: (change.label, change.site))


def _group_sides(
    counted: Iterable[CountedSample], axis: str, b: Scalar
) -> list[tuple[list[CountedSample], list[CountedSample]]]:
    """Group by series those that were measured on both sides; ``b`` is the second side's value."""
    sides: dict[str, tuple[list[CountedSample], list[CountedSample]]] = defaultdict(
        lambda: ([], [])
    )
    for item in counted:
        key = f"{comparison_key(item.sample, axis)} {item.sample.site if axis != 'site' else ''}"
        sides[key][item.sample.axis_value(axis) == b].append(item)
    return [(of_a, of_b) for of_a, of_b in sides.values() if of_a and of_b]


def _is_usable(sample: Sample) -> bool:
    return sample.kind == TIMED and not sample.failure_class and sample.plausible


def _compare_sides(
    of_a: Sequence[CountedSample],
    of_b: Sequence[CountedSample],
    axis: str,
    shown_axes: tuple[str, ...],
) -> Iterator[CounterChange]:
    first = of_a[0].sample
    label = first.variant.label(shown_axes) if shown_axes else first.test_name
    declared = {name: better for item in (*of_a, *of_b) for name, better in item.declared.items()}
    for name in (*COUNTER_NAMES, *sorted(declared)):
        values_a, values_b = _collect_values(of_a, name), _collect_values(of_b, name)
        if values_a and values_b:
            a, b = min(values_a), min(values_b)
            yield CounterChange(
                scope=COUNTER_SCOPE,
                site="" if axis == "site" else first.site,
                label=label,
                metric=name,
                verdict=_decide(values_a, values_b),
                a_value=a,
                b_value=b,
                effect=log_ratio(a, b),
                jobs=len({item.sample.job_id for item in (*of_a, *of_b)}),
                comparison_key=comparison_key(first, axis),
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
    attached = []
    for row in rows:
        counters = by_series.pop(row.comparison_key, {}) if row.scope in SERIES_SCOPES else {}
        if counters:
            evidence = replace(VerdictEvidence.from_json(row.evidence), counters=counters)
            attached.append(replace(row, evidence=evidence.to_json()))
        else:
            attached.append(row)
    return tuple(attached)


def stored_counters(rows: Iterable[VerdictRow]) -> list[CounterChange]:
    """Collect the changes that :func:`attach_counters` added to rows."""
    return [
        CounterChange(
            COUNTER_SCOPE,
            "" if row.axis == "site" else row.site,
            row.label,
            name,
            str(verdict),
            float(a),
            float(b),
            log_ratio(float(a), float(b)),
            int(jobs),
            row.comparison_key,
            str(better[0]) if better else METRICS_BY_NAME[name].better,
        )
        for row in rows
        for name, (verdict, a, b, jobs, *better) in (
            VerdictEvidence.from_json(row.evidence).counters.items()
        )
        if better or name in METRICS_BY_NAME
    ]


def _collect_values(side: Iterable[CountedSample], name: str) -> set[float]:
    return {item.counters[name] for item in side if name in item.counters}


def _decide(a: set[float], b: set[float]) -> str:
    if len(a) > 1 or len(b) > 1:
        return VARIES
    (value_a,), (value_b,) = a, b
    return SAME if value_a == value_b else MORE if value_b > value_a else FEWER


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
    per_cent = 100 * (ratio - 1)
    number = f"{per_cent:+.1f}" if abs(per_cent) >= 1 else f"{per_cent:+.2g}"
    return f"{number.replace('-', '−')} % {words}"


def summarize_counters(changes: Sequence[CounterChange]) -> str:
    """Summarize all counters in one sentence that names a few changes; '' without any."""
    if not changes:
        return ""
    counts = Counter(change.verdict for change in changes)
    series = len({(change.site, change.label) for change in changes})
    verdicts = ", ".join(
        f"{counts[name]} {name}" for name in (SAME, MORE, FEWER, VARIES) if counts[name]
    )
    changed = dict.fromkeys(
        format_counter_verdict(change) for change in changes if change.verdict != SAME
    )
    named = f" ({', '.join(changed)})" if 0 < len(changed) <= MAX_NAMED else ""
    return f"Exact counters of {pluralize(series, 'variant')}: {verdicts}{named}."
