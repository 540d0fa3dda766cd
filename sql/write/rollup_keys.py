"""Keys of roll-up rows; their owner, a day and subject, is the unit of a lookup and a rebuild."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa

#: Keys per lookup and rows per write; an IN list may hold 1000 on Oracle.
CHUNK = 500

#: Day and subject number.
Owner = tuple[int, int]


def describe_key(key: NamedTuple) -> str:
    """Describe the key of a roll-up row: ``day 20260203, subject_id 7, kind timed``."""
    return ", ".join(f"{name} {value}" for name, value in key._asdict().items())


def belongs_to(owner: Owner | None, table: sa.Table) -> sa.ColumnElement[bool]:
    """Select the rows of an owner; all if None."""
    if owner is None:
        return sa.true()
    day, subject_id = owner
    return sa.and_(table.c.day == day, table.c.subject_id == subject_id)


def group_subjects(owners: Iterable[Owner]) -> Iterator[tuple[int, list[int]]]:
    """Group subjects by day, in lists for one query each."""
    subjects: defaultdict[int, set[int]] = defaultdict(set)
    for day, subject_id in owners:
        subjects[day].add(subject_id)
    for day, ids in subjects.items():
        remaining = iter(ids)
        while chunk := list(islice(remaining, CHUNK)):
            yield day, chunk


def select_of_day(table: sa.Table, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select rows by the parameters ``day`` and ``subjects``, see :func:`group_subjects`."""
    subject_ids: sa.BindParameter[int] = sa.bindparam("subjects", expanding=True)
    return sa.select(*columns).where(
        table.c.day == sa.bindparam("day"), table.c.subject_id.in_(subject_ids)
    )


def has_key(columns: Iterable[sa.Column[Any]]) -> Iterator[sa.ColumnElement[bool]]:
    """Select the row with the key that :func:`key_parameters` passes."""
    # SET uses the columns' own names for its parameters.
    return (column == sa.bindparam(f"key_{column.name}") for column in columns)


def key_parameters(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of :func:`has_key` for a key by column names."""
    return {f"key_{name}": value for name, value in key.items()}
