"""Statements compiled once to the driver's own form, for rows that are written by the thousands.

SQLAlchemy builds and checks the parameters of every row by name, which takes longer than SQLite needs
to insert it; and it expands every list of a query anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from treehammer.sql.core.column_types import REAL, StoredText

#: Statements that are compiled; there are about twenty, and ten lengths of the lists of each query.
_MAX_STATEMENTS = 256
#: Types whose values the drivers of SQLite and PostgreSQL take as they are.
_PLAIN_TYPES = (type(REAL), sa.Boolean, sa.LargeBinary)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class CompiledStatement:
    """SQL with positional parameters.

    Attributes:
        text: SQL of the dialect.
        names: names of its parameters, in order.
        text_places: positions of texts, which are NULL if they are empty.
        converters: position and function of each other parameter that the driver cannot take as it is.
    """

    text: str
    names: tuple[str, ...]
    text_places: tuple[int, ...]
    converters: tuple[tuple[int, Callable[[Any], Any]], ...]

    def bind(self, rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
        """Yield the parameters of each row."""
        pick = itemgetter(*self.names)
        for row in rows:
            values = list(pick(row))
            for place in self.text_places:
                if not values[place]:
                    values[place] = None
            for place, convert in self.converters:
                values[place] = convert(values[place])
            yield tuple(values)


@dataclass(frozen=True)
class CompiledQuery:
    """Query with positional parameters, among them lists of one length.

    Attributes:
        text: SQL of the dialect.
        places: name and index in its list of each parameter; the index of a single value is None.
    """

    text: str
    places: tuple[tuple[str, int | None], ...]

    def bind(self, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the parameters; lists are filled up with NULL, which equals nothing."""
        values = []
        for name, index in self.places:
            value = parameters[name]
            if index is not None:
                value = value[index] if index < len(value) else None
            values.append(value)
        return tuple(values)


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
    types = [compiled.binds[name].type for name in names]
    texts = tuple(place for place, type_ in enumerate(types) if isinstance(type_, StoredText))
    converters = (
        (place, _find_converter(type_, dialect))
        for place, type_ in enumerate(types)
        if place not in texts
    )
    conversions = tuple((place, convert) for place, convert in converters if convert is not None)
    return CompiledStatement(str(compiled), names, texts, conversions)


def _find_converter(type_: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    if isinstance(type_, _PLAIN_TYPES):
        return None
    if isinstance(type_, TypeDecorator):  # without the checks of its general processor
        return lambda value: type_.process_bind_param(value, dialect)
    return type_.dialect_impl(dialect).bind_processor(dialect)


def round_length(length: int) -> int:
    """Round the length of a list up to a power of two, so that few lengths are compiled."""
    return 1 << max(length - 1, 0).bit_length()


@lru_cache(maxsize=_MAX_STATEMENTS)
def compile_query(
    query: sa.Executable, length: int, dialect_type: Callable[..., Dialect], paramstyle: str
) -> CompiledQuery:
    """Compile a query whose parameters are lists of a length or single values.

    Args:
        query: with parameters of numbers and texts only; a constant, since it is kept.
        length: of its lists.
        dialect_type: of the database.
        paramstyle: positional style of the driver, see PEP 249.
    """
    dialect = dialect_type(paramstyle=paramstyle)
    binds: dict[str, Any] = query.compile(dialect=dialect).binds  # type: ignore[attr-defined]
    values: dict[str, Any] = dict.fromkeys(binds)
    places: dict[str, tuple[str, int | None]] = {name: (name, None) for name in binds}
    for name in (name for name, bind in binds.items() if bind.expanding):
        values[name] = [None] * length
        places |= {f"{name}_{index + 1}": (name, index) for index in range(length)}
    expanded: Any = query.params(values).compile(  # type: ignore[attr-defined]
        dialect=dialect, compile_kwargs={"render_postcompile": True}
    )
    return CompiledQuery(str(expanded), tuple(places[name] for name in expanded.positiontup))
