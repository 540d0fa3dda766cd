"""Lint of statements for Oracle 19c, as SQLAlchemy's dialect compiles them; no server is needed.

The dialect refuses much by itself. A pattern sees a statement in upper case with single spaces and
without the content of texts.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql import ClauseElement

from treehammer.sql.core.schema import metadata
from treehammer.sql.engine.database_engine import make_engine, parse_url

MAX_LIST_ITEMS = 1000
MAX_BINDS = 65_535
#: Functions in use, each verified in Oracle's reference.
FUNCTIONS = "CAST COALESCE COUNT GETLENGTH MAX MIN NULLIF ROW_NUMBER SUBSTR SUM"
#: Words and types before a bracket that are no functions.
_BEFORE_BRACKET = """
    ALL AND BY DISTINCT ELSE EXISTS FROM IN INTERSECT INTO JOIN MINUS NOT ON OR OVER SELECT SET THEN
    UNION VALUES WHEN WHERE NUMBER VARCHAR2
    """
_LOB_COLUMNS = {
    column.name.upper()
    for table in metadata.sorted_tables
    for column in table.columns
    if isinstance(getattr(column.type, "impl", column.type), (sa.Text, sa.LargeBinary))
}
_LOB = rf"\b(?:{'|'.join(sorted(_LOB_COLUMNS))})\b(?!\.)"

#: Problem -> its pattern.
LINT_RULES = {
    # Not GLOB, which replaces LIKE in statements for SQLite.
    "keyword of other databases": r"\b(?:FILTER|RECURSIVE|ON CONFLICT|IF)\b|::",
    "EXISTS as a value": r"SELECT (?:NOT )?\(?EXISTS",
    "number as a condition": r"\bIS (?:NOT )?[01]\b",
    "GROUP BY an alias or a number": (
        r"\bAS (\w+)\b.* GROUP BY (?:[\w.]+, )*\1\b(?!\.)|GROUP BY (?:[\w.]+, )*\d"
    ),
    "reserved name": '"',
    "'' is NULL": r"(?<!')''(?!')",
    "unverified function": (
        r"^(?!CREATE|ALTER).*(?<!INTO )(?<!JOIN )(?<!AS )"
        rf"\b(?!(?:{'|'.join((FUNCTIONS + _BEFORE_BRACKET).split())})\b)[A-Z]\w*\("
    ),
    "large object that is compared, sorted or mixed with text": (
        rf"(?:^(?!UPDATE)|WHERE).*{_LOB} ?(?:[=<>!]|IN\b|BETWEEN)|(?:GROUP|ORDER) BY [^()]*{_LOB}"
        rf"|SELECT DISTINCT (?:(?!FROM).)*{_LOB}|\b(?:THEN|ELSE) (?:\w+\.)?{_LOB}"
    ),
}


@functools.cache
def make_oracle_dialect() -> Any:
    """Make the dialect of an engine that has connected to a server."""
    dialect: Any = make_engine(parse_url("oracle://me:x@host/?service_name=y")).dialect
    dialect.supports_native_boolean = False  # set on connecting, see oracle_backend
    return dialect


def compile_for_oracle(statement: ClauseElement) -> str:
    """Compile a statement as an engine for Oracle does; lists have one item."""
    return str(statement.compile(dialect=make_oracle_dialect()))


def find_problems(text: str) -> list[str]:
    """List the problems of a compiled statement."""
    statement = re.sub(r"'((?:[^']|'')*)'", lambda text: "'?'" if text[1] else "''", text)
    statement = " ".join(re.sub(r':"\w+"', ":quoted", statement).upper().split())
    return [name for name, pattern in LINT_RULES.items() if re.search(pattern, statement)]


_linted: set[str] = set()


def lint_executed_statement(
    connection: Any, _cursor: Any, sql: str, parameters: Any, context: Any, many: bool
) -> None:
    """Refuse a statement that Oracle would refuse; a listener of ``before_cursor_execute``.

    Statements for PostgreSQL, changes of the schema and Alembic's copies of tables are left out.
    """
    if connection.dialect.name != "sqlite" or context.compiled is None or context.isddl:
        return
    if "alembic" in sql or sql in _linted:
        return
    problems = find_problems(compile_for_oracle(context.compiled.statement))
    if any(values.count(",") >= MAX_LIST_ITEMS for values in re.findall(r"\bIN \(([^()]*)\)", sql)):
        problems.append("long list of values")
    if not many and len(parameters) > MAX_BINDS:
        problems.append("too many parameters")
    assert not problems, f"{problems} in {sql}"
    _linted.add(sql)
