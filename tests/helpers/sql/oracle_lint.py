"""Lint for SQL statements that H2 accepts but Oracle 19c rejects.

A pattern sees a statement in upper case with single spaces and without the content of texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from treehammer.sql.core.schema import metadata

MAX_NAME_CHARS = 30
MAX_LIST_ITEMS = 1000
MAX_BINDS = 65_535
MAX_COLUMNS = 1000
MAX_TEXT_BYTES = 4000

# Oracle Database SQL Language Reference, appendix "Oracle SQL Reserved Words".
RESERVED_WORDS = """
    ACCESS ADD ALL ALTER AND ANY AS ASC AUDIT BETWEEN BY CHAR CHECK CLUSTER COLUMN COLUMN_VALUE
    COMMENT COMPRESS CONNECT CREATE CURRENT DATE DECIMAL DEFAULT DELETE DESC DISTINCT DROP ELSE
    EXCLUSIVE EXISTS FILE FLOAT FOR FROM GRANT GROUP HAVING IDENTIFIED IMMEDIATE IN INCREMENT INDEX
    INITIAL INSERT INTEGER INTERSECT INTO IS LEVEL LIKE LOCK LONG MAXEXTENTS MINUS MLSLABEL MODE
    MODIFY NESTED_TABLE_ID NOAUDIT NOCOMPRESS NOT NOWAIT NULL NUMBER OF OFFLINE ON ONLINE OPTION OR
    ORDER PCTFREE PRIOR PUBLIC RAW RENAME RESOURCE REVOKE ROW ROWID ROWNUM ROWS SELECT SESSION SET
    SHARE SIZE SMALLINT START SUCCESSFUL SYNONYM SYSDATE TABLE THEN TO TRIGGER UID UNION UNIQUE
    UPDATE USER VALIDATE VALUES VARCHAR VARCHAR2 VIEW WHENEVER WHERE WITH
    """
#: Functions in use, each verified in Oracle's reference.
FUNCTIONS = "CAST COALESCE COUNT GETLENGTH MAX MIN NULLIF ROW_NUMBER SUBSTR SUM"
#: Words and types before a bracket that are no functions.
_BEFORE_BRACKET = """
    ALL AND BY DISTINCT ELSE EXISTS FROM IN INTERSECT INTO JOIN MINUS NOT ON OR OVER SELECT SET THEN
    UNION VALUES WHEN WHERE NUMBER VARCHAR2
    """


def _name_columns(*types: type[sa.types.TypeEngine[Any]]) -> str:
    columns = (column for table in metadata.sorted_tables for column in table.columns)
    kinds = ((column.name.upper(), getattr(column.type, "impl", column.type)) for column in columns)
    return "|".join(sorted({name for name, kind in kinds if isinstance(kind, types)}))


_FLAG = rf"(?:\w+\.)?(?:{_name_columns(sa.Boolean)})\b"
_LOB = rf"\b(?:{_name_columns(sa.Text, sa.LargeBinary)})\b(?!\.)"
_RESERVED = rf"(?:{'|'.join(RESERVED_WORDS.split())})\b"


#: Problem -> its pattern.
LINT_RULES = {
    "keyword of other databases": (
        r"\b(?:LIMIT|FILTER|BOOLEAN|TRUE|FALSE|EXCEPT|ILIKE|GLOB|RECURSIVE|ON CONFLICT|IF|AUTOINCREMENT)\b"
        r"|::|[;%`]"
    ),
    "EXISTS as a value": r"SELECT (?:NOT )?\(?EXISTS",
    "number as a condition": (
        r"\bIS (?:NOT )?[01]\b|\b(?:WHERE|(?<!BETWEEN :A )AND|OR) [01]\b(?! ?[=<>])"
        rf"|\b(?:WHERE|AND|OR|NOT|WHEN|ON) \(?{_FLAG}(?! ?(?:[=<>!]|IS|IN|BETWEEN))"
    ),
    "AS before the alias of a table": r"\b(?:FROM|JOIN) (?:\w+|\([^()]*\)) AS\b",
    "several rows of VALUES": r"VALUES \([^()]*\) ?,",
    "GROUP BY an alias or a number": (
        r"\bAS (\w+)\b.* GROUP BY (?:[\w.]+, )*\1\b(?!\.)|GROUP BY (?:[\w.]+, )*\d"
    ),
    "OFFSET without ROWS": r"OFFSET \S+(?! ROWS?\b)(?!\S)",
    "long, quoted or reserved name": (
        rf'"|\b\w{{{MAX_NAME_CHARS + 1},}}|(?::|\.|\bAS (?!(?:NUMBER|VARCHAR2|SMALLINT)\b)){_RESERVED}'
        rf"|(?:CREATE|ALTER) TABLE {_RESERVED}|(?:TABLE \w+ \(|, |\bADD |\bMODIFY ){_RESERVED} \w+[(,)]"
    ),
    "type or change of a column that Oracle lacks": (
        r"^(?:CREATE|ALTER) TABLE .*\w (?:DATE|TEXT|DOUBLE PRECISION|TIMESTAMP|BIGINT|JSON)(?: ?[,()]| NOT|$)"
        r"|\bVARCHAR2(?!\(\d+ (?:CHAR|BYTE)\))|\b(?:ADD|ALTER) COLUMN\b"
    ),
    "'' is NULL": r"(?<!')''(?!')",
    "SELECT without FROM": r"SELECT (?:(?!\bFROM\b)[^()])*(?:\)|$)",
    "RETURNING without INTO": r"RETURNING (?!.*\bINTO\b)",
    "change of a table joined with another": (
        r"^(?:UPDATE \w+ SET [^()]* FROM|DELETE FROM \w+ USING)\b"
    ),
    "unverified function": (
        r"^(?!CREATE|ALTER).*(?<!INTO )(?<!JOIN )(?<!AS )"
        rf"\b(?!(?:{'|'.join((FUNCTIONS + _BEFORE_BRACKET).split())})\b)[A-Z]\w*\("
    ),
    "large object that is compared, sorted or mixed with text": (
        rf"(?:^(?!UPDATE)|WHERE).*{_LOB} ?(?:[=<>!]|IN\b|BETWEEN)|(?:GROUP|ORDER) BY [^()]*{_LOB}"
        rf"|SELECT DISTINCT (?:(?!FROM).)*{_LOB}|\b(?:THEN|ELSE) (?:\w+\.)?{_LOB}"
    ),
}
# Statements that SQLAlchemy and Treehammer send on connecting.
_ABOUT_THE_SESSION = re.compile(
    r"\s*(?:begin\b|ALTER SESSION SET |SET TRANSACTION |select sys_context\()"
)


def find_problems(text: str, rows: int = 1) -> list[str]:
    """List the problems of a statement sent with this number of parameter rows."""
    if _ABOUT_THE_SESSION.match(text):
        return []
    statement = re.sub(r"'((?:[^']|'')*)'", lambda text: "'?'" if text[1] else "''", text)
    statement = " ".join(re.sub(r':"\w+"', ":quoted", statement).upper().split())
    problems = [name for name, pattern in LINT_RULES.items() if re.search(pattern, statement)]
    return [*problems, *_find_excesses(statement, rows)]


def _find_excesses(statement: str, rows: int) -> Iterator[str]:
    """Yield the limits of Oracle that a statement exceeds."""
    if rows > 1 and "RETURNING" in statement:
        yield "RETURNING for many rows"
    for items in re.findall(r"\bIN \(([^()]*)\)", statement):
        if items.count(",") >= MAX_LIST_ITEMS:
            yield f"IN with {items.count(',') + 1} values"
    if statement.count(":") > MAX_BINDS:
        yield f"{statement.count(':')} parameters"
    if (
        statement.startswith("CREATE TABLE")
        and len(re.findall(r"\w \w+\(| CLOB| BLOB", statement)) > MAX_COLUMNS
    ):
        yield f"more than {MAX_COLUMNS} columns"
    for length, unit in re.findall(r"VARCHAR2\((\d+) (CHAR|BYTE)\)", statement):
        if int(length) * (4 if unit == "CHAR" else 1) > MAX_TEXT_BYTES:
            yield f"VARCHAR2({length} {unit}) may need more than {MAX_TEXT_BYTES} bytes"
