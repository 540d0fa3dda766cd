"""Changes of exact counters and instruction counts between two values of an axis: facts, not tests.

Two reads of the same data with the same software give the same exact counters, so any difference is
a change of the software or of its configuration: one job decides. An instruction count is exact to
about 10⁻⁵ and costs one run, but it is not time: instructions differ in how long they take, and
waiting takes none.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from treehammer.analysis.statistics.sample import Sample, comparison_key, find_varying_axes
from treehammer.analysis.statistics.verdict import attach_to_series
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.metric_catalogue import (
    COUNTER_NAMES,
    EXACT_COUNTERS,
    METRICS_BY_NAME,
    find_access_mode,
)
from treehammer.hctests.definition.model import COMMIT_AXIS, Scalar, parse_axes
from treehammer.sql.core.rows import InstructionRow, VerdictRow
from treehammer.sql.read.reader import ResultsReader
from treehammer.tables import TableColumn
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
    return attach_to_series(rows, "counters", by_series)


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
        for name, (verdict, a, b, jobs, *better) in row.evidence.counters.items()
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


#: Stands beside every table of counts.
NOT_TIME = "Counts under callgrind; they are not time."
#: Libraries with a smaller share of all instructions are not listed.
SHOWN_SHARE = 1e-5
#: Functions with the largest changes that are listed.
LISTED_FUNCTIONS = 12

_Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class InstructionCount:
    """Count of one variant; ``instructions`` by (library, function), where '' is the whole library."""

    facts: InstructionRow
    instructions: Mapping[tuple[str, str], int]

    @classmethod
    def from_rows(cls, rows: Sequence[InstructionRow]) -> InstructionCount:
        """Build a count from its rows."""
        return cls(rows[0], {(row.library, row.function): row.instructions for row in rows})

    def work_key(self, axis: str) -> _Key:
        """Compute the key shared by counts of the same work, ``axis`` aside."""
        test = "" if axis == COMMIT_AXIS else self.facts.test_hash
        return _work_key(test, self.facts.variant, self.facts.dataset_hash, axis)

    def side(self, axis: str) -> str:
        """Return the value on ``axis`` as text; of the axis ``commit`` the test's hash stands for it."""
        if axis == COMMIT_AXIS:
            return self.facts.test_hash
        return str(_parse_axes(self.facts.variant).get(axis, ""))

    @property
    def total(self) -> int:
        """All instructions."""
        return sum(n for (_, function), n in self.instructions.items() if not function)

    @property
    def per_event(self) -> float:
        """All instructions per event."""
        return self.total / self.facts.events

    def per_event_in(self, library: str, function: str = "") -> float:
        """Return the instructions per event in a library or function; 0 if it is not listed."""
        return self.instructions.get((library, function), 0) / self.facts.events

    def list_parts(self, *, functions: bool) -> Iterator[tuple[str, str]]:
        """List the libraries, or the functions."""
        return (part for part in self.instructions if bool(part[1]) == functions)


@dataclass(frozen=True)
class InstructionChange:
    """Change of a variant, a library or a function from A to B, in instructions per event.

    ``relative`` is the change as a share of all of A's instructions per event.
    """

    label: str
    library: str
    function: str
    a_per_event: float
    b_per_event: float
    relative: float

    @property
    def difference(self) -> float:
        """Instructions per event that B executes more than A."""
        return self.b_per_event - self.a_per_event


@dataclass(frozen=True)
class CountPair:
    """Counts of the same work with both values of the compared axis."""

    a: InstructionCount
    b: InstructionCount
    label: str
    axis: str

    @property
    def key(self) -> _Key:
        """Key of the work, equal for counts of the same work."""
        return self.a.work_key(self.axis)

    @property
    def total(self) -> InstructionChange:
        """Change of all instructions."""
        return self._change("", "", self.a.per_event, self.b.per_event)

    def libraries(self) -> list[InstructionChange]:
        """List the libraries' changes, the largest library first, without negligible ones."""
        threshold = SHOWN_SHARE * self.a.per_event
        parts = (self._part(*part) for part in self._parts(functions=False))
        changes = [
            change for change in parts if max(change.a_per_event, change.b_per_event) >= threshold
        ]
        return sorted(changes, key=lambda change: -max(change.a_per_event, change.b_per_event))

    def functions(self) -> list[InstructionChange]:
        """Return the functions with the largest changes."""
        changes = [self._part(*part) for part in self._parts(functions=True)]
        changed = [change for change in changes if change.difference]
        return sorted(changed, key=lambda change: -abs(change.difference))[:LISTED_FUNCTIONS]

    def _parts(self, *, functions: bool) -> Iterable[tuple[str, str]]:
        sides = (side.list_parts(functions=functions) for side in (self.a, self.b))
        return dict.fromkeys(part for side in sides for part in side)

    def _part(self, library: str, function: str) -> InstructionChange:
        a, b = (side.per_event_in(library, function) for side in (self.a, self.b))
        return self._change(library, function, a, b)

    def _change(self, library: str, function: str, a: float, b: float) -> InstructionChange:
        return InstructionChange(self.label, library, function, a, b, (b - a) / self.a.per_event)


def pair_counts(rows: Iterable[InstructionRow], axis: str, a: str, b: str) -> list[CountPair]:
    """Pair counts that differ in ``axis`` alone, in the order of their labels.

    Args:
        rows: of any counts, each count's rows in order.
        axis: axis of the variant, or ``commit``.
        a: text of the value on one side; of ``commit`` the test's hash.
        b: text of the value on the other side.
    """
    sides: dict[str, dict[tuple[_Key, int], InstructionCount]] = {a: {}, b: {}}
    for count in _group_rows(rows):
        if (value := count.side(axis)) in sides:
            # A changed loop may read another number of the same entries.
            events = 0 if axis == COMMIT_AXIS else count.facts.events
            sides[value][count.work_key(axis), events] = count
    pairs = [
        CountPair(count_a, sides[b][key], _drop_axis(count_a.facts.label, axis), axis)
        for key, count_a in sides[a].items()
        if key in sides[b]
    ]
    return sorted(pairs, key=lambda pair: (pair.label, pair.a.facts.events))


def _group_rows(rows: Iterable[InstructionRow]) -> Iterator[InstructionCount]:
    """Group rows by count; counts of nothing, which an import may bring, are left out."""
    by_count: dict[str, list[InstructionRow]] = {}
    for row in rows:
        by_count.setdefault(row.count_id, []).append(row)
    for rows_of_count in by_count.values():
        count = InstructionCount.from_rows(rows_of_count)
        if count.facts.events > 0 and count.total > 0:
            yield count


def _select_counted_work(
    pairs: Iterable[CountPair], verdicts: Iterable[VerdictRow]
) -> list[CountPair]:
    """Select the pairs whose work a comparison's verdicts are about, with the verdicts' labels."""
    labels: dict[_Key, str] = {}
    for row in verdicts:
        of_a = row.evidence.of_a
        if "variant" in of_a:
            test_hash, dataset_hash = (str(of_a.get(n, "")) for n in ("test_hash", "dataset_hash"))
            key = _work_key(test_hash, str(of_a["variant"]), dataset_hash, row.axis)
            labels.setdefault(key, row.label)
    return [replace(pair, label=labels[pair.key]) for pair in pairs if pair.key in labels]


def load_counted_work(store: ResultsReader, verdicts: Sequence[VerdictRow]) -> list[CountPair]:
    """Load the counts of the work that a comparison's verdicts are about."""
    tests = _list_compared_tests(verdicts)
    if not tests:
        return []
    first = verdicts[0]
    pairs = pair_counts(store.instruction_counts(tests), first.axis, first.a, first.b)
    return _select_counted_work(pairs, verdicts) if pairs else []


def _list_compared_tests(verdicts: Iterable[VerdictRow]) -> set[str]:
    """List the hashes of the tests that a comparison's verdicts are about."""
    # The key is made of the test among others.
    one_of_each = {row.comparison_key: row for row in verdicts}.values()
    evidence = (row.evidence.of_a for row in one_of_each)
    return {str(of_a["test_hash"]) for of_a in evidence if "test_hash" in of_a}


def flatten_change(change: InstructionChange) -> dict[str, Any]:
    """Return a change as a flat row."""
    return {**asdict(change), "difference": change.difference}


def format_change(relative: float) -> str:
    """Format a relative change in percent with two decimals, e.g. ``+0.19 %``."""
    return f"{_format_signed(100 * relative, 2)} %"


def format_count(count: float, *, signed: bool = False) -> str:
    """Format instructions per event, e.g. ``400,873``."""
    return _format_signed(count, 0) if signed else f"{count:,.0f}"


def _format_signed(number: float, digits: int) -> str:
    rounded = round(number, digits)
    return f"{rounded:+,.{digits}f}".replace("-", "−") if rounded else "0"


def _work_key(test_hash: str, variant: str, dataset_hash: str, axis: str) -> _Key:
    axes = {name: value for name, value in _parse_axes(variant).items() if name != axis}
    return test_hash, repr(sorted(axes.items())), dataset_hash, axis


def _parse_axes(variant: str) -> dict[str, Scalar]:
    """Parse a variant; no axes for any text that is none."""
    try:
        return parse_axes(variant)
    except (ValueError, AttributeError, RecursionError):
        return {}


def _drop_axis(label: str, axis: str) -> str:
    return " ".join(word for word in label.split() if not word.startswith(f"{axis}=")) or "default"


DIFFERENCE_COLUMN = TableColumn(
    "difference", "difference", partial(format_count, signed=True), is_number=True
)


def change_columns(a: str, b: str) -> tuple[TableColumn, ...]:
    """Return the columns of counts per event on both sides and their change."""
    return (
        TableColumn("a_per_event", a, format_count, is_number=True),
        TableColumn("b_per_event", b, format_count, is_number=True),
        DIFFERENCE_COLUMN,
        TableColumn("relative", "change", format_change, is_number=True),
    )
