"""Subjects in memory: the few texts that millions of measurements and roll-ups share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from treehammer.sql.core.dimensions import SUBJECT
from treehammer.sql.core.schema import dimension_tables

_TABLE = dimension_tables[SUBJECT.name]


class SubjectTable:
    """All subjects of a database, by columns; unknown values are None.

    Args:
        rows: of the table.
    """

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        self._rows = rows
        self._values: dict[str, list[Any]] = {}
        self._columns: dict[str, dict[int, Any]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def select(self, *names: str) -> list[tuple[Any, ...]]:
        """Return some columns of every subject."""
        places = [_TABLE.columns.keys().index(name) for name in names]
        return [tuple(row[place] for place in places) for row in self._rows]

    def index_column(self, name: str) -> Mapping[int, Any]:
        """Return the values of a column by the subject's number."""
        if name not in self._columns:
            self._columns[name] = dict(self.select("id", name))
        return self._columns[name]

    def list_values(self, name: str) -> list[Any]:
        """List the distinct known values of a column, sorted."""
        if name not in self._values:
            self._values[name] = sorted({value for (value,) in self.select(name)} - {None})
        return self._values[name]


_TABLES: WeakKeyDictionary[Engine, SubjectTable] = WeakKeyDictionary()


def load_subjects(connection: Connection) -> SubjectTable:
    """Load all subjects, from memory unless there are new ones.

    No process of Treehammer changes or deletes a row of a dimension, so an equal number of rows
    means the same rows.
    """
    subjects = _TABLES.get(connection.engine)
    count = connection.scalar(sa.select(sa.func.count()).select_from(_TABLE))
    if subjects is None or len(subjects) != count:
        rows = [tuple(row) for row in connection.execute(sa.select(_TABLE))]
        subjects = _TABLES[connection.engine] = SubjectTable(rows)
    return subjects
