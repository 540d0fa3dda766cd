"""What Compare is asked: from the address to verdicts that were kept, or are made now."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from treehammer.analysis.samples.sample import (
    SAMPLE_COLUMNS,
    SELECTION_AXIS,
    Sample,
    find_axis_value,
    possible_values,
)
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, SERIES_SCOPE, Verdict
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import campaign_queries, figure_values
from treehammer.sql.read.figure_query import ALL_MEASUREMENTS, FigureQuery
from treehammer.sql.read.measurement_selection import Condition, Selection, parse_alternatives
from treehammer.sql.write.store import Store

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison import ComparisonQuery

#: Measurements that a comparison may read while someone waits.
MAX_READ = 30_000
#: Axis -> which of site and door a series still has where this axis is compared; else both.
_SERIES_LOCATIONS = {"site": (), "door": ("site",)}
_PARAMETERS = (
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
class CompareQuery:
    """A comparison as the address asks for it."""

    axis: str
    a: str
    b: str
    campaigns: tuple[str, ...]
    conditions: tuple[str, ...]
    conditions_a: tuple[str, ...]
    conditions_b: tuple[str, ...]
    delta: float

    @property
    def has_side(self) -> bool:
        """Whether anything of a question is asked."""
        return bool(self.a or self.b or self.conditions_a or self.conditions_b)

    def require_both_sides(self) -> None:
        """Refuse half a question.

        Raises:
            ConfigError: a side is missing.
        """
        if self.axis == SELECTION_AXIS:
            if not self.conditions_a and not self.conditions_b:
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
                f"{SELECTION_AXIS}.",
            )

    @property
    def selection(self) -> Selection:
        """The measurements of both sides.

        Raises:
            ConfigError: a condition is wrong.
        """
        return Selection(self.campaigns, parse_alternatives(self.conditions))

    @property
    def sides(self) -> tuple[tuple[Condition, ...], tuple[Condition, ...]]:
        """The conditions on either side alone.

        Raises:
            ConfigError: one is wrong.
        """
        return parse_alternatives(self.conditions_a), parse_alternatives(self.conditions_b)

    @property
    def compare_command(self) -> str:
        """The command that makes the same comparison and keeps it; '' where none does."""
        if (
            self.axis == SELECTION_AXIS
            or self.conditions_a
            or self.conditions_b
            or len(self.campaigns) > 1
        ):
            return ""
        if any(len(where.values) > 1 for where in self.selection.conditions):
            return ""
        words = ["treehammer", "compare", self.a, self.b]
        words += ["--axis", self.axis] if self.axis != "root" else []
        words += ["--delta", f"{self.delta:g}"] if self.delta != DEFAULT_DELTA else []
        for campaign in self.campaigns:
            words += ["--campaign", campaign]
        for where in self.conditions:
            words += ["--where", where]
        return shlex.join(words)


def parse_compare_query(request: Request, store: Store) -> CompareQuery:
    """What an address asks for.

    Raises:
        ConfigError: there is no such parameter, or no such campaign.
    """
    sent = request.query_params
    for name in sent:
        if name not in _PARAMETERS:
            raise ConfigError(
                f"there is no parameter {name[:40]!r}", hint=f"Known: {', '.join(_PARAMETERS)}."
            )
    try:
        delta = float(sent.get("delta") or DEFAULT_DELTA)
    except ValueError:
        raise ConfigError("delta must be a number such as 0.02") from None

    def texts(name: str) -> tuple[str, ...]:
        return tuple(text for text in sent.getlist(name) if text.strip())

    axis = sent.get("axis") or "root"
    a, b = (sent.get(name, "").strip() for name in ("a", "b"))
    if axis == "campaign":
        a, b = (campaign_queries.resolve_campaign(store, one) if one else "" for one in (a, b))
    return CompareQuery(
        axis=axis,
        a=a,
        b=b,
        campaigns=tuple(dict.fromkeys(store.campaign(one).id for one in texts("campaign"))),
        conditions=texts("where"),
        conditions_a=texts("where_a"),
        conditions_b=texts("where_b"),
        delta=delta,
    )


def load_stored_verdicts(store: Store, asked: CompareQuery) -> list[VerdictRow]:
    """The verdicts of this very question, if it was asked before."""
    if not asked.compare_command:
        return []
    from treehammer.analysis.comparison.comparison import ComparisonQuery

    for a, b in itertools.product(possible_values(asked.a), possible_values(asked.b)):
        if a == b and asked.a != asked.b:
            continue  # as texts they are two: 6.4 and 6.40
        question = ComparisonQuery(asked.axis, a, b, asked.delta, asked.selection)
        if rows := store.verdicts(question.id):
            return rows
    return []


def compare_now(store: Store, asked: CompareQuery) -> tuple[list[VerdictRow], Sequence[str]]:
    """Compare now; nothing is stored.

    Raises:
        ConfigError: it would read too much, or asks for what there is not.
        NothingToDo: one side has nothing, or nothing can be compared.
    """
    from treehammer.analysis.comparison.comparison import compare_samples

    both = asked.selection
    sides = [replace(both, conditions=(*both.conditions, *own)) for own in asked.sides]
    if asked.axis == SELECTION_AXIS and sides[0] == sides[1]:
        raise ConfigError(
            "both sides select the same", hint="Give conditions that tell them apart."
        )
    samples = [_load_samples(store, side) for side in dict.fromkeys(sides)]
    if asked.axis == SELECTION_AXIS:
        question = _compares_selections(asked)
        names = (str(question.a), str(question.b))
        everything = [
            replace(one, side=name)
            for name, side in zip(names, samples, strict=True)
            for one in side
        ]
    else:
        a = find_axis_value(samples[0], asked.axis, asked.a)
        b = find_axis_value(samples[-1], asked.axis, asked.b)
        question = _build_question(asked, a, b)
        everything = list(samples[0])
        if len(samples) > 1:
            everything = [one for one in samples[0] if one.axis_value(asked.axis) == a]
            everything += [one for one in samples[1] if one.axis_value(asked.axis) == b]
    found = compare_samples(everything, question, now_us=time.time_ns() // 1000)
    if all(
        row.verdict in (Verdict.LOST, Verdict.NEW) for row in found.verdicts_of_scope(SERIES_SCOPE)
    ):
        _require_other_axis(question, everything)
    return list(found.verdicts), found.notes


def _require_other_axis(question: ComparisonQuery, samples: Sequence[Sample]) -> None:
    """Refuse sides that conditions keep at sites or doors of their own: a series has one of each.

    Raises:
        ConfigError: the sides are told apart by either, and have none of it in common.
    """
    sides = [
        [one for one in samples if one.axis_value(question.axis) == value]
        for value in (question.a, question.b)
    ]
    for column in _SERIES_LOCATIONS.get(question.axis, ("site", "door")):
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


def _compares_selections(asked: CompareQuery) -> ComparisonQuery:
    names = [" and ".join(map(str, side)) or "all" for side in asked.sides]
    return _build_question(asked, *names)


def _build_question(asked: CompareQuery, a: Any, b: Any) -> ComparisonQuery:
    from treehammer.analysis.comparison.comparison import ComparisonQuery

    return ComparisonQuery(asked.axis, a, b, asked.delta, asked.selection, *asked.sides)


def _load_samples(store: Store, selection: Selection) -> list[Sample]:
    figure = FigureQuery(selection=selection, kind=None)
    with store.connection() as connection:
        count = figure_values.estimate_max_measurements(connection, figure)
    if count > MAX_READ:
        raise ConfigError(
            f"this comparison would read up to {count:,} measurements, and {MAX_READ:,} is the limit here",
            hint="Choose a campaign, or a site with where=site=NAME; 'treehammer compare' has no "
            "limit, and what it finds is listed on this page.",
        )
    try:
        found = [Sample.from_row(row) for row in store.measurements(selection, SAMPLE_COLUMNS)]
    except (ValueError, AttributeError) as error:
        # Of a program that is not ours.
        raise ConfigError(
            f"the variant of a measurement is no JSON object ({error})",
            hint="Leave such measurements out with a condition.",
        ) from error
    if not found and selection == ALL_MEASUREMENTS:
        raise NothingToDoError("there are no measurements yet")
    if not found:
        raise NothingToDoError(f"no measurement is selected by {selection}")
    return found
