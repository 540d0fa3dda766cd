"""Tables of recorded results: CSV files with one dataclass for each row."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "float": float,
    "int": int,
    "bool": "True".__eq__,
}


def read_rows(path: Path, kind: type[T]) -> list[T]:
    """Read a table; no rows if it does not exist."""
    if not path.exists():
        return []
    parsers = {field.name: _PARSERS[str(field.type)] for field in fields(kind)}
    with path.open(newline="", encoding="utf-8") as stream:
        rows = csv.DictReader(stream)
        return [kind(**{name: parsers[name](text) for name, text in row.items()}) for row in rows]


def append_rows(path: Path, rows: Sequence[T]) -> None:
    """Append rows to a table, which is created with its header if missing."""
    _write_rows(path, [asdict(row) for row in rows], "a")


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a table atomically; without rows it stays unchanged."""
    aside = path.with_suffix(".part")
    aside.unlink(missing_ok=True)
    _write_rows(aside, rows, "w")
    if rows:
        aside.replace(path)


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]], mode: str) -> None:
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open(mode, newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)
