"""Packed times of a measurement, by pass and by turn: all lists in one binary column.

Format: a version byte, then in zlib's format: the number of lists (int32), the length of each list
(int32, -1 if unknown), and the numbers of all lists (float64), little-endian. A list is identified
by its position in :data:`PACKED_COLUMNS`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from treehammer.collectors.record.latency_histogram import LatencyHistogram

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: First byte of every packed value.
FORMAT_VERSION = b"\x01"
#: Packed lists in order. The order is frozen: append new lists and never remove one.
PACKED_COLUMNS = (
    "pass_open_wall_s",
    "pass_open_user_s",
    "pass_open_sys_s",
    "pass_get_tree_wall_s",
    "pass_get_tree_user_s",
    "pass_get_tree_sys_s",
    "pass_prepare_wall_s",
    "pass_prepare_user_s",
    "pass_prepare_sys_s",
    "pass_loop_wall_s",
    "pass_loop_user_s",
    "pass_loop_sys_s",
    "pass_close_wall_s",
    "pass_close_user_s",
    "pass_close_sys_s",
    "pass_loop_run_queue_s",
    "segment_cpu_ns",
    "segment_wall_ns",
)
_UNKNOWN_LENGTH = -1
#: Size up to which values are not compressed.
_SMALL_BYTES = 1024
#: Begin of zlib's format, and of a block that is not compressed and the last one (RFC 1950 and 1951).
_ZLIB_HEADER, _LAST_STORED_BLOCK = b"\x78\x01", 1
#: Beginning of the message about a stored value that Treehammer cannot have written.
DAMAGED_VALUE = "damaged value"
_DAMAGED_PASSES = "no packed passes"


class DamagedValueError(ValueError):
    """Stored value that Treehammer cannot have written; the message describes it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{DAMAGED_VALUE}: {what}")


def pack_lists(lists: Mapping[str, Any]) -> bytes | None:
    """Pack the lists among these values; None if there are none."""
    ordered_lists = list(map(lists.get, PACKED_COLUMNS))
    lengths = [_UNKNOWN_LENGTH if values is None else len(values) for values in ordered_lists]
    if max(lengths) == _UNKNOWN_LENGTH:
        return None
    numbers = list(chain.from_iterable(filter(None, ordered_lists)))
    layout = f"<{1 + len(lengths)}i{len(numbers)}d"
    return FORMAT_VERSION + _compress(struct.pack(layout, len(lengths), *lengths, *numbers))


def _compress(body: bytes) -> bytes:
    if len(body) > _SMALL_BYTES:
        return zlib.compress(body)
    # Few times hardly get smaller, and setting zlib up takes longer than anything else here.
    block = struct.pack("<BHH", _LAST_STORED_BLOCK, len(body), len(body) ^ 0xFFFF)
    return _ZLIB_HEADER + block + body + struct.pack(">I", zlib.adler32(body))


def unpack_lists(packed: bytes | None) -> dict[str, list[float] | None]:
    """Unpack all lists by name; unknown lists are None.

    Raises:
        DamagedValueError: the value is damaged, or was packed by a later version of Treehammer.
    """
    lists: dict[str, list[float] | None] = dict.fromkeys(PACKED_COLUMNS)
    if packed is None:
        return lists
    head, body = _split_header(packed)
    lengths = struct.unpack(f"<{len(head) // 4}i", head)
    if len(body) != 8 * sum(length for length in lengths if length > 0):
        raise DamagedValueError(_DAMAGED_PASSES)
    numbers = struct.unpack(f"<{len(body) // 8}d", body)
    start = 0
    for name, length in zip(
        PACKED_COLUMNS, lengths, strict=False
    ):  # lists added after this value was packed are unknown
        end = start + max(length, 0)
        lists[name] = None if length < 0 else list(numbers[start:end])
        start = end
    return lists


def _split_header(packed: bytes) -> tuple[bytes, bytes]:
    """Split a packed value into its lengths and numbers."""
    if packed[:1] != FORMAT_VERSION:
        raise DamagedValueError("passes packed in a way that this version does not know")
    try:
        body = zlib.decompress(packed[1:])
    except zlib.error as error:
        raise DamagedValueError(_DAMAGED_PASSES) from error
    count = int.from_bytes(body[:4], "little")
    if count > len(PACKED_COLUMNS):
        raise DamagedValueError("passes with lists that this version does not know")
    end = 4 * (1 + count)
    if len(body) < end:
        raise DamagedValueError(_DAMAGED_PASSES)
    return body[4:end], body[end:]


def unpack_columns(packed: Sequence[bytes | None]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Unpack many values at once.

    Returns:
        lengths, shape (values, lists), -1 for an unknown list; and the numbers of all lists of the
        first value, then of the second, and so on.

    Raises:
        DamagedValueError: see :func:`unpack_lists`.
    """
    # Imported here: NumPy takes a tenth of a second to load, and most commands do not need it.
    import numpy as np

    lengths = np.full((len(packed), len(PACKED_COLUMNS)), _UNKNOWN_LENGTH, "<i4")
    numbers: list[bytes] = []
    for row, value in enumerate(packed):
        if value is not None:
            head, body = _split_header(value)
            lengths[row, : len(head) // 4] = np.frombuffer(head, "<i4")
            numbers.append(body)
    together = b"".join(numbers)
    if len(together) != 8 * int(np.maximum(lengths, 0).sum(dtype="i8")):
        raise DamagedValueError(_DAMAGED_PASSES)
    return lengths, np.frombuffer(together, "<f8")


def encode_numbers(numbers: Sequence[float] | None) -> str | None:
    """Encode a list as JSON, which preserves every bit of a float."""
    return None if numbers is None else json.dumps(numbers, separators=(",", ":"), allow_nan=False)


def decode_numbers(text: str) -> list[Any]:
    """Decode a list of numbers from JSON.

    Raises:
        DamagedValueError: the text is not a list of numbers.
    """
    try:
        numbers = json.loads(text)
    except (TypeError, ValueError) as error:
        raise DamagedValueError("no list of numbers") from error
    if not isinstance(numbers, list) or not all(type(number) in (int, float) for number in numbers):
        raise DamagedValueError("no list of numbers")
    return numbers


def decode_latency(text: str | None) -> LatencyHistogram:
    """Decode a histogram of latencies; an unknown one is empty.

    Raises:
        DamagedValueError: the text is not a histogram.
    """
    try:
        return LatencyHistogram.decode(text) if text else LatencyHistogram()
    except (TypeError, ValueError) as error:
        raise DamagedValueError("no histogram of latencies") from error
