"""What Oracle 19c refuses although H2 takes it, found in the text of a statement.

Every rule is a function from the words of a statement to what is wrong with it; ``test_sql_oracle_lint``
shows each of them a statement that it must refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import sqlalchemy as sa

from treehammer.sql.schema import metadata

LONGEST_NAME = 30
MOST_IN_LIST = 1000
MOST_BINDS = 65_535
MOST_COLUMNS = 1000
MOST_BYTES = 4000

# Oracle Database SQL Language Reference, appendix "Oracle SQL Reserved Words".
RESERVED = frozenset(
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
#: Functions that are used, each of them looked up in Oracle's reference.
FUNCTIONS = frozenset(
    ("CAST", "COALESCE", "COUNT", "GETLENGTH", "MAX", "MIN", "NULLIF", "SUBSTR", "SUM")
)
# What may stand before a bracket and is no function.
_BEFORE_BRACKET = frozenset(
    re.findall(
        r"\w+",
        "AND BY DISTINCT ELSE EXISTS FROM IN INTO JOIN KEY NOT ON OR SELECT SET THEN UNIQUE VALUES "
        "WHEN WHERE ALL ADD UNION MINUS INTERSECT",
    )
)
_TYPES = frozenset(("NUMBER", "SMALLINT", "VARCHAR2", "CLOB", "BLOB", "BINARY_DOUBLE"))
# Words of other databases.
_FOREIGN = {
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


class Word(str):
    """A piece of a statement; a name or keyword of any case is in upper case."""

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
class Statement:
    """The words of one statement."""

    text: str
    rows: int = 1

    @cached_property
    def words(self) -> list[Word]:
        found = _PIECE.findall(self.text)
        return [Word(p if p[0] in "':\"" else p.upper()) for p in found]

    def after(self, *names: str) -> Iterator[int]:
        """Places just behind these words, one after the other."""
        for place in range(len(self.words) - len(names) + 1):
            if tuple(self.words[place : place + len(names)]) == names:
                yield place + len(names)

    def word(self, place: int) -> Word:
        return self.words[place] if 0 <= place < len(self.words) else Word(" ")

    def bracket(self, place: int) -> int:
        """The place just behind the bracket that opens there."""
        depth = 0
        for end in range(place, len(self.words)):
            depth += {"(": 1, ")": -1}.get(self.words[end], 0)
            if not depth:
                return end + 1
        return len(self.words)

    def items(self, place: int) -> list[list[Word]]:
        """What the commas of the bracket that opens there part."""
        parts: list[list[Word]] = [[]]
        depth = 0
        for word in self.words[place + 1 : self.bracket(place) - 1]:
            depth += {"(": 1, ")": -1}.get(word, 0)
            if word == "," and not depth:
                parts.append([])
            else:
                parts[-1].append(word)
        return parts


Rule = Callable[[Statement], Iterator[str]]


def words_of_others(statement: Statement) -> Iterator[str]:
    for word in statement.words:
        if word in _FOREIGN:
            yield _FOREIGN[word]
        if word in ("::", ";", "%", "`"):
            yield f"{word} means nothing to Oracle"


def exists_as_a_value(statement: Statement) -> Iterator[str]:
    for place in (*statement.after("SELECT"), *statement.after("SELECT", "NOT")):
        while statement.word(place) == "(":
            place += 1  # noqa: PLW2901 - brackets are looked through
        if statement.word(place) == "EXISTS":
            yield "SELECT EXISTS: 19c has no BOOLEAN to give"


_FLAGS = frozenset(
    column.name.upper()
    for table in metadata.sorted_tables
    for column in table.columns
    if isinstance(column.type, sa.Boolean)
)


def numbers_as_conditions(statement: Statement) -> Iterator[str]:
    words = statement.words
    for place, word in enumerate(words):
        end = place + 2 if statement.word(place + 1) == "." else place
        before, after = statement.word(place - 1), statement.word(end + 1)
        column = statement.word(end)
        if before == "(":
            before = statement.word(place - 2)
        condition = before in ("WHERE", "AND", "OR", "NOT", "WHEN", "ON")
        compared = after in ("=", "<", ">", "<=", ">=", "<>", "!=", "IS", "IN", "BETWEEN", "LIKE")
        if column in _FLAGS and condition and not compared and (word == column or end > place):
            yield f"{column} is a number, no condition"
        if word in ("0", "1"):
            if before == "IS" or (before == "NOT" and statement.word(place - 2) == "IS"):
                yield f"IS {word}"
            elif condition and not compared and "BETWEEN" not in words[:place]:
                yield f"{before} {word}: a number is no condition"


def alias_of_a_table(statement: Statement) -> Iterator[str]:
    for place in (*statement.after("FROM"), *statement.after("JOIN")):
        end = statement.bracket(place) if statement.word(place) == "(" else place + 1
        if statement.word(end) == "AS":
            yield f"AS before the alias {statement.word(end + 1)} of a table"


def many_rows_of_values(statement: Statement) -> Iterator[str]:
    for place in statement.after("VALUES"):
        if statement.word(place) == "(" and statement.word(statement.bracket(place)) == ",":
            yield "more than one row of VALUES"


def grouping_by_an_alias(statement: Statement) -> Iterator[str]:
    aliases = {statement.word(place) for place in statement.after("AS")}
    for place in statement.after("GROUP", "BY"):
        for at in range(place, len(statement.words)):
            word = statement.word(at)
            if word in ("ORDER", "HAVING", "UNION", ")") and statement.word(at - 1) != "(":
                break
            starts = statement.word(at - 1) in ("BY", ",")
            ends = statement.word(at + 1) not in (".", "(")
            if starts and ends and (word in aliases or word.isdigit()):
                yield f"GROUP BY the alias or number {word}"


def offsets(statement: Statement) -> Iterator[str]:
    for place in statement.after("OFFSET"):
        if statement.word(place + 1) not in ("ROW", "ROWS"):
            yield "OFFSET without ROWS"


def names(statement: Statement) -> Iterator[str]:
    for place, word in enumerate(statement.words):
        if word[0] == '"':
            yield f"the name {word} is quoted"
        if word.is_name and len(word) > LONGEST_NAME:
            yield f"the name {word} has {len(word)} characters"
        if word.is_bind and word[1] != '"':
            if len(word) > LONGEST_NAME * 4:
                yield f"the parameter {word} has {len(word)} characters"
            if word[1:].upper() in RESERVED:
                yield f"the parameter {word} is a reserved word"
        named = statement.word(place - 1) in (".", "AS") or (
            statement.word(place - 2) in ("CREATE", "ALTER") and word != "ON"
        )
        a_type = word in _TYPES and statement.word(place - 1) == "AS"  # of a CAST
        if named and word in RESERVED and not a_type:
            yield f"{word} is a reserved word"


def columns(statement: Statement) -> Iterator[str]:
    if statement.words[:2] == ["CREATE", "TABLE"]:
        items = [i for i in statement.items(3) if i[0] not in ("CONSTRAINT", "PRIMARY", "UNIQUE")]
        found = [(item[0], item[1]) for item in items]
    else:
        found = [
            (statement.word(place), statement.word(place + 1))
            for verb in ("ADD", "MODIFY")
            for place in statement.after(verb)
            if statement.words[0] == "ALTER" and statement.word(place) != "CONSTRAINT"
        ]
    if len(found) > MOST_COLUMNS:
        yield f"{len(found)} columns"
    for name, kind in found:
        if name in RESERVED:
            yield f"{name} is a reserved word"
        if kind not in _TYPES and kind not in ("NOT", "NULL"):
            yield f"the type {kind} of {name}"


def lengths(statement: Statement) -> Iterator[str]:
    for place in statement.after("VARCHAR2"):
        if statement.word(place) != "(":
            yield "VARCHAR2 without a length"
            continue
        length, unit = int(statement.word(place + 1)), statement.word(place + 2)
        if unit not in ("CHAR", "BYTE"):
            yield "VARCHAR2 in whatever the session counts"
        if length * (4 if unit == "CHAR" else 1) > MOST_BYTES:
            yield f"VARCHAR2({length} {unit}) may need more than {MOST_BYTES} bytes"


def dialects_of_ddl(statement: Statement) -> Iterator[str]:
    if statement.words[0] == "ALTER":
        for place in (*statement.after("ADD", "COLUMN"), *statement.after("ALTER", "COLUMN")):
            yield f"{' '.join(statement.words[place - 2 : place])}"


def empty_texts(statement: Statement) -> Iterator[str]:
    if "''" in statement.words:
        yield "'' is NULL"


def lists(statement: Statement) -> Iterator[str]:
    for place in statement.after("IN"):
        if statement.word(place) == "(" and len(statement.items(place)) > MOST_IN_LIST:
            yield f"IN with {len(statement.items(place))} values"
    binds = sum(word.is_bind for word in statement.words)
    if binds > MOST_BINDS:
        yield f"{binds} parameters"


def selecting_from_nothing(statement: Statement) -> Iterator[str]:
    for place in statement.after("SELECT"):
        depth = 0
        for at in range(place, len(statement.words) + 1):
            word = statement.word(at)
            depth += {"(": 1, ")": -1}.get(word, 0)
            if word == "FROM" and not depth:
                break
            if depth < 0 or word == " ":
                yield "SELECT without FROM"
                break


def returning(statement: Statement) -> Iterator[str]:
    if "RETURNING" in statement.words:
        if statement.rows > 1:
            yield "RETURNING for many rows"
        if "INTO" not in statement.words[statement.words.index(Word("RETURNING")) :]:
            yield "RETURNING without INTO"


def joined_changes(statement: Statement) -> Iterator[str]:
    if statement.words[0] in ("UPDATE", "DELETE"):
        depth = 0
        for at, word in enumerate(statement.words):
            depth += {"(": 1, ")": -1}.get(word, 0)
            if not depth and (word == "USING" or (word == "FROM" and at > 1)):
                yield f"{statement.words[0]} … {word}"


def functions(statement: Statement) -> Iterator[str]:
    if statement.words[0] in ("CREATE", "ALTER"):
        return
    for place, word in enumerate(statement.words[:-1]):
        if statement.words[place + 1] != "(" or not word.is_name:
            continue
        table = statement.word(place - 1) in ("INTO", "JOIN")
        if word not in FUNCTIONS | _BEFORE_BRACKET | _TYPES and not table:
            yield f"the function {word}"


_LOBS = frozenset(
    column.name.upper()
    for table in metadata.sorted_tables
    for column in table.columns
    if isinstance(getattr(column.type, "impl", column.type), sa.Text | sa.LargeBinary)
)


def large_objects(statement: Statement) -> Iterator[str]:
    words = statement.words
    start = words.index(Word("WHERE")) if words[0] == "UPDATE" and "WHERE" in words else 0
    for place in range(start, len(words)):
        column, after = words[place], statement.word(place + 1)
        if column not in _LOBS or after == ".":  # a table of that name
            continue
        if after in ("=", "<>", "!=", "<", ">", "<=", ">=", "IN", "BETWEEN"):
            yield f"{column} is a large object, which cannot be compared"
        for clause, ends in (("GROUP", ("ORDER", "HAVING")), ("ORDER", ("FETCH",))):
            if clause in words[:place] and not set(ends) & set(
                words[words.index(Word(clause)) : place]
            ):
                yield f"{clause} BY the large object {column}"
        if "CASE" in words[:place]:
            case = len(words) - 1 - words[::-1].index(Word("CASE"), len(words) - place)
            results = {"THEN", "ELSE"} & set(words[case:place])
            if results and "END" not in words[case:place]:
                yield f"CASE gives the large object {column}, which must not mix with other text"
        if statement.word(
            words.index(Word("SELECT")) + 1 if "SELECT" in words else -1
        ) == "DISTINCT" and ("FROM" not in words[:place]):
            yield f"DISTINCT of the large object {column}"


# What SQLAlchemy and Treehammer say when they connect.
_ABOUT_THE_SESSION = re.compile(
    r"\s*(?:begin\b|ALTER SESSION SET |SET TRANSACTION |select sys_context\()"
)

RULES: Sequence[Rule] = (
    words_of_others,
    exists_as_a_value,
    numbers_as_conditions,
    alias_of_a_table,
    many_rows_of_values,
    grouping_by_an_alias,
    offsets,
    names,
    columns,
    lengths,
    dialects_of_ddl,
    empty_texts,
    lists,
    selecting_from_nothing,
    returning,
    joined_changes,
    functions,
    large_objects,
)


def problems(text: str, rows: int = 1) -> list[str]:
    """What is wrong with a statement that is sent with so many rows of parameters."""
    statement = Statement(text, rows)
    if _ABOUT_THE_SESSION.match(text):
        return []
    return [f"{rule.__name__}: {what}" for rule in RULES for what in rule(statement)]
