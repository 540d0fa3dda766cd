"""Files of measurements to import: Parquet, and TTrees by ROOT, uproot or Treehammer.

A file gives the documents of its measurements, in Python's values; the record alone decides whether
they are valid. Types that other programs write are accepted where they can hold the same values.
NaN is unknown: other programs write it for unknown values.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_type_hints
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from pyarrow import compute as pc
from pyarrow import parquet

from treehammer.collectors.record.metric_catalogue import (
    CATALOGUE,
    INT64_LIMIT,
    MAX_LONG_TEXT,
    METRICS_BY_NAME,
)
from treehammer.collectors.record.operation_steps import OPERATION_METRICS, QUANTILES
from treehammer.collectors.record.value_checks import is_storable
from treehammer.errors import MeasurementFileError, StoreError
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX
from treehammer.sql.core.rows import AttemptRow, CampaignRow, InstructionRow, JobRow, ReplicaRow
from treehammer.sql.core.schema import metadata
from treehammer.sql.transfer.arrow_stream import (
    COMPANION_KINDS,
    FIELD_TYPES,
    ID_COLUMN,
    OPERATION_TABLE,
    OPERATIONS_COLUMN,
)
from treehammer.sql.transfer.export import CAMPAIGN_COLUMN
from treehammer.sql.transfer.file_writers import AMBIGUOUS_ROWS_KEY, COMPANION_PREFIX, TREE_NAME

CompanionKind = TypeVar(
    "CompanionKind", CampaignRow, JobRow, AttemptRow, ReplicaRow, InstructionRow
)
#: Measurements that are read at once, and with operations, which are large.
READ_ROWS, NESTED_READ_ROWS = 2_000, 500
#: Null marker of bools in a tree.
_NULL_BOOL = 255
#: The largest whole number up to which a float has every one.
_MAX_EXACT_INT = 2.0**53
# Databases, and so exported files, keep the empty text of a required metric as null.
_EMPTY_TEXTS = {
    metric.name: ""
    for metric in CATALOGUE
    if metric.required and metric.type == "text" and not metric.is_identity
}
_OPERATION_TEXTS = tuple(metric.name for metric in OPERATION_METRICS if metric.type == "text")
_OPERATION_TYPES = {metric.name: metric.type for metric in OPERATION_METRICS}
#: Columns of the flat table that are not part of the record.
_UNSTORED_COLUMNS = (ID_COLUMN, "line", *QUANTILES)


class MeasurementFile(ABC):
    """An open file of measurements; reading a damaged one raises MeasurementFileError.

    Attributes:
        rows: number of measurements.
        columns: the names of its columns.
    """

    rows: int
    columns: Sequence[str]

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read columns of all measurements in the types of the file; unknown values are null."""

    @abstractmethod
    def companion(self, name: str) -> Iterator[pa.RecordBatch]:
        """Read a companion table; nothing if the file lacks it."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


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


def _batch_rows(columns: Sequence[str]) -> int:
    return NESTED_READ_ROWS if OPERATIONS_COLUMN in columns else READ_ROWS


def _campaign_from_path(file: Path) -> str | None:
    """Return the campaign that the name of a file's folder gives."""
    name, _, value = file.absolute().parent.name.partition("=")
    return unquote(value) if name == CAMPAIGN_COLUMN and value else None


class _ParquetReader(MeasurementFile):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = parquet.ParquetFile(path)
        self._about: Mapping[bytes, bytes] = self._file.metadata.metadata or {}
        self._names: list[str] = self._file.schema_arrow.names
        # Files of a partitioned export omit the column, but have it in their metadata.
        name = self._about.get(CAMPAIGN_COLUMN.encode())
        campaign = _campaign_from_path(path) if name is None else name.decode()
        self._campaign = None if CAMPAIGN_COLUMN in self._names else campaign
        self.rows = self._file.metadata.num_rows
        self.columns = self._names if self._campaign is None else [*self._names, CAMPAIGN_COLUMN]

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


class _TreeReader(MeasurementFile):
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
        self._operations: _OperationTree | None = None
        self.rows = self._tree.num_entries
        self.columns = _column_branches(self._tree)
        if OPERATION_TABLE in self._trees:
            self._operations = _OperationTree(self._file[OPERATION_TABLE])
            self.columns = [*self.columns, OPERATIONS_COLUMN]

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


_READERS: Mapping[str, Callable[[Path], MeasurementFile]] = {
    ".root": _TreeReader,
    ".parquet": _ParquetReader,
}
#: Suffixes of files that can be imported.
READABLE_SUFFIXES = tuple(_READERS)


class _OperationTree:
    """The tree of operations, read by measurement.

    Of a measurement that recurs, as in merged files, the first rows count.
    """

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._columns = [n for n in _column_branches(tree) if n not in _UNSTORED_COLUMNS]
        self._rows: dict[str, range] | None = None

    def read_nested(self, ids: Sequence[str]) -> pa.Array:
        """Read the nested column of these measurements."""
        if self._rows is None:
            self._rows = self._index_rows()
        spans = [self._rows.get(id_, range(0)) for id_ in ids]
        starts, stops = [s.start for s in spans if s], [s.stop for s in spans if s]
        whole = range(min(starts, default=0), max(stops, default=0))
        steps: list[dict[str, Any]] = []
        for batch in _read_tree_batches(self._tree, self._columns, span=whole):
            columns = [
                list_values(batch.column(name), _OPERATION_TYPES.get(name, OPERATIONS_COLUMN))
                for name in self._columns
            ]
            steps += [
                dict(zip(self._columns, row, strict=True)) for row in zip(*columns, strict=True)
            ]
        return pa.array([steps[s.start - whole.start : s.stop - whole.start] for s in spans])

    def _index_rows(self) -> dict[str, range]:
        """Map each measurement to its first consecutive rows."""
        spans: dict[str, range] = {}
        start = stop = 0
        latest: tuple[str, int] = ("", -1)
        for batch in _read_tree_batches(self._tree, [ID_COLUMN, "line"]):
            for id_, line in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if id_ != latest[0] or line <= latest[1]:
                    spans.setdefault(latest[0], range(start, stop))
                    start = stop
                latest, stop = (id_, line), stop + 1
        spans.setdefault(latest[0], range(start, stop))
        return spans


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


class ColumnTypeError(Exception):
    """A column has a type that cannot hold the values; the message is its name."""


def list_documents(batch: pa.RecordBatch, kinds: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the document of each measurement, as :meth:`.Measurement.from_document` takes it.

    Args:
        batch: columns of a file.
        kinds: the columns to use, and their types of the catalogue: columns of the catalogue,
            ``extra_NAME`` of metrics that tests define, and possibly the nested one of operations.

    Raises:
        MeasurementFileError: a column cannot hold values of its type.
    """
    columns: dict[str, list[Any]] = {}
    for name, kind in kinds.items():
        try:
            columns[name] = list_values(batch.column(name), kind, _EMPTY_TEXTS.get(name))
        except ColumnTypeError as error:
            raise MeasurementFileError(
                f"column {name} has type {error}; expected {kind}"
            ) from error
    operations = columns.pop(OPERATIONS_COLUMN, [None] * batch.num_rows)
    extras = {name: columns.pop(name) for name in kinds if name.startswith(EXTRA_PREFIX)}
    names = [*columns]
    for row, (values, steps) in enumerate(
        zip(zip(*columns.values(), strict=True), operations, strict=True)
    ):
        yield {
            "values": dict(zip(names, values, strict=True)),
            "extras": {
                name.removeprefix(EXTRA_PREFIX): column[row]
                for name, column in extras.items()
                if column[row] is not None
            },
            "operations": [_restore_texts(step) for step in steps or ()],
        }


def _restore_texts(step: Any) -> Any:
    if not isinstance(step, dict):
        return step
    return step | {name: "" for name in _OPERATION_TEXTS if step.get(name) is None}


def list_values(column: pa.Array, kind: str, unknown: Any = None) -> list[Any]:
    """List the values of a column in Python's types.

    Whole floats become integers, and 0 and 1 bools, where the catalogue has these. Values that do
    not fit stay, for the checks of the record. NaN is unknown.

    Args:
        column: as another program may have written it.
        kind: type of the catalogue, or :data:`OPERATIONS_COLUMN` for values of any type.
        unknown: what stands for unknown values.

    Raises:
        ColumnTypeError: none of its values can fit.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return [unknown] * len(column)
    if wrong := _find_unfit_type(column.type, kind):
        raise ColumnTypeError(str(wrong))
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        encoded = column.cast(pa.binary()).to_pylist()
        values = [value and value.decode(errors="surrogateescape") for value in encoded]
    if kind == "int" and pa.types.is_floating(column.type):
        values = [_restore_int(value) for value in values]
    elif kind == "ints" and pa.types.is_floating(column.type.value_type):
        values = [items and [_restore_int(item) for item in items] for items in values]
    elif kind == "bool" and pa.types.is_integer(column.type):
        values = [bool(value) if value in (0, 1) else value for value in values]
    if unknown is not None:
        values = [unknown if value is None else value for value in values]
    return values


def _find_unfit_type(arrow_type: pa.DataType, kind: str) -> pa.DataType | None:
    """Return the type of a column, or of the items of its lists, unless it fits."""
    types = pa.types
    is_list = (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    )
    if kind in ("ints", "floats") and is_list:
        items = arrow_type.value_type
        return None if types.is_null(items) else _find_unfit_type(items, kind.removesuffix("s"))
    fits = {
        "int": types.is_integer(arrow_type) or types.is_floating(arrow_type),
        "float": types.is_integer(arrow_type) or types.is_floating(arrow_type),
        "text": types.is_string(arrow_type) or types.is_large_string(arrow_type),
        "bool": types.is_integer(arrow_type) or types.is_boolean(arrow_type),
        OPERATIONS_COLUMN: True,
    }
    return None if fits.get(kind) else arrow_type


def _restore_int(value: Any) -> Any:
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _MAX_EXACT_INT
    return int(value) if is_whole else value


def parse_rows(kind: type[CompanionKind], batch: pa.RecordBatch) -> list[CompanionKind]:
    """Parse the rows of a companion table.

    Raises:
        MeasurementFileError: a row has values that do not fit its columns.
    """
    table = next(name for name, row_type in COMPANION_KINDS.items() if row_type is kind)
    hints = {
        name: str if hint is CampaignPlan else hint for name, hint in get_type_hints(kind).items()
    }
    columns: list[list[Any]] = []
    for name, hint in hints.items():
        try:
            unknown = "" if hint is str else None
            columns.append(list_values(batch.column(name), FIELD_TYPES[hint], unknown))
        except (KeyError, ColumnTypeError) as error:
            raise MeasurementFileError(
                f"unexpected value of {name} in table {table} ({error})"
            ) from error
    rows = [*zip(*columns, strict=True)]
    targets = [metadata.tables[table].c[name] for name in hints]
    for number, row in enumerate(rows, 1):
        unfit = [
            f"{target.name} cannot be kept"
            for target, hint, value in zip(targets, hints.values(), row, strict=True)
            if not _fits_column(value, hint, target)
        ]
        if unfit:
            raise MeasurementFileError(f"row {number} of table {table}: {'; '.join(unfit)}")
    return [
        _build_row(kind, f"row {number} of table {table}", dict(zip(hints, row, strict=True)))
        for number, row in enumerate(rows, 1)
    ]


def _build_row(kind: type[CompanionKind], place: str, values: dict[str, Any]) -> CompanionKind:
    if kind is CampaignRow:
        try:
            values["plan"] = CampaignPlan.from_json(values["plan"] or "{}")
        except StoreError as error:
            raise MeasurementFileError(f"{place}: {error.message}", hint=error.hint) from error
    return kind(**values)


def _fits_column(value: Any, hint: Any, target: sa.Column[Any]) -> bool:
    if not isinstance(value, hint):
        return False
    if isinstance(value, str):
        limit = getattr(target.type, "length", None) or MAX_LONG_TEXT
        return len(value) <= limit and is_storable(value)
    return value is None or -INT64_LIMIT <= value < INT64_LIMIT
