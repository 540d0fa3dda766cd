"""Statements compiled once to the driver's own form, for rows that are written by the thousands.

SQLAlchemy builds and checks the parameters of every row by name, which takes longer than SQLite needs
to insert it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from treehammer.sql.core.column_types import REAL

#: Statements that are compiled; there are about twenty.
_MAX_STATEMENTS = 256

Row = Mapping[str, Any]


@dataclass(frozen=True)
class CompiledStatement:
    """SQL with positional parameters.

    Attributes:
        text: SQL of the dialect.
        names: names of its parameters, in order.
        converters: position and function of each parameter that the driver cannot take as it is.
    """

    text: str
    names: tuple[str, ...]
    converters: tuple[tuple[int, Callable[[Any], Any]], ...]

    def bind(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Return the parameters of each row."""
        pick = itemgetter(*self.names)
        found = []
        for row in rows:
            values = list(pick(row))
            for place, convert in self.converters:
                values[place] = convert(values[place])
            found.append(tuple(values))
        return found


@lru_cache(maxsize=_MAX_STATEMENTS)
def insert_into(table: sa.Table) -> sa.Insert:
    """Return the statement that inserts whole rows; the same object for each call."""
    return sa.insert(table)


@lru_cache(maxsize=_MAX_STATEMENTS)
def compile_statement(
    statement: sa.Insert | sa.Update, dialect_type: Callable[..., Dialect], paramstyle: str
) -> CompiledStatement:
    """Compile a statement with at least two parameters.

    Args:
        statement: an INSERT of whole rows, or an UPDATE with named parameters; a constant, since it
            is kept.
        dialect_type: of the database.
        paramstyle: positional style of the driver, see PEP 249.
    """
    dialect = dialect_type(paramstyle=paramstyle)
    columns = [*statement.table.c.keys()] if statement.is_insert else None
    compiled: Any = statement.compile(dialect=dialect, column_keys=columns)
    names = tuple(compiled.positiontup)
    converters = (_find_converter(compiled.binds[name].type, dialect) for name in names)
    found = ((place, convert) for place, convert in enumerate(converters) if convert is not None)
    return CompiledStatement(str(compiled), names, tuple(found))


def _find_converter(type_: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    if isinstance(type_, type(REAL)):
        return None  # SQLAlchemy's converts float to float.
    return type_.dialect_impl(dialect).bind_processor(dialect)
