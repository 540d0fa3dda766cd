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

    ``own`` maps those that its test declares to their better direction, '' for none.
    """

    sample: Sample
    counters: Mapping[str, float]
    own: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> CountedSample:
        """Build one from a row of the store with the columns of a sample and COUNTER_NAMES."""
        sample = Sample.from_row(row)
        mode = find_access_mode(dict(sample.variant.values), sample.door_protocol)
        own = row.get("exact_metrics") or {}
        names = (*EXACT_COUNTERS.get(mode or "", ()), *own)
        counters = {name: float(row[name]) for name in names if row.get(name) is not None}
        return cls(sample, counters, own)


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
        one for one in counted if one.sample.axis_value(axis) in (a, b) and _is_usable(one.sample)
    ]
    shown_axes = tuple(
        name for name in find_varying_axes(one.sample.variant for one in usable) if name != axis
    )
    changes = [
        change
        for of_a, of_b in _group_sides(usable, axis, b)
        for change in _compare_sides(of_a, of_b, axis, shown_axes)
    ]
    return sorted(changes, key=lambda one: (one.label, one.site))


def _group_sides(
    counted: Iterable[CountedSample], axis: str, b: Scalar
) -> list[tuple[list[CountedSample], list[CountedSample]]]:
    """Group by series those that were measured on both sides; ``b`` is the second side's value."""
    sides: dict[str, tuple[list[CountedSample], list[CountedSample]]] = defaultdict(
        lambda: ([], [])
    )
    for one in counted:
        key = f"{comparison_key(one.sample, axis)} {one.sample.site if axis != 'site' else ''}"
        sides[key][one.sample.axis_value(axis) == b].append(one)
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
    own = {name: better for one in (*of_a, *of_b) for name, better in one.own.items()}
    for name in (*COUNTER_NAMES, *sorted(own)):
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
                jobs=len({one.sample.job_id for one in (*of_a, *of_b)}),
                comparison_key=comparison_key(first, axis),
                better=own[name] if name in own else METRICS_BY_NAME[name].better,
            )


def log_ratio(a: float, b: float) -> float | None:
    """Compute ln(B/A); None where a value is not positive."""
    return math.log(b / a) if a > 0 and b > 0 else None


def attach_counters(
    rows: Iterable[VerdictRow], changes: Iterable[CounterChange]
) -> tuple[VerdictRow, ...]:
    """Add the counters of each series to the evidence of its first row."""
    by_series: dict[str, dict[str, Sequence[str | float]]] = defaultdict(dict)
    for one in changes:
        by_series[one.comparison_key][one.metric] = (
            one.verdict,
            one.a_value,
            one.b_value,
            one.jobs,
            # The direction of other counters is in the catalogue.
            *((one.better,) if one.metric not in METRICS_BY_NAME else ()),
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
    return {one.counters[name] for one in side if name in one.counters}


def _decide(a: set[float], b: set[float]) -> str:
    if len(a) > 1 or len(b) > 1:
        return VARIES
    (one,), (other,) = a, b
    return SAME if one == other else MORE if other > one else FEWER


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
    series = len({(one.site, one.label) for one in changes})
    verdicts = ", ".join(
        f"{counts[name]} {name}" for name in (SAME, MORE, FEWER, VARIES) if counts[name]
    )
    changed = dict.fromkeys(format_counter_verdict(one) for one in changes if one.verdict != SAME)
    named = f" ({', '.join(changed)})" if 0 < len(changed) <= MAX_NAMED else ""
    return f"Exact counters of {pluralize(series, 'variant')}: {verdicts}{named}."
