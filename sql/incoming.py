"""Files of measurements as record batches: Parquet, and TTrees by ROOT, by uproot, or by us."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet

from treehammer.collectors.metrics import BY_NAME
from treehammer.collectors.record import INT64
from treehammer.errors import FileError
from treehammer.sql.formats import COMPANION
from treehammer.sql.partitions import CAMPAIGN, campaign_of
from treehammer.sql.root_export import LOOKS_UNKNOWN, TREE

#: Measurements that are read, and written, at once.
ROWS = 10_000
#: What an unknown bool is in a tree.
_UNKNOWN_BOOL = 255


class Incoming(Protocol):
    """A file of measurements, open; reading a damaged one raises FileError."""

    @property
    def rows(self) -> int:
        """How many measurements it holds."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of its columns."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of all measurements, in whatever types the file has; unknown is null."""

    def companion(self, name: str) -> Iterator[pa.RecordBatch]:
        """One of the tables that travel along; nothing when the file has none."""


@contextmanager
def opened(file: Path) -> Iterator[Incoming]:
    """Open a file; its suffix tells what it is.

    Raises:
        FileError: it cannot be read.
    """
    kind = _KINDS.get(file.suffix.lower())
    if kind is None:
        raise FileError(
            "is no file that can be imported",
            where=str(file),
            hint=f"Files that end in {' or '.join(_KINDS)} are, and folders of them; CSV is not.",
        )
    if not file.is_file():
        raise FileError("there is no such file", where=str(file))
    with _damage_told(file):
        incoming = kind(file)
    try:
        yield incoming
    finally:
        incoming.close()


@contextmanager
def _damage_told(file: Path) -> Iterator[None]:
    try:
        yield
    except FileError:
        raise
    except Exception as error:  # what uproot raises has nothing in common
        said = " ".join(str(error).split())
        raise FileError(
            f"cannot be read ({said[:300] or type(error).__name__})",
            where=str(file),
            hint="Is it whole? What could be read of it was taken in; nothing else is lost.",
        ) from error


class _Parquet:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = parquet.ParquetFile(path)
        self._about: Mapping[bytes, bytes] = self._file.metadata.metadata or {}
        self._names: list[str] = self._file.schema_arrow.names
        # Parts leave it to the name of their folder; they know it, should they be moved.
        told = self._about.get(CAMPAIGN.encode())
        campaign = campaign_of(path) if told is None else told.decode()
        self._campaign = None if CAMPAIGN in self._names else campaign

    @property
    def rows(self) -> int:
        return int(self._file.metadata.num_rows)

    @property
    def columns(self) -> Sequence[str]:
        return self._names if self._campaign is None else [*self._names, CAMPAIGN]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = [name for name in columns if name in self._names]
        with _damage_told(self._path):
            for batch in self._file.iter_batches(ROWS, columns=names):
                if self._campaign is None:
                    yield batch
                else:
                    campaign = pa.repeat(self._campaign, batch.num_rows)
                    yield batch.append_column(CAMPAIGN, campaign)

    def companion(self, name: str) -> Iterator[pa.RecordBatch]:
        packed = self._about.get((COMPANION + name).encode())
        if packed is not None:
            with _damage_told(self._path):
                yield from pa.ipc.open_stream(base64.b64decode(packed))

    def close(self) -> None:
        self._file.close()


class _Tree:
    def __init__(self, path: Path) -> None:
        # It takes a third of a second to load, which Parquet's users need not pay.
        import uproot

        self._path = path
        self._file = uproot.open(path)
        self._trees = self._file.keys(recursive=False, cycle=False)
        if TREE not in self._trees:
            self.close()
            raise FileError(
                f"has no tree {TREE!r}",
                where=str(path),
                hint=f"It has: {', '.join(self._trees) or 'nothing'}.",
            )
        self._tree = self._file[TREE]

    @property
    def rows(self) -> int:
        return int(self._tree.num_entries)

    @property
    def columns(self) -> Sequence[str]:
        return _columns(self._tree)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with _damage_told(self._path):
            yield from _batches(self._tree, columns)

    def companion(self, name: str) -> Iterator[pa.RecordBatch]:
        if name in self._trees:
            with _damage_told(self._path):
                tree = self._file[name]
                yield from _batches(tree, _columns(tree))

    def close(self) -> None:
        self._file.close()


_KINDS: Mapping[str, type[_Parquet | _Tree]] = {".root": _Tree, ".parquet": _Parquet}


def _columns(tree: Any) -> list[str]:
    """The branches that are columns."""
    # uproot writes the length of each list as a branch of its own.
    counts = (branch.count_branch for branch in tree.branches)
    lengths = {branch.name for branch in counts if branch is not None}
    names = (branch.name for branch in tree.branches)
    return [name for name in names if name not in lengths and name != LOOKS_UNKNOWN]


def _batches(tree: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    told = LOOKS_UNKNOWN in tree.keys(recursive=False)
    wanted = [*columns, LOOKS_UNKNOWN] if told else list(columns)
    for arrays in tree.iterate(wanted, step_size=ROWS, library="ak", how=dict):
        known = _known(_arrow(arrays.pop(LOOKS_UNKNOWN))) if told else {}
        found = [_without_stand_ins(n, _arrow(arrays[n]), known.get(n, ())) for n in columns]
        yield pa.RecordBatch.from_arrays(found, names=list(columns))


def _arrow(values: Any) -> pa.Array:
    import awkward

    column = awkward.to_arrow(values, list_to32=True, string_to32=True, extensionarray=False)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _known(lists: pa.Array) -> dict[str, list[int]]:
    """Column -> rows in which its value is known although it looks unknown."""
    found: dict[str, list[int]] = {}
    for row in np.flatnonzero(pc.not_equal(lists, "").to_numpy(zero_copy_only=False)):
        for name in lists[int(row)].as_py().split(","):
            found.setdefault(name, []).append(int(row))
    return found


def _without_stand_ins(name: str, column: pa.Array, known: Collection[int]) -> pa.Array:
    """Null where a tree has what stands for it; see :mod:`treehammer.sql.root_export`."""
    kind = column.type
    metric = BY_NAME.get(name)
    if pa.types.is_string(kind):
        unknown = pc.equal(column, "")
    elif pa.types.is_list(kind):
        unknown = pc.equal(pc.list_value_length(column), 0)
    elif pa.types.is_floating(kind):
        unknown = pc.is_nan(column)
    elif pa.types.is_uint8(kind) and (metric is None or metric.type == "bool"):
        unknown = pc.equal(column, _UNKNOWN_BOOL)
    elif pa.types.is_int64(kind):
        unknown = pc.equal(column, -INT64)
    else:
        return column
    mask = unknown.to_numpy(zero_copy_only=False).copy()
    mask[list(known)] = False
    return pc.if_else(pa.array(mask), pa.scalar(None, kind), column) if mask.any() else column
