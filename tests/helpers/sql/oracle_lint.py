"""Lint for SQL statements that H2 accepts but Oracle 19c rejects, and for too wide index keys.

Every rule is a function from the tokens of a statement to a list of problems;
``test_sql_queries`` has bad examples for each of them. Widths of index keys are counted as Oracle
counts them (ORA-01450).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import sqlalchemy as sa

from treehammer.sql.core.schema import metadata

MAX_NAME_CHARS = 30
MAX_LIST_ITEMS = 1000
MAX_BINDS = 65_535
MAX_COLUMNS = 1000
MAX_TEXT_BYTES = 4000

# Oracle Database SQL Language Reference, appendix "Oracle SQL Reserved Words".
RESERVED_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    ACCESS ADD ALL ALTER AND ANY AS ASC AUDIT BETWEEN BY CHAR CHECK CLUSTER COLUMN COLUMN_VALUE
    COMMENT COMPRESS CONNECT CREATE CURRENT DATE DECIMAL DEFAULT DELETE DESC DISTINCT DROP ELSE
    EXCLUSIVE EXISTS FILE FLOAT FOR FROM GRANT GROUP HAVING IDENTIFIED IMMEDIATE IN INCREMENT INDEX
    INITIAL INSERT INTEGER INTERSECT INTO IS LEVEL LIKE LOCK LONG MAXEXTENTS MINUS MLSLABEL MODE
    MODIFY NESTED_TABLE_ID NOAUDIT NOCOMPRESS NOT NOWAIT NULL NUMBER OF OFFLINE ON ONLINE OPTION OR
    ORDER PCTFREE PRIOR PUBLIC RAW RENAME RESOURCE REVOKE ROW ROWID ROWNUM ROWS SELECT SESSION SET
    SHARE SIZE SMALLINT START SUCCESSFUL SYNONYM SYSDATE TABLE THEN TO TRIGGER UID UNION UNIQUE
    UPDATE USER VALIDATE VALUES VARCHAR VARCHAR2 VIEW WHENEVER WHERE WITH
    """,
    )
)
#: Functions in use, each verified in Oracle's reference.
KNOWN_FUNCTIONS = frozenset(
    (
        "CAST",
        "COALESCE",
        "COUNT",
        "GETLENGTH",
        "MAX",
        "MIN",
        "NULLIF",
        "ROW_NUMBER",
        "SUBSTR",
        "SUM",
    )
)
# Words before a bracket that are not functions.
_BEFORE_BRACKET = frozenset(
    re.findall(
        r"\w+",
        "AND BY DISTINCT ELSE EXISTS FROM IN INTO JOIN KEY NOT ON OR OVER SELECT SET THEN UNIQUE VALUES "
        "WHEN WHERE ALL ADD UNION MINUS INTERSECT",
    )
)
_TYPES = frozenset(("NUMBER", "SMALLINT", "VARCHAR2", "CLOB", "BLOB", "BINARY_DOUBLE"))
# Keywords of other databases.
_FOREIGN_KEYWORDS = {
    "LIMIT": "LIMIT: write FETCH FIRST",
    "FILTER": "FILTER: write CASE",
    "BOOLEAN": "BOOLEAN: 19c has none",
    "TRUE": "TRUE: 19c has no BOOLEAN",
    "FALSE": "FALSE: 19c has no BOOLEAN",
    "EXCEPT": "EXCEPT: write MINUS",
    "ILIKE": "ILIKE",
    "GLOB": "GLOB",
    "RECURSIVE": "RECURSIVE",
    "CONFLICT": "ON CONFLICT",
    "IF": "IF EXISTS: 23ai alone knows it",
    "AUTOINCREMENT": "AUTOINCREMENT",
}


class SqlToken(str):
    """Token of a statement; names and keywords are in upper case."""

    __slots__ = ()

    @property
    def is_name(self) -> bool:
        return self[0].isalpha()

    @property
    def is_text(self) -> bool:
        return self[0] == "'"

    @property
    def is_bind(self) -> bool:
        return self[0] == ":" and len(self) > 1


_PIECE = re.compile(
    r"""'(?:[^']|'')*'|:?"[^"]*"|:[A-Za-z]\w*|[A-Za-z][\w$#]*|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|"""
    r"""<=|>=|<>|!=|\|\||::|\S"""
)


@dataclass(frozen=True)
class SqlStatement:
    """Tokens of one statement."""

    text: str
    rows: int = 1

    @cached_property
    def tokens(self) -> list[SqlToken]:
        found = _PIECE.findall(self.text)
        return [SqlToken(p if p[0] in "':\"" else p.upper()) for p in found]

    def positions_after(self, *names: str) -> Iterator[int]:
        """Yield the positions after every occurrence of a sequence of words."""
        for place, word in enumerate(self.tokens):
            if word == names[0] and tuple(self.tokens[place : place + len(names)]) == names:
                yield place + len(names)

    def token_at(self, place: int) -> SqlToken:
        return self.tokens[place] if 0 <= place < len(self.tokens) else SqlToken(" ")

    def closing_position(self, place: int) -> int:
        """Return the position after the bracket that opens at ``place``."""
        depth = 0
        for end in range(place, len(self.tokens)):
            depth += {"(": 1, ")": -1}.get(self.tokens[end], 0)
            if not depth:
                return end + 1
        return len(self.tokens)

    def split_items(self, place: int) -> list[list[SqlToken]]:
        """Split the content of the bracket that opens at ``place`` by commas."""
        parts: list[list[SqlToken]] = [[]]
        depth = 0
        for word in self.tokens[place + 1 : self.closing_position(place) - 1]:
            depth += {"(": 1, ")": -1}.get(word, 0)
            if word == "," and not depth:
                parts.append([])
            else:
                parts[-1].append(word)
        return parts


LintRule = Callable[[SqlStatement], Iterator[str]]


def foreign_keywords(statement: SqlStatement) -> Iterator[str]:
    for word in statement.tokens:
        if word in _FOREIGN_KEYWORDS:
            yield _FOREIGN_KEYWORDS[word]
        if word in ("::", ";", "%", "`"):
            yield f"{word} means nothing to Oracle"


def exists_as_value(statement: SqlStatement) -> Iterator[str]:
    for place in (
        *statement.positions_after("SELECT"),
        *statement.positions_after("SELECT", "NOT"),
    ):
        while statement.token_at(place) == "(":
            place += 1  # noqa: PLW2901 - brackets are looked through
        if statement.token_at(place) == "EXISTS":
            yield "SELECT EXISTS: 19c has no BOOLEAN to give"


_FLAG_COLUMNS = frozenset(
    column.name.upper()
    for table in metadata.sorted_tables
    for column in table.columns
    if isinstance(column.type, sa.Boolean)
)


def numeric_conditions(statement: SqlStatement) -> Iterator[str]:
    words = statement.tokens
    for place, word in enumerate(words):
        end = place + 2 if statement.token_at(place + 1) == "." else place
        before, after = statement.token_at(place - 1), statement.token_at(end + 1)
        column = statement.token_at(end)
        if before == "(":
            before = statement.token_at(place - 2)
        condition = before in ("WHERE", "AND", "OR", "NOT", "WHEN", "ON")
        compared = after in ("=", "<", ">", "<=", ">=", "<>", "!=", "IS", "IN", "BETWEEN", "LIKE")
        if (
            column in _FLAG_COLUMNS
            and condition
            and not compared
            and (word == column or end > place)
        ):
            yield f"{column} is a number, no condition"
        if word in ("0", "1"):
            if before == "IS" or (before == "NOT" and statement.token_at(place - 2) == "IS"):
                yield f"IS {word}"
            elif condition and not compared and "BETWEEN" not in words[:place]:
                yield f"{before} {word}: a number is no condition"


def table_alias_with_as(statement: SqlStatement) -> Iterator[str]:
    for place in (*statement.positions_after("FROM"), *statement.positions_after("JOIN")):
        end = statement.closing_position(place) if statement.token_at(place) == "(" else place + 1
        if statement.token_at(end) == "AS":
            yield f"AS before the alias {statement.token_at(end + 1)} of a table"


def multi_row_values(statement: SqlStatement) -> Iterator[str]:
    for place in statement.positions_after("VALUES"):
        if (
            statement.token_at(place) == "("
            and statement.token_at(statement.closing_position(place)) == ","
        ):
            yield "more than one row of VALUES"


def group_by_alias(statement: SqlStatement) -> Iterator[str]:
    aliases = {statement.token_at(place) for place in statement.positions_after("AS")}
    for place in statement.positions_after("GROUP", "BY"):
        for at in range(place, len(statement.tokens)):
            word = statement.token_at(at)
            if word in ("ORDER", "HAVING", "UNION", ")") and statement.token_at(at - 1) != "(":
                break
            starts = statement.token_at(at - 1) in ("BY", ",")
            ends = statement.token_at(at + 1) not in (".", "(")
            if starts and ends and (word in aliases or word.isdigit()):
                yield f"GROUP BY the alias or number {word}"


def offset_clauses(statement: SqlStatement) -> Iterator[str]:
    for place in statement.positions_after("OFFSET"):
        if statement.token_at(place + 1) not in ("ROW", "ROWS"):
            yield "OFFSET without ROWS"


def identifier_lengths(statement: SqlStatement) -> Iterator[str]:
    for place, word in enumerate(statement.tokens):
        if word[0] == '"':
            yield f"the name {word} is quoted"
        if word.is_name and len(word) > MAX_NAME_CHARS:
            yield f"the name {word} has {len(word)} characters"
        if word.is_bind and word[1] != '"':
            if len(word) > MAX_NAME_CHARS * 4:
                yield f"the parameter {word} has {len(word)} characters"
            if word[1:].upper() in RESERVED_WORDS:
                yield f"the parameter {word} is a reserved word"
        named = statement.token_at(place - 1) in (".", "AS") or (
            statement.token_at(place - 2) in ("CREATE", "ALTER")
            and word != "ON"
            and statement.token_at(place - 1) != "UNIQUE"
        )
        a_type = word in _TYPES and statement.token_at(place - 1) == "AS"  # of a CAST
        if named and word in RESERVED_WORDS and not a_type:
            yield f"{word} is a reserved word"


def column_counts(statement: SqlStatement) -> Iterator[str]:
    if statement.tokens[:2] == ["CREATE", "TABLE"]:
        items = [
            i for i in statement.split_items(3) if i[0] not in ("CONSTRAINT", "PRIMARY", "UNIQUE")
        ]
        found = [(item[0], item[1]) for item in items]
    else:
        found = [
            (statement.token_at(place), statement.token_at(place + 1))
            for verb in ("ADD", "MODIFY")
            for place in statement.positions_after(verb)
            if statement.tokens[0] == "ALTER" and statement.token_at(place) != "CONSTRAINT"
        ]
    if len(found) > MAX_COLUMNS:
        yield f"{len(found)} columns"
    for name, kind in found:
        if name in RESERVED_WORDS:
            yield f"{name} is a reserved word"
        if kind not in _TYPES and kind not in ("NOT", "NULL"):
            yield f"the type {kind} of {name}"


def text_lengths(statement: SqlStatement) -> Iterator[str]:
    for place in statement.positions_after("VARCHAR2"):
        if statement.token_at(place) != "(":
            yield "VARCHAR2 without a length"
            continue
        length, unit = int(statement.token_at(place + 1)), statement.token_at(place + 2)
        if unit not in ("CHAR", "BYTE"):
            yield "VARCHAR2 in whatever the session counts"
        if length * (4 if unit == "CHAR" else 1) > MAX_TEXT_BYTES:
            yield f"VARCHAR2({length} {unit}) may need more than {MAX_TEXT_BYTES} bytes"


def foreign_ddl(statement: SqlStatement) -> Iterator[str]:
    if statement.tokens[0] == "ALTER":
        for place in (
            *statement.positions_after("ADD", "COLUMN"),
            *statement.positions_after("ALTER", "COLUMN"),
        ):
            yield f"{' '.join(statement.tokens[place - 2 : place])}"


def empty_strings(statement: SqlStatement) -> Iterator[str]:
    if "''" in statement.tokens:
        yield "'' is NULL"


def list_lengths(statement: SqlStatement) -> Iterator[str]:
    for place in statement.positions_after("IN"):
        if statement.token_at(place) == "(" and len(statement.split_items(place)) > MAX_LIST_ITEMS:
            yield f"IN with {len(statement.split_items(place))} values"
    binds = sum(word.is_bind for word in statement.tokens)
    if binds > MAX_BINDS:
        yield f"{binds} parameters"


def select_without_from(statement: SqlStatement) -> Iterator[str]:
    for place in statement.positions_after("SELECT"):
        depth = 0
        for at in range(place, len(statement.tokens) + 1):
            word = statement.token_at(at)
            depth += {"(": 1, ")": -1}.get(word, 0)
            if word == "FROM" and not depth:
                break
            if depth < 0 or word == " ":
                yield "SELECT without FROM"
                break


def returning_clauses(statement: SqlStatement) -> Iterator[str]:
    if "RETURNING" in statement.tokens:
        if statement.rows > 1:
            yield "RETURNING for many rows"
        if "INTO" not in statement.tokens[statement.tokens.index(SqlToken("RETURNING")) :]:
            yield "RETURNING without INTO"


def joined_updates(statement: SqlStatement) -> Iterator[str]:
    if statement.tokens[0] in ("UPDATE", "DELETE"):
        depth = 0
        for at, word in enumerate(statement.tokens):
            depth += {"(": 1, ")": -1}.get(word, 0)
            if not depth and (word == "USING" or (word == "FROM" and at > 1)):
                yield f"{statement.tokens[0]} … {word}"


def unknown_functions(statement: SqlStatement) -> Iterator[str]:
    if statement.tokens[0] in ("CREATE", "ALTER"):
        return
    for place, word in enumerate(statement.tokens[:-1]):
        if statement.tokens[place + 1] != "(" or not word.is_name:
            continue
        table = statement.token_at(place - 1) in ("INTO", "JOIN")
        if word not in KNOWN_FUNCTIONS | _BEFORE_BRACKET | _TYPES and not table:
            yield f"the function {word}"


_LOB_COLUMNS = frozenset(
    column.name.upper()
    for table in metadata.sorted_tables
    for column in table.columns
    if isinstance(getattr(column.type, "impl", column.type), sa.Text | sa.LargeBinary)
)


def lob_comparisons(statement: SqlStatement) -> Iterator[str]:
    words = statement.tokens
    start = words.index(SqlToken("WHERE")) if words[0] == "UPDATE" and "WHERE" in words else 0
    for place in range(start, len(words)):
        column, after = words[place], statement.token_at(place + 1)
        if column not in _LOB_COLUMNS or after == ".":  # a table of that name
            continue
        if after in ("=", "<>", "!=", "<", ">", "<=", ">=", "IN", "BETWEEN"):
            yield f"{column} is a large object, which cannot be compared"
        for clause, ends in (("GROUP", ("ORDER", "HAVING")), ("ORDER", ("FETCH",))):
            if clause in words[:place] and not set(ends) & set(
                words[words.index(SqlToken(clause)) : place]
            ):
                yield f"{clause} BY the large object {column}"
        if "CASE" in words[:place]:
            case = len(words) - 1 - words[::-1].index(SqlToken("CASE"), len(words) - place)
            results = {"THEN", "ELSE"} & set(words[case:place])
            if results and "END" not in words[case:place]:
                yield f"CASE gives the large object {column}, which must not mix with other text"
        if statement.token_at(
            words.index(SqlToken("SELECT")) + 1 if "SELECT" in words else -1
        ) == "DISTINCT" and ("FROM" not in words[:place]):
            yield f"DISTINCT of the large object {column}"


# Statements that SQLAlchemy and Treehammer send on connecting.
_ABOUT_THE_SESSION = re.compile(
    r"\s*(?:begin\b|ALTER SESSION SET |SET TRANSACTION |select sys_context\()"
)

LINT_RULES: Sequence[LintRule] = (
    foreign_keywords,
    exists_as_value,
    numeric_conditions,
    table_alias_with_as,
    multi_row_values,
    group_by_alias,
    offset_clauses,
    identifier_lengths,
    column_counts,
    text_lengths,
    foreign_ddl,
    empty_strings,
    list_lengths,
    select_without_from,
    returning_clauses,
    joined_updates,
    unknown_functions,
    lob_comparisons,
)


def find_problems(text: str, rows: int = 1) -> list[str]:
    """List the problems of a statement sent with this number of parameter rows."""
    statement = SqlStatement(text, rows)
    if _ABOUT_THE_SESSION.match(text):
        return []
    return [f"{rule.__name__}: {what}" for rule in LINT_RULES for what in rule(statement)]


#: Longest key in a block of 8 kB, in bytes.
MAX_KEY_BYTES = 6398
_TYPE_WIDTHS = {"NUMBER": 22, "SMALLINT": 22, "BINARY_DOUBLE": 8}
#: Overhead of each column's length, and of the row's address.
_OVERHEAD, _ADDRESS = 2, 10
_Table = dict[str, int]


def key_widths(texts: Sequence[str]) -> dict[str, int]:
    """Compute the bytes that Oracle counts for each index or key, from ordered statements."""
    tables: dict[str, _Table] = {}
    found: dict[str, int] = {}
    for statement in map(SqlStatement, texts):
        words = statement.tokens
        match words[:2]:
            case ["CREATE", "TABLE"]:
                _parse_create(statement, tables.setdefault(words[2], {}), found)
            case ["ALTER", "TABLE"]:
                _parse_alter(words, tables[words[2]])
            case ["CREATE", "INDEX"] | ["CREATE", "UNIQUE"]:
                at = words.index(SqlToken("INDEX"))
                found[words[at + 1]] = _key_width(tables[words[at + 3]], words[at + 5 : -1])
    return found


def _parse_create(statement: SqlStatement, table: _Table, found: dict[str, int]) -> None:
    for item in statement.split_items(3):
        if item[0] != "CONSTRAINT":
            table[item[0]] = _column_bytes(item)
        elif item[2] in ("PRIMARY", "UNIQUE"):
            found[item[1]] = _key_width(table, item[item.index(SqlToken("(")) + 1 : -1])


def _parse_alter(words: Sequence[SqlToken], table: _Table) -> None:
    column = words[4]
    if words[3] == "ADD" and column != "CONSTRAINT":
        table[column] = _column_bytes(words[4:])
    if words[3] == "MODIFY" and words[5] != "NOT":
        table[column] = _column_bytes(words[4:])


def _column_bytes(item: Sequence[SqlToken]) -> int:
    if item[1] == "VARCHAR2":
        return int(item[3]) * (4 if item[4] == "CHAR" else 1)
    # Large objects cannot be indexed at all.
    return _TYPE_WIDTHS.get(item[1], 10**6)


def _key_width(table: _Table, inside: Sequence[SqlToken]) -> int:
    return _ADDRESS + sum(table[word] + _OVERHEAD for word in inside if word != ",")
