"""Sends selected measurements as an Arrow stream to standard output: ``python -m …``.

A process of its own, because the driver that fills Arrow's columns brings an SQLite library with
it: two of them in one process would let go of each other's locks on the file.  Standard input has
the :class:`Order`, written by :mod:`treehammer.sql.bulk`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import adbc_driver_manager
import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from treehammer.collectors.metrics import BY_NAME
from treehammer.pipes import byte_output
from treehammer.sql import packing
from treehammer.sql.arrow import ID, describe, every_column
from treehammer.sql.bulk_drivers import Driver, Question, connect
from treehammer.sql.rows import ExtraRow
from treehammer.sql.troubles import Damaged
from treehammer.sql.wide import EXTRA_PREFIX, PASSES

#: In the schema's metadata: how many rows will follow.
COUNT = b"rows"
#: The message when whoever asked has closed the stream.
UNREAD = "nobody reads any more"
_NUMBERS = r"^\[[^\[\]\"{}]*\]$"
_QUESTION = re.compile(r"\nquery:|query was:", re.IGNORECASE)


@dataclass(frozen=True)
class Order:
    """What to read.

    Attributes:
        backend: the kind of database, as SQLAlchemy calls it.
        address: where it is; see :func:`treehammer.sql.bulk_drivers.connect`.
        batch: the most rows of one record batch.
        columns: of the stream; None for every column.
        fetched: columns that ``measurements`` gives, as :func:`treehammer.sql.wide.stored` says; the
            identity among them when there are extras.
        lists_as_text: see :func:`treehammer.sql.arrow.describe`.
        about: what the export says of itself.
        count: one number, how many measurements are selected.
        names: of metrics that tests defined and these measurements have.
        extras: measurement, name and value of these, in the order of the measurements.
        measurements: what is fetched of them.
    """

    backend: str
    address: str
    batch: int
    columns: list[str] | None
    fetched: list[str]
    lists_as_text: bool
    about: dict[str, str]
    count: Question
    names: Question
    extras: Question
    measurements: Question

    @classmethod
    def from_json(cls, text: str) -> Order:
        """Read what :mod:`treehammer.sql.bulk` has written."""
        document = json.loads(text)
        for name in ("count", "names", "extras", "measurements"):
            document[name] = Question(**document[name])
        return cls(**document)


def main() -> None:
    """Answer the order; leave with a message when the database refuses."""
    order = Order.from_json(sys.stdin.read())
    try:
        with connect(order.backend, order.address) as driver:
            _send(driver, order)
    except BrokenPipeError:
        sys.exit(UNREAD)
    except (adbc_driver_manager.Error, pa.ArrowException, Damaged, OSError) as error:
        # The drivers repeat the whole question.
        sys.exit(" ".join(_QUESTION.split(str(error), maxsplit=1)[0].split()))


def _send(driver: Driver, order: Order) -> None:
    ((count,),) = driver.rows(order.count)
    columns = order.columns
    if columns is None:
        columns = every_column([row[0] for row in driver.rows(order.names)] if count else [])
    names = [name for name in columns if name not in BY_NAME]
    schema = describe(columns, order.about, lists_as_text=order.lists_as_text)
    schema = schema.with_metadata({**schema.metadata, COUNT: str(count)})
    with byte_output() as out, pa.ipc.new_stream(out, schema) as stream:
        if not count:
            return
        extras = Extras(ExtraRow(*row) for row in driver.beside(order.extras)) if names else None
        for batch in driver.batches(order.measurements, order.batch):
            found: dict[str, Any] = dict(zip(order.fetched, batch.columns, strict=True))
            if PASSES in found:
                found |= _passes(found[PASSES], as_text=order.lists_as_text)
            if extras:
                found |= extras.columns(found[ID].to_pylist(), names)
            arrays = [_converted(found[field.name], field.type) for field in schema]
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _converted(column: Any, wanted: pa.DataType) -> pa.Array:
    """A column of the database, of lists that were packed, or of extras, in the type of the export."""
    if not isinstance(column, pa.Array):
        return pa.array(column, wanted)
    if pa.types.is_list(wanted) and not pa.types.is_list(column.type):
        return _lists(column, wanted)
    return column.cast(wanted)


def _passes(packed: pa.BinaryArray, *, as_text: bool) -> dict[str, pa.Array]:
    """The lists that share one column of the database."""
    lengths, numbers = packing.columns(packed.to_pylist())
    known = np.maximum(lengths, 0)
    # Numbers come row by row, and in each row list by list.
    owner = np.repeat(np.tile(np.arange(len(packing.PACKED)), len(lengths)), known.ravel())
    columns: dict[str, pa.Array] = {}
    for place, name in enumerate(packing.PACKED):
        lists = _list_array(
            known[:, place],
            pa.array(numbers[owner == place]),
            unknown=pa.array(lengths[:, place] < 0),
        )
        texts = map(packing.as_text, lists.to_pylist()) if as_text else None
        columns[name] = lists if texts is None else pa.array(texts, pa.string())
    return columns


def _lists(texts: pa.StringArray, wanted: pa.ListType) -> pa.ListArray:
    """Lists of numbers from JSON as :class:`treehammer.sql.schema.NumberList` writes it."""
    if pc.any(pc.invert(pc.match_substring_regex(texts, _NUMBERS))).as_py():
        raise Damaged("no list of numbers")
    parts = pc.split_pattern(pc.utf8_slice_codeunits(texts, 1, -1), ",")
    numbers = parts.flatten()
    # An empty list has one part, which is empty.
    lengths = pc.if_else(pc.equal(texts, "[]"), 0, pc.list_value_length(parts))
    return _list_array(
        pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False),
        numbers.filter(pc.not_equal(numbers, "")).cast(wanted.value_type),
        unknown=texts.is_null(),
    )


def _list_array(
    lengths: np.ndarray, numbers: pa.Array, *, unknown: pa.BooleanArray
) -> pa.ListArray:
    """Lists of these lengths, filled with the numbers one after the other; null where unknown.

    Arrow up to 25 takes no mask beside offsets that have a validity bitmap, and what it computes
    has one; NumPy's have none.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype("i4")
    return pa.ListArray.from_arrays(pa.array(ends), numbers, mask=unknown)


class Extras:
    """Joins the stream of extras to batches of measurements, which come in the same order."""

    def __init__(self, rows: Iterator[ExtraRow]) -> None:
        self._extras = rows
        self._next = next(self._extras, None)

    def columns(self, ids: Sequence[str], names: Sequence[str]) -> Mapping[str, list[float | None]]:
        """The column of each name (with its prefix) for these measurements, the next ones."""
        places = {id_: place for place, id_ in enumerate(ids)}
        columns: dict[str, list[float | None]] = {name: [None] * len(ids) for name in names}
        while self._next is not None and self._next.measurement_id in places:
            # A reader may bring more of them than are asked for.
            if column := columns.get(EXTRA_PREFIX + self._next.name):
                column[places[self._next.measurement_id]] = self._next.value
            self._next = next(self._extras, None)
        return columns


if __name__ == "__main__":
    main()
