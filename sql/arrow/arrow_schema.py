"""The columns of an export as an Arrow schema, which comes from the catalogue alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.sql.core.column_names import EXTRA_PREFIX

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
