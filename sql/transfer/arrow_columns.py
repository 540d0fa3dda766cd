"""Measurements in Arrow: the catalogue's schema, conversion of foreign columns, parsing of batches.

Rows with values that do not fit the catalogue's types are listed as :class:`Problems`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from treehammer.collectors.record.measurement_record import Measurement, RecordError
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX

#: Rows of one record batch: some tens of MB of memory while it is made; larger ones are not faster.
BATCH_ROWS = 2_000
#: The column that extras are joined by.
ID_COLUMN = "measurement_id"
#: Kind of the catalogue -> type of its columns.
ARROW_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
    "ints": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float64()),
}
#: Row of a batch -> its problems.
Problems = defaultdict[int, list[str]]
#: The largest whole number up to which a float has every one.
_MAX_EXACT_INT = 2.0**53
BoolArray = NDArray[np.bool_]
_Converted = tuple[pa.Array, BoolArray, str]
#: Nested column of operations.
OPERATIONS_COLUMN = "operations"
_OPERATION_TEXTS = tuple(metric.name for metric in OPERATION_METRICS if metric.type == "text")
# Databases, and so exported files, keep the empty text of a required metric as null.
_EMPTY_TEXTS = {
    metric.name: ""
    for metric in CATALOGUE
    if metric.required and metric.type == "text" and not metric.is_identity
}


def build_schema(
    columns: Sequence[str], about: Mapping[str, str], *, lists_as_text: bool = False
) -> pa.Schema:
    """Build the columns of an export; metadata state kind and meaning.

    Args:
        columns: names of the catalogue, and :data:`EXTRA_PREFIX` with names of metrics that tests
            defined.
        about: metadata of the export.
        lists_as_text: leave lists as the JSON that the database holds, for formats without lists.
    """
    fields = [_catalogue_field(name) for name in columns]
    if lists_as_text:
        fields = [
            field.with_type(pa.string()) if pa.types.is_list(field.type) else field
            for field in fields
        ]
    return pa.schema(fields, metadata=dict(about))


def list_all_columns(extra_names: Sequence[str]) -> list[str]:
    """List the columns of a whole export: the catalogue, and one for each of ``extra_names``."""
    return [*(metric.name for metric in CATALOGUE), *(EXTRA_PREFIX + name for name in extra_names)]


def _catalogue_field(name: str) -> pa.Field:
    metric = METRICS_BY_NAME.get(name)
    if metric is None:
        title = f"Metric {name.removeprefix(EXTRA_PREFIX)} that the test defines."
        return build_field(name, "float", title)
    title = f"{metric.meaning} [{metric.unit}]" if metric.unit else metric.meaning
    return build_field(name, metric.type, title)


def build_field(name: str, kind: str, title: str) -> pa.Field:
    """Build a described column of a type of the catalogue (``int``, ``float``, ``text``, …)."""
    return pa.field(name, ARROW_TYPES[kind], metadata={"kind": kind, "title": title})


class ColumnTypeError(Exception):
    """A column has a type that cannot be converted; the message is its name."""


def convert_column(column: pa.Array, name: str, kind: str, problems: Problems) -> pa.Array:
    """Convert a column to its type; a value that does not fit becomes null and goes to ``problems``.

    NaN becomes null: other programs write it for unknown values. Texts become a dictionary of the
    distinct ones, so that each is examined once.

    Args:
        column: as it came.
        name: of the column, for the problems.
        kind: of the catalogue: ``int``, ``float``, ``text``, ``bool``, ``ints`` or ``floats``.
        problems: receives the rows that do not fit.

    Raises:
        ColumnTypeError: none of its values can fit.
    """
    if pa.types.is_dictionary(column.type) and not (kind == "text" and _has_few_texts(column)):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), ARROW_TYPES[kind])
    fitted, invalid, reason = _CONVERTERS[kind](column)
    for row in np.flatnonzero(invalid):
        problems[int(row)].append(f"{name} {reason}")
    return fitted


def _has_few_texts(column: pa.DictionaryArray) -> bool:
    """Return whether a dictionary holds texts, and no more of them than its column has rows."""
    texts = column.dictionary
    return pa.types.is_string(texts.type) and not texts.null_count and len(texts) <= len(column)


def _convert_int(column: pa.Array) -> _Converted:
    kind = column.type
    reason = "must be a 64-bit whole number"
    if pa.types.is_uint64(kind):
        invalid = to_mask(pc.greater(column, pa.scalar(2**63 - 1, pa.uint64())))
    elif pa.types.is_integer(kind):
        invalid = np.zeros(len(column), bool)
    elif pa.types.is_floating(kind):
        column = _replace_nan(column)
        whole = pc.and_(pc.equal(column, pc.floor(column)), pc.less(pc.abs(column), _MAX_EXACT_INT))
        invalid = to_mask(pc.invert(whole))
    else:
        raise ColumnTypeError(str(kind))
    return _set_null(column, invalid).cast(pa.int64()), invalid, reason


def _convert_float(column: pa.Array) -> _Converted:
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    else:
        raise ColumnTypeError(str(column.type))
    if pc.all(pc.is_finite(column)).as_py() is not False:  # nearly always
        return column, np.zeros(len(column), bool), ""
    column = _replace_nan(column)
    invalid = to_mask(pc.invert(pc.is_finite(column)))
    return _set_null(column, invalid), invalid, "must be a finite number"


def _convert_text(column: pa.Array) -> _Converted:
    if not pa.types.is_dictionary(column.type):
        kind = column.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ColumnTypeError(str(kind))
        column = column.dictionary_encode()
    invalid = _find_damaged_texts(column)
    if invalid.any():
        undamaged = pa.DictionaryArray.from_arrays(
            _set_null(column.indices, invalid), column.dictionary
        )
        column = undamaged.dictionary_decode().dictionary_encode()
    places, texts = column.indices.cast(pa.int32()), column.dictionary.cast(pa.string())
    return pa.DictionaryArray.from_arrays(places, texts), invalid, "must be UTF-8"


def _find_damaged_texts(column: pa.DictionaryArray) -> BoolArray:
    """Find the rows whose text is not UTF-8, or not in the dictionary."""
    if _is_valid(column):  # nearly always
        return np.zeros(len(column), bool)
    texts, places = column.dictionary, column.indices
    sound = [place for place in range(len(texts)) if _is_valid(texts.slice(place, 1))]
    damaged = pc.invert(pc.is_in(places, pa.array(sound, places.type)))
    return to_mask(pc.and_(places.is_valid(), damaged))


def _is_valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _convert_bool(column: pa.Array) -> _Converted:
    invalid = np.zeros(len(column), bool)
    if pa.types.is_integer(column.type):
        invalid = to_mask(pc.greater(pc.cast(column, pa.uint64(), safe=False), 1))
    elif not pa.types.is_boolean(column.type):
        raise ColumnTypeError(str(column.type))
    return _set_null(column, invalid).cast(pa.bool_()), invalid, "must be true or false"


def _convert_list(column: pa.Array, convert_items: Callable[[pa.Array], _Converted]) -> _Converted:
    kind = column.type
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    elif not pa.types.is_list(kind):
        raise ColumnTypeError(str(kind))
    if pa.types.is_null(column.type.value_type):  # every list is empty
        column = column.cast(pa.list_(pa.int64()))
    items, invalid_items, _ = convert_items(column.flatten())
    owners = pc.list_parent_indices(column).to_numpy()
    invalid = np.zeros(len(column), bool)
    invalid[owners[invalid_items | to_mask(pc.is_null(items))]] = True
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype("i4")
    unknown = column.is_null().to_numpy(zero_copy_only=False)
    fitted = pa.ListArray.from_arrays(pa.array(ends), items, mask=pa.array(unknown | invalid))
    return fitted, invalid, "must hold finite numbers only"


_CONVERTERS: dict[str, Callable[[pa.Array], _Converted]] = {
    "int": _convert_int,
    "float": _convert_float,
    "text": _convert_text,
    "bool": _convert_bool,
    "ints": lambda column: _convert_list(column, _convert_int),
    "floats": lambda column: _convert_list(column, _convert_float),
}


def to_mask(condition: pa.Array) -> BoolArray:
    """Convert a condition to a numpy mask, with False where it is null."""
    if not pc.any(condition).as_py():  # nearly always
        return np.zeros(len(condition), bool)
    return np.asarray(condition.fill_null(False).to_numpy(zero_copy_only=False), bool)


def _replace_nan(column: pa.Array) -> pa.Array:
    return _set_null(column, to_mask(pc.is_nan(column)))


def _set_null(column: pa.Array, rows: BoolArray) -> pa.Array:
    if not rows.any():
        return column
    return pc.if_else(pa.array(rows), pa.scalar(None, column.type), column)


def parse_measurements(batch: pa.RecordBatch, problems: Problems) -> Iterator[Measurement]:
    """Yield the valid measurements of a batch.

    Args:
        batch: catalogue columns and ``extra_NAME`` columns of test-defined metrics, in the types
            of :mod:`treehammer.sql.transfer.arrow_columns`; possibly the nested column of operations.
        problems: rows that are invalid already; receives the others that are, with the reasons.
    """
    operations = _list_operations(batch)
    for row, (values, extras) in enumerate(list_rows(batch)):
        if row in problems:
            continue
        try:
            document = {"values": values, "extras": extras, "operations": operations[row]}
            yield Measurement.from_document(document)
        except RecordError as error:
            problems[row].append(str(error))


def _list_operations(batch: pa.RecordBatch) -> Sequence[Any]:
    """List the operations of each row, as a record has them."""
    if OPERATIONS_COLUMN not in batch.schema.names:
        return [[]] * batch.num_rows
    operations: list[Any] = batch.column(OPERATIONS_COLUMN).to_pylist()
    return [[_restore_texts(step) for step in steps or ()] for steps in operations]


def _restore_texts(step: Any) -> Any:
    if not isinstance(step, dict):
        return step
    return step | {name: "" for name in _OPERATION_TEXTS if step.get(name) is None}


def list_rows(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Yield the catalogue's values and the known extras of each row."""
    names = batch.schema.names
    common, columns = _split_columns(batch.select([n for n in names if n in METRICS_BY_NAME]))
    all_extras = {
        name.removeprefix(EXTRA_PREFIX): list_values(batch.column(name), None)
        for name in names
        if name not in METRICS_BY_NAME and name != OPERATIONS_COLUMN
    }
    rows = zip(*columns.values(), strict=True) if columns else repeat((), batch.num_rows)
    for row, cells in enumerate(rows):
        # The copy has room for all names, whereas a new mapping would grow again and again.
        values = common.copy()
        values.update(zip(columns, cells))  # noqa: B905 - it takes longer with strict
        yield (
            values,
            {name: column[row] for name, column in all_extras.items() if column[row] is not None},
        )


def _split_columns(batch: pa.RecordBatch) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the values that all rows share, with None for other columns; and the others' lists."""
    common: dict[str, Any] = {}
    columns: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        unknown = _EMPTY_TEXTS.get(name)
        common[name] = None
        if column.null_count == len(column):
            common[name] = unknown
        elif _is_constant(column):
            common[name] = column.dictionary[0].as_py()
        else:
            columns[name] = list_values(column, unknown)
    return common, columns


def _is_constant(column: pa.Array) -> bool:
    """Return whether every row of a dictionary has the same text."""
    is_text = pa.types.is_dictionary(column.type)
    return is_text and len(column.dictionary) == 1 and not column.null_count


def list_values(column: pa.Array, unknown: str | None) -> list[Any]:
    """List the values of a column; equal texts are one object, hashed and compared only once."""
    if column.null_count == len(column):
        return [unknown] * len(column)
    if pa.types.is_string(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        texts = [*column.dictionary.to_pylist(), unknown]
        places = column.indices.fill_null(len(texts) - 1).to_numpy().tolist()
        return list(map(texts.__getitem__, places))
    if pa.types.is_list(column.type):
        return cast("list[Any]", column.to_pylist())
    return _list_numbers(column)


def _list_numbers(column: pa.Array) -> list[Any]:
    """List numbers or bools by NumPy, which takes a tenth of the time of Arrow's own list."""
    if not column.null_count:
        return cast("list[Any]", column.to_numpy(zero_copy_only=False).tolist())
    filled = column.fill_null(pa.scalar(0).cast(column.type))
    return _set_unknown(filled.to_numpy(zero_copy_only=False).tolist(), column)


def _set_unknown(values: list[Any], column: pa.Array) -> list[Any]:
    """Replace the values of a column that are unknown by None."""
    if column.null_count:
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values
