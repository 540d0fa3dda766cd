"""Changes of instruction counts between two values of an axis: facts, not tests.

An instruction count is exact to about 10⁻⁵ and costs one run, but it is not time: instructions differ
in how long they take, and waiting takes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from treehammer.hctests.definition.model import COMMIT_AXIS, Scalar, parse_axes
from treehammer.tables import TableColumn
from treehammer.text_formatting import write_minus

if TYPE_CHECKING:
    from treehammer.sql.core.rows import InstructionRow, VerdictRow
    from treehammer.sql.read.reader import ResultsReader

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
        changes = [
            change
            for change in self._list_parts(functions=False)
            if max(change.a_per_event, change.b_per_event) >= threshold
        ]
        return sorted(changes, key=lambda change: -max(change.a_per_event, change.b_per_event))

    def functions(self) -> list[InstructionChange]:
        """Return the functions with the largest changes."""
        changed = [change for change in self._list_parts(functions=True) if change.difference]
        return sorted(changed, key=lambda change: -abs(change.difference))[:LISTED_FUNCTIONS]

    def _list_parts(self, *, functions: bool) -> Iterator[InstructionChange]:
        """List the changes of libraries, or of functions; those that one side lacks are 0 there."""
        for part in dict.fromkeys((*self.a.instructions, *self.b.instructions)):
            if bool(part[1]) == functions:
                sides = (
                    side.instructions.get(part, 0) / side.facts.events for side in (self.a, self.b)
                )
                yield self._change(*part, *sides)

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
    pairs = []
    for key, count in sides[a].items():
        if key in sides[b]:
            words = [word for word in count.facts.label.split() if not word.startswith(f"{axis}=")]
            pairs.append(CountPair(count, sides[b][key], " ".join(words) or "default", axis))
    return sorted(pairs, key=lambda pair: (pair.label, pair.a.facts.events))


def _group_rows(rows: Iterable[InstructionRow]) -> Iterator[InstructionCount]:
    """Group rows by count; counts of nothing, which an import may bring, are left out."""
    by_count: dict[str, list[InstructionRow]] = {}
    for row in rows:
        by_count.setdefault(row.count_id, []).append(row)
    for rows_of_count in by_count.values():
        counts = {(row.library, row.function): row.instructions for row in rows_of_count}
        count = InstructionCount(rows_of_count[0], counts)
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
    # The key is made of the test among others.
    sides = {row.comparison_key: row.evidence.of_a for row in verdicts}.values()
    tests = {str(of_a["test_hash"]) for of_a in sides if "test_hash" in of_a}
    if not tests:
        return []
    first = verdicts[0]
    pairs = pair_counts(store.instruction_counts(tests), first.axis, first.a, first.b)
    return _select_counted_work(pairs, verdicts) if pairs else []


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
    return write_minus(f"{rounded:+,.{digits}f}") if rounded else "0"


def _work_key(test_hash: str, variant: str, dataset_hash: str, axis: str) -> _Key:
    axes = {name: value for name, value in _parse_axes(variant).items() if name != axis}
    return test_hash, repr(sorted(axes.items())), dataset_hash, axis


def _parse_axes(variant: str) -> dict[str, Scalar]:
    """Parse a variant; no axes for any text that is none."""
    try:
        return parse_axes(variant)
    except (ValueError, AttributeError, RecursionError):
        return {}


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
