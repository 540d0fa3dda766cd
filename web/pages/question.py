"""What Compare is asked: from the address to verdicts that were kept, or are made now."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from treehammer.analysis.samples import COLUMNS, SELECTION, Sample, readings, value_named
from treehammer.analysis.verdict import DELTA, SERIES, Verdict
from treehammer.errors import ConfigError, NothingToDo
from treehammer.sql import campaigns, figure_values
from treehammer.sql.figures import ALL, Figure
from treehammer.sql.rows import VerdictRow
from treehammer.sql.selection import Selection, Where, alternatives
from treehammer.sql.store import Store

if TYPE_CHECKING:
    from treehammer.analysis.compare import Question

#: Measurements that a comparison may read while someone waits.
MOST_READ = 30_000
#: Axis -> which of site and door a series still has where this axis is compared; else both.
_OF_SERIES = {"site": (), "door": ("site",)}
_OWN = (
    "axis",
    "a",
    "b",
    "campaign",
    "where",
    "where_a",
    "where_b",
    "delta",
    "now",
    "page",
    "format",
    "table",
)


@dataclass(frozen=True)
class Asked:
    """A comparison as the address asks for it."""

    axis: str
    a: str
    b: str
    campaigns: tuple[str, ...]
    wheres: tuple[str, ...]
    wheres_a: tuple[str, ...]
    wheres_b: tuple[str, ...]
    delta: float

    @property
    def is_begun(self) -> bool:
        """Whether anything of a question is asked."""
        return bool(self.a or self.b or self.wheres_a or self.wheres_b)

    def require_whole(self) -> None:
        """Refuse half a question.

        Raises:
            ConfigError: a side is missing.
        """
        if self.axis == SELECTION:
            if not self.wheres_a and not self.wheres_b:
                raise ConfigError(
                    "the axis selection compares selections, not A and B",
                    hint="Give conditions for either side: where_a, where_b or both.",
                )
            return
        missing = [name for name, value in (("A", self.a), ("B", self.b)) if not value]
        if missing:
            raise ConfigError(
                f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing",
                hint=f"Give two values of the axis {self.axis}; for two selections choose the axis "
                f"{SELECTION}.",
            )

    @property
    def selection(self) -> Selection:
        """The measurements of both sides.

        Raises:
            ConfigError: a condition is wrong.
        """
        return Selection(self.campaigns, alternatives(self.wheres))

    @property
    def sides(self) -> tuple[tuple[Where, ...], tuple[Where, ...]]:
        """The conditions on either side alone.

        Raises:
            ConfigError: one is wrong.
        """
        return alternatives(self.wheres_a), alternatives(self.wheres_b)

    @property
    def command(self) -> str:
        """The command that makes the same comparison and keeps it; '' where none does."""
        if self.axis == SELECTION or self.wheres_a or self.wheres_b or len(self.campaigns) > 1:
            return ""
        if any(len(where.values) > 1 for where in self.selection.wheres):
            return ""
        words = ["treehammer", "compare", self.a, self.b]
        words += ["--axis", self.axis] if self.axis != "root" else []
        words += ["--delta", f"{self.delta:g}"] if self.delta != DELTA else []
        for campaign in self.campaigns:
            words += ["--campaign", campaign]
        for where in self.wheres:
            words += ["--where", where]
        return shlex.join(words)


def read(request: Request, store: Store) -> Asked:
    """What an address asks for.

    Raises:
        ConfigError: there is no such parameter, or no such campaign.
    """
    sent = request.query_params
    for name in sent:
        if name not in _OWN:
            raise ConfigError(
                f"there is no parameter {name[:40]!r}", hint=f"Known: {', '.join(_OWN)}."
            )
    try:
        delta = float(sent.get("delta") or DELTA)
    except ValueError:
        raise ConfigError("delta must be a number such as 0.02") from None

    def texts(name: str) -> tuple[str, ...]:
        return tuple(text for text in sent.getlist(name) if text.strip())

    axis = sent.get("axis") or "root"
    a, b = (sent.get(name, "").strip() for name in ("a", "b"))
    if axis == "campaign":
        a, b = (campaigns.meant(store, one) if one else "" for one in (a, b))
    return Asked(
        axis=axis,
        a=a,
        b=b,
        campaigns=tuple(dict.fromkeys(store.campaign(one).id for one in texts("campaign"))),
        wheres=texts("where"),
        wheres_a=texts("where_a"),
        wheres_b=texts("where_b"),
        delta=delta,
    )


def kept(store: Store, asked: Asked) -> list[VerdictRow]:
    """The verdicts of this very question, if it was asked before."""
    if not asked.command:
        return []
    from treehammer.analysis.compare import Question

    for a, b in itertools.product(readings(asked.a), readings(asked.b)):
        if a == b and asked.a != asked.b:
            continue  # as texts they are two: 6.4 and 6.40
        question = Question(asked.axis, a, b, asked.delta, asked.selection)
        if rows := store.verdicts(question.id):
            return rows
    return []


def made(store: Store, asked: Asked) -> tuple[list[VerdictRow], Sequence[str]]:
    """Compare now; nothing is stored.

    Raises:
        ConfigError: it would read too much, or asks for what there is not.
        NothingToDo: one side has nothing, or nothing can be compared.
    """
    from treehammer.analysis.compare import compare

    both = asked.selection
    sides = [replace(both, wheres=(*both.wheres, *own)) for own in asked.sides]
    if asked.axis == SELECTION and sides[0] == sides[1]:
        raise ConfigError(
            "both sides select the same", hint="Give conditions that tell them apart."
        )
    samples = [_samples(store, side) for side in dict.fromkeys(sides)]
    if asked.axis == SELECTION:
        question = _of_selections(asked)
        names = (str(question.a), str(question.b))
        everything = [
            replace(one, side=name)
            for name, side in zip(names, samples, strict=True)
            for one in side
        ]
    else:
        a = value_named(samples[0], asked.axis, asked.a)
        b = value_named(samples[-1], asked.axis, asked.b)
        question = _question(asked, a, b)
        everything = list(samples[0])
        if len(samples) > 1:
            everything = [one for one in samples[0] if one.axis_value(asked.axis) == a]
            everything += [one for one in samples[1] if one.axis_value(asked.axis) == b]
    found = compare(everything, question, now_us=time.time_ns() // 1000)
    if all(row.verdict in (Verdict.LOST, Verdict.NEW) for row in found.of_scope(SERIES)):
        _require_other_axis(question, everything)
    return list(found.verdicts), found.notes


def _require_other_axis(question: Question, samples: Sequence[Sample]) -> None:
    """Refuse sides that conditions keep at sites or doors of their own: a series has one of each.

    Raises:
        ConfigError: the sides are told apart by either, and have none of it in common.
    """
    sides = [
        [one for one in samples if one.axis_value(question.axis) == value]
        for value in (question.a, question.b)
    ]
    for column in _OF_SERIES.get(question.axis, ("site", "door")):
        asked_a, asked_b = (
            {where for where in side if where.column == column}
            for side in (question.where_a, question.where_b)
        )
        found_a, found_b = ({getattr(one, column) for one in side} for side in sides)
        told_apart = asked_a and asked_b and asked_a != asked_b
        if told_apart and found_a.isdisjoint(found_b):
            raise ConfigError(
                f"no series is on both sides: each has one {column}",
                hint=f"To compare {column}s choose the axis {column}, and two of them as A and B.",
            )


def _of_selections(asked: Asked) -> Question:
    names = [" and ".join(map(str, side)) or "all" for side in asked.sides]
    return _question(asked, *names)


def _question(asked: Asked, a: Any, b: Any) -> Question:
    from treehammer.analysis.compare import Question

    return Question(asked.axis, a, b, asked.delta, asked.selection, *asked.sides)


def _samples(store: Store, selection: Selection) -> list[Sample]:
    figure = Figure(selection=selection, kind=None)
    with store.connection() as connection:
        count = figure_values.most(connection, figure)
    if count > MOST_READ:
        raise ConfigError(
            f"this comparison would read up to {count:,} measurements, and {MOST_READ:,} is the limit here",
            hint="Choose a campaign, or a site with where=site=NAME; 'treehammer compare' has no "
            "limit, and what it finds is listed on this page.",
        )
    try:
        found = [Sample.from_row(row) for row in store.measurements(selection, COLUMNS)]
    except (ValueError, AttributeError) as error:
        # Of a program that is not ours.
        raise ConfigError(
            f"the variant of a measurement is no JSON object ({error})",
            hint="Leave such measurements out with a condition.",
        ) from error
    if not found and selection == ALL:
        raise NothingToDo("there are no measurements yet")
    if not found:
        raise NothingToDo(f"no measurement is selected by {selection}")
    return found
