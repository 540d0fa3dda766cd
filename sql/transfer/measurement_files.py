"""Parquet files of measurements to import.

A file gives the documents of its measurements, in Python's values; the record alone decides whether
they are valid. Types that other programs write are accepted where they can hold the same values.
NaN is unknown: other programs write it for unknown values.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import pyarrow as pa
import sqlalchemy as sa
from pyarrow import compute as pc
from pyarrow import parquet

from treehammer.collectors.record.metric_catalogue import (
    CATALOGUE,
    INT64_LIMIT,
    MAX_LONG_TEXT,
)
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.collectors.record.value_checks import is_storable
from treehammer.errors import MeasurementFileError, StoreError
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX
from treehammer.sql.core.rows import AttemptRow, CampaignRow, InstructionRow, JobRow, ReplicaRow
from treehammer.sql.core.schema import metadata
from treehammer.sql.transfer.arrow_stream import (
    ARROW_TYPES,
    COMPANION_KINDS,
    FIELD_TYPES,
    OPERATIONS_COLUMN,
)
from treehammer.sql.transfer.file_writers import CHECKSUM_SUFFIX, COMPANION_PREFIX

CompanionKind = TypeVar(
    "CompanionKind", CampaignRow, JobRow, AttemptRow, ReplicaRow, InstructionRow
)
READABLE_SUFFIX = ".parquet"
#: Measurements that are read at once, and with operations, which are large.
READ_ROWS, NESTED_READ_ROWS = 2_000, 500
#: The largest whole number up to which a float has every one.
_MAX_EXACT_INT = 2.0**53
# Databases, and so exported files, keep the empty text of a required metric as null.
_EMPTY_TEXTS = {
    metric.name: ""
    for metric in CATALOGUE
    if metric.required and metric.type == "text" and not metric.is_identity
}
_OPERATION_TEXTS = tuple(metric.name for metric in OPERATION_METRICS if metric.type == "text")


class MeasurementFile:
    """An open Parquet file of measurements; reading a damaged one raises MeasurementFileError.

    Attributes:
        rows: number of measurements.
        columns: the names of its columns.
    """

    def __init__(self, path: Path, file: parquet.ParquetFile) -> None:
        self._path = path
        self._file = file
        self._about: Mapping[bytes, bytes] = file.metadata.metadata or {}
        self.columns: list[str] = file.schema_arrow.names
        self.rows: int = file.metadata.num_rows

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read columns of all measurements in the types of the file."""
        size = NESTED_READ_ROWS if OPERATIONS_COLUMN in columns else READ_ROWS
        rows = 0
        with _translate_damage(self._path):
            for batch in self._file.iter_batches(size, columns=columns):
                batch.validate(full=True)
                rows += batch.num_rows
                yield batch
            if rows != self.rows:
                raise ValueError(f"{rows} of {self.rows} rows were found")

    def companion(self, name: str) -> Iterator[pa.RecordBatch]:
        """Read a companion table; nothing if the file lacks it."""
        key = COMPANION_PREFIX + name
        packed = self._about.get(key.encode(), b"")
        checksum = self._about.get((key + CHECKSUM_SUFFIX).encode())
        with _translate_damage(self._path):
            if checksum not in (None, b"%d" % zlib.crc32(packed)):  # old files have none
                raise ValueError(f"table {name} differs from its checksum")
            for batch in pa.ipc.open_stream(base64.b64decode(packed)) if packed else ():
                batch.validate(full=True)  # Arrow reads beyond the buffers of a damaged one
                yield batch


@contextmanager
def open_measurement_file(path: Path) -> Iterator[MeasurementFile]:
    """Open a file of measurements.

    Raises:
        MeasurementFileError: it cannot be read.
    """
    if not path.is_file():
        problem = "it is no regular file" if path.exists() else "the file does not exist"
        raise MeasurementFileError(problem, where=str(path))
    if path.suffix.lower() != READABLE_SUFFIX:
        raise MeasurementFileError(
            "unsupported file format",
            where=str(path),
            hint=f"Give {READABLE_SUFFIX}, folders of such files, .json of a benchmark tool or "
            ".darshan; TTrees and CSV are written, not read.",
        )
    with _translate_damage(path):
        file = parquet.ParquetFile(path, page_checksum_verification=True)
        incoming = MeasurementFile(path, file)
    with file:
        yield incoming


@contextmanager
def _translate_damage(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        message = " ".join(str(error).split())
        raise MeasurementFileError(
            f"cannot be read ({message[:300] or type(error).__name__})",
            where=str(file),
            hint="The file is incomplete or damaged. Its readable rows were imported.",
        ) from error


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
    """Return an operation with '' for missing texts; other values unchanged."""
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
    if unknown is not None:
        column = pc.fill_null(column, unknown)
    values: list[Any] = column.to_pylist()
    if column.type != ARROW_TYPES.get(kind):
        restore = _RESTORERS.get(kind, lambda value: value)
        values = [value if value is None else restore(value) for value in values]
    return values


def _restore_int(value: Any) -> Any:
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _MAX_EXACT_INT
    return int(value) if is_whole else value


#: Type of the catalogue -> conversion of a value of another type; what does not fit stays.
_RESTORERS: Mapping[str, Callable[[Any], Any]] = {
    "int": _restore_int,
    "ints": lambda items: [_restore_int(item) for item in items],
    "bool": lambda value: bool(value) if value in (0, 1) else value,
}


#: Type of the catalogue -> types of columns that can hold its values.
_FITTING_TYPES: Mapping[str, Sequence[Callable[[pa.DataType], bool]]] = {
    "int": (pa.types.is_integer, pa.types.is_floating),
    "float": (pa.types.is_integer, pa.types.is_floating),
    "text": (pa.types.is_string, pa.types.is_large_string),
    "bool": (pa.types.is_integer, pa.types.is_boolean),
    OPERATIONS_COLUMN: (lambda _: True,),
}
_LIST_TYPES = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def _find_unfit_type(arrow_type: pa.DataType, kind: str) -> pa.DataType | None:
    """Return the type of a column, or of the items of its lists, unless it fits."""
    if kind in ("ints", "floats") and any(is_type(arrow_type) for is_type in _LIST_TYPES):
        items = arrow_type.value_type
        return None if pa.types.is_null(items) else _find_unfit_type(items, kind[:-1])
    fits = any(is_type(arrow_type) for is_type in _FITTING_TYPES.get(kind, ()))
    return None if fits else arrow_type


def parse_rows(kind: type[CompanionKind], batch: pa.RecordBatch) -> list[CompanionKind]:
    """Parse the rows of a companion table.

    Raises:
        MeasurementFileError: a row has values that do not fit its columns.
    """
    table = next(name for name, row_type in COMPANION_KINDS.items() if row_type is kind)
    columns: dict[str, list[Any]] = {
        name: _parse_column(batch, metadata.tables[table].c[name], hint)
        for name, hint in get_type_hints(kind).items()
    }
    if kind is CampaignRow:
        for number, text in enumerate(columns["plan"], 1):
            try:
                columns["plan"][number - 1] = CampaignPlan.from_json(text or "{}")
            except StoreError as error:
                place = f"row {number} of table {table}"
                raise MeasurementFileError(f"{place}: {error.message}", hint=error.hint) from error
    rows = zip(*columns.values(), strict=True)
    return [kind(**dict(zip(columns, row, strict=True))) for row in rows]


def _parse_column(batch: pa.RecordBatch, target: sa.Column[Any], hint: Any) -> list[Any]:
    """List the values of a column of a companion table, which the database can keep."""
    try:
        unknown = "" if hint in (str, CampaignPlan) else None
        values = list_values(batch.column(target.key), FIELD_TYPES[hint], unknown)
    except (KeyError, ColumnTypeError) as error:
        raise MeasurementFileError(
            f"unexpected value of {target.key} in table {target.table.name} ({error})"
        ) from error
    for number, value in enumerate(values, 1):
        if not _fits_column(value, str if hint is CampaignPlan else hint, target):
            raise MeasurementFileError(
                f"row {number} of table {target.table.name}: {target.key} cannot be kept"
            )
    return values


def _fits_column(value: Any, hint: Any, target: sa.Column[Any]) -> bool:
    if not isinstance(value, hint):
        return False
    if isinstance(value, str):
        limit = getattr(target.type, "length", None) or MAX_LONG_TEXT
        return len(value) <= limit and is_storable(value)
    return value is None or -INT64_LIMIT <= value < INT64_LIMIT
