"""Parse measurements from Arrow record batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
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
    checked = find_valid_columns(batch)
    for row, (values, extras) in enumerate(_list_rows(batch)):
        if row in problems:
            continue
        try:
            document = {"values": values, "extras": extras, "operations": operations[row]}
            yield Measurement.from_document(document, checked)
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
    values = [unknown if one is None else one for one in _list_deciding_values(column, metric)]
    return not any(describe_value_error(metric, one) for one in values if one is not None)


def _list_deciding_values(column: pa.Array, metric: Metric) -> list[Any]:
    """List values that are all valid only if the whole column is."""
    if metric.type in ("ints", "floats"):
        return [_find_extremes(column.flatten())]
    if metric.type in ("int", "float") and not metric.choices:
        return _find_extremes(column)
    return cast("list[Any]", column.unique().to_pylist())


def _find_extremes(numbers: pa.Array) -> list[Any]:
    """Return the smallest and the largest number, and NaN if there is one."""
    found = [one for one in pc.min_max(numbers).as_py().values() if one is not None]
    if pa.types.is_floating(numbers.type) and pc.any(pc.is_nan(numbers)).as_py():
        found.append(math.nan)
    return found


def _list_operations(batch: pa.RecordBatch) -> Sequence[Any]:
    """List the operations of each row, as a record has them."""
    if OPERATIONS_COLUMN not in batch.schema.names:
        return [[]] * batch.num_rows
    found: list[Any] = batch.column(OPERATIONS_COLUMN).to_pylist()
    return [[_restore_texts(step) for step in steps or ()] for steps in found]


def _restore_texts(step: Any) -> Any:
    if not isinstance(step, dict):
        return step
    return step | {name: "" for name in _OPERATION_TEXTS if step.get(name) is None}


def _list_rows(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Yield the catalogue's values and the known extras of each row."""
    columns = {
        name: list_values(column, _EMPTY_TEXTS.get(name))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name != OPERATIONS_COLUMN
    }
    all_extras = {
        name.removeprefix(EXTRA_PREFIX): columns.pop(name)
        for name in batch.schema.names
        if name in columns and name not in METRICS_BY_NAME
    }
    names = tuple(columns)
    for row, cells in enumerate(zip(*columns.values(), strict=True)):
        extras = {n: column[row] for n, column in all_extras.items() if column[row] is not None}
        yield dict(zip(names, cells)), extras  # noqa: B905 - it takes longer with strict


def list_values(column: pa.Array, unknown: str | None) -> list[Any]:
    """List the values of a column; equal texts are one object, hashed and compared only once."""
    if column.null_count == len(column):
        return [unknown] * len(column)
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        texts = [*encoded.dictionary.to_pylist(), unknown]
        places = encoded.indices.fill_null(len(texts) - 1).to_numpy().tolist()
        return list(map(texts.__getitem__, places))
    if pa.types.is_list(column.type):
        return _list_lists(column)
    return _list_numbers(column)


def _list_lists(column: pa.ListArray) -> list[list[Any] | None]:
    numbers = _list_numbers(column.flatten())
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    ends = [0, *np.cumsum(lengths).tolist()]
    return _set_unknown([numbers[start:end] for start, end in pairwise(ends)], column)


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
