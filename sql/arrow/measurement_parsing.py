"""Parse measurements from Arrow record batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from treehammer.collectors.record.measurement_record import (
    Measurement,
    RecordError,
    describe_value_error,
)
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME, Metric
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.sql.arrow.column_conversion import Problems
from treehammer.sql.core.column_names import EXTRA_PREFIX

#: Nested column of operations.
OPERATIONS_COLUMN = "operations"
_OPERATION_TEXTS = tuple(metric.name for metric in OPERATION_METRICS if metric.type == "text")

# Databases, and so exported files, keep the empty text of a required metric as null.
_EMPTY_TEXTS = {
    metric.name: ""
    for metric in CATALOGUE
    if metric.required and metric.type == "text" and not metric.is_identity
}


def parse_measurements(batch: pa.RecordBatch, problems: Problems) -> Iterator[Measurement]:
    """Yield the valid measurements of a batch.

    Args:
        batch: catalogue columns and ``extra_NAME`` columns of test-defined metrics, in the types
            of :mod:`treehammer.sql.arrow.arrow_schema`; possibly the nested column of operations.
        problems: rows that are invalid already; receives the others that are, with the reasons.
    """
    operations = _list_operations(batch)
    valid, names = find_valid_columns(batch), {*batch.schema.names}
    unchecked = [
        metric.name
        for metric in CATALOGUE
        if metric.name not in valid and (metric.required or metric.name in names)
    ]
    for row, (values, extras) in enumerate(list_rows(batch)):
        if row in problems:
            continue
        try:
            document = {"values": values, "extras": extras, "operations": operations[row]}
            yield Measurement.from_document(document, unchecked)
        except RecordError as error:
            problems[row].append(str(error))


def find_valid_columns(batch: pa.RecordBatch) -> frozenset[str]:
    """Find the columns in which every value is valid, so that no row needs to check its own.

    The validator of a metric sees the distinct texts of a column, or its smallest and largest number.
    """
    return frozenset(
        name
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if (metric := METRICS_BY_NAME.get(name)) and _is_valid_column(column, metric)
    )


def _is_valid_column(column: pa.Array, metric: Metric) -> bool:
    unknown = _EMPTY_TEXTS.get(metric.name)
    if column.null_count and metric.required and unknown is None:
        return False
    values = [
        unknown if value is None else value for value in _list_deciding_values(column, metric)
    ]
    return not any(describe_value_error(metric, value) for value in values if value is not None)


def _list_deciding_values(column: pa.Array, metric: Metric) -> list[Any]:
    """List values that are all valid only if the whole column is."""
    if metric.type in ("ints", "floats"):
        return [_find_extremes(column.flatten())]
    if metric.type in ("int", "float") and not metric.choices:
        return _find_extremes(column)
    return cast("list[Any]", column.unique().to_pylist())


def _find_extremes(numbers: pa.Array) -> list[Any]:
    """Return the smallest and the largest number, and NaN if there is one."""
    extremes = [number for number in pc.min_max(numbers).as_py().values() if number is not None]
    if pa.types.is_floating(numbers.type) and pc.any(pc.is_nan(numbers)).as_py():
        extremes.append(math.nan)
    return extremes


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
