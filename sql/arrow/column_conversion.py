"""Conversion of foreign columns to the types of the catalogue, with a list of invalid rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from treehammer.sql.arrow.arrow_schema import ARROW_TYPES

#: Row of a batch -> its problems.
Problems = defaultdict[int, list[str]]

#: The largest whole number up to which a float has every one.
_MAX_EXACT_INT = 2.0**53


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


BoolArray = NDArray[np.bool_]
_Converted = tuple[pa.Array, BoolArray, str]


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
