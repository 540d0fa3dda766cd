"""What a figure takes together: tests, variants, datasets and the like that lie behind one point.

A mean over several kinds of work is one of their mix; a step in it may be a step of the mix. It is
told from the groups that a figure is made of anyway, and along a time axis for all days together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from treehammer.hctests.identity import unreleased
from treehammer.sql.figures import TIMES
from treehammer.sql.selection import Scalar
from treehammer.terminal import counted
from treehammer.web.pages.variants import VARIANT

#: What a campaign calls a variant: several may have one label.
_LABEL = "variant_label"
#: Column -> what one of its values is called.
MIXED = {
    "test_name": "test",
    VARIANT: "variant",
    "dataset": "dataset",
    "axis_root": "release",
    "site": "site",
    "door": "door",
}
#: Of which different points are seldom meant to have different ones.
_WORK = ("test_name", VARIANT, "dataset")

Key = tuple[Scalar, ...]


@dataclass(frozen=True)
class Mix:
    """How many values of each column of :data:`MIXED` there are.

    Attributes:
        names: the columns whose values tell points apart, without those of time.
        each: their values -> column -> how many values lie behind that point; of columns that may have
            several alone.
        whole: column -> how many there are in all of the figure.
    """

    names: tuple[str, ...] = ()
    each: Mapping[Key, Mapping[str, int]] = field(default_factory=dict)
    whole: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def most(self) -> Mapping[str, int]:
        """Column -> how many values lie behind one point at most; of those with several alone."""
        most: dict[str, int] = {}
        for of_point in self.each.values():
            for column, count in of_point.items():
                if count > most.get(column, 1):
                    most[column] = count
        return {column: most[column] for column in MIXED if column in most}

    def of(self, values: Mapping[str, Scalar]) -> str:
        """What lies behind the point with these values: ``4 variants, 2 datasets``, '' for one of each."""
        if not self.most:
            return ""
        counts = self.each.get(tuple(values[name] for name in self.names), {})
        return ", ".join(_counted(counts))

    def words(self, groups: Sequence[str]) -> str:
        """What a reader must know of it, '' for nothing: of a figure with these columns."""
        said = []
        if most := self.most:
            which = "line" if set(groups) & set(TIMES) else "point"
            same = all(
                of_point[column] == most[column]
                for of_point in self.each.values()
                for column in most
            )
            each = f"Each {which} mixes" if same else f"{which.capitalize()}s mix up to"
            said.append(f"{each} {_listed([*_counted(most)])}.")
        different = [
            MIXED[column]
            for column in _WORK
            if self.whole.get(column, 0) > 1 and column not in most and not _told(column, groups)
        ]
        if different:
            said.append(f"Not all are of the same {_listed(different)}.")
        return " ".join(said)


def mix(names: Iterable[str], columns: Sequence[str], rows: Sequence[Sequence[Scalar]]) -> Mix:
    """What lies behind points.

    Args:
        names: the columns whose values tell points apart.
        columns: of the rows: of these names all that are not of time, and those of :data:`MIXED`.
        rows: all work that has a part in the points.
    """
    apart = tuple(name for name in names if name not in (*TIMES, "failure_class"))
    values: dict[str, Sequence[Scalar]] = {
        name: [row[place] for row in rows] for place, name in enumerate(columns)
    }
    keys = [*zip(*(values[name] for name in apart), strict=True)] if apart else [()] * len(rows)
    # Without their releases, which are counted themselves.
    values[VARIANT] = [unreleased(str(one or "")) for one in values[VARIANT]]
    whole = {column: len(set(values[column])) for column in MIXED}
    several = [column for column, count in whole.items() if count > 1 and column not in apart]
    counts: dict[Key, dict[str, int]] = {}
    for column in several:
        # Each pair of a point and a value once.
        for key, _ in set(zip(keys, values[column], strict=True)):
            of_point = counts.setdefault(key, dict.fromkeys(several, 0))
            of_point[column] += 1
    return Mix(apart, counts, whole)


def _told(column: str, groups: Sequence[str]) -> bool:
    """Whether groups differ in it because that is what they are asked to be."""
    axes = any(name.startswith("axis_") and name != "axis_root" for name in groups)
    variants = axes or {"test_name", _LABEL} & {*groups}
    return column in groups or (column == VARIANT and bool(variants))


def _counted(counts: Mapping[str, int]) -> Iterable[str]:
    return (counted(count, MIXED[column]) for column, count in counts.items() if count > 1)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
