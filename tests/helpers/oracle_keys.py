"""How wide Oracle counts the keys of indexes: one that may be too wide cannot be made (ORA-01450)."""

from __future__ import annotations

from collections.abc import Sequence

from oracle_lint import Statement, Word

#: Bytes of a key that a block of 8 kB holds.
WIDEST = 6398
_WIDTHS = {"NUMBER": 22, "SMALLINT": 22, "BINARY_DOUBLE": 8}
#: Of each column's length, and of the row's address.
_OVERHEAD, _ADDRESS = 2, 10
_Table = dict[str, int]


def widths(texts: Sequence[str]) -> dict[str, int]:
    """Index or key -> the bytes that Oracle counts for it, from statements in their order."""
    tables: dict[str, _Table] = {}
    found: dict[str, int] = {}
    for statement in map(Statement, texts):
        words = statement.words
        match words[:2]:
            case ["CREATE", "TABLE"]:
                _create(statement, tables.setdefault(words[2], {}), found)
            case ["ALTER", "TABLE"]:
                _alter(words, tables[words[2]])
            case ["CREATE", "INDEX"] | ["CREATE", "UNIQUE"]:
                at = words.index(Word("INDEX"))
                found[words[at + 1]] = _width(tables[words[at + 3]], words[at + 5 : -1])
    return found


def _create(statement: Statement, table: _Table, found: dict[str, int]) -> None:
    for item in statement.items(3):
        if item[0] != "CONSTRAINT":
            table[item[0]] = _bytes(item)
        elif item[2] in ("PRIMARY", "UNIQUE"):
            found[item[1]] = _width(table, item[item.index(Word("(")) + 1 : -1])


def _alter(words: Sequence[Word], table: _Table) -> None:
    column = words[4]
    if words[3] == "ADD" and column != "CONSTRAINT":
        table[column] = _bytes(words[4:])
    if words[3] == "MODIFY" and words[5] != "NOT":
        table[column] = _bytes(words[4:])


def _bytes(item: Sequence[Word]) -> int:
    if item[1] == "VARCHAR2":
        return int(item[3]) * (4 if item[4] == "CHAR" else 1)
    # Large objects cannot be indexed at all.
    return _WIDTHS.get(item[1], 10**6)


def _width(table: _Table, inside: Sequence[Word]) -> int:
    return _ADDRESS + sum(table[word] + _OVERHEAD for word in inside if word != ",")
