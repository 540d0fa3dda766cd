"""Parse measurements from Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from treehammer.collectors.record.measurement_record import Measurement, RecordError
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.sql.arrow.column_conversion import Problems
from treehammer.sql.core.measurement_view import EXTRA_PREFIX

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
            of :mod:`treehammer.sql.arrow.arrow_schema`.
        problems: rows that are invalid already; receives the others that are, with the reasons.
    """
    filled = [n for n, column in enumerate(batch.columns) if column.null_count < len(column)]
    batch = batch.select(filled)
    names = batch.schema.names
    extra_names = [name for name in names if name not in METRICS_BY_NAME]
    columns = [column.to_pylist() for column in batch.columns]
    for row, cells in enumerate(zip(*columns, strict=True)):
        if row in problems:
            continue
        values: dict[str, Any] = _EMPTY_TEXTS.copy()
        values.update(item for item in zip(names, cells, strict=True) if item[1] is not None)
        extras = {
            name.removeprefix(EXTRA_PREFIX): values.pop(name)
            for name in extra_names
            if name in values
        }
        try:
            yield Measurement.from_document({"values": values, "extras": extras})
        except RecordError as error:
            problems[row].append(str(error))
