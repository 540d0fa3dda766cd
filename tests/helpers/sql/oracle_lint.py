"""Lint for SQL statements that H2 accepts but Oracle 19c rejects.

Each rule is a pattern with statements that it must find; ``test_sql_queries`` checks them. A pattern
sees a statement in upper case with single spaces and without the content of texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class LintRule:
    """A problem, its pattern, and statements that have it."""

    problem: str
    pattern: str
    examples: tuple[str, ...]


LINT_RULES = (
    LintRule(
        "keyword of other databases",
        r"\b(?:LIMIT|FILTER|BOOLEAN|TRUE|FALSE|EXCEPT|ILIKE|GLOB|RECURSIVE|ON CONFLICT|IF|AUTOINCREMENT)\b"
        r"|::|[;%`]",
        (
            "SELECT a FROM t LIMIT 1",
            "SELECT count(*) FILTER (WHERE a > 1) FROM t",
            "SELECT a FROM t WHERE b = TRUE",
            "INSERT INTO t (a) VALUES (:a) ON CONFLICT DO NOTHING",
            "DROP TABLE IF EXISTS t",
            "SELECT a::text FROM t",
        ),
    ),
    LintRule(
        "EXISTS as a value",
        r"SELECT (?:NOT )?\(?EXISTS",
        (
            "SELECT EXISTS (SELECT a FROM t) FROM DUAL",
            "SELECT NOT (EXISTS (SELECT a FROM t)) FROM DUAL",
        ),
    ),
    LintRule(
        "number as a condition",
        rf"\bIS (?:NOT )?[01]\b|\b(?:WHERE|(?<!BETWEEN :A )AND|OR) [01]\b(?! ?[=<>])"
        rf"|\b(?:WHERE|AND|OR|NOT|WHEN|ON) \(?{_FLAG}(?! ?(?:[=<>!]|IS|IN|BETWEEN))",
        (
            "SELECT a FROM t WHERE a IS NOT 0",
            "SELECT a FROM t WHERE 1",
            "SELECT job_id FROM measurement WHERE NOT plausible",
            "SELECT CASE WHEN (measurement.plausible) THEN :a ELSE :b END FROM measurement",
        ),
    ),
    LintRule(
        "AS before the alias of a table",
        r"\b(?:FROM|JOIN) (?:\w+|\([^()]*\)) AS\b",
        (
            "SELECT x.a FROM t JOIN u AS x ON x.a = t.a",
            "SELECT x.a FROM (SELECT a FROM t) AS x",
        ),
    ),
    LintRule(
        "several rows of VALUES",
        r"VALUES \([^()]*\) ?,",
        ("INSERT INTO t (a, b) VALUES (:a, :b), (:c, :d)",),
    ),
    LintRule(
        "GROUP BY an alias or a number",
        r"\bAS (\w+)\b.* GROUP BY (?:[\w.]+, )*\1\b(?!\.)|GROUP BY (?:[\w.]+, )*\d",
        (
            "SELECT a AS x, count(*) AS n FROM t GROUP BY x",
            "SELECT a, b, count(*) FROM t GROUP BY a, 2",
        ),
    ),
    LintRule("OFFSET without ROWS", r"OFFSET \S+(?! ROWS?\b)(?!\S)", ("SELECT a FROM t OFFSET 5",)),
    LintRule(
        "long, quoted or reserved name",
        rf'"|\b\w{{{MAX_NAME_CHARS + 1},}}|(?::|\.|\bAS (?!(?:NUMBER|VARCHAR2|SMALLINT)\b)){_RESERVED}'
        rf"|(?:CREATE|ALTER) TABLE {_RESERVED}|(?:TABLE \w+ \(|, |\bADD |\bMODIFY ){_RESERVED} \w+[(,)]",
        (
            'SELECT "a" FROM t',
            f"SELECT {'a' * (MAX_NAME_CHARS + 1)} FROM t",
            "SELECT a FROM t WHERE a = :level",
            "SELECT t.number FROM t",
            "SELECT a AS size FROM t",
            "CREATE TABLE session (a NUMBER(1))",
            "CREATE TABLE t (a NUMBER(1), level NUMBER(1))",
        ),
    ),
    LintRule(
        "type or change of a column that Oracle lacks",
        r"^(?:CREATE|ALTER) TABLE .*\w (?:DATE|TEXT|DOUBLE PRECISION|TIMESTAMP|BIGINT|JSON)(?: ?[,()]| NOT|$)"
        r"|\bVARCHAR2(?!\(\d+ (?:CHAR|BYTE)\))|\b(?:ADD|ALTER) COLUMN\b",
        (
            "CREATE TABLE t (a DATE)",
            "ALTER TABLE t ADD a BIGINT",
            "CREATE TABLE t (a VARCHAR2(10))",
            "ALTER TABLE t ADD COLUMN a NUMBER(1)",
        ),
    ),
    LintRule("'' is NULL", r"(?<!')''(?!')", ("SELECT a FROM t WHERE a = ''",)),
    LintRule(
        "SELECT without FROM",
        r"SELECT (?:(?!\bFROM\b)[^()])*(?:\)|$)",
        ("SELECT 1", "SELECT a FROM t WHERE a = (SELECT 1)"),
    ),
    LintRule(
        "RETURNING without INTO",
        r"RETURNING (?!.*\bINTO\b)",
        ("INSERT INTO t (a) VALUES (:a) RETURNING t.a",),
    ),
    LintRule(
        "change of a table joined with another",
        r"^(?:UPDATE \w+ SET [^()]* FROM|DELETE FROM \w+ USING)\b",
        (
            "UPDATE t SET a = u.a FROM u WHERE u.b = t.b",
            "DELETE FROM t USING u WHERE u.b = t.b",
        ),
    ),
    LintRule(
        "unverified function",
        rf"^(?!CREATE|ALTER).*(?<!INTO )(?<!JOIN )(?<!AS )\b(?!(?:{'|'.join((FUNCTIONS + _BEFORE_BRACKET).split())})\b)[A-Z]\w*\(",
        ("SELECT strftime(a) FROM t", "SELECT group_concat(a) FROM t"),
    ),
    LintRule(
        "large object that is compared, sorted or mixed with text",
        rf"(?:^(?!UPDATE)|WHERE).*{_LOB} ?(?:[=<>!]|IN\b|BETWEEN)|(?:GROUP|ORDER) BY [^()]*{_LOB}"
        rf"|SELECT DISTINCT (?:(?!FROM).)*{_LOB}|\b(?:THEN|ELSE) (?:\w+\.)?{_LOB}",
        (
            "SELECT job_id FROM measurement WHERE measurement.log_excerpt IN (:a, :b)",
            "SELECT log_excerpt, count(*) FROM measurement GROUP BY measurement.log_excerpt",
            "SELECT DISTINCT measurement.log_excerpt FROM measurement",
            "UPDATE measurement SET implausible_reasons=CASE WHEN (implausible_reasons IS NULL) THEN :a "
            "ELSE implausible_reasons || :b END",
        ),
    ),
)
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
    problems = [rule.problem for rule in LINT_RULES if re.search(rule.pattern, statement)]
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
