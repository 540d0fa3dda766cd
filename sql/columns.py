"""Columns of whatever types, brought into those of the catalogue; what does not fit is named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from treehammer.sql.arrow import TYPES

#: Row of a batch -> what is wrong with it.
Problems = defaultdict[int, list[str]]

#: The largest whole number up to which a float has every one.
_EXACT = 2.0**53


class WrongType(Exception):
    """A whole column is of a type that cannot be what is expected; the text says which."""


def fit(column: pa.Array, name: str, kind: str, problems: Problems) -> pa.Array:
    """A column in the type of its kind; null where a value does not fit, which goes to ``problems``.

    NaN is what others write for "not known", so it is null.

    Args:
        column: as it came.
        name: of the column, for the problems.
        kind: of the catalogue: ``int``, ``float``, ``text``, ``bool``, ``ints`` or ``floats``.
        problems: receives the rows that do not fit.

    Raises:
        WrongType: none of its values can fit.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), TYPES[kind])
    fitted, wrong, reason = _FITTERS[kind](column)
    for row in np.flatnonzero(wrong):
        problems[int(row)].append(f"{name} {reason}")
    return fitted


Flags = NDArray[np.bool_]
_Fitted = tuple[pa.Array, Flags, str]


def _fit_int(column: pa.Array) -> _Fitted:
    kind = column.type
    reason = "must be a 64-bit whole number"
    if pa.types.is_uint64(kind):
        wrong = mask(pc.greater(column, pa.scalar(2**63 - 1, pa.uint64())))
    elif pa.types.is_integer(kind):
        wrong = np.zeros(len(column), bool)
    elif pa.types.is_floating(kind):
        column = _without_nan(column)
        whole = pc.and_(pc.equal(column, pc.floor(column)), pc.less(pc.abs(column), _EXACT))
        wrong = mask(pc.invert(whole))
    else:
        raise WrongType(str(kind))
    return _nulled(column, wrong).cast(pa.int64()), wrong, reason


def _fit_float(column: pa.Array) -> _Fitted:
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        column = _without_nan(column.cast(pa.float64(), safe=False))
    else:
        raise WrongType(str(column.type))
    wrong = mask(pc.invert(pc.is_finite(column)))
    return _nulled(column, wrong), wrong, "must be a finite number"


def _fit_text(column: pa.Array) -> _Fitted:
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise WrongType(str(kind))
    wrong = np.zeros(len(column), bool)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:  # somewhere in it
        for row in range(len(column)):
            try:
                column.slice(row, 1).validate(full=True)
            except pa.ArrowInvalid:
                wrong[row] = True
    return _nulled(column, wrong).cast(pa.string()), wrong, "must be UTF-8"


def _fit_bool(column: pa.Array) -> _Fitted:
    wrong = np.zeros(len(column), bool)
    if pa.types.is_integer(column.type):
        wrong = mask(pc.greater(pc.cast(column, pa.uint64(), safe=False), 1))
    elif not pa.types.is_boolean(column.type):
        raise WrongType(str(column.type))
    return _nulled(column, wrong).cast(pa.bool_()), wrong, "must be true or false"


def _fit_list(column: pa.Array, fit_items: Callable[[pa.Array], _Fitted]) -> _Fitted:
    kind = column.type
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    elif not pa.types.is_list(kind):
        raise WrongType(str(kind))
    if pa.types.is_null(column.type.value_type):  # every list is empty
        column = column.cast(pa.list_(pa.int64()))
    items, wrong_items, _ = fit_items(column.flatten())
    owners = pc.list_parent_indices(column).to_numpy()
    wrong = np.zeros(len(column), bool)
    wrong[owners[wrong_items | mask(pc.is_null(items))]] = True
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype("i4")
    unknown = column.is_null().to_numpy(zero_copy_only=False)
    fitted = pa.ListArray.from_arrays(pa.array(ends), items, mask=pa.array(unknown | wrong))
    return fitted, wrong, "must hold finite numbers only"


_FITTERS: dict[str, Callable[[pa.Array], _Fitted]] = {
    "int": _fit_int,
    "float": _fit_float,
    "text": _fit_text,
    "bool": _fit_bool,
    "ints": lambda column: _fit_list(column, _fit_int),
    "floats": lambda column: _fit_list(column, _fit_float),
}


def mask(condition: pa.Array, *, unknown: bool = False) -> Flags:
    """A condition as numpy has it; ``unknown`` where it is null."""
    values = np.asarray(condition.to_numpy(zero_copy_only=False))
    if condition.null_count:
        values = np.where(mask(condition.is_null()), unknown, values)
    return values.astype(bool)


def _without_nan(column: pa.Array) -> pa.Array:
    return _nulled(column, mask(pc.is_nan(column)))


def _nulled(column: pa.Array, rows: Flags) -> pa.Array:
    if not rows.any():
        return column
    return pc.if_else(pa.array(rows), pa.scalar(None, column.type), column)
