"""Readers of measurement files: Parquet, and TTrees by ROOT, uproot or Treehammer."""

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

from treehammer.collectors.record.metric_catalogue import INT64_LIMIT, METRICS_BY_NAME
from treehammer.errors import MeasurementFileError
from treehammer.sql.transfer.arrow_columns import ID_COLUMN, OPERATIONS_COLUMN
from treehammer.sql.transfer.companion_tables import (
    NESTED_FIELD,
    OPERATION_TABLE,
    UNSTORED_COLUMNS,
    OperationTreeIndex,
    convert_operations,
)
from treehammer.sql.transfer.export import CAMPAIGN_COLUMN, campaign_from_path
from treehammer.sql.transfer.file_writers import AMBIGUOUS_ROWS_KEY, COMPANION_PREFIX, TREE_NAME

#: Measurements that are read, and written, at once.
READ_ROWS = 10_000
#: Null marker of bools in a tree.
_NULL_BOOL = 255


class MeasurementFile(Protocol):
    """An open file of measurements; reading a damaged one raises MeasurementFileError."""

    @property
    def rows(self) -> int:
        """Number of measurements."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of its columns."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read columns of all measurements in the types of the file; unknown values are null."""

    def companion(self, name: str) -> Iterator[pa.RecordBatch]:
        """Read a companion table; nothing if the file lacks it."""


@contextmanager
def open_measurement_file(file: Path) -> Iterator[MeasurementFile]:
    """Open a file in the format of its suffix.

    Raises:
        MeasurementFileError: it cannot be read.
    """
    if not file.is_file():
        raise MeasurementFileError("the file does not exist", where=str(file))
    kind = _READERS.get(file.suffix.lower())
    if kind is None:
        raise MeasurementFileError(
            "unsupported file format",
            where=str(file),
            hint=f"Give files that end in {' or '.join(_READERS)}, or folders of them; CSV cannot be imported.",
        )
    with _translate_damage(file):
        incoming = kind(file)
    try:
        yield incoming
    finally:
        incoming.close()


@contextmanager
def _translate_damage(file: Path) -> Iterator[None]:
    try:
        yield
    except MeasurementFileError:
        raise
    except Exception as error:  # exceptions of uproot have no common base
        message = " ".join(str(error).split())
        raise MeasurementFileError(
            f"cannot be read ({message[:300] or type(error).__name__})",
            where=str(file),
            hint="The file may be incomplete. Its readable rows were imported.",
        ) from error


class _ParquetReader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _open_parquet(path)
        self._about: Mapping[bytes, bytes] = self._file.metadata.metadata or {}
        self._names: list[str] = self._file.schema_arrow.names
        # Files of a partitioned export omit the column, but have it in their metadata.
        stored = self._about.get(CAMPAIGN_COLUMN.encode())
        campaign = campaign_from_path(path) if stored is None else stored.decode()
        self._campaign = None if CAMPAIGN_COLUMN in self._names else campaign

    @property
    def rows(self) -> int:
        return int(self._file.metadata.num_rows)

    @property
    def columns(self) -> Sequence[str]:
        return self._names if self._campaign is None else [*self._names, CAMPAIGN_COLUMN]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = [name for name in columns if name in self._names]
        with _translate_damage(self._path):
            for batch in self._file.iter_batches(_batch_rows(columns), columns=names):
                if self._campaign is None:
                    yield batch
                else:
                    campaign = pa.repeat(self._campaign, batch.num_rows)
                    yield batch.append_column(CAMPAIGN_COLUMN, campaign)

    def companion(self, name: str) -> Iterator[pa.RecordBatch]:
        packed = self._about.get((COMPANION_PREFIX + name).encode())
        if packed is not None:
            with _translate_damage(self._path):
                yield from pa.ipc.open_stream(base64.b64decode(packed))

    def close(self) -> None:
        self._file.close()


def _open_parquet(path: Path) -> parquet.ParquetFile:
    """Open a file whose texts are read as dictionaries of the distinct ones."""
    layout = parquet.read_metadata(path)
    schema = layout.schema.to_arrow_schema()
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    return parquet.ParquetFile(path, metadata=layout, read_dictionary=texts)


class _TreeReader:
    def __init__(self, path: Path) -> None:
        # It takes a third of a second to load, which Parquet's users need not pay.
        import uproot

        self._path = path
        self._file = uproot.open(path)
        self._trees = self._file.keys(recursive=False, cycle=False)
        if TREE_NAME not in self._trees:
            self.close()
            raise MeasurementFileError(
                f"has no tree {TREE_NAME!r}",
                where=str(path),
                hint=f"It has: {', '.join(self._trees) or 'nothing'}.",
            )
        self._tree = self._file[TREE_NAME]
        self._operations = (
            _OperationTree(self._file[OPERATION_TABLE]) if OPERATION_TABLE in self._trees else None
        )

    @property
    def rows(self) -> int:
        return int(self._tree.num_entries)

    @property
    def columns(self) -> Sequence[str]:
        nested = [OPERATIONS_COLUMN] if self._operations else []
        return [*_column_branches(self._tree), *nested]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        plain = [name for name in columns if name != OPERATIONS_COLUMN]
        with _translate_damage(self._path):
            for batch in _read_tree_batches(self._tree, plain, step=_batch_rows(columns)):
                if self._operations and OPERATIONS_COLUMN in columns:
                    nested = self._operations.read_nested(batch.column(ID_COLUMN).to_pylist())
                    yield batch.append_column(OPERATIONS_COLUMN, nested)
                else:
                    yield batch

    def companion(self, name: str) -> Iterator[pa.RecordBatch]:
        if name in self._trees:
            with _translate_damage(self._path):
                tree = self._file[name]
                yield from _read_tree_batches(tree, _column_branches(tree))

    def close(self) -> None:
        self._file.close()


class _OperationTree:
    """The tree of operations, read by measurement."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._columns = [n for n in _column_branches(tree) if n not in UNSTORED_COLUMNS]
        self._index: OperationTreeIndex | None = None

    def read_nested(self, ids: Sequence[str]) -> pa.Array:
        """Read the nested column of these measurements."""
        if self._index is None:
            self._index = OperationTreeIndex()
            for batch in _read_tree_batches(self._tree, [ID_COLUMN, "line"]):
                self._index.add_rows(*(column.to_pylist() for column in batch.columns))
        span = self._index.find_span(ids)
        chunks = [
            convert_operations(batch)
            for batch in _read_tree_batches(self._tree, self._columns, span=span)
        ]
        rows = pa.concat_arrays(chunks) if chunks else pa.array([], NESTED_FIELD.type.value_type)
        return self._index.nest_rows(ids, span, rows)


def _batch_rows(columns: Sequence[str]) -> int:
    """Return the number of measurements that are read at once; those with operations are large."""
    return READ_ROWS if OPERATIONS_COLUMN not in columns else max(READ_ROWS // 20, 1)


_READERS: Mapping[str, type[_ParquetReader | _TreeReader]] = {
    ".root": _TreeReader,
    ".parquet": _ParquetReader,
}


def _column_branches(tree: Any) -> list[str]:
    """Return the branches that are columns."""
    # uproot writes the length of each list as a branch of its own.
    counts = (branch.count_branch for branch in tree.branches)
    lengths = {branch.name for branch in counts if branch is not None}
    names = (branch.name for branch in tree.branches)
    return [name for name in names if name not in lengths and name != AMBIGUOUS_ROWS_KEY]


def _read_tree_batches(
    tree: Any, columns: Sequence[str], *, span: range | None = None, step: int | None = None
) -> Iterator[pa.RecordBatch]:
    span = range(tree.num_entries) if span is None else span
    has_ambiguous = AMBIGUOUS_ROWS_KEY in tree.keys(recursive=False)
    branches = [*columns, AMBIGUOUS_ROWS_KEY] if has_ambiguous else list(columns)
    for arrays in tree.iterate(
        branches,
        entry_start=span.start,
        entry_stop=span.stop,
        step_size=step or READ_ROWS,
        library="ak",
        how=dict,
    ):
        known_rows = (
            _find_known_rows(_to_arrow(arrays.pop(AMBIGUOUS_ROWS_KEY))) if has_ambiguous else {}
        )
        restored = [_restore_nulls(n, _to_arrow(arrays[n]), known_rows.get(n, ())) for n in columns]
        yield pa.RecordBatch.from_arrays(restored, names=list(columns))


def _to_arrow(values: Any) -> pa.Array:
    import awkward

    column = awkward.to_arrow(values, list_to32=True, string_to32=True, extensionarray=False)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _find_known_rows(lists: pa.Array) -> dict[str, list[int]]:
    """Map columns to the rows whose value is known although it looks unknown."""
    known_rows: dict[str, list[int]] = {}
    for row in np.flatnonzero(pc.not_equal(lists, "").to_numpy(zero_copy_only=False)):
        for name in lists[int(row)].as_py().split(","):
            known_rows.setdefault(name, []).append(int(row))
    return known_rows


def _restore_nulls(name: str, column: pa.Array, known_rows: Collection[int]) -> pa.Array:
    """Replace null markers of a tree by null; see :mod:`treehammer.sql.transfer.file_writers`."""
    kind = column.type
    metric = METRICS_BY_NAME.get(name)
    if pa.types.is_string(kind):
        unknown = pc.equal(column, "")
    elif pa.types.is_list(kind):
        unknown = pc.equal(pc.list_value_length(column), 0)
    elif pa.types.is_floating(kind):
        unknown = pc.is_nan(column)
    elif pa.types.is_uint8(kind) and (metric is None or metric.type == "bool"):
        unknown = pc.equal(column, _NULL_BOOL)
    elif pa.types.is_int64(kind):
        unknown = pc.equal(column, -INT64_LIMIT)
    else:
        return column
    mask = unknown.to_numpy(zero_copy_only=False).copy()
    mask[list(known_rows)] = False
    return pc.if_else(pa.array(mask), pa.scalar(None, kind), column) if mask.any() else column
