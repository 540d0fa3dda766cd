"""Imports: measurements of other installations, and all that travels with them, into this store.

A measurement enters once, however often and from however many files it comes; see
:class:`treehammer.sql.store.Store`.  What cannot be taken in is named by file, row and column,
and keeps nothing else out.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from treehammer.collectors.metrics import BY_NAME, CATALOGUE
from treehammer.collectors.record import EXTRA_NAME
from treehammer.errors import FileError
from treehammer.sql import merging
from treehammer.sql.arrow import describe
from treehammer.sql.bulk_recording import measurements_of
from treehammer.sql.columns import Problems, WrongType, fit
from treehammer.sql.incoming import Incoming, opened
from treehammer.sql.partitions import parts_of
from treehammer.sql.recording import Added, alike, fingerprint
from treehammer.sql.store import Store
from treehammer.sql.wide import ALL_COLUMNS, EXTRA_PREFIX
from treehammer.terminal import Bars, counted
from treehammer.version import __version__

Add = Callable[[pa.RecordBatch, Problems], Added]

#: The most problems of a file, and identities, that are named one by one.
NAMED = 20


@dataclass
class Imported:
    """What became of one file.

    Attributes:
        file: which.
        new: measurements that were not there.
        known: those that were, with the same content.
        conflicting: identities that were there with other content, which stays; the first of them.
        conflicts: how many of these.
        invalid: measurements that cannot be taken in.
        campaigns: that were not there.
        problems: what cannot be taken in and why; the first of them.
        lacking: columns of the catalogue that the file lacks: unknown in all its rows.
        ignored: columns of the file that this version does not know.
    """

    file: Path
    new: int = 0
    known: int = 0
    conflicts: int = 0
    invalid: int = 0
    campaigns: int = 0
    conflicting: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lacking: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        """What a user should know beside numbers and problems."""
        told = [
            f"{id_} came with other content than before; the first stays"
            for id_ in self.conflicting
        ]
        if self.conflicts > len(told):
            told.append(f"and {self.conflicts - len(told)} more")
        if self.lacking:
            told.append(f"columns that it lacks, unknown in its rows: {_listed(self.lacking)}")
        if self.ignored:
            told.append(f"columns that were left out: {_listed(self.ignored)}")
        if self.invalid > len(self.problems):
            told.append(f"more rows that are not valid: {self.invalid - len(self.problems)}")
        return [f"{self.file}: {line}" for line in told]


@dataclass(frozen=True)
class File:
    """One file to import, and how many measurements it must have, where that is known."""

    path: Path
    rows: int | None = None


def files_of(paths: Iterable[Path]) -> list[File]:
    """The files, and those of folders; a part that its folder lists and lacks is named later.

    Raises:
        FileError: a folder has none, or its list cannot be read.
    """
    found: list[File] = []
    for path in paths:
        if not path.is_dir():
            found.append(File(path))
            continue
        parts = [File(part, rows) for part, rows in parts_of(path)]
        if not parts:
            raise FileError(
                "no file in this folder can be imported",
                where=str(path),
                hint="Files that end in .root or .parquet are.",
            )
        found += parts
    return found


def import_files(
    store: Store, files: Sequence[File], *, ignore_unknown: bool, dry_run: bool, bars: Bars
) -> list[Imported]:
    """Take in files, one after the other; a file that cannot be read keeps no other out.

    Args:
        store: to fill.
        files: see :func:`files_of`.
        ignore_unknown: leave out columns that this version does not know, instead of the file.
        dry_run: only count; nothing is written.
        bars: opens the bar that moves with the rows.

    Raises:
        StoreError: the database refuses; importing again takes in the rest.
    """
    found: list[Imported] = []
    campaigns: set[str] | None = set() if dry_run else None
    with (
        _counting(store) if dry_run else nullcontext(store.add_table) as add,
        bars("Importing", sum(_rows(file) or 0 for file in files)) as step,
    ):
        before = 0
        for file in files:
            done = Imported(file.path)
            found.append(done)
            try:
                with opened(file.path) as incoming:
                    _require_whole(file, incoming)
                    columns = _columns(file.path, incoming.columns, done, ignore_unknown)
                    for row in _take_in(add, incoming, columns, done):
                        step(before + row)
                    before += incoming.rows
                    done.campaigns = merging.merge(store, incoming, campaigns)
            except FileError as error:
                done.problems.append(str(error) if error.where else f"{file.path}: {error}")
    if not dry_run:
        # Also without a new measurement: a replica may have been found bad that was read long ago.
        store.mark_bad_replicas()
    return found


def is_readable(file: File) -> bool:
    """Whether something might be taken in from a file."""
    return _rows(file) is not None


def _rows(file: File) -> int | None:
    """How many rows a file has; None when it cannot be read, which is told where it is taken in."""
    try:
        with opened(file.path) as incoming:
            return incoming.rows
    except FileError:
        return None


def _require_whole(file: File, incoming: Incoming) -> None:
    if file.rows is not None and file.rows != incoming.rows:
        raise FileError(
            f"has {counted(incoming.rows, 'measurement')}, where its folder lists {file.rows}",
            where=str(file.path),
            hint="Was the folder copied completely, and is it of one export?",
        )


def _columns(
    path: Path, names: Sequence[str], done: Imported, ignore_unknown: bool
) -> dict[str, str]:
    """The columns to read, each with its kind."""
    kinds = {name: BY_NAME[name].type for name in names if name in BY_NAME}
    extras = (name.removeprefix(EXTRA_PREFIX) for name in names if name.startswith(EXTRA_PREFIX))
    kinds |= {EXTRA_PREFIX + name: "float" for name in extras if re.fullmatch(EXTRA_NAME, name)}
    done.ignored = tuple(name for name in names if name not in kinds)
    done.lacking = tuple(metric.name for metric in CATALOGUE if metric.name not in kinds)
    if required := [name for name in done.lacking if BY_NAME[name].required]:
        raise FileError(
            f"lacks what every measurement has: {_listed(required)}",
            where=str(path),
            hint="It holds no measurements of ours, or not all of their columns.",
        )
    if done.ignored and not ignore_unknown:
        raise FileError(
            f"has columns that this version ({__version__}) does not know: {_listed(done.ignored)}",
            where=str(path),
            hint="Import it with the version that wrote it or a newer one; or leave these columns "
            "out for good: --ignore-unknown.",
        )
    return kinds


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _take_in(
    add: Add, incoming: Incoming, kinds: Mapping[str, str], done: Imported
) -> Iterator[int]:
    """Take in what is valid, and name the rest; yields how many rows were looked at."""
    first = 0
    for batch in incoming.batches([*kinds]):
        problems: Problems = defaultdict(list)
        added = add(_fitted(done.file, batch, kinds, problems), problems)
        done.new += added.new
        done.known += added.known
        done.conflicts += len(added.conflicting)
        done.conflicting += added.conflicting[: NAMED - len(done.conflicting)]
        done.invalid += len(problems)
        for row, reasons in sorted(problems.items()):
            if len(done.problems) < NAMED:
                done.problems.append(f"{done.file}: row {first + row + 1}: {'; '.join(reasons)}")
        first += batch.num_rows
        yield first


def _fitted(
    path: Path, batch: pa.RecordBatch, kinds: Mapping[str, str], problems: Problems
) -> pa.RecordBatch:
    """Every column of a measurement, in its type."""
    schema = describe(list(dict.fromkeys([*ALL_COLUMNS, *kinds])), {})
    columns = []
    for name in schema.names:
        if name not in kinds:
            columns.append(pa.nulls(batch.num_rows, schema.field(name).type))
            continue
        try:
            columns.append(fit(batch.column(name), name, kinds[name], problems))
        except WrongType as error:
            raise FileError(
                f"column {name} holds {error}, where {kinds[name]} is expected", where=str(path)
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _counting(store: Store) -> Iterator[Add]:
    """Counts what adding measurements would do, without doing it."""
    # What would be there by now, in a file that SQLite removes: there may be millions.
    with closing(sqlite3.connect("", isolation_level=None)) as seen:
        yield _Counting(store, seen).add


class _Counting:
    def __init__(self, store: Store, seen: sqlite3.Connection) -> None:
        self._store = store
        self._seen = seen
        self._seen.execute("CREATE TABLE seen (id TEXT PRIMARY KEY, content BLOB) WITHOUT ROWID")

    def add(self, batch: pa.RecordBatch, problems: Problems) -> Added:
        """What :meth:`treehammer.sql.store.Store.add_table` would have answered."""
        rows = [row for row in range(batch.num_rows) if row not in problems]
        measurements = measurements_of(batch, rows, problems)
        others = []
        known = 0
        conflicting: list[str] = []
        for item in measurements:
            content = fingerprint(item)
            done = self._seen.execute(
                "INSERT OR IGNORE INTO seen VALUES (?, ?)", (item.id, content)
            )
            if done.rowcount:
                others.append(item)
                continue
            before = self._seen.execute("SELECT content FROM seen WHERE id = ?", (item.id,))
            if alike(before.fetchone()[0], content):
                known += 1
            else:
                conflicting.append(item.id)
        added = self._store.would_add(others)
        return Added(added.new, added.known + known, (*added.conflicting, *conflicting))
