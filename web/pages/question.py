"""What Compare is asked: from the address to verdicts that were kept, or are made now."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from treehammer.analysis.samples import COLUMNS, SELECTION, Sample, value_named
from treehammer.analysis.verdict import DELTA
from treehammer.errors import ConfigError, NothingToDo
from treehammer.sql import figure_values
from treehammer.sql.figures import Figure
from treehammer.sql.rows import VerdictRow
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store

if TYPE_CHECKING:
    from treehammer.analysis.compare import Question

#: Measurements that a comparison may read while someone waits.
MOST_READ = 30_000
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
    def is_question(self) -> bool:
        """Whether anything is asked at all."""
        sides = self.wheres_a or self.wheres_b
        return bool(sides if self.axis == SELECTION else self.a and self.b)

    @property
    def command(self) -> str:
        """The command that makes the same comparison and keeps it; '' where none does."""
        if self.axis == SELECTION or self.wheres_a or self.wheres_b or len(self.campaigns) > 1:
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

    return Asked(
        axis=sent.get("axis") or "root",
        a=sent.get("a", ""),
        b=sent.get("b", ""),
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

    selection = Selection.of(asked.campaigns, asked.wheres)
    for read in (str, float):
        try:
            a, b = read(asked.a), read(asked.b)
        except ValueError:
            continue
        if read is float and a == b:
            continue  # two texts: 6.4 and 6.40
        question = Question(asked.axis, a, b, asked.delta, selection)
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

    sides = [
        Selection.of(asked.campaigns, (*asked.wheres, *own))
        for own in (asked.wheres_a, asked.wheres_b)
    ]
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
    return list(found.verdicts), found.notes


def _of_selections(asked: Asked) -> Question:
    names = [" and ".join(side) or "all" for side in (asked.wheres_a, asked.wheres_b)]
    return _question(asked, *names)


def _question(asked: Asked, a: Any, b: Any) -> Question:
    from treehammer.analysis.compare import Question

    where_a, where_b = (
        Selection.of((), texts).wheres for texts in (asked.wheres_a, asked.wheres_b)
    )
    selection = Selection.of(asked.campaigns, asked.wheres)
    return Question(asked.axis, a, b, asked.delta, selection, where_a, where_b)


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
    if not found:
        raise NothingToDo(f"no measurement is selected by {selection}")
    return found
