"""Widths of index keys as Oracle counts them; it refuses indexes that are too wide (ORA-01450)."""

from __future__ import annotations

from collections.abc import Sequence

from oracle_lint import SqlStatement, SqlToken

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
