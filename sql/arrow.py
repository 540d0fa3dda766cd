"""The columns of an export as an Arrow schema, which comes from the catalogue alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from treehammer.collectors.metrics import CATALOGUE

#: Rows of one record batch: some tens of MB of memory while it is made; larger ones are no faster.
ROWS = 2_000
#: What comes before the names of metrics that tests defined.
EXTRA_PREFIX = "extra_"

_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
    "ints": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float64()),
}


def describe(
    extra_names: Sequence[str], about: Mapping[str, str], *, lists_as_text: bool = False
) -> pa.Schema:
    """Every catalogue column and one for each of ``extra_names``; metadata say kind and meaning.

    Args:
        extra_names: names of metrics that tests defined.
        about: what the export says of itself.
        lists_as_text: leave lists as the JSON that the database holds, for formats without lists.
    """
    fields = [
        _field(m.name, m.type, f"{m.meaning} [{m.unit}]" if m.unit else m.meaning)
        for m in CATALOGUE
    ]
    fields += [
        _field(EXTRA_PREFIX + name, "float", f"Metric {name} that the test defines.")
        for name in extra_names
    ]
    if lists_as_text:
        fields = [
            field.with_type(pa.string()) if pa.types.is_list(field.type) else field
            for field in fields
        ]
    return pa.schema(fields, metadata=dict(about))


def _field(name: str, kind: str, title: str) -> pa.Field:
    return pa.field(name, _TYPES[kind], metadata={"kind": kind, "title": title})
